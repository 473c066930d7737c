"""Sums that overflow in one order of their terms and not in another.

In float32, ``3e38 - 3e38 + 3e38`` is 3e38 from left to right, and infinite if the positive terms
are added first. The specification of ONNX prescribes no order. Therefore an infinity is correct if
the sum of the terms of its sign exceeds the range of the type, and NaN is correct if the sums of
both signs do. A fast algorithm adds elements of a whole image or line; such a sum may exceed the
range although no output element does.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf
from typing import Any

import ml_dtypes
import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.oracle.evaluator import Compute
from onnxopt_cli.oracle.rounding.direct_bounds import sum_of_magnitudes
from onnxopt_cli.oracle.rounding.node_kinds import NodeClass, NodeKind
from onnxopt_cli.oracle.rounding.scales import transformed_axis
from onnxopt_cli.oracle.rounding.short_floats import CHAINED
from onnxopt_cli.oracle.widen import ROUNDOFF, is_wide, widened_value

#: Operators that divide the sum of their terms by their number.
MEANS = frozenset({"AveragePool", "GlobalAveragePool", "Mean", "ReduceMean"})
_DIRECT = frozenset({NodeKind.COMBINE, NodeKind.MIX})
# Winograd's transforms of tiles of 8 x 8 elements multiply an element by at most 10 along each of
# the two axes.
_TILE_GROWTH = 100.0


def may_overflow(op_type: str, operands: Sequence[Any]) -> bool:
    """Return whether a sum of products of finite operands may exceed the range of its type."""
    tensors = [v for v in operands if isinstance(v, np.ndarray) and v.dtype in ROUNDOFF and v.size]
    if not tensors:
        return False
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
    """Return an output with an infinity or NaN where some order of the terms yields that value.

    Args:
        node: the node, as the evaluator has it.
        node_class: its kind, and the number of terms of its sums.
        compute: runs it with other inputs.
        operands: its inputs.
        output: its output in the model's own types.
        special: the infinity or NaN.
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
    elif kind in _DIRECT:
        count = max(ceil(node_class.terms), len(operands)) if node.op_type in MEANS else 1
        try:
            total = count * sum_of_magnitudes(node, compute, doubles)
            exact = count * compute(*doubles)[0]
        except Exception:  # noqa: BLE001 - the node may not be defined there
            return output
        positive, negative = ((total + sign * exact) / 2 > limit for sign in (1, -1))
        may_be = positive if special > 0 else negative if special < 0 else positive & negative
    else:
        return output
    if not np.isnan(special):
        # If an operand is infinite, an infinite output keeps its sign.
        finite_operands = all(np.isfinite(v).all() for v in magnitudes if is_wide(v))
        may_be = may_be & (finite_operands | np.isfinite(output))
    return np.where(may_be, np.asarray(special, output.dtype), output)


def _image_bound(node: Any, magnitudes: Sequence[Any], output: Array) -> Array:
    """Return a bound of the intermediate results of a convolution, per image and channel."""
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
    """Return the largest number of the type in which an operator adds tensors.

    16-bit tensors are added in float32, except by operators that add whole tensors one after
    another.
    """
    if op_type in CHAINED:
        return max(float(ml_dtypes.finfo(tensor.dtype).max) for tensor in tensors)  # type: ignore[no-untyped-call]
    is_double = any(tensor.dtype in (np.float64, np.complex128) for tensor in tensors)
    return float(np.finfo(np.float64 if is_double else np.float32).max)
