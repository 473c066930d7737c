"""Compute the right values of the gallery's own cases from the text of ONNX's specification.

The functions compute in double with NumPy, and share no code with the package or with onnx's
reference. The results are therefore independent evidence for cases whose outputs ONNX does not
publish. For a row whose case is in ``onnx-node``, the published output contains the right value.

The script prints each case with its largest difference. It exits with 1 if a difference exceeds the
rounding of the output's type.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from onnxopt_cli import Case, load_cases
from onnxopt_cli.suites.gallery.gallery_suite import own_cases, runtimes

Tensor: TypeAlias = npt.NDArray[Any]
Operands: TypeAlias = Sequence[Tensor]
Attributes: TypeAlias = Mapping[str, Any]
Function: TypeAlias = Callable[[Operands, Attributes, int], Sequence[Tensor]]
#: The suite of the rows that have no published output.
CONFORMANCE = "conformance/"
# The largest difference, in ulps, that may result from a few operations in double and a rounding to
# the output's type.
_MAX_ULPS = 1.0
_FIRST_VERSION_OF_ONE_AXIS = 13


def _exact(tensor: Tensor) -> Tensor:
    return np.asarray(tensor).astype(np.float64)


def _require(attributes: Attributes, **implemented: Any) -> None:
    """Raise an error if an attribute has a value that the calling function does not implement."""
    for name, value in implemented.items():
        if attributes[name] != value:
            raise NotImplementedError(f"{name}={attributes[name]}")


def attention(operands: Operands, attributes: Attributes, version: int) -> Sequence[Tensor]:
    """Compute attention of tensors with four axes: scale, soft cap, mask, softmax, weighted sum."""
    del version
    query, key, value, mask, past_key, past_value = _padded(operands, 6)
    past = 0
    if past_key.size:
        past = past_key.shape[2]
        key, value = np.concatenate([past_key, key], 2), np.concatenate([past_value, value], 2)
    repeats = query.shape[1] // key.shape[1]
    result = np.zeros((*query.shape[:3], value.shape[3]))
    scale = attributes.get("scale", 1 / math.sqrt(query.shape[3]))
    softcap, window = attributes.get("softcap", 0.0), attributes.get("left_window_size", -1)
    bias = np.broadcast_to(mask if mask.size else np.zeros(()), (*query.shape[:3], key.shape[2]))
    for batch, head, row in np.ndindex(*query.shape[:3]):
        diagonal = row + past
        weights: dict[int, float] = {}
        for column in range(key.shape[2]):
            after = attributes.get("is_causal", 0) and column > diagonal
            before = window >= 0 and column < diagonal - window
            added = bias[batch, head, row, column]
            if after or before or added == -math.inf:
                continue
            keys = key[batch, head // repeats, column]
            score = scale * float(query[batch, head, row] @ keys)
            weights[column] = (softcap * math.tanh(score / softcap) if softcap else score) + added
        largest = max(weights.values(), default=0.0)
        powers = {column: math.exp(score - largest) for column, score in weights.items()}
        for column, power in powers.items():
            share = power / sum(powers.values())
            result[batch, head, row] += share * value[batch, head // repeats, column]
    return [result]


def _padded(operands: Operands, count: int) -> list[Tensor]:
    """Return the operands as doubles, with an empty tensor for each missing operand."""
    missing = [np.zeros(0)] * (count - len(operands))
    return [*map(_exact, operands), *missing]


def _pooled(reduce: Callable[[list[float], int, Attributes], float]) -> Function:
    """Return a pooling operator.

    Args:
        reduce: returns an element of the output. Its arguments are the elements of the window that
            are within the input, the number of positions of the window that are within the padded
            input, and the attributes.
    """

    def pool(operands: Operands, attributes: Attributes, version: int) -> Sequence[Tensor]:
        del version
        source = _exact(operands[0])
        kernel = attributes["kernel_shape"]
        axes = len(kernel)
        strides = attributes.get("strides", [1] * axes)
        dilations = attributes.get("dilations", [1] * axes)
        starts, counts, ends = [], [], []
        for axis, length in enumerate(source.shape[2:]):
            extent = dilations[axis] * (kernel[axis] - 1) + 1
            begin, end, count = _windows(attributes, axis, length, extent, strides[axis])
            starts.append(-begin)
            ends.append(length + end)
            counts.append(count)
        result = np.zeros((*source.shape[:2], *counts))
        for place in np.ndindex(*result.shape):
            inside: list[float] = []
            padded = 0
            for offset in np.ndindex(*kernel):
                position = [
                    start + stride * window + dilation * step
                    for start, stride, window, dilation, step in zip(
                        starts, strides, place[2:], dilations, offset, strict=True
                    )
                ]
                padded += all(at < end for at, end in zip(position, ends, strict=True))
                if all(0 <= at < size for at, size in zip(position, source.shape[2:], strict=True)):
                    inside.append(float(source[(*place[:2], *position)]))
            result[place] = reduce(inside, padded, attributes)
        return [result]

    return pool


def _windows(
    attributes: Attributes, axis: int, length: int, extent: int, stride: int
) -> tuple[int, int, int]:
    """Return the padding before and after an axis, and the number of windows along the axis."""
    automatic = attributes.get("auto_pad", "NOTSET")
    if automatic.startswith("SAME"):
        count = -(-length // stride)
        total = max((count - 1) * stride + extent - length, 0)
        less, more = total // 2, total - total // 2
        return (less, more, count) if automatic == "SAME_UPPER" else (more, less, count)
    pads = attributes.get("pads", [0] * 2 * len(attributes["kernel_shape"]))
    begin, end = pads[axis], pads[axis + len(pads) // 2]
    room = length + begin + end - extent
    count = room // stride + 1
    # With ceil_mode, one more window is counted if it starts before the padding at the end.
    if attributes.get("ceil_mode", 0) and room % stride and count * stride < length + begin:
        count += 1
    return begin, end, count


def _average(inside: list[float], padded: int, attributes: Attributes) -> float:
    divisor = padded if attributes.get("count_include_pad", 0) else len(inside)
    return sum(inside) / divisor


def _norm(inside: list[float], padded: int, attributes: Attributes) -> float:
    del padded
    power = attributes.get("p", 2)
    return float(sum(abs(element) ** power for element in inside) ** (1 / power))


def lrn(operands: Operands, attributes: Attributes, version: int) -> Sequence[Tensor]:
    """Divide each element by a power of the mean square of neighbouring channels."""
    del version
    source, size = _exact(operands[0]), attributes["size"]
    alpha, beta, bias = attributes["alpha"], attributes.get("beta", 0.75), attributes["bias"]
    before, after = (size - 1) // 2, size // 2
    result = np.zeros_like(source)
    for channel in range(source.shape[1]):
        region = source[:, max(0, channel - before) : channel + after + 1]
        squares = (region**2).sum(1)
        result[:, channel] = source[:, channel] / (bias + alpha / size * squares) ** beta
    return [result]


def lp_normalization(operands: Operands, attributes: Attributes, version: int) -> Sequence[Tensor]:
    """Divide each element by the norm along an axis."""
    del version
    source = _exact(operands[0])
    power, axis = attributes.get("p", 2), attributes.get("axis", -1)
    norm = (np.abs(source) ** power).sum(axis, keepdims=True) ** (1 / power)
    return [np.divide(source, norm, out=np.zeros_like(source), where=norm != 0)]


def _along_axis(function: Callable[[Tensor], Tensor]) -> Function:
    """Return Softmax or a similar operator. Before version 13, it merges all axes from ``axis`` on.

    Args:
        function: maps a matrix to the result along its rows.
    """

    def along_axis(operands: Operands, attributes: Attributes, version: int) -> Sequence[Tensor]:
        source = _exact(operands[0])
        if version >= _FIRST_VERSION_OF_ONE_AXIS:
            moved = np.moveaxis(source, attributes.get("axis", -1), -1)
            rows = function(moved.reshape(-1, moved.shape[-1])).reshape(moved.shape)
            return [np.moveaxis(rows, -1, attributes.get("axis", -1))]
        leading = math.prod(source.shape[: attributes.get("axis", 1)])
        return [function(source.reshape(leading, -1)).reshape(source.shape)]

    return along_axis


def _log_softmax(rows: Tensor) -> Tensor:
    shifted = rows - rows.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def _hardmax(rows: Tensor) -> Tensor:
    result = np.zeros_like(rows)
    result[np.arange(len(rows)), rows.argmax(1)] = 1
    return result


def conv_transpose(operands: Operands, attributes: Attributes, version: int) -> Sequence[Tensor]:
    """Compute a transposed convolution without padding, strides or dilations."""
    del version
    source, weights, bias = _padded(operands, 3)
    group = attributes.get("group", 1)
    channels, within = source.shape[1] // group, weights.shape[1]
    shape = [
        size + step - 1 for size, step in zip(source.shape[2:], weights.shape[2:], strict=True)
    ]
    result = np.zeros((source.shape[0], within * group, *shape))
    if bias.size:
        result += bias.reshape(-1, *[1] * len(shape))
    for batch, channel, *place in np.ndindex(*source.shape):
        for output, *offset in np.ndindex(*weights.shape[1:]):
            target = [at + step for at, step in zip(place, offset, strict=True)]
            product = source[(batch, channel, *place)] * weights[(channel, output, *offset)]
            result[(batch, channel // channels * within + output, *target)] += product
    return [result]


def global_max_pool(operands: Operands, attributes: Attributes, version: int) -> Sequence[Tensor]:
    """Return the maximum over all spatial axes."""
    del attributes, version
    source = _exact(operands[0])
    return [source.max(tuple(range(2, source.ndim)), keepdims=True)]


def _cubic_weight(distance: float, a: float = -0.75) -> float:
    """Return the weight of a pixel at a given distance in cubic convolution (Keys 1981)."""
    d = abs(distance)
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a if d < 2 else 0.0  # noqa: PLR2004


def resize(operands: Operands, attributes: Attributes, version: int) -> Sequence[Tensor]:
    """Interpolate along each axis, by ``scales`` or to ``sizes``."""
    del version
    source, _, scales, sizes = _padded(operands, 4)
    result = source
    for axis, length in enumerate(source.shape):
        scale = float(scales[axis]) if scales.size else float(sizes[axis]) / length
        count = math.floor(length * scale) if scales.size else int(sizes[axis])
        if (count, scale) != (length, 1.0):
            weights = np.zeros((count, length))
            for index in range(count):
                position = _source_position(index, scale, length, count, attributes)
                for pixel, weight in _pixel_weights(position, length, attributes).items():
                    weights[index, pixel] = weight
            result = np.moveaxis(np.tensordot(weights, result, (1, axis)), 0, axis)
    return [result]


def _source_position(
    index: int, scale: float, length: int, count: int, attributes: Attributes
) -> float:
    """Return the input position at which Resize samples an output element."""
    transformation = attributes.get("coordinate_transformation_mode", "half_pixel")
    if transformation == "asymmetric":
        return index / scale
    if transformation == "align_corners":
        return index * (length - 1) / (count - 1) if count > 1 else 0.0
    if transformation == "pytorch_half_pixel" and count == 1:
        return 0.0
    if transformation not in {"half_pixel", "pytorch_half_pixel"}:
        raise NotImplementedError(transformation)
    return (index + 0.5) / scale - 0.5


def _pixel_weights(position: float, length: int, attributes: Attributes) -> dict[int, float]:
    """Return the weight of each pixel along an axis, by the index of the pixel."""
    below = math.floor(position)
    if attributes.get("mode", "nearest") == "nearest":
        nearest = {
            "round_prefer_floor": math.ceil(position - 0.5),
            "round_prefer_ceil": math.floor(position + 0.5),
            "floor": below,
            "ceil": math.ceil(position),
        }[attributes.get("nearest_mode", "round_prefer_floor")]
        return {min(max(nearest, 0), length - 1): 1.0}
    if attributes["mode"] == "linear":
        parts = {below: below + 1 - position, below + 1: position - below}
    else:
        a = attributes.get("cubic_coeff_a", -0.75)
        parts = {pixel: _cubic_weight(position - pixel, a) for pixel in range(below - 1, below + 3)}
    weights: dict[int, float] = {}
    for pixel, weight in parts.items():
        if 0 <= pixel < length or not attributes.get("exclude_outside", 0):
            inside = min(max(pixel, 0), length - 1)
            weights[inside] = weights.get(inside, 0.0) + weight
    total = sum(weights.values())
    return {pixel: weight / total for pixel, weight in weights.items()}


def top_k(operands: Operands, attributes: Attributes, version: int) -> Sequence[Tensor]:
    """Return the largest elements along an axis. Equal elements keep the order of their indices."""
    del version
    _require({"largest": 1, "sorted": 1, **attributes}, largest=1, sorted=1)
    source, axis = operands[0], attributes.get("axis", -1)
    indices = np.argsort(-_exact(source), axis, kind="stable")
    indices = np.take(indices, range(int(operands[1][0])), axis)
    return [np.take_along_axis(source, indices, axis), indices]


def integer_range(operands: Operands, attributes: Attributes, version: int) -> Sequence[Tensor]:
    """Return the integers from start to limit in steps of delta, without the limit itself."""
    del attributes, version
    return [np.array(range(*map(int, operands)))]


def is_inf(operands: Operands, attributes: Attributes, version: int) -> Sequence[Tensor]:
    """Return a mask of the infinite elements whose sign the attributes select."""
    del version
    positive = attributes.get("detect_positive", 1) * (operands[0] == math.inf)
    negative = attributes.get("detect_negative", 1) * (operands[0] == -math.inf)
    return [(positive + negative) > 0]


def shape(operands: Operands, attributes: Attributes, version: int) -> Sequence[Tensor]:
    """Return the part of the input's shape between start and end."""
    del version
    part = slice(attributes.get("start", 0), attributes.get("end"))
    return [np.array(operands[0].shape[part], np.int64)]


def reduce_l1(operands: Operands, attributes: Attributes, version: int) -> Sequence[Tensor]:
    """Return sums of magnitudes. Without axes, noop_with_empty_axes=1 returns the magnitudes."""
    del version
    magnitudes = np.abs(_exact(operands[0]))
    axes = tuple(int(axis) for tensor in operands[1:] for axis in tensor)
    if not axes and attributes.get("noop_with_empty_axes", 0):
        return [magnitudes]
    return [magnitudes.sum(axes or None, keepdims=bool(attributes.get("keepdims", 1)))]


def gemm(operands: Operands, attributes: Attributes, version: int) -> Sequence[Tensor]:
    """Return the scaled product of two matrices, plus a scaled third operand."""
    del version
    _require({"transA": 0, "transB": 0, **attributes}, transA=0, transB=0)
    left, right, added = map(_exact, operands)
    return [attributes.get("alpha", 1.0) * left @ right + attributes.get("beta", 1.0) * added]


def log_sum_exp(operands: Operands, attributes: Attributes, version: int) -> Sequence[Tensor]:
    """Return the logarithm of the sum of exponentials."""
    del version
    source = _exact(operands[0])
    axes = tuple(map(int, operands[1]))
    largest = source.max(axes, keepdims=True)
    shift = np.where(np.isfinite(largest), largest, 0)
    with np.errstate(divide="ignore"):
        result = np.log(np.exp(source - shift).sum(axes, keepdims=True)) + shift
    return [result if attributes.get("keepdims", 1) else result.squeeze(axes)]


def quantize_linear(operands: Operands, attributes: Attributes, version: int) -> Sequence[Tensor]:
    """Round the quotient to even, add the zero point, and saturate."""
    del attributes, version
    limits = np.iinfo(operands[2].dtype)
    source, scale, zero_point = map(_exact, operands)
    return [np.clip(np.rint(source / scale) + zero_point, limits.min, limits.max)]


def pad(operands: Operands, attributes: Attributes, version: int) -> Sequence[Tensor]:
    """Pad with zeros; negative pads remove elements."""
    del version
    _require(attributes, mode="constant")
    source, pads = _exact(operands[0]), [int(each) for each in operands[1]]
    pairs = list(zip(pads[: source.ndim], pads[source.ndim :], strict=True))
    remaining = tuple(
        slice(max(-begin, 0), size - max(-end, 0))
        for (begin, end), size in zip(pairs, source.shape, strict=True)
    )
    return [np.pad(source[remaining], [(max(begin, 0), max(end, 0)) for begin, end in pairs])]


def unique(operands: Operands, attributes: Attributes, version: int) -> Sequence[Tensor]:
    """Return the unique subtensors along an axis, in the order of their first occurrence."""
    del version
    _require(attributes, sorted=0)
    source, axis = operands[0], attributes["axis"]
    first: dict[tuple[float, ...], int] = {}
    inverse: list[int] = []
    for index in range(source.shape[axis]):
        values = tuple(map(float, np.take(source, index, axis).ravel()))
        first.setdefault(values, index)
        inverse.append([*first].index(values))
    indices = np.array([*first.values()])
    counts = np.array([inverse.count(place) for place in range(len(first))])
    return [np.take(source, indices, axis), indices, np.array(inverse), counts]


def batch_normalization(
    operands: Operands, attributes: Attributes, version: int
) -> Sequence[Tensor]:
    """Normalize each channel with the given mean and variance."""
    del version
    source = _exact(operands[0])
    per_channel = (1, -1, *[1] * (source.ndim - 2))
    scale, bias, mean, variance = (_exact(each).reshape(per_channel) for each in operands[1:])
    return [scale * (source - mean) / np.sqrt(variance + attributes["epsilon"]) + bias]


def slice_(operands: Operands, attributes: Attributes, version: int) -> Sequence[Tensor]:
    """Slice the first axes with steps of 1, or slice one axis backward from an inner position."""
    del attributes, version
    source, starts, ends, *further = operands
    if further:
        axes, steps = further
        _require({"axes": axes.tolist(), "steps": steps.tolist()}, axes=[0], steps=[-1])
        # For a negative step, the specification clamps the end to the range from -1 to the last
        # position.
        end = min(max(int(ends[0]), -1), len(source) - 1)
        return [source[list(range(int(starts[0]), end, -1))]]
    return [
        source[tuple(slice(int(begin), int(end)) for begin, end in zip(starts, ends, strict=True))]
    ]


def cosine_window(first: float, second: float, third: float = 0.0) -> Function:
    """Return a function that computes a periodic window as a weighted sum of cosines."""

    def window(operands: Operands, attributes: Attributes, version: int) -> Sequence[Tensor]:
        del version
        _require({"periodic": 1, **attributes}, periodic=1)
        size = int(operands[0])
        angles = 2 * np.pi * np.arange(size) / size
        return [first - second * np.cos(angles) + third * np.cos(2 * angles)]

    return window


def shrink(operands: Operands, attributes: Attributes, version: int) -> Sequence[Tensor]:
    """Move elements with a magnitude over lambd toward zero by the bias; set all others to zero."""
    del version
    source, limit, bias = _exact(operands[0]), attributes["lambd"], attributes["bias"]
    return [np.where(source < -limit, source + bias, np.where(source > limit, source - bias, 0))]


def non_zero(operands: Operands, attributes: Attributes, version: int) -> Sequence[Tensor]:
    """Return the coordinates of each element that is not zero; a scalar has no coordinates."""
    del attributes, version
    (source,) = operands
    places = [place for place in np.ndindex(*source.shape) if source[place] != 0]
    return [np.array(places, np.int64).reshape(len(places), source.ndim).T]


def integer_quotient(operands: Operands, attributes: Attributes, version: int) -> Sequence[Tensor]:
    """Divide unsigned integers and round down. Python's integers have unlimited size."""
    del attributes, version
    return [_of_integers(lambda dividend, divisor: dividend // divisor, operands)]


def integer_remainder(operands: Operands, attributes: Attributes, version: int) -> Sequence[Tensor]:
    """Return the remainders of unsigned integers."""
    del version
    _require({"fmod": 0, **attributes}, fmod=0)
    return [_of_integers(lambda dividend, divisor: dividend % divisor, operands)]


def shift_left(operands: Operands, attributes: Attributes, version: int) -> Sequence[Tensor]:
    """Shift the bits of unsigned integers to the left; bits beyond the type are lost."""
    del version
    _require(attributes, direction="LEFT")
    bits = 8 * operands[0].dtype.itemsize
    return [_of_integers(lambda number, shift: (number << shift) % (1 << bits), operands)]


def _of_integers(function: Callable[[int, int], int], operands: Operands) -> Tensor:
    """Apply a function to the elements of two tensors of one unsigned type."""
    first, second = operands
    elements = [function(int(a), int(b)) for a, b in zip(first.flat, second.flat, strict=True)]
    return np.array(elements, first.dtype).reshape(first.shape)


def reduce_sum(operands: Operands, attributes: Attributes, version: int) -> Sequence[Tensor]:
    """Return the sum of all integers. The reduced axes remain with length 1."""
    del version
    _require({"keepdims": 1, **attributes}, keepdims=1)
    (source,) = operands
    return [np.full([1] * source.ndim, sum(map(int, source.flat)), source.dtype)]


def reduce_sum_square(operands: Operands, attributes: Attributes, version: int) -> Sequence[Tensor]:
    """Return the sum of the squares of all integers, as a scalar."""
    del version
    _require(attributes, keepdims=0)
    (source,) = operands
    return [np.array(sum(int(element) ** 2 for element in source.flat), source.dtype)]


def global_lp_pool(operands: Operands, attributes: Attributes, version: int) -> Sequence[Tensor]:
    """Return the Euclidean norm of each channel."""
    del version
    _require({"p": 2, **attributes}, p=2)
    source = _exact(operands[0])
    axes = tuple(range(2, source.ndim))
    return [np.sqrt(np.square(source).sum(axes, keepdims=True))]


def qlinear_conv(operands: Operands, attributes: Attributes, version: int) -> Sequence[Tensor]:
    """Convolve quantized numbers along one axis, without padding, strides or groups."""
    del version
    _require(attributes)
    source, source_scale, source_zero, weight, weight_scale, weight_zero = operands[:6]
    scale, zero, *biases = operands[6:]
    bias = biases[0] if biases else np.zeros(weight.shape[0])
    limits = np.iinfo(zero.dtype)
    result = np.zeros(
        (source.shape[0], weight.shape[0], source.shape[2] - weight.shape[2] + 1), zero.dtype
    )
    for batch, channel, position in np.ndindex(*result.shape):
        window = _exact(source[batch, :, position : position + weight.shape[2]]) - source_zero
        zero_of_weight, scale_of_weight = (
            float(np.broadcast_to(tensor, weight.shape[:1])[channel])
            for tensor in (weight_zero, weight_scale)
        )
        total = float((window * (_exact(weight[channel]) - zero_of_weight)).sum() + bias[channel])
        quotient = total * float(source_scale) * scale_of_weight / float(scale)
        result[batch, channel, position] = np.clip(
            round(quotient) + int(zero), limits.min, limits.max
        )
    return [result]


def affine_grid(operands: Operands, attributes: Attributes, version: int) -> Sequence[Tensor]:
    """Return, for each pixel of a two-dimensional output, its position in the input (-1 to 1)."""
    del version
    _require({"align_corners": 0, **attributes}, align_corners=0)
    theta, size = _exact(operands[0]), operands[1]
    count, _, height, width = map(int, size)
    result = np.zeros((count, height, width, 2))
    for batch, row, column in np.ndindex(count, height, width):
        center = [(2 * column + 1) / width - 1, (2 * row + 1) / height - 1, 1]
        result[batch, row, column] = theta[batch] @ center
    return [result.astype(operands[0].dtype)]


def last_rnn_state(operands: Operands, attributes: Attributes, version: int) -> Sequence[Tensor]:
    """Return an empty Y, and the state after the last step of each sequence. No biases are used."""
    del version
    _require(attributes, hidden_size=operands[2].shape[2])
    source, weight, recurrence = map(_exact, operands[:3])
    lengths = operands[4]
    states = np.zeros((1, source.shape[1], recurrence.shape[2]))
    for batch, length in enumerate(lengths):
        for step in range(length):
            states[0, batch] = np.tanh(
                weight[0] @ source[step, batch] + recurrence[0] @ states[0, batch]
            )
    return [np.zeros(0), states]


def adagrad(operands: Operands, attributes: Attributes, version: int) -> Sequence[Tensor]:
    """Compute one step of Adagrad for one tensor."""
    del version
    rate, count, x, gradient, squares = map(_exact, operands)
    rate = rate / (1 + count * attributes.get("decay_factor", 0.0))
    gradient = gradient + attributes.get("norm_coefficient", 0.0) * x
    squares = squares + gradient**2
    return [x - rate * gradient / (np.sqrt(squares) + attributes.get("epsilon", 0.0)), squares]


def momentum(operands: Operands, attributes: Attributes, version: int) -> Sequence[Tensor]:
    """Compute one step of Momentum for any number of tensors."""
    del version
    rate, count, *tensors = map(_exact, operands)
    number = len(tensors) // 3
    positions, velocities = [], []
    for index in range(number):
        x, gradient, velocity = tensors[index::number]
        gradient = gradient + attributes["norm_coefficient"] * x
        beta = attributes["beta"] if count > 0 else 1.0
        velocity = attributes["alpha"] * velocity + beta * gradient
        nesterov = attributes["mode"] == "nesterov"
        step = gradient + attributes["alpha"] * velocity if nesterov else velocity
        positions.append(x - rate * step)
        velocities.append(velocity)
    return [*positions, *velocities]


def tree_classifier(operands: Operands, attributes: Attributes, version: int) -> Sequence[Tensor]:
    """Return the label with the largest score for each sample, and the scores."""
    del version
    _require(attributes, nodes_treeids=[0] * len(attributes["nodes_nodeids"]))
    (samples,) = map(_exact, operands)
    labels = attributes["classlabels_int64s"]
    scores = np.zeros((len(samples), len(labels)))
    votes = [attributes[f"class_{name}"] for name in ("nodeids", "ids", "weights")]
    for sample, score in zip(samples, scores, strict=True):
        node = 0
        while attributes["nodes_modes"][node] != b"LEAF":
            holds = sample[attributes["nodes_featureids"][node]] <= attributes["nodes_values"][node]
            node = attributes["nodes_truenodeids" if holds else "nodes_falsenodeids"][node]
        for leaf, place, weight in zip(*votes, strict=True):
            score[place] += weight * (leaf == node)
    return [np.array(labels)[scores.argmax(axis=1)], scores]


#: The functions by operator.
OPERATORS: Mapping[str, Function] = {
    "Abs": lambda operands, *_: [np.abs(operands[0])],
    "Adagrad": adagrad,
    "AffineGrid": affine_grid,
    "Attention": attention,
    "AveragePool": _pooled(_average),
    "BatchNormalization": batch_normalization,
    "BitShift": shift_left,
    "BlackmanWindow": cosine_window(0.42, 0.5, 0.08),
    "Ceil": lambda operands, *_: [np.ceil(operands[0])],
    "ConvTranspose": conv_transpose,
    "Div": integer_quotient,
    "Einsum": lambda operands, attributes, _: [
        np.einsum(attributes["equation"], *map(_exact, operands))
    ],
    "Erf": lambda operands, *_: [np.vectorize(math.erf)(_exact(operands[0]))],
    "Exp": lambda operands, *_: [np.exp(_exact(operands[0]))],
    "Gemm": gemm,
    "GlobalLpPool": global_lp_pool,
    "GlobalMaxPool": global_max_pool,
    "HammingWindow": cosine_window(25 / 46, 21 / 46),
    "HannWindow": cosine_window(0.5, 0.5),
    "Hardmax": _along_axis(_hardmax),
    "IsInf": is_inf,
    "LRN": lrn,
    "LogSoftmax": _along_axis(_log_softmax),
    "LpNormalization": lp_normalization,
    "LpPool": _pooled(_norm),
    "MatMul": lambda operands, *_: [_exact(operands[0]) @ _exact(operands[1])],
    "MaxPool": _pooled(lambda inside, *_: max(inside)),
    "Mod": integer_remainder,
    "Momentum": momentum,
    "NonZero": non_zero,
    "Pad": pad,
    "QLinearConv": qlinear_conv,
    "QuantizeLinear": quantize_linear,
    "RNN": last_rnn_state,
    "Range": integer_range,
    "ReduceL1": reduce_l1,
    "ReduceLogSumExp": log_sum_exp,
    "ReduceSum": reduce_sum,
    "ReduceSumSquare": reduce_sum_square,
    "Resize": resize,
    "Shape": shape,
    "Shrink": shrink,
    "Sigmoid": lambda operands, *_: [1 / (1 + np.exp(-_exact(operands[0])))],
    "Slice": slice_,
    "Softmax": _along_axis(lambda rows: np.exp(_log_softmax(rows))),
    "Softplus": lambda operands, *_: [np.log1p(np.exp(_exact(operands[0])))],
    "Sqrt": lambda operands, *_: [np.sqrt(_exact(operands[0]))],
    "Squeeze": lambda operands, attributes, _: [operands[0].squeeze(tuple(attributes["axes"]))],
    "Tile": lambda operands, *_: [np.tile(operands[0], [int(count) for count in operands[1]])],
    "TopK": top_k,
    "TreeEnsembleClassifier": tree_classifier,
    "Unique": unique,
    "Where": lambda operands, *_: [np.where(*operands)],
}


def right_outputs(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the outputs of a model of one node as doubles or integers."""
    (node,) = model.graph.node
    attributes = {
        attribute.name: value.decode() if isinstance(value, bytes) else value
        for attribute in node.attribute
        for value in [helper.get_attribute_value(attribute)]
    }
    versions = {imported.domain: imported.version for imported in model.opset_import}
    operands = [np.asarray(inputs[name]) if name else np.zeros(0) for name in node.input]
    outputs = OPERATORS[node.op_type](operands, attributes, versions[node.domain])
    # A node may omit outputs at the end.
    named = zip(node.output, outputs, strict=False)
    return {name: output for name, output in named if name}


def greatest_difference(computed: Tensor, stored: Tensor) -> float:
    """Return the largest difference in ulps of the stored output's type.

    The result is infinite if the shapes differ, or if only one of two elements is finite.
    """
    if computed.shape != stored.shape:
        return math.inf
    exact, rounded = _exact(computed).ravel(), _exact(stored).ravel()
    unit = 1.0
    if stored.dtype.kind == "f":
        unit = float(np.finfo(stored.dtype).eps)
    differences = [
        0.0
        if right == seen or (math.isnan(right) and math.isnan(seen))
        else abs(right - seen) / (unit * max(abs(right), sys.float_info.min))
        for right, seen in zip(exact, rounded, strict=True)
    ]
    return max((math.inf if math.isnan(each) else each for each in differences), default=0.0)


def decided_cases() -> Iterable[Case]:
    """Return the cases whose outputs this module computes."""
    names = {
        row.case
        for runtime in runtimes()
        for row in runtime.defects
        if row.case.startswith(CONFORMANCE)
    }
    return [*own_cases(), *(load_cases(*sorted(names)) if names else ())]


def case_difference(case: Case) -> float | None:
    """Return the largest difference from a case's stored outputs; None if none are stored."""
    problem = case.load()
    if problem.stored is None:
        return None
    right = right_outputs(problem.model, problem.inputs)
    return max(greatest_difference(right[name], np.asarray(problem.stored[name])) for name in right)


def main() -> int:
    """Print the differences; return the exit code."""
    wrong = 0
    for case in decided_cases():
        difference = case_difference(case)
        if difference is not None:
            print(f"{case.id}: {difference:.2g} ulp")
            wrong += difference > _MAX_ULPS
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
