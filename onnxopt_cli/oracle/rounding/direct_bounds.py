"""Error bounds of nodes that round few times.

In a sum of n terms, each term is rounded at most n times, in any order. The usual tolerance, 16
times the effect of one rounding, exceeds the error of a short sum. The error of such a node is
bounded by the roundings of its most inaccurate direct evaluation, and its tolerance is not larger
than that bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.oracle.evaluator import Compute
from onnxopt_cli.oracle.rounding.node_kinds import NodeClass
from onnxopt_cli.oracle.widen import is_wide

# Operators that sum terms, or products of two factors, and the number of roundings in addition to
# one for each term: those of the product or scale of a term, of the division of a mean, and of
# alpha, beta and C of Gemm.
_SUMS = {
    "AveragePool": 3,
    "CausalConvWithState": 2,
    "CumSum": 1,
    "Gemm": 6,
    "GlobalAveragePool": 3,
    "MatMul": 2,
    "Mean": 3,
    "ReduceL1": 1,
    "ReduceMean": 3,
    "ReduceSum": 1,
    "ReduceSumSquare": 2,
    "Sum": 1,
}
# The errors of longer sums are closer to their square root, which the perturbed runs show.
_MAX_TERMS = 16
_BATCH_OPERANDS = 5
# Gemm multiplies the first two operands, and may add a third one.
_GEMM_FACTORS = 2
_ACTIVATION_ROUNDINGS, _GRID_ROUNDINGS = 8.0, 8.0
_DEFAULT_EPSILON = 1e-5


def direct_bound(
    node: Any, node_class: NodeClass, compute: Compute, operands: Sequence[Any], output: Any
) -> Array | None:
    """Return the largest error of a node's direct evaluations, in units of the unit roundoff.

    Args:
        node: the node, as the evaluator has it.
        node_class: its kind, and the number of terms of its sums.
        compute: runs it with other inputs.
        operands: its inputs, floats as doubles.
        output: its first output.

    Returns:
        The bound of each element, or None if the node rounds more often than a direct evaluation.
    """
    if not is_wide(output):
        return None
    if node.op_type == "BatchNormalization":
        has_statistics = node_class.terms <= 1 and len(operands) == _BATCH_OPERANDS
        by_channel = output.ndim > 1 and np.shape(operands[1]) == output.shape[1:2]
        return (
            _normalization_bound(node, operands, output) if has_statistics and by_channel else None
        )
    if node.op_type == "AffineGrid" and is_wide(operands[0]):
        return _grid_bound(operands[0], output)
    if node.op_type not in _SUMS or not is_wide(operands[0]) or not output.size:
        return None
    terms = _most_terms(node, operands, output)
    if terms > _MAX_TERMS:
        return None
    bound = (terms + _SUMS[node.op_type]) * sum_of_magnitudes(node, compute, operands)
    if node.op_type == "CausalConvWithState":
        # SiLU of m >= 0 is at least m / 2, its derivative is at most 1.1, and it rounds, too.
        bound = 2.2 * bound + _ACTIVATION_ROUNDINGS * np.abs(output)
    return np.asarray(bound)


def sum_of_magnitudes(node: Any, compute: Compute, operands: Sequence[Any]) -> Array:
    """Return the first output of a node that sums terms, with each term replaced by its magnitude.

    ``Gemm`` subtracts C from the products if one of alpha and beta is negative, so that C is
    negated, too.
    """
    magnitudes = [np.abs(operand) if is_wide(operand) else operand for operand in operands]
    if node.op_type == "Gemm" and is_wide(magnitudes[-1]):
        factors = {item.name: item.f for item in node.onnx_node.attribute}
        subtracts = factors.get("alpha", 1.0) * factors.get("beta", 1.0) < 0
        if subtracts and len(operands) > _GEMM_FACTORS:
            magnitudes[-1] = -magnitudes[-1]
    (total, *_) = compute(*magnitudes)
    return np.asarray(np.abs(total))


def _most_terms(node: Any, operands: Sequence[Any], output: Array) -> int:
    """Return the largest number of terms of an element of an output."""
    attributes = {item.name: item for item in node.onnx_node.attribute}
    x = operands[0]
    if node.op_type == "MatMul":
        return int(x.shape[-1])
    if node.op_type == "Gemm":
        transposed = "transA" in attributes and attributes["transA"].i
        return int(x.shape[0 if transposed else 1])
    if node.op_type == "AveragePool":
        return prod(attributes["kernel_shape"].ints)
    if node.op_type == "CausalConvWithState":
        return int(operands[1].shape[-1])
    if node.op_type == "CumSum":
        return int(x.shape[int(operands[1])]) if x.ndim else 1
    if node.op_type in {"Mean", "Sum"}:
        return len(operands)
    return -(-x.size // output.size)


def _grid_bound(theta: Array, output: Array) -> Array:
    """Return the bound of a grid: coordinates have errors of 5 roundings, and 3 terms are added."""
    bound = _GRID_ROUNDINGS * np.abs(theta).sum(axis=-1)
    shape = (len(theta), *[1] * (output.ndim - 2), theta.shape[1])
    return np.broadcast_to(bound.reshape(shape), output.shape)


def _normalization_bound(node: Any, operands: Sequence[Any], output: Array) -> Array:
    """Return the bound of a normalization by given statistics: f (x - m) + b or f x + (b - f m).

    The factor f has an error of up to 4.5 roundings. It is the same in both terms of the second
    form, whose other roundings are relative to f x, f m and b. The bound is twice their sum.
    """
    shape = (1, -1, *[1] * (output.ndim - 2))
    x = operands[0]
    scale, bias, mean, variance = (np.reshape(operand, shape) for operand in operands[1:])
    stated = [item.f for item in node.onnx_node.attribute if item.name == "epsilon"]
    factor = np.abs(scale) / np.sqrt(variance + (stated[0] if stated else _DEFAULT_EPSILON))
    shifted = 2 * np.abs(x) + 4 * np.abs(mean)
    return np.asarray(
        factor * (9 * np.abs(x - mean) + shifted) + 2 * np.abs(bias) + 2 * np.abs(output)
    )
