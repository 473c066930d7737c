"""Generators of given nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from onnxopt_cli.core.values import Value
from onnxopt_cli.suites.operators.node_draft import NodeDraft

Generator = Callable[[NodeDraft], None]


def add_fixed(
    draft: NodeDraft,
    *,
    inputs: Sequence[Value],
    attributes: Mapping[str, Any],
    outputs: int | None = None,
) -> None:
    """Add the given inputs and attributes to a draft."""
    draft.require(all(draft.has(name) for name in attributes))
    for value in inputs:
        draft.add(value)
    for name, attribute in attributes.items():
        draft.set(name, attribute)
    if outputs is not None:
        draft.outputs = [True] * outputs


def fixed_node(*inputs: Any, outputs: int | None = None, **attributes: Any) -> Generator:
    """Return a generator that always draws the same node.

    Args:
        inputs: the inputs, None for an omitted one.
        outputs: the number of requested outputs; None for those that are not optional.
        attributes: the attributes.
    """
    return partial(add_fixed, inputs=inputs, attributes=attributes, outputs=outputs)
