"""What a case of a YAML file puts before a backend, whichever way the case describes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from onnxopt_cli.cases.values.declared import MAX_ELEMENTS, Declared, element_count
from onnxopt_cli.cases.values.tensor_text import ChooseDtype, declare_value
from onnxopt_cli.cases.yaml.schema import listed, unknown_name
from onnxopt_cli.cases.yaml.syntax import FormatError, Node
from onnxopt_cli.core.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, what it is fed and what must come back.

    Attributes:
        operators: names of the operators in the model.
        model: builds or reads it.
        inputs: by the names and in the order of the graph.
        outputs: likewise, all of them; None if the formula says them or none may come back.
        output_names: names of the graph's outputs.
        trajectory: makes the steps, if there are many; the model and its inputs are then made from
            them.
    """

    operators: tuple[str, ...]
    model: Callable[[], onnx.ModelProto]
    inputs: Mapping[str, Declared]
    outputs: Mapping[str, Declared] | None
    output_names: tuple[str, ...]
    trajectory: Callable[[], Trajectory] | None = None


class Incomplete(Exception):
    """A case cannot be read any further; what is wrong with it has been collected."""


@dataclass(slots=True)
class CaseFields:
    """The fields of one case, and everything found wrong with them so far.

    Attributes:
        node: the case.
        folder: of the file, where other files are looked for.
        broken: ids of the nodes in which something is known to be wrong.
        errors: what was found since.
        elements: number of elements of the values that were read since.
    """

    node: Node
    folder: Path
    broken: frozenset[int]
    errors: list[FormatError] = field(default_factory=list)
    elements: int = 0

    @property
    def rejects(self) -> bool:
        """True if a right backend must refuse the case."""
        rejects = self.node.field("rejects")
        return rejects is not None and rejects.scalar is True

    @property
    def name(self) -> str:
        """The case's name; empty if it has none."""
        name = self.node.field("name")
        return str(name.scalar) if name else ""

    def mapping(self, name: str) -> Mapping[str, Node]:
        """Return what stands under ``attributes``, ``inputs`` or ``outputs``; empty if left out."""
        node = self.node.field(name)
        return (node.fields if node else None) or {}

    def place(self, name: str) -> Node:
        """Return where to point for a field: at it, or at the case if it is left out."""
        return self.node.field(name) or self.node

    def declare(self, node: Node, choose: ChooseDtype | None = None) -> Declared | None:
        """Read a value; collects what is wrong with it and returns None then."""
        if id(node) in self.broken:
            return None
        try:
            return self.declare_value(node, choose)
        except FormatError as error:
            self.errors.append(error)
            return None

    def declare_value(self, node: Node, choose: ChooseDtype | None = None) -> Declared:
        """Read a value.

        Raises:
            FormatError: at the first thing that is wrong with it, or if the values of the case have
                too many elements together.
        """
        value = declare_value(node, self.folder, choose)
        self.elements += element_count(value)
        if self.elements > MAX_ELEMENTS:
            raise FormatError(
                node,
                f"found {self.elements} elements in the case up to here, expected at most "
                f"{MAX_ELEMENTS} in all of its values",
            )
        return value

    def check_names(self, what: str, known: Sequence[str], required: Sequence[str]) -> None:
        """Collect the names of a mapping that are unknown, and those that are missing."""
        given, place = self.mapping(what), self.place(what)
        self.errors += [
            unknown_name(place, name, list(known), what.removesuffix("s"))
            for name in given
            if name not in known
        ]
        missing = listed(name for name in required if name not in given)
        if missing and (place is self.node or place.fields is not None):
            self.errors.append(
                FormatError(
                    place, f"found no {what.removesuffix('s')} {missing}, expected {listed(known)}"
                )
            )

    def refuse_outputs(self) -> None:
        """Collect that a case to be refused has outputs, if it has."""
        outputs = self.node.field("outputs")
        if outputs is not None:
            self.errors.append(
                FormatError(outputs, "found outputs, expected none beside rejects: true")
            )

    def finish(self) -> None:
        """Stop here if anything is wrong with the case.

        Raises:
            Incomplete: if so.
        """
        if self.errors or id(self.node) in self.broken:
            raise Incomplete
