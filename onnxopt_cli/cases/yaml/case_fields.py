"""Reads and validates the fields of a case, and their values, for all kinds of cases.

The forms of a value are ``[1.2, 2.8]``, ``{dtype: double, shape: [2], data: ...}``, ``{random:
...}``, ``{file: x.npy}``, ``{sequence: [...]}`` and ``{optional: ...}``. The JSON Schema has
already validated their structure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import ml_dtypes
import numpy as np
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
    PromisedTensor,
    RandomTensor,
    element_count,
    integer_range,
    made,
    too_large,
)
from onnxopt_cli.cases.tensors.proto_values import tensor_of
from onnxopt_cli.cases.tensors.tensor_file import declare_file
from onnxopt_cli.cases.yaml.yaml_syntax import (
    FormatError,
    Node,
    number,
    unexpected,
    unknown_names,
)
from onnxopt_cli.core.text import abbreviated, listed, nearest
from onnxopt_cli.core.untrusted_files import Malformed, contained_path
from onnxopt_cli.core.values import (
    DTYPES,
    STRING,
    Array,
    dtype_name,
    dtype_named,
)
from onnxopt_cli.operators.call import Call
from onnxopt_cli.operators.operator import Operator

MakeAttribute: TypeAlias = Callable[[], AttributeProto]
T = TypeVar("T")

_ATTRIBUTE_TYPES: dict[str, tuple[int, int]] = {
    "float32": (AttributeProto.FLOAT, AttributeProto.FLOATS),
    "int64": (AttributeProto.INT, AttributeProto.INTS),
    "string": (AttributeProto.STRING, AttributeProto.STRINGS),
}
_ATTRIBUTE_DTYPES = {kind: name for name, kinds in _ATTRIBUTE_TYPES.items() for kind in kinds}


class DeclaredCase(NamedTuple):
    """A validated case of a file. The content of the case is created on demand.

    Attributes:
        operators: names of the operators in the model.
        output_names: names of the graph's outputs.
        contents: functions that create the problem, without tolerances, by the ending of the id.
            The ending is empty for a case that runs in a single way.
    """

    operators: tuple[str, ...]
    output_names: tuple[str, ...]
    contents: Mapping[str, Callable[[], Problem]]


def one_step_problem(
    model: Callable[[], onnx.ModelProto],
    inputs: Mapping[str, Declared],
    outputs: Mapping[str, Declared] | None,
    *,
    must_reject: bool = False,
    call: Call[DeclaredTensor] | None = None,
) -> Problem:
    """Create the content (model, inputs, outputs) of a case that is not a trajectory.

    Args:
        model: creates the model.
        inputs: the inputs in the graph's order.
        outputs: the stored outputs in the graph's order; None if the case states none.
        must_reject: whether a correct backend must reject the model.
        call: the call of the model's only node, if its operator has a formula and the inputs are in
            the node's order.
    """
    fed = {name: made(value) for name, value in inputs.items()}
    stored = None if outputs is None else {name: made(value) for name, value in outputs.items()}
    problem = Problem(model(), fed, stored, must_reject=must_reject)
    if call is None:
        return problem
    return replace(problem, operator=call.operator, call=call.with_inputs([*fed.values()]))


class Incomplete(Exception):
    """The case is invalid and cannot be read further; its errors have been collected."""


@dataclass(slots=True)
class CaseFields:
    """The fields of one case, and the errors that are collected while the fields are read.

    Attributes:
        node: the case.
        folder: the folder of the case file; paths of data files are relative to it.
        broken: `id()` of the nodes that contain errors which have already been reported.
        memory: the maximum size of the case in bytes; 0 for no limit.
        errors: the errors of the case.
        elements: the total number of elements of the values that have been read.
    """

    node: Node
    folder: Path
    broken: frozenset[int]
    memory: int
    errors: list[FormatError] = field(default_factory=list)
    elements: int = 0

    @property
    def rejects(self) -> bool:
        """True if a correct backend must reject the case."""
        rejects = self.node.field("rejects")
        return rejects is not None and rejects.scalar is True

    def text(self, name: str) -> str:
        """Return the text of a field; empty if the field is absent."""
        node = self.node.field(name)
        return str(node.scalar).strip() if node else ""

    def mapping(self, name: str) -> Mapping[str, Node]:
        """Return a mapping such as ``attributes`` or ``inputs``; empty if the field is absent."""
        node = self.node.field(name)
        return (node.fields if node else None) or {}

    def add_error(self, node: Node, message: str) -> None:
        """Collect an error at a node."""
        self.errors.append(FormatError(node, message))

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Collect a FormatError that is raised in the ``with`` block."""
        try:
            yield
        except FormatError as error:
            self.errors.append(error)

    def forbid(self, names: Sequence[str], reason: str) -> None:
        """Collect an error for each of the named fields that the case contains.

        Args:
            names: the fields that the case must not have.
            reason: the end of the message, after ``found NAME``.
        """
        for name in names:
            node = self.node.field(name)
            if node is not None:
                self.add_error(node, f"found {name}{reason}")

    def forbid_version(self, node: Node | None, reason: str) -> None:
        """Reject the field ``version`` or ``opset`` if it does not apply to the operator's domain.

        A field inherited from the file is ignored if the case states its own operator or domain.

        Raises:
            FormatError: if the field is rejected.
        """
        own_operator = self.node.field("operator") or self.node.field("domain")
        if node is not None and (node.parent is self.node or own_operator is None):
            valid_field = "opset" if node.key == "version" else "version"
            raise FormatError(node, f"found {node.key}, expected {valid_field}: {reason}")

    def read(self, nodes: Mapping[str, Node], reader: Callable[[str, Node], T]) -> dict[str, T]:
        """Return the values of nodes by name.

        Errors of invalid nodes are collected, and the nodes are omitted.
        """
        values: dict[str, T] = {}
        for name, node in nodes.items():
            if id(node) not in self.broken:
                # The context manager collecting() would take longer than reading most tensors.
                try:
                    values[name] = reader(name, node)
                except FormatError as error:
                    self.errors.append(error)
        return values

    def declare_value(self, node: Node, choose: ChooseDtype) -> Declared:
        """Read a value.

        Raises:
            FormatError: at the first error of the value, or if the values of the case have too many
                elements in total.
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

    def declare_tensor(self, node: Node, choose: ChooseDtype, purpose: str = "") -> DeclaredTensor:
        """Read a value that must be a tensor, like :meth:`declare_value`.

        Args:
            node: the value.
            choose: see :func:`declare_value`.
            purpose: the end of the message if the value is not a tensor: ``" for X"``.
        """
        value = self.declare_value(node, choose)
        if isinstance(value, DeclaredGroup):
            kind = "a sequence" if value.kind == "seq" else "an optional"
            raise FormatError(node, f"found {kind}, expected a tensor{purpose}")
        return value

    def check_names(self, kind: str, valid: Sequence[str], required: Sequence[str]) -> None:
        """Collect errors about names that are unknown, and about names that are missing.

        Args:
            kind: the mapping to check: ``attributes``, ``inputs`` or ``outputs``.
            valid: the valid names.
            required: the names that must be present.
        """
        names, place = self.mapping(kind), self.node.field(kind) or self.node
        singular = kind.removesuffix("s")
        valid_names = set(valid)
        unknown = [name for name in names if name not in valid_names]
        self.errors += unknown_names(place, unknown, valid, singular)
        missing = [name for name in required if name not in names]
        if missing and (place is self.node or place.fields is not None):
            where = f" below {kind}:" if place is self.node else ""
            self.add_error(
                place, f"found no {singular} {listed(missing)}, expected {listed(valid)}{where}"
            )

    def finish(self, inherited: Node | None = None) -> None:
        """Stop reading if the case or an inherited field has errors.

        Raises:
            Incomplete: if there are errors.
        """
        if self.errors or not self.broken.isdisjoint((id(self.node), id(inherited))):
            raise Incomplete


def declare_attributes(
    fields: CaseFields,
    nodes: Mapping[str, Node],
    kind_of: Callable[[str, Node], int],
    *,
    wrap_scalars: bool = False,
) -> list[MakeAttribute]:
    """Validate attributes, and return functions that create them.

    Errors are collected in `fields`.

    Args:
        fields: the case.
        nodes: the values of the attributes, by valid name.
        kind_of: returns the ``AttributeProto.AttributeType`` of an attribute.
        wrap_scalars: whether a single value is accepted in place of a list of one.
    """
    attributes = fields.read(
        nodes,
        lambda name, node: _attribute(
            name, node, kind_of(name, node), fields, wrap_scalars=wrap_scalars
        ),
    )
    return list(attributes.values())


def _attribute(
    name: str, node: Node, kind: int, fields: CaseFields, *, wrap_scalars: bool
) -> MakeAttribute:
    if kind == AttributeProto.TENSOR:
        value = fields.declare_tensor(node, natural_dtype)
        return lambda: helper.make_attribute(name, tensor_of(made(value)))
    if kind not in _ATTRIBUTE_DTYPES:
        type_name = AttributeProto.AttributeType.Name(kind)
        raise FormatError(
            node, f"found an attribute of type {type_name}, expected the case to use model: instead"
        )
    is_list = kind == _ATTRIBUTE_TYPES[_ATTRIBUTE_DTYPES[kind]][1]
    if _stated_type(node):
        node = node.field("data") or node
    fits = is_list == (node.items is not None) or (wrap_scalars and is_list)
    if not fits or node.fields is not None:
        raise unexpected(node, "a list" if is_list else "a single value")
    items = [node] if node.items is None else node.items
    values = element_array(items, DTYPES[_ATTRIBUTE_DTYPES[kind]]).tolist()
    return lambda: helper.make_attribute(name, values if is_list else values[0], attr_type=kind)


def _stated_type(node: Node) -> str:
    """Return the attribute type that a case with ``rejects`` states; empty if it states none."""
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
    """Read a case that a correct backend must reject; the node is not checked against a signature.

    The node's inputs are in the order of `input_names`, followed by unknown inputs in the order of
    the case.

    Args:
        operator: the node's operator, from onnxopt or onnx.
        version: the domain's version that the model imports.
        fields: the case.
        output_names: the node's outputs, if the case does not state them as ``node_outputs``. The
            outputs get the element type of the last input.
        declared: the ``AttributeProto.AttributeType`` of each attribute that the operator has.
        choice_of: takes the name of an input that states no element type, and returns the element
            type, or a function that chooses it.
        input_names: the inputs of a valid node in order; empty to use the order of the case.

    Raises:
        Incomplete: if the case is invalid; the errors are collected in `fields`.
    """
    fields.forbid(["outputs"], ", expected none in a case with rejects: true")
    stated_outputs = fields.node.field("node_outputs")
    if stated_outputs is not None and id(stated_outputs) not in fields.broken:
        output_names = [str(item.scalar) for item in stated_outputs.items or ()]
    input_nodes = fields.mapping("inputs")
    ordered = {
        name: input_nodes[name] for name in (*input_names, *input_nodes) if name in input_nodes
    }
    inputs = fields.read(ordered, lambda name, node: fields.declare_value(node, choice_of(name)))

    def natural_kind(name: str, node: Node) -> int:
        """Return the attribute type that a case states, or derive the type from the value.

        An integer is a FLOAT if the operator declares the attribute as FLOAT.
        """
        if stated := _stated_type(node):
            return int(AttributeProto.AttributeType.Value(stated))
        if node.fields is not None:
            return AttributeProto.TENSOR
        as_float = declared.get(name) in _ATTRIBUTE_TYPES["float32"]
        kinds = {_BARE_DTYPES[type(item.scalar)] for item in node.items or [node]}
        if kinds == {"float32", "int64"} or (as_float and kinds == {"int64"}):
            kinds = {"float32"}
        # A single number is accepted in place of a list of one number, as in other kinds of cases.
        is_wrapped = declared.get(name) == AttributeProto.FLOATS and kinds == {"float32"}
        return _ATTRIBUTE_TYPES[min(kinds)][is_wrapped or node.items is not None]

    attribute_nodes = fields.mapping("attributes")
    attributes = declare_attributes(fields, attribute_nodes, natural_kind, wrap_scalars=True)
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

    make = partial(one_step_problem, model, inputs, None, must_reject=True)
    return DeclaredCase((operator.name,), tuple(output_names), {"": make})


#: Determines the element type of a value that does not state its type. It is the type itself, or a
#: function that chooses the type from the natural types of the bare values (``int64``, ``float32``,
#: ``bool``, ``string``).
ChooseDtype: TypeAlias = np.dtype[Any] | Callable[[frozenset[str]], np.dtype[Any]]

# A bare value is a value without a stated element type. Its natural element type is given for each
# Python type.
_BARE_DTYPES: dict[type, str] = {
    bool: "bool",
    int: "int64",
    float: "float32",
    str: STRING,
    type(None): STRING,
}

# finfo of ml_dtypes lacks type annotations.
_finfo: Any = ml_dtypes.finfo
# The smallest and the largest normal number of each common type.
_NORMAL_RANGES = {
    np.dtype(scalar): (float(_finfo(scalar).smallest_normal), float(_finfo(scalar).max))
    for scalar in (np.float32, np.float64)
}

_COMPLEX = re.compile(r"[-+0-9.eEjJinfaINFA]+")


def natural_dtype(kinds: frozenset[str]) -> np.dtype[Any]:
    """Return the common element type of values with the given natural types; default: float32."""
    return DTYPES["float32" if "float32" in kinds else max(kinds, default="float32")]


def _chosen(choose: ChooseDtype, node: Node) -> np.dtype[Any]:
    return choose if isinstance(choose, np.dtype) else choose(untyped_kinds(node))


def declare_value(
    node: Node,
    folder: Path,
    choose: ChooseDtype = natural_dtype,
    dtype: np.dtype[Any] | None = None,
) -> Declared:
    """Read a value.

    Literal data are read completely. For random data and files, only type and shape are read.

    Args:
        node: the value.
        folder: the folder of the case file; paths of data files are relative to it.
        choose: the element type if the value states none. The default type is float32 if a float
            occurs, and otherwise the natural type of the bare values.
        dtype: the element type of the enclosing value, if it is known.

    Raises:
        FormatError: at the first error.
    """
    fields = node.fields
    if fields is None:
        return _literal(node, None, dtype or _chosen(choose, node))
    if "dtype" in fields:
        dtype = _stated_dtype(node, fields["dtype"], dtype)
    shape = fields.get("shape")
    if "random" in fields:
        return _random(fields["random"], fields["shape"], dtype or _chosen(choose, node))
    if "data" in fields:
        data = fields["data"]
        return _literal(data, shape, dtype or _chosen(choose, data))
    if shape is not None:
        raise FormatError(shape, "found a shape, expected it only beside data or random")
    if "file" in fields:
        return _from_file(fields["file"], fields.get("key"), folder, dtype)
    if "sequence" in fields:
        return _sequence(fields["sequence"], folder, choose, dtype)
    inner = fields["optional"]
    if inner.fields is None and inner.items is None and inner.scalar is None:
        return DeclaredGroup("optional", dtype or _chosen(choose, inner))
    value = declare_value(inner, folder, choose, dtype)
    return DeclaredGroup("optional", value.dtype, (value,))


def _stated_dtype(node: Node, field: Node, enclosing: np.dtype[Any] | None) -> np.dtype[Any]:
    """Return the element type that a value states.

    The type must equal that of an enclosing value.
    """
    dtype = dtype_named(str(field.scalar))
    if dtype is None:
        hint = nearest(str(field.scalar), DTYPES)
        raise unexpected(field, f"one of {', '.join(DTYPES)}{'; ' * bool(hint)}{hint}")
    if enclosing is not None and enclosing != dtype:
        expected = f"expected {dtype_name(enclosing)}, the type of the enclosing value"
        raise FormatError(node, f"found {dtype_name(dtype)}, {expected}")
    return dtype


def has_dtype(node: Node) -> bool:
    """Return whether a value states its element type, directly or by naming a file."""
    fields = node.fields or {}
    if "dtype" in fields or "file" in fields:
        return True
    if "sequence" in fields:
        return any(map(has_dtype, fields["sequence"].items or ()))
    return "optional" in fields and has_dtype(fields["optional"])


def untyped_kinds(node: Node) -> frozenset[str]:
    """Return the natural types of bare values; none if the value states its type."""
    if node.items is not None:
        types = {type(item.scalar) for item in node.items} - {type(None)}
        nested = (untyped_kinds(item) for item in node.items if item.scalar is None)
        return frozenset(_BARE_DTYPES[type_name] for type_name in types).union(*nested)
    if node.scalar is not None:
        return frozenset({_BARE_DTYPES[type(node.scalar)]})
    if node.fields is None or "dtype" in node.fields or "file" in node.fields:
        return frozenset()
    random = node.field("random")
    if random is not None:
        return frozenset({"int64" if random.field("integers") else "float32"})
    contents = (node.fields.get(name) for name in ("data", "sequence", "optional"))
    return next((untyped_kinds(item) for item in contents if item is not None), frozenset())


def _sequence(
    node: Node, folder: Path, choose: ChooseDtype, dtype: np.dtype[Any] | None
) -> DeclaredGroup:
    items = node.items or []
    typed = (declare_value(item, folder, choose).dtype for item in items if has_dtype(item))
    common = dtype or next(typed, None) or _chosen(choose, node)
    values = (declare_value(item, folder, choose, common) for item in items)
    return DeclaredGroup("seq", common, tuple(values))


def _promised(
    node: Node, declare: Callable[[], PromisedTensor | RandomTensor], prefix: str = "found"
) -> DeclaredTensor:
    """Declare a tensor; errors are reported at a node.

    Errors of the data are raised when the data are created or read.
    """

    def located(function: Callable[[], T]) -> T:
        try:
            return function()
        except (Malformed, ValueError) as error:
            raise FormatError(node, f"{prefix} {error}") from None

    declared = located(declare)
    return PromisedTensor(declared.dtype, declared.shape, lambda: located(declared.make))


def _from_file(
    node: Node, key: Node | None, folder: Path, dtype: np.dtype[Any] | None
) -> DeclaredTensor:
    def declare() -> PromisedTensor:
        path = contained_path(folder, str(node.scalar))
        return declare_file(path, None if key is None else str(key.scalar), dtype)

    return _promised(node, declare, f"the file {abbreviated(str(node.scalar))}")


def _random(random: Node, shape: Node, dtype: np.dtype[Any]) -> DeclaredTensor:
    fields = dict(random.fields or {})
    seed = int(number(fields.pop("seed")))
    tail_node = fields.pop("tail", None)
    tail = tuple(number(item) for item in (tail_node.items or ())) if tail_node is not None else ()
    ((distribution, parameter_node),) = fields.items()
    parameters = {name: number(value) for name, value in (parameter_node.fields or {}).items()}
    tensor = partial(RandomTensor, distribution, seed, _shape(shape), dtype, parameters, tail)
    return _promised(random, tensor)


def _shape(node: Node) -> tuple[int, ...]:
    # JSON Schema also accepts 2.0 as an integer.
    return tuple(int(number(size)) for size in node.items or ())


def _literal(node: Node, shape: Node | None, dtype: np.dtype[Any]) -> DeclaredTensor:
    """Read nested lists of elements.

    Raises:
        FormatError: if the lists at one depth differ in length, if lists and values are mixed at
            one depth, or if the stated shape differs from the shape of the lists.
    """
    sizes: list[int] = []
    level = [node]
    while level and level[0].items is not None:
        size = len(level[0].items)
        for item in level:
            if item.items is None or len(item.items) != size:
                raise unexpected(item, f"a list of {size}, like the first one at this depth")
        sizes.append(size)
        level = [inner for item in level for inner in item.items or ()]
    for item in level:
        if item.items is not None or item.fields is not None:
            raise unexpected(item, "a single value, like the first one at this depth")
    nested = dimensions = tuple(sizes)
    if shape is not None:
        dimensions = _shape(shape)
        if oversize := too_large(dimensions):
            raise FormatError(shape, f"found {oversize}")
        count = math.prod(dimensions)
        if nested != dimensions and (len(nested) != 1 or len(level) != count):
            raise FormatError(
                node,
                f"found {len(level)} elements in the shape {list(nested)}, expected "
                f"{list(dimensions)}, or {count} in a flat list",
            )
    array = element_array(level, dtype)
    if array.shape != dimensions:
        # The data are copied, because a view would keep its base alive in memory for each of many
        # cases.
        array = array.reshape(dimensions).copy()
    return array


def element_array(nodes: Sequence[Node], dtype: np.dtype[Any]) -> Array:
    """Return the values of nodes as a one-dimensional array.

    Decimal fractions were parsed as the nearest doubles, which are rounded to the element type.

    Raises:
        FormatError: at the first value that the element type cannot represent.
    """
    values: list[Any] = [node.scalar for node in nodes]
    if dtype in _NORMAL_RANGES and values and set(map(type, values)) <= {int, float}:
        # Fast path for the most common data: if every number is normal, no number overflows or
        # underflows.
        magnitudes = list(map(abs, values))
        smallest, largest = _NORMAL_RANGES[dtype]
        if min(magnitudes) >= smallest and max(magnitudes) <= largest:
            return np.array(values, np.float64).astype(dtype)
    name = dtype_name(dtype)
    fits, expected = _rule(dtype)
    for node in nodes:
        if not fits(node.scalar):
            word = str(node.scalar).lower().lstrip("+-") if isinstance(node.scalar, str) else ""
            hint = " (.nan, .inf and -.inf are numbers)" * (word in ("nan", "inf", "infinity"))
            raise unexpected(node, expected + hint)
    if name in (STRING, "bool"):
        return np.array(values, dtype)
    if "int" in name:
        return np.array(values, dtype if dtype.kind in "iu" else np.int64).astype(dtype)
    if dtype.kind == "c":
        values = list(map(complex, values))
    wide = np.array(values, np.complex128 if dtype.kind == "c" else np.float64)
    with np.errstate(all="ignore"):
        narrow = wide.astype(dtype)
    lost = _lost(wide.real, narrow.real)
    if dtype.kind == "c":
        lost |= _lost(wide.imag, narrow.imag)
    if lost.any():
        part = narrow.real.dtype
        smallest, largest = float(_finfo(part).smallest_subnormal), float(_finfo(part).max)
        limits = f"(magnitudes {smallest:.4g} to {largest:.4g})"
        expected = f"a number in the range of {dtype_name(part)} {limits}"
        raise unexpected(nodes[int(lost.argmax())], expected)
    return narrow


def _rule(dtype: np.dtype[Any]) -> tuple[Callable[[Any], bool], str]:
    """Return a predicate for valid scalars of an element type, and the scalars' description."""
    name = dtype_name(dtype)
    if name == STRING:
        return lambda item: isinstance(item, str), "text"
    if name == "bool":
        return lambda item: isinstance(item, bool), "true or false"
    if "int" in name:
        low, high = integer_range(dtype)
        expected = f"an integer from {low} to {high} ({name})"
        return lambda item: type(item) is int and low <= item <= high, expected
    if dtype.kind == "c":
        return _is_complex, 'a complex number such as "1+2j"'
    return lambda item: type(item) in (int, float), f"a number ({name})"


def _is_complex(value: Any) -> bool:
    if isinstance(value, str) and _COMPLEX.fullmatch(value):
        with suppress(ValueError):
            complex(value)
            return True
    return type(value) in (int, float)


def _lost(wide: Array, narrow: Array) -> Array:
    """Return a mask of the doubles that are out of the range of an element type.

    Rounding is allowed. Saturation, and changes to or from infinity, NaN or zero, are not allowed.

    Args:
        wide: the doubles.
        narrow: the doubles converted to the element type.
    """
    back = narrow.astype(np.float64)
    lost: Array = (
        (np.isfinite(wide) != np.isfinite(back))
        | (np.isnan(wide) != np.isnan(back))
        | ((wide == 0) != (back == 0))
    )
    with np.errstate(all="ignore"):
        infinity = np.array(np.inf).astype(narrow.dtype).astype(np.float64)
    if not np.isinf(infinity):
        largest, least = float(_finfo(narrow.dtype).max), float(_finfo(narrow.dtype).min)
        lost |= ((back == largest) & (wide > back)) | ((back == least) & (wide < back))
    return lost
