"""Examples of a node that are smaller than a failing one.

Hypothesis makes other choices, and whole tensors follow from one of them: which elements matter it
cannot find out that way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import TypeVar

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.formula.call import Call, bind
from onnxopt_cli.fuzz.choices import has_result
from onnxopt_cli.fuzz.graph_example import Example
from onnxopt_cli.fuzz.node_example import NodeExample

T = TypeVar("T")

#: Of so many parts of the elements one may be enough.
_PARTS = 8


def smaller(example: Example) -> Iterator[Example]:
    """Yield examples with less in them, what makes the largest difference first.

    None of them can be made larger again by repeating this. There are none of several nodes.
    """
    if not isinstance(example, NodeExample):
        return
    operator = example.operator
    node = bind(operator, [*example.inputs.values()], example.attributes)
    parts = chain(
        map(node.group, range(len(node.groups)) if len(node.groups) > 1 else ()),
        _fewer_elements(node),
        _single_precision(node),
        _fewer_attributes(node),
        _simple_numbers(node),
    )
    for part in parts:
        if has_result(operator, part.attributes, part.scalars):
            names = operator.input_names(len(part.groups))
            inputs = dict(zip(names, part.inputs, strict=True))
            yield replace(example, attributes=dict(part.attributes), inputs=inputs)


def _fewer_elements(node: Call[Array]) -> Iterator[Call[Array]]:
    for number, group in enumerate(node.groups):
        for fewer in _fewer(group):
            yield replace(node, groups=_exchanged(node.groups, number, fewer))
    for number, scalar in enumerate(node.scalars):
        if scalar.ndim:
            yield replace(node, scalars=_exchanged(node.scalars, number, scalar.reshape(())))


def _single_precision(node: Call[Array]) -> Iterator[Call[Array]]:
    with np.errstate(over="ignore"):
        single = [it.astype(np.float32) if it.dtype == np.float64 else it for it in node.inputs]
    if any(it.dtype == np.float64 for it in node.inputs):
        yield bind(node.operator, single, node.attributes)


def _fewer_attributes(node: Call[Array]) -> Iterator[Call[Array]]:
    for item in node.operator.attributes:
        if item.name in node.attributes and not item.required:
            others = {name: it for name, it in node.attributes.items() if name != item.name}
            yield replace(node, attributes=others)


def _simple_numbers(node: Call[Array]) -> Iterator[Call[Array]]:
    first, given = len(node.scalars), node.inputs
    # The rate's simplest value is one: with zero nothing happens.
    simple = tuple(
        np.full_like(array, array.dtype.kind != "i" and place < first)
        for place, array in enumerate(given)
    )
    left = [at for at, array in enumerate(given) if _differ(array, simple[at])]
    # All but one at once, as each failure may cost a process.
    changed = [_exchanged(simple, place, given[place]) for place in left[2:] and left]
    for place in left:
        changed.append(_exchanged(given, place, simple[place]))
        if place >= first and _differ(given[place], ones := np.ones_like(given[place])):
            changed.append(_exchanged(given, place, ones))
    for inputs in changed:
        yield bind(node.operator, inputs, node.attributes)


def _fewer(group: tuple[Array, ...]) -> Iterator[tuple[Array, ...]]:
    """Yield parts of a group's elements; what has one element loses its dimensions."""
    shape, size = group[0].shape, group[0].size
    full = tuple(np.broadcast_to(tensor, shape).ravel() for tensor in group)
    if size > 1:
        # Small parts first, as each failure may cost a process.
        for number in dict.fromkeys((min(_PARTS, size), 2)):
            for places in np.array_split(np.arange(size), number):
                yield tuple(tensor[places] for tensor in full)
    elif size == 1 and shape:
        yield tuple(tensor.reshape(()) for tensor in full)
    elif len(shape) > 1:
        yield full


def _differ(one: Array, other: Array) -> bool:
    return one.tobytes() != other.tobytes()


def _exchanged(members: tuple[T, ...], place: int, member: T) -> tuple[T, ...]:
    return (*members[:place], member, *members[place + 1 :])
