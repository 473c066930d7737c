"""Convert models, values and onnx's reference to wider floating-point types.

In a widened model, double replaces every floating-point type: in values, constants, targets of Cast
and function bodies. Alternatively, float32 replaces every 16-bit type. Some operators of onnx's
reference round to float32 regardless of the types of their operands. :func:`in_double` makes them
compute in double.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from functools import cache
from importlib.abc import InspectLoader
from types import CodeType, ModuleType
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
from google.protobuf.message import Message
from onnx import AttributeProto, TensorProto, TypeProto, helper, numpy_helper

from onnxopt_cli.core.values import Value

_REFERENCE = "onnx.reference.ops."
_Proto = TypeVar("_Proto", bound=Message)

#: How element types are replaced. DOUBLE replaces all floating-point types by double. SINGLE
#: replaces 16-bit types by float32.
DOUBLE: dict[int, int] = {
    TensorProto.FLOAT: TensorProto.DOUBLE,
    TensorProto.FLOAT16: TensorProto.DOUBLE,
    TensorProto.BFLOAT16: TensorProto.DOUBLE,
    TensorProto.COMPLEX64: TensorProto.COMPLEX128,
}
SINGLE: dict[int, int] = {
    TensorProto.FLOAT16: TensorProto.FLOAT,
    TensorProto.BFLOAT16: TensorProto.FLOAT,
}
#: Attributes that name the type in which an operator computes.
PRECISION_ATTRIBUTES = frozenset({"precision", "softmax_precision", "stash_type"})
# Attributes that name an element type, of any operator.
_TYPE_ATTRIBUTES = PRECISION_ATTRIBUTES | {"to", "dtype", "output_datatype", "output_dtype"}
# Attributes of Constant that hold float32 numbers.
_CONSTANT_ATTRIBUTES = frozenset({"value_float", "value_floats"})
#: For each dtype, the unit roundoff u. Floating-point types that are not listed are treated as
#: discrete.
ROUNDOFF: dict[np.dtype[Any], float] = {
    np.dtype(np.float16): 2.0**-11,
    np.dtype(ml_dtypes.bfloat16): 2.0**-8,
    np.dtype(np.float32): 2.0**-24,
    np.dtype(np.float64): 2.0**-53,
    np.dtype(np.complex64): 2.0**-24,
    np.dtype(np.complex128): 2.0**-53,
}
_SHORT_TYPES = {np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)}
_DOUBLES = {np.dtype(np.float64), np.dtype(np.complex128)}


@cache
def smallest_normal(dtype: np.dtype[Any]) -> float:
    """Return the smallest normal number of a dtype in :data:`ROUNDOFF`."""
    return float(ml_dtypes.finfo(dtype).smallest_normal)  # type: ignore[no-untyped-call]


@cache
def largest_finite(dtype: np.dtype[Any]) -> float:
    """Return the largest finite number of a dtype in :data:`ROUNDOFF`."""
    return float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]


def flushed_value(value: Value) -> Value:
    """Return a tensor with zeros in place of subnormal numbers; the same tensor if it has none."""
    if not isinstance(value, np.ndarray) or value.dtype not in ROUNDOFF:
        return value
    small = (value != 0) & (np.abs(value) < smallest_normal(value.dtype))
    return np.where(small, value.dtype.type(0), value) if small.any() else value


def is_wide(value: object) -> bool:
    """Return whether a value is a tensor of doubles, real or complex."""
    # Do not use the kind of the dtype, because NumPy also counts some 8-bit types as floating-point
    # types.
    return isinstance(value, np.ndarray) and value.dtype in _DOUBLES


def widened_value(value: Value) -> Value:
    """Return a value with floating-point tensors converted to double; others are unchanged."""
    if isinstance(value, list):
        return [widened_value(item) for item in value]
    if isinstance(value, dict):
        return {key: widened_value(item) for key, item in value.items()}
    if value is None or value.dtype not in ROUNDOFF or value.dtype in _DOUBLES:
        return value
    return value.astype(np.complex128 if value.dtype.kind == "c" else np.float64)


def rounded_like(exact: Value, native: Value) -> Value:
    """Return ``exact``, a value that was computed in double, rounded to the type of ``native``.

    ``native`` is the value in the model's own types. If ``native`` is not a floating-point tensor,
    or if the shapes of the two values differ, ``native`` itself is returned.
    """
    if not isinstance(exact, np.ndarray) or not isinstance(native, np.ndarray):
        return native
    is_rounded = native.dtype in ROUNDOFF and exact.shape == native.shape
    return exact.astype(native.dtype) if is_rounded else native


def is_short(value: object) -> bool:
    """Return whether a value is a tensor of a 16-bit floating-point type."""
    return isinstance(value, np.ndarray) and value.dtype in _SHORT_TYPES


def single_value(value: Any) -> Any:
    """Return a value with 16-bit floats converted to float32; other tensors are unchanged."""
    if isinstance(value, list):
        return [single_value(item) for item in value]
    return value.astype(np.float32) if is_short(value) else value


def widened(proto: _Proto, types: Mapping[int, int] = DOUBLE) -> _Proto:
    """Return a copy of a model or function with replaced element types.

    Args:
        proto: the model or function.
        types: the replacements, :data:`DOUBLE` or :data:`SINGLE`.
    """
    wide = deepcopy(proto)
    _widen(wide, types)
    return wide


def _widen(message: Message, types: Mapping[int, int]) -> None:
    if isinstance(message, TensorProto):
        if message.data_type in types:
            convert = widened_value if types is DOUBLE else single_value
            array: Any = convert(numpy_helper.to_array(message))
            message.CopyFrom(numpy_helper.from_array(array, message.name))
        return
    if isinstance(message, TypeProto.Tensor | TypeProto.SparseTensor):
        message.elem_type = types.get(message.elem_type, message.elem_type)
        return
    if isinstance(message, AttributeProto) and not message.ref_attr_name:
        if message.name in _TYPE_ATTRIBUTES:
            message.i = types.get(message.i, message.i)
        elif message.name in _CONSTANT_ATTRIBUTES and types is DOUBLE:
            several = message.type == AttributeProto.FLOATS
            values = np.array(message.floats if several else message.f, np.float64)
            message.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(values)))
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in [value] if isinstance(value, Message) else value:
                _widen(part, types)


class _NumpyInDouble(ModuleType):
    """A substitute for the module NumPy, in which ``float32`` is double."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


@cache
def in_double() -> list[tuple[Any, str, Any]]:
    """Return replacements of ``np``, for :func:`~onnxopt_cli.oracle.patching.replaced`.

    The replacements apply to the modules of operators that name float32.
    """
    # This import loads the modules of all operators. The preview domains depend on the version of
    # onnx.
    from onnx.reference.ops import _op_list, aionnxml  # noqa: F401

    with suppress(ImportError):
        from onnx.reference.ops import aionnx_preview  # noqa: F401

    numpy_in_double = _NumpyInDouble("numpy")
    public = {name: value for name, value in vars(np).items() if not name.startswith("__")}
    vars(numpy_in_double).update(public)
    numpy_in_double.float32 = np.float64  # type: ignore[attr-defined]
    return [
        (module, "np", numpy_in_double)
        for name, module in sorted(sys.modules.items())
        if name.startswith(_REFERENCE)
        and getattr(module, "np", None) is np
        and _names_float32(_code_of(module))
    ]


def _code_of(module: ModuleType) -> CodeType | None:
    """Return the code that a module's file defines, regardless of replaced functions."""
    loader = module.__spec__.loader if module.__spec__ else None
    return loader.get_code(module.__name__) if isinstance(loader, InspectLoader) else None


def _names_float32(code: CodeType | None) -> bool:
    """Return whether float32 is named in the code of a module or function, or in code within it."""
    return code is not None and (
        "float32" in code.co_names
        or any(_names_float32(part) for part in code.co_consts if isinstance(part, CodeType))
    )
