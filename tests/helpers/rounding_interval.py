"""Interval arithmetic that bounds the errors of lowered graphs independently of onnxopt's bound.

If a formula is called with intervals, its results contain the results of all evaluations that use
the same order and round each operation once. Each operation has a documented type. Its error is at
most half a unit in the last place of this type; for powers, it is at most one unit, as in C
libraries.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

WIDE_TYPE = np.longdouble
DOUBLE = np.dtype(np.float64)


class Interval(NDArrayOperatorsMixin):
    """An array of intervals, one for each element.

    The dtype is None for constants and integers, and for results that depend on nothing else.
    """

    def __init__(self, low, high, dtype=None):
        self.low, self.high, self.dtype = np.asarray(low), np.asarray(high), dtype

    @classmethod
    def exactly(cls, value, dtype=None):
        return cls(np.asarray(value).astype(WIDE_TYPE), np.asarray(value).astype(WIDE_TYPE), dtype)

    def __array_ufunc__(self, ufunc, method, *operands):
        assert method == "__call__"
        if ufunc is np.greater:
            left, right = map(as_interval, operands)
            assert np.all(left.low == left.high)
            assert np.all(right.low == right.high)
            return left.low > right.low
        dtype = common(operands)
        units = 2 if ufunc is np.power else 1
        square = ufunc is np.multiply and operands[0] is operands[1]
        bounds = [as_interval(operand).rounded_to(dtype) for operand in operands]
        low, high = _square(bounds[0]) if square else BOUNDS[ufunc](*bounds)
        return Interval(low, high, typed(operands)).rounded(dtype or DOUBLE, units)

    def __array_function__(self, function, types, args, kwargs):
        assert function is np.where
        condition, *branches = args
        dtype = common(branches)
        x, y = [as_interval(branch).rounded_to(dtype) for branch in branches]
        low, high = np.where(condition, x.low, y.low), np.where(condition, x.high, y.high)
        return Interval(low, high, typed(branches))

    def rounded_to(self, dtype):
        """Round to a type; a single number remains exact if the type can represent it."""
        with np.errstate(all="ignore"):
            held = (self.low == self.high) & (self.low.astype(dtype) == self.low)
        wider = self.rounded(dtype)
        return Interval(
            np.where(held, self.low, wider.low), np.where(held, self.high, wider.high), self.dtype
        )

    def rounded(self, dtype, half_units=1):
        numbers = np.finfo(dtype)
        # The second term allows for roundings of the bounds themselves.
        unit = WIDE_TYPE(numbers.eps) / 2 * half_units + 4 * np.finfo(WIDE_TYPE).eps
        tiny = WIDE_TYPE(numbers.smallest_subnormal)
        return Interval(
            self.low - np.abs(self.low) * unit - tiny,
            self.high + np.abs(self.high) * unit + tiny,
            self.dtype,
        )

    def holds(self, values):
        return (self.low <= values) & (values <= self.high)


def as_interval(operand):
    return operand if isinstance(operand, Interval) else Interval.exactly(operand)


def typed(operands):
    dtypes = [operand.dtype for operand in map(as_interval, operands) if operand.dtype is not None]
    return np.result_type(*dtypes) if dtypes else None


def common(operands):
    return typed(operands) or DOUBLE


def _extremes(ufunc, a, b):
    corners = [ufunc(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    return np.minimum.reduce(corners), np.maximum.reduce(corners)


def _quotient(a, b):
    low, high = _extremes(np.divide, a, b)
    through_zero = (b.low <= 0) & (b.high >= 0)
    return np.where(through_zero, -np.inf, low), np.where(through_zero, np.inf, high)


def _square(a):
    _, high = _extremes(np.multiply, a, a)
    smallest = np.minimum(np.abs(a.low), np.abs(a.high)) ** 2
    return np.where((a.low < 0) & (a.high > 0), 0, smallest), high


BOUNDS = {
    np.add: lambda a, b: (a.low + b.low, a.high + b.high),
    np.subtract: lambda a, b: (a.low - b.high, a.high - b.low),
    np.multiply: lambda a, b: _extremes(np.multiply, a, b),
    np.divide: _quotient,
    np.power: lambda a, b: _extremes(np.power, a, b),
    np.sqrt: lambda a: (np.sqrt(np.maximum(a.low, 0)), np.sqrt(a.high)),
}
