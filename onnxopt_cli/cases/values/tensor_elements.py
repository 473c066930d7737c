"""Single values of a YAML file as elements of an array, each checked against the element type."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from onnxopt_cli.cases.yaml.syntax import unexpected
from onnxopt_cli.core.values import STRING, Array, dtype_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from onnxopt_cli.cases.yaml.scalars import Scalar
    from onnxopt_cli.cases.yaml.syntax import Node

# Neither has type information.
_finfo: Any = ml_dtypes.finfo
_iinfo: Any = ml_dtypes.iinfo

_COMPLEX = re.compile(r"[-+0-9.eEjJinfaINFA]+")


def element_array(nodes: Sequence[Node], dtype: np.dtype[Any]) -> Array:
    """Return the values of nodes as a one-dimensional array.

    A decimal was read as the nearest double; it is rounded to the element type from there.

    Raises:
        FormatError: at the first value that the element type cannot hold.
    """
    name = dtype_name(dtype)
    if name == STRING:
        return np.array(_checked(nodes, lambda value: isinstance(value, str), "text"), dtype)
    if name == "bool":
        expected = "true or false"
        return np.array(_checked(nodes, lambda value: isinstance(value, bool), expected), dtype)
    if "int" in name:
        return _integers(nodes, dtype)
    if name.startswith("complex"):
        return _complex_numbers(nodes, dtype)
    return _floats(nodes, dtype)


def element_kind(value: Scalar) -> str:
    """Return the name of the element type that a bare value of a file has by itself."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int64"
    return "float32" if isinstance(value, float) else STRING


def integer_range(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the least and the largest value of an integer type."""
    info = np.iinfo(dtype) if dtype.kind in "iu" else _iinfo(dtype)
    return int(info.min), int(info.max)


def _unfit(wide: Array, narrow: Array) -> Array:
    """Tell which doubles an element type could not hold, given what they became in it.

    Rounding is no failure; turning infinite, finite, zero or NaN is, and so is saturating.
    """
    info = _finfo(narrow.dtype)
    back = narrow.astype(np.float64)
    saturated = (back == float(info.max)) & (wide > back) & ~_has_infinity(narrow.dtype)
    saturated |= (back == float(info.min)) & (wide < back) & ~_has_infinity(narrow.dtype)
    lost: Array = (
        saturated
        | (np.isfinite(wide) != np.isfinite(back))
        | (np.isnan(wide) != np.isnan(back))
        | ((wide == 0) != (back == 0))
    )
    return lost


def _has_infinity(dtype: np.dtype[Any]) -> bool:
    with np.errstate(all="ignore"):
        return bool(np.isinf(np.array(np.inf).astype(dtype).astype(np.float64)))


def _checked(nodes: Sequence[Node], fits: Callable[[Scalar], bool], expected: str) -> list[Any]:
    values = [node.scalar for node in nodes]
    if not all(map(fits, values)):
        wrong = next(node for node in nodes if not fits(node.scalar))
        raise unexpected(wrong, expected + _hint(wrong.scalar))
    return values


def _hint(value: Scalar) -> str:
    if isinstance(value, str) and value.lower().lstrip("+-") in ("nan", "inf", "infinity"):
        return " (.nan, .inf and -.inf are numbers)"
    return ""


def _integers(nodes: Sequence[Node], dtype: np.dtype[Any]) -> Array:
    low, high = integer_range(dtype)

    def fits(value: Scalar) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

    values = _checked(nodes, fits, f"an integer from {low} to {high} ({dtype_name(dtype)})")
    wide = dtype if dtype.kind in "iu" else np.dtype(np.int64)
    return np.array(values, wide).astype(dtype)


def _is_number(value: Scalar) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _floats(nodes: Sequence[Node], dtype: np.dtype[Any]) -> Array:
    values = _checked(nodes, _is_number, f"a number ({dtype_name(dtype)})")
    wide = np.array(values, np.float64)
    with np.errstate(all="ignore"):
        narrow = wide.astype(dtype)
    lost = _unfit(wide, narrow)
    if lost.any():
        raise unexpected(nodes[int(lost.argmax())], _range(dtype))
    return narrow


def _range(dtype: np.dtype[Any]) -> str:
    info = _finfo(dtype)
    smallest, largest = float(info.smallest_subnormal), float(info.max)
    return (
        f"a number that {dtype_name(dtype)} can hold (magnitudes {smallest:.4g} to {largest:.4g})"
    )


def _complex_numbers(nodes: Sequence[Node], dtype: np.dtype[Any]) -> Array:
    values = [_complex_number(node) for node in nodes]
    wide = np.array(values, np.complex128)
    with np.errstate(all="ignore"):
        narrow = wide.astype(dtype)
    lost = _unfit(wide.real, narrow.real) | _unfit(wide.imag, narrow.imag)
    if lost.any():
        raise unexpected(nodes[int(lost.argmax())], _range(narrow.real.dtype))
    return narrow


def _complex_number(node: Node) -> complex:
    value = node.scalar
    if isinstance(value, str) and _COMPLEX.fullmatch(value):
        try:
            return complex(value)
        except ValueError:
            pass
    elif _is_number(value):
        return complex(value)  # type: ignore[arg-type]
    raise unexpected(node, 'a complex number such as "1+2j"')
