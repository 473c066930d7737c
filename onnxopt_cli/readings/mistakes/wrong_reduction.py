"""Wrong implementations that take elements or numbers from other tensors, or leave some out.

They matter to operators whose results depend on all elements of a tensor, or that have a number for
each tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.formula.call import Call
from onnxopt_cli.formula.operator import Operator
from onnxopt_cli.readings.evaluate import evaluate
from onnxopt_cli.readings.implementation import Compute, Implementation
from onnxopt_cli.readings.mistakes.wrong_node import Groups, regrouped, sources


def wrong_reduction(operator: Operator) -> Iterator[Implementation]:
    """Yield the implementations; some may equal the formula on every input."""
    yield Implementation(
        "several tensors computed as one",
        "What depends on all elements of a tensor depends on those of the others, too.",
        compute=_joined,
    )
    for attribute in operator.attributes:
        if attribute.each:
            yield Implementation(
                f"{attribute.name} of the first tensor used for all",
                "The node gives one for each.",
                compute=_with_each(attribute.name, lambda values: values[:1]),
            )
            yield Implementation(
                f"{attribute.name} of several tensors in reverse order",
                "The last one is taken for the first tensor.",
                compute=_with_each(attribute.name, lambda values: values[::-1]),
            )
    if any(map(operator.carries, operator.outputs)):
        kept: dict[str, Callable[[Groups], Groups]] = {
            "all tensors but the first left out": lambda groups: groups[:1],
            "last of several tensors left out": lambda groups: groups[: max(len(groups) - 1, 1)],
            "last element of each tensor left out": _without_last,
        }
        for name, change in kept.items():
            yield Implementation(name, "They do not count.", compute=regrouped(change))


def _joined(call: Call[Array]) -> list[Array]:
    """Compute all groups as one that holds all elements; the types are those of the first."""
    if any(map(call.operator.carries, call.operator.outputs)):
        return evaluate(call)
    shapes = [group[0].shape for group in call.groups]
    full = [
        [np.broadcast_to(tensor, shape).ravel() for tensor in group]
        for group, shape in zip(call.groups, shapes, strict=True)
    ]
    joined = tuple(np.concatenate(tensors) for tensors in zip(*full, strict=True))
    attributes = {
        name: value[:1] if isinstance(value, tuple) else value
        for name, value in call.attributes.items()
    }
    ends = np.cumsum([tensors[0].size for tensors in full])[:-1]
    outputs = evaluate(replace(call, groups=(joined,), attributes=attributes))
    parts = [part for output in outputs for part in np.split(output, ends)]
    return [
        part.reshape(first.shape).astype(like.dtype)
        for part, (like, first) in zip(parts, sources(call), strict=True)
    ]


def _with_each(name: str, change: Callable[[tuple[float, ...]], tuple[float, ...]]) -> Compute:
    def compute(call: Call[Array]) -> list[Array]:
        values = call.attributes[name]
        changed = change(values) if isinstance(values, tuple) else values
        return evaluate(replace(call, attributes={**call.attributes, name: changed}))

    return compute


def _without_last(groups: Groups) -> Groups:
    return tuple(
        tuple(np.broadcast_to(tensor, group[0].shape).ravel()[:-1] for tensor in group)
        for group in groups
    )
