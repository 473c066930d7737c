"""Sums of products: their error bound, their overflow, and terms that devices flush to zero.

*Error bound.* A sum of n terms, in any order, rounds n - 1 partial sums. A partial sum lies between
the sum of all negative terms and the sum of all positive terms. The usual tolerance is 16 times the
effect of one rounding, which exceeds the error of a short sum. If a node rounds few times, its
tolerance is therefore limited to the error of its most inaccurate direct evaluation.

*Overflow.* In float32, ``3e38 - 3e38 + 3e38`` is 3e38 if added from left to right, and infinite if
the positive terms are added first. ONNX's specification prescribes no order. Therefore an infinity
is correct if the sum of all terms of its sign exceeds the range of the type. NaN is correct if both
the sum of the positive terms and the sum of the negative terms exceed the range. A fast algorithm
adds elements of a whole image or line. The sum of these elements may exceed the range although no
output element does.

*Flushed terms.* A device may replace each product and each partial sum by zero if its magnitude is
below the smallest normal number. In a sum of n terms, these replacements cause an error of up to n
times the smallest normal number, although the sum itself may be normal. If the sum of the
magnitudes is subnormal, the device returns zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf, isfinite, prod
from typing import Any

import numpy as np
from onnx import helper

from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.oracle.evaluator import Compute
from onnxopt_cli.oracle.rounding.node_kinds import NodeClass, NodeKind
from onnxopt_cli.oracle.rounding.scales import PartialSums, transformed_axis
from onnxopt_cli.oracle.rounding.short_floats import ADDEND, CHAINED, WITH_ADDEND
from onnxopt_cli.oracle.widen import (
    ROUNDOFF,
    is_short,
    is_wide,
    largest_finite,
    single_value,
    smallest_normal,
    widened_value,
)

# For each operator that sums terms or products, the number of roundings of each term. The roundings
# of the additions are not counted. A product or a scale is one rounding. Gemm also rounds when it
# multiplies by alpha and beta, and when it adds C. A mean over axes may be updated at each term. An
# update rounds a difference and a quotient, and both contain the previous mean. Two roundings of
# each term cover all updates, because the roundings of the updates are never all as large as
# possible.
_TERM_ROUNDINGS = {
    "AveragePool": 1,
    "CausalConvWithState": 2,
    "CumSum": 1,
    "Gemm": 6,
    "GlobalAveragePool": 2,
    "MatMul": 2,
    "Mean": 2,
    "ReduceL1": 1,
    "ReduceMean": 2,
    "ReduceSum": 1,
    "ReduceSumSquare": 2,
    "Sum": 1,
}
# The number of roundings if a sum is divided by the number of its terms, or multiplied by the
# reciprocal.
_QUOTIENT_ROUNDINGS = 2
# The error of sums with at most this number of terms is bounded directly. The error of longer sums
# grows with the square root of the number of terms, and perturbed runs estimate it more accurately.
_MAX_TERMS = 16
_BATCH_OPERANDS = 5
# The unit is _CUMULATIVE_SHARE times the error of a sequential algorithm, so that a tolerance of 16
# units is twice that error.
_CUMULATIVE_SHARE = 2 / 16
# The unit of a product is _FACTOR_SHARE roundings for each factor, so that a tolerance of 16 units
# is one rounding for each factor.
_FACTOR_SHARE = 1 / 16
# Gemm multiplies the first two operands, and may add a third one.
_GEMM_FACTORS = 2
_ACTIVATION_ROUNDINGS, _GRID_ROUNDINGS = 8.0, 8.0
_DEFAULT_EPSILON = 1e-5
#: Operators that divide the sum of their terms by the number of terms.
MEANS = frozenset({"AveragePool", "GlobalAveragePool", "Mean", "ReduceMean"})
_DIRECT_KINDS = frozenset({NodeKind.COMBINE, NodeKind.MIX})
# A bound on the growth in Winograd's algorithm. Its transforms of tiles of 8 x 8 elements multiply
# an element by at most 10 along each of the two axes.
_TILE_GROWTH = 100.0
# Operators that sum powers of the elements.
_POWERS = frozenset({"GlobalLpPool", "LpNormalization", "LpPool", "ReduceL2", "ReduceSumSquare"})
# Operators that return the root of a sum of powers.
_ROOTS = frozenset({"GlobalLpPool", "LpPool", "ReduceL2"})
# Kinds of nodes that multiply each element by a computed coefficient.
_WEIGHTED_KINDS = frozenset({NodeKind.COORDINATES, NodeKind.TRANSFORM})
# The computed coefficients are assumed to have at least this magnitude.
_LEAST_WEIGHT = 2.0**-24
_SUMMING_KINDS = _WEIGHTED_KINDS | {
    NodeKind.COMBINE,
    NodeKind.CONVOLVE,
    NodeKind.GATES,
    NodeKind.MIX,
}
_DEFAULT_POWER = 2
# At most this share of the sum of powers in a norm is treated as lost. If a norm loses this share,
# the quotient of an element and the norm is inconclusive.
_MAX_LOST_SHARE = 0.99


def direct_bound(
    node: Any, node_class: NodeClass, compute: Compute, operands: Sequence[Any], output: Any
) -> Array | None:
    """Return the largest error of a node's direct evaluations, in units of the unit roundoff.

    Args:
        node: the node, as the evaluator prepares it.
        node_class: its kind, and the number of terms of its sums.
        compute: runs it with other inputs.
        operands: its inputs, floats as doubles.
        output: its first output.

    Returns:
        The bound of each element; None if the node may round more often than a direct evaluation.
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
    if node.op_type not in _TERM_ROUNDINGS or not is_wide(operands[0]) or not output.size:
        return None
    terms = _most_terms(node, operands, output)
    if terms > _MAX_TERMS:
        return None
    magnitudes = _sum_of_magnitudes(node, compute, operands)
    further = _TERM_ROUNDINGS[node.op_type]
    if node.op_type == "CausalConvWithState":
        # compute() returns SiLU(m), where m is the sum of the magnitudes. SiLU(m) is at least
        # m / 2. The derivative of SiLU is at most 1.1, so the error of the result is at most
        # 2 * 1.1 times the error of the sum. SiLU itself also rounds.
        bound = 2.2 * (terms + further) * magnitudes + _ACTIVATION_ROUNDINGS * np.abs(output)
        return np.asarray(bound)
    # A partial sum lies between the sum of the negative terms and that of the positive terms.
    largest_partial_sum = (magnitudes + np.abs(output)) / 2
    bound = (terms - 1) * largest_partial_sum + further * magnitudes
    if node.op_type in MEANS:
        bound += _QUOTIENT_ROUNDINGS * np.abs(output)
    return np.asarray(bound)


def product_scale(node: Any, operands: Sequence[Any], output: Array) -> Any:
    """Return the scale of the error of a long sum of products, added from the first to the last.

    Args:
        node: a ``Gemm`` or ``MatMul``, as the evaluator prepares it.
        operands: its inputs, floats as doubles.
        output: its output.
    """
    count = _most_terms(node, operands, output)
    if count <= _MAX_TERMS:
        return 0.0
    # A sum takes less time than the examination of each element.
    a, b = (
        operand if isfinite(operand.sum()) else np.where(np.isfinite(operand), operand, 0.0)
        for operand in operands[:2]
    )
    attributes = {item.name: item for item in node.onnx_node.attribute}
    if node.op_type == "Gemm":
        a, b = (
            matrix.T if name in attributes and attributes[name].i else matrix
            for name, matrix in (("transA", a), ("transB", b))
        )
    sums = PartialSums(output.shape)
    for block in np.array_split(np.arange(count), _MAX_TERMS):
        part = slice(block[0], block[-1] + 1)
        sums.add(a[..., part] @ (b[part] if b.ndim == 1 else b[..., part, :]), len(block))
    factor = abs(attributes["alpha"].f) if "alpha" in attributes else 1.0
    # Scales are stored as float32, because the scales of all nodes are in memory at the same time.
    scale = (factor * sums.scale).astype(np.float32)
    return scale if scale.any() else 0.0


def cumulative_sum_scale(node: Any, operands: Sequence[Any], _output: Array) -> Any:
    """Return the scale of the errors of cumulative sums.

    Parallel algorithms add the sums of all preceding blocks to the sums within a block. An element
    may therefore have the error of any preceding element. If the terms are similar or sorted, a
    sequential algorithm may round many elements in the same direction, and the error of a single
    element may be small by accident. The scale of an element is therefore the largest error of a
    sequential float32 algorithm in the element and all preceding elements.

    Args:
        node: a ``CumSum``, as the evaluator prepares it.
        operands: its inputs, floats as doubles.
    """
    attributes = {item.name: item.i for item in node.onnx_node.attribute}
    axis = _cumulated_axis(operands)
    terms = np.moveaxis(operands[0], axis, -1)
    if attributes.get("reverse"):
        terms = terms[..., ::-1]
    with np.errstate(all="ignore"):
        singles = terms.astype(np.float32)
        doubles = singles.astype(np.float64)
        error = np.abs(np.cumsum(singles, axis=-1) - np.cumsum(doubles, axis=-1))
    error = np.maximum.accumulate(np.where(np.isfinite(error), error, 0.0), axis=-1)
    if attributes.get("exclusive"):
        error = np.concatenate((np.zeros_like(error[..., :1]), error[..., :-1]), axis=-1)
    if attributes.get("reverse"):
        error = error[..., ::-1]
    return _CUMULATIVE_SHARE / ROUNDOFF[np.dtype(np.float32)] * np.moveaxis(error, -1, axis)


def cumulative_product_scale(node: Any, operands: Sequence[Any], output: Array) -> Any:
    """Return the scale of the errors of cumulative products: one rounding for each factor.

    If the factors are equal, the roundings of blocks of equal length are equal as well.

    Args:
        node: a ``CumProd``, as the evaluator prepares it.
        operands: its inputs, floats as doubles.
        output: its output.
    """
    axis = _cumulated_axis(operands)
    reverse = any(item.name == "reverse" and item.i for item in node.onnx_node.attribute)
    counts = np.arange(1, output.shape[axis] + 1)
    magnitudes = np.moveaxis(np.where(np.isfinite(output), np.abs(output), 0.0), axis, -1)
    scale = _FACTOR_SHARE * magnitudes * (counts[::-1] if reverse else counts)
    return np.moveaxis(scale, -1, axis)


def product_of_factors_scale(node: Any, operands: Sequence[Any], output: Array) -> Any:
    """Return the scale of the errors of ``ReduceProd``; equal factors have larger errors.

    If all factors are equal, the roundings of blocks of equal length are equal as well, so that the
    error is one rounding for each factor. In general, c equal factors contribute c roundings. The
    contributions of different factors are independent, so the root of the sum of their squares is
    used.
    """
    x, axes, *_ = (*operands, None)
    for item in node.onnx_node.attribute:
        axes = list(item.ints) if item.name == "axes" else axes
    if output.size == x.size:
        return np.zeros(output.shape)
    axes = range(x.ndim) if axes is None or not len(axes) else [axis % x.ndim for axis in axes]
    rows = np.moveaxis(x, [*axes], range(-len(axes), 0)).reshape(output.size, -1)
    significands = np.sort(np.abs(np.frexp(rows)[0]), axis=1)
    runs = np.cumsum(np.diff(significands, axis=1, prepend=np.nan) != 0, axis=1) - 1
    runs += np.arange(len(rows))[:, None] * rows.shape[1]
    equal = np.bincount(runs.ravel(), minlength=rows.size).reshape(rows.shape)
    roundings = np.sqrt(np.square(equal, dtype=float).sum(axis=1)).reshape(output.shape)
    return _FACTOR_SHARE * roundings * np.where(np.isfinite(output), np.abs(output), 0.0)


def _cumulated_axis(operands: Sequence[Any]) -> int:
    return int(np.asarray(operands[1]).item())


def _sum_of_magnitudes(node: Any, compute: Compute, operands: Sequence[Any]) -> Array:
    """Return the first output of a node that sums terms, with each term replaced by its magnitude.

    If exactly one of alpha and beta is negative, ``Gemm`` subtracts C from the products. In this
    case, -|C| replaces C.
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
    """Return the largest number of terms whose sum is an element of the output."""
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
        return int(x.shape[_cumulated_axis(operands)]) if x.ndim else 1
    if node.op_type in {"Mean", "Sum"}:
        return len(operands)
    return -(-x.size // output.size)


def _grid_bound(theta: Array, output: Array) -> Array:
    """Return the error bound of AffineGrid: 5 roundings of each coordinate, and 3 of the sum."""
    bound = _GRID_ROUNDINGS * np.abs(theta).sum(axis=-1)
    shape = (len(theta), *[1] * (output.ndim - 2), theta.shape[1])
    return np.broadcast_to(bound.reshape(shape), output.shape)


def _normalization_bound(node: Any, operands: Sequence[Any], output: Array) -> Array:
    """Return the bound of a normalization by given statistics: f (x - m) + b or f x + (b - f m).

    The factor f has an error of up to 4.5 roundings. In the second form, this error is the same in
    both terms. The other roundings of the second form are relative to f x, f m and b. The bound is
    twice the sum of all these errors.
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


def may_overflow(op_type: str, operands: Sequence[Any]) -> bool:
    """Return whether a sum of products of finite operands may exceed the range of its type."""
    tensors = [v for v in operands if isinstance(v, np.ndarray) and v.dtype in ROUNDOFF and v.size]
    if not tensors:
        return False
    if op_type in WITH_ADDEND and len(tensors) > ADDEND and is_short(tensors[0]):
        x, w = (np.abs(single_value(tensor)) for tensor in tensors[:ADDEND])
        if not x.max() * w.max() * min(x.size, w.size) <= largest_finite(tensors[0].dtype):
            return True
    bound = _TILE_GROWTH * sum(tensor.size for tensor in tensors)
    for tensor in tensors:
        real = np.abs(tensor) if tensor.dtype.kind == "c" else tensor
        largest = max(float(real.max()), -float(real.min()))
        if not largest < inf:
            largest = float(np.abs(real[np.isfinite(real)]).max(initial=0))
        bound *= max(1.0, largest)
    return bound > _limit(op_type, tensors)


def with_overflow(
    node: Any,
    node_class: NodeClass,
    compute: Compute,
    operands: Sequence[Any],
    output: Any,
    special: float,
) -> Any:
    """Return an output with a special value where some order of addition yields that value.

    Args:
        node: the node, as the evaluator prepares it.
        node_class: its kind, and the number of terms of its sums.
        compute: computes the node.
        operands: its inputs.
        output: its output in the model's own types.
        special: the special value: an infinity or NaN.
    """
    if not isinstance(output, np.ndarray) or output.dtype not in ROUNDOFF or not output.size:
        return output
    limit = _limit(node.op_type, [output])
    doubles: list[Any] = [widened_value(operand) for operand in operands]
    magnitudes = [np.abs(v) if is_wide(v) else v for v in doubles]
    kind = node_class.kind
    may_be: Any
    if kind is NodeKind.CONVOLVE:
        may_be = _image_bound(node, magnitudes, output) > limit
    elif kind is NodeKind.TRANSFORM:
        axes = (transformed_axis(node, operands), -1)
        may_be = magnitudes[0].sum(axis=axes, keepdims=True) > limit
    elif kind in _DIRECT_KINDS:
        count = max(ceil(node_class.terms), len(operands)) if node.op_type in MEANS else 1
        try:
            total = count * _sum_of_magnitudes(node, compute, doubles)
            exact = count * compute(*doubles)[0]
        except Exception:  # noqa: BLE001 - the node may reject these operands
            return output
        positive, negative = ((total + sign * exact) / 2 > limit for sign in (1, -1))
        may_be = positive if special > 0 else negative if special < 0 else positive & negative
    else:
        return output
    may_be = may_be | _rounds_product_to(special, node, compute, doubles, output)
    if not np.isnan(special):
        # If an operand is infinite, an infinite output keeps its sign.
        finite_operands = all(np.isfinite(v).all() for v in magnitudes if is_wide(v))
        may_be = may_be & (finite_operands | np.isfinite(output))
    return np.where(may_be, np.asarray(special, output.dtype), output)


def _rounds_product_to(
    infinity: float, node: Any, compute: Compute, operands: Sequence[Any], output: Array
) -> Any:
    """Return where a 16-bit product overflows to an infinity before C or a bias is added.

    If the magnitude of alpha is below 1, the product before the multiplication by alpha counts.
    """
    has_addend = len(operands) > ADDEND and operands[ADDEND] is not None
    if node.op_type not in WITH_ADDEND or not has_addend or not is_short(output):
        return False
    factors = {item.name: item.f for item in node.onnx_node.attribute}
    (product,) = compute(*operands[:ADDEND])
    largest_factor = max(1.0, 1 / (abs(factors.get("alpha", 1.0)) or 1.0))
    return np.sign(infinity) * product * largest_factor > largest_finite(output.dtype)


def _image_bound(node: Any, magnitudes: Sequence[Any], output: Array) -> Array:
    """Return a bound on the intermediate results of a convolution, per image and channel."""
    x, w = magnitudes[:2]
    integers = {attribute.name: attribute.i for attribute in node.onnx_node.attribute}
    group = integers.get("group", 1)
    images = x.reshape(len(x), group, -1)
    kernels = w.reshape(group, -1, *w.shape[1:])
    if node.op_type == "ConvTranspose":
        kernels = kernels.swapaxes(1, 2)
    kernels = kernels.reshape(*kernels.shape[:2], -1)
    mixed = images.sum(-1) + _TILE_GROWTH * images.max(-1)
    bound = mixed[..., None] * np.maximum(1.0, kernels.sum(-1))
    return np.asarray(bound.reshape(*output.shape[:2], *[1] * (output.ndim - 2)))


def _limit(op_type: str, tensors: Sequence[Array]) -> float:
    """Return the largest finite number of the type in which an operator adds the given tensors.

    16-bit tensors are added in float32. Operators that add whole tensors one after the other are
    exceptions: they add in 16 bits.
    """
    if op_type in CHAINED:
        return max(largest_finite(tensor.dtype) for tensor in tensors)
    is_double = any(tensor.dtype in (np.float64, np.complex128) for tensor in tensors)
    return largest_finite(np.dtype(np.float64 if is_double else np.float32))


def flushed_error(
    node: Any,
    node_class: NodeClass,
    compute: Compute,
    operands: Sequence[Any],
    output: Array,
    tiny: float,
) -> Any:
    """Return the largest error of each element of an output if terms are flushed to zero.

    Args:
        node: the node, as the evaluator prepares it.
        node_class: its kind, and the number of terms of its sums.
        compute: computes the node.
        operands: its inputs, floats as doubles.
        output: its output.
        tiny: the smallest normal number of the type in which the node computes.
    """
    if node_class.kind not in _SUMMING_KINDS:
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
    magnitudes = _sum_of_magnitudes(node, compute, operands)
    is_normal = magnitudes >= tiny if magnitudes.shape == output.shape else True
    return np.where(is_normal, error, 0.0)


def with_flushed_root(node: Any, operands: Sequence[Value], output: Value) -> Value:
    """Return an output with zeros where it is the root of a subnormal sum of powers.

    A device may flush the sum to zero. ``LpNormalization`` returns zeros if the norm is zero.
    """
    if not isinstance(output, np.ndarray) or node.op_type not in {*_ROOTS, "LpNormalization"}:
        return output
    # All types except double are summed in float32.
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
            # In version 1 of LpPool and GlobalLpPool, p is a float.
            return float(helper.get_attribute_value(attribute))
    return _DEFAULT_POWER


def _axis_of(node: Any) -> int:
    axes = [attribute.i for attribute in node.onnx_node.attribute if attribute.name == "axis"]
    return int(axes[0]) if axes else -1


def _smallest_term(kind: NodeKind, operands: Sequence[Any], power: float) -> float:
    """Return a lower bound of the magnitudes of all terms that are not zero."""
    smallest = sorted(
        _smallest_magnitude(np.abs(operand)) for operand in operands if is_wide(operand)
    )
    if power > 1 or not smallest:
        return float(np.float64(smallest[0]) ** power) if smallest else np.inf
    if kind in _WEIGHTED_KINDS:
        return smallest[0] * _LEAST_WEIGHT
    # A term may be a product of operands, or a single operand such as the bias of a convolution.
    return min(smallest[0], smallest[0] * min([*smallest[1:], 1.0]))


def _smallest_magnitude(magnitudes: Array) -> float:
    """Return the smallest magnitude that is not zero; infinity without such a magnitude."""
    smallest = float(np.min(magnitudes, initial=np.inf))
    if smallest > 0:
        return smallest
    # A minimum over selected elements takes longer.
    return float(np.min(magnitudes, initial=np.inf, where=magnitudes > 0))
