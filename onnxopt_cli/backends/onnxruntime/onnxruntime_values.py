"""Conversion of values to and from ONNX Runtime.

Its Python interface supports NumPy arrays of NumPy's own types. Tensors of other types (bfloat16,
float8, int4, ...) are passed as OrtValue, whose bytes this module writes and reads.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxopt_cli.core.values import (
    Array,
    Value,
    dtype_named,
    is_string,
)

# The value of numpy.dtype.isbuiltin for a type that another package has registered.
_REGISTERED = 2


def foreign_dtype(declared: str) -> np.dtype[Any] | None:
    """Return the dtype of a type such as ``tensor(bfloat16)`` that NumPy lacks; else None."""
    dtype = dtype_named(declared.removeprefix("tensor(").removesuffix(")"))
    return dtype if dtype is not None and _is_foreign(dtype) else None


def as_ort_values(arguments: Mapping[str, object]) -> dict[str, Any] | None:
    """Convert results of :func:`argument` to OrtValues; None if one of them has no such form."""
    from onnxruntime import OrtValue

    values: dict[str, Any] = {}
    for name, argument in arguments.items():
        if isinstance(argument, OrtValue):
            values[name] = argument
        elif isinstance(argument, np.ndarray) and not is_string(argument.dtype):
            values[name] = OrtValue.ortvalue_from_numpy(argument)
        else:
            return None
    return values


def restored(returned: object, dtype: np.dtype[Any] | None) -> object:
    """Return an output with its float8 dtype if ONNX Runtime returned its bytes as uint8."""
    if dtype is None or not isinstance(returned, np.ndarray) or returned.dtype != np.uint8:
        return returned
    return returned.view(dtype)


def array_of(value: Any) -> Array:
    """Return a tensor OrtValue in main memory as an independent array."""
    element_type = value.element_type()
    if not _is_foreign(helper.tensor_dtype_to_np_dtype(element_type)):
        return np.asarray(value.numpy())
    data = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    tensor = onnx.TensorProto(data_type=element_type, dims=value.shape(), raw_data=data)
    return numpy_helper.to_array(tensor)


def argument(value: Value) -> object:
    """Return an input in the form of ``InferenceSession.run``, without a copy if possible."""
    if value is None:
        return None
    if isinstance(value, list):
        return [item if item is None else _plain(item) for item in value]  # type: ignore[arg-type]
    if isinstance(value, dict):
        # ONNX Runtime expects the values of a map as numbers or strings, not as tensors.
        return {key: np.asarray(item).item() for key, item in value.items()}
    return _ort_value(value) if _is_foreign(value.dtype) else _plain(value)


def _plain(array: Array) -> Array:
    """Convert byte orders and ``U`` strings, which ONNX Runtime misreads."""
    dtype = np.dtype(object) if is_string(array.dtype) else array.dtype.newbyteorder("=")
    return np.asarray(array, dtype=dtype)


def _ort_value(array: Array) -> Any:
    from onnxruntime import OrtValue

    element_type = helper.np_dtype_to_tensor_dtype(array.dtype)
    array = np.asarray(array, order="C")
    if array.dtype.itemsize == 1:
        # ONNX Runtime takes the shape and the memory from one array, but expects elements of less
        # than a byte to be packed. The packed bytes fill the beginning of the memory.
        packed = np.frombuffer(numpy_helper.from_array(array).raw_data, dtype=np.uint8)
        memory = np.zeros(array.shape, dtype=np.uint8)
        memory.reshape(-1)[: packed.size] = packed
        array = memory
    return OrtValue.ortvalue_from_numpy_with_onnx_type(array, element_type)


def _is_foreign(dtype: np.dtype[Any]) -> bool:
    """Return whether a type is not NumPy's own, but registered by ml_dtypes."""
    return dtype.isbuiltin == _REGISTERED
