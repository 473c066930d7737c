"""The operands for the error bound: values in a wide type with bounds on their errors.

The operands of a formula are :class:`Bounded`. Two further classes hold two results each.
:class:`Either` is the result of a choice whose condition is undecided because of rounding errors.
:class:`Mixed` is the result of an operation on tensors of different types, which may be computed in
either type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np

from onnxopt_cli.core.blocks import joined
from onnxopt_cli.core.values import Array
from onnxopt_cli.interpret.evaluate import WIDEST_TYPE
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
    """Base class of the operands for the error bound."""

    def __bool__(self) -> bool:
        """Return the truth value of an expression of attributes."""
        if isinstance(self, Bounded) and self.precision.level is Level.NUMBER:
            return bool(self.value)
        raise TypeError(
            "a condition may differ from element to element: write np.where instead of if"
        )

    def joined(self, blocks: Iterable[Any], size: int) -> Bounded:
        """Join the blocks of a reduction's operand; a scalar is returned unchanged.

        Args:
            blocks: all blocks of the operand; the first one is this object.
            size: the total number of elements of the blocks.
        """
        first: Bounded = _covered(self)
        if not np.ndim(first.value):
            return first
        parts = (
            (block.value, block.error, block.may_cross, block.doubtful)
            for block in map(_covered, blocks)
        )
        value, error, may_cross, doubt = joined(parts, size)
        return Bounded(value, error, may_cross.any(), first.precision, doubt)

    def applied(self, function: Callable[..., Any], row: Row, inputs: Sequence[Any]) -> Any:
        """Apply a function to operands.

        If an operand is an undecided choice, an elementwise function is applied to both results of
        the choice. If the operands depend on several choices, or if the function is not
        elementwise, the error covers the range between the two results of each choice.
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
        return Either(
            _combined(function, row, [getattr(operand, "first", operand) for operand in operands]),
            _combined(function, row, [getattr(operand, "other", operand) for operand in operands]),
            condition,
        )


@dataclass(frozen=True, eq=False)
class Bounded(Approximate, _Operand):
    """A value in the wide type with a bound on the error of every reasonable evaluation.

    If the error is 0, every evaluation results in the value, which may be NaN or Inf. If the error
    is infinite, any result is accepted.

    Attributes:
        precision: the coarsest type in which an implementation may compute the value.
        doubt: the error for comparisons; None if it equals ``error``. It is zero where the operands
            are exact and the type can represent the result.
        reach: for a sum, the sum of the magnitudes of its terms; else None. If a sum is multiplied
            by a factor, an implementation may multiply each term; the error of the product then
            depends on the reach.
        factors: for a product, its factors with their exponents, 1 or -1; otherwise empty.
    """

    precision: Precision = UNTYPED
    doubt: Any = None
    reach: Any = None
    factors: tuple[tuple[Bounded, int], ...] = ()

    @cached_property
    def span(self) -> tuple[float, float]:
        """The smallest magnitude, but at most 1, and the largest reach, but at least 1.

        Elements that are 0 or infinite are ignored.
        """
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
        """Return the operand rounded to a type, for the formulas of mutants that round."""
        return _converted(self, precision_of(np.dtype(dtype), self.precision.level))

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The type in which the operand is computed; None for an attribute."""
        return self.precision.dtype

    @property
    def doubtful(self) -> Any:
        """The error for comparisons."""
        return self.error if self.doubt is None else self.doubt


@dataclass(frozen=True, eq=False)
class Mixed(_Operand):
    """The result of an operation on tensors of different types.

    An implementation may compute the operation in the coarser type. If the result is an output of
    the finer type, however, it must have the digits of the finer type. For example, the sum of a
    double input and another term must have the digits of double.

    Attributes:
        coarse: the result of the operation in the coarser type.
        fine: the result of the operation in the finer type, from operands computed in the coarser
            type. It applies to outputs of the finer type.
    """

    coarse: Bounded
    fine: Bounded

    def astype(self, dtype: Any) -> Mixed:
        """Return both results, rounded to a type."""
        return Mixed(self.coarse.astype(dtype), self.fine.astype(dtype))


@dataclass(frozen=True, eq=False)
class Either(_Operand):
    """The two results of a choice whose condition is undecided; both results are accepted.

    Values between the two results are not accepted. An elementwise function of an undecided choice
    has two results as well.

    Attributes:
        first: the result for the computed condition.
        other: the result for the inverted condition where the condition is undecided; equal to
            ``first`` elsewhere.
        condition: the condition of the choice.
    """

    first: Bounded | Mixed
    other: Bounded | Mixed
    condition: Bounded

    def astype(self, dtype: Any) -> Either:
        """Return both results, rounded to a type."""
        return Either(self.first.astype(dtype), self.other.astype(dtype), self.condition)


Result: TypeAlias = Bounded | Mixed | Either


def given(tensor: Array, precision: Precision, wide: np.dtype[Any] = WIDEST_TYPE) -> Bounded:
    """Return the operand for an input tensor.

    Args:
        tensor: the input.
        precision: the precision of the computation. If the type of the precision is narrower than
            that of the input, the error includes the conversion.
        wide: the type of the values, which is wider than that of the precision.
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


def number(value: float, wide: np.dtype[Any] = WIDEST_TYPE) -> Bounded:
    """Return the operand for an attribute; its error is zero."""
    return Bounded(wide.type(value), np.float64(0.0))


def output(result: Any, precision: Precision) -> tuple[Bounded, ...]:
    """Return a formula's result rounded to an output's type.

    The tuple has one result. If an undecided comparison chooses between two results, the tuple has
    both of them.
    """
    accepted = (result.first, result.other) if isinstance(result, Either) else (_operand(result),)
    return tuple(_rounded(operand, precision) for operand in accepted)


def _rounded(operand: Bounded | Mixed, precision: Precision) -> Bounded:
    if isinstance(operand, Mixed):
        finer = precision.unit_roundoff < operand.coarse.precision.unit_roundoff
        operand = operand.fine if finer else operand.coarse
    return _converted(operand, precision)


def covering(first: Any, other: Any = None) -> Any:
    """Return the first result of a choice, with an error bound that includes the other result.

    Args:
        first: the first result.
        other: the other result; None to return the first result unchanged.
    """
    if other is None:
        return first
    if isinstance(first, Mixed):
        return Mixed(covering(first.coarse, other.coarse), covering(first.fine, other.fine))
    distance = np.abs(np.float64(other.value - first.value)) + np.maximum(first.error, other.error)
    distance = np.where(np.isnan(distance), np.inf, distance)
    is_equal = (first.value == other.value) & (first.error == other.error)
    error = np.where(is_equal, first.error, distance)
    may_cross = first.may_cross | other.may_cross | ~is_equal
    precision = CHOSEN if first.precision is UNTYPED else first.precision
    return Bounded(first.value, error, may_cross, precision)


def _covered(operand: Any) -> Any:
    return covering(operand.first, operand.other) if isinstance(operand, Either) else operand


def _operand(operand: Any) -> Any:
    """Return an operand unchanged, or a plain number as an operand without an error."""
    return operand if isinstance(operand, _Operand) else Bounded(operand, np.float64(0.0))


def _combined(function: Callable[..., Any], row: Row, operands: list[Bounded | Mixed]) -> Any:
    """Apply a function to operands, which may include :class:`Mixed`.

    In an operation with a tensor, a scalar takes the type of the tensor. Therefore only the
    operands of the highest :class:`Level` determine the type of the operation.
    """
    coarse = [operand.coarse if isinstance(operand, Mixed) else operand for operand in operands]
    if not isinstance(row, Elementwise):
        return _of_all(function, row, operands, coarse)
    precision = _coarsest(coarse)
    result = _computed(function, row, coarse, precision)
    highest = [operand for operand in coarse if operand.precision.level == precision.level]
    if any(operand.precision is not precision for operand in highest):
        precisions = (operand.precision for operand in highest)
        finest = min(precisions, key=attrgetter("unit_roundoff"))
        fine_result = _computed(function, row, coarse, finest)
        return Mixed(_beyond_range(result, fine_result, coarse), fine_result)
    mixed = [
        operand
        for operand in operands
        if isinstance(operand, Mixed) and any(operand.coarse is value for value in highest)
    ]
    if not mixed:
        return result
    if len(highest) == 1:
        fine = [mixed[0].fine if operand is highest[0] else operand for operand in coarse]
        fine_result = _computed(function, row, fine, mixed[0].fine.precision)
        return Mixed(_beyond_range(result, fine_result, coarse), fine_result)
    if not _somewhere(np.isinf(result.error)):
        return result
    fine = [operand.fine if isinstance(operand, Mixed) else operand for operand in operands]
    fine_result = _computed(function, row, fine, mixed[0].fine.precision)
    within_range = _beyond_range(result, fine_result, coarse)
    return result if within_range is result else Mixed(within_range, fine_result)


def _beyond_range(result: Bounded, fine: Bounded, operands: Sequence[Bounded]) -> Bounded:
    """Use the errors of the finer type where a result exceeds the range of the coarser type.

    An implementation may lose digits by computing in the coarser type, but finite numbers must not
    become infinite. For example, it must not convert a double of 1e100 to float32.

    Args:
        result: the result in the coarser type.
        fine: the result in the finer type.
        operands: the operands of the operation.
    """
    largest = result.precision.largest
    beyond: Any = result.magnitude > largest
    for operand in operands:
        beyond = beyond | (operand.magnitude > largest)
    beyond = beyond & np.isinf(result.error) & np.isfinite(fine.error)
    if not _somewhere(beyond):
        return result
    error = np.where(beyond, fine.error, result.error)
    doubt = None if result.doubt is None else np.where(beyond, fine.doubtful, result.doubt)
    may_cross = np.where(beyond, fine.may_cross, result.may_cross)
    return replace(result, error=error, may_cross=may_cross, doubt=doubt)


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
    assert isinstance(row, Reduction | Percentile)  # noqa: S101 - the remaining kinds of rows
    reduced = _reduced(row, *coarse)
    if isinstance(operands[0], Mixed):
        fine = _reduced(row, operands[0].fine, *coarse[1:])
        return Mixed(_beyond_range(reduced, fine, ()), fine)
    return reduced


def _coarsest(operands: Sequence[Bounded]) -> Precision:
    """Return the coarsest precision among the operands of the highest :class:`Level`."""
    first = operands[0].precision
    if all(operand.precision is first for operand in operands):
        return first
    return max(
        (operand.precision for operand in operands), key=attrgetter("level", "unit_roundoff")
    )


def _joining(operand: Bounded, precision: Precision) -> Bounded:
    """Return an operand, converted to the precision of an operation if necessary."""
    operand_precision = operand.precision
    if operand_precision is precision:
        return operand
    if operand_precision is UNTYPED:
        # The error of an expression of attributes is scaled to the type of the operation.
        error = operand.error * (precision.unit_roundoff / UNTYPED.unit_roundoff)
        error = _in_range(operand.value, error, precision, operand.magnitude)
        value, may_cross, doubt = operand.value, operand.may_cross, operand.doubt
        return _known(
            Bounded(value, error, may_cross, precision, doubt, operand.reach, operand.factors),
            operand.magnitude,
        )
    is_same_level = operand_precision.level == precision.level
    if is_same_level and operand_precision.unit_roundoff < precision.unit_roundoff:
        return _converted(operand, precision)
    return operand


def _converted(operand: Bounded, precision: Precision) -> Bounded:
    """Return an operand rounded to a type. A representable exact value stays exact."""
    if operand.precision is UNTYPED:
        operand = _joining(operand, precision)
    rounding = precision.unit_roundoff * operand.magnitude
    if _somewhere(~(rounding < np.inf)):
        rounding = np.where(rounding < np.inf, rounding, 0.0)
    exact = operand.error == 0
    if _somewhere(exact):
        is_representable = operand.value == np.asarray(operand.value).astype(precision.dtype)
        rounding = np.where(exact & is_representable, 0.0, rounding)
    error = _in_range(operand.value, operand.error + rounding, precision, operand.magnitude)
    return Bounded(operand.value, error, operand.may_cross, precision)


def _somewhere(mask: Any) -> bool:
    """Return whether a mask is true anywhere; for few elements, this is faster than ``any``."""
    return bool(mask if mask.ndim == 0 else np.count_nonzero(mask))


def _in_range(value: Any, error: Any, precision: Precision, magnitude: Any) -> Any:
    """Return errors that include underflow and overflow in a type.

    If a value may be subnormal, it may be flushed to zero, so the smallest normal number is added
    to its error. If a value may exceed the range, its error is infinite.
    """
    subnormal = magnitude - error < precision.smallest_normal
    if _somewhere(subnormal):
        # An exact zero has no error. A zero with an error may be a subnormal number.
        lost = subnormal & ((value != 0) | (error > 0))
        error = np.where(lost, error + precision.smallest_normal, error)
    beyond = magnitude + error > precision.largest
    if _somewhere(beyond):
        error = np.where(beyond & (np.isfinite(value) | (error > 0)), np.inf, error)
    return error


def _computed(
    function: Callable[..., Any], row: Elementwise, operands: list[Bounded], precision: Precision
) -> Bounded:
    """Return the result of an elementwise operation in a precision."""
    operands = [_joining(operand, precision) for operand in operands]
    value = function(*(operand.value for operand in operands))
    magnitude = np.abs(np.float64(value))
    error = row.inherited(magnitude, *operands)
    if row.roundings:
        # In a product of several factors, an implementation may first multiply two scalars in their
        # own type. This type may be coarser than the type of the tensor.
        coarse = [
            operand.precision.unit_roundoff for operand in operands if operand.precision.dtype
        ]
        unit = max((precision.unit_roundoff, *(coarse if row.exponents else ())))
        rounding = row.roundings * unit * magnitude
        if row.rough is not None:
            rounding = np.maximum(rounding, row.rough(value, precision, *operands))
        # The rule for exact scalars does not apply to tensors. If it did, the error could depend on
        # how a tensor is divided into blocks, because all elements of one block may be exact.
        is_scalar = precision.level is not Level.TENSOR and not magnitude.ndim
        if is_scalar and row.exponents and _is_exact(row, value, operands):
            rounding = np.float64(0.0)
        if row.exact is not None:
            rounding = np.where(row.exact(*operands), 0.0, rounding)
        error = error + rounding
    if _somewhere(~(magnitude + error < np.inf)):
        error = _errors_with_specials(row, value, error, operands)
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
    """Return whether a product or quotient of exact scalars is representable in float32.

    For example, if T * decay_factor is exactly -1, then 1 + T * decay_factor is exactly zero, not a
    small number of unknown sign. A product of two float32 numbers is exact in the wide type. A
    quotient is exact if its product with the divisor equals the dividend.
    """
    first, second = operands
    if first.error != 0 or second.error != 0:
        return False
    with np.errstate(all="ignore"):
        numbers = (first.value, second.value, value)
        if not all(number == np.float32(number) for number in numbers):
            return False
        return bool(row.exponents == (1, 1) or value * second.value == first.value)


def _known(operand: Bounded, magnitude: Any) -> Bounded:
    """Store the magnitude of an operand, which is needed often, and return the operand."""
    vars(operand)["magnitude"] = magnitude
    return operand


def _doubt(
    value: Any, magnitude: Any, error: Any, operands: Sequence[Bounded], precision: Precision
) -> Any:
    """Return the error for comparisons: zero for exact results of exact operands.

    None if no result is exact. Comparisons then use the error of the value.
    """
    if precision.dtype is None:
        return None
    exact: Any = error > 0
    for operand in operands:
        exact = exact & (operand.doubtful == 0)
    if not _somewhere(exact):
        return None
    normal = (value == 0) | (magnitude >= precision.smallest_normal)
    is_representable = value == np.asarray(value).astype(precision.dtype)
    return np.where(exact & normal & is_representable, 0.0, error)


def _errors_with_specials(
    row: Elementwise, value: Any, error: Any, operands: Sequence[Bounded]
) -> Any:
    """Return the errors of results, some of which are NaN or Inf.

    The error of NaN or Inf is zero if every evaluation has this result by the rules of IEEE
    arithmetic. The error is infinite if the result comes from overflow, or if it depends on
    operands that may be zero or have either sign.
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
    is_certain = (from_nan & np.isnan(value)) | (certain & ~finite & ~overflow)
    error = np.where(np.isnan(error), np.where(certain, 0.0, np.inf), error)
    return np.where(finite, error, np.where(is_certain, 0.0, np.inf))


def _in_any_order(
    value: Any, error: Any, factors: Iterable[tuple[Bounded, int]], precision: Precision
) -> Any:
    """Return the error of a product for any order of its factors.

    A factor that is a sum may also be multiplied term by term. If any partial product may overflow,
    the error is infinite. If any partial product may underflow, the result may be zero, so the
    magnitude of the product is added to the error.
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
    """Return the error of a sum that an implementation may compute as a mean, from a difference.

    TensorFlow and PyTorch compute a V + (1 - a) G as V + (1 - a) (G - V). If the terms are large
    and have opposite signs, the difference may overflow. The error is then infinite.
    """
    terms = [
        [factor for factor in operand.factors if not _is_weight(*factor)] for operand in operands
    ]
    if any(
        len(factors) == len(operand.factors)
        for factors, operand in zip(terms, operands, strict=True)
    ):
        return error
    # First check an upper bound of the difference, computed from the largest element of each factor
    # and the smallest element of each divisor.
    bounds = (
        prod(factor.span[exponent > 0] ** exponent for factor, exponent in factors)
        for factors in terms
    )
    if sum(bounds) <= largest:
        return error
    difference = sum(
        prod(factor.magnitude**exponent for factor, exponent in factors) for factors in terms
    )
    return np.where(np.isfinite(value) & ~(difference <= largest), np.inf, error)


def _is_weight(factor: Bounded, exponent: int) -> bool:
    return exponent > 0 and not np.ndim(factor.value) and bool(factor.magnitude <= 1)


def _is_usual(magnitude: Any) -> Any:
    return (magnitude > 0) & (magnitude < np.inf)


def _compared(function: Callable[..., Any], a: Bounded, b: Bounded) -> Bounded:
    """Return a comparison, undecided where the operands are closer than their errors."""
    doubt = a.doubtful + b.doubtful
    undecided = doubt > 0
    if _somewhere(undecided):
        for operand in (a, b):
            undecided = undecided & ~(np.isnan(operand.value) & (operand.error == 0))
        undecided = undecided & ~(np.abs(np.float64(a.value - b.value)) > doubt)
    return Bounded(function(a.value, b.value), np.float64(undecided))


def _logical(function: Callable[..., Any], *operands: Bounded) -> Bounded:
    """Return a function of truth values, undecided where it depends on undecided operands."""
    value = function(*(operand.value for operand in operands))
    undecided: Any = np.bool_(False)
    for inversions in product((False, True), repeat=len(operands)):
        inverted = [
            np.where(inverts & (operand.error > 0), ~np.asarray(operand.value), operand.value)
            for inverts, operand in zip(inversions, operands, strict=True)
        ]
        undecided = undecided | (function(*inverted) != value)
    return Bounded(value, np.float64(undecided))


def _chosen(condition: Bounded, x: Bounded | Mixed, y: Bounded | Mixed) -> Result:
    """Return the result of numpy.where, with two branches if the condition is undecided."""
    first = _branch(condition.value, x, y)
    undecided = condition.error > 0
    if not _somewhere(undecided):
        return first
    return Either(first, _branch(condition.value ^ undecided, x, y), condition)


def _branch(condition: Any, x: Any, y: Any) -> Any:
    if isinstance(x, Mixed) or isinstance(y, Mixed):
        coarse = [getattr(operand, "coarse", operand) for operand in (x, y)]
        fine = [getattr(operand, "fine", operand) for operand in (x, y)]
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


def _reduced(row: Reduction | Percentile, elements: Bounded, *further: Bounded) -> Any:
    """Return the reduction of all elements. For a percentile, ``further`` is the percent."""
    precision = elements.precision
    if isinstance(row, Percentile):
        (percent,) = further
        return _in(precision, ranked(elements, elements.doubtful, percent, precision))
    result = _in(precision, row.reduce(elements, precision))
    return result / float(np.size(elements.value)) if row.mean else result


def _in(precision: Precision, result: Approximate) -> Bounded:
    error = _in_range(result.value, result.error, precision, result.magnitude)
    return Bounded(result.value, error, result.may_cross, precision)
