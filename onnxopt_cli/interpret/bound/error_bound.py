"""The formula on (value, error) pairs: how far any honest evaluation can be off, by element.

An honest evaluation computes the formula, in any order that brings no cancellation of its own,
and rounds as the tensors' types do, or less. What comes from R and T alone it computes in R's type
or the tensors', whichever is coarser; so ``1 - beta**T`` may be the difference of 1 and a rounded
power. Where beta**T is close to 1, that difference has few right bits: with R in float32 and
beta = 0.9999, T = 3 it is off by 1e-4 of itself, and so is what an implementation that rounds the
power to float32 returns. No bound can reject the one and accept the other: the case that tells
them apart has R and the tensors in double.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any, TypeVar

import numpy as np

from onnxopt_cli.core.blocks import LARGE_ELEMENTS
from onnxopt_cli.core.tolerance import Branch, ErrorBound
from onnxopt_cli.core.values import Array
from onnxopt_cli.interpret.bound.bounded_value import (
    Bounded,
    given,
    number,
    output,
)
from onnxopt_cli.interpret.evaluate import (
    WIDE,
    evaluate,
    is_elementwise,
    rounded,
)
from onnxopt_cli.interpret.vocabulary import (
    Choice,
    Elementwise,
    Joining,
    Level,
    Precision,
    Row,
    precision_of,
)
from onnxopt_cli.operators.call import Call, Operand
from onnxopt_cli.operators.operator import AttributeValue, Operator

T = TypeVar("T", bound=Operand)

#: Changes an input.
Change = Callable[[Array], Array]
#: NaN or an infinity, and the elements that may be it.
AlsoRight = tuple[float, Array]

#: The multiple of the error bound that a derived tolerance allows.
FACTOR = 4.0


@dataclass(frozen=True, slots=True, eq=False)
class DerivedOutput:
    """What an output must be, and how far off it may be, by element.

    Attributes:
        expected: the formula's value in the output's dtype and shape.
        value: the formula's value in the wide type, before it was rounded.
        error: bound on an honest evaluation's distance from the value, rounding to the output's
            dtype included, float64. Zero where NaN or Inf must be met; infinite where honest
            evaluations may yield anything.
        factor: multiple of the error that is allowed.
        otherwise: what is right as well, element by element, where rounding decides a choice or
            right reformulations make NaN of an infinite input, and the same elsewhere; None if
            there is nothing else. It may have another in turn. Outputs are judged one by one: that
            all of them come from the same side of a choice is not asked.
    """

    expected: Array
    value: Array
    error: Array
    factor: float
    otherwise: DerivedOutput | None = None

    @property
    def limit(self) -> Array:
        """The largest allowed distance, float64."""
        return self.factor * self.error

    @property
    def branch(self) -> Branch:
        """What is right, and how far off it may be."""
        other = None if self.otherwise is None else self.otherwise.branch
        return Branch(self.expected, self.limit, other)

    @property
    def error_bound(self) -> ErrorBound:
        """The limit as a tolerance."""
        return ErrorBound(self.branch.at, self.factor)

    def accepting(self, others: Iterable[AlsoRight]) -> DerivedOutput:
        """Return a judgement that some elements may be NaN or infinite in, too."""
        derived_output = self
        for special, mask in others:
            expected = np.where(mask, self.expected.dtype.type(special), self.expected)
            value, error = np.where(mask, special, self.value), np.where(mask, 0.0, self.error)
            other = DerivedOutput(expected, value, error, self.factor, derived_output.otherwise)
            derived_output = replace(derived_output, otherwise=other)
        return derived_output

    def apart(self, call: Call[Array]) -> list[DerivedOutput]:
        """Return what each output of a call must be, if this is of the elements of all in a row."""
        arrays = (call.apart([it]) for it in (self.expected, self.value, self.error))
        others = self.otherwise.apart(call) if self.otherwise else [None] * len(call.groups)
        return [
            DerivedOutput(expected, value, error, self.factor, other)
            for expected, value, error, other in zip(*arrays, others, strict=True)
        ]

    @property
    def inconclusive(self) -> int:
        """Number of elements that the case cannot judge."""
        return int(np.count_nonzero(self.branch.inconclusive))

    @property
    def divides(self) -> bool:
        """Whether an element is infinite without having overflowed, as a quotient by zero is."""
        return bool((np.isinf(self.expected) & (self.error == 0)).any())


def bound(
    call: Call[Array], factor: float = FACTOR, wide: np.dtype[Any] = WIDE
) -> list[DerivedOutput]:
    """Return the expected outputs of a node in its order, and the derived tolerance of each.

    Values and errors come from one pass over the formula; the values are those of the evaluate
    reading.

    Args:
        call: the operator, attributes and inputs.
        factor: multiple of the error that is allowed.
        wide: what values are computed in. Those of double differ from the evaluation's by
            less than 2^-28 of the bound of float32.
    """
    with np.errstate(all="ignore"):
        if (row := _in_a_row(call)) is None:
            return call.by_group(lambda part: _derived_outputs(part, factor, wide))
        derived_outputs = (
            derived_output.apart(call) for derived_output in _derived_outputs(row, factor, wide)
        )
        return [each for of_kind in derived_outputs for each in of_kind]


def _in_a_row(call: Call[Array]) -> Call[Array] | None:
    """Return :attr:`Call.in_a_row` of small tensors, where each costs as much as all of them.

    None where that is not the same: an element depends on others, or the groups differ in more than
    their values.
    """
    first, *others = call.groups
    if not others or call.size >= LARGE_ELEMENTS or not is_elementwise(call.operator):
        return None
    types = [it.dtype for it in first]
    each = any(
        isinstance(attribute, tuple) and len(attribute) > 1
        for attribute in call.attributes.values()
    )
    if each or any([it.dtype for it in group] != types for group in others):
        return None
    return call.in_a_row


def least_errors(call: Call[Any]) -> list[float]:
    """Return what share of its magnitude the error of each element has at least, for each output.

    It counts roundings that no value of the inputs spares: an element's error need not be known
    where the element is nearer than that. A sum inherits the errors of both operands, and a
    product or a quotient the relative ones.

    Args:
        call: a call that can be computed in blocks.
    """
    formula, count = call.operator.formula, len(call.operator.scalars)
    operands = [_Roundings(0)] * (count + len(call.operator.tensors))
    attributes = {
        name: value if isinstance(value, str) else _Roundings(0)
        for name, value in call.attributes.items()
    }
    floats = [each.dtype for each in call.inputs if each.dtype.kind == "f"]
    unit = min(precision_of(it).unit_roundoff for it in floats)
    # An output is rounded once more, unless it may be exact; and what was expected was rounded.
    counts = [_roundings(it) for it in formula(*operands, **attributes)]
    return [(count and count + 1) * unit * (1 - unit) for count in counts]


class _Roundings(Joining):
    """An operand, as far as the number of roundings goes that its error holds at least."""

    def __init__(self, count: int) -> None:
        self.count = count

    def applied(self, _function: Any, row: Row, inputs: Sequence[Any]) -> Any:
        """Count the roundings of a function's result."""
        if isinstance(row, Choice):
            return _Roundings(min(map(_roundings, inputs[1:])))
        if not isinstance(row, Elementwise) or row.exact is not None:
            return _Roundings(0)
        counts = list(map(_roundings, inputs))
        inherited = min(counts) if row.is_sum else sum(counts) if row.exponents else 0
        return _Roundings(inherited + row.roundings)


def _roundings(operand: Any) -> int:
    return operand.count if isinstance(operand, _Roundings) else 0


def _derived_outputs(call: Call[Array], factor: float, wide: np.dtype[Any]) -> list[DerivedOutput]:
    derived_outputs = []
    operand, attribute = partial(given, wide=wide), partial(number, wide=wide)
    for right, like, first in bounded_outputs(call, operand, attribute):
        derived_output, *others = (judged(it, like.dtype, first.shape, factor) for it in right)
        derived_outputs.append(
            replace(derived_output, otherwise=others[0]) if others else derived_output
        )
    if also := also_right(
        call, divided=any(derived_output.divides for derived_output in derived_outputs)
    ):
        return [
            derived_output.accepting(it)
            for derived_output, it in zip(derived_outputs, also, strict=True)
        ]
    return derived_outputs


def bounded_outputs(
    call: Call[T],
    operand: Callable[[T, Precision], Bounded],
    attribute: Callable[[float], Bounded] = number,
) -> list[tuple[tuple[Bounded, ...], T, T]]:
    """Apply the formula to operands of the bound interpretation.

    Args:
        call: the operator, attributes and inputs, whose parts are computed together.
        operand: makes an operand of an input, in the precision that it may be computed in: a tensor
            in its own, what comes from R and T alone in the coarsest of all.
        attribute: makes an operand of an attribute.

    Returns:
        For each output in the node's order: what the formula yields, rounded to the output's type,
        as :func:`~onnxopt_cli.interpret.bound.bounded_value.output` returns it; the input that has
        its element type, and the input that has its shape.
    """
    floats = [each.dtype for each in call.inputs if each.dtype.kind == "f"]
    coarsest = precision_of(max(floats, key=lambda item: np.finfo(item).eps), Level.SCALAR)
    # A carried scalar in double keeps its digits beside float32 tensors, as a tensor does.
    likes = call.operator.outputs.values()
    scalars = zip(call.operator.scalars, call.scalars, strict=True)
    carried = [
        id(value)
        for scalar, value in scalars
        if scalar.name in likes and value.dtype != coarsest.dtype
    ]

    def outputs(operator: Operator) -> list[tuple[tuple[Bounded, ...], T, T]]:
        results = replace(call, operator=operator).apply(
            lambda scalar: operand(
                scalar, precision_of(scalar.dtype) if id(scalar) in carried else coarsest
            ),
            lambda tensor: operand(tensor, precision_of(tensor.dtype)),
            attribute,
        )
        return [
            (output(result, precision_of(like.dtype)), like, first)
            for result, like, first in results
        ]

    found = outputs(call.operator)
    for operator in _written(call.operator, rougher_with=call.attributes):
        found = [
            (_as_rough(right, other), like, first)
            for (right, like, first), (other, *_) in zip(found, outputs(operator), strict=True)
        ]
    return found


def _as_rough(right: Sequence[Bounded], other: Sequence[Bounded]) -> tuple[Bounded, ...]:
    """Return results that may also be off as others are, which are computed by another form.

    NaN is the root of what is surely negative; in the form, rounding may leave something positive.
    Where the formula divides by zero, the form may subtract infinity from itself.
    """
    rough = [
        replace(it, error=np.where(np.isinf(it.value), it.error, np.fmax(it.error, by.error)))
        for it, by in zip_longest(right, other[: len(right)], fillvalue=other[0])
    ]
    wrong = np.isinf(right[0].value) & np.isnan(other[0].value)
    if wrong.any():
        # Other reformulations may have done so elsewhere; where a choice has another side, that
        # stays.
        last = rough[-1]
        wrong &= last.value == rough[0].value
        rough[1:] = [replace(last, value=np.where(wrong, np.nan, last.value))]
    return tuple(rough)


def judged(
    bounded: Bounded,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    factor: float,
) -> DerivedOutput:
    """Return what an output must be that is known up to an error, in its dtype and shape."""
    wide = np.broadcast_to(np.asarray(bounded.value, WIDE), shape)
    error = np.broadcast_to(bounded.error, shape)
    expected = rounded(bounded.value, dtype, shape)
    return DerivedOutput(expected, wide, error, factor)


def also_right(call: Call[Array], *, divided: bool = False) -> list[list[AlsoRight]]:
    """Return what each output of a node may be beside what the formula yields.

    The formula's ``alpha * V + (1 - alpha) * G`` is infinite where V is. Written as
    ``V + (1 - alpha) * (G - V)`` it is NaN, and no less honest. So an element that an infinite
    input reaches may also be NaN if a right form yields NaN there, whatever the formula yields; and
    where the formula yields NaN, it may also be the infinity that a right form yields.

    A zero that comes from cancellation has no sign of its own: ``1 - alpha**T`` is 0 for alpha = 1,
    and -0 as ``-expm1(T * log(alpha))``. So where the formula divides by zero, the infinity of the
    other sign is right if a right form yields it.

    Args:
        call: the node.
        divided: whether the formula divides by zero.

    Returns:
        For each output in the node's order: NaN or an infinity, and a mask of the output's shape;
        empty if no input is infinite and nothing is divided by zero.
    """

    def outputs(operator: Operator, change: Change) -> list[Array]:
        return evaluate(replace(call.with_inputs([*map(change, call.inputs)]), operator=operator))

    return also_right_from(call.operator, call.inputs, outputs, divided=divided)


def also_right_from(
    operator: Operator,
    inputs: Sequence[Array],
    outputs: Callable[[Operator, Change], Sequence[Array]],
    *,
    divided: bool,
) -> list[list[AlsoRight]]:
    """Return what each output may be beside what the formula yields, as :func:`also_right`.

    Args:
        operator: whose formula and reformulations are asked.
        inputs: all that the outputs are computed from.
        outputs: computes them by an operator's formula, from inputs that are changed before.
        divided: whether the formula divides by zero.
    """
    infinite = any(np.isinf(array).any() for array in inputs)
    if not infinite and not divided:
        return []

    def instead_of_infinite(number: float) -> Sequence[Array]:
        def change(array: Array) -> Array:
            infinite = np.isinf(array)
            if not infinite.any():
                return array
            return np.where(infinite, np.copysign(array.dtype.type(number), array), array)

        return outputs(operator, change)

    expected = outputs(operator, lambda array: array)
    # An infinite input reaches what changes if it is NaN, or finite.
    as_nan, as_one = instead_of_infinite(np.nan), instead_of_infinite(1.0)
    reformulations = [outputs(it, lambda array: array) for it in _written(operator)]
    found: list[list[AlsoRight]] = []
    for place, value in enumerate(expected):
        reached = ~(_alike(value, as_nan[place]) & _alike(value, as_one[place]))
        masks: list[AlsoRight] = []
        for special in (np.nan, np.inf, -np.inf):
            yields = np.any(
                [_alike(form[place], np.asarray(special)) for form in reformulations], axis=0
            )
            # NaN for what is none, or an infinity for NaN.
            mask = reached & yields & (np.isnan(value) != np.isnan(special))
            mask |= yields & (value == -special)
            if mask.any():
                masks.append((special, mask))
        found.append(masks)
    return found


def _written(
    operator: Operator, rougher_with: Mapping[str, AttributeValue] | None = None
) -> Iterator[Operator]:
    """Yield the operator with its formula as each of its reformulations writes it.

    If attributes are given, only as those do that are not as accurate with them.
    """
    for form in operator.reformulations:
        if rougher_with is not None and not form.accurate:
            continue
        # A wrong formula may have lost what the form replaces.
        with suppress(ValueError):
            formula = form.written(operator.formula)
            if rougher_with is None or not form.is_accurate(rougher_with):
                yield replace(operator, formula=formula)


def _alike(one: Array, other: Array) -> Array:
    return (one == other) | (np.isnan(one) & np.isnan(other))
