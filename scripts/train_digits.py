"""Train and prune a network for scikit-learn's digits, with graphs that contain training operators.

    pip install -e ".[ort,workload]"
    python scripts/train_digits.py [--quick] [--export DIR]

A whole training step is one graph: forward pass, loss, backward pass and optimizer. Adam, Adagrad,
Momentum and Nesterov train on the NumPy reference and on ONNX Runtime. For ONNX Runtime, the
optimizers are lowered. Then ADMM prunes the network that Adam has trained, and the network is
finetuned under the mask. The script prints the tables of docs/training.md.

ADMM with finetuning must be better than one-shot pruning without finetuning if at least 80 % of the
weights are pruned. Otherwise, the script exits with 1.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import onnx
from digits_network import (
    ADAM,
    OPTIMIZERS,
    SHAPES,
    WEIGHTS,
    Array,
    Optimizer,
    Regime,
    admm_update,
    classifier,
    initial_parameters,
    magnitude_prune,
    training_step,
)

from onnxopt_cli.backends.protocol import Backend, normalise_outputs
from onnxopt_cli.backends.resolve import resolve_backend
from onnxopt_cli.cases.case import Problem
from onnxopt_cli.cases.onnx.data_set import write_directory
from onnxopt_cli.errors import Unsupported
from onnxopt_cli.interpret.lower.lower_model import lower

BACKENDS = ("numpy", "onnxruntime")
EXPORTED_CASE = "test_digits_adam"
BATCH, EXPORTED_BATCH = 32, 16
TRAINING_IMAGES = 1437
#: Factor of ADMM's penalty. It was chosen on a validation set with the numbers of epochs in FULL.
RHO = 0.03
#: If at least this percentage of weights is pruned, ADMM with finetuning must be better than
#: one-shot pruning without finetuning.
DEMANDING_PERCENT = 80

Tensors = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Settings:
    """The size of a run: numbers of epochs, percentages of pruned weights, and seeds.

    One-shot pruning is followed by as many epochs of finetuning as the ADMM phase and the
    finetuning after ADMM have together.
    """

    dense: int
    admm: int
    finetuning: int
    percents: tuple[float, ...]
    seeds: tuple[int, ...]


FULL = Settings(30, 40, 20, (50, 80, 90, 95), tuple(range(10)))
QUICK = Settings(3, 3, 2, (80,), (0,))


@dataclass(frozen=True, slots=True)
class Images:
    """Float32 pixels of shape [count, 64] from 0 to 1, and int64 labels from 0 to 9."""

    pixels: Array
    labels: Array

    def batches(self, seed: int, epoch: int) -> Iterator[Images]:
        """Yield the full batches of an epoch in a random order."""
        order = np.random.default_rng([seed, epoch]).permutation(len(self.labels))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            yield Images(self.pixels[chosen], self.labels[chosen])


def load_images() -> tuple[Images, Images]:
    """Return four fifths of the 1,797 images for training and the rest for testing."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    pixels = (pixels / 16).astype(np.float32)
    parts = np.split(order, [TRAINING_IMAGES])
    training, test = (Images(pixels[part], labels[part].astype(np.int64)) for part in parts)
    return training, test


class PreparedModel:
    """A model that is prepared once on a backend, and lowered if the backend lacks an operator."""

    def __init__(self, backend: Backend, model: onnx.ModelProto) -> None:
        self._inputs = [value.name for value in model.graph.input]
        self._outputs = model.graph.output
        try:
            self._prepared = backend.prepare(model)
        except Unsupported:
            self._prepared = backend.prepare(lower(model).model)

    def run(self, values: Tensors) -> dict[str, Array]:
        """Return the outputs by name; values that are not inputs of the model are ignored."""
        returned = self._prepared.run({name: values[name] for name in self._inputs})
        arrays = normalise_outputs(returned, self._outputs)
        return {
            value.name: np.asarray(array)
            for value, array in zip(self._outputs, arrays, strict=True)
        }


@dataclass(frozen=True, slots=True)
class TrainingState:
    """The state of a training: tensors, number of steps, and mean loss of each epoch.

    The tensors are the parameters by name, and the states of the optimizer, such as ``V_W1``.
    """

    tensors: Tensors
    steps: int = 0
    losses: tuple[float, ...] = ()

    @property
    def parameters(self) -> dict[str, Array]:
        """The parameters without the optimizer's states."""
        return {name: self.tensors[name] for name in SHAPES}


class Trainer:
    """Training with one optimizer on one backend."""

    def __init__(
        self, backend: Backend, optimizer: Optimizer, regime: Regime = Regime.DENSE
    ) -> None:
        self.optimizer = optimizer
        self._step = PreparedModel(backend, training_step(optimizer, BATCH, regime, RHO))

    def start(self, parameters: Tensors) -> TrainingState:
        """Return the state before the first step; the optimizer's states are zero."""
        states = {
            f"{state}_{name}": np.zeros(shape, np.float32)
            for state in self.optimizer.states
            for name, shape in SHAPES.items()
        }
        return TrainingState({**parameters, **states})

    def inputs(self, tensors: Tensors, steps: int, batch: Images) -> dict[str, Array]:
        """Return the inputs of the step after the first ``steps`` steps."""
        return {
            **tensors,
            "R": np.array(self.optimizer.rate, np.float32),
            "T": np.array(self.optimizer.first_count + steps, np.int64),
            "images": batch.pixels,
            "labels": batch.labels,
        }

    def train_epoch(
        self, state: TrainingState, images: Images, seed: int, constants: Tensors | None = None
    ) -> TrainingState:
        """Train for one epoch; ``constants`` are the further inputs of the :class:`Regime`."""
        tensors, steps, losses = state.tensors, state.steps, []
        for batch in images.batches(seed, len(state.losses)):
            outputs = self._step.run(self.inputs({**tensors, **(constants or {})}, steps, batch))
            tensors = {name: outputs[f"{name}_new"] for name in tensors}
            losses.append(float(outputs["loss"]))
            steps += 1
        return TrainingState(tensors, steps, (*state.losses, float(np.mean(losses))))

    def train(
        self,
        parameters: Tensors,
        images: Images,
        epochs: int,
        seed: int,
        constants: Tensors | None = None,
    ) -> TrainingState:
        """Train from some parameters for a number of epochs."""
        state = self.start(parameters)
        for _ in range(epochs):
            state = self.train_epoch(state, images, seed, constants)
        return state


@dataclass(frozen=True, slots=True)
class Pruned:
    """A network in two states: directly after pruning, and after finetuning under the mask."""

    parameters: Tensors
    finetuned: Tensors


class Pruner:
    """Prunes networks on a backend by a fixed percentage, and trains them by Adam."""

    def __init__(self, backend: Backend, percent: float) -> None:
        self._penalized = Trainer(backend, ADAM, Regime.ADMM)
        self._masked = Trainer(backend, ADAM, Regime.MASKED)
        self._update = PreparedModel(backend, admm_update(percent))
        self._prune = PreparedModel(backend, magnitude_prune(percent))

    def prune_by_admm(
        self, dense: Tensors, images: Images, seed: int, settings: Settings
    ) -> Pruned:
        """Train the weights towards their projections, prune the network, and finetune it."""
        variables: dict[str, Array] = {}
        for name in WEIGHTS:
            variables[f"Z_{name}"] = dense[name]
            variables[f"U_{name}"] = np.zeros(SHAPES[name], np.float32)
        state = self._penalized.start(dense)
        for _ in range(settings.admm):
            state = self._penalized.train_epoch(state, images, seed, variables)
            updated = self._update.run({**state.tensors, **variables})
            variables = {name: updated[f"{name}_new"] for name in variables}
        return self._prune_and_finetune(state.parameters, images, settings.finetuning, seed)

    def prune_once(self, dense: Tensors, images: Images, seed: int, settings: Settings) -> Pruned:
        """Prune by magnitude, and finetune for the total number of epochs that ADMM takes."""
        epochs = settings.admm + settings.finetuning
        return self._prune_and_finetune(dense, images, epochs, seed)

    def _prune_and_finetune(
        self, weights: Tensors, images: Images, epochs: int, seed: int
    ) -> Pruned:
        pruned = self._prune.run(weights)
        masks = {f"mask_{name}": pruned[f"mask_{name}"] for name in WEIGHTS}
        parameters = {**weights, **{name: pruned[f"{name}_new"] for name in WEIGHTS}}
        state = self._masked.train(parameters, images, epochs, seed, masks)
        return Pruned(parameters, state.parameters)


class Classifier:
    """The forward pass of the network on a backend."""

    def __init__(self, backend: Backend) -> None:
        self._model = PreparedModel(backend, classifier())

    def accuracy(self, parameters: Tensors, images: Images) -> float:
        """Return the share of images whose label has the largest logit."""
        logits = self._model.run({**parameters, "images": images.pixels})["logits"]
        return float(np.mean(np.argmax(logits, axis=1) == images.labels))


def training_table(
    backends: Sequence[Backend], training: Images, test: Images, settings: Settings
) -> str:
    """Train with each optimizer on both backends, from the same parameters; return the results."""
    test_classifier = Classifier(backends[0])
    seed = settings.seeds[0]
    rows = []
    for optimizer in OPTIMIZERS:
        first, second = (
            Trainer(backend, optimizer).train(
                initial_parameters(seed), training, settings.dense, seed
            )
            for backend in backends
        )
        difference = max(
            float(np.max(np.abs(first.tensors[name] - second.tensors[name]))) for name in SHAPES
        )
        rows.append(
            [
                optimizer.name,
                *(f"{state.losses[-1]:.4f}" for state in (first, second)),
                *(
                    mean_and_deviation([test_classifier.accuracy(state.parameters, test)])
                    for state in (first, second)
                ),
                f"{difference:.1e}",
            ]
        )
    columns = [f"{figure}, {name}" for figure in ("loss", "accuracy") for name in BACKENDS]
    return markdown_table(["optimizer", *columns, "largest difference of a parameter"], rows)


def pruning_accuracies(
    backend: Backend, training: Images, test: Images, settings: Settings
) -> Iterator[tuple[float, float, dict[str, list[float]]]]:
    """For each percentage, yield the share of zeros, and the accuracies of all seeds by method."""
    test_classifier = Classifier(backend)
    trainer = Trainer(backend, ADAM)
    dense = {
        seed: trainer.train(initial_parameters(seed), training, settings.dense, seed).parameters
        for seed in settings.seeds
    }
    for percent in settings.percents:
        pruner = Pruner(backend, percent)
        accuracies: dict[str, list[float]] = {}
        zeros = []
        for seed, parameters in dense.items():
            once = pruner.prune_once(parameters, training, seed, settings)
            admm = pruner.prune_by_admm(parameters, training, seed, settings)
            zeros.append(share_of_zeros(admm.finetuned))
            networks = {
                "dense": parameters,
                "one-shot": once.parameters,
                "one-shot, finetuned": once.finetuned,
                "ADMM": admm.parameters,
                "ADMM, finetuned": admm.finetuned,
            }
            for method, network in networks.items():
                accuracy = test_classifier.accuracy(network, test)
                accuracies.setdefault(method, []).append(accuracy)
        yield percent, float(np.mean(zeros)), accuracies


def share_of_zeros(parameters: Tensors) -> float:
    """Return the share of zeros among all weights."""
    weights = np.concatenate([np.ravel(parameters[name]) for name in WEIGHTS])
    return float(np.mean(weights == 0))


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose first column is text and whose other columns are numbers."""
    rule = ["---", *("---:" for _ in columns[1:])]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, rule, *rows))


def mean_and_deviation(shares: Sequence[float]) -> str:
    """Return the mean in percent, with the standard deviation if there are several values."""
    mean = f"{100 * np.mean(shares):.1f}"
    return f"{mean} ± {100 * np.std(shares, ddof=1):.1f} %" if len(shares) > 1 else f"{mean} %"


def export_step(folder: Path, backend: Backend, images: Images, seed: int) -> None:
    """Write the first step of Adam's second epoch, on 16 images, as an ONNX test directory.

    In the second epoch, the optimizer's states are not zero, and T is not 1.
    """
    trainer = Trainer(backend, ADAM)
    state = trainer.train(initial_parameters(seed), images, 1, seed)
    model = training_step(ADAM, EXPORTED_BATCH)
    batch = Images(images.pixels[:EXPORTED_BATCH], images.labels[:EXPORTED_BATCH])
    values = trainer.inputs(state.tensors, state.steps, batch)
    inputs = {value.name: values[value.name] for value in model.graph.input}
    write_directory(folder, Problem(model, inputs, PreparedModel(backend, model).run(inputs)))


def main() -> int:
    """Run the workload; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--quick",
        action="store_true",
        help="train for fewer epochs, in seconds instead of minutes",
    )
    parser.add_argument(
        "--export", type=Path, metavar="DIR", help=f"only write the test DIR/{EXPORTED_CASE}"
    )
    options = parser.parse_args()
    began = time.perf_counter()
    settings = QUICK if options.quick else FULL
    backends = [resolve_backend(name) for name in BACKENDS]
    training, test = load_images()
    if options.export:
        export_step(options.export / EXPORTED_CASE, backends[0], training, settings.seeds[0])
        return 0
    versions = ", ".join(backend.version for backend in backends)
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, {versions}\n"
    )
    print(training_table(backends, training, test, settings), end="\n\n")
    rows, worse = [], []
    for percent, zeros, accuracies in pruning_accuracies(backends[1], training, test, settings):
        columns = ["pruned", "zeros in all", *accuracies]
        cells = map(mean_and_deviation, accuracies.values())
        rows.append([f"{percent:g} %", f"{100 * zeros:.1f} %", *cells])
        admm, one_shot = (np.mean(accuracies[name]) for name in ("ADMM, finetuned", "one-shot"))
        if percent >= DEMANDING_PERCENT and admm <= one_shot:
            worse.append(f"at {percent:g} %: ADMM, finetuned {admm:.1%}, one-shot {one_shot:.1%}")
    print(markdown_table(columns, rows))
    print(f"\n{time.perf_counter() - began:.0f} s")
    for line in worse:
        print(line, file=sys.stderr)
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(main())
