"""The fields of one case on their way to a model, its inputs and its outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

import onnx
from onnx import AttributeProto, helper

from onnxopt_cli.cases.case import Problem
from onnxopt_cli.cases.onnx.node_model import (
    node_model,
    tensor_info,
    value_info,
)
from onnxopt_cli.cases.tensors.declared import (
    BYTES_PER_ELEMENT,
    Declared,
    DeclaredGroup,
    DeclaredTensor,
    element_count,
    made,
)
from onnxopt_cli.cases.tensors.tensor_data import tensor_of
from onnxopt_cli.cases.yaml.case_value import (
    BARE_DTYPES,
    ChooseDtype,
    declare_value,
    element_array,
    natural_dtype,
)
from onnxopt_cli.cases.yaml.yaml_syntax import (
    FormatError,
    Node,
    listed,
    unexpected,
    unknown_name,
)
from onnxopt_cli.core.values import DTYPES
from onnxopt_cli.operators.call import Call
from onnxopt_cli.operators.operator import Operator

MakeAttribute: TypeAlias = Callable[[], AttributeProto]
T = TypeVar("T")

_TYPES: dict[str, tuple[int, int]] = {
    "float32": (AttributeProto.FLOAT, AttributeProto.FLOATS),
    "int64": (AttributeProto.INT, AttributeProto.INTS),
    "string": (AttributeProto.STRING, AttributeProto.STRINGS),
}
_DTYPES = {kind: name for name, kinds in _TYPES.items() for kind in kinds}


class DeclaredCase(NamedTuple):
    """A case of a file whose content is made when it is run.

    Attributes:
        operators: names of the operators in the model.
        output_names: names of the graph's outputs.
        contents: makes the content, without tolerances; by the end of the id, which is empty unless
            the case is run in several ways.
    """

    operators: tuple[str, ...]
    output_names: tuple[str, ...]
    contents: Mapping[str, Callable[[], Problem]]


def content_of_one_step(
    model: Callable[[], onnx.ModelProto],
    inputs: Mapping[str, Declared],
    outputs: Mapping[str, Declared] | None,
    *,
    must_reject: bool = False,
    call: Call[DeclaredTensor] | None = None,
) -> Problem:
    """Make the problem of a case whose inputs and outputs are in the graph's order.

    Args:
        model: makes the model.
        inputs: the inputs.
        outputs: the stored outputs; None if there are none.
        must_reject: whether a right backend must refuse the model.
        call: the call of the model's only node, if it is of an operator with a formula and the
            inputs are in the node's order.
    """
    fed = {name: made(value) for name, value in inputs.items()}
    stored = None if outputs is None else {name: made(value) for name, value in outputs.items()}
    problem = Problem(model(), fed, stored, must_reject=must_reject)
    if call is None:
        return problem
    return replace(problem, operator=call.operator, call=call.with_inputs([*fed.values()]))


class Incomplete(Exception):
    """A case cannot be read any further; what is wrong with it has been collected."""


@dataclass(slots=True)
class CaseFields:
    """The fields of one case, and everything found wrong with them so far.

    Attributes:
        node: the case.
        folder: of the file, where other files are looked for.
        broken: ids of the nodes in which something is known to be wrong.
        memory: bytes that the case may take; 0 for no limit.
        errors: what was found since.
        elements: number of elements of the values that were read since.
    """

    node: Node
    folder: Path
    broken: frozenset[int]
    memory: int
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

    def refuse_inherited(self, node: Node | None, reason: str) -> None:
        """Refuse a version of another domain, unless the case has its operator from elsewhere.

        Raises:
            FormatError: if it is refused.
        """
        own = self.node.field("operator") or self.node.field("domain")
        if node is not None and (node.parent is self.node or own is None):
            other = "opset" if node.key == "version" else "version"
            raise FormatError(node, f"found {node.key}, expected {other}: {reason}")

    def read(self, nodes: Mapping[str, Node], reader: Callable[[str, Node], T]) -> dict[str, T]:
        """Read nodes by name; collects what is wrong with them, and leaves out those."""
        values: dict[str, T] = {}
        for name, node in nodes.items():
            if id(node) not in self.broken:
                # As collecting() does, which takes longer than most tensors.
                try:
                    values[name] = reader(name, node)
                except FormatError as error:
                    self.errors.append(error)
        return values

    def declare_value(self, node: Node, choose: ChooseDtype) -> Declared:
        """Read a value.

        Raises:
            FormatError: at the first thing that is wrong with it, or if the values of the case have
                too many elements together.
        """
        value = declare_value(node, self.folder, choose)
        self.elements += element_count(value)
        if 0 < self.memory < self.elements * BYTES_PER_ELEMENT:
            raise FormatError(
                node,
                f"found {self.elements} elements in the case up to here, expected at most "
                f"{self.memory // BYTES_PER_ELEMENT} in all of its values with the memory that "
                "--memory allows",
            )
        return value

    def declare_tensor(self, node: Node, choose: ChooseDtype, what: str = "") -> DeclaredTensor:
        """Read a value that must be a tensor; see :meth:`declare_value`."""
        value = self.declare_value(node, choose)
        if isinstance(value, DeclaredGroup):
            raise FormatError(node, f"found no tensor, expected one{what}")
        return value

    def check_names(self, what: str, known: Sequence[str], required: Sequence[str]) -> None:
        """Collect the names of a mapping that are unknown, and those that are missing."""
        given, place = self.mapping(what), self.node.field(what) or self.node
        one = what.removesuffix("s")
        self.errors += [
            unknown_name(place, name, known, one) for name in given if name not in known
        ]
        missing = [name for name in required if name not in given]
        if missing and (place is self.node or place.fields is not None):
            # Only of outputs may there be none at all: then the formula says what they are.
            where = f" below {what}:" if place is self.node else ""
            self.complain(
                place, f"found no {one} {listed(missing)}, expected {listed(known)}{where}"
            )

    def finish(self, inherited: Node | None = None) -> None:
        """Stop here if anything is wrong with the case, or with what it inherits.

        Raises:
            Incomplete: if so.
        """
        if self.errors or not self.broken.isdisjoint((id(self.node), id(inherited))):
            raise Incomplete


def declare_attributes(
    fields: CaseFields,
    given: Mapping[str, Node],
    kind_of: Callable[[str, Node], int],
    *,
    lone: bool = False,
) -> list[MakeAttribute]:
    """Check the attributes of a case and promise them; collects what is wrong with them.

    Args:
        fields: the case.
        given: those of its attributes that the operator has.
        kind_of: says the ``AttributeProto.AttributeType`` of each.
        lone: whether a single value may stand for a list of it.
    """
    found = fields.read(
        given, lambda name, node: _attribute(name, node, kind_of(name, node), fields, lone=lone)
    )
    return list(found.values())


def _attribute(
    name: str, node: Node, kind: int, fields: CaseFields, *, lone: bool
) -> MakeAttribute:
    if kind == AttributeProto.TENSOR:
        value = fields.declare_tensor(node, natural_dtype)
        return lambda: helper.make_attribute(name, tensor_of(made(value)))
    if kind not in _DTYPES:
        words = AttributeProto.AttributeType.Name(kind)
        raise FormatError(
            node, f"found an attribute of type {words}, expected the case to use model: instead"
        )
    is_list = kind == _TYPES[_DTYPES[kind]][1]
    if _stated_type(node):
        node = node.field("data") or node
    fits = is_list == (node.items is not None) or (lone and is_list)
    if not fits or node.fields is not None:
        raise unexpected(node, "a list" if is_list else "a single value")
    items = [node] if node.items is None else node.items
    found = element_array(items, DTYPES[_DTYPES[kind]]).tolist()
    return lambda: helper.make_attribute(name, found if is_list else found[0], attr_type=kind)


def _stated_type(node: Node) -> str:
    """Return the type that an attribute of a refused case states; empty if it states none."""
    stated = node.field("type") if node.fields else None
    return str(stated.scalar) if stated else ""


def rejected_case(
    operator: Operator | onnx.defs.OpSchema,
    version: int,
    fields: CaseFields,
    output_names: Sequence[str],
    declared: Mapping[str, int],
    choice_of: Callable[[str], ChooseDtype] = lambda _name: natural_dtype,
    input_names: Sequence[str] = (),
) -> DeclaredCase:
    """Read a case that a right backend must refuse: built as written, whatever the signature says.

    The node has the inputs that are known in their order, then others as the case lists them.

    Args:
        operator: the node's, ours or onnx's.
        version: the domain's version that the model imports.
        fields: the case.
        output_names: of the node; their types are those of its last input, for want of others.
        declared: the ``AttributeProto.AttributeType`` of each attribute that the operator has.
        choice_of: how an input that does not say its element type gets it.
        input_names: of a right node; none if their order is that of the case.

    Raises:
        Incomplete: if something is wrong; it is collected in the fields.
    """
    fields.refuse(["outputs"], ", expected none beside rejects: true")
    given = fields.mapping("inputs")
    ordered = {name: given[name] for name in (*input_names, *given) if name in given}
    inputs = fields.read(ordered, lambda name, node: fields.declare_value(node, choice_of(name)))

    def natural_kind(name: str, node: Node) -> int:
        """Return the type that a value has by itself; floats for integers where it must be so."""
        if stated := _stated_type(node):
            return int(AttributeProto.AttributeType.Value(stated))
        if node.fields is not None:
            return AttributeProto.TENSOR
        as_float = declared.get(name) in _TYPES["float32"]
        kinds = {BARE_DTYPES[type(item.scalar)] for item in node.items or [node]}
        if kinds == {"float32", "int64"} or (as_float and kinds == {"int64"}):
            kinds = {"float32"}
        # As in a case that is not refused, one number stands for a list of it.
        lone = declared.get(name) == AttributeProto.FLOATS and kinds == {"float32"}
        return _TYPES[min(kinds)][lone or node.items is not None]

    given_attributes = fields.mapping("attributes")
    attributes = declare_attributes(fields, given_attributes, natural_kind, lone=True)
    fields.finish()
    dtype = next(reversed(inputs.values())).dtype if inputs else natural_dtype(frozenset())

    def model() -> onnx.ModelProto:
        return node_model(
            operator,
            version,
            inputs=[value_info(name, value) for name, value in inputs.items()],
            outputs=[tensor_info(name, dtype, None) for name in output_names],
            attributes=[make() for make in attributes],
            graph_name=fields.text("name"),
        )

    make = partial(content_of_one_step, model, inputs, None, must_reject=True)
    return DeclaredCase((operator.name,), tuple(output_names), {"": make})
