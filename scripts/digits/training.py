"""Training on a backend: the graph of a step is run for every batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from digits.data import Images
from digits.network import SHAPES, Array
from digits.optimizers import Optimizer
from digits.prepared_model import PreparedModel, Tensors
from digits.training_step import Regime, training_step
from onnxopt_cli.backends.protocol import Backend

BATCH = 32
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Where a training is.

    Attributes:
        tensors: parameters by name, and the optimizer's states as ``V_W1``.
        steps: number of steps taken.
        losses: mean loss of every epoch.
    """

    tensors: Tensors
    steps: int = 0
    losses: tuple[float, ...] = ()

    @property
    def parameters(self) -> dict[str, Array]:
        """The parameters alone."""
        return {name: self.tensors[name] for name in SHAPES}


class Trainer:
    """A training step of an optimizer on a backend."""

    def __init__(
        self,
        backend: Backend,
        optimizer: Optimizer,
        regime: Regime = Regime.DENSE,
        rho: float = 0.0,
    ) -> None:
        self.optimizer = optimizer
        self._step = PreparedModel(backend, training_step(optimizer, BATCH, regime, rho))

    def start(self, parameters: Tensors) -> Snapshot:
        """Return the start of a training: parameters as given, states zero."""
        states = {
            f"{state}_{name}": np.zeros(shape, np.float32)
            for state in self.optimizer.states
            for name, shape in SHAPES.items()
        }
        return Snapshot({**parameters, **states})

    def inputs(self, tensors: Tensors, steps: int, batch: Images) -> dict[str, Array]:
        """Return the inputs of a step that follows so many others."""
        return {
            **tensors,
            "R": np.array(self.optimizer.rate, np.float32),
            "T": np.array(self.optimizer.first_count + steps, np.int64),
            "images": batch.pixels,
            "labels": batch.labels,
        }

    def outputs(self, tensors: Tensors, steps: int, batch: Images) -> dict[str, Array]:
        """Take a step and return all that the graph yields."""
        return self._step.run(self.inputs(tensors, steps, batch))

    def epoch(
        self, snapshot: Snapshot, images: Images, seed: int, extra: Tensors | None = None
    ) -> Snapshot:
        """Train for one epoch more.

        Args:
            snapshot: where the training is.
            images: to train with.
            seed: of the order of the images, which is another one each epoch.
            extra: the regime's other inputs.
        """
        tensors, steps, losses = snapshot.tensors, snapshot.steps, []
        for batch in images.batches(BATCH, seed, len(snapshot.losses)):
            outputs = self.outputs({**tensors, **(extra or {})}, steps, batch)
            tensors, steps = updated(tensors, outputs), steps + 1
            losses.append(float(outputs["loss"]))
        return Snapshot(tensors, steps, (*snapshot.losses, float(np.mean(losses))))

    def train(
        self,
        parameters: Tensors,
        images: Images,
        epochs: int,
        seed: int,
        extra: Tensors | None = None,
    ) -> Snapshot:
        """Train for some epochs from parameters and states that are zero."""
        snapshot = self.start(parameters)
        for _ in range(epochs):
            snapshot = self.epoch(snapshot, images, seed, extra)
        return snapshot


def updated(tensors: Mapping[str, T], outputs: Mapping[str, T]) -> dict[str, T]:
    """Return what the next step takes from the outputs of one."""
    return {name: outputs[f"{name}_new"] for name in tensors}
