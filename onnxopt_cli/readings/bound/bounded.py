"""The operand of the bound reading: wide values, and how far an honest evaluation may be off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property, partial
from itertools import product
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from onnxopt_cli.core.values import Array
from onnxopt_cli.formula.percentile import percentile
from onnxopt_cli.readings.bound.number_range import (
    allow_for_order,
    allow_for_range,
    largest,
    settle_not_finite,
    smallest,
)
from onnxopt_cli.readings.bound.precision import UNTYPED, Precision, coarsest, finest
from onnxopt_cli.readings.bound.propagation import COMPARISONS, RULES, RoundingRule
from onnxopt_cli.readings.bound.reductions import Reduced, extreme, multiplied, ranked, summed
from onnxopt_cli.readings.evaluate import WIDE

_LOGICAL = frozenset(
    {
        *(np.logical_and, np.logical_or, np.logical_xor, np.logical_not),
        *(np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.invert),
    }
)
# Operations whose exact result every honest evaluation yields in a type that can hold it.
_UNROUNDED = frozenset({np.add, np.subtract, np.absolute, np.negative})


class Level(IntEnum):
    """What an operand belongs to; an operation is carried out at the highest of its operands'."""

    NUMBER = 0  # attributes and literals: exact, of whatever type they meet
    SCALAR = 1  # what comes from R and T alone, shared by all tensors
    TENSOR = 2


@dataclass(frozen=True, eq=False)
class Bounded(NDArrayOperatorsMixin):
    """A wide value with a bound on the error of an honest evaluation.

    Where the error is 0 every honest evaluation yields the value, be it NaN or Inf. Where it is
    infinite honest evaluations may yield anything.

    A choice on a comparison that rounding can turn over has two right results and nothing between
    them: the value, and ``otherwise``. What is computed from it element by element has both, too.

    Attributes:
        value: what the evaluate reading computes; booleans for the result of a comparison.
        error: bound on ``abs(computed - value)``, float64, of a shape that broadcasts to the
            value's; for the result of a comparison positive where rounding can turn it over.
        precision: the coarsest type that an honest implementation computes the value in.
        level: what the value belongs to.
        may_cross: where rounding may carry the value across zero. An error as large as the value
            alone does not say so: flushing to zero keeps the sign.
        factors: the operands whose product the value is, with their exponents, 1 or -1; empty if
            it is no product.
        terms: the operands whose sum the value is; empty if it is no sum.
        kept: the same value in the finer of the types that it was computed from, for an output of
            that type; None if they were alike.
        unrounded: tells where the value is exact though its rule allows for a rounding; None if
            the rule says all. It matters to comparisons alone.
        otherwise: what the value is where the choice falls the other way, and the same elsewhere;
            None if nothing is in doubt.
        choice: the condition of that choice.
    """

    value: Any
    error: Any
    precision: Precision = UNTYPED
    level: Level = Level.NUMBER
    may_cross: Any = False
    factors: tuple[tuple[Bounded, int], ...] = ()
    terms: tuple[Bounded, ...] = ()
    kept: Bounded | None = None
    unrounded: Callable[[], Any] | None = None
    otherwise: Bounded | None = None
    choice: Bounded | None = None

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any
    ) -> Bounded:
        if method != "__call__" or options:
            raise NotImplementedError(f"the bound reading knows numpy.{ufunc.__name__} as it is")
        operands = [as_bounded(operand) for operand in inputs]
        if ufunc is np.square:
            ufunc, operands = np.multiply, operands * 2
        if ufunc is np.reciprocal:
            ufunc, operands = np.divide, [as_bounded(1.0), *operands]
        if ufunc in _LOGICAL:
            return _logical(ufunc, *operands)
        if ufunc in COMPARISONS:
            return _compare(ufunc, *operands)
        if ufunc is np.matmul:
            return _matrix_product(*operands)
        if ufunc not in RULES:
            raise NotImplementedError(f"the bound reading has no rule for numpy.{ufunc.__name__}")
        return _operate(ufunc, RULES[ufunc], operands)

    def __array_function__(
        self,
        function: Callable[..., Any],
        _: Any,
        inputs: Sequence[Any],
        options: dict[str, Any],
    ) -> Any:
        if function not in _FUNCTIONS:
            raise NotImplementedError(
                f"the bound reading has no rule for numpy.{function.__name__}"
            )
        return _FUNCTIONS[function](*inputs, **options)

    @cached_property
    def magnitude(self) -> Any:
        """Absolute value in float64."""
        return np.abs(np.float64(self.value))

    @cached_property
    def reach(self) -> Any:
        """Magnitude of what a factor may meet: the terms of a sum one by one, or the value."""
        return sum(term.magnitude for term in self.terms) if self.terms else self.magnitude

    @cached_property
    def doubt(self) -> Any:
        """Error as a comparison sees it: none where no evaluation rounds."""
        if self.unrounded is None or not np.any(self.error):
            return self.error
        return np.where(self.unrounded(), 0.0, self.error)

    @cached_property
    def span(self) -> tuple[float, float]:
        """Smallest magnitude and largest reach of an element or 1, zero and infinity aside."""
        return smallest(self.magnitude), largest(self.reach)


def given(tensor: Array, precision: Precision, level: Level) -> Bounded:
    """Return an input as an honest implementation takes it, in a type that may be narrower."""
    value = tensor.astype(WIDE)
    error: Any = np.zeros((), np.float64)
    if precision.dtype is not None and tensor.dtype != precision.dtype:
        difference = np.abs(value - value.astype(precision.dtype).astype(WIDE))
        error = np.float64(np.where(np.isfinite(value), difference, 0.0))
    return within_range(Bounded(value, error, precision, level))


def number(value: float) -> Bounded:
    """Return an attribute, which is exact."""
    return Bounded(WIDE.type(value), np.float64(0.0))


def output(result: Any, precision: Precision) -> Bounded:
    """Return what a formula yields, or a plain number, rounded to an output's type."""
    result = as_bounded(result)
    finer = precision.unit_roundoff < result.precision.unit_roundoff
    chosen = result.kept if finer and result.kept else result
    converted = _converted(chosen, precision)
    if chosen.otherwise is None:
        return converted
    return replace(converted, otherwise=_converted(chosen.otherwise, precision))


def as_bounded(operand: Any) -> Bounded:
    """Return an operand; a plain number as it is, to be computed as in the evaluate reading."""
    return operand if isinstance(operand, Bounded) else Bounded(operand, np.float64(0.0))


def _operate(ufunc: np.ufunc, rule: RoundingRule, operands: list[Bounded]) -> Bounded:
    """Carry out an operation in the types that an honest implementation may choose.

    Tensors of unlike types may be combined in the coarser type, as one does who computes in the
    type of one of them. Yet a double output that adds to a double input must keep its digits: this
    is the value that is kept. A scalar that meets a tensor takes the tensor's type; it may have
    been computed in a coarser one, but that is no reason to compute tensors in it.
    """
    if any(operand.otherwise for operand in operands):
        return _operate_on_both(ufunc, rule, operands)
    level = max(operand.level for operand in operands)
    highest = [operand for operand in operands if operand.level == level]
    precision = coarsest(operand.precision for operand in highest)
    result = _propagate(ufunc, rule, operands, level, precision)
    kept = None
    if any(operand.precision is not precision for operand in highest):
        kept = _propagate(ufunc, rule, operands, level, finest(each.precision for each in highest))
    elif len(highest) == 1 and (finer := highest[0].kept):
        kept = _propagate(
            ufunc,
            rule,
            [finer if operand is highest[0] else operand for operand in operands],
            level,
            finer.precision,
        )
    return replace(result, kept=kept) if kept else result


def _operate_on_both(ufunc: np.ufunc, rule: RoundingRule, operands: list[Bounded]) -> Bounded:
    """Carry out an operation for both results of a choice that its operands come from.

    Of operands from several choices, anything between the results of each may be right.
    """
    first, *others = {id(each.choice): each.choice for each in operands if each.otherwise}.values()
    if others:
        return _operate(ufunc, rule, list(map(either, operands)))
    result = _operate(ufunc, rule, [replace(operand, otherwise=None) for operand in operands])
    other = _operate(ufunc, rule, [operand.otherwise or operand for operand in operands])
    return with_both(result, other, first)


def with_both(result: Bounded, other: Bounded, choice: Bounded | None) -> Bounded:
    """Return both results of a choice as one operand."""
    kept = result.kept
    if kept and other.kept:
        kept = replace(kept, otherwise=other.kept, choice=choice)
    return replace(result, kept=kept, otherwise=other, choice=choice)


def either(operand: Bounded) -> Bounded:
    """Return an operand whose error covers both results of a choice, and what is between them."""
    other = operand.otherwise
    if other is None:
        return operand
    apart = np.abs(np.float64(other.value - operand.value)) + np.maximum(operand.error, other.error)
    apart = np.where(np.isnan(apart), np.inf, apart)
    alike = (operand.value == other.value) & (operand.error == other.error)
    return replace(
        operand,
        error=np.where(alike, operand.error, apart),
        may_cross=operand.may_cross | other.may_cross | ~alike,
        factors=(),
        terms=(),
        kept=None,
        unrounded=None,
        otherwise=None,
    )


def joining(operand: Bounded, level: Level, precision: Precision) -> Bounded:
    """Return an operand as it enters an operation of a level and type."""
    if operand.precision is precision:
        return operand
    if operand.precision is UNTYPED:
        return _typed(operand, precision)
    if operand.level == level and operand.precision.unit_roundoff < precision.unit_roundoff:
        return _converted(operand, precision)
    return operand


def _typed(operand: Bounded, precision: Precision) -> Bounded:
    """Scale the error of an expression of attributes alone to the type that it meets."""
    error = operand.error * (precision.unit_roundoff / UNTYPED.unit_roundoff)
    return within_range(replace(operand, error=error, precision=precision))


def _converted(operand: Bounded, precision: Precision) -> Bounded:
    """Round an operand to a type."""
    if operand.precision is UNTYPED:
        operand = _typed(operand, precision)
    error = operand.error + _rounding(operand, precision)
    plain = replace(operand, factors=(), terms=(), kept=None, unrounded=None)
    return within_range(replace(plain, error=error, precision=precision))


def within_range(operand: Bounded) -> Bounded:
    """Allow for what the precision's range does to an operand."""
    error = allow_for_range(operand.value, operand.magnitude, operand.error, operand.precision)
    return operand if error is operand.error else replace(operand, error=error)


def _propagate(
    ufunc: np.ufunc, rule: RoundingRule, operands: list[Bounded], level: Level, precision: Precision
) -> Bounded:
    operands = [joining(operand, level, precision) for operand in operands]
    value = ufunc(*(operand.value for operand in operands))
    rounded = Bounded(value, np.float64(0.0), precision, level)
    magnitude = rounded.magnitude
    error = rule.inherited(magnitude, *operands)
    if rule.roundings:
        own = (rule.roundings * _unit_roundoff(rule, operands, precision)) * magnitude
        error = error + (own if rule.exact is None else np.where(rule.exact(*operands), 0.0, own))
    if not (magnitude + error < np.inf).all():
        error = settle_not_finite(rule, value, error, operands)
    factors = _factors(rule, operands)
    if factors:
        error = allow_for_order(factors, value, magnitude, error, precision)
    error = allow_for_range(value, magnitude, error, precision)
    return Bounded(
        value,
        error,
        precision,
        level,
        may_cross=rule.crosses(magnitude, error, *operands),
        factors=factors,
        terms=tuple(operands) if rule.is_sum else (),
        unrounded=partial(_is_unrounded, operands, rounded) if ufunc in _UNROUNDED else None,
    )


def _unit_roundoff(rule: RoundingRule, operands: list[Bounded], precision: Precision) -> float:
    """Return the relative error of one rounding.

    In a product it is the coarsest operand's: a scalar may have met another factor in its own type.
    """
    if not rule.exponents:
        return precision.unit_roundoff
    typed = [operand.precision for operand in operands if operand.precision is not UNTYPED]
    return coarsest((precision, *typed)).unit_roundoff


def _factors(rule: RoundingRule, operands: Sequence[Bounded]) -> tuple[tuple[Bounded, int], ...]:
    return tuple(
        (factor, exponent * sign)
        for operand, sign in zip(operands, rule.exponents, strict=False)
        for factor, exponent in operand.factors or ((operand, 1),)
    )


def _is_unrounded(operands: Sequence[Bounded], result: Bounded) -> Any:
    """Tell where operands are exact, and so is the result, because its type can hold it."""
    exact: Any = np.bool_(True)
    for operand in operands:
        exact = exact & (operand.doubt == 0)
    normal = (result.value == 0) | (result.magnitude >= result.precision.smallest_normal)
    return exact & normal & _is_held(result.value, result.precision)


def _rounding(operand: Bounded, precision: Precision) -> Any:
    """Return the error of rounding to a type, which what it can hold does not have.

    Infinity and NaN are among it.
    """
    error = precision.unit_roundoff * operand.magnitude
    if not (error < np.inf).all():
        error = np.where(error < np.inf, error, 0.0)
    exact = operand.error == 0
    if not exact.any():
        return error
    return np.where(exact & _is_held(operand.value, precision), 0.0, error)


def _is_held(value: Any, precision: Precision) -> Any:
    """Tell where a type can hold a value, which no type is known to be able to."""
    if precision.dtype is None:
        return np.bool_(False)
    return value == np.asarray(value).astype(precision.dtype)


def _compare(ufunc: np.ufunc, a: Bounded, b: Bounded) -> Bounded:
    """Compare; the error is positive where the operands are closer than theirs."""
    a, b = either(a), either(b)
    value = ufunc(a.value, b.value)
    reach = a.doubt + b.doubt
    undecided = reach > 0
    if undecided.any():
        certain = _is_nan(a) | _is_nan(b)
        undecided = undecided & ~certain & ~(np.abs(np.float64(a.value - b.value)) > reach)
    return Bounded(value, np.float64(undecided))


def _logical(ufunc: np.ufunc, *operands: Bounded) -> Bounded:
    """Combine results of comparisons; in doubt where those are whose turning over turns it over."""
    combine: Callable[..., Any] = ufunc
    values = [operand.value for operand in operands]
    undecided: Any = np.bool_(False)
    for turned in product((False, True), repeat=len(operands)):
        others = [
            np.where(turn & (operand.error > 0), ~np.asarray(operand.value), operand.value)
            for turn, operand in zip(turned, operands, strict=True)
        ]
        undecided = undecided | (combine(*others) != combine(*values))
    return Bounded(combine(*values), np.float64(undecided))


def _matrix_product(a: Bounded, b: Bounded) -> Bounded:
    """Multiply matrices, or a matrix and a vector, adding the products in any order."""
    a, b = either(a), either(b)
    level = max(a.level, b.level)
    precision = coarsest(each.precision for each in (a, b) if each.level == level)
    a, b = joining(a, level, precision), joining(b, level, precision)
    value, error, may_cross = multiplied(a, b, precision)
    return within_range(Bounded(value, error, precision, level, may_cross))


def _is_nan(operand: Bounded) -> Any:
    return np.isnan(operand.value) & (operand.error == 0)


def _choose(condition: Any, x: Any, y: Any) -> Bounded:
    """Apply numpy.where, both ways where rounding can turn the condition over."""
    condition, x, y = as_bounded(condition), either(as_bounded(x)), either(as_bounded(y))
    chosen = _chosen(condition.value, x, y)
    undecided = condition.error > 0
    if not undecided.any():
        return chosen
    other = _chosen(condition.value ^ undecided, x, y)
    return with_both(chosen, other, condition)


def _chosen(condition: Any, x: Bounded, y: Bounded) -> Bounded:
    kept = None
    if x.kept or y.kept:
        kept = _chosen(condition, x.kept or x, y.kept or y)
    level = max(x.level, y.level)
    precision = coarsest(each.precision for each in (x, y) if each.level == level)
    x, y = joining(x, level, precision), joining(y, level, precision)
    value = np.where(condition, x.value, y.value)
    error = np.where(condition, x.error, y.error)
    may_cross: Any = x.may_cross | y.may_cross
    if np.any(may_cross):
        may_cross = np.where(condition, x.may_cross, y.may_cross)
    factors = (x if condition else y).factors if np.ndim(condition) == 0 else ()
    return Bounded(value, error, precision, level, may_cross, factors, kept=kept)


def _sum(operand: Bounded) -> Bounded:
    result = _reduced(operand, partial(summed, either(operand)))
    return replace(result, kept=_sum(operand.kept)) if operand.kept else result


def _percentile(operand: Bounded, percent: Any) -> Bounded:
    elements = either(operand)
    result = _reduced(
        operand,
        lambda precision: ranked(elements, elements.doubt, as_bounded(percent), precision),
    )
    return replace(result, kept=_percentile(operand.kept, percent)) if operand.kept else result


def _reduced(operand: Bounded, reduce: Callable[[Precision], Reduced]) -> Bounded:
    value, error, may_cross = reduce(operand.precision)
    return within_range(Bounded(value, error, operand.precision, operand.level, may_cross))


def _extreme(operand: Bounded, *, largest: bool) -> Bounded:
    result = _reduced(operand, lambda _: extreme(either(operand), largest))
    return replace(result, kept=_extreme(operand.kept, largest=largest)) if operand.kept else result


def _mean(operand: Bounded) -> Any:
    return _sum(operand) / float(np.size(operand.value))


def _clip(operand: Any, least: Any, most: Any) -> Any:
    raised: Any = np.maximum(operand, least)
    return np.minimum(raised, most)


# Functions that are no ufuncs.
_FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    np.where: _choose,
    np.sum: _sum,
    np.mean: _mean,
    np.max: partial(_extreme, largest=True),
    np.min: partial(_extreme, largest=False),
    np.clip: _clip,
    percentile: _percentile,
}
