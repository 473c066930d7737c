"""The bound of nodes that feed one another: several in a model, or one over many steps.

What a node returns is known up to an error; so is the gradient that is computed from it, and all of
that enters a formula again. The reference goes its own way from the first node on, in the wide
type, and is not rounded in between. Where rounding decides a choice, the error covers both sides.
An error only grows where the formula lets it grow: averages damp it, gradients of steep functions
multiply it. Errors are added up as if they never cancelled, so the bound of a long trajectory with
a steep gradient ends beyond use, and then says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from onnxopt_cli.core.trajectory import Derived, Trajectory
from onnxopt_cli.core.values import Array
from onnxopt_cli.errors import NodeError
from onnxopt_cli.interpret.bound.bounded_value import (
    Bounded,
    covering,
    given,
    output,
)
from onnxopt_cli.interpret.bound.error_bound import (
    FACTOR,
    AlsoRight,
    Change,
    DerivedOutput,
    also_right_from,
    bounded_outputs,
    judged,
)
from onnxopt_cli.interpret.evaluate import (
    WIDE,
    evaluate,
    widen,
)
from onnxopt_cli.interpret.single_node import sole_call
from onnxopt_cli.interpret.vocabulary import Precision, precision_of
from onnxopt_cli.operators.call import Call
from onnxopt_cli.operators.operator import Operator

T = TypeVar("T")


@lru_cache(maxsize=2)
def bound_trajectory(trajectory: Trajectory, factor: float = FACTOR) -> Mapping[str, DerivedOutput]:
    """Return what the recorded steps must return, and how far off they may be.

    Args:
        trajectory: the steps.
        factor: multiple of the error that is allowed, as for a single step.

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
            lambda array: InexactTensor(array.dtype, array.shape, array),
            _derive,
            lambda fed: inexact_outputs(first.with_inputs(fed)),
        )
        steps = [[it.derived_output(factor) for it in row] for row in rows]
        derived_outputs = [_stacked(column) for column in zip(*steps, strict=True)]
        if others := _also_right(
            trajectory, first, any(derived_output.divides for derived_output in derived_outputs)
        ):
            derived_outputs = [
                it.accepting(also) for it, also in zip(derived_outputs, others, strict=True)
            ]
        return dict(zip(names, derived_outputs, strict=True))


def _stacked(steps: Sequence[DerivedOutput]) -> DerivedOutput:
    parts = ("expected", "value", "error")
    whole: dict[str, Any] = {
        part: np.stack([getattr(step, part) for step in steps]) for part in parts
    }
    return replace(steps[0], **whole)


def evaluate_trajectory(trajectory: Trajectory) -> list[Array]:
    """Return what the recorded steps must return, stacked: ``[recorded, ...]``.

    Raises:
        NodeError: if node and inputs break the operator's signature.
    """
    first = _first_call(trajectory)
    values = _evaluated(trajectory, first, lambda array: array)
    with np.errstate(all="ignore"):
        return [
            value.astype(like.dtype) for value, (like, _) in zip(values, first.sources, strict=True)
        ]


def _evaluated(trajectory: Trajectory, call: Call[Array], change: Change) -> list[Array]:
    """Return what the recorded steps yield in the wide type, of inputs that are changed before."""
    with np.errstate(all="ignore"):
        rows = _recorded(
            trajectory,
            lambda array: change(widen(array) if array.dtype.kind == "f" else array),
            lambda derived, value: np.asarray(derived.formula(widen(value))).reshape(value.shape),
            lambda fed: evaluate(call.with_inputs(fed)),
        )
        return [np.stack(column) for column in zip(*rows, strict=True)]


def _first_call(trajectory: Trajectory) -> Call[Array]:
    first = sole_call(trajectory.model, first_inputs(trajectory))
    if first is None:
        raise NodeError("a trajectory's model must be one node of an operator with a formula")
    return first


def _also_right(trajectory: Trajectory, first: Call[Array], divided: bool) -> list[list[AlsoRight]]:
    """Return outputs of recorded steps where reformulations meet infinity, or divide by zero."""

    def outputs(operator: Operator, change: Change) -> list[Array]:
        return _evaluated(trajectory, replace(first, operator=operator), change)

    given = [*trajectory.start.values(), *trajectory.series.values()]
    return also_right_from(first.operator, given, outputs, divided=divided)


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


def _derive(derived: Derived, operand: InexactTensor) -> InexactTensor:
    right = output(derived.formula(operand.tensor), precision_of(derived.dtype))
    return InexactTensor(derived.dtype, operand.shape, covering(*right))


@dataclass(frozen=True, slots=True, eq=False)
class InexactTensor:
    """A tensor that may be known only up to an error.

    Attributes:
        dtype: element type.
        shape: its shape.
        content: the array, or if there is an error, value and error.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    content: Array | Bounded

    def operand(self, precision: Precision) -> Bounded:
        """Return it as an operand that an implementation may convert to a precision."""
        if not isinstance(self.content, Bounded):
            return given(self.content, precision)
        if self.content.precision is precision:
            return self.content
        if self.content.precision.dtype == precision.dtype:
            return replace(self.content, precision=precision)
        return covering(*output(self.content, precision))

    @property
    def tensor(self) -> Bounded:
        """It as an operand in its own type."""
        return self.operand(precision_of(self.dtype))

    @property
    def array(self) -> Array:
        """The array, or the one that is nearest to the value."""
        if not isinstance(self.content, Bounded):
            return self.content
        return self.derived_output().expected

    def derived_output(self, factor: float = FACTOR) -> DerivedOutput:
        """Return what an output must be, and how far off it may be."""
        return judged(self.tensor, self.dtype, self.shape, factor)


def inexact_outputs(call: Call[InexactTensor]) -> list[InexactTensor]:
    """Return the outputs of a node in its order."""
    return call.by_group(_inexact_outputs)


def _inexact_outputs(call: Call[InexactTensor]) -> list[InexactTensor]:
    outputs = []
    for right, like, first in bounded_outputs(call, InexactTensor.operand):
        bounded = covering(*right)
        # What a formula yields for a tensor may be a mask of integers, or one number.
        value = np.broadcast_to(np.asarray(bounded.value, WIDE), first.shape)
        outputs.append(InexactTensor(like.dtype, first.shape, replace(bounded, value=value)))
    return outputs
