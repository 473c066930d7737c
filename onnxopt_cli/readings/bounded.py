"""The operand of the bound reading: wide values, and how far an honest evaluation may be off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from onnxopt_cli.core.values import Array
from onnxopt_cli.readings.evaluate import WIDE
from onnxopt_cli.readings.number_range import (
    allow_for_order,
    allow_for_range,
    largest,
    settle_not_finite,
    smallest,
)
from onnxopt_cli.readings.precision import UNTYPED, Precision, coarsest, finest
from onnxopt_cli.readings.propagation import COMPARISONS, RULES, Rule


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
    """

    value: Any
    error: Any
    precision: Precision = UNTYPED
    level: Level = Level.NUMBER
    may_cross: Any = False
    factors: tuple[tuple[Bounded, int], ...] = ()
    terms: tuple[Bounded, ...] = ()
    kept: Bounded | None = None

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any
    ) -> Bounded:
        if method != "__call__" or options:
            raise NotImplementedError(f"the bound reading knows numpy.{ufunc.__name__} as it is")
        operands = [_as_bounded(operand) for operand in inputs]
        if ufunc in COMPARISONS:
            return _compare(ufunc, *operands)
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
    return _within_range(Bounded(value, error, precision, level))


def number(value: float) -> Bounded:
    """Return an attribute, which is exact."""
    return Bounded(WIDE.type(value), np.float64(0.0))


def output(result: Any, precision: Precision) -> Bounded:
    """Return what a formula yields, or a plain number, rounded to an output's type."""
    result = _as_bounded(result)
    finer = precision.unit_roundoff < result.precision.unit_roundoff
    return _converted(result.kept if finer and result.kept else result, precision)


def _as_bounded(operand: Any) -> Bounded:
    # A plain number stays what it is, so that the value is computed as in the evaluate reading.
    return operand if isinstance(operand, Bounded) else Bounded(operand, np.float64(0.0))


def _operate(ufunc: np.ufunc, rule: Rule, operands: list[Bounded]) -> Bounded:
    """Carry out an operation in the types that an honest implementation may choose.

    Tensors of unlike types may be combined in the coarser type, as one does who computes in the
    type of one of them. Yet a double output that adds to a double input must keep its digits: this
    is the value that is kept. A scalar that meets a tensor takes the tensor's type; it may have
    been computed in a coarser one, but that is no reason to compute tensors in it.
    """
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


def _joining(operand: Bounded, level: Level, precision: Precision) -> Bounded:
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
    return _within_range(replace(operand, error=error, precision=precision))


def _converted(operand: Bounded, precision: Precision) -> Bounded:
    """Round an operand to a type."""
    if operand.precision is UNTYPED:
        operand = _typed(operand, precision)
    error = operand.error + _rounding(operand.magnitude, precision)
    return _within_range(
        replace(operand, error=error, precision=precision, factors=(), terms=(), kept=None)
    )


def _rounding(magnitude: Any, precision: Precision) -> Any:
    """Return the error of rounding a value, which an infinite one and NaN do not have."""
    rounding = precision.unit_roundoff * magnitude
    return rounding if (rounding < np.inf).all() else np.where(rounding < np.inf, rounding, 0.0)


def _within_range(operand: Bounded) -> Bounded:
    error = allow_for_range(operand.value, operand.magnitude, operand.error, operand.precision)
    return operand if error is operand.error else replace(operand, error=error)


def _propagate(
    ufunc: np.ufunc, rule: Rule, operands: list[Bounded], level: Level, precision: Precision
) -> Bounded:
    operands = [_joining(operand, level, precision) for operand in operands]
    value = ufunc(*(operand.value for operand in operands))
    result = Bounded(value, np.float64(0.0), precision, level)
    magnitude = result.magnitude
    error = rule.inherited(magnitude, *operands)
    if rule.roundings:
        own = (rule.roundings * _unit_roundoff(rule, operands, precision)) * magnitude
        error = error + (own if rule.exact is None else np.where(rule.exact(*operands), 0.0, own))
    if not (magnitude + error < np.inf).all():
        error = settle_not_finite(rule, value, error, operands)
    factors = _factors(rule, operands)
    if factors:
        error = allow_for_order(factors, value, magnitude, error, precision)
    result = _within_range(
        replace(result, error=error, factors=factors, terms=tuple(operands) if rule.is_sum else ())
    )
    crosses = rule.crosses(magnitude, result.error, *operands)
    return result if crosses is False else replace(result, may_cross=crosses)


def _unit_roundoff(rule: Rule, operands: list[Bounded], precision: Precision) -> float:
    """Return the relative error of one rounding.

    In a product it is the coarsest operand's: a scalar may have met another factor in its own type.
    """
    if not rule.exponents:
        return precision.unit_roundoff
    typed = [operand.precision for operand in operands if operand.precision is not UNTYPED]
    return coarsest((precision, *typed)).unit_roundoff


def _factors(rule: Rule, operands: Sequence[Bounded]) -> tuple[tuple[Bounded, int], ...]:
    return tuple(
        (factor, exponent * sign)
        for operand, sign in zip(operands, rule.exponents, strict=False)
        for factor, exponent in operand.factors or ((operand, 1),)
    )


def _compare(ufunc: np.ufunc, a: Bounded, b: Bounded) -> Bounded:
    value = ufunc(a.value, b.value)
    reach = a.error + b.error
    undecided = reach > 0
    if undecided.any():
        undecided = undecided & ~(np.abs(np.float64(a.value - b.value)) > reach)
    return Bounded(value, np.float64(undecided))


def _choose(condition: Any, x: Any, y: Any) -> Bounded:
    """Apply numpy.where; a choice that rounding can turn over is anywhere between both branches."""
    condition, x, y = _as_bounded(condition), _as_bounded(x), _as_bounded(y)
    level = max(x.level, y.level)
    precision = coarsest(each.precision for each in (x, y) if each.level == level)
    x, y = _joining(x, level, precision), _joining(y, level, precision)
    value = np.where(condition.value, x.value, y.value)
    error = np.where(condition.value, x.error, y.error)
    may_cross: Any = x.may_cross | y.may_cross
    if np.any(may_cross):
        may_cross = np.where(condition.value, x.may_cross, y.may_cross)
    undecided = condition.error > 0
    if undecided.any():
        apart = np.abs(np.float64(x.value - y.value)) + np.maximum(x.error, y.error)
        apart = np.where(np.isnan(apart), np.inf, apart)
        error = np.where(undecided, apart, error)
        may_cross = may_cross | undecided
    chosen = x if np.ndim(condition.value) == 0 and condition.value else y
    factors = chosen.factors if np.ndim(condition.value) == 0 else ()
    return Bounded(value, error, precision, level, may_cross, factors)


#: NumPy functions that are no ufuncs.
_FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {np.where: _choose}
