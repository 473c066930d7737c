"""What a type's range does to error bounds: flushing, overflow, NaN and Inf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from onnxopt_cli.readings.bound.precision import Precision
from onnxopt_cli.readings.bound.propagation import Approximate, RoundingRule


class Factor(Protocol):
    """What needs to be known of a factor to multiply in another order."""

    @property
    def magnitude(self) -> Any:
        """Absolute value in float64."""

    @property
    def reach(self) -> Any:
        """Magnitude that another factor may meet, in float64: of a sum, that of its terms."""

    @property
    def span(self) -> tuple[float, float]:
        """Smallest magnitude and largest reach, zero and infinity aside, both including 1."""


def allow_for_range(value: Any, magnitude: Any, error: Any, precision: Precision) -> Any:
    """Allow for flushing of what may be subnormal, and give up on what may leave the range."""
    subnormal = magnitude - error < precision.smallest_normal
    if subnormal.any():
        # An exact zero stays one; another may be so small that its magnitude underflows here.
        lost = subnormal & ((value != 0) | (error > 0))
        error = np.where(lost, error + precision.smallest_normal, error)
    beyond = magnitude + error > precision.largest
    if beyond.any():
        error = np.where(beyond & (np.isfinite(value) | (error > 0)), np.inf, error)
    return error


def settle_not_finite(
    rule: RoundingRule, value: Any, error: Any, operands: Sequence[Approximate]
) -> Any:
    """Say which NaN and Inf every honest evaluation yields, as IEEE arithmetic on the inputs does.

    Others come from values that have left the range, or may be zero, or of either sign.
    """
    finite = np.isfinite(value)
    certain, from_nan = np.bool_(True), np.bool_(False)
    usual = np.bool_(True)
    for operand in operands:
        exact = operand.error == 0
        bounded = operand.error < np.inf
        if not rule.is_sum:
            bounded = bounded & (operand.magnitude > operand.error)
        certain = certain & (exact | bounded)
        from_nan = from_nan | (exact & np.isnan(operand.value))
        usual = usual & np.isfinite(operand.value) & (operand.value != 0)
    overflow = np.isinf(value) & usual
    settled = (from_nan & np.isnan(value)) | (certain & ~finite & ~overflow)
    error = np.where(np.isnan(error), np.where(certain, 0.0, np.inf), error)
    return np.where(finite, error, np.where(settled, 0.0, np.inf))


def allow_for_order(
    factors: Sequence[tuple[Factor, int]],
    value: Any,
    magnitude: Any,
    error: Any,
    precision: Precision,
) -> Any:
    """Allow for a product whose factors are multiplied in another order, or by terms of a sum.

    A partial product that leaves the range upwards makes the whole anything, downwards zero.
    """
    low = high = 1.0
    for factor, exponent in factors:
        least, most = factor.span
        low *= least if exponent > 0 else 1 / most
        high *= most if exponent > 0 else 1 / least
    if low >= precision.smallest_normal and high <= precision.largest:
        return error
    lows: Any = np.float64(1.0)
    highs: Any = np.float64(1.0)
    for factor, exponent in factors:
        size = factor.magnitude**exponent
        lows = lows * np.minimum(np.where(_is_usual(size), size, 1.0), 1.0)
        reach = factor.reach if exponent > 0 else size
        highs = highs * np.maximum(np.where(_is_usual(reach), reach, 1.0), 1.0)
    finite = np.isfinite(value)
    error = error + np.where(finite & (lows < precision.smallest_normal), magnitude, 0.0)
    return np.where(finite & (highs > precision.largest), np.inf, error)


def smallest(magnitude: Any) -> float:
    """Return the smallest element or 1, zero aside."""
    return float(np.min(magnitude, initial=1.0, where=_is_usual(magnitude)))


def largest(magnitude: Any) -> float:
    """Return the largest element or 1, infinity aside."""
    return float(np.max(magnitude, initial=1.0, where=_is_usual(magnitude)))


def _is_usual(magnitude: Any) -> Any:
    return (magnitude > 0) & (magnitude < np.inf)
