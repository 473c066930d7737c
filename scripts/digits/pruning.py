"""Pruning a trained network on a backend: ADMM, and magnitude pruning at one stroke."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from digits.data import Images
from digits.graph import GraphBuilder
from digits.network import SHAPES, WEIGHTS, Array
from digits.optimizers import Optimizer
from digits.prepared_model import PreparedModel, Tensors
from digits.settings import Settings
from digits.training import Trainer
from digits.training_step import PRUNING_DOMAIN, Regime
from onnxopt_cli.backends.protocol import Backend

#: Weight of the penalty.
RHO = 0.03


@dataclass(frozen=True, slots=True)
class Pruned:
    """A pruned network before and after it was finetuned.

    Attributes:
        weights: the weights before anything was pruned from them.
        parameters: the pruned network.
        finetuned: the same, trained on with what is zero held at zero.
    """

    weights: Tensors
    parameters: Tensors
    finetuned: Tensors

    def sparsity(self) -> dict[str, float]:
        """Return the share of zeros in each layer's weights after finetuning, and in all."""
        zeros = {name: self.finetuned[name] == 0 for name in WEIGHTS}
        share = {name: float(np.mean(zero)) for name, zero in zeros.items()}
        return {**share, "all": float(np.mean(np.concatenate([*map(np.ravel, zeros.values())])))}


class Pruner:
    """The graphs that pruning to one percentage takes, on a backend."""

    def __init__(self, backend: Backend, optimizer: Optimizer, percent: float) -> None:
        self._penalized = Trainer(backend, optimizer, Regime.ADMM, RHO)
        self._masked = Trainer(backend, optimizer, Regime.MASKED)
        self._update = PreparedModel(backend, admm_update(percent))
        self._prune = PreparedModel(backend, magnitude_prune(percent))

    def admm(self, dense: Tensors, images: Images, seed: int, settings: Settings) -> Pruned:
        """Draw the weights towards their projections, prune, and finetune."""
        tensors: dict[str, Array] = {}
        for name in WEIGHTS:
            tensors[f"Z_{name}"] = dense[name]
            tensors[f"U_{name}"] = np.zeros(SHAPES[name], np.float32)
        training = self._penalized.start(dense)
        for _ in range(settings.admm):
            training = self._penalized.epoch(training, images, seed, tensors)
            moved = self._update.run({**training.tensors, **tensors})
            tensors = {name: moved[f"{name}_new"] for name in tensors}
        return self._finetuned(training.parameters, images, settings.finetuning, seed)

    def one_shot(self, dense: Tensors, images: Images, seed: int, settings: Settings) -> Pruned:
        """Prune at one stroke, and finetune for as many epochs as ADMM takes in all."""
        return self._finetuned(dense, images, settings.admm + settings.finetuning, seed)

    def _finetuned(self, weights: Tensors, images: Images, epochs: int, seed: int) -> Pruned:
        pruned = self._prune.run(weights)
        masks = {f"mask_{name}": pruned[f"mask_{name}"] for name in WEIGHTS}
        parameters = {**weights, **{name: pruned[f"{name}_new"] for name in WEIGHTS}}
        finetuned = self._masked.train(parameters, images, epochs, seed, masks).parameters
        return Pruned(weights, parameters, finetuned)


def admm_update(percent: float) -> onnx.ModelProto:
    """Return the model that projects all layers and moves their dual variables."""
    inputs = [*WEIGHTS, *(f"{kind}_{name}" for kind in ("Z", "U") for name in WEIGHTS)]
    outputs = [f"{name}_new" for name in inputs if name not in WEIGHTS]
    return _one_node("AdmmUpdate", inputs, outputs, percent)


def magnitude_prune(percent: float) -> onnx.ModelProto:
    """Return the model that prunes all layers and says what stayed."""
    outputs = [*(f"{name}_new" for name in WEIGHTS), *(f"mask_{name}" for name in WEIGHTS)]
    return _one_node("MagnitudePrune", WEIGHTS, outputs, percent)


def _one_node(
    op_type: str, inputs: Sequence[str], outputs: Sequence[str], percent: float
) -> onnx.ModelProto:
    """Return a model of one pruning node, whose tensors come layer by layer."""
    graph = GraphBuilder(op_type)
    shapes = [SHAPES[name] for name in WEIGHTS]
    for position, name in enumerate(inputs):
        graph.input(name, shapes[position % len(shapes)])
    graph.nodes(op_type, inputs, outputs, {"percent": [float(percent)]}, PRUNING_DOMAIN)
    for position, name in enumerate(outputs):
        graph.output(name, shapes[position % len(shapes)])
    return graph.model()
