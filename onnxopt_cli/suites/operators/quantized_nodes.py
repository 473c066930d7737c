"""Generators of operators that quantize, or that compute with quantized operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

import numpy as np
from onnx import TensorProto

from onnxopt_cli.core.values import DTYPES, Array, dtype_name
from onnxopt_cli.suites.operators.node_draft import NodeDraft, Shape
from onnxopt_cli.suites.operators.window_nodes import quantized_scale

_EIGHT_BITS = ("uint8", "int8")
_QUANTIZED = (*_EIGHT_BITS, "int16", "uint16")
_ONNX_TYPES = {"uint8": 2, "int8": 3, "uint16": 4, "int16": 5}


def _scale_shape(draft: NodeDraft, shape: Shape) -> tuple[Shape, int | None]:
    """Choose the shape and the axis of the scales; the axis is None for a single scale."""
    form = draft.choice(("single", "axis", "blocks"))
    if form == "single" or not draft.has("axis"):
        return (), None
    axis = draft.axis(len(shape))
    if form == "axis" or not draft.has("block_size"):
        return (shape[axis],), axis
    block = draft.integer(1, shape[axis])
    draft.set("block_size", block)
    place = axis % len(shape)
    scales = tuple(-(-size // block) if i == place else size for i, size in enumerate(shape))
    # An implementation may interpret a single scale of a block as the scale of the whole tensor.
    draft.require(prod(scales) > 1)
    return scales, axis


def _set_axis(draft: NodeDraft, axis: int | None) -> None:
    if axis is not None:
        draft.set("axis", axis if axis != 1 or draft.maybe() else None)


def _spread(scale: Array, shape: Shape, axis: int | None, block: int | None) -> Array:
    """Return the scales in a shape that can be broadcast to ``shape``."""
    if axis is None:
        return scale
    place = axis % len(shape)
    if block:
        return np.repeat(scale, block, place).take(range(shape[place]), place)
    return scale.reshape([-1 if i == place else 1 for i in range(len(shape))])


def _quantize_linear(draft: NodeDraft) -> None:
    shape = draft.shape(1, 4)
    x_type = draft.dtype(0, ("float32", "float16", "int32", "bfloat16"))
    scale_shape, axis = _scale_shape(draft, shape)
    if x_type.kind == "i":
        scale = draft.tensor(x_type, scale_shape, low=1, high=5)
    else:
        scale = quantized_scale(draft, scale_shape)
    _set_axis(draft, axis)
    target = DTYPES[draft.choice([name for name in draft.returned(0) if name in _QUANTIZED])]
    has_zero_point = dtype_name(target) != "uint8" or draft.maybe()
    if not has_zero_point and draft.has("output_dtype"):
        draft.set("output_dtype", _ONNX_TYPES[dtype_name(target)] if draft.maybe() else None)
    if x_type.kind == "i":
        x = draft.tensor(x_type, shape, low=-300, high=300)
    else:
        # Quotients that are odd multiples of 1/2 are ties of the rounding. Some quotients saturate.
        steps = draft.tensor(np.dtype(np.float32), shape, styles=("halves", "plain"))
        factor = draft.choice((1.0, 1.0, 40.0))
        spread = _spread(scale, shape, axis, draft.attributes.get("block_size"))
        x = (np.floor(steps * factor * 2) / 2 * spread).astype(x_type)
    draft.add(x)
    scale_type = (
        x_type
        if draft.schema.inputs[1].type_str == draft.schema.inputs[0].type_str
        else (DTYPES["float32"])
    )
    draft.add(scale.astype(scale_type))
    if has_zero_point:
        draft.add(draft.tensor(target, scale_shape, styles=("plain", "wide")))
    if x_type.kind == "f" and draft.maybe():
        draft.attribute("precision", (TensorProto.FLOAT, TensorProto.FLOAT16))


def _dequantize_linear(draft: NodeDraft) -> None:
    shape = draft.shape(1, 4)
    x_type = draft.dtype(0, (*_QUANTIZED, "int32"))
    scale_shape, axis = _scale_shape(draft, shape)
    _set_axis(draft, axis)
    draft.add(draft.tensor(x_type, shape, styles=("wide", "plain", "limits")))
    scale_type = draft.dtype(1, ("float32", "float16"))
    draft.add(quantized_scale(draft, scale_shape).astype(scale_type))
    if x_type.itemsize < 4 and draft.maybe():  # noqa: PLR2004 - int32 has no zero point
        draft.add(draft.tensor(x_type, scale_shape, styles=("plain", "wide")))
    if draft.maybe():
        draft.attribute("output_dtype", (TensorProto.FLOAT, TensorProto.FLOAT16))


def _dynamic_quantize(draft: NodeDraft) -> None:
    x = draft.tensor(np.dtype(np.float32), draft.shape(1, 4), styles=("plain", "halves"))
    # The operator extends the range of the elements so that it contains zero.
    draft.add(x + np.float32(draft.choice((0.0, 4.0, -4.0))))


def _matrix_shapes(draft: NodeDraft) -> tuple[Shape, Shape]:
    rows, inner, columns = draft.size(), draft.size(), draft.size()
    batch = draft.shape(0, 2)
    return (*batch, rows, inner), (*draft.narrowed(batch), inner, columns)


def _matmul_integer(draft: NodeDraft) -> None:
    a, b = draft.dtype(0, _EIGHT_BITS), draft.dtype(1, _EIGHT_BITS)
    first, second = _matrix_shapes(draft)
    draft.add(draft.tensor(a, first, styles=("wide", "plain")))
    draft.add(draft.tensor(b, second, styles=("wide", "plain")))
    draft.optional(lambda: draft.tensor(a, (), styles=("plain", "wide")))
    # Each column has a zero point: the zero points are a vector or, if B has batches, a tensor of
    # B's rank.
    columns = second[-1:] if len(second) == 2 else (*second[:-2], 1, second[-1])  # noqa: PLR2004
    shape: Shape = columns if draft.maybe() else ()
    draft.optional(lambda: draft.tensor(b, shape, styles=("plain", "wide")))


def _qlinear_matmul(draft: NodeDraft) -> None:
    a, b = draft.dtype(0, _EIGHT_BITS), draft.dtype(3, _EIGHT_BITS)
    first, second = _matrix_shapes(draft)
    y = draft.dtype(7, (dtype_name(a),))
    scale = draft.dtype(1, ("float32",))
    for dtype, shape in ((a, first), (b, second)):
        draft.add(draft.tensor(dtype, shape, styles=("wide", "plain")))
        draft.add(quantized_scale(draft).astype(scale))
        draft.add(draft.tensor(dtype, (), styles=("plain", "wide")))
    draft.add(np.asarray(2.0 ** draft.integer(-2, 4), scale))
    draft.add(draft.tensor(y, (), styles=("plain", "wide")))


#: Generators by operator.
QUANTIZED: Mapping[str, Callable[[NodeDraft], None]] = {
    "QuantizeLinear": _quantize_linear,
    "DequantizeLinear": _dequantize_linear,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "MatMulInteger": _matmul_integer,
    "QLinearMatMul": _qlinear_matmul,
}
