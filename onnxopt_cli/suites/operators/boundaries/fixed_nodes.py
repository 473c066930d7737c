"""Generators that always draw a given node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from onnx import TensorProto, ValueInfoProto, helper

from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.suites.operators.node_draft import NodeDraft

Generator = Callable[[NodeDraft], None]

#: The reductions of ONNX, without the prefix ``Reduce`` of their names.
REDUCTIONS = (
    *("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"),
)


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


def int64s(*values: Any) -> Array:
    """Return a tensor of int64."""
    return np.array(values, np.int64)


def distinct(*shape: int) -> Array:
    """Return a tensor of float32 whose elements are in irregular order.

    In a tensor of up to 101 elements, all elements differ from each other.
    """
    count = prod(shape)
    return ((np.arange(count) * 37 % 101 - 50) / 8).reshape(shape).astype(np.float32)


def distinct_bytes(*shape: int) -> Array:
    """Return a tensor of uint8 whose elements are ordered as in :func:`distinct`."""
    return (distinct(*shape) * 8 + 60).astype(np.uint8)


def vectors(*names: str) -> list[ValueInfoProto]:
    """Return declarations of a graph's inputs or outputs: float32 vectors of two elements."""
    return [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in names]


def fixed_node(*inputs: Any, outputs: int | None = None, **attributes: Any) -> Generator:
    """Return a generator that always draws the same node.

    Args:
        inputs: the inputs, None for an omitted one.
        outputs: the number of requested outputs; None for all outputs that are not optional.
        attributes: the attributes.
    """
    return partial(add_fixed, inputs=inputs, attributes=attributes, outputs=outputs)
