"""The operands of the error bound: wide values, and the error that an evaluation may have.

A formula's operands are :class:`Bounded` at first. Two things make pairs of them, and each pair is
dealt with in one place, when it meets an operation: a choice that rounding can turn over has two
right results (:class:`Either`), and tensors of unlike types may be combined in either type
(:class:`Mixed`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np

from onnxopt_cli.core.blocks import joined
from onnxopt_cli.core.values import Array
from onnxopt_cli.interpret.evaluate import WIDE
from onnxopt_cli.interpret.vocabulary import (
    CHOSEN,
    UNTYPED,
    Approximate,
    Choice,
    Comparison,
    Elementwise,
    Joining,
    Level,
    Logical,
    MatrixProduct,
    Percentile,
    Precision,
    Reduction,
    Row,
    matrix_product,
    precision_of,
    ranked,
)


class _Operand(Joining):
    """What joins in through NumPy's dispatch."""

    def __bool__(self) -> bool:
        """Tell what holds of attributes alone."""
        if isinstance(self, Bounded) and self.precision.level is Level.NUMBER:
            return bool(self.value)
        raise TypeError(
            "what holds may differ from element to element: write np.where instead of if"
        )

    def joined(self, blocks: Iterable[Any], size: int) -> Bounded:
        """Return one operand of flat blocks, of which this is the first, or a scalar, to reduce."""
        first: Bounded = _covered(self)
        if not np.ndim(first.value):
            return first
        parts = ((it.value, it.error, it.may_cross, it.doubtful) for it in map(_covered, blocks))
        value, error, may_cross, doubt = joined(parts, size)
        return Bounded(value, error, may_cross.any(), first.precision, doubt)

    def applied(self, function: Callable[..., Any], row: Row, inputs: Sequence[Any]) -> Any:
        """Apply a function to its operands: to both results of a choice, if there is one.

        Of operands from several choices, anything between the results of each may be right;
        likewise of what is not computed element by element.
        """
        operands = [_operand(operand) for operand in inputs]
        choices = [operand for operand in operands if isinstance(operand, Either)]
        if not choices:
            return _combined(function, row, operands)
        condition = choices[0].condition
        if not isinstance(row, Elementwise) or any(
            choice.condition is not condition for choice in choices
        ):
            return _combined(function, row, list(map(_covered, operands)))
        first, other = (
            _combined(function, row, [getattr(operand, side, operand) for operand in operands])
            for side in ("first", "other")
        )
        return Either(first, other, condition)


@dataclass(frozen=True, eq=False)
class Bounded(Approximate, _Operand):
    """A wide value with a bound on the error of an honest evaluation.

    Where the error is 0 every honest evaluation yields the value, be it NaN or Inf. Where it is
    infinite honest evaluations may yield anything.

    Attributes:
        precision: the coarsest type that an honest implementation computes the value in.
        doubt: the error as a comparison sees it: none where no evaluation rounds, because operands
            are exact and the type can hold the result; None if it is the error.
        reach: what another factor may meet of a sum, whose terms it may be multiplied with one by
            one: their magnitudes added up; None if it is no sum.
        factors: the operands whose product the value is, with their exponents, 1 or -1; empty if
            it is no product.
    """

    precision: Precision = UNTYPED
    doubt: Any = None
    reach: Any = None
    factors: tuple[tuple[Bounded, int], ...] = ()

    @cached_property
    def span(self) -> tuple[float, float]:
        """Smallest magnitude and largest reach of an element or 1, zero and infinity aside."""
        small, large = self.magnitude, self.magnitude if self.reach is None else self.reach
        if small.ndim == large.ndim == 0:
            least, most = small, large
        else:
            least, most = small.min(initial=np.inf), large.max(initial=0.0)
        if not 0 < least <= most < np.inf:
            least = np.min(small, initial=1.0, where=_is_usual(small))
            most = np.max(large, initial=1.0, where=_is_usual(large))
        return min(float(least), 1.0), max(float(most), 1.0)

    def astype(self, dtype: Any) -> Bounded:
        """Return it rounded to a type on the way, as a wrong formula may."""
        return _converted(self, precision_of(np.dtype(dtype), self.precision.level))

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The type that it is computed in; None for an attribute."""
        return self.precision.dtype

    @property
    def doubtful(self) -> Any:
        """The error as a comparison sees it."""
        return self.error if self.doubt is None else self.doubt


@dataclass(frozen=True, eq=False)
class Mixed(_Operand):
    """What tensors of unlike types were combined to.

    One who computes in the type of one of them may do so in the coarser type. Yet a double output
    that adds to a double input must keep its digits.

    Attributes:
        coarse: as computed in the coarser type.
        fine: as computed in the finer one, from what was computed in the coarser types before; for
            an output of the finer type.
    """

    coarse: Bounded
    fine: Bounded

    def astype(self, dtype: Any) -> Mixed:
        """Return both rounded to a type on the way."""
        return Mixed(self.coarse.astype(dtype), self.fine.astype(dtype))


@dataclass(frozen=True, eq=False)
class Either(_Operand):
    """The two right results of a choice on a comparison that rounding can turn over.

    There is nothing between them. What is computed from it element by element has both, too.

    Attributes:
        first: the result by the comparison's value.
        other: what it is where the choice falls the other way, and the same elsewhere.
        condition: of the choice.
    """

    first: Bounded | Mixed
    other: Bounded | Mixed
    condition: Bounded

    def astype(self, dtype: Any) -> Either:
        """Return both rounded to a type on the way."""
        return Either(self.first.astype(dtype), self.other.astype(dtype), self.condition)


Result: TypeAlias = Bounded | Mixed | Either


def given(tensor: Array, precision: Precision, wide: np.dtype[Any] = WIDE) -> Bounded:
    """Return an input as an honest implementation takes it, in a type that may be narrower.

    Args:
        tensor: the input.
        precision: what it is computed in.
        wide: the type of values, wider than that.
    """
    if precision.level is Level.SCALAR:
        tensor = tensor.reshape(())
    value = tensor.astype(wide)
    error: Any = np.zeros((), np.float64)
    if precision.dtype is not None and tensor.dtype != precision.dtype:
        difference = np.abs(value - value.astype(precision.dtype).astype(wide))
        error = np.float64(np.where(np.isfinite(value), difference, 0.0))
    magnitude = np.abs(np.float64(value))
    return Bounded(value, _in_range(value, error, precision, magnitude), precision=precision)


def number(value: float, wide: np.dtype[Any] = WIDE) -> Bounded:
    """Return an attribute, which is exact."""
    return Bounded(wide.type(value), np.float64(0.0))


def output(result: Any, precision: Precision) -> tuple[Bounded, ...]:
    """Return what a formula yields, or a plain number, rounded to an output's type.

    It is one operand, or where rounding decides a choice, the two right results.
    """
    right = (result.first, result.other) if isinstance(result, Either) else (_operand(result),)
    return tuple(_rounded(operand, precision) for operand in right)


def _rounded(operand: Bounded | Mixed, precision: Precision) -> Bounded:
    if isinstance(operand, Mixed):
        finer = precision.unit_roundoff < operand.coarse.precision.unit_roundoff
        operand = operand.fine if finer else operand.coarse
    return _converted(operand, precision)


def covering(first: Any, other: Any = None) -> Any:
    """Return an operand whose error covers both results of a choice, and what is between them."""
    if other is None:
        return first
    if isinstance(first, Mixed):
        return Mixed(covering(first.coarse, other.coarse), covering(first.fine, other.fine))
    apart = np.abs(np.float64(other.value - first.value)) + np.maximum(first.error, other.error)
    apart = np.where(np.isnan(apart), np.inf, apart)
    alike = (first.value == other.value) & (first.error == other.error)
    error = np.where(alike, first.error, apart)
    may_cross = first.may_cross | other.may_cross | ~alike
    precision = CHOSEN if first.precision is UNTYPED else first.precision
    return Bounded(first.value, error, may_cross, precision)


def _covered(operand: Any) -> Any:
    return covering(operand.first, operand.other) if isinstance(operand, Either) else operand


def _operand(operand: Any) -> Any:
    """Return an operand; a plain number is computed with as in the evaluation."""
    return operand if isinstance(operand, _Operand) else Bounded(operand, np.float64(0.0))


def _combined(function: Callable[..., Any], row: Row, operands: list[Bounded | Mixed]) -> Any:
    """Apply a function to operands that may have been computed in either of two types.

    A scalar that meets a tensor takes the tensor's type; it may have been computed in a coarser
    one, but that is no reason to compute tensors in it.
    """
    coarse = [operand.coarse if isinstance(operand, Mixed) else operand for operand in operands]
    if not isinstance(row, Elementwise):
        return _of_all(function, row, operands, coarse)
    precision = _coarsest(coarse)
    result = _computed(function, row, coarse, precision)
    highest = [it for it in coarse if it.precision.level == precision.level]
    if any(it.precision is not precision for it in highest):
        finest = min((it.precision for it in highest), key=attrgetter("unit_roundoff"))
        return Mixed(result, _computed(function, row, coarse, finest))
    mixed = [
        operand
        for operand in operands
        if isinstance(operand, Mixed) and operand.coarse is highest[0]
    ]
    if mixed and len(highest) == 1:
        fine = [mixed[0].fine if it is highest[0] else it for it in coarse]
        return Mixed(result, _computed(function, row, fine, mixed[0].fine.precision))
    return result


def _of_all(
    function: Callable[..., Any],
    row: Row,
    operands: Sequence[Bounded | Mixed],
    coarse: Sequence[Bounded],
) -> Any:
    match row:
        case Comparison():
            return _compared(function, *coarse)
        case Logical():
            return _logical(function, *coarse)
        case Choice():
            return _chosen(coarse[0], *operands[1:])
        case MatrixProduct():
            return _matrix_product(*coarse)
    assert isinstance(row, Reduction | Percentile)  # noqa: S101 - what is left
    reduced = _reduced(row, *coarse)
    if isinstance(operands[0], Mixed):
        return Mixed(reduced, _reduced(row, operands[0].fine, *coarse[1:]))
    return reduced


def _coarsest(operands: Sequence[Bounded]) -> Precision:
    """Return what operands are combined in: of those of the highest level, the coarsest type."""
    first = operands[0].precision
    if all(operand.precision is first for operand in operands):
        return first
    return max(
        (operand.precision for operand in operands), key=attrgetter("level", "unit_roundoff")
    )


def _joining(operand: Bounded, precision: Precision) -> Bounded:
    """Return an operand as it enters an operation that is carried out in a type."""
    own = operand.precision
    if own is precision:
        return operand
    if own is UNTYPED:
        # The error of an expression of attributes alone is scaled to the type that it meets.
        error = operand.error * (precision.unit_roundoff / UNTYPED.unit_roundoff)
        error = _in_range(operand.value, error, precision, operand.magnitude)
        value, may_cross, doubt = operand.value, operand.may_cross, operand.doubt
        return _known(
            Bounded(value, error, may_cross, precision, doubt, operand.reach, operand.factors),
            operand.magnitude,
        )
    if own.level == precision.level and own.unit_roundoff < precision.unit_roundoff:
        return _converted(operand, precision)
    return operand


def _converted(operand: Bounded, precision: Precision) -> Bounded:
    """Round an operand to a type; what the type can hold stays, infinity and NaN among it."""
    if operand.precision is UNTYPED:
        operand = _joining(operand, precision)
    rounding = precision.unit_roundoff * operand.magnitude
    if _somewhere(~(rounding < np.inf)):
        rounding = np.where(rounding < np.inf, rounding, 0.0)
    exact = operand.error == 0
    if _somewhere(exact):
        held = operand.value == np.asarray(operand.value).astype(precision.dtype)
        rounding = np.where(exact & held, 0.0, rounding)
    error = _in_range(operand.value, operand.error + rounding, precision, operand.magnitude)
    return Bounded(operand.value, error, operand.may_cross, precision)


def _somewhere(mask: Any) -> bool:
    """Tell whether a mask is true anywhere; faster than ``any`` on few elements."""
    return bool(mask if mask.ndim == 0 else np.count_nonzero(mask))


def _in_range(value: Any, error: Any, precision: Precision, magnitude: Any) -> Any:
    """Allow for flushing of what may be subnormal, and give up on what may leave the range."""
    subnormal = magnitude - error < precision.smallest_normal
    if _somewhere(subnormal):
        # An exact zero stays one; another may be so small that its magnitude underflows here.
        lost = subnormal & ((value != 0) | (error > 0))
        error = np.where(lost, error + precision.smallest_normal, error)
    beyond = magnitude + error > precision.largest
    if _somewhere(beyond):
        error = np.where(beyond & (np.isfinite(value) | (error > 0)), np.inf, error)
    return error


def _computed(
    function: Callable[..., Any], row: Elementwise, operands: list[Bounded], precision: Precision
) -> Bounded:
    """Carry out an operation in a type."""
    operands = [_joining(operand, precision) for operand in operands]
    value = function(*(operand.value for operand in operands))
    magnitude = np.abs(np.float64(value))
    error = row.inherited(magnitude, *operands)
    if row.roundings:
        # A scalar may have met another factor in its own type, which may be coarser.
        coarse = [
            operand.precision.unit_roundoff for operand in operands if operand.precision.dtype
        ]
        unit = max((precision.unit_roundoff, *(coarse if row.exponents else ())))
        own = row.roundings * unit * magnitude
        # What comes of tensors is bounded alike alone, in blocks and together with others.
        scalar = precision.level is not Level.TENSOR and not magnitude.ndim
        if scalar and row.exponents and _is_exact(row, value, operands):
            own = np.float64(0.0)
        error = error + (own if row.exact is None else np.where(row.exact(*operands), 0.0, own))
    if _somewhere(~(magnitude + error < np.inf)):
        error = _settled(row, value, error, operands)
    factors = tuple(
        (factor, exponent * sign)
        for operand, sign in zip(operands, row.exponents, strict=False)
        for factor, exponent in operand.factors or ((operand, 1),)
    )
    if factors:
        error = _in_any_order(value, error, factors, precision)
    error = _in_range(value, error, precision, magnitude)
    reach = None
    if row.is_sum:
        error = _as_a_share(value, error, operands, precision.largest)
        reach = operands[0].magnitude + operands[1].magnitude
    may_cross = row.crosses(magnitude, error, *operands)
    doubt = None
    if row.is_sum or not row.roundings:
        doubt = _doubt(value, magnitude, error, operands, precision)
    return _known(Bounded(value, error, may_cross, precision, doubt, reach, factors), magnitude)


def _is_exact(row: Elementwise, value: Any, operands: Sequence[Bounded]) -> bool:
    """Tell whether a product or quotient of exact scalars is one that no type rounds.

    Where T * decay_factor is -1, 1 + T * decay_factor is zero then, and not a small number of
    either sign. Of operands that float32 holds, the wide value is exact, or a quotient that does
    not give back what was divided.
    """
    one, other = operands
    if one.error != 0 or other.error != 0:
        return False
    with np.errstate(all="ignore"):
        held = all(it == np.float32(it) for it in (one.value, other.value, value))
        return held and (row.exponents == (1, 1) or value * other.value == one.value)


def _known(operand: Bounded, magnitude: Any) -> Bounded:
    """Return an operand whose magnitude, which will be asked for many times, is known."""
    vars(operand)["magnitude"] = magnitude
    return operand


def _doubt(
    value: Any, magnitude: Any, error: Any, operands: Sequence[Bounded], precision: Precision
) -> Any:
    """Return the error without that of exact results of exact operands, if there are such."""
    if precision.dtype is None:
        return None
    exact: Any = error > 0
    for operand in operands:
        exact = exact & (operand.doubtful == 0)
    if not _somewhere(exact):
        return None
    normal = (value == 0) | (magnitude >= precision.smallest_normal)
    held = value == np.asarray(value).astype(precision.dtype)
    return np.where(exact & normal & held, 0.0, error)


def _settled(row: Elementwise, value: Any, error: Any, operands: Sequence[Bounded]) -> Any:
    """Say which NaN and Inf every honest evaluation yields, as IEEE arithmetic on the inputs does.

    Others come from values that have left the range, or may be zero, or of either sign.
    """
    finite = np.isfinite(value)
    certain, from_nan = np.bool_(True), np.bool_(False)
    usual = np.bool_(True)
    for operand in operands:
        exact = operand.error == 0
        bounded = operand.error < np.inf
        if not row.is_sum:
            bounded = bounded & (operand.magnitude > operand.error)
        certain = certain & (exact | bounded)
        from_nan = from_nan | (exact & np.isnan(operand.value))
        usual = usual & np.isfinite(operand.value) & (operand.value != 0)
    overflow = np.isinf(value) & usual
    settled = (from_nan & np.isnan(value)) | (certain & ~finite & ~overflow)
    error = np.where(np.isnan(error), np.where(certain, 0.0, np.inf), error)
    return np.where(finite, error, np.where(settled, 0.0, np.inf))


def _in_any_order(
    value: Any, error: Any, factors: Iterable[tuple[Bounded, int]], precision: Precision
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
        reach = size if exponent < 0 or factor.reach is None else factor.reach
        lows = lows * np.minimum(np.where(_is_usual(size), size, 1.0), 1.0)
        highs = highs * np.maximum(np.where(_is_usual(reach), reach, 1.0), 1.0)
    finite = np.isfinite(value)
    magnitude = np.abs(np.float64(value))
    lost = np.where(finite & (lows < precision.smallest_normal), magnitude, 0.0)
    return np.where(finite & (highs > precision.largest), np.inf, error + lost)


def _as_a_share(value: Any, error: Any, operands: Sequence[Bounded], largest: float) -> Any:
    """Allow for a mean of two terms that is computed as one, moved by a share of their difference.

    TensorFlow and PyTorch do so: a V + (1 - a) G is V + (1 - a) (G - V). The difference of large
    terms of unlike signs may leave the range.
    """
    terms = [
        [factor for factor in operand.factors if not _is_weight(*factor)] for operand in operands
    ]
    if any(len(rest) == len(each.factors) for rest, each in zip(terms, operands, strict=True)):
        return error
    # The largest that it can be: of a factor the most, of a divisor the least.
    if sum(prod(it.span[n > 0] ** n for it, n in rest) for rest in terms) <= largest:
        return error
    apart = sum(prod(it.magnitude**n for it, n in rest) for rest in terms)
    return np.where(np.isfinite(value) & ~(apart <= largest), np.inf, error)


def _is_weight(factor: Bounded, exponent: int) -> bool:
    return exponent > 0 and not np.ndim(factor.value) and bool(factor.magnitude <= 1)


def _is_usual(magnitude: Any) -> Any:
    return (magnitude > 0) & (magnitude < np.inf)


def _compared(function: Callable[..., Any], a: Bounded, b: Bounded) -> Bounded:
    """Compare; the error is positive where the operands are closer than theirs."""
    doubt = a.doubtful + b.doubtful
    undecided = doubt > 0
    if _somewhere(undecided):
        for operand in (a, b):
            undecided = undecided & ~(np.isnan(operand.value) & (operand.error == 0))
        undecided = undecided & ~(np.abs(np.float64(a.value - b.value)) > doubt)
    return Bounded(function(a.value, b.value), np.float64(undecided))


def _logical(function: Callable[..., Any], *operands: Bounded) -> Bounded:
    """Combine results of comparisons; in doubt where those are whose turning over turns it over."""
    value = function(*(operand.value for operand in operands))
    undecided: Any = np.bool_(False)
    for turned in product((False, True), repeat=len(operands)):
        others = [
            np.where(turn & (operand.error > 0), ~np.asarray(operand.value), operand.value)
            for turn, operand in zip(turned, operands, strict=True)
        ]
        undecided = undecided | (function(*others) != value)
    return Bounded(value, np.float64(undecided))


def _chosen(condition: Bounded, x: Bounded | Mixed, y: Bounded | Mixed) -> Result:
    """Apply numpy.where, both ways where rounding can turn the condition over."""
    first = _branch(condition.value, x, y)
    undecided = condition.error > 0
    if not _somewhere(undecided):
        return first
    return Either(first, _branch(condition.value ^ undecided, x, y), condition)


def _branch(condition: Any, x: Any, y: Any) -> Any:
    if isinstance(x, Mixed) or isinstance(y, Mixed):
        coarse, fine = ([getattr(it, side, it) for it in (x, y)] for side in ("coarse", "fine"))
        return Mixed(_branch(condition, *coarse), _branch(condition, *fine))
    precision = _coarsest((x, y))
    x, y = _joining(x, precision), _joining(y, precision)
    value = np.where(condition, x.value, y.value)
    error = np.where(condition, x.error, y.error)
    may_cross: Any = x.may_cross | y.may_cross
    if np.any(may_cross):
        may_cross = np.where(condition, x.may_cross, y.may_cross)
    factors = (x if condition else y).factors if np.ndim(condition) == 0 else ()
    return Bounded(value, error, may_cross, precision, factors=factors)


def _matrix_product(a: Bounded, b: Bounded) -> Bounded:
    precision = _coarsest((a, b))
    result = matrix_product(_joining(a, precision), _joining(b, precision), precision)
    return _in(precision, result)


def _reduced(row: Reduction | Percentile, elements: Bounded, *others: Bounded) -> Any:
    """Reduce all elements to one; the other operand of a percentile is the percent."""
    precision = elements.precision
    if isinstance(row, Percentile):
        (percent,) = others
        return _in(precision, ranked(elements, elements.doubtful, percent, precision))
    result = _in(precision, row.reduce(elements, precision))
    return result / float(np.size(elements.value)) if row.mean else result


def _in(precision: Precision, result: Approximate) -> Bounded:
    error = _in_range(result.value, result.error, precision, result.magnitude)
    return Bounded(result.value, error, result.may_cross, precision)
