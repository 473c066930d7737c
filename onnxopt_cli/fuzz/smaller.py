"""Examples of a node that are smaller than a failing one.

Hypothesis makes other choices, and whole tensors follow from one of them: which elements matter it
cannot find out that way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.formula.operator import AttributeValue
from onnxopt_cli.fuzz.choices import has_result
from onnxopt_cli.fuzz.node_example import Example, NodeExample


def smaller(example: Example) -> Iterator[Example]:
    """Yield examples with less in them, what makes the largest difference first.

    None of them can be made larger again by repeating this. There are none of several nodes.
    """
    if isinstance(example, NodeExample):
        node = _Node(example)
        yield from node.with_one_group()
        yield from node.with_fewer_elements()
        yield from node.with_fewer_attributes()
        yield from node.with_simple_numbers()


class _Node:
    """An example taken apart into shared inputs and groups of tensors."""

    def __init__(self, example: NodeExample) -> None:
        self._example = example
        operator = example.operator
        values = list(example.inputs.values())
        count = len(operator.scalars)
        self._scalars, tensors = values[:count], values[count:]
        number = len(tensors) // len(operator.tensors)
        self._groups = [tensors[group::number] for group in range(number)]

    def with_one_group(self) -> Iterator[NodeExample]:
        if len(self._groups) > 1:
            for number, group in enumerate(self._groups):
                attributes = {
                    name: value[min(number, len(value) - 1) :][:1]
                    if isinstance(value, tuple)
                    else value
                    for name, value in self._example.attributes.items()
                }
                yield from self._with(groups=[group], attributes=attributes)

    def with_fewer_elements(self) -> Iterator[NodeExample]:
        for number, group in enumerate(self._groups):
            for fewer in _fewer(group):
                yield from self._with(groups=_exchanged(self._groups, number, fewer))
        for number, scalar in enumerate(self._scalars):
            if scalar.ndim:
                flat = scalar.reshape(())
                yield from self._with(scalars=_exchanged(self._scalars, number, flat))

    def with_fewer_attributes(self) -> Iterator[NodeExample]:
        given = self._example.attributes
        for attribute in self._example.operator.attributes:
            if attribute.name in given and not attribute.required:
                others = {name: value for name, value in given.items() if name != attribute.name}
                yield from self._with(attributes=others)

    def with_simple_numbers(self) -> Iterator[NodeExample]:
        for number, scalar in enumerate(self._scalars):
            # The rate's simplest value is one: with zero nothing happens.
            for simple in _simple(scalar, 0 if scalar.dtype.kind == "i" else 1):
                yield from self._with(scalars=_exchanged(self._scalars, number, simple))
        for number, group in enumerate(self._groups):
            for place, tensor in enumerate(group):
                for simple in _simple(tensor, 0, 1):
                    others = _exchanged(group, place, simple)
                    yield from self._with(groups=_exchanged(self._groups, number, others))

    def _with(
        self,
        *,
        scalars: list[Array] | None = None,
        groups: list[list[Array]] | None = None,
        attributes: dict[str, AttributeValue] | None = None,
    ) -> Iterator[NodeExample]:
        """Yield the example with other parts, if its formula still has a result."""
        example, operator = self._example, self._example.operator
        scalars = self._scalars if scalars is None else scalars
        groups = self._groups if groups is None else groups
        attributes = example.attributes if attributes is None else attributes
        values = [
            *scalars,
            *(tensor for tensors in zip(*groups, strict=True) for tensor in tensors),
        ]
        inputs = dict(zip(operator.input_names(len(groups)), values, strict=True))
        shared = {item.name: value for item, value in zip(operator.scalars, scalars, strict=True)}
        if has_result(operator, attributes, shared):
            yield replace(example, attributes=attributes, inputs=inputs)


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
