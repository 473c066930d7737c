"""Nodes in which a single input or parameter has exceptional or large elements.

The other elements of the node are ordinary. An infinite weight is multiplied by a tiny number, so
that the result differs from that of the largest finite weight.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxopt_cli.core.values import DTYPES, Array
from onnxopt_cli.suites.operators.boundaries.fixed_nodes import (
    REDUCTIONS,
    Generator,
    distinct,
    distinct_bytes,
    fixed_node,
    int64s,
)

_NAN, _INF = np.nan, np.inf
# The product with the largest float32 is about 4.
_TINY = 1.2e-38


def boundary_elements() -> Iterator[tuple[str, str, Generator]]:
    """Yield the operator, the name and the generator of each node of this module."""
    yield from _recurrent()
    yield from _images()
    yield from _arguments()
    yield from _parameters()
    yield from _attended()
    yield from _integers()
    yield from _precise()
    yield from _probabilities()
    yield from _missing()
    yield from _zero_slices()


def _floats(*values: Any) -> Array:
    return np.array(values, np.float32)


def _recurrent() -> Iterator[tuple[str, str, Generator]]:
    """Yield recurrent nodes in which each unit has a different exceptional weight.

    The nodes have one step, so that the states of the units do not mix.
    """
    x = _floats([[_TINY, 1.0]])
    state = np.full((1, 1, 7), 0.25, np.float32)
    state[0, 0, 0] = _TINY
    for operator, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
        count = 7 * gates
        weights, recurrent = distinct(1, count, 2) / 8, distinct(1, count, 7) / 16
        bias = distinct(1, 2 * count) / 8
        # Units 0 to 6 of the last gate; the last gate of a GRU is the hidden gate.
        first = count - 7
        weights[0, first : first + 2, 0] = _NAN, _INF
        recurrent[0, first + 2 : first + 4, 0] = _NAN, _INF
        bias[0, first + 4 : first + 7] = _NAN, _INF, 9.5
        # The weights nearly cancel the bias, unless it is infinite.
        weights[0, first + 5 : first + 7, 1] = -np.finfo(np.float32).max, -9.0
        outputs = 3 if operator == "LSTM" else 2
        inputs = [x, weights, recurrent, bias, None, state]
        if operator == "LSTM":
            inputs += [np.full((1, 1, 7), 0.5, np.float32)]
        draw = fixed_node(*inputs, hidden_size=7, outputs=outputs)
        yield operator, "exceptional_weights", draw
    features = _floats([[_NAN, 0.5], [_INF, 0.5], [0.25, 1.0], [0.25, 1.0], [0.25, 1.0]])
    for operator, gates in (("RNN", 1), ("LSTM", 4)):
        weights = np.full((1, 2 * gates, 2), 0.5, np.float32)
        weights[..., 0] = _TINY
        recurrent = np.full((1, 2 * gates, 2), 0.25, np.float32)
        recurrent[..., 0] = _TINY
        initial = np.full((1, 5, 2), 0.5, np.float32)
        initial[0, 2:4, 0] = _NAN, _INF
        inputs = [features, weights, recurrent, None, None, initial]
        attributes: dict[str, Any] = {"hidden_size": 2, "outputs": 2}
        if operator == "LSTM":
            cells = np.full((1, 5, 2), 0.5, np.float32)
            cells[0, 4] = _INF, _TINY
            peepholes = np.full((1, 6), 0.25, np.float32)
            peepholes[0, 1] = _INF
            inputs += [cells, peepholes]
            attributes["outputs"] = 3
        yield operator, "exceptional_inputs", fixed_node(*inputs, **attributes)
    missing = np.full((1, 6), 0.25, np.float32)
    missing[0, 1] = _NAN
    one_unit = (distinct(1, 1, 2), distinct(1, 8, 2) / 4, distinct(1, 8, 2) / 8)
    cell = fixed_node(*one_unit, None, None, None, None, missing, hidden_size=2, outputs=3)
    yield "LSTM", "missing_peephole", cell


def _images() -> Iterator[tuple[str, str, Generator]]:
    """Yield windows and columns with an exceptional element, and offsets beyond 6."""
    columns = distinct(1, 4, 4)
    columns[0, 1, 2] = _NAN
    yield "Col2Im", "missing", fixed_node(columns, int64s(3, 3), int64s(2, 2))
    image, kernel = distinct(1, 1, 4, 4), distinct(2, 1, 2, 2)
    yield "Conv", "infinite_bias", fixed_node(image, kernel, _floats(_INF, 0.5))
    wide, weights = distinct(1, 1, 2, 12), distinct(1, 1, 1, 1)
    offsets = np.zeros((1, 2, 2, 12), np.float32)
    offsets[0, 1, :, :3] = 7.5
    mask = np.ones((1, 1, 2, 12), np.float32)
    mask[0, 0, 0, :5] = _NAN, _INF, 8.0, -1.5, 0.0
    deformed = fixed_node(wide / 50, weights, offsets, None, mask, kernel_shape=[1, 1])
    yield "DeformConv", "far_offsets", deformed
    normalized = _floats([300.0, -200.0, 150.0], [2.0, 1.0, -4.0])
    halves = np.stack([normalized, normalized[::-1]], axis=1)[None].astype(np.float16)
    yield "LRN", "large_float16", fixed_node(halves, size=3, alpha=1e-4)
    rows = distinct(2, 3)
    infinite = _floats(0.5, _INF, -_INF)
    yield "LayerNormalization", "infinite_bias", fixed_node(rows, _floats(1, 2, 3), infinite)
    padded = distinct(2, 2)
    for stem, value in (("missing", _NAN), ("infinite", -_INF)):
        node = fixed_node(padded, int64s(1, 0, 0, 1), np.float32(value))
        yield "Pad", f"{stem}_value", node


def _arguments() -> Iterator[tuple[str, str, Generator]]:
    """Yield arguments outside the domain of a function, zeros, and elements that are copied."""
    yield "Acosh", "outside_domain", fixed_node(_floats(0.0, 0.5, 1.0, 2.0, -3.0, 0.999))
    yield "LeakyRelu", "exceptional", fixed_node(_floats(_NAN, -_INF, _INF, -2.0), alpha=0.5)
    large = np.array([2**24 + 3, -(2**25) - 3, 5, 0], np.int64)
    yield "Shrink", "large_int64", fixed_node(large, lambd=1.0)
    yield "ThresholdedRelu", "zeros", fixed_node(_floats(0.0, -1.0, 2.0, -3.0), alpha=-2.0)
    largest = np.float32(np.finfo(np.float32).max)
    remainders = fixed_node(_floats(largest, -largest, 5.5), _floats(_INF, -_INF, _INF), fmod=1)
    yield "Mod", "infinite_divisors", remainders
    powers = fixed_node(_floats(1.01, 0.99, 1.0, 2.0), np.array([300, 300, -300, -7], np.int64))
    yield "Pow", "exponents_beyond_8_bits", powers
    yield "Pow", "missing_exponent", fixed_node(_floats(2.0, -2.0, 3.0), _floats(_NAN, 2.0, 0.5))
    copied = _floats(_NAN, _INF, -_INF, 0.0)
    places = int64s([1], [3])
    yield "ScatterND", "missing_data", fixed_node(copied, places, _floats(5.0, 7.0))
    repeated = _floats(_INF, largest, -_INF, _INF, -largest, -_INF)
    yield "Unique", "infinite", fixed_node(repeated, outputs=4)
    numbers = _floats(0.0, 1.0, -2.0, _INF, -_INF, _NAN)
    gates, factors = (x.copy() for x in np.broadcast_arrays(numbers[:, None], numbers))
    yield "SwiGLU", "exceptional_pairs", fixed_node(gates, factors)
    # The elements of each row are equal in float16.
    near = _floats([1.0, 1 + 2.0**-22, -1.0], [-3.0, -3 - 2.0**-21, -3 + 2.0**-21])
    yield "Hardmax", "neighbors", fixed_node(near)
    deep = (np.arange(24) % 3 == 0).reshape(3, 1, 2, 1, 4)
    yield "Not", "five_axes", fixed_node(deep)
    bits = _floats(_NAN, 1.0, -_INF)
    yield "BitCast", "missing", fixed_node(bits, to=TensorProto.INT32)
    numbers = _floats(_NAN, _INF, -2.0).astype(DTYPES["float8_e5m2"])
    yield "DequantizeLinear", "exceptional", fixed_node(numbers, np.float32(0.5))
    weights = _floats([_NAN, 1.0], [2.0, 3.0])
    sums = fixed_node(distinct(2, 2), weights, _floats([0.5, _INF], [0.25, -1.0]))
    yield "Gemm", "exceptional_operands", sums
    square, missing = distinct(2, 2), _floats([1.0, _NAN], [2.0, -1.0])
    yield "Gemm", "missing_bias_times_zero", fixed_node(square, square, missing, beta=0.0)
    yield "Gemm", "missing_product_times_zero", fixed_node(missing, square, square, alpha=0.0)


def _parameters() -> Iterator[tuple[str, str, Generator]]:
    """Yield factors of -1, omitted bounds, and attributes that are lists of different numbers."""
    square, other = distinct(3, 3), distinct(3, 3) / 4 + 1
    for trans_a, trans_b in np.ndindex(2, 2):
        transposed: dict[str, Any] = {"transA": trans_a, "transB": trans_b}
        bias = fixed_node(square, other, square / 2, beta=-1.0, **transposed)
        yield "Gemm", f"negative_beta_{trans_a}{trans_b}", bias
    yield "Gemm", "no_bias", fixed_node(square, other, beta=0.5, transA=1)
    yield "Constant", "five_floats", fixed_node(value_floats=[5.0, 4.0, 1.0, 2.0, 3.0])
    yield "SplitToSequence", "five_parts", fixed_node(distinct(15), int64s(5, 4, 1, 2, 3))
    volume = distinct_bytes(1, 1, 7, 7, 7)
    kernel = distinct_bytes(1, 1, 2, 2, 2)
    spaced: dict[str, Any] = {"dilations": [3, 1, 2], "strides": [1, 2, 1]}
    yield "ConvInteger", "three_dilations", fixed_node(volume, kernel, **spaced)
    one, zero = np.float32(1), np.uint8(0)
    operands = (volume, np.float32(0.5), np.uint8(9), kernel, np.float32(0.25), zero)
    steps = fixed_node(*operands, np.float32(200), zero, **spaced)
    yield "QLinearConv", "three_dilations", steps
    bytes_ = distinct_bytes(1, 2, 3, 3)
    signed = distinct(4, 2, 2, 2).astype(np.int8)
    zeros = np.array([-7, 3, 100, -128], np.int8)
    scaled = fixed_node(
        *(bytes_, one, np.uint8(60), signed, np.full(4, 0.5, np.float32), zeros),
        *(np.float32(40), np.uint8(128)),
    )
    yield "QLinearConv", "zero_points_of_channels", scaled
    pooled = _floats(4, 5, 2, 7, 1).reshape(1, 1, 1, 1, 5)
    places = int64s(0, 3, 14, 21, 29).reshape(1, 1, 1, 1, 5)
    unpooled = fixed_node(pooled, places, kernel_shape=[3, 1, 2], strides=[3, 1, 2])
    yield "MaxUnpool", "three_axes", unpooled
    threshold = np.float32(7)
    starts = np.arange(5, dtype=np.float32) * 2
    boxes = np.stack([starts * 0, starts, starts * 0 + 1, starts + 1], axis=1)[None]
    ranks = _floats(8.0, 6.5, 7.0, 7.001, 0.5).reshape(1, 1, 5)
    limits = (np.array([5]), _floats(0.5), threshold.reshape(1))
    yield "NonMaxSuppression", "scores_above_6", fixed_node(boxes, ranks, *limits)


def _attended() -> Iterator[tuple[str, str, Generator]]:
    """Yield masks with NaN, infinite values of the past, and lengths of four batches."""
    queries, keys, values = (distinct(4, 2, 3, 4) * factor for factor in (0.5, 1.0, 0.25))
    lengths = int64s(3, 1, 2, 3)
    yield (
        "Attention",
        "four_lengths",
        fixed_node(queries, keys, values, None, None, None, lengths, outputs=1),
    )
    mask = np.zeros((3, 3), np.float32)
    mask[1, 2] = _NAN
    single = [x[:1].copy() for x in (queries, keys, values)]
    yield "Attention", "missing_mask", fixed_node(*single, mask, outputs=1)
    past = distinct(1, 2, 1, 4)
    infinite = past.copy()
    infinite[0, 1, 0, 2] = _INF
    yield (
        "Attention",
        "infinite_past",
        fixed_node(*single, None, past, infinite, outputs=3),
    )


def _integers() -> Iterator[tuple[str, str, Generator]]:
    """Yield features, keys and scales that a narrower or an unsigned type cannot represent."""
    wide = np.array([[2**33 + 5, -3, 0], [300, 7, -(2**40)]], np.int64)
    sizes = np.array([[5, 0], [-200, 9]], np.int64)
    joined = fixed_node(wide, sizes, inputdimensions=[3, 2])
    yield "FeatureVectorizer", "large_int64", joined
    keys = fixed_node(
        int64s(1, 0, 5), keys_int64s=[0, 1], values_int64s=[7, -300], default_int64=-5
    )
    yield "LabelEncoder", "zero_key", keys
    hot = fixed_node(int64s(199, -1), np.array(200, np.uint8), _floats(0, 1))
    yield "OneHot", "depth_of_uint8", hot
    words = np.array([2**40 + 1, -(2**33), 3], np.int64)
    inserted = fixed_node([words, words + 1], -words, np.array(1))
    yield "SequenceInsert", "large_int64", inserted
    doubles = np.array([1 / 3, 1e300])
    yield "SequenceConstruct", "doubles", fixed_node(doubles, doubles + 1)
    precise = np.array([2**24 + 1.5, -(2.0**40) - 1])
    yield "CastLike", "double_int64", fixed_node(precise, np.zeros(1, np.int64))


def _precise() -> Iterator[tuple[str, str, Generator]]:
    """Yield scales that float16 rounds, and texts that end in a zero byte."""
    values = _floats(1000.7, 2047.3, -1500.4)
    rounded = fixed_node(values, np.float32(0.10003), np.int16(0))
    yield "QuantizeLinear", "precise_scale", rounded
    texts = np.array(["a\0", "b", "\0"], object)
    yield "Cast", "text_that_ends_in_zero", fixed_node(texts, to=TensorProto.STRING)
    yield "CastLike", "text_that_ends_in_zero", fixed_node(texts, np.array(["x"], object))
    between = _floats(1.5, 3.0, 0.3, 1.0, 1e30)
    yield "Cast", "between_powers", fixed_node(between, to=TensorProto.FLOAT8E8M0)
    yield "CastLike", "between_powers", fixed_node(between, np.ones(1, DTYPES["float8_e8m0fnu"]))


def _probabilities() -> Iterator[tuple[str, str, Generator]]:
    """Yield linear models whose scores overflow an exponential."""
    x = _floats([1000.0, -1000.0], [-300.0, 200.0], [0.5, 0.25])
    attributes: dict[str, Any] = {
        "coefficients": [1.0, 0.0, 0.0, 1.0, 0.5, 0.5],
        "intercepts": [0.0, 0.0, 0.0],
    }
    labels: dict[str, Any] = {"classlabels_ints": [3, 5, 7], "outputs": 2}
    far = fixed_node(x, post_transform="SOFTMAX_ZERO", **labels, **attributes)
    yield "LinearClassifier", "far_softmax_zero", far
    texts = fixed_node(x, classlabels_strings=["c\0", "a", "c"], outputs=2, **attributes)
    yield "LinearClassifier", "labels_that_end_in_zero", texts
    shares = fixed_node(x, targets=3, post_transform="SOFTMAX", **attributes)
    yield "LinearRegressor", "far_softmax", shares


def _missing() -> Iterator[tuple[str, str, Generator]]:
    """Yield rows that begin with one to twelve NaN, and a vector with three NaN."""
    count = 13
    rows = np.where(np.arange(count) < np.arange(count)[:, None], _NAN, np.arange(count))
    rows = rows.astype(np.float32)
    vector = _floats(_NAN, _NAN, _NAN, 42.0)
    for operator in ("ReduceMax", "ReduceMin"):
        yield operator, "missing_numbers", fixed_node(rows, int64s(1))
        yield operator, "three_missing", fixed_node(vector, int64s(0))
    yield "GlobalMaxPool", "missing_numbers", fixed_node(rows[None])
    yield "MaxPool", "missing_numbers", fixed_node(rows[None], kernel_shape=[count])


def _zero_slices() -> Iterator[tuple[str, str, Generator]]:
    """Yield slices of which all elements are zero, beside other slices.

    A norm that is scaled by the largest magnitude of a slice divides zero by zero.
    """
    stem = "zero_slice"
    rows = _floats([0.0, 0.0, 0.0], [3.0, 1.0, 4.0], [0.5, 2.0, 0.25])
    for name in REDUCTIONS:
        yield f"Reduce{name}", stem, fixed_node(rows, int64s(1))
    yield "LpPool", stem, fixed_node(rows[None], kernel_shape=[3])
    yield "GlobalLpPool", stem, fixed_node(rows[None])
    scale, bias = _floats(0.5, -2.0, 1.5), _floats(1.0, 0.25, -3.0)
    yield "LayerNormalization", stem, fixed_node(rows, scale, bias)
    yield "RMSNormalization", stem, fixed_node(rows, scale)
    yield "InstanceNormalization", stem, fixed_node(rows[None], scale, bias)
    yield "GroupNormalization", stem, fixed_node(rows[None], scale, bias, num_groups=3)
