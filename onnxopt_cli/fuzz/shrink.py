"""Shrink failing examples of one node, and random graphs.

Hypothesis shrinks choices, but a single choice determines a whole tensor or a whole graph, so it
cannot remove elements or nodes. This module does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import TypeVar

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.fuzz.choices import has_result
from onnxopt_cli.fuzz.graph_example import Example
from onnxopt_cli.fuzz.node_example import NodeExample
from onnxopt_cli.fuzz.random_graph import RandomGraph
from onnxopt_cli.operators.call import Call, bind

T = TypeVar("T")

#: Number of parts into which the elements of a tensor are split; each part is tried alone.
_ELEMENT_PARTS = 8


def smaller(example: Example) -> Iterator[Example]:
    """Yield smaller examples, the smallest first.

    Replacing an example by one of its smaller examples repeatedly comes to an end. For examples of
    several nodes of operators with a formula, no smaller examples are yielded.
    """
    if isinstance(example, RandomGraph):
        yield from filter(_is_computable, example.smaller())
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


def _is_computable(graph: RandomGraph) -> bool:
    """Return whether onnx's reference can compute a graph."""
    try:
        graph.problem()
    except Exception:  # noqa: BLE001 - the reference raises any error
        return False
    return True


def _fewer_elements(node: Call[Array]) -> Iterator[Call[Array]]:
    for number, group in enumerate(node.groups):
        for fewer in _fewer(group):
            yield replace(node, groups=_exchanged(node.groups, number, fewer))
    for number, scalar in enumerate(node.scalars):
        if scalar.ndim:
            yield replace(node, scalars=_exchanged(node.scalars, number, scalar.reshape(())))


def _single_precision(node: Call[Array]) -> Iterator[Call[Array]]:
    with np.errstate(over="ignore"):
        single = [
            array.astype(np.float32) if array.dtype == np.float64 else array
            for array in node.inputs
        ]
    if any(array.dtype == np.float64 for array in node.inputs):
        yield bind(node.operator, single, node.attributes)


def _fewer_attributes(node: Call[Array]) -> Iterator[Call[Array]]:
    for item in node.operator.attributes:
        if item.name in node.attributes and not item.required:
            fewer = {key: value for key, value in node.attributes.items() if key != item.name}
            yield replace(node, attributes=fewer)


def _simple_numbers(node: Call[Array]) -> Iterator[Call[Array]]:
    first_tensor, arrays = len(node.scalars), node.inputs
    # The simplest rate is 1: with a rate of 0, most errors would not affect the outputs.
    simple = tuple(
        np.full_like(array, array.dtype.kind != "i" and place < first_tensor)
        for place, array in enumerate(arrays)
    )
    places = [place for place, array in enumerate(arrays) if _differ(array, simple[place])]
    # First simplify all inputs but one at once: attempts may be slow, if the failure is a crash.
    candidates = [
        _exchanged(simple, place, arrays[place])
        for place in (places if len(places) > 2 else ())  # noqa: PLR2004
    ]
    for place in places:
        candidates.append(_exchanged(arrays, place, simple[place]))
        ones = np.ones_like(arrays[place])
        if place >= first_tensor and _differ(arrays[place], ones):
            candidates.append(_exchanged(arrays, place, ones))
    for inputs in candidates:
        yield bind(node.operator, inputs, node.attributes)


def _fewer(group: tuple[Array, ...]) -> Iterator[tuple[Array, ...]]:
    """Yield groups with a part of the elements, or for one element with tensors of lower rank."""
    shape, size = group[0].shape, group[0].size
    full = tuple(np.broadcast_to(tensor, shape).ravel() for tensor in group)
    if size > 1:
        # First try small parts: attempts may be slow, if the failure is a crash.
        for number in dict.fromkeys((min(_ELEMENT_PARTS, size), 2)):
            for places in np.array_split(np.arange(size), number):
                yield tuple(tensor[places] for tensor in full)
    elif size == 1 and shape:
        yield tuple(tensor.reshape(()) for tensor in full)
    elif len(shape) > 1:
        yield full


def _differ(left: Array, right: Array) -> bool:
    return left.tobytes() != right.tobytes()


def _exchanged(members: tuple[T, ...], place: int, member: T) -> tuple[T, ...]:
    return (*members[:place], member, *members[place + 1 :])
