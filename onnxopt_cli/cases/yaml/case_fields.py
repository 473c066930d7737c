"""The fields of one case on their way to a model, its inputs and its outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import onnx
from onnx import AttributeProto, helper

from onnxopt_cli.cases.onnx.node_model import node_model, tensor_info, value_info
from onnxopt_cli.cases.values.declared import MAX_ELEMENTS, Declared, DeclaredTensor, element_count
from onnxopt_cli.cases.values.tensor_data import tensor_of
from onnxopt_cli.cases.yaml.schema import listed, unknown_name
from onnxopt_cli.cases.yaml.syntax import FormatError, Node, unexpected
from onnxopt_cli.cases.yaml.value import (
    ChooseDtype,
    DeclareValue,
    declare_value,
    element_array,
    element_kind,
    natural_dtype,
)
from onnxopt_cli.core.trajectory import Trajectory
from onnxopt_cli.core.values import DTYPES


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


MakeAttribute: TypeAlias = Callable[[], AttributeProto]

_DTYPES: dict[int, str] = {
    AttributeProto.FLOAT: "float32",
    AttributeProto.FLOATS: "float32",
    AttributeProto.INT: "int64",
    AttributeProto.INTS: "int64",
    AttributeProto.STRING: "string",
    AttributeProto.STRINGS: "string",
}
_LISTS: dict[int, AttributeProto.AttributeType] = {
    AttributeProto.FLOAT: AttributeProto.FLOATS,
    AttributeProto.INT: AttributeProto.INTS,
    AttributeProto.STRING: AttributeProto.STRINGS,
}
_TYPES: dict[str, int] = {
    "float32": AttributeProto.FLOAT,
    "int64": AttributeProto.INT,
    "string": AttributeProto.STRING,
}


def declare_attribute(node: Node, kind: int, declare: DeclareValue) -> MakeAttribute:
    """Check an attribute and promise it.

    Args:
        node: its value; its key is the attribute's name.
        kind: an ``AttributeProto.AttributeType``.
        declare: reads a tensor.

    Raises:
        FormatError: if the value is not of the type, or no value of the type can be written.
    """
    name = str(node.key)
    if kind == AttributeProto.TENSOR:
        value = declare(node, None)
        if not isinstance(value, DeclaredTensor):
            raise FormatError(node, "found no tensor, expected one")
        return lambda: helper.make_attribute(name, tensor_of(value.make()))
    if kind not in _DTYPES:
        words = AttributeProto.AttributeType.Name(kind)
        raise FormatError(
            node, f"found an attribute of type {words}, expected the case to use model: instead"
        )
    if kind in _LISTS.values():
        if node.items is None:
            raise unexpected(node, "a list")
        content = element_array(node.items, DTYPES[_DTYPES[kind]]).tolist()
    elif node.items is not None or node.fields is not None:
        raise unexpected(node, "a single value")
    else:
        content = element_array([node], DTYPES[_DTYPES[kind]]).tolist()[0]
    return lambda: helper.make_attribute(name, content, attr_type=kind)


def natural_kind(node: Node) -> int:
    """Return the attribute type that a value has by itself."""
    if node.fields is not None:
        return AttributeProto.TENSOR
    kinds = {element_kind(item.scalar) for item in node.items or [node]}
    kind = _TYPES["float32" if kinds == {"float32", "int64"} else min(kinds)]
    return kind if node.items is None else _LISTS[kind]


_FLOATS: dict[int, int] = {
    AttributeProto.INT: AttributeProto.FLOAT,
    AttributeProto.INTS: AttributeProto.FLOATS,
}


def rejected_subject(
    op_type: str,
    domain: str,
    version: int,
    fields: CaseFields,
    *,
    choice_of: Callable[[str], ChooseDtype],
    float_attributes: Collection[str],
    output_names: Sequence[str],
) -> Subject:
    """Read a case whose node or inputs break the operator's signature.

    The node has the inputs in the order in which the case lists them.

    Args:
        op_type: the node's operator.
        domain: its domain.
        version: the domain's version.
        fields: the case.
        choice_of: how an input that does not say its element type gets it.
        float_attributes: attributes that are floats even where an integer is written.
        output_names: of the node; their types are those of its last input, for want of others.

    Raises:
        Incomplete: if something is wrong; it is collected in the fields.
    """
    fields.refuse_outputs()
    inputs: dict[str, Declared] = {}
    for name, node in fields.mapping("inputs").items():
        value = fields.declare(node, choice_of(name))
        if value is not None:
            inputs[name] = value
    attributes: list[MakeAttribute] = []
    for name, node in fields.mapping("attributes").items():
        if id(node) in fields.broken:
            continue
        kind = natural_kind(node)
        if name in float_attributes:
            kind = _FLOATS.get(kind, kind)
        try:
            attributes.append(declare_attribute(node, kind, fields.declare_value))
        except FormatError as error:
            fields.errors.append(error)
    fields.finish()
    dtype = next(reversed(inputs.values())).dtype if inputs else natural_dtype(frozenset())

    def model() -> onnx.ModelProto:
        return node_model(
            op_type,
            domain=domain,
            version=version,
            inputs=[value_info(name, value) for name, value in inputs.items()],
            outputs=[tensor_info(name, dtype, None) for name in output_names],
            attributes=[make() for make in attributes],
            graph_name=fields.name,
        )

    return Subject((op_type,), model, inputs, None, tuple(output_names))
