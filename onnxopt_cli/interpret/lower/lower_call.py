"""Lower one node: call its formula with symbols, which record primitive ONNX nodes."""

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
    """Return primitive nodes that replace the node of a call.

    The operators of these nodes have the same meaning in every opset from 13 on. Expressions that
    several groups have in common are computed once. The module
    :mod:`~onnxopt_cli.interpret.lower.symbol` describes the precision of each operation; each
    output is rounded to its own element type. If the shape of an operand is unknown and it does not
    broadcast to its group's first tensor, the nodes fail at run time.

    Args:
        call: the node's operator, attributes and tensors.
        outputs: names of the node's outputs; empty names are skipped.
        new_name: function from an op_type to a similar name that is unused in the model.

    Raises:
        NotImplementedError: if the formula uses a NumPy function that the vocabulary lacks.
        TypeError: if the formula branches by the value of an operand.
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
    # If the result does not broadcast to this shape, Expand enlarges it, and Reshape fails because
    # of the different number of elements.
    return node("Reshape", node("Expand", result, shape), shape, shape=first.shape)


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """A tensor of a graph.

    Attributes:
        name: the name in the graph.
        dtype: the element type.
        shape: the shape, with None for unknown dimensions; None if the rank is unknown.
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
        # If the value is not a tensor, the element type of this empty message is UNDEFINED.
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
        # The element type may be UNDEFINED, or defined by a later version of ONNX.
        with suppress(KeyError):
            tensors[name] = GraphTensor(name, helper.tensor_dtype_to_np_dtype(elem_type), shape)
    return tensors
