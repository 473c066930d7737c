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
from onnxopt_cli.fuzz.node_example import Example, NodeExample

#: What is exchanged: attributes, scalars, or groups of tensors.
_Parts = dict[str, Any]


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


def _simple_numbers(scalars: list[Array], groups: list[list[Array]]) -> Iterator[_Parts]:
    for number, scalar in enumerate(scalars):
        # The rate's simplest value is one: with zero nothing happens.
        for simple in _simple(scalar, 0 if scalar.dtype.kind == "i" else 1):
            yield {"scalars": _exchanged(scalars, number, simple)}
    for number, group in enumerate(groups):
        for place, tensor in enumerate(group):
            for simple in _simple(tensor, 0, 1):
                yield {"groups": _exchanged(groups, number, _exchanged(group, place, simple))}


def _fewer(group: list[Array]) -> Iterator[list[Array]]:
    """Yield either half of a group's elements; what has one element loses its dimensions."""
    shape, size = group[0].shape, group[0].size
    full = [np.broadcast_to(tensor, shape).ravel() for tensor in group]
    if size > 1:
        yield [tensor[: size // 2] for tensor in full]
        yield [tensor[size // 2 :] for tensor in full]
    elif size == 1 and shape:
        yield [tensor.reshape(()) for tensor in full]
    elif len(shape) > 1:
        yield full


def _simple(array: Array, *values: int) -> Iterator[Array]:
    """Yield arrays of one value, up to the one that is there."""
    for value in values:
        simple = np.full_like(array, value)
        if simple.tobytes() == array.tobytes():
            return
        yield simple


def _exchanged(members: list[Any], place: int, member: Any) -> list[Any]:
    return [*members[:place], member, *members[place + 1 :]]
