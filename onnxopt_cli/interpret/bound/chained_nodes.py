"""Error bounds of chained nodes: several nodes in a model, or one node over many steps.

A trajectory is a case of several steps, in which outputs of one step are inputs of the next step.

The outputs of a node have error bounds, and so does a gradient that is computed from them. Both are
operands of the next formula. Expected values are computed in the wide type, without rounding
between nodes. If rounding decides a choice, the error covers both branches. Averages reduce errors,
and gradients of steep functions multiply them. Error bounds never cancel each other. Large bounds
may therefore make the elements of a long trajectory with a steep gradient inconclusive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import numpy as np
import onnx

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
    WIDEST_TYPE,
    evaluate,
    widen,
)
from onnxopt_cli.interpret.vocabulary import Precision, precision_of
from onnxopt_cli.operators.call import Call, sole_call
from onnxopt_cli.operators.operator import Operator

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Derived:
    """An input, such as a gradient, that is computed from another input in each step.

    Attributes:
        of: the name of the input from which this input is computed. The two inputs have the same
            shape.
        formula: the function. It accepts arrays and the operands of any interpretation.
        dtype: the element type of the computed input.
    """

    of: str
    formula: Callable[[Any], Any]
    dtype: np.dtype[Any]


# Trajectories are compared by identity, so that results derived from them can be cached.
@dataclass(frozen=True, eq=False)
class Trajectory:
    """The steps of a case.

    Attributes:
        model: a model of one node, whose operator has a formula. The inputs have the names of the
            operator's inputs.
        count: number of steps.
        start: the inputs of the first step, without ``series`` and ``derived``.
        feedback: for each output that is fed back, the input that receives it in the next step. The
            output and the input have the same dtype and shape.
        counted: inputs that increase by one in each step.
        series: inputs with a value for each step, stacked: ``[count, ...]``.
        derived: inputs that are computed from other inputs.
        recorded: the numbers of the steps whose outputs are judged, counted from 1, in ascending
            order.
    """

    model: onnx.ModelProto
    count: int
    start: Mapping[str, Array]
    feedback: Mapping[str, str]
    counted: frozenset[str]
    series: Mapping[str, Array]
    derived: Mapping[str, Derived]
    recorded: tuple[int, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The inputs of the node, in the node's order."""
        return tuple(value.name for value in self.model.graph.input)

    def inputs(
        self,
        step: int,
        state: Mapping[str, T],
        operand: Callable[[Array], T],
        derive: Callable[[Derived, T], T],
    ) -> dict[str, T]:
        """Return the inputs of a step, in the node's order.

        Args:
            step: the number of the step, counted from 1.
            state: the inputs that are outputs of the previous step.
            operand: converts an array to an operand.
            derive: computes a derived operand.
        """
        operands: dict[str, T] = {}
        for name in self.names:
            if name in state:
                operands[name] = state[name]
            elif name in self.derived:
                operands[name] = derive(self.derived[name], state[self.derived[name].of])
            elif name in self.series:
                operands[name] = operand(self.series[name][step - 1, ...])
            elif name in self.counted:
                first = self.start[name]
                operands[name] = operand(np.asarray(first + first.dtype.type(step - 1)))
            else:
                operands[name] = operand(self.start[name])
        return operands

    @property
    def state(self) -> dict[str, Array]:
        """The first values of the inputs that receive outputs in later steps."""
        return {name: self.start[name] for name in self.feedback.values()}


@lru_cache(maxsize=2)
def bound_trajectory(trajectory: Trajectory, factor: float = FACTOR) -> Mapping[str, DerivedOutput]:
    """Return the expected outputs of the recorded steps with their error bounds.

    Args:
        trajectory: the steps.
        factor: the multiple of the error bound that is allowed, as for a single step.

    Returns:
        The outputs by name, stacked over the recorded steps: ``[recorded, ...]``.

    Raises:
        NodeError: if the node or its inputs break the operator's signature.
    """
    first = _first_call(trajectory)
    names = [value.name for value in trajectory.model.graph.output]
    with np.errstate(all="ignore"):
        rows = _recorded(
            trajectory,
            lambda array: InexactTensor(array.dtype, array.shape, array),
            _derive,
            lambda operands: inexact_outputs(first.with_inputs(operands)),
        )
        steps = [[tensor.derived_output(factor) for tensor in row] for row in rows]
        derived_outputs = [_stacked(column) for column in zip(*steps, strict=True)]
        divided = any(derived_output.divides for derived_output in derived_outputs)
        if also_accepted := _also_right(trajectory, first, divided):
            derived_outputs = [
                derived_output.accepting(specials)
                for derived_output, specials in zip(derived_outputs, also_accepted, strict=True)
            ]
        return dict(zip(names, derived_outputs, strict=True))


def _stacked(steps: Sequence[DerivedOutput]) -> DerivedOutput:
    arrays: dict[str, Any] = {
        name: np.stack([getattr(step, name) for step in steps])
        for name in ("expected", "value", "error")
    }
    return replace(steps[0], **arrays)


def evaluate_trajectory(trajectory: Trajectory) -> list[Array]:
    """Return the expected outputs of the recorded steps, stacked: ``[recorded, ...]``.

    Raises:
        NodeError: if the node or its inputs break the operator's signature.
    """
    first = _first_call(trajectory)
    values = _evaluated(trajectory, first, lambda array: array)
    with np.errstate(all="ignore"):
        return [
            value.astype(like.dtype) for value, (like, _) in zip(values, first.sources, strict=True)
        ]


def _evaluated(trajectory: Trajectory, call: Call[Array], change: Change) -> list[Array]:
    """Return the outputs of the recorded steps in the wide type, computed from changed inputs."""
    with np.errstate(all="ignore"):
        rows = _recorded(
            trajectory,
            lambda array: change(widen(array) if array.dtype.kind == "f" else array),
            lambda derived, value: np.asarray(derived.formula(widen(value))).reshape(value.shape),
            lambda operands: evaluate(call.with_inputs(operands)),
        )
        return [np.stack(column) for column in zip(*rows, strict=True)]


def _first_call(trajectory: Trajectory) -> Call[Array]:
    first = sole_call(trajectory.model, first_inputs(trajectory))
    if first is None:
        raise NodeError("a trajectory's model must be one node of an operator with a formula")
    return first


def _also_right(trajectory: Trajectory, first: Call[Array], divided: bool) -> list[list[AlsoRight]]:
    """Return the NaN and infinities that are also accepted in the outputs of the recorded steps."""

    def outputs(operator: Operator, change: Change) -> list[Array]:
        return _evaluated(trajectory, replace(first, operator=operator), change)

    inputs = [*trajectory.start.values(), *trajectory.series.values()]
    return also_right_from(first.operator, inputs, outputs, divided=divided)


def _recorded(
    trajectory: Trajectory,
    operand: Callable[[Array], T],
    derive: Callable[[Derived, T], T],
    compute: Callable[[list[T]], list[T]],
) -> Iterator[list[T]]:
    """Compute all steps, and yield the outputs of the recorded steps."""
    recorded = set(trajectory.recorded)
    names = [value.name for value in trajectory.model.graph.output]
    state = {name: operand(value) for name, value in trajectory.state.items()}
    for step in range(1, trajectory.count + 1):
        operands = trajectory.inputs(step, state, operand, derive)
        outputs = dict(zip(names, compute(list(operands.values())), strict=True))
        state = {
            input_name: outputs[output_name]
            for output_name, input_name in trajectory.feedback.items()
        }
        if step in recorded:
            yield list(outputs.values())


def first_inputs(trajectory: Trajectory) -> dict[str, Array]:
    """Return the inputs of the first step of a trajectory, by name."""
    return trajectory.inputs(1, trajectory.state, lambda array: array, derived_array)


def derived_array(derived: Derived, value: Array) -> Array:
    """Return the value of a derived input, computed in the wide type and rounded once.

    Args:
        derived: the derived input.
        value: the value of the input from which it is computed.
    """
    with np.errstate(all="ignore"):
        result = derived.formula(widen(value))
        return np.asarray(result).astype(derived.dtype).reshape(value.shape)


def _derive(derived: Derived, operand: InexactTensor) -> InexactTensor:
    accepted = output(derived.formula(operand.tensor), precision_of(derived.dtype))
    return InexactTensor(derived.dtype, operand.shape, covering(*accepted))


@dataclass(frozen=True, slots=True, eq=False)
class InexactTensor:
    """A tensor that may have an error bound.

    Attributes:
        dtype: the element type.
        shape: the shape.
        content: the exact array, or a value with an error bound.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    content: Array | Bounded

    def operand(self, precision: Precision) -> Bounded:
        """Return the tensor as an operand of a computation in the given precision.

        An implementation may first convert the tensor to the type of the precision.
        """
        if not isinstance(self.content, Bounded):
            return given(self.content, precision)
        if self.content.precision is precision:
            return self.content
        if self.content.precision.dtype == precision.dtype:
            return replace(self.content, precision=precision)
        return covering(*output(self.content, precision))

    @property
    def tensor(self) -> Bounded:
        """The tensor as an operand in its own type."""
        return self.operand(precision_of(self.dtype))

    @property
    def array(self) -> Array:
        """The exact array, or the value rounded to the tensor's type."""
        if not isinstance(self.content, Bounded):
            return self.content
        return self.derived_output().expected

    def derived_output(self, factor: float = FACTOR) -> DerivedOutput:
        """Return the tensor as an expected output with its error bound."""
        return judged(self.tensor, self.dtype, self.shape, factor)


def inexact_outputs(call: Call[InexactTensor]) -> list[InexactTensor]:
    """Return the outputs of a node, with error bounds, in the node's order."""
    return call.by_group(_inexact_outputs)


def _inexact_outputs(call: Call[InexactTensor]) -> list[InexactTensor]:
    outputs = []
    for accepted, like, first in bounded_outputs(call, InexactTensor.operand):
        bounded = covering(*accepted)
        # The result of the formula may be a mask of integers, or a single number that stands for a
        # tensor.
        value = np.broadcast_to(np.asarray(bounded.value, WIDEST_TYPE), first.shape)
        outputs.append(InexactTensor(like.dtype, first.shape, replace(bounded, value=value)))
    return outputs
