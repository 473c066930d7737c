"""The formula on symbols: one node as a list of nodes of primitive ONNX operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnxopt_cli.interpret.evaluate import WIDE
from onnxopt_cli.interpret.lower.symbol import (
    Recorder,
    Symbol,
    as_dtype,
)
from onnxopt_cli.operators.call import Call, Shape


def lower_call(
    call: Call[GraphTensor], outputs: Sequence[str], new_name: Callable[[str], str]
) -> list[onnx.NodeProto]:
    """Return nodes that compute what the call's node computes.

    They use operators that mean the same in every opset from 13 on. What several groups share is
    computed once. Constants and R keep the precision that
    :mod:`~onnxopt_cli.interpret.lower.symbol` describes; each output is rounded to its own element
    type, and an operand that turns out to enlarge the tensor it is broadcast to is an error of
    whoever runs the nodes.

    Args:
        call: the node's operator, attributes and tensors.
        outputs: the node's outputs; empty names are skipped, and so is all that only they need.
        new_name: returns a name that is free in the model, and like the op_type it is given.

    Raises:
        NotImplementedError: if the formula uses a function of NumPy that is not in the vocabulary.
        TypeError: if the formula asks for the value of an operand.
    """
    recorder = Recorder(new_name)

    def tensor(operand: GraphTensor) -> Symbol:
        weak = operand.dtype.kind in "biu"
        return Symbol(recorder, operand.name, operand.dtype, operand.shape, weak=weak)

    def scalar(operand: GraphTensor) -> Symbol:
        if operand.shape == ():
            return tensor(operand)
        one, rank_0 = tensor(operand), recorder.constant(np.zeros(0, dtype=np.int64))
        return recorder.node("Reshape", one, rank_0, shape=(), weak=one.weak)

    results = call.apply(scalar, tensor, WIDE.type)
    return recorder.finish(
        {
            name: _shaped_like(as_dtype(recorder, result, like.dtype), tensor(first)).name
            for name, (result, like, first) in zip(outputs, results, strict=True)
            if name
        }
    )


def _shaped_like(result: Symbol, first: Symbol) -> Symbol:
    """Give a result the shape of its group's first tensor."""
    if result.shape == first.shape and first.shape is not None and None not in first.shape:
        return result
    node = result.recorder.node
    shape = node("Shape", first, dtype=np.dtype(np.int64), shape=None)
    # Expand lets the larger side win; Reshape refuses a result with more elements than its place.
    return node("Reshape", node("Expand", result, shape), shape, shape=first.shape)


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """A tensor of a graph.

    Attributes:
        name: its name in the graph.
        dtype: its element type.
        shape: its shape as far as known.
    """

    name: str
    dtype: np.dtype[Any]
    shape: Shape | None


def typed_tensors(graph: onnx.GraphProto) -> dict[str, GraphTensor]:
    """Return the tensors of a graph whose element type it states, without those of subgraphs."""
    stated: list[tuple[str, int, Shape | None]] = [
        *((it.name, it.data_type, tuple(it.dims)) for it in graph.initializer),
        *((it.values.name, it.values.data_type, tuple(it.dims)) for it in graph.sparse_initializer),
    ]
    for value in (*graph.value_info, *graph.output, *graph.input):
        # What is not a tensor has an undefined element type here.
        tensor = value.type.tensor_type
        shape = None
        if tensor.HasField("shape"):
            sizes = [it.dim_value if it.HasField("dim_value") else -1 for it in tensor.shape.dim]
            shape = tuple(None if size < 0 else size for size in sizes)
        stated.append((value.name, tensor.elem_type, shape))
    found = {}
    for name, elem_type, shape in stated:
        # A type may be undefined, or of a later ONNX.
        with suppress(KeyError):
            found[name] = GraphTensor(name, helper.tensor_dtype_to_np_dtype(elem_type), shape)
    return found
