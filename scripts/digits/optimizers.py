"""The four optimizers of the workload, as nodes of ai.onnx.preview.training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DOMAIN = "ai.onnx.preview.training"


@dataclass(frozen=True, slots=True)
class Optimizer:
    """A training operator and its settings.

    Attributes:
        name: as it is shown.
        op_type: the node's operator.
        attributes: the node's attributes.
        states: what the operator keeps for each parameter, in its order: V, H or both.
        rate: the learning rate R.
        first_count: T of the first step; Adam counts from 1, the others from 0.
    """

    name: str
    op_type: str
    attributes: Mapping[str, Any]
    states: tuple[str, ...]
    rate: float
    first_count: int = 0


def _momentum(mode: str) -> Mapping[str, Any]:
    return {"alpha": 0.9, "beta": 1.0, "mode": mode, "norm_coefficient": 1e-4}


ADAM = Optimizer("Adam", "Adam", {}, ("V", "H"), rate=0.003, first_count=1)

OPTIMIZERS = (
    ADAM,
    Optimizer("Adagrad", "Adagrad", {"decay_factor": 1e-3}, ("H",), rate=0.03),
    Optimizer("Momentum", "Momentum", _momentum("standard"), ("V",), rate=0.03),
    Optimizer("Nesterov", "Momentum", _momentum("nesterov"), ("V",), rate=0.03),
)
