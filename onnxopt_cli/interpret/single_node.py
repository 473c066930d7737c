"""Recognize models that consist of one node of an operator with a formula, and bind the node."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import numpy_helper

from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.errors import NodeError
from onnxopt_cli.operators.call import (
    Call,
    bind,
    node_attributes,
)
from onnxopt_cli.operators.operator import Operator
from onnxopt_cli.operators.registry import registry


def sole_operator(model: onnx.ModelProto) -> Operator | None:
    """Return the operator of a model that consists of one node of an operator with a formula.

    Returns None for any other model.
    """
    graph = model.graph
    if len(graph.node) != 1 or model.functions:
        return None
    node = graph.node[0]
    operator = registry().find(node.domain, node.op_type)
    # The graph may list the node's outputs in another order.
    outputs = sorted(output.name for output in graph.output)
    if operator is None or outputs != sorted(filter(None, node.output)):
        return None
    imported = [(entry.domain, entry.version) for entry in model.opset_import]
    return operator if (operator.domain, operator.version) in imported else None


def sole_call(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> Call[Array] | None:
    """Bind the inputs of a model for which :func:`sole_operator` returns an operator.

    Returns None for any other model.

    Raises:
        NodeError: if the node or the inputs break the operator's signature.
    """
    operator = sole_operator(model)
    return None if operator is None else bind_node(operator, model, inputs)


def bind_node(
    operator: Operator, model: onnx.ModelProto, inputs: Mapping[str, Value]
) -> Call[Array]:
    """Bind the inputs of a model that consists of one node of a given operator.

    Raises:
        NodeError: if the node or the inputs break the operator's signature.
    """
    node = model.graph.node[0]
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    operands: list[Array | None] = []
    for name in node.input:
        if name in inputs:
            value = inputs[name]
            if value is None or isinstance(value, (list, dict)):
                raise NodeError(f"{operator.name}: input {name} must be a tensor")
            operands.append(value)
        elif name in constants:
            operands.append(numpy_helper.to_array(constants[name]))
        else:
            operands.append(None)
    present = {attribute.name for attribute in node.attribute}
    return bind(
        operator,
        operands,
        node_attributes(operator, node),
        len(node.output),
        omitted=frozenset(attribute.name for attribute in operator.attributes) - present,
    )
