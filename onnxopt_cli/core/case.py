"""A case: what a backend is given and what must come back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx

from onnxopt_cli.core.text import clipped, exception_text
from onnxopt_cli.core.tolerance import Tolerance
from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.errors import (
    OUT_OF_MEMORY,
    InvalidCase,
    OnnxoptError,
    Problem,
)

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


#: What tells a file from another, and from itself after a change: device, inode, size, and the
#: times of the last change of its content and of anything. Who changes a file can set the first
#: time back, but not the second. None is a file that did not stay the same while it was read.
Signature = tuple[int, int, int, int, int] | None


@dataclass(frozen=True, slots=True)
class Location:
    """Where a case stands: a file, and a line where lines mean something."""

    path: Path
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" if self.line else str(self.path)

    @classmethod
    def parse(cls, text: str) -> Location:
        """Return the location that such a text names."""
        path, colon, line = text.rpartition(":")
        if path and colon and line.isascii() and line.isdigit():
            return cls(Path(path), int(line[:9]))
        return cls(Path(text))


@dataclass(frozen=True, slots=True)
class Content:
    """The heavy part of a case, read when it is needed and let go after.

    Attributes:
        model: what the backend runs; external data are already read into it.
        inputs: a value for every input of the graph that must be fed, in the graph's order.
        expected: the stored outputs by name, in the graph's order; None if the formula says them.
        tolerance: the case's own tolerance for all outputs, or None.
        output_tolerances: the case's own tolerances for single outputs, which precede it.
        rejects: True if a right backend must refuse the model or its inputs.
        trajectory: the steps, if there are many. The outputs are then those of the recorded steps,
            stacked. The model is that of one step, with the inputs of the first; or one with a
            ``Loop`` that runs them all.
    """

    model: onnx.ModelProto
    inputs: Mapping[str, Value]
    expected: Mapping[str, Value] | None
    tolerance: Tolerance | None = None
    output_tolerances: Mapping[str, Tolerance] = field(default_factory=dict)
    rejects: bool = False
    trajectory: Trajectory | None = None

    @property
    def stepwise(self) -> bool:
        """True if the model is run once for each step of a trajectory."""
        return self.trajectory is not None and self.model is self.trajectory.model


def reading_failure(error: Exception) -> str:
    """Say in words that something could not be read because of an error, whatever it is."""
    if isinstance(error, MemoryError):
        return f"{OUT_OF_MEMORY} to read it"
    if isinstance(error, OnnxoptError):
        return error.message
    reason = error.strerror if isinstance(error, OSError) else ""
    return f"cannot be read: {clipped(reason or exception_text(error))}"


class _GuardedRead:
    """Reads the content of a case; whatever goes wrong is the case's fault.

    Args:
        read: reads the content.
        place: where the case stands.
    """

    __slots__ = ("place", "read")

    def __init__(self, read: Callable[[], Content], place: Location) -> None:
        self.read, self.place = read, place

    def __call__(self) -> Content:
        try:
            return self.read()
        except InvalidCase:
            raise
        except Exception as error:
            raise InvalidCase([Problem(str(self.place), reading_failure(error))]) from error


@dataclass(frozen=True, slots=True)
class Case:
    """A case under its stable id.

    Attributes:
        id: does not depend on how the path was typed: ``spec/adam/adam_multiple``,
            ``onnx-node/test_adam/0``.
        location: where it stands, for messages.
        read: reads the content; raises InvalidCase, and no other exception, whatever is wrong.
        operators: names of the operators in the model, without repetition, where they are known
            without reading; None otherwise.
        about: what the case asks, one sentence.
        source: where the numbers come from.
        tags: words to select by.
        suite_version: of the suite, as in ``conformance@2``; empty if it states none.
        files: finds the files that the case is read from, by path: those that finding it has read
            with their signatures, and others that reading it will open, with an empty one.
    """

    id: str
    location: Location
    read: Callable[[], Content]
    operators: tuple[str, ...] | None = None
    about: str = ""
    source: str = ""
    tags: tuple[str, ...] = ()
    suite_version: str = ""
    files: Callable[[], Mapping[str, Signature | tuple[()]]] = dict

    def __post_init__(self) -> None:
        """See to it that reading the case raises nothing but InvalidCase."""
        if not isinstance(self.read, _GuardedRead):
            object.__setattr__(self, "read", _GuardedRead(self.read, self.location))

    @property
    def suite(self) -> str:
        """The first part of the id."""
        return self.id.split("/", 1)[0]

    def __str__(self) -> str:
        return self.id
