"""Trajectories: cases of many steps, in which outputs are fed back."""

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
    """An input that is computed from one that is fed back, as a gradient is.

    Attributes:
        of: name of the input that it is computed from; it has that one's shape.
        formula: computes it, on arrays or on the operands of any reading.
        dtype: its element type.
    """

    of: str
    formula: Callable[[Any], Any]
    dtype: np.dtype[Any]


# Compared by identity, so that what is computed from one can be kept.
@dataclass(frozen=True, eq=False)
class Trajectory:
    """The steps of a case.

    Attributes:
        model: one node of an operator with a formula, whose inputs have the operator's names.
        count: number of steps.
        start: what the first step is fed, without ``series`` and ``derived``.
        feedback: by the name of an output, the input that it becomes in the next step; both have
            one dtype and shape.
        counted: inputs that grow by one from step to step.
        series: inputs that each step has its own value of, stacked: ``[count, ...]``.
        derived: inputs that are computed from others.
        recorded: the steps whose outputs are judged, counted from 1, rising.
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
        given: Callable[[Array], T],
        derive: Callable[[Derived, T], T],
    ) -> dict[str, T]:
        """Return what a step is fed, in the node's order.

        Args:
            step: its number, from 1.
            state: the inputs that are fed back.
            given: makes an operand of an array.
            derive: computes an operand from another.
        """
        fed: dict[str, T] = {}
        for name in self.names:
            if name in state:
                fed[name] = state[name]
            elif name in self.derived:
                fed[name] = derive(self.derived[name], state[self.derived[name].of])
            elif name in self.series:
                fed[name] = given(self.series[name][step - 1, ...])
            elif name in self.counted:
                first = self.start[name]
                fed[name] = given(np.asarray(first + first.dtype.type(step - 1)))
            else:
                fed[name] = given(self.start[name])
        return fed

    @property
    def state(self) -> dict[str, Array]:
        """The inputs that are fed back, as the first step gets them."""
        return {name: self.start[name] for name in self.feedback.values()}
