"""What flows into and out of a model: tensors, sequences, optionals and maps.

A tensor is a NumPy array (ml_dtypes for the types NumPy lacks, ``object`` arrays of ``str`` for
strings), a sequence a list of values, an empty optional ``None`` and a map a dict.
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
    # Where a plugin runs in an interpreter of its own, Python may be 3.9.
    from typing import TypeAlias

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Value: TypeAlias = "Array | list[Value] | dict[Any, Value] | None"

# The names by which ml_dtypes knows ONNX's short floats.
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
# ONNX's names of the element types where NumPy's differ.
_ALIASES = {"float": "float32", "double": "float64", **_SHORT_FLOATS}

STRING = "string"


def _dtypes() -> dict[str, np.dtype[Any]]:
    table = {name: np.dtype(name) for name in _NUMPY_DTYPES}
    # There ml_dtypes may be missing, or older.
    with suppress(ImportError):
        import ml_dtypes

        found = {name: getattr(ml_dtypes, name, None) for name in _ML_DTYPES}
        table |= {name: np.dtype(scalar) for name, scalar in found.items() if scalar}
    table[STRING] = np.dtype(object)
    return table


#: Every element type of ONNX by its name; a string tensor is an array of Python objects.
DTYPES = _dtypes()
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class _OfThread(threading.local):
    """The generator of a thread."""

    def __init__(self) -> None:
        self.random = np.random.RandomState()


_OF_THREAD = _OfThread()


def random_state(seed: int) -> np.random.RandomState:
    """Return the generator of this thread, which draws what ``RandomState(seed)`` does.

    Its stream is frozen by NumPy; that of the newer Generator is not. To make one takes longer than
    to draw a small tensor, so it is the same one again: whoever had it before has drawn.
    """
    _OF_THREAD.random.seed(seed)
    return _OF_THREAD.random


def dtype_named(name: str) -> np.dtype[Any] | None:
    """Return the NumPy dtype of an ONNX or NumPy type name, or None if there is none."""
    lowered = name.lower()
    return DTYPES.get(_ALIASES.get(lowered, lowered))


@cache
def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return the name under which a dtype is shown and written: ``float32``, ``string``."""
    if dtype.kind in "OUSTa":
        return STRING
    return _NAMES.get(dtype, str(dtype))


def is_string(dtype: np.dtype[Any]) -> bool:
    """Tell whether arrays of this dtype hold strings, in any of NumPy's ways."""
    return dtype.kind in "OUST"


class NumberKind(Enum):
    """The ways in which elements differ."""

    FLOAT = auto()
    COMPLEX = auto()
    INTEGER = auto()
    BOOLEAN = auto()
    STRING = auto()


@cache
def kind_of(dtype: np.dtype[Any]) -> NumberKind:
    """Return the way in which elements of a dtype differ."""
    if is_string(dtype):
        return NumberKind.STRING
    if dtype.kind == "b":
        return NumberKind.BOOLEAN
    if dtype.kind == "c":
        return NumberKind.COMPLEX
    # ml_dtypes registers its types with kind V; their names tell.
    return NumberKind.INTEGER if "int" in dtype_name(dtype) else NumberKind.FLOAT


def as_strings(array: Array) -> Array:
    """Return a string array of any of NumPy's ways as one of str, undecodable bytes escaped."""
    decoded = [
        item.decode("utf-8", "backslashreplace") if isinstance(item, bytes) else str(item)
        for item in array.ravel().tolist()
    ]
    return np.array(decoded, object).reshape(array.shape)


def describe(value: Value) -> str:
    """Say what a value is, without its content: ``float32[2,3]``, ``sequence of 2``."""
    if value is None:
        return "an empty optional"
    if isinstance(value, list):
        return f"a sequence of {len(value)}"
    if isinstance(value, dict):
        return f"a map of {len(value)}"
    # A run's results hold few that differ.
    return sys.intern(f"{dtype_name(value.dtype)}[{','.join(map(str, value.shape))}]")


def structure_of(value: Value) -> Any:
    """Return what a value consists of, without its content, as JSON has it."""
    if isinstance(value, list):
        return [structure_of(item) for item in value]
    if isinstance(value, dict):
        return {str(key): structure_of(item) for key, item in value.items()}
    return describe(value)


def total_bytes(values: Iterable[Value]) -> int:
    """Return the bytes of the tensors among values, not of what sequences and maps hold."""
    return sum(value.nbytes for value in values if isinstance(value, np.ndarray))
