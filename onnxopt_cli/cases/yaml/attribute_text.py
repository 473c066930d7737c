"""Attributes of a case file as attributes of a node."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from onnx import AttributeProto, helper

from onnxopt_cli.cases.values.declared import DeclaredTensor
from onnxopt_cli.cases.values.tensor_data import tensor_of
from onnxopt_cli.cases.values.tensor_elements import element_array, element_kind
from onnxopt_cli.cases.values.tensor_text import DeclareValue
from onnxopt_cli.cases.yaml.syntax import FormatError, Node, unexpected
from onnxopt_cli.core.values import DTYPES

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
