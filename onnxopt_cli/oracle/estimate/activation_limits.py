"""Results of activations at infinite operands, as limits of the functions.

``x * sigmoid(x)`` is NaN at -infinity, because it multiplies an infinity by 0. The limit of the
function is 0. The specification defines activations for real numbers, so both results are right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.operators.nodes import all_nodes
from onnxopt_cli.oracle.evaluator import ReferenceModel
from onnxopt_cli.oracle.widen import largest_finite

# Activations whose formulas are NaN at an infinity of their first operand, although they have a
# finite limit. The value at the largest finite number of the same sign is used as the limit.
_ACTIVATIONS = frozenset({"Gelu", "HardSwish", "Mish", "Softsign", "SwiGLU", "Swish"})
_CONVOLUTION = "CausalConvWithState"


def outputs_at_limits(
    model: onnx.ModelProto, inputs: Mapping[str, Value], native: Sequence[Any]
) -> list[list[Any]]:
    """Return the outputs of an activation, with limits instead of NaN for infinite operands.

    Args:
        model: the model.
        inputs: its inputs.
        native: its outputs in its own types.

    Returns:
        A list of the outputs; an empty list if the model does not consist of one activation, or if
        no element of its first output is NaN.
    """
    nodes = [*all_nodes(model)]
    if len(nodes) != 1 or nodes[0].op_type not in {*_ACTIVATIONS, _CONVOLUTION}:
        return []
    (node,) = nodes
    is_nan = np.isnan(native[0])
    if not is_nan.any():
        return []
    if node.op_type in _ACTIVATIONS:
        x = inputs.get(node.input[0])
        if not isinstance(x, np.ndarray):
            return []
        largest = np.asarray(largest_finite(x.dtype), x.dtype)
        finite = np.where(_saturates(node, x), np.copysign(largest, x), x)
        limits = _first_output(model, {**inputs, node.input[0]: finite})
    else:
        plain = onnx.ModelProto()
        plain.CopyFrom(model)
        del plain.graph.node[0].attribute[:]
        sums = _first_output(plain, inputs)
        limits = np.where(np.isneginf(sums), np.zeros((), sums.dtype), sums)
    return [[np.where(is_nan, limits, native[0]), *native[1:]]]


def _saturates(node: onnx.NodeProto, x: Array) -> Array:
    """Return a mask of the infinities at which an activation has a finite limit."""
    if node.op_type == "Softsign":
        return np.isinf(x)
    alpha = next((attribute.f for attribute in node.attribute if attribute.name == "alpha"), 1.0)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.isneginf(alpha * x.astype(np.float64)))


def _first_output(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(ReferenceModel(model).run(inputs)[0])
