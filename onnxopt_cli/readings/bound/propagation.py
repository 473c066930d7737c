"""How rounding errors pass through operations: one table, a rule for each ufunc.

For an operation on values a, b with error bounds e_a, e_b, and its value v:

===================  ===========================================================  =========
operation            error inherited from the operands                            roundings
===================  ===========================================================  =========
a + b, a - b         e_a + e_b                                                    1
a * b                abs(a) e_b + abs(b) e_a + e_a e_b                            1
a / b                (e_a + abs(v) e_b) / (abs(b) - e_b); none if e_b >= abs(b)   2
sqrt(a)              sqrt(a) - sqrt(a - e_a)                                      4
a ** b               abs(v) ((1 - e_a/abs(a)) ** -abs(b) exp(e_b abs(log a)) - 1) 4
exp(a)               abs(v) (exp(e_a) - 1)                                        4
log(a)               -log(1 - e_a / abs(a)); none if e_a >= abs(a)                4
tanh(a)              e_a, at most 2                                               4
sign(a)              what it is at a - e_a or a + e_a, if that is another         0
floor, ceil of a     the same                                                     0
-a, abs(a)           e_a                                                          0
maximum, minimum     the larger of e_a, e_b                                       0
===================  ===========================================================  =========

Roundings are counted in unit roundoffs of abs(v): more than one where honest implementations do
not round to nearest once. A quotient may be the product with a reciprocal; a root may be
``a * rsqrt(a)`` with a Newton step, which rounds four times; library powers promise no better.
None of these is a bound for powers by repeated multiplication, whose error grows with the
exponent: at a million it is no longer an honest evaluation in the type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np


class Approximate(Protocol):
    """What the rules need to know of an operand."""

    @property
    def value(self) -> Any:
        """In the wide type."""

    @property
    def magnitude(self) -> Any:
        """Absolute value in float64."""

    @property
    def error(self) -> Any:
        """Bound on what a computed value may be off, float64."""

    @property
    def may_cross(self) -> Any:
        """Where a computed value may have the other sign."""


@dataclass(frozen=True, slots=True)
class RoundingRule:
    """How errors pass through one ufunc.

    Attributes:
        inherited: error that comes from the operands' errors, given the result's magnitude and the
            operands; NaN and Inf where no finite bound says it.
        roundings: error of the operation itself, in unit roundoffs of the result.
        crosses: where the result may have the other sign, given the result's magnitude, its whole
            error and the operands.
        exact: where the operation rounds nothing, given the operands.
        exponents: of each operand, if the result is a product of powers of them.
        is_sum: whether the result is a sum of the operands, of either sign.
    """

    inherited: Callable[..., Any]
    roundings: int
    crosses: Callable[..., Any]
    exact: Callable[..., Any] | None = None
    exponents: tuple[int, ...] = ()
    is_sum: bool = False


def _sum_error(_: Any, a: Approximate, b: Approximate) -> Any:
    return a.error + b.error


def _product_error(_: Any, a: Approximate, b: Approximate) -> Any:
    return a.magnitude * b.error + (b.magnitude + b.error) * a.error


def _quotient_error(magnitude: Any, a: Approximate, b: Approximate) -> Any:
    gap = b.magnitude - b.error
    return np.where(gap > 0, (a.error + magnitude * b.error) / gap, np.inf)


def _root_error(magnitude: Any, a: Approximate) -> Any:
    # The root is steepest below a. Where the error reaches zero, both sides are looked at.
    below = a.error / (magnitude + np.sqrt(a.magnitude - a.error))
    if np.any(a.error >= a.magnitude):
        above = np.sqrt(a.magnitude + a.error) - magnitude
        below = np.where(a.error < a.magnitude, below, np.maximum(magnitude, above))
        # A negative radicand has no root.
        below = np.where(a.may_cross, np.inf, below)
    return below


def _power_error(magnitude: Any, a: Approximate, b: Approximate) -> Any:
    spread = -np.log1p(-a.error / np.where(a.error == 0, 1.0, a.magnitude))
    exponent = b.magnitude * spread
    if np.any(b.error > 0):
        slope = np.where(a.value > 0, np.abs(np.log(a.magnitude)) + spread, np.inf)
        exponent = exponent + np.where(b.error == 0, 0.0, b.error * slope)
    return magnitude * np.expm1(exponent)


def _exponential_error(magnitude: Any, a: Approximate) -> Any:
    # Where the result underflows to zero, so does its error.
    return np.where(a.error == 0, 0.0, magnitude * np.expm1(a.error))


def _logarithm_error(_: Any, a: Approximate) -> Any:
    share = a.error / np.where(a.error == 0, 1.0, a.magnitude)
    inside = (share < 1) & (a.value > 0)
    return np.where(
        a.error == 0, 0.0, np.where(inside, -np.log1p(-np.where(inside, share, 0)), np.inf)
    )


def _bounded_slope_error(_: Any, a: Approximate) -> Any:
    return np.minimum(a.error, 2.0)


def _step_error(step: np.ufunc, _: Any, a: Approximate) -> Any:
    value = step(a.value)
    below, above = value - step(a.value - a.error), step(a.value + a.error) - value
    error = np.float64(np.maximum(below, above))
    return np.where((a.error == 0) & ~np.isfinite(a.value), 0.0, error)


def _off_zero(magnitude: Any, error: Any, *_: Any) -> Any:
    return (error > 0) & (error >= magnitude)


def _power_is_exact(a: Approximate, b: Approximate) -> Any:
    trivial_base = (a.error == 0) & ((a.value == 0) | (a.value == 1))
    return trivial_base | ((b.error == 0) & ((b.value == 0) | (b.value == 1)))


def _same_error(_: Any, a: Approximate) -> Any:
    return a.error


def _larger_error(_: Any, a: Approximate, b: Approximate) -> Any:
    return np.maximum(a.error, b.error)


def _never(*_: Any) -> Any:
    return False


def _with_operands(_: Any, __: Any, *operands: Approximate) -> Any:
    crosses: Any = False
    for operand in operands:
        crosses = crosses | operand.may_cross
    return crosses


def _sum_crosses(
    magnitude: Any, error: Any, a: Approximate, b: Approximate, *, sign: int = 1
) -> Any:
    """Tell where a sum is no larger than its error, and not because both parts are small."""
    close = (error >= magnitude) & (error > 0)
    if not close.any():
        return False
    opposed = (np.sign(a.value) != sign * np.sign(b.value)) & ~_is_zero(a) & ~_is_zero(b)
    return close & (opposed | a.may_cross | b.may_cross)


def _is_zero(operand: Approximate) -> Any:
    return (operand.value == 0) & (operand.error == 0)


#: The rule of every ufunc that formulas may use, comparisons aside.
RULES: Mapping[np.ufunc, RoundingRule] = {
    np.add: RoundingRule(_sum_error, 1, _sum_crosses, is_sum=True),
    np.subtract: RoundingRule(_sum_error, 1, partial(_sum_crosses, sign=-1), is_sum=True),
    np.multiply: RoundingRule(_product_error, 1, _with_operands, exponents=(1, 1)),
    np.divide: RoundingRule(_quotient_error, 2, _with_operands, exponents=(1, -1)),
    np.sqrt: RoundingRule(_root_error, 4, _never),
    np.exp: RoundingRule(_exponential_error, 4, _never),
    np.power: RoundingRule(_power_error, 4, _with_operands, exact=_power_is_exact),
    np.negative: RoundingRule(_same_error, 0, _with_operands, exponents=(1,)),
    np.absolute: RoundingRule(_same_error, 0, _never, exponents=(1,)),
    np.log: RoundingRule(_logarithm_error, 4, _off_zero),
    np.tanh: RoundingRule(_bounded_slope_error, 4, _with_operands),
    np.sign: RoundingRule(partial(_step_error, np.sign), 0, _off_zero),
    np.floor: RoundingRule(partial(_step_error, np.floor), 0, _off_zero),
    np.ceil: RoundingRule(partial(_step_error, np.ceil), 0, _off_zero),
    np.maximum: RoundingRule(_larger_error, 0, _with_operands),
    np.minimum: RoundingRule(_larger_error, 0, _with_operands),
}

#: Comparisons, which rounding turns over where the operands are closer than their errors.
COMPARISONS = frozenset(
    {np.greater, np.greater_equal, np.less, np.less_equal, np.equal, np.not_equal}
)
