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

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from onnxopt_cli.core.tolerance import Branch, Budget
from onnxopt_cli.core.values import Array
from onnxopt_cli.formula.call import Call, Operand
from onnxopt_cli.formula.operator import Operator
from onnxopt_cli.readings.bound.bounded import Bounded, Level, given, number, output
from onnxopt_cli.readings.bound.precision import Precision, coarsest, precision_of
from onnxopt_cli.readings.evaluate import WIDE, evaluate, rounded

T = TypeVar("T", bound=Operand)

#: The multiple of the error bound that a derived tolerance allows.
FACTOR = 4.0


@dataclass(frozen=True, slots=True, eq=False)
class Judgement:
    """What an output must be, and how far off it may be, by element.

    Attributes:
        expected: the formula's value in the output's dtype and shape.
        value: the formula's value in the wide type, before it was rounded.
        error: bound on an honest evaluation's distance from the value, rounding to the output's
            dtype included, float64. Zero where NaN or Inf must be met; infinite where honest
            evaluations may yield anything.
        factor: multiple of the error that is allowed.
        otherwise: what is right as well, element by element, where rounding decides a choice or
            right forms make NaN of an infinite input, and the same elsewhere; None if there is
            nothing else. It may have another in turn. Outputs are judged one by one: that all of
            them come from the same side of a choice is not asked.
    """

    expected: Array
    value: Array
    error: Array
    factor: float
    otherwise: Judgement | None = None

    @property
    def limit(self) -> Array:
        """The largest allowed distance, float64."""
        return self.factor * self.error

    @property
    def budget(self) -> Budget:
        """The limit as a tolerance."""
        other = None if self.otherwise is None else self.otherwise.branch
        return Budget(self.limit, self.factor, otherwise=other)

    @property
    def branch(self) -> Branch:
        """What is right here, as what is right beside something else."""
        other = None if self.otherwise is None else self.otherwise.branch
        return Branch(self.expected, self.limit, other)

    def accepting(self, others: Iterable[AlsoRight]) -> Judgement:
        """Return a judgement that some elements may be NaN or infinite in, too."""
        judgement = self
        for special, mask in others:
            expected = np.where(mask, self.expected.dtype.type(special), self.expected)
            value, error = np.where(mask, special, self.value), np.where(mask, 0.0, self.error)
            other = Judgement(expected, value, error, self.factor, judgement.otherwise)
            judgement = replace(judgement, otherwise=other)
        return judgement

    @property
    def weak_elements(self) -> Array:
        """Where the case cannot judge: the limit is infinite, or reaches a value from zero.

        A value that is zero is judged by what it was computed from, and is never weak for itself.
        """
        limit = self.limit
        size = np.abs(self.value)
        weak = np.isinf(limit) | (np.isfinite(size) & (size > 0) & (limit >= size))
        return weak if self.otherwise is None else weak | self.otherwise.weak_elements

    @property
    def weak(self) -> int:
        """Number of elements that the case cannot judge."""
        return int(np.count_nonzero(self.weak_elements))


def bound(call: Call[Array], factor: float = FACTOR) -> list[Judgement]:
    """Return the expected outputs of a node in its order, and the derived tolerance of each.

    Values and errors come from one pass over the formula; the values are those of the evaluate
    reading.

    Args:
        call: the operator, attributes and inputs.
        factor: multiple of the error that is allowed; twice as much where the wide type has no
            more digits than the output's, so that the expected value itself is off.
    """
    with np.errstate(all="ignore"):
        return call.by_group(lambda part: _bound_part(part, factor))


def bounded_outputs(
    call: Call[T],
    scalar: Callable[[T, Precision], Bounded],
    tensor: Callable[[T, Precision], Bounded],
) -> list[tuple[Bounded, T, T]]:
    """Apply the formula to operands of the bound reading.

    Args:
        call: the operator, attributes and inputs, whose parts are computed together.
        scalar: makes an operand of a scalar, in the precision that it may be computed in.
        tensor: makes an operand of a tensor in its own precision.

    Returns:
        For each output in the node's order: what the formula yields, rounded to the output's type;
        the input that has its element type, and the input that has its shape.
    """
    scalar_precision = _scalar_precision(call)
    results = call.apply(
        lambda operand: scalar(operand, scalar_precision),
        lambda operand: tensor(operand, precision_of(operand.dtype)),
        number,
    )
    return [
        (output(result, precision_of(like.dtype)), like, first) for result, like, first in results
    ]


def _bound_part(call: Call[Array], factor: float) -> list[Judgement]:
    results = bounded_outputs(
        call,
        lambda scalar, precision: given(scalar.reshape(()), precision, Level.SCALAR),
        lambda tensor, precision: given(tensor, precision, Level.TENSOR),
    )
    judgements = [_judgement(bounded, like, first, factor) for bounded, like, first in results]
    others = also_right(call)
    if not others:
        return judgements
    return [judgement.accepting(also) for judgement, also in zip(judgements, others, strict=True)]


def _scalar_precision(call: Call[T]) -> Precision:
    """Return the coarsest type in which what comes from R and T may be computed."""
    return coarsest(precision_of(each.dtype) for each in call.inputs if each.dtype.kind == "f")


def _judgement(bounded: Bounded, like: Array, first: Array, factor: float) -> Judgement:
    judgement = judged(bounded.value, bounded.error, like.dtype, first.shape, factor)
    if bounded.otherwise is None:
        return judgement
    other = bounded.otherwise
    return replace(
        judgement, otherwise=judged(other.value, other.error, like.dtype, first.shape, factor)
    )


def judged(
    value: Any, error: Any, dtype: np.dtype[Any], shape: tuple[int, ...], factor: float
) -> Judgement:
    """Return what an output must be that is known up to an error, in its dtype and shape."""
    if precision_of(dtype).unit_roundoff <= np.finfo(WIDE).eps / 2:
        factor *= 2
    wide = np.broadcast_to(np.asarray(value, WIDE), shape)
    return Judgement(rounded(value, dtype, shape), wide, np.broadcast_to(error, shape), factor)


#: Changes an input.
Change = Callable[[Array], Array]
#: NaN or an infinity, and the elements that may be it.
AlsoRight = tuple[float, Array]


def also_right(call: Call[Array]) -> list[list[AlsoRight]]:
    """Return what each output of a node may be beside what the formula yields.

    Returns:
        For each output in the node's order: NaN or an infinity, and a mask of the output's shape.
    """

    def outputs(operator: Operator, change: Change) -> list[Array]:
        scalars = tuple(map(change, call.scalars))
        groups = tuple(tuple(map(change, group)) for group in call.groups)
        return evaluate(replace(call, operator=operator, scalars=scalars, groups=groups))

    return also_right_from(call.operator, call.inputs, outputs)


def also_right_from(
    operator: Operator,
    inputs: Sequence[Array],
    outputs: Callable[[Operator, Change], Sequence[Array]],
) -> list[list[AlsoRight]]:
    """Return what each output may be beside what the formula yields.

    Args:
        operator: whose formula and forms are asked.
        inputs: all that the outputs are computed from.
        outputs: computes them by an operator's formula, from inputs that are changed before.

    Returns:
        As :func:`also_right`; empty if no input is infinite.
    """
    if not any(_is_infinite(array).any() for array in inputs):
        return []
    expected = outputs(operator, _as_it_is)
    # An infinite input reaches what changes if it is NaN, or finite.
    probes = [outputs(operator, change) for change in (_infinite_to_nan, _infinite_to_one)]
    forms = [outputs(form, _as_it_is) for form in _forms(operator)]
    found: list[list[AlsoRight]] = []
    for place, value in enumerate(expected):
        reached = ~(_alike(value, probes[0][place]) & _alike(value, probes[1][place]))
        written = [form[place] for form in forms]
        masks = [
            (special, reached & _may_be(special, value, written))
            for special in (np.nan, np.inf, -np.inf)
        ]
        found.append([(special, mask) for special, mask in masks if mask.any()])
    return found


def _forms(operator: Operator) -> Iterator[Operator]:
    """Yield the operator with its formula as each of its forms writes it."""
    for form in operator.forms:
        try:
            yield replace(operator, formula=form.written(operator.formula))
        except ValueError:
            # A wrong formula may have lost what the form replaces.
            continue


def _may_be(special: float, value: Array, written: Sequence[Array]) -> Array:
    """Tell where a form yields NaN for what is none, or an infinity for NaN."""
    yields = np.zeros(value.shape, bool)
    for each in written:
        yields |= _alike(each, np.asarray(special))
    return yields & (np.isnan(value) != np.isnan(special))


def _alike(one: Array, other: Array) -> Array:
    return (one == other) | (np.isnan(one) & np.isnan(other))


def _is_infinite(array: Array) -> Array:
    return np.isinf(array) if array.dtype.kind == "f" else np.zeros(array.shape, bool)


def _as_it_is(array: Array) -> Array:
    return array


def _infinite_to_nan(array: Array) -> Array:
    return _instead_of_infinite(array, np.nan)


def _infinite_to_one(array: Array) -> Array:
    return _instead_of_infinite(array, 1.0)


def _instead_of_infinite(array: Array, number: float) -> Array:
    infinite = _is_infinite(array)
    if not infinite.any():
        return array
    return np.where(infinite, np.copysign(array.dtype.type(number), array), array)
