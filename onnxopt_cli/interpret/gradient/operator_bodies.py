"""Replace operators without a rule of differentiation by primitive nodes.

This module contains bodies for Gelu and for normalizations, which compute the variance as the mean
square of the difference from the mean. Other operators are replaced by ONNX's function body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnxopt_cli.interpret.gradient.backward_pass import BackwardPass, unsupported
from onnxopt_cli.operators.functions import bound_body
from onnxopt_cli.operators.nodes import plain_domain


@dataclass
class OperatorBody:
    """Primitive nodes that replace one node.

    Attributes:
        nodes: the nodes.
        constants: initializers that the nodes use.
    """

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)


def operator_body(
    node: onnx.NodeProto,
    values: Mapping[str, Any],
    version: int,
    free_name: Callable[[str], str],
) -> OperatorBody:
    """Return the body of a node without a rule.

    Args:
        node: the node.
        values: the values of its inputs.
        version: the version of ai.onnx.
        free_name: function from a proposed name to a similar name that the graph does not contain.

    Raises:
        NodeError: if there is no body for the node.
    """
    if plain_domain(node.domain):
        raise unsupported(node)
    if node.op_type in _BODIES:
        if any(node.output[1:]):
            raise unsupported(node, "with several outputs")
        writer = BackwardPass(version, free_name)
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        result = _BODIES[node.op_type](writer, node, values, attributes)
        writer.nodes.append(helper.make_node("Identity", [result], [node.output[0]]))
        return OperatorBody(writer.nodes, writer.constants)
    if not onnx.defs.has(node.op_type, version):
        raise unsupported(node)
    # onnx's type stubs lack the attributes of function bodies.
    schema: Any = onnx.defs.get_schema(node.op_type, version)
    if not schema.has_function:
        raise unsupported(node)
    return OperatorBody(bound_body(node, schema.function_body, schema, free_name))


def _normalized(
    writer: BackwardPass, x: str, axes: list[int], epsilon: float, dtype: np.dtype[Any]
) -> str:
    """Append x minus its mean, divided by its standard deviation, both over some axes."""
    mean = _mean(writer, x, axes)
    centered = writer.node("Sub", x, mean)
    variance = _mean(writer, writer.node("Mul", centered, centered), axes)
    shifted = writer.node("Add", variance, writer.constant(np.float32(epsilon), dtype))
    return writer.node("Div", centered, writer.node("Sqrt", shifted))


def _mean(writer: BackwardPass, x: str, axes: list[int]) -> str:
    if writer.opset < 18:  # noqa: PLR2004 - ReduceMean takes its axes as an input from there on
        return writer.node("ReduceMean", x, axes=axes, keepdims=1)
    return writer.node("ReduceMean", x, writer.integers(axes), keepdims=1)


def _layer_normalization(
    writer: BackwardPass, node: onnx.NodeProto, values: Mapping[str, Any], attributes: Any
) -> str:
    x, scale, *bias = node.input
    rank = values[x].ndim
    axes = [*range(attributes.get("axis", -1) % rank, rank)]
    y = _normalized(writer, x, axes, attributes.get("epsilon", 1e-5), values[x].dtype)
    scaled = writer.node("Mul", y, scale)
    return writer.node("Add", scaled, bias[0]) if bias and bias[0] else scaled


def _per_channel(writer: BackwardPass, name: str, rank: int) -> str:
    return writer.node("Reshape", name, writer.integers([-1] + [1] * (rank - 2)))


def _instance_normalization(
    writer: BackwardPass, node: onnx.NodeProto, values: Mapping[str, Any], attributes: Any
) -> str:
    x, scale, bias = node.input
    rank = values[x].ndim
    epsilon = attributes.get("epsilon", 1e-5)
    y = _normalized(writer, x, [*range(2, rank)], epsilon, values[x].dtype)
    scaled = writer.node("Mul", y, _per_channel(writer, scale, rank))
    return writer.node("Add", scaled, _per_channel(writer, bias, rank))


def _batch_normalization(
    writer: BackwardPass, node: onnx.NodeProto, values: Mapping[str, Any], attributes: Any
) -> str:
    if attributes.get("training_mode", 0):
        raise unsupported(node, "in training mode")
    x, *parameters = node.input
    scale, bias, mean, variance = (
        _per_channel(writer, name, values[x].ndim) for name in parameters
    )
    variance_type = values[node.input[4]].dtype
    epsilon = writer.constant(np.float32(attributes.get("epsilon", 1e-5)), variance_type)
    shifted = writer.node("Add", variance, epsilon)
    centered = writer.node("Sub", x, mean)
    y = writer.node("Div", centered, writer.node("Sqrt", shifted))
    return writer.node("Add", writer.node("Mul", y, scale), bias)


def _mean_variance_normalization(
    writer: BackwardPass, node: onnx.NodeProto, values: Mapping[str, Any], attributes: Any
) -> str:
    x = node.input[0]
    axes = [int(axis) % values[x].ndim for axis in attributes.get("axes", [0, 2, 3])]
    centered = writer.node("Sub", x, _mean(writer, x, axes))
    variance = _mean(writer, writer.node("Mul", centered, centered), axes)
    epsilon = writer.constant(1e-9, values[x].dtype)
    return writer.node("Div", centered, writer.node("Add", writer.node("Sqrt", variance), epsilon))


def _group_normalization(
    writer: BackwardPass, node: onnx.NodeProto, values: Mapping[str, Any], attributes: Any
) -> str:
    x, scale, bias = node.input
    shape, dtype = values[x].shape, values[x].dtype
    groups = attributes["num_groups"]
    if values[scale].shape[0] != shape[1]:
        raise unsupported(node, "with a scale for each group")
    grouped = writer.node("Reshape", x, writer.integers([shape[0], groups, -1]))
    y = _normalized(writer, grouped, [2], attributes.get("epsilon", 1e-5), dtype)
    ungrouped = writer.node("Reshape", y, writer.integers(shape))
    scaled = writer.node("Mul", ungrouped, _per_channel(writer, scale, len(shape)))
    return writer.node("Add", scaled, _per_channel(writer, bias, len(shape)))


def _root_mean_square_normalization(
    writer: BackwardPass, node: onnx.NodeProto, values: Mapping[str, Any], attributes: Any
) -> str:
    x, scale = node.input
    rank = values[x].ndim
    axes = [*range(attributes.get("axis", -1) % rank, rank)]
    epsilon = writer.constant(np.float32(attributes.get("epsilon", 1e-5)), values[x].dtype)
    square = _mean(writer, writer.node("Mul", x, x), axes)
    root = writer.node("Sqrt", writer.node("Add", square, epsilon))
    return writer.node("Mul", writer.node("Div", x, root), scale)


def _gelu(
    writer: BackwardPass, node: onnx.NodeProto, values: Mapping[str, Any], attributes: Any
) -> str:
    x = node.input[0]
    half, one = (writer.constant(value, values[x].dtype) for value in (0.5, 1.0))
    if attributes.get("approximate", b"none") == b"tanh":
        cube = writer.node("Mul", writer.node("Mul", x, x), x)
        small = writer.node("Mul", cube, writer.constant(0.044715, values[x].dtype))
        factor = writer.constant(np.sqrt(2 / np.pi), values[x].dtype)
        bend = writer.node("Tanh", writer.node("Mul", writer.node("Add", x, small), factor))
    else:
        factor = writer.constant(np.sqrt(0.5), values[x].dtype)
        bend = writer.node("Erf", writer.node("Mul", x, factor))
    return writer.node("Mul", writer.node("Mul", x, half), writer.node("Add", bend, one))


_BODIES: Mapping[str, Callable[..., str]] = {
    "BatchNormalization": _batch_normalization,
    "Gelu": _gelu,
    "GroupNormalization": _group_normalization,
    "InstanceNormalization": _instance_normalization,
    "LayerNormalization": _layer_normalization,
    "MeanVarianceNormalization": _mean_variance_normalization,
    "RMSNormalization": _root_mean_square_normalization,
}
