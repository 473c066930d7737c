"""Error bounds of nodes that round few times.

In a sum of n terms, in any order, each term is part of at most n roundings. The usual tolerance, 16
times the effect of one rounding, exceeds the error of a short sum. The tolerance of such a node is
therefore limited to the error of its most inaccurate direct evaluation.
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

# Operators that sum terms or products. A sum of n terms has n roundings and this number of further
# ones: of the product or scale of a term, of the division of a mean, and of alpha, beta and C of
# Gemm.
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
# The error of a longer sum grows with the square root of the number of terms, which the perturbed
# runs estimate better than this bound.
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
        # compute() applies SiLU to the sum m of magnitudes, which returns at least m / 2. The
        # derivative of SiLU is at most 1.1, hence 2.2; SiLU itself also rounds.
        bound = 2.2 * bound + _ACTIVATION_ROUNDINGS * np.abs(output)
    return np.asarray(bound)


def sum_of_magnitudes(node: Any, compute: Compute, operands: Sequence[Any]) -> Array:
    """Return the first output of a node that sums terms, with each term replaced by its magnitude.

    ``Gemm`` subtracts C from the products if exactly one of alpha and beta is negative; then C is
    replaced by -|C|.
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
    """Return the bound of a grid: 5 roundings of each coordinate, and 3 of the sum of terms."""
    bound = _GRID_ROUNDINGS * np.abs(theta).sum(axis=-1)
    shape = (len(theta), *[1] * (output.ndim - 2), theta.shape[1])
    return np.broadcast_to(bound.reshape(shape), output.shape)


def _normalization_bound(node: Any, operands: Sequence[Any], output: Array) -> Array:
    """Return the bound of a normalization by given statistics: f (x - m) + b or f x + (b - f m).

    The factor f has an error of up to 4.5 roundings, which is the same in both terms of the second
    form. The other roundings of that form are relative to f x, f m and b. The bound is twice the
    sum of these errors.
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
