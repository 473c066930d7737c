"""What is known of the tensors of a graph before it runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnxopt_cli.formula.call import Shape


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
    return {tensor.name: tensor for tensor in _stated(graph)}


def _stated(graph: onnx.GraphProto) -> Iterator[GraphTensor]:
    for constant in graph.initializer:
        yield from _tensor(constant.name, constant.data_type, tuple(constant.dims))
    for sparse in graph.sparse_initializer:
        yield from _tensor(sparse.values.name, sparse.values.data_type, tuple(sparse.dims))
    for values in (graph.value_info, graph.output, graph.input):
        for value in values:
            if value.type.HasField("tensor_type"):
                type_ = value.type.tensor_type
                shape = _shape(type_.shape) if type_.HasField("shape") else None
                yield from _tensor(value.name, type_.elem_type, shape)


def _tensor(name: str, elem_type: int, shape: Shape | None) -> Iterator[GraphTensor]:
    try:
        dtype = helper.tensor_dtype_to_np_dtype(elem_type)
    except KeyError:
        # Undefined, or a type of a later ONNX.
        return
    yield GraphTensor(name, dtype, shape)


def _shape(shape: onnx.TensorShapeProto) -> Shape:
    return tuple(
        dimension.dim_value
        if dimension.HasField("dim_value") and dimension.dim_value >= 0
        else None
        for dimension in shape.dim
    )
