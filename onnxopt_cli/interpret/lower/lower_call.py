"""The formula on symbols: one node as a list of nodes of primitive ONNX operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnxopt_cli.interpret.evaluate import WIDEST_TYPE
from onnxopt_cli.interpret.lower.symbol import (
    Recorder,
    Symbol,
    as_dtype,
)
from onnxopt_cli.operators.call import Call, Shape


def lower_call(
    call: Call[GraphTensor], outputs: Sequence[str], new_name: Callable[[str], str]
) -> list[onnx.NodeProto]:
    """Return primitive nodes that compute the same as the call's node.

    The nodes use operators with the same meaning in every opset from 13 on. Common expressions of
    several groups are computed once. Constants and R keep the precision that
    :mod:`~onnxopt_cli.interpret.lower.symbol` describes; each output is rounded to its own element
    type. An operand that would enlarge the tensor to which it is broadcast is an error at run time.

    Args:
        call: the node's operator, attributes and tensors.
        outputs: names of the node's outputs; empty names are skipped.
        new_name: function from an op_type to a similar name that is unused in the model.

    Raises:
        NotImplementedError: if the formula uses a NumPy function without a row in the vocabulary.
        TypeError: if the formula needs the value of an operand.
    """
    recorder = Recorder(new_name)

    def tensor(operand: GraphTensor) -> Symbol:
        weak = operand.dtype.kind in "biu"
        return Symbol(recorder, operand.name, operand.dtype, operand.shape, weak=weak)

    def scalar(operand: GraphTensor) -> Symbol:
        if operand.shape == ():
            return tensor(operand)
        symbol, empty_shape = tensor(operand), recorder.constant(np.zeros(0, dtype=np.int64))
        return recorder.node("Reshape", symbol, empty_shape, shape=(), weak=symbol.weak)

    results = call.apply(scalar, tensor, WIDEST_TYPE.type)
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
    # Expand may enlarge the result; then Reshape fails, since the number of elements differs.
    return node("Reshape", node("Expand", result, shape), shape, shape=first.shape)


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """A tensor of a graph.

    Attributes:
        name: its name in the graph.
        dtype: its element type.
        shape: its known dimensions; None if the rank is unknown.
    """

    name: str
    dtype: np.dtype[Any]
    shape: Shape | None


def typed_tensors(graph: onnx.GraphProto) -> dict[str, GraphTensor]:
    """Return the tensors with a declared element type in a graph, without those of subgraphs."""
    declared: list[tuple[str, int, Shape | None]] = [
        (tensor.name, tensor.data_type, tuple(tensor.dims)) for tensor in graph.initializer
    ]
    declared += [
        (sparse.values.name, sparse.values.data_type, tuple(sparse.dims))
        for sparse in graph.sparse_initializer
    ]
    for value in (*graph.value_info, *graph.output, *graph.input):
        # For a value that is not a tensor, this element type is undefined.
        tensor_type = value.type.tensor_type
        shape = None
        if tensor_type.HasField("shape"):
            shape = tuple(
                dimension.dim_value
                if dimension.HasField("dim_value") and dimension.dim_value >= 0
                else None
                for dimension in tensor_type.shape.dim
            )
        declared.append((value.name, tensor_type.elem_type, shape))
    tensors = {}
    for name, elem_type, shape in declared:
        # The element type may be undefined, or belong to a later version of ONNX.
        with suppress(KeyError):
            tensors[name] = GraphTensor(name, helper.tensor_dtype_to_np_dtype(elem_type), shape)
    return tensors
