"""The vocabulary of formulas: a row for each NumPy function that a formula may use.

A row defines two things: the ONNX operator to which the function is lowered, and how the function
propagates rounding errors. There are few kinds of rows, so most new functions need only one line at
the end of this file.

For an operation with the result v on the values a and b, whose error bounds are e_a and e_b:

===================  ===========================================================  =========
operation            error inherited from the operands                            roundings
===================  ===========================================================  =========
a + b, a - b         e_a + e_b                                                    1
a * b                abs(a) e_b + abs(b) e_a + e_a e_b                            1
a / b                (e_a + abs(v) e_b) / (abs(b) - e_b); infinite if e_b >= |b|  2
sqrt(a)              sqrt(a) - sqrt(a - e_a)                                      4
a ** b               abs(v) ((1 - e_a/abs(a)) ** -abs(b) exp(e_b abs(log a)) - 1) 4
exp(a)               abs(v) (exp(e_a) - 1)                                        4
log(a)               -log(1 - e_a / abs(a)); infinite if e_a >= abs(a)            4
tanh(a)              e_a, at most 2                                               4
sign(a)              distance to sign(a - e_a) and sign(a + e_a)                  0
floor(a), ceil(a)    distance to the results for a - e_a and a + e_a              0
-a, abs(a)           e_a                                                          0
maximum, minimum     distance to the values at a - e_a, b - e_b and a + e_a,      0
                     b + e_b
===================  ===========================================================  =========

Roundings are counted in unit roundoffs of abs(v). An operation has several roundings if its common
implementations are not correctly rounded. A quotient may be a product with a reciprocal. A root may
be ``a * rsqrt(a)`` with a Newton step, which rounds four times. Math libraries do not guarantee
that powers have errors of less than four roundings.

A power with an integer exponent n may be computed by repeated squaring, as by ``powi`` of LLVM
(compiler-rt, lib/builtins/powisf2.c). Rust's ``f32::powi`` uses this function, and burn's Adam uses
``f32::powi``. Each squaring doubles the relative error and adds a rounding, so the error is at most
n - 1 unit roundoffs to first order. If n is large, this bound would accept almost any result.
Therefore the vocabulary itself computes powers with integer exponents by repeated squaring in the
machine type. If the error of this result exceeds four roundings, the bound is this error. Other
sequences of multiplications are not covered.

For n elements x with error bounds e, and for n products of elements x and y with the error bounds e
and f:

==========  ====================================================================================
function    error of the result
==========  ====================================================================================
sum         sum(e), and g(n - 1) unit roundoffs of sum(abs(x) + e), in any order and any blocking
matmul      sum(abs(x) f + e abs(y) + e f), and g(n) unit roundoffs of
            sum((abs(x) + e)(abs(y) + f))
max, min    the largest e
percentile  the range between the percentiles of x - e and x + e, for a rank with an error of two
            roundings; and four unit roundoffs of the larger of the interpolated result, both
            neighbours, and the term added to the lower one
==========  ====================================================================================

g(n) is the smaller of n, which is a bound for every order of addition (Higham 2002, section 4.2),
and 6 sqrt(n). The rounding errors of many terms have practically random signs, so their sum grows
like sqrt(n) (Higham and Mary 2019). If g(n) were n, the error bound of a float32 norm of 10^6
elements would be an eighth of the norm and would accept almost any mistake. Terms that are exactly
zero are not counted, because adding zero causes no rounding error.

A rank is exact if both percent / 100 and the rank itself are representable in the type. If the rank
is an exact integer, or if both neighbours are equal, the percentile is an element and has no
rounding error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache, cached_property, partial, reduce
from operator import or_
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from onnxopt_cli.operators.percentile import (
    interpolated,
    neighbours,
    percentile,
)

_INTERPOLATION_ROUNDINGS = 4
_POWER_ROUNDINGS = 4
# The sum of n random rounding errors exceeds _STANDARD_DEVIATIONS * sqrt(n) unit roundoffs with a
# probability of about 10^-8.
_STANDARD_DEVIATIONS = 6


class Level(IntEnum):
    """Levels of operands. An operation is performed at the highest level of its operands."""

    NUMBER = 0  # attributes and literals, which are exact and take the type of other operands
    SCALAR = 1  # computed only from R and T, and shared by all tensors
    TENSOR = 2


@dataclass(frozen=True, slots=True)
class Precision:
    """The type in which an implementation computes an operand, with its rounding properties.

    Attributes:
        level: level of the operand.
        unit_roundoff: largest relative error of rounding to nearest.
        smallest_normal: smallest normal number; smaller results may be flushed to zero.
        largest: largest finite number; larger results are infinite.
        dtype: the type; None for numbers that take the type of another operand.
    """

    level: Level
    unit_roundoff: float
    smallest_normal: float
    largest: float
    dtype: np.dtype[Any] | None


#: The results that ONNX defines for reductions of an empty tensor. NumPy's functions may fail for
#: an empty tensor.
OF_NOTHING: Mapping[Callable[..., Any], float] = {
    np.max: -math.inf,
    np.min: math.inf,
    np.sum: 0.0,
    np.mean: math.nan,
}

#: The precision of attributes and literals, which are converted to the type of the operands with
#: which they are combined. If an expression contains only attributes, its error is computed for
#: float32. When the expression is combined with an operand of a known type, the error is scaled.
UNTYPED = Precision(Level.NUMBER, 2.0**-24, 0.0, math.inf, None)
#: The precision of an expression that contains only attributes and an undecided choice. Its error
#: includes the distance between the two branches, so it must not be scaled to another type. The
#: unit roundoff is slightly larger than that of UNTYPED, so that CHOSEN is the coarser of the two
#: precisions.
CHOSEN = replace(UNTYPED, unit_roundoff=math.nextafter(2.0**-24, 1.0))


@cache
def precision_of(dtype: np.dtype[Any], level: Level = Level.TENSOR) -> Precision:
    """Return the precision of a NumPy float type; equal arguments yield the same object."""
    limits = np.finfo(dtype)
    return Precision(
        level, float(limits.eps) / 2, float(limits.smallest_normal), float(limits.max), dtype
    )


@dataclass(frozen=True, eq=False)
class Approximate:
    """Values in the wide type with error bounds.

    Attributes:
        value: the computed value; booleans for the result of a comparison.
        error: a bound on ``abs(computed - value)`` for the values computed by implementations;
            float64. Its shape broadcasts to the shape of ``value``. If the value is the result of a
            comparison, the error is positive where rounding can change the result.
        may_cross: where rounding may change the sign of the value. An error as large as the value
            need not change the sign, because flushing to zero keeps the sign.
    """

    value: Any
    error: Any
    may_cross: Any = False

    @cached_property
    def magnitude(self) -> Any:
        """Absolute value in float64."""
        return np.abs(np.float64(self.value))


@dataclass(frozen=True, slots=True)
class _Primitive:
    """A function that is lowered to one node.

    Attributes:
        node: the ONNX operator.
    """

    node: str


@dataclass(frozen=True, slots=True)
class Elementwise(_Primitive):
    """A function of numbers that is applied element by element.

    Attributes:
        inherited: takes the magnitude of the result and the operands, and returns the error that
            results from the errors of the operands; NaN or Inf if this error has no finite bound.
        roundings: the error of the operation itself, in unit roundoffs of the result.
        crosses: takes the magnitude of the result, its total error and the operands, and returns a
            mask of the elements whose sign may change; by default, no element.
        exact: takes the operands and returns a mask of the elements without a rounding error; None
            if no such operands are known.
        rough: takes the result, the precision and the operands, and returns the error of a less
            accurate algorithm for the operation; None if no such algorithm is accepted.
        exponents: the exponents of the operands, if the result is a product of their powers.
        is_sum: whether the result is a sum or difference of the operands.
    """

    inherited: Callable[..., Any]
    roundings: int
    crosses: Callable[..., Any] = lambda *_: False
    exact: Callable[..., Any] | None = None
    rough: Callable[..., Any] | None = None
    exponents: tuple[int, ...] = ()
    is_sum: bool = False


class Comparison(_Primitive):
    """A comparison, which is undecided where operands differ by less than their errors."""


class Logical(_Primitive):
    """A function of truth values; undecided where the result depends on undecided operands."""


class Choice(_Primitive):
    """``numpy.where``. Where the condition is undecided, both branches are accepted."""


class MatrixProduct(_Primitive):
    """``numpy.matmul`` of matrices and vectors."""


@dataclass(frozen=True, slots=True)
class Reduction(_Primitive):
    """A function of all elements of a tensor.

    Attributes:
        reduce: takes the elements and the precision, and returns the result with its error.
        mean: whether the result is divided by the number of elements.
        is_extreme: whether the result is one of the elements.
    """

    reduce: Callable[[Approximate, Precision], Approximate]
    mean: bool = False
    is_extreme: bool = False


class Percentile:
    """:func:`~onnxopt_cli.operators.percentile.percentile`, which is lowered to many nodes."""


@dataclass(frozen=True, slots=True)
class Shorthand:
    """A function that is defined in terms of other functions.

    Attributes:
        written: the definition.
    """

    written: Callable[..., Any]


Row = Elementwise | Comparison | Logical | Choice | Reduction | MatrixProduct | Percentile


class Joining(NDArrayOperatorsMixin):
    """Base class of operands that NumPy's dispatch passes to the functions of a formula.

    The vocabulary must have a row for every NumPy function that a formula calls with an operand of
    this class. A call raises an error if there is no such row, or if the call has arguments other
    than operands, such as ``axis``.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        # Methods are not supported, because a function exists for each of them.
        raise AttributeError(f"an operand has no {name}; a formula calls functions: np.{name}(...)")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        return self._called(ufunc, method, options, inputs)

    def __array_function__(
        self, function: Callable[..., Any], _: Any, inputs: Sequence[Any], options: dict[str, Any]
    ) -> Any:
        return self._called(function, "__call__", options, inputs)

    def _called(self, function: Any, method: str, options: Any, inputs: Sequence[Any]) -> Any:
        if method == "__call__" and not options and function in VOCABULARY:
            row = VOCABULARY[function]
            if isinstance(row, Shorthand):
                return row.written(*inputs)
            return self.applied(function, row, inputs)
        name = function.__name__ if method == "__call__" else f"{function.__name__}.{method}"
        way = f" with {', '.join(options)}" if options else ""
        # Tensors may have rank 0, for which matmul is not defined.
        functions = {supported.__name__ for supported in VOCABULARY} - {"matmul"}
        raise NotImplementedError(
            f"a formula cannot use numpy.{name}{way}; it can use, without further arguments, "
            f"{', '.join(sorted(functions))}"
        )

    def applied(self, function: Callable[..., Any], row: Row, inputs: Sequence[Any]) -> Any:
        """Return the result of a function; at least one of ``inputs`` is of this class."""
        raise NotImplementedError


def _root_error(magnitude: Any, a: Approximate) -> Any:
    # Within the error e_a of the operand a, the root changes most from a to a - e_a. If a - e_a is
    # not positive, consider both directions.
    below = a.error / (magnitude + np.sqrt(a.magnitude - a.error))
    if np.any(a.error >= a.magnitude):
        above = np.sqrt(a.magnitude + a.error) - magnitude
        below = np.where(a.error < a.magnitude, below, np.maximum(magnitude, above))
        # The root of a negative number is NaN.
        below = np.where(a.may_cross, np.inf, below)
    return below


def _power_error(magnitude: Any, a: Approximate, b: Approximate) -> Any:
    # Bounds on the errors of log(a) and of the logarithm of the power.
    log_base = -np.log1p(-a.error / np.where(a.error == 0, 1.0, a.magnitude))
    log_power = b.magnitude * log_base
    if np.any(b.error > 0):
        slope = np.where(a.value > 0, np.abs(np.log(a.magnitude)) + log_base, np.inf)
        log_power = log_power + np.where(b.error == 0, 0.0, b.error * slope)
    return magnitude * np.expm1(log_power)


def _is_zero_or_one(a: Approximate) -> Any:
    return (a.error == 0) & ((a.value == 0) | (a.value == 1))


def _is_exact_power(a: Approximate, b: Approximate) -> Any:
    """Return a mask of exact powers, which have the bases 0, 1, -1 or the exponents 0, 1."""
    minus_one = (a.error == 0) & (b.error == 0) & (a.value == -1)
    return _is_zero_or_one(a) | _is_zero_or_one(b) | minus_one


def power_by_squaring(base: Any, exponent: Any, *, highest_bit_first: bool = False) -> Any:
    """Return a power with an integer exponent by repeated squaring in the type of the base.

    Args:
        base: the bases.
        exponent: the exponents, int64.
        highest_bit_first: whether the highest bit of the exponent is processed first. LLVM's
            ``powi`` begins with the lowest bit.
    """
    count = np.abs(exponent)
    bits = range(int(np.max(count, initial=0)).bit_length())
    result = np.ones_like(base)
    if highest_bit_first:
        for bit in reversed(bits):
            result = result * result
            result = np.where(count >> bit & 1, result * base, result)
    else:
        square = base
        for bit in bits:
            result = np.where(count >> bit & 1, result * square, result)
            square = square * square
    return np.where(exponent < 0, 1 / result, result)


def _squaring_error(value: Any, precision: Precision, a: Approximate, b: Approximate) -> Any:
    """Return the error of powers by repeated squaring; zero if four roundings suffice.

    The error is rounded up to a whole number of unit roundoffs, so that it does not depend on the
    wide type.
    """
    exponent = np.asarray(b.value)
    squared = (exponent == np.floor(exponent)) & (np.abs(exponent) > _POWER_ROUNDINGS + 1)
    squared = squared & (np.abs(exponent) < 2.0**63) & np.isfinite(value) & (value != 0)
    if not np.any(squared):
        return np.float64(0.0)
    count = np.where(squared, exponent, 0).astype(np.int64)
    base = np.asarray(a.value).astype(precision.dtype or np.float32)
    exact = np.power(base.astype(np.asarray(a.value).dtype), count.astype(exponent.dtype))
    roundings = [
        np.ceil(np.abs(np.float64(power / exact - 1)) / precision.unit_roundoff)
        for power in (
            power_by_squaring(base, count),
            power_by_squaring(base, count, highest_bit_first=True),
        )
    ]
    error = np.maximum(*roundings) * precision.unit_roundoff * np.abs(np.float64(value))
    return np.where(squared & ~np.isnan(error), error, 0.0)


def _logarithm_error(_: Any, a: Approximate) -> Any:
    share = a.error / np.where(a.error == 0, 1.0, a.magnitude)
    inside = (share < 1) & (a.value > 0)
    return np.where(
        a.error == 0, 0.0, np.where(inside, -np.log1p(-np.where(inside, share, 0)), np.inf)
    )


def _moved_error(rising: np.ufunc, *operands: Approximate) -> Any:
    """Return the largest change of a nondecreasing function if operands change by their errors."""
    value = rising(*(operand.value for operand in operands))
    below = value - rising(*(operand.value - operand.error for operand in operands))
    above = rising(*(operand.value + operand.error for operand in operands)) - value
    return np.float64(np.maximum(below, above))


def _step_error(step: np.ufunc, _: Any, a: Approximate) -> Any:
    return np.where((a.error == 0) & ~np.isfinite(a.value), 0.0, _moved_error(step, a))


def _chosen_error(choose: np.ufunc, _: Any, a: Approximate, b: Approximate) -> Any:
    # The error of a maximum or minimum is at most the larger error of the operands. If one operand
    # is never chosen, the error is smaller.
    error, largest = _moved_error(choose, a, b), np.maximum(a.error, b.error)
    return np.where(np.isnan(error), largest, np.minimum(error, largest))


def _off_zero(magnitude: Any, error: Any, *_: Any) -> Any:
    return (error > 0) & (error >= magnitude)


def _with_operands(_: Any, __: Any, *operands: Approximate) -> Any:
    return reduce(or_, (operand.may_cross for operand in operands))


def _sum_crosses(
    magnitude: Any, error: Any, a: Approximate, b: Approximate, *, sign: int = 1
) -> Any:
    """Return a mask of sums whose errors may change the sign, because the terms nearly cancel."""
    close = (error >= magnitude) & (error > 0)
    if not close.any():
        return False
    opposed = np.sign(a.value) != sign * np.sign(b.value)
    for operand in (a, b):
        opposed = opposed & ((operand.value != 0) | (operand.error != 0))
    return close & (opposed | a.may_cross | b.may_cross)


def _summed(a: Approximate, precision: Precision) -> Approximate:
    """Return the sum of all elements, with an error bound for any order of addition."""
    value = np.sum(a.value) if np.size(a.value) else np.float64(OF_NOTHING[np.sum])
    errors = np.broadcast_to(a.error, np.shape(a.value))
    finite = np.isfinite(a.value)
    if np.any(np.isnan(a.value) & (errors == 0)):
        return Approximate(value, np.float64(0.0))
    reach = np.sum(a.magnitude + errors, where=finite)
    if np.any(~finite):
        is_certain = np.all(errors[~finite] == 0) and reach <= precision.largest
        return Approximate(value, np.float64(0.0 if is_certain else np.inf))
    terms = int(np.count_nonzero(a.magnitude + errors))
    error = np.sum(errors) + _growth(terms - 1, precision) * reach
    if np.isnan(error) or reach > precision.largest:
        return Approximate(value, np.float64(np.inf), np.True_)
    one_sign = np.all(a.value >= 0) or np.all(a.value <= 0)
    crosses = (error > 0) & (error >= np.abs(value)) & (~one_sign | np.any(a.may_cross))
    return Approximate(value, np.float64(error), crosses)


def _growth(roundings: int, precision: Precision) -> float:
    """Return the bound g(n) on the relative error of n consecutive roundings."""
    count = min(max(roundings, 0), _STANDARD_DEVIATIONS * max(roundings, 0) ** 0.5)
    growth = count * precision.unit_roundoff
    return growth / (1 - growth) if growth < 1 else np.inf


def _extreme(find: Callable[[Any], Any], a: Approximate, _: Precision) -> Approximate:
    """Return the largest or smallest element, which is not rounded; NaN if an element is NaN."""
    if not np.size(a.value):
        return Approximate(OF_NOTHING[find], np.float64(0.0))
    value = find(a.value)
    errors = np.broadcast_to(a.error, np.shape(a.value))
    if np.isnan(value):
        is_certain = np.any(np.isnan(a.value) & (errors == 0))
        return Approximate(value, np.float64(0.0 if is_certain else np.inf))
    return Approximate(value, np.float64(np.max(errors)), np.any(a.may_cross))


def product_of(a: Any, b: Any) -> Any:
    """Return numpy.matmul of two operands, which may be in quadruple precision.

    With numpy-quaddtype 1.0, numpy.matmul itself is wrong for stacks of matrices and for some
    memory layouts: https://github.com/numpy/numpy-quaddtype/issues/89.
    """
    if np.result_type(a, b).kind in "biufc":
        return np.matmul(a, b)
    product = np.matmul(np.asarray(a, object), np.asarray(b, object))
    return np.asarray(product, np.result_type(a, b))


def matrix_product(a: Approximate, b: Approximate, precision: Precision) -> Approximate:
    """Return numpy.matmul of matrices or vectors, with an error bound for any order of addition.

    If a result is not finite, its error is infinite.
    """
    value = product_of(a.value, b.value)
    errors_a, errors_b = (
        np.broadcast_to(operand.error, np.shape(operand.value)) for operand in (a, b)
    )
    inherited = np.matmul(a.magnitude, errors_b) + np.matmul(errors_a, b.magnitude + errors_b)
    reach = np.matmul(a.magnitude + errors_a, b.magnitude + errors_b)
    error = inherited + _growth(np.shape(a.value)[-1], precision) * reach
    # Each product may be flushed to zero.
    error = error + np.where(reach > 0, np.shape(a.value)[-1] * precision.smallest_normal, 0.0)
    lost = ~np.isfinite(value) | np.isnan(error) | (reach > precision.largest)
    error = np.where(lost, np.inf, error)
    return Approximate(value, error, _off_zero(np.abs(np.float64(value)), error))


def ranked(a: Approximate, errors: Any, percent: Approximate, precision: Precision) -> Approximate:
    """Return a percentile of all elements.

    Args:
        a: the elements.
        errors: the errors of the elements for comparisons, which may be smaller than those of
            ``a``.
        percent: the percentile to compute.
        precision: precision of the computation.
    """
    value = percentile(a.value, percent.value)
    values = np.ravel(a.value)
    errors = np.ravel(np.broadcast_to(errors, np.shape(a.value)))
    if values.size == 0 or np.any(np.isnan(values) & (errors == 0)):
        return Approximate(value, np.float64(0.0))
    if np.isnan(value):
        return Approximate(value, np.float64(np.inf), np.True_)
    last = values.size - 1
    rank = last * percent.value / 100
    doubt = _rank_error(rank, percent, precision) + last * percent.error / 100
    least, most = max(rank - doubt, 0), min(rank + doubt, last)
    lows, highs = neighbours(values - errors, least), neighbours(values + errors, most)
    low, high = interpolated(*lows, least), interpolated(*highs, most)
    error = max(
        np.float64(0.0) if above == below else np.abs(np.float64(above - below))
        for above, below in ((value, low), (high, value))
    )
    is_exact = doubt == 0 and rank == np.floor(rank)
    first, second = neighbours(values, rank)
    equal_neighbours = rank == np.floor(rank) or first == second
    if not is_exact and (low != high or not equal_neighbours):
        # An implementation may compute a + (b - a) * fraction or b - (b - a) * (1 - fraction). Each
        # term is rounded and may be larger than the result. Therefore the largest term determines
        # the rounding error.
        added = low - lows[0], high - highs[0]
        largest = max(map(abs, (low, high, high - low, *added, *lows, *highs)))
        error += _INTERPOLATION_ROUNDINGS * precision.unit_roundoff * largest
    error = np.float64(np.inf if np.isnan(error) else error)
    return Approximate(value, error, error >= np.abs(value) and np.any(a.may_cross))


def _rank_error(rank: Any, percent: Approximate, precision: Precision) -> float:
    """Return the error bound of a rank (percent / 100) * (n - 1), which is rounded twice."""
    dtype = precision.dtype or np.dtype(np.float32)
    if all(dtype.type(number) == number for number in (percent.value / 100, rank)):
        return 0.0
    return float(2 * precision.unit_roundoff * rank)


_AND, _OR, _XOR, _NOT = map(Logical, ("And", "Or", "Xor", "Not"))

#: The rows by function. In the functions below, v is the magnitude of the result, and a and b are
#: the operands.
VOCABULARY: Mapping[Callable[..., Any], Row | Shorthand] = {
    np.add: Elementwise("Add", lambda _, a, b: a.error + b.error, 1, _sum_crosses, is_sum=True),
    np.subtract: Elementwise(
        "Sub", lambda _, a, b: a.error + b.error, 1, partial(_sum_crosses, sign=-1), is_sum=True
    ),
    np.multiply: Elementwise(
        "Mul",
        lambda _, a, b: a.magnitude * b.error + (b.magnitude + b.error) * a.error,
        1,
        _with_operands,
        exponents=(1, 1),
    ),
    np.divide: Elementwise(
        "Div",
        lambda v, a, b: np.where(
            b.magnitude > b.error, (a.error + v * b.error) / (b.magnitude - b.error), np.inf
        ),
        2,
        _with_operands,
        exponents=(1, -1),
    ),
    np.sqrt: Elementwise("Sqrt", _root_error, 4),
    # If the result underflows to zero, the error also underflows to zero.
    np.exp: Elementwise("Exp", lambda v, a: np.where(a.error == 0, 0.0, v * np.expm1(a.error)), 4),
    np.power: Elementwise(
        "Pow",
        _power_error,
        _POWER_ROUNDINGS,
        _with_operands,
        exact=_is_exact_power,
        rough=_squaring_error,
    ),
    np.negative: Elementwise("Neg", lambda _, a: a.error, 0, _with_operands, exponents=(1,)),
    np.absolute: Elementwise("Abs", lambda _, a: a.error, 0, exponents=(1,)),
    np.log: Elementwise("Log", _logarithm_error, 4, _off_zero),
    np.tanh: Elementwise("Tanh", lambda _, a: np.minimum(a.error, 2.0), 4, _with_operands),
    np.sign: Elementwise("Sign", partial(_step_error, np.sign), 0, _off_zero),
    np.floor: Elementwise("Floor", partial(_step_error, np.floor), 0, _off_zero),
    np.ceil: Elementwise("Ceil", partial(_step_error, np.ceil), 0, _off_zero),
    np.maximum: Elementwise("Max", partial(_chosen_error, np.maximum), 0, _with_operands),
    np.minimum: Elementwise("Min", partial(_chosen_error, np.minimum), 0, _with_operands),
    np.greater: Comparison("Greater"),
    np.greater_equal: Comparison("GreaterOrEqual"),
    np.less: Comparison("Less"),
    np.less_equal: Comparison("LessOrEqual"),
    np.equal: Comparison("Equal"),
    np.not_equal: Shorthand(lambda a, b: ~np.equal(a, b)),
    np.logical_and: _AND,
    np.logical_or: _OR,
    np.logical_xor: _XOR,
    np.logical_not: _NOT,
    np.bitwise_and: _AND,
    np.bitwise_or: _OR,
    np.bitwise_xor: _XOR,
    np.invert: _NOT,
    np.where: Choice("Where"),
    np.sum: Reduction("ReduceSum", _summed),
    np.mean: Reduction("ReduceMean", _summed, mean=True),
    np.max: Reduction("ReduceMax", partial(_extreme, np.max), is_extreme=True),
    np.min: Reduction("ReduceMin", partial(_extreme, np.min), is_extreme=True),
    np.matmul: MatrixProduct("MatMul"),
    percentile: Percentile(),
    np.square: Shorthand(lambda a: a * a),
    np.reciprocal: Shorthand(lambda a: 1.0 / a),
    np.clip: Shorthand(lambda a, least, most: np.minimum(np.maximum(a, least), most)),
}
