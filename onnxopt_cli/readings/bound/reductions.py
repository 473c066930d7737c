"""How rounding errors pass through functions that add up or rank elements of tensors.

For n elements x with error bounds e, and n products of x and y with error bounds e and f:

==========  ====================================================================================
function    error of the result
==========  ====================================================================================
sum         sum(e), and g(n - 1) unit roundoffs of sum(abs(x) + e), in any order and any blocking
matmul      sum(abs(x) f + e abs(y) + e f), and g(n) unit roundoffs of
            sum((abs(x) + e)(abs(y) + f))
max, min    the largest e
percentile  what lies between the percentiles of x - e and x + e, of a rank that may be off by two
            roundings; and four unit roundoffs of the interpolation
==========  ====================================================================================

g(n) is n, which no order exceeds (Higham 2002, section 4.2), or 6 sqrt(n) where that is less. The
roundings of many terms have no common sign, so they add up like sqrt(n) (Higham and Mary 2019);
with n, a norm of 10^6 elements might be off by an eighth, and nothing could be judged by it.

A rank is exact where percent / 100 and the rank itself need no more digits than the type has. Where
an exact rank is whole, or the neighbours are equal, nothing is interpolated and nothing rounded.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from onnxopt_cli.formula.percentile import interpolated, percentile
from onnxopt_cli.readings.bound.precision import Precision
from onnxopt_cli.readings.bound.propagation import Approximate

_INTERPOLATION = 4
# So many times sqrt(n) roundings of n terms are exceeded with a probability of about 10^-8.
_DEVIATIONS = 6


class Reduced(NamedTuple):
    """Values in the wide type, the bound on their error, and whether they may cross zero."""

    value: Any
    error: Any
    may_cross: Any


def summed(a: Approximate, precision: Precision) -> Reduced:
    """Add all elements, in any order."""
    value = np.sum(a.value)
    errors = np.broadcast_to(a.error, np.shape(a.value))
    finite = np.isfinite(a.value)
    if np.any(np.isnan(a.value) & (errors == 0)):
        return Reduced(value, np.float64(0.0), np.False_)
    reach = np.sum(a.magnitude + errors, where=finite)
    if np.any(~finite):
        settled = np.all(errors[~finite] == 0) and reach <= precision.largest
        return Reduced(value, np.float64(0.0 if settled else np.inf), np.False_)
    error = np.sum(errors) + _growth(errors.size - 1, precision) * reach
    if np.isnan(error) or reach > precision.largest:
        return Reduced(value, np.float64(np.inf), np.True_)
    one_sign = np.all(a.value >= 0) or np.all(a.value <= 0)
    crosses = (error > 0) & (error >= np.abs(value)) & (~one_sign | np.any(a.may_cross))
    return Reduced(value, np.float64(error), crosses)


def _growth(roundings: int, precision: Precision) -> float:
    """Return the relative error that so many roundings one after another add up to."""
    count = min(max(roundings, 0), _DEVIATIONS * max(roundings, 0) ** 0.5)
    growth = count * precision.unit_roundoff
    return growth / (1 - growth) if growth < 1 else np.inf


def extreme(a: Approximate, largest: bool) -> Reduced:
    """Return the largest or the smallest of all elements, which rounds nothing; NaN if one is."""
    value = np.max(a.value) if largest else np.min(a.value)
    errors = np.broadcast_to(a.error, np.shape(a.value))
    if np.isnan(value):
        settled = np.any(np.isnan(a.value) & (errors == 0))
        return Reduced(value, np.float64(0.0 if settled else np.inf), np.False_)
    return Reduced(value, np.float64(np.max(errors)), np.any(a.may_cross))


def multiplied(a: Approximate, b: Approximate, precision: Precision) -> Reduced:
    """Multiply matrices or vectors as numpy.matmul does, adding up in any order.

    Where a result is not finite, anything may be.
    """
    value = np.matmul(a.value, b.value)
    errors_a, errors_b = (np.broadcast_to(it.error, np.shape(it.value)) for it in (a, b))
    inherited = np.matmul(a.magnitude, errors_b) + np.matmul(errors_a, b.magnitude + errors_b)
    reach = np.matmul(a.magnitude + errors_a, b.magnitude + errors_b)
    error = inherited + _growth(np.shape(a.value)[-1], precision) * reach
    # Each product may be flushed.
    error = error + np.where(reach > 0, np.shape(a.value)[-1] * precision.smallest_normal, 0.0)
    lost = ~np.isfinite(value) | np.isnan(error) | (reach > precision.largest)
    error = np.where(lost, np.inf, error)
    crosses = (error > 0) & (error >= np.abs(np.float64(value)))
    return Reduced(value, error, crosses)


def ranked(
    a: Approximate, errors: Any, percent: Approximate | Any, precision: Precision
) -> Reduced:
    """Return a percentile of all elements.

    Args:
        a: the elements.
        errors: of the elements, less than those of ``a`` where more is known of them.
        percent: what is asked for.
        precision: in which it is computed.
    """
    value = percentile(a.value, percent.value)
    values = np.ravel(a.value)
    errors = np.ravel(np.broadcast_to(errors, np.shape(a.value)))
    if values.size == 0 or np.any(np.isnan(values) & (errors == 0)):
        return Reduced(value, np.float64(0.0), np.False_)
    if np.isnan(value):
        return Reduced(value, np.float64(np.inf), np.True_)
    last = values.size - 1
    rank = last * percent.value / 100
    doubt = _rank_error(rank, percent, precision) + last * percent.error / 100
    low = interpolated(np.sort(values - errors), max(rank - doubt, 0))
    high = interpolated(np.sort(values + errors), min(rank + doubt, last))
    error = max(_distance(value, low), _distance(high, value))
    whole = doubt == 0 and rank == np.floor(rank)
    ordered = np.sort(values)
    alike = ordered[int(np.floor(rank))] == ordered[int(np.ceil(rank))]
    if not whole and (low != high or not alike):
        largest = max(abs(low), abs(high), abs(high - low))
        error += _INTERPOLATION * precision.unit_roundoff * largest
    error = np.float64(np.inf if np.isnan(error) else error)
    return Reduced(value, error, error >= np.abs(value) and np.any(a.may_cross))


def _rank_error(rank: Any, percent: Approximate, precision: Precision) -> float:
    """Return how far a computed rank may be off: (percent / 100) * (n - 1) rounds twice."""
    dtype = precision.dtype or np.dtype(np.float32)
    if all(dtype.type(number) == number for number in (percent.value / 100, rank)):
        return 0.0
    return float(2 * precision.unit_roundoff * rank)


def _distance(a: Any, b: Any) -> Any:
    return np.float64(0.0) if a == b else np.abs(np.float64(a - b))
