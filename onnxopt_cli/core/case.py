"""A case: what a backend is given and what must come back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from onnxopt_cli.core.tolerance import Tolerance
from onnxopt_cli.core.trajectory import Trajectory
from onnxopt_cli.core.values import Value

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


@dataclass(frozen=True, slots=True)
class Case:
    """A case under its stable id.

    Attributes:
        id: does not depend on how the path was typed: ``spec/adam/adam_multiple``,
            ``onnx-node/test_adam/0``.
        location: where it stands, for messages.
        read: reads the content; raises InvalidCase.
        operators: names of the operators in the model, without repetition, where they are known
            without reading; None otherwise.
        about: what the case asks, one sentence.
        source: where the numbers come from.
        tags: words to select by.
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
    files: Callable[[], Mapping[str, Signature | tuple[()]]] = dict

    @property
    def suite(self) -> str:
        """The first part of the id."""
        return self.id.split("/", 1)[0]
