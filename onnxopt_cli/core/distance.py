"""How far apart two arrays of one dtype are, element by element, for every dtype of ONNX.

All functions take flat arrays of equal length and dtype and are exact where a float64 can be: the
floats of up to 64 bits are compared as float64, integers as the unsigned difference.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum, auto
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from onnxopt_cli.core.tolerance import Budget, Relative, Ulps
from onnxopt_cli.core.values import Array, dtype_name, is_string


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
    result = np.empty(len(decoded), dtype=object)
    result[:] = decoded
    return result.reshape(array.shape)


def absolute_distance(expected: Array, actual: Array) -> Array:
    """Return ``|actual - expected|`` as float64.

    NaN meets NaN and an infinity meets itself at distance 0; anything else that is not finite on
    one side is at distance inf; unequal strings and booleans are at distance 1.
    """
    kind = kind_of(expected.dtype)
    if kind is NumberKind.INTEGER:
        return _integer_distance(expected, actual)
    if kind in (NumberKind.STRING, NumberKind.BOOLEAN):
        return np.where(expected != actual, 1.0, 0.0)
    if kind is NumberKind.COMPLEX:
        real = absolute_distance(expected.real, actual.real)
        return np.hypot(real, absolute_distance(expected.imag, actual.imag))
    expected, actual = expected.astype(np.float64), actual.astype(np.float64)
    with np.errstate(all="ignore"):
        distance = np.abs(actual - expected)
    alike = (expected == actual) | (np.isnan(expected) & np.isnan(actual))
    distance[alike] = 0.0
    # NaN is left where one side is NaN, or both are infinities of unlike sign: inf - -inf is inf.
    distance[np.isnan(distance)] = np.inf
    return distance


def allowed_distance(
    tolerance: Relative | Ulps | None, size: Array, steps: Array | None, distance: Array
) -> Array:
    """Return the largest distance that a tolerance allows each element.

    Args:
        tolerance: the tolerance; None if values must be equal.
        size: magnitudes of the expected elements.
        steps: distances in ulp; None for what is no float.
        distance: absolute distances; which are allowed or not as a whole where ulp are counted.
    """
    match tolerance:
        case Relative(rtol=rtol, atol=atol):
            with np.errstate(all="ignore"):
                return np.where(np.isfinite(size), atol + rtol * size, 0.0)
        case Ulps(ulp=ulp):
            near = np.isfinite(distance) & (True if steps is None else steps <= ulp)
            return np.where(near, np.inf, 0.0)
        case None:
            return np.zeros_like(size)


def share_of_limit(distance: Array, limit: Array) -> Array:
    """Return distances as shares of what is allowed: an infinite limit accepts everything."""
    with np.errstate(all="ignore"):
        share = np.where(distance <= 0, 0.0, distance / limit)
    share[np.isinf(limit)] = 0.0
    return share


def nearest_branch(expected: Array, actual: Array, budget: Budget) -> tuple[Array, Budget]:
    """Return what to expect of each element: of all right results the one that it comes nearest.

    Nearer is measured in shares of the limits.
    """
    limit, other = budget.limit, budget.otherwise
    while other is not None:
        nearer = _shares(other.expected, actual, other.limit) < _shares(expected, actual, limit)
        expected = np.where(nearer, other.expected, expected)
        limit = np.where(nearer, other.limit, limit)
        other = other.otherwise
    return expected, replace(budget, limit=limit, otherwise=None)


def _shares(expected: Array, actual: Array, limit: Array) -> Array:
    distance = absolute_distance(expected.reshape(-1), actual.reshape(-1)).reshape(expected.shape)
    with np.errstate(all="ignore"):
        return np.where(distance <= 0, 0.0, distance / limit)


def magnitude(expected: Array) -> Array:
    """Return ``|expected|`` as float64, 0 for what has no magnitude."""
    kind = kind_of(expected.dtype)
    if kind in (NumberKind.STRING, NumberKind.BOOLEAN):
        return np.zeros(expected.shape)
    wide = np.complex128 if kind is NumberKind.COMPLEX else np.float64
    return np.abs(expected.astype(wide))


def differs_in_sign_of_zero(expected: Array, actual: Array) -> Array:
    """Tell where one side is 0.0 and the other -0.0."""
    expected, actual = expected.astype(np.float64), actual.astype(np.float64)
    return (expected == 0) & (actual == 0) & (np.signbit(expected) != np.signbit(actual))


def ulp_distance(expected: Array, actual: Array) -> Array:
    """Return the number of steps from one value of a float dtype to the other, as uint64.

    The two zeros are one value. Where either side is not finite the result means nothing.
    """
    ranks = [_rank(side) for side in (expected, actual)]
    return np.maximum(*ranks) - np.minimum(*ranks)


def _integer_distance(expected: Array, actual: Array) -> Array:
    wide = np.uint64 if expected.dtype == np.uint64 else np.int64
    expected, actual = expected.astype(wide), actual.astype(wide)
    low, high = np.minimum(expected, actual), np.maximum(expected, actual)
    # The difference of two int64 does not fit int64, but its bits are right as uint64.
    return (high.view(np.uint64) - low.view(np.uint64)).astype(np.float64)


def _rank(array: Array) -> Array:
    """Number the values of a float dtype in their order, as uint64."""
    if array.dtype.itemsize == 1:
        return _small_ranks(array.dtype)[array.view(np.uint8)]
    bits = array.view(f"u{array.dtype.itemsize}").astype(np.uint64)
    sign = np.uint64(1 << (8 * array.dtype.itemsize - 1))
    # Sign and magnitude: negative values count down from the zero, positive ones up.
    return np.where(bits & sign, sign - (bits & (sign - np.uint64(1))), sign + bits)


@cache
def _small_ranks(dtype: np.dtype[Any]) -> Array:
    """Ranks of all values of a float dtype of at most 8 bits, by their bits."""
    bits = ml_dtypes.finfo(dtype).bits  # type: ignore[no-untyped-call]
    codes = np.arange(1 << bits, dtype=np.uint8)
    values = codes.view(dtype).astype(np.float64)
    _, ranks = np.unique(values, return_inverse=True)
    return ranks.astype(np.uint64)
