"""The suites ``spec`` and ``trajectories``, whose cases are stored in ``written.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import numpy as np

from onnxopt_cli.cases.tensors.declared import RandomTensor
from onnxopt_cli.cases.yaml.case_writer import CaseTemplate, Notation
from onnxopt_cli.core.values import Array
from onnxopt_cli.operators.operator import AttributeValue, Operator
from onnxopt_cli.operators.registry import registry

_START = (1.5, -0.7, 0.3, 2.25)


def published(operator: Operator) -> list[CaseTemplate]:
    """Return the cases that an operator's documentation publishes, in the documentation's order."""
    return [_example(**row) for row in _rows("spec", operator)]


def trajectories(operator: Operator) -> list[CaseTemplate]:
    """Return the templates of an operator's trajectories, which have many steps."""
    gradients = _table()["gradients"]
    rows = _rows("trajectories", operator)
    return [_steps(gradient=gradients.get(row.pop("gradient", "")), **row) for row in rows]


def _table() -> dict[str, Any]:
    file = resources.files("onnxopt_cli.suites").joinpath("written.toml")
    return tomllib.loads(file.read_text("utf-8"))


def _rows(suite: str, operator: Operator) -> list[dict[str, Any]]:
    """Return the rows of an operator in a suite, with ``operator`` in place of its name."""
    rows = (row for row in _table()[suite] if registry().named(row["operator"]) is operator)
    return [row | {"operator": operator} for row in rows]


def _example(
    operator: Operator, name: str, inputs: Mapping[str, Sequence[float]], **others: Any
) -> CaseTemplate:
    first: dict[str, Array] = {"R": np.array(0.1, np.float32), "T": np.array(0, np.int64)}
    return CaseTemplate(
        name=name,
        operator=operator,
        inputs=first | {name: np.array(values, np.float32) for name, values in inputs.items()},
        source=f'ONNX operator documentation, {operator.name}, example "{name}"',
        tags=("published",),
        **others,
    )


def _steps(
    operator: Operator,
    name: str,
    about: str,
    attributes: Mapping[str, AttributeValue],
    *,
    gradient: Notation | None,
    noise: int = 0,
    start: Sequence[float] = _START,
    rate: float = 0.005,
    warm_up: float = 0.0,
    first: int = 1,
    count: int = 200,
    dtype: str = "float32",
) -> CaseTemplate:
    """Return the template of a trajectory that begins at ``start`` with states of zero.

    Args:
        operator: the operator.
        name: the case's name.
        about: the errors that the case detects.
        attributes: the attributes of the node.
        gradient: G of all steps; None for noise.
        noise: the seed of the noise.
        start: X of the first step.
        rate: R of all steps.
        warm_up: R at the end of a linear rise over the first quarter of the steps; 0 for a constant
            R.
        first: T of the first step.
        count: number of steps.
        dtype: element type of X and the states.
    """
    if gradient is None:
        gradient = RandomTensor("normal", noise, (count, len(start)), np.dtype(np.float32))
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
    return CaseTemplate(
        name=name,
        about=about,
        operator=operator,
        inputs=inputs,
        attributes=attributes,
        tags=("trajectory",),
        steps=count,
        changing=changing,
    )
