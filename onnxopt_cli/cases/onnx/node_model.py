"""Models of one node, such as a case describes: as ONNX's own test generator builds them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnxopt_cli.cases.values.declared import (
    Declared,
    DeclaredGroup,
    DeclaredTensor,
)
from onnxopt_cli.formula.call import attribute_value
from onnxopt_cli.formula.operator import AttributeValue, Operator
from onnxopt_cli.operators import OPERATORS

_PRODUCER = "onnxopt"
#: Of domains that onnx knows no IR version of: that of ai.onnx.preview.training.
_IR_VERSION = 7

Shape = tuple[int | None, ...]


def node_model(
    operator: Operator | onnx.defs.OpSchema,
    version: int,
    *,
    inputs: Sequence[onnx.ValueInfoProto | None],
    outputs: Sequence[onnx.ValueInfoProto | None],
    attributes: Iterable[onnx.AttributeProto] = (),
    graph_name: str,
) -> onnx.ModelProto:
    """Build a model whose graph is one node.

    Args:
        operator: the node's, ours or onnx's.
        version: the version of its domain that the model imports.
        inputs: the node's and so the graph's inputs in order, None for one that is left out.
        outputs: likewise.
        attributes: exactly those that the node has.
        graph_name: the graph's name.

    Raises:
        ValueError: if the installed onnx does not know the version.
    """
    node = helper.make_node(
        operator.name,
        [value.name if value else "" for value in inputs],
        [value.name if value else "" for value in outputs],
        domain=operator.domain,
    )
    node.attribute.extend(sorted(attributes, key=lambda attribute: attribute.name))
    graph = helper.make_graph(
        [node],
        graph_name,
        [value for value in inputs if value],
        [value for value in outputs if value],
    )
    return whole_model(graph, [(operator.domain, version)])


def whole_model(graph: onnx.GraphProto, imports: Iterable[tuple[str, int]]) -> onnx.ModelProto:
    """Build a model around a graph, of the oldest IR version that carries its opsets.

    Args:
        graph: the graph.
        imports: domains and their versions.

    Raises:
        ValueError: if the installed onnx does not know the version of a domain.
    """
    opsets = [helper.make_operatorsetid(*each) for each in imports]
    known = {domain for domain, _ in helper.OP_SET_ID_VERSION_MAP}
    ours = {operator.domain for operator in OPERATORS} - known
    ir_version = max(
        _IR_VERSION if each.domain in ours else helper.find_min_ir_version_for([each])
        for each in opsets
    )
    return helper.make_model(
        graph, ir_version=ir_version, opset_imports=opsets, producer_name=_PRODUCER
    )


def formula_model(
    operator: Operator,
    attributes: Mapping[str, AttributeValue],
    inputs: Sequence[DeclaredTensor],
    graph_name: str,
    *,
    input_names: Sequence[str] | None = None,
) -> onnx.ModelProto:
    """Build the model of one node of an operator with a formula.

    Args:
        operator: the node's operator.
        attributes: those that the node has; it leaves out the others.
        inputs: tensors in the operator's order that satisfy its signature.
        graph_name: the graph's name.
        input_names: of the graph; those of the operator if left out.
    """
    size = (len(inputs) - len(operator.scalars)) // len(operator.tensors)
    outputs: list[onnx.ValueInfoProto] = []
    for name, (like, base) in zip(operator.output_names(size), operator.places(size), strict=True):
        own, shape = inputs[like].shape, inputs[base].shape
        # As far as onnx's shape inference lets us, which takes the shape of the first.
        known = (size if size == other else None for size, other in zip(shape, own, strict=False))
        declared = tuple(known) if len(own) == len(shape) else shape
        outputs.append(tensor_info(name, inputs[like].dtype, declared))
    return node_model(
        operator,
        operator.version,
        inputs=[
            tensor_info(name, tensor.dtype, tensor.shape)
            for name, tensor in zip(input_names or operator.input_names(size), inputs, strict=True)
        ],
        outputs=outputs,
        attributes=[
            helper.make_attribute(item.name, attribute_value(operator, item, attributes[item.name]))
            for item in operator.attributes
            if item.name in attributes
        ],
        graph_name=graph_name,
    )


@lru_cache
def tensor_info(name: str, dtype: np.dtype[Any], shape: Shape | None) -> onnx.ValueInfoProto:
    """Declare a tensor; None stands for an unknown dimension or an unknown shape.

    What is returned is not to be changed: it may be returned again.
    """
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)


def value_info(name: str, value: Declared) -> onnx.ValueInfoProto:
    """Declare a value as what it is; the shapes of a sequence's elements are left open."""
    return helper.make_value_info(name, _type_of(value))


def _type_of(value: Declared) -> onnx.TypeProto:
    if isinstance(value, DeclaredGroup):
        inner = _type_of(value.items[0]) if value.items else _tensor_type(value.dtype, None)
        if value.kind == "optional":
            return helper.make_optional_type_proto(inner)
        if inner.HasField("tensor_type"):
            inner.tensor_type.ClearField("shape")
        return helper.make_sequence_type_proto(inner)
    return _tensor_type(value.dtype, value.shape)


def _tensor_type(dtype: np.dtype[Any], shape: Shape | None) -> onnx.TypeProto:
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(dtype), shape)
