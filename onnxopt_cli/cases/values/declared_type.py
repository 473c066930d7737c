"""Whether a value is of the type that a graph declares for it."""

from __future__ import annotations

from reprlib import repr as shortened

import numpy as np
from onnx import TypeProto

from onnxopt_cli.cases.values.malformed import Malformed
from onnxopt_cli.cases.values.tensor_data import type_name
from onnxopt_cli.core.values import STRING, Array, Value, describe, dtype_name, dtype_named


def check_type(value: Value, declared: TypeProto, place: str = "") -> None:
    """Make sure that a value has the declared structure, element types and static dimensions.

    Args:
        value: the value.
        declared: its type; an undefined element type and a missing shape allow any.
        place: the way into the value, for the message.

    Raises:
        Malformed: if it has not.
    """
    kind = declared.WhichOneof("value")
    if kind == "tensor_type" and isinstance(value, np.ndarray):
        fits = _tensor_fits(value, declared.tensor_type)
    elif kind == "sequence_type" and isinstance(value, list):
        for index, element in enumerate(value):
            check_type(element, declared.sequence_type.elem_type, f"{place}[{index}]")
        fits = True
    elif kind == "map_type" and isinstance(value, dict):
        for key, element in value.items():
            _check_key(key, declared.map_type.key_type, place)
            check_type(element, declared.map_type.value_type, f"{place}[{shortened(key)}]")
        fits = True
    elif kind == "optional_type":
        if value is not None:
            check_type(value, declared.optional_type.elem_type, place)
        fits = True
    else:
        fits = False
    if not fits:
        where = f"at {place} " if place else ""
        raise Malformed(f"{where}is {describe(value)}, but declared as {describe_type(declared)}")


def describe_type(declared: TypeProto) -> str:
    """Show a declared type as values are shown: ``float32[2,N]``, ``sequence of float32[...]``."""
    kind = declared.WhichOneof("value")
    if kind == "tensor_type":
        return f"{_element_name(declared.tensor_type)}[{_shape_text(declared.tensor_type)}]"
    if kind == "sequence_type":
        return f"sequence of {describe_type(declared.sequence_type.elem_type)}"
    if kind == "optional_type":
        return f"optional {describe_type(declared.optional_type.elem_type)}"
    if kind == "map_type":
        keys, values = declared.map_type.key_type, declared.map_type.value_type
        return f"map of {type_name(keys)} to {describe_type(values)}"
    return "nothing" if kind is None else kind.removesuffix("_type").replace("_", " ")


def _tensor_fits(array: Array, declared: TypeProto.Tensor) -> bool:
    if declared.elem_type and dtype_name(array.dtype) != type_name(declared.elem_type):
        return False
    if not declared.HasField("shape"):
        return True
    dimensions = declared.shape.dim
    return len(dimensions) == array.ndim and all(
        not dimension.HasField("dim_value") or dimension.dim_value == size
        for dimension, size in zip(dimensions, array.shape, strict=True)
    )


def _check_key(key: object, key_type: int, place: str) -> None:
    name = type_name(key_type)
    dtype = dtype_named(name)
    if name == STRING:
        fits = isinstance(key, str)
    elif dtype is not None and dtype.kind in "iu" and isinstance(key, int):
        limits = np.iinfo(dtype)
        fits = limits.min <= key <= limits.max
    else:
        fits = False
    if not fits:
        where = f" at {place}" if place else ""
        raise Malformed(f"has the key {shortened(key)}{where}, but declares {name} keys")


def _element_name(declared: TypeProto.Tensor) -> str:
    return type_name(declared.elem_type) if declared.elem_type else "any"


def _shape_text(declared: TypeProto.Tensor) -> str:
    if not declared.HasField("shape"):
        return "..."
    return ",".join(
        str(dimension.dim_value if dimension.HasField("dim_value") else dimension.dim_param or "?")
        for dimension in declared.shape.dim
    )
