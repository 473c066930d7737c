"""What else is right where an input is infinite: what the operator's right forms make of it.

The formula's ``alpha * V + (1 - alpha) * G`` is infinite where V is. Written as
``V + (1 - alpha) * (G - V)`` it is NaN, and no less honest. So an element that an infinite input
reaches may also be NaN if a right form yields NaN there, whatever the formula yields; and where the
formula yields NaN, it may also be the infinity that a right form yields. Where all inputs are
finite no form is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.formula.call import Call
from onnxopt_cli.formula.operator import Operator
from onnxopt_cli.readings.evaluate import evaluate

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
