"""The fields of one case on their way to a model, its inputs and its outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    BARE_DTYPES,
    ChooseDtype,
    declare_value,
    element_array,
    natural_dtype,
)
from onnxopt_cli.core.case import Trajectory
from onnxopt_cli.core.values import DTYPES

MakeAttribute: TypeAlias = Callable[[], AttributeProto]

_TYPES: dict[str, tuple[int, int]] = {
    "float32": (AttributeProto.FLOAT, AttributeProto.FLOATS),
    "int64": (AttributeProto.INT, AttributeProto.INTS),
    "string": (AttributeProto.STRING, AttributeProto.STRINGS),
}
_DTYPES = {kind: name for name, kinds in _TYPES.items() for kind in kinds}


@dataclass(frozen=True, slots=True)
class DeclaredCase:
    """A model, what it is fed and what must come back, to be made when the case is run.

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

    def text(self, name: str) -> str:
        """Return the text of a field; empty if it is left out."""
        found = self.node.field(name)
        return str(found.scalar).strip() if found else ""

    def mapping(self, name: str) -> Mapping[str, Node]:
        """Return what stands under ``attributes``, ``inputs`` or ``outputs``; empty if left out."""
        node = self.node.field(name)
        return (node.fields if node else None) or {}

    def complain(self, node: Node, what: str) -> None:
        """Collect that something is wrong with a node."""
        self.errors.append(FormatError(node, what))

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Collect the error that is raised meanwhile."""
        try:
            yield
        except FormatError as error:
            self.errors.append(error)

    def refuse(self, names: Sequence[str], why: str) -> None:
        """Collect the fields that the case may not have."""
        for name in names:
            node = self.node.field(name)
            if node is not None:
                self.complain(node, f"found {name}{why}")

    def declare(self, node: Node, choose: ChooseDtype = natural_dtype) -> Declared | None:
        """Read a value; collects what is wrong with it and returns None then."""
        if id(node) not in self.broken:
            with self.collecting():
                return self.declare_value(node, choose)
        return None

    def declare_value(self, node: Node, choose: ChooseDtype = natural_dtype) -> Declared:
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
        given, place = self.mapping(what), self.node.field(what) or self.node
        one = what.removesuffix("s")
        self.errors += [
            unknown_name(place, name, list(known), one) for name in given if name not in known
        ]
        missing = [name for name in required if name not in given]
        if missing and (place is self.node or place.fields is not None):
            self.complain(place, f"found no {one} {listed(missing)}, expected {listed(known)}")

    def finish(self, inherited: Node | None = None) -> None:
        """Stop here if anything is wrong with the case, or with what it inherits.

        Raises:
            Incomplete: if so.
        """
        if self.errors or not self.broken.isdisjoint((id(self.node), id(inherited))):
            raise Incomplete


def declare_attribute(node: Node, kind: int, fields: CaseFields) -> MakeAttribute:
    """Check an attribute of a case and promise it.

    Args:
        node: its value; its key is the attribute's name.
        kind: an ``AttributeProto.AttributeType``.
        fields: the case.

    Raises:
        FormatError: if the value is not of the type, or no value of the type can be written.
    """
    name = str(node.key)
    if kind == AttributeProto.TENSOR:
        value = fields.declare_value(node)
        if not isinstance(value, DeclaredTensor):
            raise FormatError(node, "found no tensor, expected one")
        return lambda: helper.make_attribute(name, tensor_of(value.make()))
    if kind not in _DTYPES:
        words = AttributeProto.AttributeType.Name(kind)
        raise FormatError(
            node, f"found an attribute of type {words}, expected the case to use model: instead"
        )
    is_list = kind == _TYPES[_DTYPES[kind]][1]
    if is_list and node.items is None:
        raise unexpected(node, "a list")
    if not is_list and (node.items is not None or node.fields is not None):
        raise unexpected(node, "a single value")
    items = node.items if is_list and node.items is not None else [node]
    found = element_array(items, DTYPES[_DTYPES[kind]]).tolist()
    return lambda: helper.make_attribute(name, found if is_list else found[0], attr_type=kind)


def rejected_case(
    op_type: str,
    domain: str,
    version: int,
    fields: CaseFields,
    *,
    choice_of: Callable[[str], ChooseDtype],
    float_attributes: Collection[str],
    output_names: Sequence[str],
) -> DeclaredCase:
    """Read a case that a right backend must refuse: built as written, whatever the signature says.

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
    fields.refuse(["outputs"], ", expected none beside rejects: true")
    inputs: dict[str, Declared] = {}
    for name, node in fields.mapping("inputs").items():
        value = fields.declare(node, choice_of(name))
        if value is not None:
            inputs[name] = value
    attributes: list[MakeAttribute] = []
    for name, node in fields.mapping("attributes").items():
        if id(node) not in fields.broken:
            with fields.collecting():
                kind = _natural_kind(node, as_float=name in float_attributes)
                attributes.append(declare_attribute(node, kind, fields))
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
            graph_name=fields.text("name"),
        )

    return DeclaredCase((op_type,), model, inputs, None, tuple(output_names))


def _natural_kind(node: Node, *, as_float: bool) -> int:
    """Return the attribute type that a value has by itself, or where its integers are floats."""
    if node.fields is not None:
        return AttributeProto.TENSOR
    kinds = {BARE_DTYPES[type(item.scalar)] for item in node.items or [node]}
    if kinds == {"float32", "int64"} or (as_float and kinds == {"int64"}):
        kinds = {"float32"}
    return _TYPES[min(kinds)][node.items is not None]
