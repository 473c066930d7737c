"""Values on their way into ONNX Runtime and out of it.

Its Python interface takes and returns NumPy arrays of NumPy's own types. The others (bfloat16,
float8, int4, ...) pass as OrtValue, whose bytes are written and read here.
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

# What numpy.dtype.isbuiltin says of a type that another package has registered.
_REGISTERED = 2


def foreign_dtype(declared: str) -> np.dtype[Any] | None:
    """Return the dtype of a session's type, ``tensor(bfloat16)``, if NumPy lacks it; else None."""
    dtype = dtype_named(declared.removeprefix("tensor(").removesuffix(")"))
    return dtype if dtype is not None and _is_foreign(dtype) else None


def as_ort_values(arguments: Mapping[str, object]) -> dict[str, Any] | None:
    """Return arguments of :func:`argument` as OrtValues; None if one of them cannot be one."""
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
    """Return an output as the float8 that it is, where ONNX Runtime returned its bytes as uint8."""
    if dtype is None or not isinstance(returned, np.ndarray) or returned.dtype != np.uint8:
        return returned
    return returned.view(dtype)


def array_of(value: Any) -> Array:
    """Return a tensor OrtValue in main memory as an array of its own."""
    element_type = value.element_type()
    if not _is_foreign(helper.tensor_dtype_to_np_dtype(element_type)):
        return np.asarray(value.numpy())
    data = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    tensor = onnx.TensorProto(data_type=element_type, dims=value.shape(), raw_data=data)
    return numpy_helper.to_array(tensor)


def argument(value: Value) -> object:
    """Return an input as ``InferenceSession.run`` takes it; memory is shared where it can be."""
    if value is None:
        return None
    if isinstance(value, list):
        return [item if item is None else _plain(item) for item in value]  # type: ignore[arg-type]
    if isinstance(value, dict):
        # A map's values are numbers or strings to ONNX Runtime, not tensors.
        return {key: np.asarray(item).item() for key, item in value.items()}
    return _ort_value(value) if _is_foreign(value.dtype) else _plain(value)


def _plain(array: Array) -> Array:
    """Return an array without what ONNX Runtime misreads: other byte orders, ``U`` strings."""
    dtype = np.dtype(object) if is_string(array.dtype) else array.dtype.newbyteorder("=")
    return np.asarray(array, dtype=dtype)


def _ort_value(array: Array) -> Any:
    from onnxruntime import OrtValue

    element_type = helper.np_dtype_to_tensor_dtype(array.dtype)
    array = np.asarray(array, order="C")
    if array.dtype.itemsize == 1:
        # ONNX Runtime takes shape and memory from one array, but elements of less than a byte lie
        # packed in it: the memory is longer than it reads.
        packed = np.frombuffer(numpy_helper.from_array(array).raw_data, dtype=np.uint8)
        memory = np.zeros(array.shape, dtype=np.uint8)
        memory.reshape(-1)[: packed.size] = packed
        array = memory
    return OrtValue.ortvalue_from_numpy_with_onnx_type(array, element_type)


def _is_foreign(dtype: np.dtype[Any]) -> bool:
    """Tell whether a type is one that NumPy lacks and ml_dtypes has registered with it."""
    return dtype.isbuiltin == _REGISTERED
