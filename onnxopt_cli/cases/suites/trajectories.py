"""The suite ``trajectories``: what a wrong implementation drifts away from over many steps.

Rates are small where gradients depend on X, so that errors, which such a gradient multiplies, stay
far below the values for all steps. Gradients of random data do not depend on X.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from onnxopt_cli.cases.values.declared import RandomTensor
from onnxopt_cli.cases.yaml.writer import Notation, WrittenCase
from onnxopt_cli.core.values import Array
from onnxopt_cli.formula.operator import AttributeValue, Operator
from onnxopt_cli.operators.adagrad import ADAGRAD
from onnxopt_cli.operators.adam import ADAM
from onnxopt_cli.operators.momentum import MOMENTUM

_START = (1.5, -0.7, 0.3, 2.25)
_LATE = 10**6

_QUADRATIC: Notation = {
    "quadratic": {"curvature": (1.0, 0.5, 0.2, 0.1), "center": (0.5, -1.75, 2.0, 0.6)}
}
_ROSENBROCK: Notation = {"rosenbrock": {"valley": 2.0}}
_LOGISTIC: Notation = {
    "logistic": {
        "features": (
            (1.0, 2.0, 0.5),
            (2.0, 1.0, -1.0),
            (-1.0, 1.5, 0.25),
            (0.5, -2.0, 1.0),
            (-1.5, -0.5, -0.75),
            (0.25, 0.75, -2.0),
        ),
        "labels": (1.0, 1.0, 0.0, 1.0, 0.0, 0.0),
    }
}
# Most steps leave most elements alone; one element has a gradient once in seven steps.
_SPARSE = (
    (0.0, 1.0, 0.0, -0.5),
    (0.0, 0.0, 0.25, 0.0),
    (-2.0, 0.0, 0.0, 0.5),
    (0.0, 0.0, -0.25, 0.0),
    (0.0, -1.5, 0.0, 1.0),
    (0.0, 0.0, 0.0, 0.0),
    (0.0, 0.5, 0.75, 0.0),
)


def trajectories() -> list[WrittenCase]:
    """Return the questions, by operator."""
    return [*_adam(), *_adagrad(), *_momentum()]


def _adam() -> list[WrittenCase]:
    return [
        _ask(
            ADAM,
            "quadratic",
            "Catches every error of a step that the next one inherits, on the way to a minimum.",
            _QUADRATIC,
            attributes={"epsilon": 1e-3},
        ),
        _ask(
            ADAM,
            "noise",
            "Catches drift under gradients that are noise, with all attributes away from default.",
            _noise(200, 4, seed=11),
            attributes={
                "alpha": 0.8,
                "beta": 0.99,
                "epsilon": 1e-2,
                "norm_coefficient": 1e-3,
                "norm_coefficient_post": 1e-4,
            },
            rate=0.01,
        ),
        _ask(
            ADAM,
            "sparse",
            "Catches states that are not decayed where the gradient is zero.",
            {"cycle": _SPARSE},
            count=100,
            attributes={"epsilon": 1e-4},
            rate=0.01,
        ),
        _ask(
            ADAM,
            "warm_up",
            "Catches a rate that is kept from an earlier step, while a logistic regression learns.",
            _LOGISTIC,
            attributes={"epsilon": 1e-3},
            start=(0.5, 0.25, 0.5),
            warm_up=0.005,
            count=100,
        ),
        _ask(
            ADAM,
            "late",
            "Catches powers and counts that fail at a million steps, where beta^T still counts.",
            _noise(100, 4, seed=12),
            attributes={"beta": 0.999999},
            first=_LATE,
            rate=0.01,
            count=100,
        ),
    ]


def _adagrad() -> list[WrittenCase]:
    return [
        _ask(
            ADAGRAD,
            "quadratic",
            "Catches every error of a step that the next one inherits, the decay of R included.",
            _QUADRATIC,
            attributes={"decay_factor": 0.01, "epsilon": 1e-3},
            rate=0.05,
            first=0,
        ),
        _ask(
            ADAGRAD,
            "sparse",
            "Catches sums of squares that change where the gradient is zero.",
            {"cycle": _SPARSE},
            count=100,
            attributes={"norm_coefficient": 0.0},
            rate=0.05,
            first=0,
        ),
        _ask(
            ADAGRAD,
            "late",
            "Catches a decay of R that fails at a million steps, in double.",
            _noise(100, 4, seed=13),
            count=100,
            attributes={"decay_factor": 1e-6, "epsilon": 1e-2, "norm_coefficient": 1e-3},
            first=_LATE,
            rate=0.1,
            dtype="float64",
        ),
    ]


def _momentum() -> list[WrittenCase]:
    standard: dict[str, AttributeValue] = {
        "alpha": 0.9,
        "beta": 0.95,
        "mode": "standard",
        "norm_coefficient": 1e-3,
    }
    nesterov = {**standard, "mode": "nesterov"}
    return [
        _ask(
            MOMENTUM,
            "quadratic",
            "Catches every error of a step that the next one inherits, beta in the first included.",
            _QUADRATIC,
            attributes=standard,
            rate=0.002,
            first=0,
        ),
        _ask(
            MOMENTUM,
            "rosenbrock",
            "Catches drift along a bent valley.",
            _ROSENBROCK,
            attributes={**standard, "alpha": 0.5},
            start=(-1.25, 1.5),
            count=100,
            rate=0.0005,
            first=0,
        ),
        _ask(
            MOMENTUM,
            "late",
            "Catches a count that fails at a million steps, under gradients that are noise.",
            _noise(100, 4, seed=14),
            count=100,
            attributes=standard,
            rate=0.01,
            first=_LATE,
        ),
        _ask(
            MOMENTUM,
            "nesterov_warm_up",
            "Catches a rate kept from an earlier step, while a logistic regression learns.",
            _LOGISTIC,
            attributes=nesterov,
            start=(0.5, -0.25, 0.75),
            warm_up=0.01,
            count=100,
            first=0,
        ),
        _ask(
            MOMENTUM,
            "nesterov_sparse",
            "Catches a look ahead that is left out where the gradient is zero.",
            {"cycle": _SPARSE},
            count=100,
            attributes=nesterov,
            rate=0.01,
            first=0,
        ),
    ]


def _noise(count: int, elements: int, *, seed: int) -> RandomTensor:
    return RandomTensor("normal", seed, (count, elements), np.dtype(np.float32))


def _ask(
    operator: Operator,
    name: str,
    about: str,
    gradient: Notation,
    *,
    attributes: Mapping[str, AttributeValue] | None = None,
    start: tuple[float, ...] = _START,
    rate: float = 0.005,
    warm_up: float = 0.0,
    first: int = 1,
    count: int = 200,
    dtype: str = "float32",
) -> WrittenCase:
    """Ask for a trajectory from ``start``, with empty states.

    Args:
        operator: the operator.
        name: the case's name.
        about: what it is there to catch.
        gradient: G of all steps.
        attributes: those of the node.
        start: X of the first step.
        rate: R of all steps.
        warm_up: R at the end of its rise over the first quarter, where it is not constant.
        first: T of the first step.
        count: number of steps.
        dtype: element type of X and the states.
    """
    tensors = {tensor: np.zeros(len(start), dtype) for tensor in operator.tensors if tensor != "G"}
    inputs: dict[str, Array] = {
        "R": np.array(rate, np.float32),
        "T": np.array(first, np.int64),
        **tensors,
        "X": np.array(start, dtype),
    }
    changing: dict[str, Notation] = {"G": gradient}
    if warm_up:
        del inputs["R"]
        line: Notation = {"from": warm_up / 50, "to": warm_up, "over": count // 4}
        changing = {"R": {"linear": line}, **changing}
    return WrittenCase(
        name=name,
        about=about,
        operator=operator,
        inputs=inputs,
        attributes=attributes or {},
        tags=("trajectory",),
        steps=count,
        changing=changing,
    )
