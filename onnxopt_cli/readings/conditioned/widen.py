"""A model with every float type made double: types, constants, Cast targets, function bodies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, numpy_helper

from onnxopt_cli.core.values import Array, Value

_WIDE: dict[int, int] = {
    TensorProto.FLOAT: TensorProto.DOUBLE,
    TensorProto.FLOAT16: TensorProto.DOUBLE,
    TensorProto.BFLOAT16: TensorProto.DOUBLE,
    TensorProto.COMPLEX64: TensorProto.COMPLEX128,
}
# Attributes that name an element type, by whatever operator.
_TYPES = frozenset(
    {"to", "dtype", "output_datatype", "output_dtype", "stash_type", "softmax_precision"}
    | {"precision"}
)
#: The half distance of two neighbours near 1, by dtype; other float types are taken as discrete.
ROUNDOFF: dict[np.dtype[Any], float] = {
    np.dtype(np.float16): 2.0**-11,
    np.dtype(ml_dtypes.bfloat16): 2.0**-8,
    np.dtype(np.float32): 2.0**-24,
    np.dtype(np.float64): 2.0**-53,
    np.dtype(np.complex64): 2.0**-24,
    np.dtype(np.complex128): 2.0**-53,
}


def smallest_normal(dtype: np.dtype[Any]) -> float:
    """Return the smallest normal number of a dtype in :data:`ROUNDOFF`."""
    return float(ml_dtypes.finfo(dtype).smallest_normal)  # type: ignore[no-untyped-call]


def is_wide(value: object) -> bool:
    """Tell whether a value is a tensor of doubles, or of pairs of them."""
    # Of the types of 8 bits some are floats to NumPy.
    return isinstance(value, np.ndarray) and value.dtype in (np.float64, np.complex128)


def widened_value(value: Value) -> Value:
    """Return a value with all its floats as double; what is discrete stays."""
    if isinstance(value, list):
        return [widened_value(item) for item in value]
    if isinstance(value, dict):
        return {key: widened_value(item) for key, item in value.items()}
    if value is None or value.dtype not in ROUNDOFF:
        return value
    return value.astype(np.complex128 if value.dtype.kind == "c" else np.float64)


def widened_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model in which every float of 16 bits or more is a double."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    _widen_graph(wide.graph)
    return wide


def widened_function(function: onnx.FunctionProto) -> onnx.FunctionProto:
    """Return a copy of a function in which every float of 16 bits or more is a double."""
    wide = onnx.FunctionProto()
    wide.CopyFrom(function)
    _widen_nodes(wide.node)
    _widen_attributes(wide.attribute_proto)
    _widen_types(it.type for it in wide.value_info)
    return wide


def _widen_graph(graph: onnx.GraphProto) -> None:
    _widen_types(it.type for it in (*graph.input, *graph.output, *graph.value_info))
    for tensor in (*graph.initializer, *(it.values for it in graph.sparse_initializer)):
        _widen_tensor(tensor)
    _widen_nodes(graph.node)


def _widen_nodes(nodes: Iterable[onnx.NodeProto]) -> None:
    for node in nodes:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                given = attribute.name in {"value_float", "value_floats"}
                if given and not attribute.ref_attr_name:
                    several = attribute.name == "value_floats"
                    values = np.array(attribute.floats if several else attribute.f, np.float64)
                    attribute.CopyFrom(
                        onnx.helper.make_attribute("value", numpy_helper.from_array(values))
                    )
        _widen_attributes(node.attribute)


def _widen_attributes(attributes: Iterable[AttributeProto]) -> None:
    for it in attributes:
        if it.type == AttributeProto.INT and it.name in _TYPES:
            it.i = _WIDE.get(it.i, it.i)
        for tensor in (it.t, *it.tensors):
            if tensor.data_type in _WIDE:
                _widen_tensor(tensor)
        if it.HasField("sparse_tensor"):
            _widen_tensor(it.sparse_tensor.values)
        if it.HasField("tp"):
            _widen_types([it.tp])
        for graph in ([it.g] if it.HasField("g") else []) + list(it.graphs):
            _widen_graph(graph)


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type in _WIDE:
        array: Array = widened_value(numpy_helper.to_array(tensor))  # type: ignore[assignment]
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _widen_types(types: Iterable[onnx.TypeProto]) -> None:
    for it in types:
        kind = it.WhichOneof("value")
        if kind in {"tensor_type", "sparse_tensor_type"}:
            tensor = getattr(it, kind)
            tensor.elem_type = _WIDE.get(tensor.elem_type, tensor.elem_type)
        elif kind in {"sequence_type", "optional_type"}:
            _widen_types([getattr(it, kind).elem_type])
        elif kind == "map_type":
            _widen_types([it.map_type.value_type])
