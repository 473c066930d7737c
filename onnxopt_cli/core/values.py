"""Inputs and outputs of models: tensors, sequences, optionals and maps.

A tensor is a NumPy array. ml_dtypes provides the types that NumPy lacks, and a tensor of strings is
an ``object`` array of ``str``. A sequence is a list of values, a map is a dict, and an empty
optional is ``None``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from enum import Enum, auto
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    # This module must run on Python 3.9, because plugins in other interpreters import it.
    from typing import TypeAlias

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Value: TypeAlias = "Array | list[Value] | dict[Any, Value] | None"

# The names of ONNX's 8-, 6- and 4-bit floats, with their names in ml_dtypes.
_SHORT_FLOATS = {
    "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz",
    "float8e8m0": "float8_e8m0fnu",
    "float4e2m1": "float4_e2m1fn",
    "float6e2m3": "float6_e2m3fn",
    "float6e3m2": "float6_e3m2fn",
}
_ML_DTYPES = ("bfloat16", *_SHORT_FLOATS.values(), "uint4", "int4", "uint2", "int2")
_NUMPY_DTYPES = (
    *("bool", "float16", "float32", "float64", "complex64", "complex128"),
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
)
# The element types whose names in ONNX and NumPy differ.
_ALIASES = {"float": "float32", "double": "float64", **_SHORT_FLOATS}

STRING = "string"


def _dtypes() -> dict[str, np.dtype[Any]]:
    table = {name: np.dtype(name) for name in _NUMPY_DTYPES}
    # In the interpreter of a plugin, ml_dtypes may be missing, or may be an older version.
    with suppress(ImportError):
        import ml_dtypes

        scalars = {name: getattr(ml_dtypes, name, None) for name in _ML_DTYPES}
        table |= {name: np.dtype(scalar) for name, scalar in scalars.items() if scalar}
    table[STRING] = np.dtype(object)
    return table


#: All element types of ONNX by name; a string tensor is an array of Python objects.
DTYPES = _dtypes()
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class _ThreadState(threading.local):
    """The random generator of the current thread."""

    def __init__(self) -> None:
        self.random = np.random.RandomState()


_THREAD_STATE = _ThreadState()


def random_state(seed: int) -> np.random.RandomState:
    """Return a generator that draws the same numbers as a new ``RandomState(seed)``.

    NumPy guarantees that the stream of RandomState never changes; it gives no such guarantee for
    the newer Generator. Because creating a generator takes longer than drawing a small tensor, all
    calls in a thread return the same object. Do not use a result after the next call.
    """
    _THREAD_STATE.random.seed(seed)
    return _THREAD_STATE.random


def dtype_named(name: str) -> np.dtype[Any] | None:
    """Return the NumPy dtype of an ONNX or NumPy type name; None for an unknown name."""
    lowered = name.lower()
    return DTYPES.get(_ALIASES.get(lowered, lowered))


@cache
def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype in files and messages: ``float32``, ``string``."""
    if dtype.kind in "OUSTa":
        return STRING
    return _NAMES.get(dtype, str(dtype))


def is_string(dtype: np.dtype[Any]) -> bool:
    """Return whether arrays of a dtype hold strings in any of NumPy's representations."""
    return dtype.kind in "OUST"


class NumberKind(Enum):
    """Kinds of element types, which are compared in different ways."""

    FLOAT = auto()
    COMPLEX = auto()
    INTEGER = auto()
    BOOLEAN = auto()
    STRING = auto()


@cache
def kind_of(dtype: np.dtype[Any]) -> NumberKind:
    """Return the kind of a dtype."""
    if is_string(dtype):
        return NumberKind.STRING
    if dtype.kind == "b":
        return NumberKind.BOOLEAN
    if dtype.kind == "c":
        return NumberKind.COMPLEX
    # The types of ml_dtypes have kind V; only their names distinguish integers from floats.
    return NumberKind.INTEGER if "int" in dtype_name(dtype) else NumberKind.FLOAT


def as_strings(array: Array) -> Array:
    """Return any string array as an array of str, with invalid bytes escaped."""
    decoded = [
        item.decode("utf-8", "backslashreplace") if isinstance(item, bytes) else str(item)
        for item in array.ravel().tolist()
    ]
    return np.array(decoded, object).reshape(array.shape)


def describe(value: Value) -> str:
    """Describe the type and shape of a value: ``float32[2,3]``, ``a sequence of 2``."""
    if value is None:
        return "an empty optional"
    if isinstance(value, list):
        return f"a sequence of {len(value)}"
    if isinstance(value, dict):
        return f"a map of {len(value)}"
    # The text is interned, because the results of a run have few different descriptions.
    return sys.intern(f"{dtype_name(value.dtype)}[{','.join(map(str, value.shape))}]")


def structure_of(value: Value) -> Any:
    """Return the types and shapes within a value, as JSON."""
    if isinstance(value, list):
        return [structure_of(item) for item in value]
    if isinstance(value, dict):
        return {str(key): structure_of(item) for key, item in value.items()}
    return describe(value)


def total_bytes(values: Iterable[Value]) -> int:
    """Return the number of bytes of all tensors, including those in sequences and maps."""
    total = 0
    for value in values:
        if isinstance(value, np.ndarray):
            total += value.nbytes
        elif isinstance(value, list):
            total += total_bytes(value)
        elif isinstance(value, dict):
            total += total_bytes(value.values())
    return total
