"""Trajectories: cases of several steps, whose outputs are inputs of the next step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import onnx

from onnxopt_cli.core.values import Array

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Derived:
    """An input that is computed from another one in each step, such as a gradient.

    Attributes:
        of: name of the input from which it is computed, and whose shape it has.
        formula: the function, on arrays or on the operands of any interpretation.
        dtype: its element type.
    """

    of: str
    formula: Callable[[Any], Any]
    dtype: np.dtype[Any]


# Compared by identity, so that results derived from a trajectory can be cached.
@dataclass(frozen=True, eq=False)
class Trajectory:
    """The steps of a case.

    Attributes:
        model: one node of an operator with a formula; its inputs have the operator's names.
        count: number of steps.
        start: inputs of the first step, without ``series`` and ``derived``.
        feedback: maps the name of an output to the input that receives it in the next step. Both
            have the same dtype and shape.
        counted: inputs that increase by one in each step.
        series: inputs with a value for each step, stacked: ``[count, ...]``.
        derived: inputs that are computed from other inputs.
        recorded: numbers of the steps whose outputs are judged, from 1, ascending.
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
        """The inputs of the node, in its order."""
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
            step: number of the step, from 1.
            state: inputs that are outputs of the previous step.
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
        """The values in the first step of inputs that are outputs of the previous step."""
        return {name: self.start[name] for name in self.feedback.values()}
