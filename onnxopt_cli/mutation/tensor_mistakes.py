"""Known mistakes of operators that round, convert, reduce, index or move elements of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx

from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.mutation.bound_node import BoundNode
from onnxopt_cli.mutation.node_mutants import (
    Computation,
    Computed,
    ListedMistake,
)


def _elementwise(function: Callable[..., Array]) -> Computed:
    """Return a mistake that applies a function to the operands of the node.

    The output has the type of the first operand.
    """

    def computation(node: BoundNode) -> Sequence[Value] | None:
        operands = [value for value in node.operands if isinstance(value, np.ndarray)]
        result = function(*operands)
        return [np.asarray(result).astype(operands[0].dtype)]

    return Computed(computation)


def _half_away(array: Array) -> Array:
    wide = array.astype(np.float64)
    return np.sign(wide) * np.floor(np.abs(wide) + 0.5)


def _integers(function: Callable[[Array, Array], Array]) -> Computed:
    """Return a mistake in the division of integers; the division of floats remains correct."""

    def computation(node: BoundNode) -> Sequence[Value] | None:
        left, right = node.operand(0), node.operand(1)
        if left is None or right is None or left.dtype.kind not in "iu" or not right.all():
            return None
        return [np.asarray(function(left, right)).astype(left.dtype)]

    return Computed(computation)


def _indices_within(node: BoundNode) -> BoundNode | None:
    """Clamp the indices of OneHot to the range from -depth to depth - 1."""
    indices, depth = node.operand(0), node.operand(1)
    if indices is None or depth is None:
        return None
    last = int(depth.reshape(-1)[0]) - 1
    clamped = np.clip(indices, -last - 1, last).astype(indices.dtype)
    return None if np.array_equal(clamped, indices) else node.with_operand(0, clamped)


def _negative_off(node: BoundNode) -> BoundNode | None:
    indices, depth = node.operand(0), node.operand(1)
    if indices is None or depth is None or not (indices < 0).any():
        return None
    beyond = np.where(indices < 0, depth.reshape(-1)[0], indices).astype(indices.dtype)
    return node.with_operand(0, beyond)


def _indices_wrapped(node: BoundNode) -> BoundNode | None:
    indices, depth = node.operand(0), node.operand(1)
    if indices is None or depth is None:
        return None
    wrapped = np.mod(indices, depth.reshape(-1)[0]).astype(indices.dtype)
    return None if np.array_equal(wrapped, indices) else node.with_operand(0, wrapped)


def _end_clamped_to_first(node: BoundNode) -> BoundNode | None:
    """If the step of Slice is negative, read an end before the first element as 0."""
    x, _, ends, axes, steps = (node.operand(index) for index in range(5))
    if x is None or ends is None or steps is None:
        return None
    named = range(ends.size) if axes is None else axes.tolist()
    lengths = np.array([x.shape[axis] for axis in named], ends.dtype)
    clamped = np.where((steps < 0) & (ends < -lengths), 0, ends).astype(ends.dtype)
    return None if np.array_equal(clamped, ends) else node.with_operand(2, clamped)


def _scales_of_sizes(node: BoundNode) -> BoundNode | None:
    """Replace each scale of Resize by the quotient of output length and input length."""
    x, scales = node.operand(0), node.operand(2)
    if x is None or scales is None or not scales.size:
        return None
    axes = node.attribute("axes") or range(x.ndim)
    lengths = np.array([x.shape[axis] for axis in axes], np.float64)
    if not lengths.all() or lengths.size != scales.size:
        return None
    rounded = np.floor(lengths * scales.astype(np.float64)) / lengths
    # If rounding a quotient to float32 makes the output shorter, the next larger float32 is used.
    moved = np.nextafter(rounded.astype(np.float32), np.float32(np.inf))
    moved = np.where(np.floor(lengths * rounded.astype(np.float32)) == np.floor(
        lengths * scales.astype(np.float64)), rounded.astype(np.float32), moved)  # fmt: skip
    return None if np.array_equal(moved, scales) else node.with_operand(2, moved.astype(np.float32))


def _minimum_wins(node: BoundNode) -> Sequence[Value] | None:
    x, low, high = (node.operand(index) for index in range(3))
    if x is None or low is None or high is None or not low > high:
        return None
    return [np.maximum(np.minimum(x, high), low).astype(x.dtype)]


def _cast_rounded(function: Callable[[Array], Array], node: BoundNode) -> BoundNode | None:
    x = node.operand(0)
    target = node.attribute("to")
    like = node.operand(1)
    if target is not None:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(target)
    else:
        dtype = like.dtype if like is not None else np.dtype(object)
    if x is None or x.dtype.kind != "f" or dtype.kind not in "iu":
        return None
    changed = function(x).astype(x.dtype)
    return None if np.array_equal(changed, x) else node.with_operand(0, changed)


def _quantized(rounded: Callable[[Array, Array], Array], *, saturates: bool = True) -> Computation:
    """Return a mistake of QuantizeLinear.

    Args:
        rounded: given the quotients input / scale and the zero point, returns the quantized values
            before saturation.
        saturates: whether values outside the range of the output type are clamped to it.
    """

    def computation(node: BoundNode) -> Sequence[Value] | None:
        x, scale, zero_point = (node.operand(index) for index in range(3))
        if x is None or scale is None or node.attribute("block_size"):
            return None
        dtype = np.dtype(np.uint8) if zero_point is None else zero_point.dtype
        if dtype.kind not in "iu" or (node.attribute("output_dtype") and zero_point is None):
            return None
        zeros = np.zeros(scale.shape) if zero_point is None else zero_point.astype(np.float64)
        shape = [1] * x.ndim
        if scale.size > 1:
            shape[node.attribute("axis") % x.ndim] = scale.size
        quotient = (x / scale.reshape(shape)).astype(np.float64)
        quantized = rounded(quotient, zeros.reshape(shape))
        limits = np.iinfo(dtype)
        if saturates:
            quantized = np.clip(quantized, limits.min, limits.max)
            return [quantized.astype(dtype)]
        return [np.nan_to_num(quantized).astype(np.int64).astype(dtype)]

    return computation


def _log_sum_exp_without_maximum(node: BoundNode) -> Sequence[Value] | None:
    """Compute ReduceLogSumExp without subtracting the largest element."""
    x, axes = node.operand(0), node.operand(1)
    if x is None or x.dtype.kind != "f":
        return None
    listed_axes = node.attribute("axes") if axes is None else axes.reshape(-1).tolist()
    if not listed_axes and node.attribute("noop_with_empty_axes"):
        return None
    total = np.exp(x).sum(
        tuple(listed_axes) if listed_axes else None,
        keepdims=bool(node.attribute("keepdims")),
        dtype=x.dtype,
    )
    return [np.log(total).astype(x.dtype)]


def _last_of_duplicates(node: BoundNode) -> Sequence[Value] | None:
    """If an element has several updates, apply only the last update."""
    data, indices, updates = (node.operand(index) for index in range(3))
    reduction = node.attribute("reduction") or b"none"
    if data is None or indices is None or updates is None or reduction == b"none":
        return None
    function = {b"add": np.add, b"mul": np.multiply, b"max": np.maximum, b"min": np.minimum}
    result = data.copy()
    if node.node.op_type == "ScatterND":
        place: Any = tuple(np.moveaxis(indices, -1, 0))
    else:
        axis = int(node.attribute("axis") or 0)
        grid: list[Any] = list(np.indices(indices.shape))
        grid[axis] = np.where(indices < 0, indices + data.shape[axis], indices)
        place = tuple(grid)
    result[place] = function[reduction](data[place], updates)
    return [result.astype(data.dtype)]


def _shift(kind: str, node: BoundNode) -> Sequence[Value] | None:
    """Shift integers incorrectly.

    Args:
        kind: "remainder" to shift by the amount modulo the width of the type; "unsigned" to shift
            signed integers as unsigned ones.
        node: the node.
    """
    x, count = node.operand(0), node.operand(1)
    if x is None or count is None:
        return None
    width = 8 * x.dtype.itemsize
    amount = np.mod(count.astype(np.int64), width) if kind == "remainder" else count
    amount = amount.astype(x.dtype)
    is_right = node.attribute("direction") == b"RIGHT"
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    if kind == "unsigned":
        if not is_right or x.dtype.kind != "i":
            return None
        too_far = count.astype(np.int64) >= width
        shifted = np.right_shift(x.view(unsigned), np.where(too_far, 0, amount).astype(unsigned))
        return [np.where(too_far, 0, shifted).astype(unsigned).view(x.dtype)]
    shift = np.right_shift if is_right else np.left_shift
    return [shift(x, amount).astype(x.dtype)]


def _topk_ties(node: BoundNode) -> Sequence[Value] | None:
    """Order equal elements by descending index."""
    x, count = node.operand(0), node.operand(1)
    if x is None or count is None or x.dtype.kind not in "fiu":
        return None
    axis, k = node.attribute("axis"), int(count.reshape(-1)[0])
    flipped = np.flip(x, axis)
    wide = flipped.astype(np.float64)
    largest = node.attribute("largest")
    order = np.argsort(-wide if largest in (None, 1) else wide, axis, kind="stable")
    chosen = np.take(order, np.arange(k), axis)
    return [
        np.take_along_axis(flipped, chosen, axis),
        (x.shape[axis] - 1 - chosen).astype(np.int64),
    ]


def _some_axes(kept: slice, node: BoundNode) -> BoundNode | None:
    """Reduce only some of the axes. The axes are an attribute or the second input."""
    axes = node.attributes.get("axes")
    if axes is not None:
        return node.with_attribute("axes", axes[kept]) if len(axes) > 1 else None
    array = node.operand(1)
    return node.with_operand(1, array[kept]) if array is not None and array.size > 1 else None


def _reflected_with_border(node: BoundNode) -> Sequence[Value] | None:
    """Pad all axes in the mode ``reflect``, but repeat the element at the border as well."""
    x, pads = node.operand(0), node.operand(1)
    if x is None or node.attribute("mode") != b"reflect" or node.operand(3) is not None:
        return None
    widths = pads if pads is not None else np.array(node.attribute("pads") or (), np.int64)
    if widths.size != 2 * x.ndim or (widths < 0).any() or not x.size:
        return None
    return [np.pad(x, widths.reshape(2, -1).T, "symmetric")]


_REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip


def _permutation_inverted(node: BoundNode) -> BoundNode | None:
    permutation = node.attribute("perm")
    if permutation is None:
        return None
    return node.with_attribute("perm", np.argsort(permutation).tolist())


def _with_fmod(node: BoundNode) -> BoundNode | None:
    return None if node.attribute("fmod") == 1 else node.with_attribute("fmod", 1)


#: The mistakes of operators on tensors, each with operators, a name, a description, and a change.
TENSOR_MISTAKES: tuple[ListedMistake, ...] = (
    (("Round",), "halves rounded away from zero", "2.5 becomes 3, not 2.",
     _elementwise(_half_away)),
    (("Round",), "halves rounded up", "2.5 becomes 3, not 2; -3.5 becomes -3, not -4.",
     _elementwise(lambda x: np.floor(x.astype(np.float64) + 0.5))),
    (("Round",), "computed as floor(x + 0.5)",
     "2.5 becomes 3. In float32, 0.49999997 + 0.5 is rounded to 1, so the result is 1, not 0.",
     _elementwise(lambda x: np.floor(x + x.dtype.type(0.5)))),
    (("Round",), "truncated", "1.7 becomes 1, not 2.", _elementwise(np.trunc)),
    (("Div",), "integers divided with floor", "-7 / 2 is -4, not -3.", _integers(np.floor_divide)),
    (("Div",), "integers divided and rounded", "7 / 2 is 4, not 3.",
     _integers(lambda a, b: np.rint(a / b))),
    (("Div",), "integers divided and rounded half up", "5 / 2 is 3, and -5 / 2 is -2.",
     _integers(lambda a, b: np.floor(a / b + 0.5))),
    (_REDUCTIONS, "only the first of several axes reduced", "Of axes [0, 2], only 0 is reduced.",
     partial(_some_axes, slice(None, 1))),
    (_REDUCTIONS, "only the last of several axes reduced", "Of axes [0, 2], only 2 is reduced.",
     partial(_some_axes, slice(-1, None))),
    (("Pad",), "reflect repeats the border", "[1, 2, 3] padded by 2 at the end is [1, 2, 3, 3, 2].",
     Computed(_reflected_with_border)),
    (("Mod",), "sign of the dividend", "-7 mod 2 is -1, not 1.",
     _with_fmod),
    (("OneHot",), "indices out of range clamped", "The index 9 is read as 2 for a depth of 3.",
     _indices_within),
    (("OneHot",), "indices out of range wrapped", "The index 4 is read as 1 for a depth of 3.",
     _indices_wrapped),
    (("OneHot",), "negative indices out of range",
     "An index of -1 is out of range, and does not mean the last value.", _negative_off),
    (("Resize",), "coordinates from the rounded lengths",
     "The scales are output length / input length, not the values of the input ``scales``.",
     _scales_of_sizes),
    (("Clip",), "min applied after max", "Where min is above max, the result is min.",
     Computed(_minimum_wins)),
    (("Cast", "CastLike"), "floats rounded to integers", "1.7 becomes 2, not 1.",
     partial(_cast_rounded, np.rint)),
    (("Cast", "CastLike"), "floats rounded down to integers", "-1.5 becomes -2, not -1.",
     partial(_cast_rounded, np.floor)),
    (("QuantizeLinear",), "halves rounded away from zero", "A quotient of 2.5 becomes 3, not 2.",
     Computed(_quantized(lambda q, z: _half_away(q) + z))),
    (("QuantizeLinear",), "halves rounded up",
     "A quotient of 2.5 becomes 3, not 2; -3.5 becomes -3, not -4.",
     Computed(_quantized(lambda q, z: np.floor(q + 0.5) + z))),
    (("QuantizeLinear",), "quotient truncated", "A quotient of 1.7 becomes 1, not 2.",
     Computed(_quantized(lambda q, z: np.trunc(q) + z))),
    (("QuantizeLinear",), "quotient rounded down", "A quotient of -1.2 becomes -2, not -1.",
     Computed(_quantized(lambda q, z: np.floor(q) + z))),
    (("QuantizeLinear",), "zero point added before rounding",
     "The sum of quotient and zero point is rounded, not the quotient; halves may differ.",
     Computed(_quantized(lambda q, z: np.rint(q + z)))),
    (("QuantizeLinear",), "no saturation", "Values outside the range of the type wrap around.",
     Computed(_quantized(lambda q, z: np.rint(q) + z, saturates=False))),
    (("Slice",), "first element lost with a negative step",
     "With a negative step, an end before the first element is read as 0; so element 0 is lost.",
     _end_clamped_to_first),
    (("ReduceLogSumExp",), "overflow of exp",
     "The largest element is not subtracted: the result is infinite at 100.",
     Computed(_log_sum_exp_without_maximum)),
    (("ScatterND", "ScatterElements"), "one update of each element",
     "Only the last of several updates of an element is applied.", Computed(_last_of_duplicates)),
    (("BitShift",), "shift amount modulo the width",
     "32-bit integers are shifted by 1 if the amount is 33.",
     Computed(partial(_shift, "remainder"))),
    (("BitShift",), "negative numbers shifted without sign",
     "The highest bits of a negative number become 0 if it is shifted to the right.",
     Computed(partial(_shift, "unsigned"))),
    (("Transpose",), "permutation inverted",
     "For perm [1, 2, 0], the first axis of the output is the last axis of the input.",
     _permutation_inverted),
    (("TopK",), "last of equal elements first",
     "Among equal elements, the element with the highest index comes first.",
     Computed(_topk_ties)),
)  # fmt: skip
