"""The error bound of a formula: for each element, a bound on the error of reasonable evaluations.

A reasonable evaluation computes the formula in any order without additional cancellation, and
rounds to the types of the tensors or to wider types. Expressions with no operands except R and T
may be computed in the type of R or in that of the tensors, whichever is coarser. Thus ``1 -
beta**T`` may be the difference of 1 and a rounded power. If beta**T is close to 1, few bits of the
difference are correct. For example, with R in float32, beta = 0.9999 and T = 3, the relative error
of the difference is 1e-4. If R is float32, no bound can therefore reject an implementation that
rounds the power to float32 by mistake. A case in which R and the tensors are double can reject such
an implementation.
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
    WIDEST_TYPE,
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

#: Takes an input and returns a changed input.
Change = Callable[[Array], Array]
#: NaN or an infinity, and a mask of the elements at which this value is also accepted.
AlsoRight = tuple[float, Array]

#: The default ratio of a derived tolerance to the error bound.
FACTOR = 4.0


@dataclass(frozen=True, slots=True, eq=False)
class DerivedOutput:
    """The expected values of an output with their error bounds.

    Attributes:
        expected: the result of the formula in the output's dtype and shape.
        value: the result of the formula in the wide type, before it is rounded.
        error: a bound on the distance between the value and the result of a reasonable evaluation,
            including the rounding to the output's dtype; float64. The error is zero where NaN or
            Inf is required, and infinite where any value is accepted.
        factor: the multiple of the error that is allowed.
        otherwise: the alternative values; None without an alternative. They differ from the
            expected values at elements where rounding decides a choice, or where a reformulation
            turns an infinite input into NaN. An alternative may have another alternative. Each
            element of each output may take its own branch of a choice.
    """

    expected: Array
    value: Array
    error: Array
    factor: float
    otherwise: DerivedOutput | None = None

    @property
    def limit(self) -> Array:
        """The largest allowed distance of each element, float64."""
        return self.factor * self.error

    @property
    def branch(self) -> Branch:
        """The accepted values with their limits."""
        otherwise = None if self.otherwise is None else self.otherwise.branch
        return Branch(self.expected, self.limit, otherwise)

    @property
    def error_bound(self) -> ErrorBound:
        """The accepted values and limits as a tolerance."""
        return ErrorBound(self.branch.at, self.factor)

    def accepting(self, also_accepted: Iterable[AlsoRight]) -> DerivedOutput:
        """Return an output that also accepts NaN and infinities at given elements."""
        derived_output = self
        for special, mask in also_accepted:
            expected = np.where(mask, self.expected.dtype.type(special), self.expected)
            value, error = np.where(mask, special, self.value), np.where(mask, 0.0, self.error)
            otherwise = DerivedOutput(expected, value, error, self.factor, derived_output.otherwise)
            derived_output = replace(derived_output, otherwise=otherwise)
        return derived_output

    def split(self, call: Call[Array]) -> list[DerivedOutput]:
        """Split the output of :attr:`Call.concatenated` into the outputs of the call's groups."""
        arrays = (call.split([array]) for array in (self.expected, self.value, self.error))
        alternatives: Sequence[DerivedOutput | None] = [None] * len(call.groups)
        if self.otherwise:
            alternatives = self.otherwise.split(call)
        return [
            DerivedOutput(expected, value, error, self.factor, otherwise)
            for expected, value, error, otherwise in zip(*arrays, alternatives, strict=True)
        ]

    @property
    def inconclusive(self) -> int:
        """The number of elements that the case cannot judge."""
        return int(np.count_nonzero(self.branch.inconclusive))

    @property
    def divides(self) -> bool:
        """Whether an element is infinite without overflow, for example as a quotient by zero."""
        return bool((np.isinf(self.expected) & (self.error == 0)).any())


def bound(
    call: Call[Array], factor: float = FACTOR, wide: np.dtype[Any] = WIDEST_TYPE
) -> list[DerivedOutput]:
    """Return the expected outputs of a node with their error bounds, in the node's order.

    The formula is called once, with operands that propagate values and errors. The values equal
    those of :func:`~onnxopt_cli.interpret.evaluate.evaluate`.

    Args:
        call: the operator, attributes and inputs.
        factor: the multiple of the error that is allowed.
        wide: the type of the values. If ``wide`` is double, the values differ from those in the
            wide type by less than 2^-28 of the error bound of float32.
    """
    with np.errstate(all="ignore"):
        if (row := _concatenated(call)) is None:
            return call.by_group(lambda part: _derived_outputs(part, factor, wide))
        derived_outputs = (
            derived_output.split(call) for derived_output in _derived_outputs(row, factor, wide)
        )
        return [output for outputs in derived_outputs for output in outputs]


def _concatenated(call: Call[Array]) -> Call[Array] | None:
    """Return :attr:`Call.concatenated` for several small groups, to call the formula only once.

    None for large tensors. Also None if the formula is not elementwise, or if the groups differ in
    types or attributes, because the result could then be different.
    """
    first, *further = call.groups
    if not further or call.size >= LARGE_ELEMENTS or not is_elementwise(call.operator):
        return None
    types = [tensor.dtype for tensor in first]
    has_value_per_group = any(
        isinstance(attribute, tuple) and len(attribute) > 1
        for attribute in call.attributes.values()
    )
    if has_value_per_group or any([tensor.dtype for tensor in group] != types for group in further):
        return None
    return call.concatenated


def least_errors(call: Call[Any]) -> list[float]:
    """Return a lower bound of error / magnitude for the elements of each output.

    The lower bound counts, in unit roundoffs, the roundings that occur for all inputs. The bound of
    a sum is the smaller bound of its operands, plus the roundings of the addition. The bound of a
    product or quotient is the sum of the bounds of its operands, plus the roundings of the
    operation. An element whose relative error is below the lower bound is within its tolerance, so
    its error bound need not be computed.

    Args:
        call: a call that can be computed in blocks.
    """
    formula, count = call.operator.formula, len(call.operator.scalars)
    operands = [_Roundings(0)] * (count + len(call.operator.tensors))
    attributes = {
        name: value if isinstance(value, str) else _Roundings(0)
        for name, value in call.attributes.items()
    }
    floats = [array.dtype for array in call.inputs if array.dtype.kind == "f"]
    unit = min(precision_of(dtype).unit_roundoff for dtype in floats)
    # An output that is not exact is rounded once more. The bound is relative to the magnitude of
    # the expected value, which is itself rounded, hence the factor 1 - unit.
    counts = [_roundings(result) for result in formula(*operands, **attributes)]
    return [(count and count + 1) * unit * (1 - unit) for count in counts]


class _Roundings(Joining):
    """An operand that counts the roundings that affect its value for all inputs."""

    def __init__(self, count: int) -> None:
        self.count = count

    def applied(self, _function: Any, row: Row, inputs: Sequence[Any]) -> Any:
        """Count the roundings of a function's result."""
        if isinstance(row, Choice):
            return _Roundings(min(map(_roundings, inputs[1:])))
        if not isinstance(row, Elementwise) or row.exact is not None:
            return _Roundings(0)
        counts = list(map(_roundings, inputs))
        if row.is_sum:
            return _Roundings(min(counts) + row.roundings)
        inherited = sum(counts) if row.exponents else 0
        return _Roundings(inherited + row.roundings)


def _roundings(operand: Any) -> int:
    return operand.count if isinstance(operand, _Roundings) else 0


def _derived_outputs(call: Call[Array], factor: float, wide: np.dtype[Any]) -> list[DerivedOutput]:
    derived_outputs = []
    operand, attribute = partial(given, wide=wide), partial(number, wide=wide)
    for accepted, like, first in bounded_outputs(call, operand, attribute):
        derived_output, *alternatives = (
            judged(bounded, like.dtype, first.shape, factor) for bounded in accepted
        )
        if alternatives:
            derived_output = replace(derived_output, otherwise=alternatives[0])
        derived_outputs.append(derived_output)
    divided = any(derived_output.divides for derived_output in derived_outputs)
    if also_accepted := also_right(call, divided=divided):
        return [
            derived_output.accepting(specials)
            for derived_output, specials in zip(derived_outputs, also_accepted, strict=True)
        ]
    return derived_outputs


def bounded_outputs(
    call: Call[T],
    operand: Callable[[T, Precision], Bounded],
    attribute: Callable[[float], Bounded] = number,
) -> list[tuple[tuple[Bounded, ...], T, T]]:
    """Apply the formula to operands that carry error bounds.

    Args:
        call: the operator, attributes and inputs.
        operand: takes an input and a precision, and returns an operand. For a tensor, the precision
            is that of the tensor. For a scalar, it is the coarsest precision of all inputs.
        attribute: takes an attribute, and returns an operand.

    Returns:
        For each output, in the node's order: the formula's result, rounded to the output's type by
        :func:`~onnxopt_cli.interpret.bound.bounded_value.output`; an input that has the element
        type of the output; and an input that has the shape of the output.
    """
    floats = [array.dtype for array in call.inputs if array.dtype.kind == "f"]
    coarsest = precision_of(max(floats, key=lambda dtype: np.finfo(dtype).eps), Level.SCALAR)
    # If a scalar is carried to an output, such as a loss in double, it must keep its digits in
    # operations with float32 tensors.
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

    results = outputs(call.operator)
    for operator in _written(call.operator, rougher_with=call.attributes):
        results = [
            (_with_larger_errors(accepted, reformulated), like, first)
            for (accepted, like, first), (reformulated, *_) in zip(
                results, outputs(operator), strict=True
            )
        ]
    return results


def _with_larger_errors(
    accepted: Sequence[Bounded], reformulated: Sequence[Bounded]
) -> tuple[Bounded, ...]:
    """Return accepted results with errors that also cover the results of a reformulation.

    Errors that are NaN are ignored, for example the error of the root of a negative value. If the
    formula divides by zero, the reformulation may subtract infinity from infinity. NaN is then
    accepted as well.

    Args:
        accepted: the accepted results of the formula.
        reformulated: the accepted results of a less accurate reformulation.
    """
    covered = [
        replace(
            result,
            error=np.where(np.isinf(result.value), result.error, np.fmax(result.error, by.error)),
        )
        for result, by in zip_longest(
            accepted, reformulated[: len(accepted)], fillvalue=reformulated[0]
        )
    ]
    becomes_nan = np.isinf(accepted[0].value) & np.isnan(reformulated[0].value)
    if becomes_nan.any():
        # Keep an alternative result that accepts another branch of a choice, or the NaN of an
        # earlier reformulation.
        last = covered[-1]
        becomes_nan &= last.value == covered[0].value
        covered[1:] = [replace(last, value=np.where(becomes_nan, np.nan, last.value))]
    return tuple(covered)


def judged(
    bounded: Bounded,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    factor: float,
) -> DerivedOutput:
    """Return a bounded value as an expected output with a dtype and shape."""
    wide = np.broadcast_to(np.asarray(bounded.value, WIDEST_TYPE), shape)
    error = np.broadcast_to(bounded.error, shape)
    expected = rounded(bounded.value, dtype, shape)
    return DerivedOutput(expected, wide, error, factor)


def also_right(call: Call[Array], *, divided: bool = False) -> list[list[AlsoRight]]:
    """Return NaN and infinities that are accepted in addition to the formula's results.

    If V is infinite, the formula ``alpha * V + (1 - alpha) * G`` is infinite, but the equally
    correct reformulation ``V + (1 - alpha) * (G - V)`` is NaN. At an element that an infinite input
    affects, NaN is therefore also accepted if a reformulation results in NaN. If the formula
    results in NaN at such an element, an infinity is accepted if a reformulation results in this
    infinity.

    The sign of a zero that results from cancellation depends on the evaluation. For alpha = 1, ``1
    - alpha**T`` is 0, and ``-expm1(T * log(alpha))`` is -0. Therefore, where the formula divides by
    zero, the opposite infinity is also accepted if it is the result of a reformulation.

    Args:
        call: the node.
        divided: whether the formula divides by zero.

    Returns:
        For each output, in the node's order, a list of pairs. A pair consists of a value, which is
        NaN or an infinity, and a mask that has the shape of the output. The outer list is empty if
        no input is infinite and the formula does not divide by zero.
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
    """Return NaN and infinities that are also accepted; see :func:`also_right`.

    Args:
        operator: the operator with its formula and reformulations.
        inputs: all inputs on which the outputs depend.
        outputs: takes an operator and a change of inputs, and returns the outputs of the operator's
            formula.
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
    # An infinite input affects those elements that change if all infinite inputs are replaced by
    # NaN or by 1.
    as_nan, as_one = instead_of_infinite(np.nan), instead_of_infinite(1.0)
    reformulated = [outputs(written, lambda array: array) for written in _written(operator)]
    accepted: list[list[AlsoRight]] = []
    for place, value in enumerate(expected):
        affected = ~(_equal(value, as_nan[place]) & _equal(value, as_one[place]))
        masks: list[AlsoRight] = []
        for special in (np.nan, np.inf, -np.inf):
            is_possible = np.any(
                [_equal(results[place], np.asarray(special)) for results in reformulated], axis=0
            )
            # NaN may replace a number, and an infinity may replace NaN.
            mask = affected & is_possible & (np.isnan(value) != np.isnan(special))
            mask |= is_possible & (value == -special)
            if mask.any():
                masks.append((special, mask))
        accepted.append(masks)
    return accepted


def _written(
    operator: Operator, rougher_with: Mapping[str, AttributeValue] | None = None
) -> Iterator[Operator]:
    """For each reformulation of an operator, yield the operator with the rewritten formula.

    Args:
        operator: the operator.
        rougher_with: values of the attributes. If given, only reformulations that are less accurate
            than the formula at these values are used.
    """
    for reformulation in operator.reformulations:
        if rougher_with is not None and not reformulation.accurate:
            continue
        # A mutant may lack the expression that the reformulation replaces.
        with suppress(ValueError):
            formula = reformulation.written(operator.formula)
            if rougher_with is None or not reformulation.is_accurate(rougher_with):
                yield replace(operator, formula=formula)


def _equal(left: Array, right: Array) -> Array:
    return (left == right) | (np.isnan(left) & np.isnan(right))
