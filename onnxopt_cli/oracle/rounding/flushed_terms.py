"""Errors of sums on devices that flush subnormal terms to zero.

A device that flushes subnormal numbers replaces each product, and each partial sum, whose magnitude
is below the smallest normal number by zero. A sum of n terms then has an error of up to n times
that number, although the sum itself may be normal. If even the sum of the magnitudes is subnormal,
the device returns zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import helper

from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.oracle.evaluator import Compute
from onnxopt_cli.oracle.rounding.direct_bounds import sum_of_magnitudes
from onnxopt_cli.oracle.rounding.node_kinds import NodeClass, NodeKind
from onnxopt_cli.oracle.widen import is_wide, smallest_normal

# Operators that sum powers of the elements.
_POWERS = frozenset({"GlobalLpPool", "LpNormalization", "LpPool", "ReduceL2", "ReduceSumSquare"})
# Operators that return the root of their sum.
_ROOTS = frozenset({"GlobalLpPool", "LpPool", "ReduceL2"})
# Kinds that multiply each element by a coefficient that they compute, and the assumed least
# magnitude of such a coefficient.
_WEIGHTED = frozenset({NodeKind.COORDINATES, NodeKind.TRANSFORM})
_LEAST_WEIGHT = 2.0**-24
_SUMS = _WEIGHTED | {NodeKind.COMBINE, NodeKind.CONVOLVE, NodeKind.GATES, NodeKind.MIX}
_DEFAULT_POWER = 2
# At most this share of the sum in a norm counts as lost, which already makes a quotient by the norm
# inconclusive.
_MAX_LOST_SHARE = 0.99


def flushed_error(
    node: Any,
    node_class: NodeClass,
    compute: Compute,
    operands: Sequence[Any],
    output: Array,
    tiny: float,
) -> Any:
    """Return the largest error of each element of an output if its terms are flushed to zero.

    Args:
        node: the node, as the evaluator has it.
        node_class: its kind, and the number of terms of its sums.
        compute: runs it with other inputs.
        operands: its inputs, floats as doubles.
        output: its output.
        tiny: the smallest normal number of the type in which the node computes.
    """
    if node_class.kind not in _SUMS:
        return 0.0
    power = _power_of(node)
    if _smallest_term(node_class.kind, operands, power) >= tiny:
        return 0.0
    error = node_class.terms * tiny
    if node.op_type in _ROOTS:
        size = np.abs(output)
        loss = size - np.maximum(size**power - error, 0.0) ** (1 / power)
        return np.where(size**power < tiny, 0.0, loss)
    if node.op_type == "LpNormalization":
        total = np.sum(np.abs(operands[0]) ** power, axis=_axis_of(node), keepdims=True)
        lost = np.minimum(error / np.maximum(total, error), _MAX_LOST_SHARE)
        return np.where(total < tiny, 0.0, np.abs(output) * ((1 - lost) ** (-1 / power) - 1))
    magnitudes = sum_of_magnitudes(node, compute, operands)
    is_normal = magnitudes >= tiny if magnitudes.shape == output.shape else True
    return np.where(is_normal, error, 0.0)


def with_flushed_root(node: Any, operands: Sequence[Value], output: Value) -> Value:
    """Return an output with zeros where the sum of powers under a root is subnormal.

    Such a sum is flushed to zero, and ``LpNormalization`` returns zeros if the norm is zero.
    """
    if not isinstance(output, np.ndarray) or node.op_type not in {*_ROOTS, "LpNormalization"}:
        return output
    # Narrower types are summed in float32.
    summed_in = np.dtype(np.float64 if output.dtype == np.float64 else np.float32)
    norm = np.abs(output).astype(np.float64)
    if node.op_type == "LpNormalization":
        powers = np.abs(np.asarray(operands[0], np.float64)) ** _power_of(node)
        norm = np.sum(powers, axis=_axis_of(node), keepdims=True) ** (1 / _power_of(node))
    flushes = norm < smallest_normal(summed_in) ** (1 / _power_of(node))
    return np.where(flushes, output.dtype.type(0), output)


def _power_of(node: Any) -> float:
    """Return the exponent of the powers that an operator sums; 1 if it sums no powers."""
    if node.op_type not in _POWERS:
        return 1
    for attribute in node.onnx_node.attribute:
        if attribute.name == "p":
            # Version 1 of LpPool and GlobalLpPool has a float.
            return float(helper.get_attribute_value(attribute))
    return _DEFAULT_POWER


def _axis_of(node: Any) -> int:
    axes = [attribute.i for attribute in node.onnx_node.attribute if attribute.name == "axis"]
    return int(axes[0]) if axes else -1


def _smallest_term(kind: NodeKind, operands: Sequence[Any], power: float) -> float:
    """Return a lower bound of the magnitudes of terms that are not zero."""
    smallest = sorted(
        float(np.min(size, initial=np.inf, where=size > 0))
        for size in (np.abs(operand) for operand in operands if is_wide(operand))
    )
    if power > 1 or not smallest:
        return float(np.float64(smallest[0]) ** power) if smallest else np.inf
    if kind in _WEIGHTED:
        return smallest[0] * _LEAST_WEIGHT
    # A term may be a product of operands, or a single operand such as the bias of a convolution.
    return min(smallest[0], smallest[0] * min([*smallest[1:], 1.0]))
