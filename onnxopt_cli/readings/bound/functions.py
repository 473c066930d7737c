"""The bound reading of comparisons, choices and functions of whole tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from onnxopt_cli.formula.percentile import percentile
from onnxopt_cli.readings.bound.bounded import (
    Bounded,
    as_bounded,
    either,
    joining,
    with_both,
    within_range,
)
from onnxopt_cli.readings.bound.precision import Precision, coarsest
from onnxopt_cli.readings.bound.reductions import Reduced, multiplied, ranked, summed


def compare(ufunc: np.ufunc, a: Bounded, b: Bounded) -> Bounded:
    """Compare; the error is positive where the operands are closer than theirs."""
    a, b = either(a), either(b)
    value = ufunc(a.value, b.value)
    reach = a.doubt + b.doubt
    undecided = reach > 0
    if undecided.any():
        certain = _is_nan(a) | _is_nan(b)
        undecided = undecided & ~certain & ~(np.abs(np.float64(a.value - b.value)) > reach)
    return Bounded(value, np.float64(undecided))


def matrix_product(a: Bounded, b: Bounded) -> Bounded:
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


#: Functions that are no ufuncs.
FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    np.where: _choose,
    np.sum: _sum,
    percentile: _percentile,
}
