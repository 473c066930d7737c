"""The bound reading over many steps: value and error of a step are what the next one starts from.

What a step returns is known up to an error; so is the gradient that is computed from it, and all of
that enters the formula again. An error only grows where the formula lets it grow: averages damp it,
gradients of steep functions multiply it. Errors are added up as if they never cancelled, so the
bound of a long trajectory with a steep gradient ends beyond use, and then says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

import numpy as np

from onnxopt_cli.core.trajectory import Derived, Trajectory
from onnxopt_cli.core.values import Array
from onnxopt_cli.errors import NodeError
from onnxopt_cli.formula.call import Call, Operand
from onnxopt_cli.formula.operator import Operator
from onnxopt_cli.readings.bound.bound import FACTOR, Judgement, judged
from onnxopt_cli.readings.bound.bounded import either, output
from onnxopt_cli.readings.bound.infinite import AlsoRight, Change, also_right_from
from onnxopt_cli.readings.bound.precision import precision_of
from onnxopt_cli.readings.bound.uncertain import Uncertain, uncertain_outputs
from onnxopt_cli.readings.evaluate import evaluate, widen
from onnxopt_cli.readings.single_node import sole_call

T = TypeVar("T")
Fed = TypeVar("Fed", bound=Operand)


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
    first = _first_call(trajectory)
    names = [value.name for value in trajectory.model.graph.output]
    with np.errstate(all="ignore"):
        rows = _recorded(
            trajectory,
            Uncertain.exact,
            _derive,
            lambda fed: uncertain_outputs(_with_operands(first, fed)),
        )
        judgements = [_stacked(column, factor) for column in zip(*rows, strict=True)]
        if others := _also_right(trajectory, first):
            judgements = [it.accepting(also) for it, also in zip(judgements, others, strict=True)]
        return dict(zip(names, judgements, strict=True))


def _also_right(trajectory: Trajectory, first: Call[Array]) -> list[list[AlsoRight]]:
    """Return what the recorded steps may return where right forms are fed infinite inputs."""

    def outputs(operator: Operator, change: Change) -> list[Array]:
        call = replace(first, operator=operator)
        rows = _recorded(
            trajectory,
            lambda array: change(widen(array) if array.dtype.kind == "f" else array),
            lambda derived, value: np.asarray(derived.formula(value)).reshape(value.shape),
            lambda fed: evaluate(_with_operands(call, fed)),
        )
        return [np.stack(column) for column in zip(*rows, strict=True)]

    given = [*trajectory.start.values(), *trajectory.series.values()]
    return also_right_from(first.operator, given, outputs)


def _recorded(
    trajectory: Trajectory,
    given: Callable[[Array], T],
    derive: Callable[[Derived, T], T],
    compute: Callable[[list[T]], list[T]],
) -> Iterator[list[T]]:
    """Take all steps; yield the outputs of those that are recorded."""
    recorded = set(trajectory.recorded)
    names = [value.name for value in trajectory.model.graph.output]
    state = {name: given(value) for name, value in trajectory.state.items()}
    for step in range(1, trajectory.count + 1):
        fed = trajectory.inputs(step, state, given, derive)
        outputs = dict(zip(names, compute(list(fed.values())), strict=True))
        state = {taken: outputs[name] for name, taken in trajectory.feedback.items()}
        if step in recorded:
            yield list(outputs.values())


def first_inputs(trajectory: Trajectory) -> dict[str, Array]:
    """Return what the first step is fed."""
    return trajectory.inputs(1, trajectory.state, lambda array: array, derived_array)


def derived_array(derived: Derived, value: Array) -> Array:
    """Return a derived input of what a backend returned, computed wide and rounded once."""
    with np.errstate(all="ignore"):
        result = derived.formula(widen(value))
        return np.asarray(result).astype(derived.dtype).reshape(value.shape)


def _derive(derived: Derived, operand: Uncertain) -> Uncertain:
    result = output(derived.formula(operand.tensor), precision_of(derived.dtype))
    return Uncertain(derived.dtype, operand.shape, bounded=either(result))


def _first_call(trajectory: Trajectory) -> Call[Array]:
    call = sole_call(trajectory.model, first_inputs(trajectory))
    if call is None:
        raise NodeError("a trajectory's model must be one node of an operator with a formula")
    return call


def _with_operands(first: Call[Array], fed: list[Fed]) -> Call[Fed]:
    scalars, tensors = fed[: len(first.scalars)], fed[len(first.scalars) :]
    count = len(first.groups)
    groups = tuple(tuple(tensors[group::count]) for group in range(count))
    return Call(first.operator, first.attributes, tuple(scalars), groups)


def _stacked(rows: Sequence[Uncertain], factor: float) -> Judgement:
    values = np.stack([row.value for row in rows])
    errors = np.stack([row.error for row in rows])
    return judged(values, errors, rows[0].dtype, values.shape, factor)
