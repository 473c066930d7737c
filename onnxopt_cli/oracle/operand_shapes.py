"""Ranks and shapes that the specification requires of the operands of a node.

onnx's reference computes with NumPy, which broadcasts even operands that the specification
excludes, and which accepts a matrix in place of a vector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array

_Attributes = Mapping[str, Any]
_Shape = tuple[int, ...]
# Takes attributes and operands, and returns a description of the first operand that does not fit.
# The description is empty if all operands fit.
_Rule = Callable[[_Attributes, Sequence[Any]], str]
# The number of coordinates of a box or region.
_COORDINATES = 4


def misfit(operator: str, opset: int, attributes: _Attributes, operands: Sequence[Any]) -> str:
    """Return a description of the first operand of a wrong rank or shape; empty if all fit.

    Args:
        operator: an operator of the domain ai.onnx.
        opset: the version of the domain.
        attributes: attributes of the node.
        operands: the operands of the node, with None for each omitted operand, also at the end.
    """
    if opset < _FIRST_VERSIONS.get(operator, 0):
        return ""
    for place, name in _VECTORS.get(operator, {}).items():
        if operands[place] is not None and operands[place].ndim != 1:
            return f"{name} of shape {operands[place].shape} instead of a vector"
    for place, name in _SCALARS.get(operator, {}).items():
        if not _is_scalar(operands[place]):
            return f"{name} of shape {operands[place].shape} instead of a scalar"
    rule = _RULES.get(operator)
    return rule(attributes, operands) if rule else ""


def of_other_length(quantity: str, values: Array | None, length: int) -> str:
    """Describe the length of a list; return an empty string if the length is correct."""
    if values is None or np.size(values) == length:
        return ""
    return f"{quantity} of {np.size(values)} elements instead of {length}"


def _is_scalar(operand: Array | None) -> bool:
    """Return whether an operand is omitted, a scalar, or a vector of one element.

    Published cases pass vectors of one element where the specification requires a scalar.
    """
    return operand is None or (operand.size == 1 and operand.ndim <= 1)


def _of_other_shape(name: str, operand: Array | None, *shapes: _Shape) -> str:
    """Describe the shape of an operand; return an empty string if the shape is allowed."""
    if operand is None or operand.shape in shapes:
        return ""
    return f"{name} of shape {operand.shape} instead of {' or '.join(map(str, shapes))}"


def _not_broadcasting(name: str, operand: Array | None, shape: _Shape) -> str:
    """Describe an operand that does not broadcast to a shape; else return an empty string."""
    if operand is None:
        return ""
    missing = len(shape) - operand.ndim
    if missing >= 0 and all(
        size in (1, wanted) for size, wanted in zip(operand.shape, shape[missing:], strict=True)
    ):
        return ""
    return f"{name} of shape {operand.shape}, which does not broadcast to {shape}"


def _convolved(attributes: _Attributes, images: Array, weights: Array) -> str:
    """Return why weights do not fit images, or an empty string."""
    if fault := _kernel(attributes, images, weights):
        return fault
    groups = attributes.get("group", 1)
    channels, (features, channels_of_group) = images.shape[1], weights.shape[:2]
    if channels != channels_of_group * groups:
        return f"{channels} channels, but weights for {channels_of_group * groups}"
    if features % groups:
        return f"{features} feature maps, which are not a multiple of group={groups}"
    return ""


def _kernel(attributes: _Attributes, images: Array, weights: Array) -> str:
    if images.ndim != weights.ndim:
        return f"images of rank {images.ndim}, but weights of rank {weights.ndim}"
    stated = tuple(attributes.get("kernel_shape", weights.shape[2:]))
    if stated != weights.shape[2:]:
        return f"a kernel_shape of {stated}, but weights of shape {weights.shape}"
    return ""


def _convolution(attributes: _Attributes, operands: Sequence[Any]) -> str:
    images, weights, bias = operands[:3]
    return _convolved(attributes, images, weights) or of_other_length("a bias", bias, len(weights))


def _integer_convolution(attributes: _Attributes, operands: Sequence[Any]) -> str:
    images, weights, _, zero_points = operands[:4]
    return _convolved(attributes, images, weights) or _per_channel(
        "w_zero_point", zero_points, len(weights)
    )


def _quantized_convolution(attributes: _Attributes, operands: Sequence[Any]) -> str:
    images, weights, bias = operands[0], operands[3], operands[8]
    features = len(weights)
    return (
        _convolved(attributes, images, weights)
        or _per_channel("w_scale", operands[4], features)
        or _per_channel("w_zero_point", operands[5], features)
        or of_other_length("a bias", bias, features)
    )


def _per_channel(name: str, operand: Array | None, channels: int) -> str:
    """Describe an operand that is neither a scalar nor a vector with one element per channel."""
    return "" if _is_scalar(operand) else _of_other_shape(name, operand, (), (channels,))


def _transposed_convolution(attributes: _Attributes, operands: Sequence[Any]) -> str:
    (images, weights, bias), groups = operands[:3], attributes.get("group", 1)
    if fault := _kernel(attributes, images, weights):
        return fault
    channels, features = images.shape[1], weights.shape[1] * groups
    if channels != weights.shape[0]:
        return f"{channels} channels, but weights for {weights.shape[0]}"
    if channels % groups:
        return f"{channels} channels, which are not a multiple of group={groups}"
    return of_other_length("a bias", bias, features)


def _deformable_convolution(attributes: _Attributes, operands: Sequence[Any]) -> str:
    images, weights, offset, bias, mask = operands[:5]
    if fault := _convolved(attributes, images, weights):
        return fault
    kernel, rank = np.array(weights.shape[2:]), images.ndim - 2
    pads = np.reshape(attributes.get("pads", [0] * 2 * rank), (2, rank)).sum(axis=0)
    extent = np.array(attributes.get("dilations", [1] * rank)) * (kernel - 1) + 1
    steps = np.array(attributes.get("strides", [1] * rank))
    sizes = (np.array(images.shape[2:]) + pads - extent) // steps + 1
    places = attributes.get("offset_group", 1) * int(np.prod(kernel))
    return (
        _of_other_shape("offset", offset, (len(images), places * rank, *sizes.tolist()))
        or of_other_length("a bias", bias, len(weights))
        or _of_other_shape("mask", mask, (len(images), places, *sizes.tolist()))
    )


def _bounds(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    data, least, most = operands[:3]
    return _not_broadcasting("min", least, data.shape) or _not_broadcasting("max", most, data.shape)


def _slope(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    data, slope = operands[:2]
    return _not_broadcasting("a slope", slope, data.shape)


def _scaled(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    data, scale, bias = operands[:3]
    return _not_broadcasting("a scale", scale, data.shape) or _not_broadcasting(
        "a bias", bias, data.shape
    )


def _channel_parameters(
    names: Sequence[str], _attributes: _Attributes, operands: Sequence[Any]
) -> str:
    data = operands[0]
    shape = (data.shape[1] if data.ndim > 1 else 1,)
    faults = (
        _of_other_shape(name, operand, shape)
        for name, operand in zip(names, operands[1:], strict=False)
    )
    return next(filter(None, faults), "")


def _added_matrix(attributes: _Attributes, operands: Sequence[Any]) -> str:
    a, b, c = operands[:3]
    rows = a.shape[1 if attributes.get("transA") else 0]
    columns = b.shape[0 if attributes.get("transB") else 1]
    return _not_broadcasting("C", c, (rows, columns))


def _integer_product(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    a, b, a_zero, b_zero = operands[:4]
    return _per_row("a_zero_point", a_zero, a.shape) or _per_column("b_zero_point", b_zero, b.shape)


def _quantized_product(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = operands[:8]
    product = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    rows = (*product, *a.shape[-2:])
    pairs = {"a": (a_scale, a_zero), "b": (b_scale, b_zero), "y": (y_scale, y_zero)}
    for name, (scale, zero_point) in pairs.items():
        if not (_is_scalar(scale) and _is_scalar(zero_point)) and scale.shape != zero_point.shape:
            return f"{name}_scale of shape {scale.shape} and {name}_zero_point of another"
    return (
        _per_row("a_scale", a_scale, a.shape)
        or _per_column("b_scale", b_scale, b.shape)
        or _per_row("y_scale", y_scale, rows)
    )


def _per_row(name: str, operand: Array | None, matrix: _Shape) -> str:
    """Describe an operand that neither is a scalar nor has one element per row of a matrix."""
    if _is_scalar(operand) or len(matrix) == 1:
        return _of_other_shape(name, operand, (), (1,))
    vector = [matrix[-2:-1]] if len(matrix) == 2 else []  # noqa: PLR2004 - a single matrix
    return _of_other_shape(name, operand, *vector, (*matrix[:-1], 1))


def _per_column(name: str, operand: Array | None, matrix: _Shape) -> str:
    """Describe an operand that neither is a scalar nor has one element per column of a matrix."""
    if _is_scalar(operand) or len(matrix) == 1:
        return _of_other_shape(name, operand, (), (1,))
    vector = [matrix[-1:]] if len(matrix) == 2 else []  # noqa: PLR2004 - a single matrix
    return _of_other_shape(name, operand, *vector, (*matrix[:-2], 1, matrix[-1]))


def _attended(attributes: _Attributes, operands: Sequence[Any]) -> str:
    q, k, v = (
        _by_head(operand.shape, attributes.get(count))
        for operand, count in zip(
            operands[:3], ("q_num_heads", "kv_num_heads", "kv_num_heads"), strict=True
        )
    )
    mask, past_key, past_value, lengths = operands[3:7]
    batch, heads, queries, size = q
    _, key_heads, keys, _ = k
    if k != (batch, key_heads, keys, size):
        return f"K of shape {k} for Q of shape {q}"
    if v[:3] != k[:3]:
        return f"V of shape {v} for K of shape {k}"
    if heads % key_heads:
        return f"{heads} query heads, which are not a multiple of {key_heads}"
    past = past_key.shape[2] if past_key is not None else 0
    fault = (
        _of_other_shape("past_key", past_key, (batch, key_heads, past, size))
        or _of_other_shape("past_value", past_value, (batch, key_heads, past, v[3]))
        or _of_other_shape("nonpad_kv_seqlen", lengths, (batch,))
    )
    if fault or mask is None:
        return fault
    # A mask may be shorter than the number of keys.
    length = min(mask.shape[-1], past + keys)
    return _not_broadcasting("attn_mask", mask, (batch, heads, queries, length))


def _by_head(shape: _Shape, heads: int | None) -> _Shape:
    """Return the shape of a tensor with an axis of heads, which is added if the rank is 3."""
    if heads is None or len(shape) != 3:  # noqa: PLR2004 - batch, sequence, heads and their elements
        return shape
    batch, length, elements = shape
    return batch, heads, length, elements // heads


def _affine_matrices(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    theta, size = operands[:2]
    rank = size.size - 2
    return _of_other_shape("theta", theta, (int(size[0]), rank, rank + 1))


def _recurrent_operands(gates: int, attributes: _Attributes, operands: Sequence[Any]) -> str:
    x, w, r, b, lengths, *states, p = operands[:8]
    batch = x.shape[0 if attributes.get("layout", 0) == 1 else 1]
    directions = 2 if attributes.get("direction") == b"bidirectional" else 1
    hidden = attributes.get("hidden_size", r.shape[-1])
    rows = gates * hidden
    state = (directions, batch, hidden)
    if attributes.get("layout", 0) == 1:
        state = (batch, directions, hidden)
    shapes = {
        "W": (w, (directions, rows, x.shape[-1])),
        "R": (r, (directions, rows, hidden)),
        "B": (b, (directions, 2 * rows)),
        "initial_h": (states[0], state),
        "initial_c": (states[1], state),
        "P": (p, (directions, 3 * hidden)),
    }
    faults = (_of_other_shape(name, *pair) for name, pair in shapes.items())
    return next(filter(None, faults), "") or of_other_length("sequence lengths", lengths, batch)


def _boxes(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    boxes, scores = operands[:2]
    if boxes.ndim != 3:  # noqa: PLR2004 - batches, boxes and coordinates
        return f"boxes of shape {boxes.shape} instead of rank 3"
    batches, count, _ = boxes.shape
    return _of_other_shape("boxes", boxes, (batches, count, _COORDINATES)) or _of_other_shape(
        "scores", scores, (batches, *scores.shape[1:2], count)
    )


def _regions(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    _, regions, batch_indices = operands[:3]
    count = len(regions)
    return _of_other_shape("rois", regions, (count, _COORDINATES)) or _of_other_shape(
        "batch_indices", batch_indices, (count,)
    )


def _unpooled_indices(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    values, indices, output_shape = operands[:3]
    return _of_other_shape("I", indices, values.shape) or of_other_length(
        "an output_shape", output_shape, values.ndim
    )


def _one_hot_values(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    return _of_other_shape("values", operands[2], (2,))


def _cropped_axes(attributes: _Attributes, operands: Sequence[Any]) -> str:
    data, sizes = operands[:2]
    return of_other_length("a shape", sizes, len(attributes.get("axes", data.shape)))


def _resized_axes(attributes: _Attributes, operands: Sequence[Any]) -> str:
    data, _, scales, sizes = operands[:4]
    axes = len(attributes.get("axes", data.shape))
    # In versions 11 and 12, an empty tensor stands for an omitted one.
    if scales is not None and scales.size:
        return of_other_length("scales", scales, axes)
    return of_other_length("sizes", sizes, axes) if sizes is not None and sizes.size else ""


def _upsampled_axes(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    data, scales = operands[:2]
    return of_other_length("scales", scales, data.ndim)


def _classes(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    scores, labels, weights = operands[:3]
    shape = (len(scores), *scores.shape[2:])
    return _of_other_shape("labels", labels, shape) or of_other_length(
        "weights", weights, scores.shape[1]
    )


def _scattered_elements(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    _, indices, updates = operands[:3]
    return _of_other_shape("updates", updates, indices.shape)


def _scattered_slices(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    data, indices, updates = operands[:3]
    shape = (*indices.shape[:-1], *data.shape[indices.shape[-1] :])
    return _of_other_shape("updates", updates, shape)


def _single_count(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    return of_other_length("K", operands[1], 1)


def _rotations(attributes: _Attributes, operands: Sequence[Any]) -> str:
    x, cosines, sines, positions = operands[:4]
    batch, _, length, size = _by_head(x.shape, attributes.get("num_heads"))
    half = (attributes.get("rotary_embedding_dim", 0) or size) // 2
    shape = (batch, length, half) if positions is None else (len(cosines), half)
    return (
        _of_other_shape("cos_cache", cosines, shape)
        or _of_other_shape("sin_cache", sines, shape)
        or _of_other_shape("position_ids", positions, (batch, length))
    )


def _framed_signal(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    signal, _, window, length = operands[:4]
    real_or_complex = [(*signal.shape[:2], parts) for parts in (1, 2)]
    fault = _of_other_shape("signal", signal, *real_or_complex)
    if fault or length is None:
        return fault
    return of_other_length("a window", window, int(length.item()))


def _transformed_signal(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    signal = operands[0]
    return _of_other_shape("input", signal, *((*signal.shape[:-1], parts) for parts in (1, 2)))


def _zero_points(_attributes: _Attributes, operands: Sequence[Any]) -> str:
    data, scales, zero_points = operands[:3]
    if scales.ndim > max(1, data.ndim):
        return f"scales of shape {scales.shape} for data of shape {data.shape}"
    return of_other_length("zero points", zero_points, scales.size)


# The operands that must be vectors, by operator and operand index.
_VECTORS: dict[str, dict[int, str]] = {
    **{name: {4: "sequence_lens"} for name in ("GRU", "LSTM", "RNN")},
    **{name: {2: "weights"} for name in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")},
    "CausalConvWithState": {2: "bias"},
    "CenterCropPad": {1: "shape"},
    "Col2Im": {1: "image_shape", 2: "block_shape"},
    "Compress": {1: "condition"},
    "ConstantOfShape": {0: "input"},
    "Conv": {2: "B"},
    "ConvTranspose": {2: "B"},
    "DeformConv": {3: "B"},
    "Expand": {1: "shape"},
    "Pad": {1: "pads", 3: "axes"},
    "QLinearConv": {8: "B"},
    "Reshape": {1: "shape"},
    "Resize": {1: "an operand", 2: "scales", 3: "sizes"},
    "ReverseSequence": {1: "sequence_lens"},
    "STFT": {2: "window"},
    "Slice": {1: "starts", 2: "ends", 3: "axes", 4: "steps"},
    "TensorScatter": {2: "write_indices"},
    "Tile": {1: "repeats"},
    "TopK": {1: "K"},
    "Upsample": {1: "scales"},
}
# The operands that must be scalars, by operator and operand index.
_SCALARS: dict[str, dict[int, str]] = {
    **{name: {0: "size"} for name in ("BlackmanWindow", "HammingWindow", "HannWindow")},
    **{name: {1: "axis"} for name in ("CumProd", "CumSum")},
    **{name: {1: "position"} for name in ("SequenceAt", "SequenceErase")},
    "Clip": {1: "min", 2: "max"},
    "ConvInteger": {2: "x_zero_point"},
    "DFT": {1: "dft_length", 2: "axis"},
    "Dropout": {1: "ratio", 2: "training_mode"},
    "MelWeightMatrix": {
        0: "num_mel_bins",
        1: "dft_length",
        2: "sample_rate",
        3: "lower_edge_hertz",
        4: "upper_edge_hertz",
    },
    "NonMaxSuppression": {
        2: "max_output_boxes_per_class",
        3: "iou_threshold",
        4: "score_threshold",
    },
    "OneHot": {1: "depth"},
    "Pad": {2: "constant_value"},
    "QLinearConv": {
        1: "x_scale",
        2: "x_zero_point",
        6: "y_scale",
        7: "y_zero_point",
    },
    "Range": {0: "start", 1: "limit", 2: "delta"},
    "STFT": {1: "frame_step", 3: "frame_length"},
    "SequenceInsert": {2: "position"},
    "Trilu": {1: "k"},
}
_RULES: dict[str, _Rule] = {
    **{
        name: partial(_recurrent_operands, gates)
        for name, gates in {"GRU": 3, "LSTM": 4, "RNN": 1}.items()
    },
    **dict.fromkeys(("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"), _classes),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _scaled),
    **dict.fromkeys(("DequantizeLinear", "QuantizeLinear"), _zero_points),
    "AffineGrid": _affine_matrices,
    "Attention": _attended,
    "BatchNormalization": partial(_channel_parameters, ("scale", "B", "input_mean", "input_var")),
    "CenterCropPad": _cropped_axes,
    "Clip": _bounds,
    "Conv": _convolution,
    "ConvInteger": _integer_convolution,
    "ConvTranspose": _transposed_convolution,
    "DFT": _transformed_signal,
    "DeformConv": _deformable_convolution,
    "Gemm": _added_matrix,
    "GroupNormalization": partial(_channel_parameters, ("scale", "bias")),
    "InstanceNormalization": partial(_channel_parameters, ("scale", "B")),
    "MatMulInteger": _integer_product,
    "MaxUnpool": _unpooled_indices,
    "NonMaxSuppression": _boxes,
    "OneHot": _one_hot_values,
    "PRelu": _slope,
    "QLinearConv": _quantized_convolution,
    "QLinearMatMul": _quantized_product,
    "Resize": _resized_axes,
    "RoiAlign": _regions,
    "RotaryEmbedding": _rotations,
    "STFT": _framed_signal,
    "Scatter": _scattered_elements,
    "ScatterElements": _scattered_elements,
    "ScatterND": _scattered_slices,
    "TopK": _single_count,
    "Upsample": _upsampled_axes,
}
# The opset versions from which the requirements apply. Earlier versions have other operands.
_FIRST_VERSIONS = {
    "BatchNormalization": 9,
    "Gemm": 7,
    "GroupNormalization": 21,
    "PRelu": 7,
    "Tile": 6,
    "TopK": 10,
    "Upsample": 9,
}
