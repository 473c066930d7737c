"""The bound reading over many steps: value and error of a step are what the next one starts from.

What a step returns is known up to an error; so is the gradient that is computed from it, and all of
that enters the formula again. An error only grows where the formula lets it grow: averages damp it,
gradients of steep functions multiply it. Errors are added up as if they never cancelled, so the
bound of a long trajectory with a steep gradient ends beyond use, and then says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from onnxopt_cli.core.trajectory import Derived, Trajectory
from onnxopt_cli.core.values import Array
from onnxopt_cli.errors import NodeError
from onnxopt_cli.operators.call import Call
from onnxopt_cli.operators.single_node import sole_call
from onnxopt_cli.readings.bound import FACTOR, Judgement, bounded_outputs, judged
from onnxopt_cli.readings.bounded import Bounded, Level, either, given, output
from onnxopt_cli.readings.evaluate import WIDE, widen
from onnxopt_cli.readings.precision import Precision, precision_of


@lru_cache(maxsize=2)
def carried_bound(trajectory: Trajectory, factor: float = FACTOR) -> Mapping[str, Judgement]:
    """Return what the recorded steps must return, and how far off they may be.

    The reference goes its own way from the first step on, in the wide type, and is not rounded in
    between. Where rounding decides a choice, the error covers both sides of it.

    Args:
        trajectory: the steps.
        factor: multiple of the carried error that is allowed, as for a single step.

    Returns:
        By output, of the recorded steps stacked: ``[recorded, ...]``.

    Raises:
        NodeError: if node and inputs break the operator's signature.
    """
    recorded = set(trajectory.recorded)
    names = [value.name for value in trajectory.model.graph.output]
    kept: dict[str, list[_Uncertain]] = {name: [] for name in names}
    call = _first_call(trajectory)
    state = {name: _exact(value) for name, value in trajectory.state.items()}
    with np.errstate(all="ignore"):
        for step in range(1, trajectory.count + 1):
            fed = trajectory.inputs(step, state, _exact, _derive)
            outputs = dict(zip(names, _step(call, list(fed.values())), strict=True))
            state = {taken: outputs[name] for name, taken in trajectory.feedback.items()}
            if step in recorded:
                for name, rows in kept.items():
                    rows.append(outputs[name])
        return {name: _stacked(rows, factor) for name, rows in kept.items()}


def first_inputs(trajectory: Trajectory) -> dict[str, Array]:
    """Return what the first step is fed."""
    return trajectory.inputs(1, trajectory.state, lambda array: array, derived_array)


def derived_array(derived: Derived, value: Array) -> Array:
    """Return a derived input of what a backend returned, computed wide and rounded once."""
    with np.errstate(all="ignore"):
        result = derived.formula(widen(value))
        return np.asarray(result).astype(derived.dtype).reshape(value.shape)


@dataclass(frozen=True, slots=True)
class _Uncertain:
    """A tensor that is known up to an error, or an array that is not."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    exactly: Array | None = None
    bounded: Bounded | None = None

    def operand(self, precision: Precision, level: Level) -> Bounded:
        """Return it as an operand that an implementation may convert to a precision."""
        scalar = level is Level.SCALAR
        if self.bounded is None:
            assert self.exactly is not None  # noqa: S101 - for the type checker: one of them is
            return given(self.exactly.reshape(()) if scalar else self.exactly, precision, level)
        bounded = replace(self.bounded, level=level)
        return output(bounded, precision) if bounded.precision is not precision else bounded


def _exact(array: Array) -> _Uncertain:
    return _Uncertain(array.dtype, array.shape, exactly=array)


def _derive(derived: Derived, operand: _Uncertain) -> _Uncertain:
    own = operand.operand(precision_of(operand.dtype), Level.TENSOR)
    result = output(derived.formula(own), precision_of(derived.dtype))
    return _Uncertain(derived.dtype, operand.shape, bounded=either(result))


def _first_call(trajectory: Trajectory) -> Call[Array]:
    call = sole_call(trajectory.model, first_inputs(trajectory))
    if call is None:
        raise NodeError("a trajectory's model must be one node of an operator with a formula")
    return call


def _step(first: Call[Array], fed: list[_Uncertain]) -> list[_Uncertain]:
    scalars, tensors = fed[: len(first.scalars)], fed[len(first.scalars) :]
    groups = len(first.groups)
    call: Call[_Uncertain] = Call(
        first.operator,
        first.attributes,
        tuple(scalars),
        tuple(tuple(tensors[group::groups]) for group in range(groups)),
    )
    return call.by_group(_part)


def _part(call: Call[_Uncertain]) -> list[_Uncertain]:
    results = bounded_outputs(
        call,
        lambda scalar, precision: scalar.operand(precision, Level.SCALAR),
        lambda tensor, precision: tensor.operand(precision, Level.TENSOR),
    )
    return [
        _Uncertain(like.dtype, first.shape, bounded=either(bounded))
        for bounded, like, first in results
    ]


def _stacked(rows: list[_Uncertain], factor: float) -> Judgement:
    shape, dtype = rows[0].shape, rows[0].dtype
    bounded = [row.operand(precision_of(dtype), Level.TENSOR) for row in rows]
    values = np.stack([np.broadcast_to(np.asarray(it.value, WIDE), shape) for it in bounded])
    errors = np.stack([np.broadcast_to(np.float64(it.error), shape) for it in bounded])
    return judged(values, errors, dtype, values.shape, factor)
