"""Correct implementations of operators that round differently. onnxopt must accept all of them.

    python scripts/right_forms.py [OPERATOR ...]

The script writes cases of several sizes and distributions as ONNX test directories, and runs
``onnxopt run`` on them. Each operator has a list of correct implementations, called forms. The
backend ``Form0`` computes each operator by the first form of its list, ``Form1`` by the second, and
so on. The script prints the rejected results, and exits with 1 if a result was rejected.

The forms come from numerical libraries and textbooks:

- sums in several orders;
- one-pass and two-pass statistics;
- convolutions by Winograd's algorithm and by Fourier transforms;
- Fourier transforms by several algorithms;
- matrix factorizations, and identities of activations;
- the forms of ``kernel_forms.py``.

All forms compute in float32. Operands of 16 bits are converted first, and results are rounded at
the end. ``FORMS`` maps each operator to its forms. The parameter ``form`` of a function selects one
of several algorithms. The parameter ``total`` is a function that computes sums.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from kernel_forms import (
    KERNELS,
    Staged,
    function_cases,
    further_cases,
    in_order,
    layer_cases,
    padded,
    reduction_cases,
    rows_of,
)
from onnx import helper, numpy_helper

from onnxopt_cli.errors import Unsupported
from onnxopt_cli.oracle.estimate.reference_values import reference_values

Array = np.ndarray[Any, Any]
Attributes = dict[str, Any]
#: A form: a function that computes the outputs of a node from its attributes and operands.
NodeForm = Callable[..., list[Array]]
Sum = Callable[[Array], Array]
OPSET, IR_VERSION = 22, 10
# Versions of the models for LATER_OPERATORS. These operators do not exist in OPSET.
LATEST_OPSET, LATEST_IR_VERSION = 27, 13
TWO_OUTPUTS = frozenset({"CausalConvWithState", "GRU", "LSTM", "RNN"})
LATER_OPERATORS = frozenset(
    {"Attention", "CausalConvWithState", "RMSNormalization", "RotaryEmbedding", "Swish"}
)
# Number of lanes of a vector unit.
LANES = 16
# A row is split into parts of this number of elements. Then the statistics of the parts are merged.
PART_LENGTH = 48
# The length of the kernels for which Winograd's algorithm is used.
TILED_KERNEL = 3
# The largest number of axes along which Winograd's algorithm is used.
MAX_TILED_AXES = 2


# Sums along the last axis.


def from_last(terms: Array) -> Array:
    """Add the terms one after the other, from the last to the first."""
    return in_order(terms[..., ::-1])


def in_pairs(terms: Array) -> Array:
    """Add pairs of terms, then pairs of sums."""
    while terms.shape[-1] > 1:
        if terms.shape[-1] % 2:
            terms = np.concatenate([terms, np.zeros_like(terms[..., :1])], -1)
        terms = terms[..., ::2] + terms[..., 1::2]
    return terms[..., 0]


def in_lanes(terms: Array) -> Array:
    """Add like a vector unit: first the terms of each lane, then the sums of the lanes."""
    terms = padded(terms, LANES)
    lanes = np.swapaxes(terms.reshape(*terms.shape[:-1], -1, LANES), -1, -2)
    return in_pairs(in_order(lanes))


def flushing(terms: Array) -> Array:
    """Add in sequence, and replace subnormal terms and subnormal partial sums by zero."""
    tiny = np.finfo(terms.dtype).smallest_normal

    def flushed(array: Array) -> Array:
        return np.where(np.abs(array) < tiny, 0, array).astype(array.dtype)

    total = np.zeros(terms.shape[:-1], terms.dtype)
    for term in np.moveaxis(flushed(terms), -1, 0):
        total = flushed(total + term)
    return total


SUMS: list[Sum] = [in_order, from_last, in_pairs, in_lanes]


def matrix_product(total: Sum, _: Attributes, a: Array, b: Array) -> list[Array]:
    """Compute MatMul."""
    return [total(a[..., :, None, :] * np.swapaxes(b, -1, -2)[..., None, :, :])]


def reduced(
    total: Sum, power: int, root: bool, attributes: Attributes, x: Array, axes: Any = None
) -> list[Array]:
    """Compute ReduceSum, a sum of powers, or the root of a sum of powers."""
    rows, restored = rows_of(x, axes, attributes)
    result = total(rows**power if power > 1 else rows)
    return [restored(np.sqrt(result) if root else result)]


# Statistics of rows: means and variances.


def in_two_passes(total: Sum, x: Array) -> tuple[Array, Array]:
    """Compute first the mean, then the variance as the mean square of distances from the mean."""
    count = x.dtype.type(x.shape[-1])
    mean = total(x)[..., None] / count
    return mean, total((x - mean) ** 2)[..., None] / count


def corrected(total: Sum, x: Array) -> tuple[Array, Array]:
    """Compute mean and variance in two passes; correct the variance for the mean's error."""
    count = x.dtype.type(x.shape[-1])
    mean = total(x)[..., None] / count
    centred = x - mean
    squares, rest = total(centred * centred)[..., None], total(centred)[..., None]
    return mean, (squares - rest * rest / count) / count


def shifted(total: Sum, x: Array) -> tuple[Array, Array]:
    """Subtract the first element, then compute mean and variance in one pass."""
    count = x.dtype.type(x.shape[-1])
    distance = x - x[..., :1]
    mean, square = total(distance)[..., None] / count, total(distance**2)[..., None] / count
    return x[..., :1] + mean, np.maximum(square - mean * mean, x.dtype.type(0))


def by_recurrence(x: Array) -> tuple[Array, Array]:
    """Update the mean and the sum of squares at each element (Welford)."""
    mean, squares = np.zeros_like(x[..., 0]), np.zeros_like(x[..., 0])
    for count in range(1, x.shape[-1] + 1):
        before = x[..., count - 1] - mean
        mean = mean + before / x.dtype.type(count)
        squares = squares + before * (x[..., count - 1] - mean)
    return mean[..., None], squares[..., None] / x.dtype.type(x.shape[-1])


def merged(x: Array) -> tuple[Array, Array]:
    """Merge the statistics of the parts of a row (Chan)."""
    real, count = x.dtype.type, 0
    mean = squares = np.zeros_like(x[..., :1])
    for start in range(0, x.shape[-1], PART_LENGTH):
        part = x[..., start : start + PART_LENGTH]
        size = part.shape[-1]
        part_mean, variance = by_recurrence(part)
        distance, together = part_mean - mean, count + size
        squares = squares + variance * real(size) + distance**2 * real(count * size / together)
        mean, count = mean + distance * real(size / together), together
    return mean, squares / real(count)


STATISTICS = [
    *(partial(way, total) for way in (in_two_passes, corrected, shifted) for total in SUMS),
    by_recurrence,
    merged,
]


def subtracted(x: Array, mean: Array, variance: Array, scale: Array, bias: Array) -> Array:
    """Normalize rows: subtract the mean, divide by the root of the variance, scale and shift."""
    return (x - mean) / np.sqrt(variance) * scale + bias


def multiplied(x: Array, mean: Array, variance: Array, scale: Array, bias: Array) -> Array:
    """Normalize rows, with one factor: the scale times the reciprocal root of the variance."""
    return (x - mean) * (scale * (x.dtype.type(1) / np.sqrt(variance))) + bias


def folded(x: Array, mean: Array, variance: Array, scale: Array, bias: Array) -> Array:
    """Normalize rows, with one factor and one addend for scale, bias and statistics."""
    factor = scale / np.sqrt(variance)
    return x * factor + (bias - mean * factor)


APPLICATIONS = [subtracted, multiplied, folded]
NORMALIZING = [*product(STATISTICS, APPLICATIONS)]


def by_channel(array: Array, x: Array) -> Array:
    """Reshape an array with one value per channel, so that it broadcasts to a tensor."""
    return array.reshape(-1, *[1] * (x.ndim - 2))


def layer(
    algorithms: Any, attributes: Attributes, x: Array, scale: Array, bias: Array
) -> list[Array]:
    """Compute LayerNormalization."""
    statistics, applied = algorithms
    axis = attributes.get("axis", -1) % x.ndim
    rows = x.reshape(*x.shape[:axis], -1)
    mean, variance = statistics(rows)
    variance = variance + x.dtype.type(np.float32(attributes.get("epsilon", 1e-5)))
    return [applied(rows, mean, variance, scale.ravel(), bias.ravel()).reshape(x.shape)]


def group(
    algorithms: Any, attributes: Attributes, x: Array, scale: Array, bias: Array
) -> list[Array]:
    """Compute GroupNormalization, or InstanceNormalization with each channel as a group."""
    statistics, applied = algorithms
    groups = attributes.get("num_groups", x.shape[1])
    mean, variance = statistics(x.reshape(len(x), groups, -1))
    variance = variance + x.dtype.type(np.float32(attributes.get("epsilon", 1e-5)))
    shape = (len(x), x.shape[1], *[1] * (x.ndim - 2))
    mean, variance = (
        np.repeat(array, x.shape[1] // groups, 1).reshape(shape) for array in (mean, variance)
    )
    return [applied(x, mean, variance, by_channel(scale, x), by_channel(bias, x))]


def batch(
    applied: Any, attributes: Attributes, x: Array, scale: Array, bias: Array, *given: Array
) -> list[Array]:
    """Compute BatchNormalization by given statistics."""
    if attributes.get("training_mode"):
        raise Unsupported("training")
    if len(given) != len(("mean", "variance")):
        raise Unsupported("statistics")
    epsilon = x.dtype.type(np.float32(attributes.get("epsilon", 1e-5)))
    mean, variance = (by_channel(array, x) for array in given)
    return [applied(x, mean, variance + epsilon, by_channel(scale, x), by_channel(bias, x))]


def across(algorithms: Any, attributes: Attributes, x: Array) -> list[Array]:
    """Compute MeanVarianceNormalization."""
    statistics, applied = algorithms
    axes = [axis % x.ndim for axis in attributes.get("axes", [0, 2, 3])]
    rows = np.moveaxis(x, axes, range(-len(axes), 0))
    shape = rows.shape
    rows = rows.reshape(*shape[: x.ndim - len(axes)], -1)
    mean, variance = statistics(rows)
    deviation = np.sqrt(variance) + x.dtype.type(np.float32(1e-9))
    scale, bias = x.dtype.type(1), x.dtype.type(0)
    y = applied(rows, mean, deviation * deviation, scale, bias).reshape(shape)
    return [np.moveaxis(y, range(-len(axes), 0), axes)]


# Convolutions.


def convolution_operands(attributes: Attributes, x: Array) -> tuple[Array, list[int], list[int]]:
    """Return the padded input, strides and dilations; auto_pad is not supported."""
    rank = x.ndim - 2
    if attributes.get("auto_pad", b"NOTSET") != b"NOTSET":
        raise Unsupported("auto_pad")
    pads = attributes.get("pads", [0] * 2 * rank)
    padded = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    strides, dilations = (attributes.get(name, [1] * rank) for name in ("strides", "dilations"))
    return padded, strides, dilations


def spatial(slices: Iterable[slice]) -> tuple[Any, ...]:
    """Return an index that selects slices of the last axes and all elements of other axes."""
    return (..., *slices)


def every_image(steps: Sequence[int]) -> tuple[Any, ...]:
    """Return an index that selects the windows at multiples of the steps."""
    return (slice(None), slice(None), *(slice(None, None, step) for step in steps))


def dilated(w: Array, dilations: Sequence[int]) -> Array:
    """Return kernels with zeros between their elements."""
    sizes = [(size - 1) * step + 1 for size, step in zip(w.shape[2:], dilations, strict=True)]
    kernels = np.zeros((*w.shape[:2], *sizes), w.dtype)
    kernels[spatial(slice(None, None, step) for step in dilations)] = w
    return kernels


def with_bias(y: Array, bias: Sequence[Array]) -> list[Array]:
    """Return an output with a bias added, if there is one."""
    return [y + by_channel(bias[0], y) if bias else y]


def by_columns(total: Sum, attributes: Attributes, x: Array, w: Array, *bias: Array) -> list[Array]:
    """Collect the elements of each window, and multiply them by the kernels (im2col)."""
    x, strides, dilations = convolution_operands(attributes, x)
    w, groups = dilated(w, dilations), attributes.get("group", 1)
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], tuple(range(2, x.ndim)))
    windows = windows[every_image(strides)]
    rank, sizes = x.ndim - 2, windows.shape[2 : x.ndim]
    columns = np.moveaxis(windows, 1, 1 + rank).reshape(len(x), math.prod(sizes), groups, 1, -1)
    kernels = w.reshape(groups, len(w) // groups, -1)
    y = total(columns * kernels).reshape(len(x), math.prod(sizes), -1)
    return with_bias(np.swapaxes(y, 1, 2).reshape(len(x), -1, *sizes), bias)


def by_fourier(attributes: Attributes, x: Array, w: Array, *bias: Array) -> list[Array]:
    """Multiply the spectra of input and kernel, then keep only the elements at the strides."""
    x, strides, dilations = convolution_operands(attributes, x)
    w, groups = dilated(w, dilations), attributes.get("group", 1)
    axes = tuple(range(2, x.ndim))
    sizes = [1 << (size - 1).bit_length() for size in x.shape[2:]]
    spectra, kernels = (np.fft.rfftn(array, sizes, axes) for array in (x, np.flip(w, axes)))
    spectra = spectra.reshape(len(x), groups, 1, -1, *spectra.shape[2:])
    kernels = kernels.reshape(groups, len(w) // groups, *kernels.shape[1:])
    products = (spectra * kernels).sum(3, dtype=spectra.dtype)
    y = np.fft.irfftn(products.reshape(len(x), len(w), *products.shape[3:]), sizes, axes)
    cut = (
        slice(k - 1, n, step) for k, n, step in zip(w.shape[2:], x.shape[2:], strides, strict=True)
    )
    return with_bias(y[spatial(cut)].astype(x.dtype), bias)


def winograd_matrices(outputs: int) -> tuple[Array, Array, Array]:
    """Return the matrices of Winograd's algorithm F(outputs, 3) for products, kernels and tiles.

    The matrices are derived by the algorithm of Cook and Toom with the points 0, 1, -1, 2, -2, 1/2,
    -1/2 and infinity.
    """
    half = Fraction(1, 2)
    points: list[Any] = [Fraction(0), 1, -1, 2, -2, half, -half][: outputs + TILED_KERNEL - 2]
    count = len(points)

    def polynomial(roots: Sequence[Any]) -> list[Any]:
        coefficients = [Fraction(1)]
        for root in roots:
            shifted = [Fraction(0), *coefficients]
            coefficients = [a - root * b for a, b in zip(shifted, [*coefficients, 0], strict=True)]
        return coefficients

    inverse = np.zeros((outputs, count + 1))
    weights, tile = np.zeros((count + 1, TILED_KERNEL)), np.zeros((count + 1, count + 1))
    for place, point in enumerate(points):
        other_points = points[:place] + points[place + 1 :]
        scale = math.prod(point - other_point for other_point in other_points)
        inverse[:, place] = [float(point**power) for power in range(outputs)]
        weights[place] = [float(point**power / scale) for power in range(TILED_KERNEL)]
        tile[place, :count] = [float(value) for value in polynomial(other_points)]
    inverse[-1, -1], weights[-1, -1] = 1, 1
    tile[-1] = [float(value) for value in polynomial(points)]
    return inverse, weights, tile


def along(matrix: Array, array: Array, axis: int) -> Array:
    """Multiply by a matrix along an axis, and add the products in sequence."""
    terms = np.moveaxis(array, axis, -1)[..., None, :] * matrix.astype(array.dtype)
    return np.moveaxis(in_order(terms), -1, axis)


def by_winograd(
    outputs: int, attributes: Attributes, x: Array, w: Array, *bias: Array
) -> list[Array]:
    """Transform tiles and kernels, multiply, and transform back."""
    x, strides, dilations = convolution_operands(attributes, x)
    rank, groups = x.ndim - 2, attributes.get("group", 1)
    if max(*strides, *dilations) > 1 or set(w.shape[2:]) != {TILED_KERNEL} or rank > MAX_TILED_AXES:
        raise Unsupported("a kernel that is not tiled")
    inverse, weights, tile = winograd_matrices(outputs)
    sizes = [size - 2 for size in x.shape[2:]]
    x = np.pad(x, [(0, 0), (0, 0), *((0, -size % outputs) for size in sizes)])
    tiles = np.lib.stride_tricks.sliding_window_view(x, [outputs + 2] * rank, (*range(2, x.ndim),))
    tiles = tiles[every_image([outputs] * rank)]
    for axis in range(-rank, 0):
        tiles, w = along(tile, tiles, axis), along(weights, w, axis)
    counts = tiles.shape[2 : 2 + rank]
    # The axes are batch, group, output channel, channel, then tiles, then the elements of a tile.
    tiles = tiles.reshape(len(x), groups, 1, -1, *tiles.shape[2:])
    kernels = w.reshape(groups, len(w) // groups, w.shape[1], *[1] * rank, *w.shape[2:])
    y = in_order(np.moveaxis(tiles * kernels, 3, -1)).reshape(len(x), len(w), *tiles.shape[4:])
    for axis in range(-rank, 0):
        y = along(inverse, y, axis)
    for axis in range(rank):
        y = np.moveaxis(y, 2 + rank + axis, 3 + 2 * axis)
    y = y.reshape(len(x), len(w), *(count * outputs for count in counts))
    return with_bias(y[spatial(slice(size) for size in sizes)], bias)


def transposed(
    form: NodeForm, attributes: Attributes, x: Array, w: Array, *bias: Array
) -> list[Array]:
    """Compute ConvTranspose: insert zeros between the elements of the input, and convolve."""
    rank, groups = x.ndim - 2, attributes.get("group", 1)
    if not {"output_shape", "auto_pad"}.isdisjoint(attributes):
        raise Unsupported("generated pads")
    strides = attributes.get("strides", [1] * rank)
    spaced = max(*strides, *attributes.get("dilations", [1])) > 1
    if spaced and getattr(form, "func", None) is by_winograd:
        raise Unsupported("no known implementation tiles operands with zeros between elements")
    w = dilated(w, attributes.get("dilations", [1] * rank))
    spread = dilated(x, strides)
    pads = np.reshape(attributes.get("pads", [0] * 2 * rank), (2, rank))
    extra = attributes.get("output_padding", [0] * rank)
    reach = np.array(w.shape[2:]) - 1
    before, after = reach - pads[0], reach - pads[1] + extra
    if min(*before, *after) < 0:
        raise Unsupported("pads beyond the kernel")
    kernels = np.concatenate([part.swapaxes(0, 1) for part in np.split(w, groups)])
    kernels = np.flip(kernels, tuple(range(2, w.ndim)))
    return form({"group": groups, "pads": [*before, *after]}, spread, kernels, *bias)


def by_scattering(attributes: Attributes, x: Array, w: Array, *bias: Array) -> list[Array]:
    """Add the products of each kernel element at their positions in the output (col2im)."""
    rank = x.ndim - 2
    if attributes.get("group", 1) > 1 or not {"output_shape", "auto_pad"}.isdisjoint(attributes):
        raise Unsupported("groups or generated pads")
    strides, dilations = (attributes.get(name, [1] * rank) for name in ("strides", "dilations"))
    pads = np.reshape(attributes.get("pads", [0] * 2 * rank), (2, rank))
    extra = attributes.get("output_padding", [0] * rank)
    sizes = [
        (x.shape[2 + axis] - 1) * strides[axis] + (w.shape[2 + axis] - 1) * dilations[axis] + 1
        for axis in range(rank)
    ]
    y = np.zeros((len(x), w.shape[1], *(a + b for a, b in zip(sizes, extra, strict=True))), x.dtype)
    for place in np.ndindex(*w.shape[2:]):
        window = tuple(
            slice(at * step, at * step + (size - 1) * stride + 1, stride)
            for at, step, size, stride in zip(place, dilations, x.shape[2:], strides, strict=True)
        )
        terms = np.einsum("ni...,io->noi...", x, w[(..., *place)])
        y[spatial(window)] += in_order(np.moveaxis(terms, 2, -1))
    cut = (slice(a, size - b) for a, b, size in zip(*pads, y.shape[2:], strict=True))
    return with_bias(y[spatial(cut)], bias)


CONVOLUTIONS: list[NodeForm] = [
    *(partial(by_columns, total) for total in SUMS),
    by_fourier,
    *(partial(by_winograd, outputs) for outputs in (2, 4, 6)),
]


# Transforms.


def roots(count: int, real: Any, float32_angles: bool = False) -> Array:
    """Return the twiddle factors, correctly rounded or computed from angles in float32."""
    places = np.arange(count)
    if float32_angles:
        angles = real(2 * np.pi) * places.astype(real) / real(count)
        return np.cos(angles) - 1j * np.sin(angles)
    exact = np.exp(-2j * np.pi * places / count)
    return exact if real is np.float64 else exact.astype(np.complex64)


def real_of(x: Array) -> Any:
    """Return the type of the real part of a complex array."""
    return x.real.dtype.type


def by_sums(x: Array, float32_angles: bool = False) -> Array:
    """Compute each output as a sum of products; the products are added in sequence."""
    count = x.shape[-1]
    places = np.outer(np.arange(count), np.arange(count)) % count
    return in_order(x[..., None, :] * roots(count, real_of(x), float32_angles)[places])


def by_matrix(x: Array) -> Array:
    """Multiply by the matrix of twiddle factors."""
    count = x.shape[-1]
    places = np.outer(np.arange(count), np.arange(count)) % count
    return x @ roots(count, real_of(x))[places]


def by_factors(x: Array, float32_angles: bool = False) -> Array:
    """Split a transform recursively by the smallest prime factor of its length."""
    count = x.shape[-1]
    radix = next((factor for factor in range(2, count) if count % factor == 0), count)
    if radix == count:
        return by_sums(x, float32_angles)
    factors, places = roots(count, real_of(x), float32_angles), np.arange(count)
    parts = [
        np.concatenate([by_factors(x[..., part::radix], float32_angles)] * radix, -1)
        * factors[part * places % count]
        for part in range(radix)
    ]
    return in_order(np.stack(parts, -1))


def by_chirp(x: Array) -> Array:
    """Compute a transform as a convolution with a chirp, in a power-of-two length (Bluestein)."""
    count, places = x.shape[-1], np.arange(x.shape[-1])
    chirp = roots(2 * count, real_of(x))[places**2 % (2 * count)]
    size = 1 << (2 * count).bit_length()
    kernel = np.zeros(size, chirp.dtype)
    kernel[:count], kernel[size - count + 1 :] = chirp.conj(), chirp.conj()[:0:-1]
    padded = np.zeros((*x.shape[:-1], size), chirp.dtype)
    padded[..., :count] = x * chirp
    spectrum = (by_factors(padded) * by_factors(kernel)).conj()
    return (by_factors(spectrum).conj() / real_of(x)(size))[..., :count] * chirp


TRANSFORMS: list[Callable[[Array], Array]] = [
    by_sums,
    by_matrix,
    by_factors,
    by_chirp,
    partial(by_sums, float32_angles=True),
    partial(by_factors, float32_angles=True),
    np.fft.fft,
]


def transform(
    form: Callable[[Array], Array], attributes: Attributes, x: Array, *further: Any
) -> list[Array]:
    """Compute DFT."""
    length, axis = [*further, None, None][:2]
    axis = attributes.get("axis", -2 if axis is None else int(axis)) % x.ndim
    lines = np.moveaxis(x, axis, -2)
    count = lines.shape[-2] if length is None else int(length)
    lines = lines[..., :count, :]
    lines = np.pad(lines, [(0, 0)] * (x.ndim - 2) + [(0, count - lines.shape[-2]), (0, 0)])
    line = lines[..., 0] + 1j * (lines[..., 1] if lines.shape[-1] > 1 else 0 * lines[..., 0])
    line = line.astype(np.complex64 if x.dtype == np.float32 else complex)
    if attributes.get("inverse"):
        y = form(line.conj()).conj() / x.dtype.type(count)
    else:
        y = form(line)
    if attributes.get("onesided"):
        if attributes.get("inverse"):
            raise Unsupported("an inverse of half a spectrum")
        y = y[..., : count // 2 + 1]
    return [np.moveaxis(np.stack([y.real, y.imag], -1).astype(x.dtype), -2, axis)]


def in_frames(
    form: Callable[[Array], Array], attributes: Attributes, x: Array, step: Array, *rest: Any
) -> list[Array]:
    """Compute STFT."""
    window, length = [*rest, None, None][:2]
    count = int(length) if length is not None else len(window)
    frames = np.lib.stride_tricks.sliding_window_view(x[..., 0], count, 1)[:, :: int(step)]
    frames = frames if window is None else frames * window
    y = form(frames.astype(np.complex64 if x.dtype == np.float32 else complex))
    y = y[..., : count // 2 + 1] if attributes.get("onesided", 1) else y
    return [np.stack([y.real, y.imag], -1).astype(x.dtype)]


# Exponentials.


def exp2_of(x: Array) -> Array:
    """Compute an exponential as a power of two."""
    return np.exp2(x * x.dtype.type(math.log2(math.e)))


def shares(
    exponential: Any, total: Sum, logarithm: str, attributes: Attributes, x: Array
) -> list[Array]:
    """Compute Softmax or LogSoftmax in two passes."""
    rows = np.moveaxis(x, attributes.get("axis", -1), -1)
    largest = rows.max(-1, keepdims=True)
    powers = exponential(rows - largest)
    count = total(powers)[..., None]
    if logarithm == "two steps":
        y = rows - largest - np.log(count)
    elif logarithm:
        y = rows - (largest + np.log(count))
    else:
        y = powers / count
    return [np.moveaxis(y, -1, attributes.get("axis", -1))]


def online(logarithm: bool, attributes: Attributes, x: Array) -> list[Array]:
    """Compute Softmax or LogSoftmax in one pass; rescale the sum at each larger element.

    Source: Milakov and Gimelshein, 2018.
    """
    rows = np.moveaxis(x, attributes.get("axis", -1), -1)
    largest, total = rows[..., 0], np.ones_like(rows[..., 0])
    for place in range(1, rows.shape[-1]):
        larger = np.maximum(largest, rows[..., place])
        total = total * np.exp(largest - larger) + np.exp(rows[..., place] - larger)
        largest = larger
    largest, total = largest[..., None], total[..., None]
    y = rows - largest - np.log(total) if logarithm else np.exp(rows - largest) / total
    return [np.moveaxis(y, -1, attributes.get("axis", -1))]


def log_sum(form: str, attributes: Attributes, x: Array, axes: Any = None) -> list[Array]:
    """Compute ReduceLogSumExp."""
    rows, restored = rows_of(x, axes, attributes)
    if form == "logaddexp":
        return [restored(np.logaddexp.accumulate(rows, axis=-1)[..., -1])]
    largest = rows.max(-1)
    total = in_order if form == "sequential" else in_pairs
    return [restored(largest + np.log(total(np.exp(rows - largest[..., None]))))]


# Activations.


def erf_of(x: Array, complement: bool = False) -> Array:
    """Return the error function, or its complement."""
    function = np.vectorize(math.erfc if complement else math.erf, otypes=[np.float64])
    return np.asarray(function(x.astype(np.float64))).astype(x.dtype)


def gelu(form: str, attributes: Attributes, x: Array) -> list[Array]:
    """Compute Gelu."""
    real = x.dtype.type
    half, one = real(0.5), real(1)
    if attributes.get("approximate", b"none") == b"tanh":
        inner = real(np.sqrt(2 / np.pi)) * (x + real(0.044715) * x * x * x)
        return [half * x * (one + np.tanh(inner))]
    scaled = x * real(np.sqrt(0.5))
    if form == "erfc":
        return [half * x * erf_of(-scaled, complement=True)]
    if form == "quotient":
        return [x * (one + erf_of(x / np.sqrt(real(2)))) * half]
    return [half * x * (one + erf_of(scaled))]


# Coefficients of a rational approximation of tanh on [-9, 9] (Eigen, generic_fast_tanh_float).
NUMERATOR = (
    4.89352455891786e-03,
    6.37261928875436e-04,
    1.48572235717979e-05,
    5.12229709037114e-08,
    -8.60467152213735e-11,
    2.00018790482477e-13,
    -2.76076847742355e-16,
)
DENOMINATOR = (
    4.89352518554385e-03,
    2.26843463243900e-03,
    1.18534705686654e-04,
    1.19825839466702e-06,
)
# Coefficients of sigmoid(x) - 1/2 on [-18, 18] (ONNX Runtime, mlas/lib/logistic.cpp).
LOGISTIC_NUMERATOR = (
    2.48287947061529e-01,
    8.51377133304701e-03,
    6.08574864600143e-05,
    1.15627324459942e-07,
    4.37031012579801e-11,
)
LOGISTIC_DENOMINATOR = (
    9.93151921023180e-01,
    1.16817656904453e-01,
    1.70198817374094e-03,
    6.29106785017040e-06,
    5.76102136993427e-09,
    6.10247389755681e-13,
)


def rational_sigmoid(x: Array) -> Array:
    """Approximate sigmoid by 1/2 and a quotient of polynomials."""
    odd = rational(x, 18, LOGISTIC_NUMERATOR, LOGISTIC_DENOMINATOR)
    return np.clip(odd + x.dtype.type(0.5), 0, 1)


def rational_tanh(x: Array) -> Array:
    """Approximate tanh by a quotient of polynomials."""
    return rational(x, 9, NUMERATOR, DENOMINATOR)


def rational(
    x: Array, limit: float, numerator: Sequence[float], denominator: Sequence[float]
) -> Array:
    """Evaluate an odd rational function after clamping the operand."""
    real = x.dtype.type
    clamped = np.clip(x, real(-limit), real(limit))
    square = clamped * clamped

    def polynomial(coefficients: Sequence[float]) -> Array:
        total = np.full_like(x, coefficients[-1])
        for coefficient in coefficients[-2::-1]:
            total = total * square + real(coefficient)
        return total

    return np.asarray(clamped * polynomial(numerator) / polynomial(denominator))


def window(
    form: str, coefficients: Sequence[float], attributes: Attributes, size: Array
) -> list[Array]:
    """Compute a window from the cosines of angles in float32."""
    if attributes.get("output_datatype", 1) != 1:
        raise Unsupported("a type other than float32")
    real, count = np.float32, int(size)
    period = real(max(1, count - (not attributes.get("periodic", 1))))
    places = np.arange(count).astype(real)
    circle = real(2 * np.pi)
    if form == "quotient":
        angles = circle * places / period
    elif form == "step":
        angles = places * (circle / period)
    else:
        angles = circle * (places / period)
    y = np.full(count, coefficients[0], real)
    for multiple, coefficient in enumerate(coefficients[1:], start=1):
        y = y + real(coefficient) * np.cos(real(multiple) * angles)
    return [y]


WINDOWS = {
    "BlackmanWindow": (0.42, -0.5, 0.08),
    "HammingWindow": (25 / 46, 25 / 46 - 1),
    "HannWindow": (0.5, -0.5),
}


SIGMOIDS: list[Callable[[Array], Array]] = [
    lambda x: x.dtype.type(1) / (x.dtype.type(1) + np.exp(-x)),
    lambda x: (x.dtype.type(1) + np.tanh(x * x.dtype.type(0.5))) * x.dtype.type(0.5),
    lambda x: x.dtype.type(0.5) + x.dtype.type(0.5) * rational_tanh(x * x.dtype.type(0.5)),
    rational_sigmoid,
    lambda x: np.where(
        x < 0, np.exp(np.minimum(x, 0)) / (1 + np.exp(np.minimum(x, 0))), 1 / (1 + exp2_of(-abs(x)))
    ),
]
TANHS: list[Callable[[Array], Array]] = [
    np.tanh,
    rational_tanh,
    lambda x: x.dtype.type(1) - x.dtype.type(2) / (np.exp(x + x) + x.dtype.type(1)),
    lambda x: x.dtype.type(2) * SIGMOIDS[0](x + x) - x.dtype.type(1),
]


def gated(
    algorithms: Any, attributes: Attributes, x: Array, w: Array, r: Array, *rest: Any
) -> list[Array]:
    """Run a GRU with the default activations."""
    total, sigmoid, tanh, blended = algorithms
    bias, lengths, state = [*rest, None, None, None][:3]
    direction = attributes.get("direction", b"forward")
    if lengths is not None or not {"activations", "clip"}.isdisjoint(attributes):
        raise Unsupported("lengths, activations or a limit")
    if attributes.get("layout"):
        x = np.swapaxes(x, 0, 1)
        state = None if state is None else np.swapaxes(state, 0, 1)
    size, one = r.shape[-1], x.dtype.type(1)
    outputs: list[Array] = []
    states: list[Array] = []
    bias = np.zeros((len(w), 6 * size), x.dtype) if bias is None else bias
    for at, (wd, rd, bd) in enumerate(zip(w, r, bias, strict=True)):
        h = np.zeros((x.shape[1], size), x.dtype) if state is None else state[at]
        backward = direction == b"reverse" or at == 1
        steps = []
        for xt in x[::-1] if backward else x:
            wz, wr, wh = np.split(total(xt[:, None, :] * wd), 3, -1)
            bz, br, bh, rbz, rbr, rbh = np.split(bd, 6)
            rz, rr, rh = np.split(total(h[:, None, :] * rd), 3, -1)
            z, reset = sigmoid(wz + rz + (bz + rbz)), sigmoid(wr + br + (rr + rbr))
            if attributes.get("linear_before_reset"):
                new = tanh(wh + reset * (rh + rbh) + bh)
            else:
                new = tanh(wh + total((reset * h)[:, None, :] * rd[2 * size :]) + rbh + bh)
            h = new + z * (h - new) if blended else (one - z) * new + z * h
            steps.append(h)
        outputs.append(np.array(steps[::-1] if backward else steps))
        states.append(h)
    y = np.stack(outputs, 1)
    if attributes.get("layout"):
        return [np.moveaxis(y, 2, 0), np.stack(states, 1)]
    return [y, np.stack(states)]


# Determinants.


def by_elimination(complete: bool, _: Attributes, x: Array) -> list[Array]:
    """Compute Det by elimination with partial or complete pivoting."""

    def determinant(matrix: Array) -> Any:
        a, sign = matrix.copy(), a_type(1)
        for step in range(len(a)):
            remaining = np.abs(a[step:, step:])
            row, column = (
                divmod(int(remaining.argmax()), remaining.shape[1])
                if complete
                else (int(remaining[:, 0].argmax()), 0)
            )
            for axis, place in ((0, row), (1, column)):
                if place:
                    order = np.arange(len(a))
                    order[[step, step + place]] = step + place, step
                    a, sign = np.take(a, order, axis), -sign
            if a[step, step] == 0:
                return a_type(0)
            factors = a[step + 1 :, step] / a[step, step]
            a[step + 1 :, step:] -= factors[:, None] * a[step, step:]
        return sign * np.multiply.reduce(np.diagonal(a))

    a_type = x.dtype.type
    flat = x.reshape(-1, *x.shape[-2:])
    return [np.array([determinant(matrix) for matrix in flat], x.dtype).reshape(x.shape[:-2])]


def by_reflections(_: Attributes, x: Array) -> list[Array]:
    """Factorize by Householder reflections."""
    q, r = np.linalg.qr(x)
    signs = np.round(np.linalg.det(q.astype(np.float64))).astype(x.dtype)
    return [np.asarray(signs * np.multiply.reduce(np.diagonal(r, axis1=-2, axis2=-1), axis=-1))]


def recurrences() -> Iterator[NodeForm]:
    """Yield the forms of GRU."""
    for place, algorithms in enumerate(product(SIGMOIDS, TANHS, (False, True))):
        yield partial(gated, (SUMS[place % len(SUMS)], *algorithms))


FORMS: dict[str, list[NodeForm]] = {
    "BatchNormalization": [partial(batch, applied) for applied in APPLICATIONS],
    "Conv": CONVOLUTIONS,
    "ConvTranspose": [*(partial(transposed, form) for form in CONVOLUTIONS), by_scattering],
    "DFT": [partial(transform, form) for form in TRANSFORMS],
    "Det": [partial(by_elimination, False), partial(by_elimination, True), by_reflections],
    "GRU": [*recurrences()],
    "Gelu": [partial(gelu, form) for form in ("erf", "erfc", "quotient")],
    "GroupNormalization": [partial(group, algorithms) for algorithms in NORMALIZING],
    "InstanceNormalization": [partial(group, algorithms) for algorithms in NORMALIZING],
    "LayerNormalization": [partial(layer, algorithms) for algorithms in NORMALIZING],
    "LogSoftmax": [
        *(partial(shares, np.exp, total, "two steps") for total in SUMS),
        partial(shares, exp2_of, in_pairs, "one step"),
        partial(online, True),
    ],
    "MatMul": [partial(matrix_product, total) for total in (*SUMS, flushing)],
    "MeanVarianceNormalization": [partial(across, algorithms) for algorithms in NORMALIZING],
    "ReduceL2": [partial(reduced, total, 2, True) for total in (*SUMS, flushing)],
    "ReduceLogSumExp": [partial(log_sum, form) for form in ("pairs", "sequential", "logaddexp")],
    "ReduceSum": [partial(reduced, total, 1, False) for total in (*SUMS, flushing)],
    "ReduceSumSquare": [partial(reduced, total, 2, False) for total in (*SUMS, flushing)],
    "STFT": [partial(in_frames, form) for form in TRANSFORMS],
    **{
        name: [partial(window, form, coefficients) for form in ("quotient", "step", "share")]
        for name, coefficients in WINDOWS.items()
    },
    "Sigmoid": [lambda _, x, form=form: [form(x)] for form in SIGMOIDS],
    "Softmax": [
        *(partial(shares, np.exp, total, "") for total in SUMS),
        partial(shares, exp2_of, in_pairs, ""),
        partial(online, False),
    ],
}
for _operator, _kernels in KERNELS.items():
    FORMS[_operator] = [*FORMS.get(_operator, []), *_kernels]
MOST_FORMS = max(map(len, FORMS.values()))


def outputs_by(form: Any, node: onnx.NodeProto, operands: Sequence[Any]) -> list[Array]:
    """Return the outputs of a node by a form; 16-bit operands are converted to float32."""
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    dtype = operands[0].dtype if operands[0].dtype.kind not in "iu" else np.dtype(np.float32)
    wide = [
        value.astype(np.float32)
        if value is not None and value.dtype in (np.float16, ml_dtypes.bfloat16)
        else value
        for value in operands
    ]
    if isinstance(form, Staged):
        form = form.storing(dtype)
    with np.errstate(all="ignore"):
        return [np.asarray(value).astype(dtype) for value in form(attributes, *wide)]


class Form:
    """The backend that computes each operator by one of its forms."""

    place = 0

    def run(self, model: onnx.ModelProto, inputs: dict[str, Any]) -> list[Array]:
        """Return the outputs of a model of one node."""
        (node,) = model.graph.node
        forms = FORMS.get(node.op_type, [])
        if self.place >= len(forms):
            raise Unsupported("no further form")
        operands = [inputs[name] if name else None for name in node.input]
        return outputs_by(forms[self.place], node, operands)[: len(node.output)]


for _place in range(MOST_FORMS):
    globals()[f"Form{_place}"] = type(f"Form{_place}", (Form,), {"place": _place})


# Cases.


def numbers(random: np.random.Generator, kind: str, *shape: int) -> Array:
    """Draw numbers from a distribution; ``mean 1e4`` has a mean of 1e4 and a deviation of 1."""
    x = random.standard_normal(shape)
    match kind.split():
        case ["uniform"]:
            return random.random(shape)
        case ["outlier"]:
            x[..., 0] = 40
        case ["sorted"]:
            return np.sort(x)
        case ["ramp"]:
            return np.broadcast_to(np.linspace(-3, 1, shape[-1]), shape)
        case ["mean", mean]:
            return x + float(mean)
        case ["scale", scale]:
            return x * float(scale)
        case ["alternating"]:
            # The signs of the elements alternate, so the sum of two neighbours is small.
            return (1 + 1e-4 * x) * (-1) ** np.arange(shape[-1])
        case ["wide"]:
            return x * 10 ** (12 * random.random(shape) - 6)
    return x


#: A function that draws an array of a given shape from a given distribution.
Draw = Callable[..., Array]
Case = tuple[str, list[Any], Attributes]


def normalization_cases(draw: Draw) -> Iterator[Case]:
    """Yield cases of normalizations, with means of up to 3e6 standard deviations."""
    for kind in ("normal", "uniform", "outlier", "sorted", "ramp", "mean 30", "mean 1e3"):
        for count in (5, 37, 260, 1500):
            scale, bias = draw("uniform", count) + 0.5, draw("normal", count)
            yield "LayerNormalization", [draw(kind, 3, count), scale, bias], {}
    for large in ("1e4", "1e5", "4e5", "3e6"):
        for length in (9, 25):
            x = draw(f"mean {large}", 2, 4, length, length)
            scale, bias = draw("uniform", 4) + 0.5, draw("normal", 4)
            yield "GroupNormalization", [x, scale, bias], {"num_groups": 2}
            yield "InstanceNormalization", [x, scale, bias], {}
            yield "MeanVarianceNormalization", [x], {}
    for ratio in (0, 1, 10, 300, 1e4, 1e6):
        mean = ratio * (1 + draw("uniform", 6))
        x = mean[:, None, None] + draw("normal", 2, 6, 13, 13)
        scale, bias = draw("uniform", 6) + 0.5, draw("normal", 6)
        yield "BatchNormalization", [x, scale, bias, mean, draw("uniform", 6) + 0.2], {}


def sum_cases(draw: Draw) -> Iterator[Case]:
    """Yield cases of sums and products."""
    for kind in ("normal", "uniform", "mean 20", "scale 1e-19", "scale 1e15"):
        for terms in (3, 50, 900):
            yield "MatMul", [draw(kind, 4, terms), draw(kind, terms, 5)], {}
            for operator in ("ReduceSum", "ReduceSumSquare", "ReduceL2"):
                yield operator, [draw(kind, 3, terms), np.array([1])], {"keepdims": 0}


def convolution_cases(draw: Draw) -> Iterator[Case]:
    """Yield cases of convolutions with and without strides and groups."""
    for kind in ("normal", "uniform", "mean 8"):
        for channels, size in ((1, 20), (5, 33)):
            for rank in (1, 2):
                x, w = draw(kind, 1, channels, *[size] * rank), draw(kind, 4, channels, *[3] * rank)
                for stride in (1, 2):
                    attributes: Attributes = {"pads": [1] * 2 * rank, "strides": [stride] * rank}
                    yield "Conv", [x, w, draw("normal", 4)], attributes
                    yield "ConvTranspose", [x, w.swapaxes(0, 1)], attributes
        x, w = draw(kind, 2, 6, 17, 17), draw(kind, 6, 1, 3, 3)
        yield "Conv", [x, w], {"group": 6}
        yield "Conv", [x, draw(kind, 3, 6, 7, 7)], {"strides": [2, 2], "pads": [3] * 4}


def transform_cases(draw: Draw) -> Iterator[Case]:
    """Yield cases of Fourier transforms."""
    for kind in ("normal", "uniform", "ramp", "mean 50"):
        for count in (6, 16, 35, 64, 101, 256):
            lines = draw(kind, 2, 2, count).swapaxes(1, 2)
            yield "DFT", [lines, None, np.array(1)], {}
        frames = [draw(kind, 1, 200, 1), np.array(16), np.hanning(64)]
        yield "STFT", frames, {}


def exponential_cases(draw: Draw) -> Iterator[Case]:
    """Yield cases of exponentials and activations."""
    for kind in ("normal", "scale 5", "mean 40", "scale 100"):
        for count in (2, 60, 3000):
            x = draw(kind, 3, count)
            yield "Softmax", [x], {}
            yield "LogSoftmax", [x], {}
            yield "ReduceLogSumExp", [x, np.array([1])], {}
    for size in ("1", "4", "9"):
        x = draw(f"scale {size}", 300)
        yield "Sigmoid", [x], {}
        yield "Gelu", [x], {}
        yield "Gelu", [x], {"approximate": "tanh"}


def matrix_cases(draw: Draw) -> Iterator[Case]:
    """Yield cases of Det, for matrices of full and lower rank, and cases of GRU."""
    for size in (2, 3, 5, 8):
        yield "Det", [draw("normal", 6, size, size)], {}
        for lost in range(1, size):
            rank = size - lost
            yield "Det", [draw("normal", 3, size, rank) @ draw("normal", 3, rank, size)], {}
    for kind, hidden, steps in (("normal", 4, 3), ("scale 0.2", 16, 12), ("scale 4", 5, 6)):
        for reset in (0, 1):
            x, w = draw("normal", steps, 2, 3), draw(kind, 2, 3 * hidden, 3)
            r, bias = draw(kind, 2, 3 * hidden, hidden), draw(kind, 2, 6 * hidden)
            attributes: Attributes = {"hidden_size": hidden, "linear_before_reset": reset}
            yield "GRU", [x, w, r, bias], attributes | {"direction": "bidirectional"}


def cases() -> Iterator[Case]:
    """Yield cases: the operator, its operands as doubles and integers, and its attributes."""
    draw = partial(numbers, np.random.default_rng(39))
    for kind in (
        normalization_cases,
        sum_cases,
        convolution_cases,
        transform_cases,
        exponential_cases,
        matrix_cases,
        function_cases,
        reduction_cases,
        layer_cases,
        further_cases,
    ):
        yield from kind(draw)


# Operators that onnx's reference or the forms cannot compute in 16-bit types.
SINGLE_ONLY = frozenset({"Celu", "DFT", "STFT", "DequantizeLinear", "Det", *WINDOWS})


def typed_cases(operators: Sequence[str] = ()) -> Iterator[tuple[str, Case]]:
    """Yield the name and the content of each case in each type.

    Args:
        operators: the operators; empty for all.
    """
    for place, (operator, operands, attributes) in enumerate(cases()):
        for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
            if operators and operator not in operators:
                continue
            if dtype is not np.float32 and (operator in SINGLE_ONLY or place % 3):
                continue
            with np.errstate(over="ignore"):
                # Integers and the scales of Resize keep their types.
                typed = [
                    value if value is None or value.dtype != np.float64 else value.astype(dtype)
                    for value in operands
                ]
            floats = [value.astype(float) for value in typed if value is not None]
            if all(np.isfinite(value).all() for value in floats):
                name = f"test_{operator.lower()}_{place:03}_{np.dtype(dtype).name}"
                yield name, (operator, typed, attributes)


def model_of(case: Case) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Return the model of a case, and its inputs."""
    operator, operands, attributes = case
    names = [f"x{place}" if value is not None else "" for place, value in enumerate(operands)]
    outputs = ["y", "h"] if operator in TWO_OUTPUTS else ["y"]
    node = helper.make_node(operator, names, outputs, **attributes)
    inputs = {name: value for name, value in zip(names, operands, strict=True) if name}

    def info(name: str, dtype: Any, shape: Any = None) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)

    dtype = operands[0].dtype if operands[0].dtype.kind not in "iu" else np.dtype(np.float32)
    infos = [info(name, value.dtype, value.shape) for name, value in inputs.items()]
    graph = helper.make_graph([node], operator, infos, [info(name, dtype) for name in outputs])
    is_later = operator in LATER_OPERATORS
    imports = [helper.make_opsetid("", LATEST_OPSET if is_later else OPSET)]
    version = LATEST_IR_VERSION if is_later else IR_VERSION
    return helper.make_model(graph, opset_imports=imports, ir_version=version), inputs


def write_cases(folder: Path, operators: Sequence[str]) -> None:
    """Write all cases of some operators, or of all operators if none is given."""
    for case_name, case in typed_cases(operators):
        model, inputs = model_of(case)
        names = [output.name for output in model.graph.output]
        stored = dict(zip(names, reference_values(model, inputs), strict=True))
        data_set = folder / case_name / "test_data_set_0"
        data_set.mkdir(parents=True)
        onnx.save(model, folder / case_name / "model.onnx")
        for kind, values in (("input", inputs), ("output", stored)):
            for place, (name, value) in enumerate(values.items()):
                tensor = numpy_helper.from_array(np.asarray(value, order="C"), name)
                (data_set / f"{kind}_{place}.pb").write_bytes(tensor.SerializeToString())


def form_name(form: Any) -> str:
    """Return the names of the functions of which a form consists."""
    if isinstance(form, partial):
        names = [form.func.__name__, *map(form_name, form.args), *map(str, form.keywords)]
        return " ".join(names)
    if isinstance(form, tuple):
        return ", ".join(map(form_name, form))
    return str(getattr(form, "__name__", form))


def main(*operators: str) -> int:
    """Write the cases, run them by every form, and print the results that are rejected."""
    if unknown := [name for name in operators if name not in FORMS]:
        sys.exit(f"no forms of {', '.join(unknown)}; the operators are {', '.join(sorted(FORMS))}")
    command = [sys.executable, "-m", "onnxopt_cli"]
    count = max(len(forms) for name, forms in FORMS.items() if not operators or name in operators)
    backends = [f"python:{Path(__file__).resolve()}:Form{place}" for place in range(count)]
    with tempfile.TemporaryDirectory() as name:
        folder, log = Path(name, "forms"), Path(name, "log.jsonl")
        write_cases(folder, operators)
        arguments = [part for backend in backends for part in ("-b", backend)]
        run = [*command, "run", str(folder), *arguments, "-q", "--no-explain", "--log", str(log)]
        subprocess.run([*run, "--isolation", "none"], check=False, stdout=subprocess.DEVNULL)
        records = [json.loads(line) for line in log.read_text().splitlines()]
    results = [record["result"] for record in records if record["record"] == "end"]
    outcomes = Counter(result["outcome"] for result in results)
    for result in results:
        if result["outcome"] not in {"pass", "skip", "unsupported"}:
            place = int(str(result["backend"]).rpartition("Form")[2])
            operator = result["case"].split("_")[1]
            forms = next(forms for name, forms in FORMS.items() if name.lower() == operator)
            form = form_name(forms[place]) if place < len(forms) else ""
            print(result["case"], form, result["outcome"], sep=", ")
    tested = Counter(operator for _, (operator, _, _) in typed_cases(operators))
    form_count = sum(len(FORMS[operator]) for operator in tested)
    print(f"{form_count} forms of {len(tested)} operators, {tested.total()} cases")
    print(f"{outcomes['pass']} results pass, {outcomes['skip']} are inconclusive")
    rejected = sum(outcomes.values()) - sum(outcomes[o] for o in ("pass", "skip", "unsupported"))
    print(f"{rejected} are rejected")
    return int(rejected > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
