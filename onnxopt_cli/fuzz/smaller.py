"""Examples of a node that are smaller than a failing one.

Hypothesis makes other choices, and whole tensors follow from one of them: which elements matter it
cannot find out that way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.formula.operator import AttributeValue
from onnxopt_cli.fuzz.choices import has_result
from onnxopt_cli.fuzz.graph_example import Example
from onnxopt_cli.fuzz.node_example import NodeExample

#: What is exchanged: attributes, scalars, or groups of tensors.
_Parts = dict[str, Any]
#: Of so many parts of the elements one may be enough.
_PARTS = 8


def smaller(example: Example) -> Iterator[Example]:
    """Yield examples with less in them, what makes the largest difference first.

    None of them can be made larger again by repeating this. There are none of several nodes.
    """
    if not isinstance(example, NodeExample):
        return
    operator, given = example.operator, example.attributes
    values = list(example.inputs.values())
    scalars, tensors = values[: len(operator.scalars)], values[len(operator.scalars) :]
    number = len(tensors) // len(operator.tensors)
    groups = [tensors[group::number] for group in range(number)]
    parts: Iterator[_Parts] = chain(
        _one_group(groups, given),
        _fewer_elements(scalars, groups),
        _single_precision(scalars, groups),
        (
            {"attributes": {name: value for name, value in given.items() if name != item.name}}
            for item in operator.attributes
            if item.name in given and not item.required
        ),
        _simple_numbers(scalars, groups),
    )
    for part in parts:
        attributes = part.get("attributes", given)
        shared = part.get("scalars", scalars)
        members = zip(*part.get("groups", groups), strict=True)
        inputs = [*shared, *(tensor for tensors in members for tensor in tensors)]
        names = operator.input_names(len(part.get("groups", groups)))
        by_name = {item.name: it for item, it in zip(operator.scalars, shared, strict=True)}
        if has_result(operator, attributes, by_name):
            named = dict(zip(names, inputs, strict=True))
            yield replace(example, attributes=attributes, inputs=named)


def _one_group(groups: list[list[Array]], given: dict[str, AttributeValue]) -> Iterator[_Parts]:
    for number, group in enumerate(groups if len(groups) > 1 else ()):
        attributes = {
            name: value[min(number, len(value) - 1) :][:1] if isinstance(value, tuple) else value
            for name, value in given.items()
        }
        yield {"groups": [group], "attributes": attributes}


def _fewer_elements(scalars: list[Array], groups: list[list[Array]]) -> Iterator[_Parts]:
    for number, group in enumerate(groups):
        for fewer in _fewer(group):
            yield {"groups": _exchanged(groups, number, fewer)}
    for number, scalar in enumerate(scalars):
        if scalar.ndim:
            yield {"scalars": _exchanged(scalars, number, scalar.reshape(()))}


def _single_precision(scalars: list[Array], groups: list[list[Array]]) -> Iterator[_Parts]:
    def single(arrays: list[Array]) -> list[Array]:
        with np.errstate(over="ignore"):
            return [it.astype(np.float32) if it.dtype == np.float64 else it for it in arrays]

    if any(it.dtype == np.float64 for it in chain(scalars, *groups)):
        yield {"scalars": single(scalars), "groups": [single(group) for group in groups]}


def _simple_numbers(scalars: list[Array], groups: list[list[Array]]) -> Iterator[_Parts]:
    first, length = len(scalars), len(groups[0])
    given = [*scalars, *chain.from_iterable(groups)]
    # The rate's simplest value is one: with zero nothing happens.
    simple = [
        np.full_like(array, array.dtype.kind != "i" and place < first)
        for place, array in enumerate(given)
    ]

    def parts(arrays: list[Array]) -> _Parts:
        starts = range(first, len(arrays), length)
        return {"scalars": arrays[:first], "groups": [arrays[at : at + length] for at in starts]}

    left = [at for at, array in enumerate(given) if _differ(array, simple[at])]
    # All but one at once, as each failure may cost a process.
    for place in left[2:] and left:
        yield parts(_exchanged(simple, place, given[place]))
    for place in left:
        yield parts(_exchanged(given, place, simple[place]))
        if place >= first and _differ(given[place], ones := np.ones_like(given[place])):
            yield parts(_exchanged(given, place, ones))


def _fewer(group: list[Array]) -> Iterator[list[Array]]:
    """Yield parts of a group's elements; what has one element loses its dimensions."""
    shape, size = group[0].shape, group[0].size
    full = [np.broadcast_to(tensor, shape).ravel() for tensor in group]
    if size > 1:
        # Small parts first, as each failure may cost a process.
        for number in dict.fromkeys((min(_PARTS, size), 2)):
            for places in np.array_split(np.arange(size), number):
                yield [tensor[places] for tensor in full]
    elif size == 1 and shape:
        yield [tensor.reshape(()) for tensor in full]
    elif len(shape) > 1:
        yield full


def _differ(one: Array, other: Array) -> bool:
    return one.tobytes() != other.tobytes()


def _exchanged(members: list[Any], place: int, member: Any) -> list[Any]:
    return [*members[:place], member, *members[place + 1 :]]
