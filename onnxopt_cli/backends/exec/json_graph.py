"""Parts of a graph as JSON, for commands without Protobuf."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import AttributeProto, TensorProto, TypeProto, helper, numpy_helper

from onnxopt_cli.core.codec import ValueWriter
from onnxopt_cli.core.values import dtype_name, dtype_named
from onnxopt_cli.operators.nodes import plain_domain

_PLAIN_ATTRIBUTE_TYPES = {
    AttributeProto.AttributeType.Value(f"{kind}{plural}")
    for kind in ("FLOAT", "INT", "STRING", "TENSOR")
    for plural in ("", "S")
}


def sole_node(model: onnx.ModelProto) -> onnx.NodeProto | None:
    """Return the node of a single-node model with attributes that JSON can represent, or None."""
    graph = model.graph
    if model.functions or graph.sparse_initializer or len(graph.node) != 1:
        return None
    (node,) = graph.node
    same_outputs = sorted(output.name for output in graph.output) == sorted(
        name for name in node.output if name
    )
    are_plain = all(attribute.type in _PLAIN_ATTRIBUTE_TYPES for attribute in node.attribute)
    return node if same_outputs and are_plain else None


def node_to_json(model: onnx.ModelProto, values: ValueWriter) -> dict[str, Any]:
    """Return the node of a single-node model as JSON; the default domain is ``ai.onnx``.

    Args:
        model: the model.
        values: receives the elements of tensors among the attributes.
    """
    (node,) = model.graph.node
    imported = {plain_domain(opset.domain): opset.version for opset in model.opset_import}
    return {
        "op_type": node.op_type,
        "domain": node.domain or "ai.onnx",
        "version": imported.get(plain_domain(node.domain), 0),
        "attributes": {
            attribute.name: _plain(helper.get_attribute_value(attribute), values)
            for attribute in node.attribute
        },
        "inputs": list(node.input),
        "outputs": list(node.output),
    }


def _plain(value: Any, values: ValueWriter) -> Any:
    if isinstance(value, TensorProto):
        return values.put(numpy_helper.to_array(value))
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, float):
        # JSON cannot represent NaN and infinities.
        return value if abs(value) < float("inf") else str(value)
    return value if isinstance(value, int) else [_plain(item, values) for item in value]


def declared(output: onnx.ValueInfoProto) -> dict[str, Any]:
    """Return the declaration of an output: its name, and the dtype and shape of a tensor.

    An unknown dimension or shape is null.
    """
    tensor = output.type.tensor_type
    if not tensor.elem_type:
        return {"name": output.name}
    shape = [
        dimension.dim_value if dimension.HasField("dim_value") else None
        for dimension in tensor.shape.dim
    ]
    return {
        "name": output.name,
        "dtype": next(iter(element_types(output.type)), None),
        "shape": shape if tensor.HasField("shape") else None,
    }


def element_types(value: TypeProto) -> set[str]:
    """Return the name of the element type of the tensors in a value; empty if it is unknown."""
    kind = value.WhichOneof("value")
    if kind in {"sequence_type", "optional_type"}:
        return element_types(getattr(value, kind).elem_type)
    if kind == "map_type":
        return element_types(value.map_type.value_type)
    number = value.tensor_type.elem_type
    # A type that the installed onnx does not define is left to the command, which rejects it.
    if not number or number not in TensorProto.DataType.values():
        return set()
    dtype = dtype_named(TensorProto.DataType.Name(number))
    return set() if dtype is None else {dtype_name(dtype)}
