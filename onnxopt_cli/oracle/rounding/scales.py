"""Scales of the absolute errors of convolutions, Fourier transforms, determinants and windows.

One rounding causes an error of about u times the scale. This also holds for an element that is much
smaller than the scale. Fast algorithms for convolutions (Winograd, Fourier) and transforms mix
elements that a direct sum keeps separate. The standard deviation of the error of a fast algorithm
follows from the algorithm if the roundings are independent. ``docs/conditioned.md`` gives the
equations and their sources.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from math import ceil, exp, lgamma, log, log2, pi, prod, sqrt
from operator import add, mul
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from onnxopt_cli.core.values import Array
from onnxopt_cli.oracle.patching import reference_modules
from onnxopt_cli.oracle.rounding.perturbations import unbounded_sum_roundings

# For a direct sum or Winograd's algorithm, the unit is _STANDARD_DEVIATIONS times the standard
# deviation of the error, so that a tolerance of 16 units is 3 standard deviations. The computed
# standard deviation assumes that all roundings have the largest size. Actual roundings are
# uniformly distributed, so the actual standard deviation is about 0.4 of the computed one.
_STANDARD_DEVIATIONS = 3 / 16
# The error of a long sum is estimated from at least this number of partial sums.
_PARTIAL_SUMS = 16
# Each of the log2(n) stages of a Fourier transform has this error, in roundings of the result.
_TRANSFORM_STAGE = 1 / 3
# The error per stage if a Fourier transform computes a convolution, in roundings.
_CONVOLUTION_STAGE = 1 / 6
# If a transform of length n is computed as sums of n terms, its error is sqrt(n) / 10 roundings of
# the root mean square of the result.
_ROOT_MEAN_SQUARE_DIVISOR = 10
# A transform that is computed as sums has a further error: sqrt(n) / 40 roundings of the largest
# element of the result.
_LARGEST_DIVISOR = 40
# A float32 angle that is computed by a product and a quotient has an error of two roundings. This
# error moves all terms of a sum. The unit is _ANGLE_ERROR times a rounding of the largest element,
# so that a tolerance of 16 units is two roundings of the largest element.
_ANGLE_ERROR = 2 / 16
# Winograd's interpolation points, except infinity. F(m, r) computes m outputs of a kernel of length
# r. The first tuple contains the points of F(4, 3) and F(2, 5), whose tiles have 6 elements. The
# second tuple contains the points of F(6, 3) and F(4, 5), whose tiles have 8 elements.
_HALF = Fraction(1, 2)
_POINTS = ((0, 1, -1, 2, -2), (0, 1, -1, 2, -2, _HALF, -_HALF))
_LARGEST_KERNEL = 7
# Normalizations that may subtract the product of scale f and mean m from the bias b:
# (x - m) f + b = x f + (b - m f).
_FOLDED_SCALES = frozenset(
    {
        "BatchNormalization",
        "GroupNormalization",
        "InstanceNormalization",
        "LayerNormalization",
    }
)
#: For each window, the coefficients of the cosines of 0, of the angle and, if any, of twice the
#: angle.
WINDOWS = {
    "BlackmanWindow": (0.42, -0.5, 0.08),
    "HammingWindow": (25 / 46, 25 / 46 - 1),
    "HannWindow": (0.5, -0.5),
}
# The largest error of a cosine, in roundings of the number 1.
_COSINE_ERROR = 4
# The unit is _WINDOW_SHARE times the error of a window, so that a tolerance of 16 units equals the
# error.
_WINDOW_SHARE = 1 / 16
# The number of binary digits of a float32 significand, and the unit roundoff of float32.
_DIGITS, _SINGLE_ROUNDOFF = 24, 2.0**-24
# The error of Winograd's algorithm is computed for at most this number of output channels in a
# group.
_MAX_CHANNELS = 16
# Tiles extend along at most this number of axes, the last ones. Elements along all other axes of
# space are summed like channels.
_TILED_AXES = 2
# The rows and columns of a matrix are balanced this number of times. The number is limited, because
# balancing does not converge if every product of the determinant contains a zero.
_BALANCING_ROUNDS = 4
# Reflections mix small rows of a matrix with large rows. The error of a reflection may exceed the
# error of elimination by a factor of up to _MAX_MIXING.
_MAX_MIXING = 64.0


def transform_scale(node: Any, inputs: Sequence[Any], output: Array) -> Array:
    """Return the scale of the error of a ``DFT`` or ``STFT``, for each element of its output.

    The scale is a share of the root mean square of a transformed line or, if that is larger, a
    share of the largest element of the line. The largest element leaks into other elements for two
    reasons. First, a sequential sum has partial sums of up to 1 / pi of the largest element.
    Second, twiddle factors have errors if their angles are computed in float32. The angles are
    below pi if the length is a power of two. For other lengths, the angles of Bluestein's chirp are
    below 2 pi. In addition, a sequential sum of n equal terms has an error of sqrt(n) / 4 roundings
    of the sum itself.

    Args:
        node: the node, as the evaluator prepares it.
        inputs: its inputs.
        output: its output.
    """
    axis = transformed_axis(node, inputs)
    power = np.sum(_finite(output) ** 2, axis=-1, keepdims=True)
    terms = max(2, _transform_length(node, inputs, output, axis))
    share = max(_TRANSFORM_STAGE * sqrt(log2(terms)), sqrt(terms) / _ROOT_MEAN_SQUARE_DIVISOR)
    leaked = sqrt(terms) / _LARGEST_DIVISOR * _largest(power, axis)
    if terms & (terms - 1) == 0:
        # The first element leaks nothing, because its twiddle factors are exactly 1.
        later_power = np.take(power, range(1, output.shape[axis]), axis)
        leaked = np.maximum(leaked, _ANGLE_ERROR * pi * _largest(later_power, axis))
    else:
        # The line, its transform and the result are multiplied by the chirp.
        share = max(share, _ANGLE_ERROR * 2 * pi * sqrt(3))
        leaked = np.maximum(leaked, _ANGLE_ERROR * 2 * pi * _largest(power, axis))
    mixed = share * np.sqrt(power.mean(axis, keepdims=True))
    own_error = max(0.0, unbounded_sum_roundings(terms) - 1) * np.abs(_finite(output))
    return np.asarray(np.maximum(mixed, leaked) + own_error)


def _largest(power: Array, axis: int) -> Array:
    return np.asarray(np.sqrt(power.max(axis, keepdims=True, initial=0.0)))


def _transform_length(node: Any, inputs: Sequence[Any], output: Array, axis: int) -> int:
    """Return the length of the transform.

    If the attribute ``onesided`` is set, the output has about half the length of the transform.
    """
    if node.op_type == "STFT":
        window, length = [*inputs, None, None][2:4]
        return int(length.item()) if length is not None else len(window)
    stated = inputs[1] if len(inputs) > 1 else None
    length = inputs[0].shape[axis] if stated is None else int(stated.item())
    return max(length, output.shape[axis])


def transformed_axis(node: Any, inputs: Sequence[Any]) -> int:
    """Return the axis along which the output of a ``DFT`` or ``STFT`` is a spectrum."""
    if node.op_type == "STFT":
        return -2
    axis = inputs[2].item() if len(inputs) > 2 and inputs[2] is not None else -2  # noqa: PLR2004
    integers = {attribute.name: attribute.i for attribute in node.onnx_node.attribute}
    return int(integers.get("axis", axis))


def convolution_scale(node: Any, inputs: Sequence[Any], output: Array) -> Array:
    """Return the scale of the error of any known algorithm for a ``Conv`` or ``ConvTranspose``.

    Args:
        node: the node, as the evaluator prepares it.
        inputs: its inputs.
        output: its output.
    """
    x, w = map(_finite, inputs[:2])
    if not x.size or not w.size:
        # A sum without terms has no error.
        return np.zeros(output.shape, np.float32)
    attributes = {attribute.name: attribute for attribute in node.onnx_node.attribute}
    transposed = node.op_type == "ConvTranspose"
    convolution = (_transposed if transposed else _padded)(x, w, attributes)
    rank = output.ndim - 2
    strides = [1] * rank if transposed else along(attributes, "strides", rank)
    sums = convolution.direct_sums(strides)
    error = sums.scale
    # If no stride is larger than 1, the sums are the whole output of the convolution.
    whole = sums.total if max(strides, default=1) == 1 else convolution.output()
    tiled = convolution.winograd_error() if convolution.tiled else None
    error = error if tiled is None else np.maximum(error, tiled)
    if transposed and "output_shape" not in attributes:
        # An algorithm may cut off the padding before or after dividing the output into tiles.
        starts = list(attributes["pads"].ints if "pads" in attributes else ())
        starts = (starts or [0] * rank)[:rank]
        part = _part(error, starts, output.shape[2:])
        if part.shape == output.shape:
            error = part
            if any(starts) and tiled is not None:
                cut = convolution.cut(starts, output.shape[2:]).winograd_error()
                error = error if cut is None else np.maximum(error, cut)
    if error.shape != output.shape:
        # It is unknown which borders are cut off, so the largest error is used.
        error = error.max(tuple(range(2, error.ndim)), keepdims=True)
    fourier_error = convolution.fourier_error(whole)[(...,) + (None,) * rank]
    # Scales are stored as float32: the scales of all nodes are in memory at the same time, and few
    # digits matter.
    scale = np.maximum(fourier_error, error).astype(np.float32)
    return np.broadcast_to(scale, output.shape)


def determinant_scale(_node: Any, inputs: Sequence[Any], _output: Array) -> Array:
    """Return the scale of the error of ``Det``: the root mean square of random determinants.

    If n rows of n elements have independent random directions, the mean of det^2 is the product of
    the squared lengths of the rows, times n! / n^n. An expansion by cofactors adds n! products. If
    their signs are random, the sum is as large as the root mean square of det. The error of the
    expansion, in roundings, is equally large. Factorizations have smaller errors if the rank is
    low.

    Elimination and cofactors have errors relative to the scale of the balanced matrix. Reflections
    have errors relative to the scale of the original matrix. The scale of the original matrix is
    limited to 64 times that of the balanced matrix.

    Args:
        inputs: the matrices, in their last two axes.
    """
    matrices = inputs[0]
    count = matrices.shape[-1]
    if not count:
        return np.ones(matrices.shape[:-2])
    size = np.abs(_finite(matrices))
    mixed = np.maximum(*(np.prod(_lengths(size, axis), axis=(-1, -2)) for axis in (-1, -2)))
    balanced = np.ones(matrices.shape[:-2])
    for axis in (-1, -2) * _BALANCING_ROUNDS:
        lengths = _lengths(size, axis)
        balanced = balanced * np.prod(lengths, axis=(-1, -2))
        size = np.divide(size, lengths, out=np.zeros_like(size), where=lengths != 0)
    share = exp((lgamma(count + 1) - count * log(count)) / 2)
    return np.asarray(share * np.minimum(mixed, _MAX_MIXING * balanced))


def _lengths(size: Array, axis: int) -> Array:
    """Return the Euclidean lengths of rows or columns, with the largest length in place of 0."""
    lengths = np.sqrt(np.sum(size * size, axis=axis, keepdims=True))
    return np.where(lengths == 0, lengths.max(axis=(-1, -2), keepdims=True), lengths)


def window_scale(node: Any, inputs: Sequence[Any], output: Array, roundoff: float) -> Array:
    """Return the scale of the error of a window.

    The window is a sum of cosines, whose arguments are multiples of an angle.

    The tolerance is the error of the cosines, plus twice the error of all other steps. For float32,
    the error of the other steps is measured by carrying them out, because actual roundings are
    often far smaller than the largest possible ones. For double, an angle t is assumed to have an
    error of 3 roundings, which moves cos(t) by 3 u t sin(t). The sum is assumed to have an error of
    2 roundings.

    Args:
        node: the node, as the evaluator prepares it.
        inputs: its inputs.
        output: its output.
        roundoff: the unit roundoff of the type of the output.
    """
    coefficients = WINDOWS[node.op_type]
    count = int(inputs[0])
    periodic = [item.i for item in node.onnx_node.attribute if item.name == "periodic"]
    period = max(1, count if not periodic or periodic[0] else count - 1)
    if roundoff < _SINGLE_ROUNDOFF:
        angles = 2 * pi * np.arange(count) / period
        error = np.full(output.shape, 2.0)
        for multiple, coefficient in enumerate(coefficients):
            angle = multiple * angles
            error += 3 * np.abs(coefficient * angle * np.sin(angle))
    else:
        error = _single_window_error(coefficients, period, output) / _SINGLE_ROUNDOFF
    return (2 * error + _COSINE_ERROR * np.abs(coefficients[1:]).sum()) * _WINDOW_SHARE


def _single_window_error(coefficients: Sequence[float], period: int, output: Array) -> Array:
    """Return the largest error of float32 evaluations of a window with correctly rounded cosines.

    Angles are measured from the first element, and also from the middle of the window.

    Args:
        coefficients: the coefficients of the cosines.
        period: the number of elements in a period of the window.
        output: the window in double.
    """
    real = np.float32
    error = np.zeros(output.shape)
    places = np.arange(len(output))
    for circle, steps, sign in ((2 * pi, places, 1), (pi, 2 * places - period, -1)):
        for angles in _single_angles(real(circle), steps.astype(real), real(period)):
            value = np.zeros(output.shape, real)
            for multiple, coefficient in enumerate(coefficients):
                cosines = np.cos((real(multiple) * angles).astype(float)).astype(real)
                value += real(coefficient * sign**multiple) * cosines
            error = np.maximum(error, np.abs(value - output))
    # An implementation may compute the first half of the window and reflect it.
    second_half = places[2 * places > period]
    error[second_half] = np.maximum(error[second_half], error[period - second_half])
    return error


def _single_angles(circle: Any, steps: Array, period: Any) -> Iterator[Array]:
    """Yield the angles circle * steps / period, computed in each possible order of operations."""
    reciprocal = 1 / period
    yield circle * steps / period
    yield circle * (steps / period)
    yield circle / period * steps
    yield steps * reciprocal * circle
    yield steps * (circle * reciprocal)


def mixes_infinite(node: Any, inputs: Sequence[Any]) -> bool:
    """Return whether a fast algorithm may spread a NaN or infinity among a node's operands.

    An algorithm that subtracts the product of scale and mean from the bias also spreads an infinite
    scale.
    """
    if node.op_type in _FOLDED_SCALES and len(inputs) > 1:
        return bool(np.isinf(inputs[1].astype(np.float64)).any())
    count = {"Conv": 2, "ConvTranspose": 2, "DFT": 1, "STFT": 1}.get(node.op_type, 0)
    mixed = [operand for operand in inputs[:count] if operand.dtype.kind in "fV"]
    return not all(np.isfinite(operand).all() for operand in mixed)


def spread(node: Any, inputs: Sequence[Any], output: Array, special: float) -> Array:
    """Return an output with a special value (NaN or infinity) where a fast algorithm spreads one.

    A fast algorithm mixes elements. If it mixes an element with an operand that is not finite, the
    element becomes NaN or infinite. An element that is NaN in a direct sum remains NaN. An infinite
    element may become NaN, but not the infinity of the other sign.
    """
    size = output.astype(np.float64)
    if node.op_type in {"DFT", "STFT"}:
        axes = (transformed_axis(node, inputs), -1)
        mixed = ~np.isfinite(size).all(axes, keepdims=True) & ~np.isnan(size)
    elif node.op_type in _FOLDED_SCALES:
        # x f + (b - m f) subtracts infinities from each other.
        mixed = np.isinf(size) & np.isnan(special) & _has_infinite_scale(node, inputs[1], output)
    else:
        x, w = (~np.isfinite(operand.astype(np.float64)) for operand in inputs[:2])
        integers = {attribute.name: attribute.i for attribute in node.onnx_node.attribute}
        group = integers.get("group", 1)
        kernels = w.reshape(group, -1, *w.shape[1:])
        if node.op_type == "ConvTranspose":
            kernels = kernels.swapaxes(1, 2)
        images = x.reshape(len(x), group, 1, -1).any(-1)
        mixed = images | kernels.reshape(*kernels.shape[:2], -1).any(-1)
        mixed = mixed.reshape(*output.shape[:2], *[1] * (output.ndim - 2))
        if np.isinf(special):
            mixed = mixed & np.isfinite(size)
    return np.where(mixed, np.asarray(special, output.dtype), output)


def _has_infinite_scale(node: Any, scale: Array, output: Array) -> Array:
    """Return which elements of the output of a normalization have an infinite scale."""
    infinite = np.isinf(scale.astype(np.float64))
    if node.op_type != "LayerNormalization":
        # Each channel has a scale. In GroupNormalization before version 21, each group has a scale.
        channels = output.shape[1] if output.ndim > 1 else 0
        if infinite.ndim != 1 or not infinite.size or channels % infinite.size:
            return np.zeros(output.shape, bool)
        infinite = np.repeat(infinite, channels // infinite.size)
        infinite = infinite.reshape(-1, *[1] * (output.ndim - 2))
    return np.broadcast_to(infinite, output.shape)


def _finite(array: Array) -> Array:
    return np.where(np.isfinite(array), array, 0.0)


class PartialSums:
    """Sums whose terms are added one after the other, and the scales of the sums' errors.

    The rounding error of each addition is at most u times the partial sum. If the roundings are
    independent, the variance of the error is u^2 times the sum of the squares of all partial sums
    (running error analysis, Higham 2002, 3.3). If neighbouring terms have the same sign, as in
    filters and signals, the partial sums may be much larger than the sum.

    Args:
        shape: the shape of the sums.

    Attributes:
        total: the sums of the terms that have been added.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        self.total = np.zeros(shape)
        self._terms = 0
        self._variance, self._squares = np.zeros(shape), np.empty(shape)

    def add(self, block: Array, terms: int) -> None:
        """Add the next block of terms to each sum.

        Within a block, each partial sum is assumed to be as large as the sum after the block.

        Args:
            block: for each sum, the sum of its next block of terms.
            terms: the number of terms in the block.
        """
        self.total += block
        self._terms += terms
        np.multiply(self.total, self.total, out=self._squares)
        self._squares *= terms
        self._variance += self._squares

    @property
    def scale(self) -> Array:
        """The scale of the error of each sum; 0 where perturbed operands cause a larger error.

        The operands of a sum of n terms are perturbed by sqrt(n) / 4 roundings. One run moves all
        operands upwards, and therefore moves the sum by about sqrt(n) / 4 roundings of the sum's
        own magnitude.
        """
        error = np.sqrt(self._variance)
        error *= _STANDARD_DEVIATIONS
        moved = np.abs(self.total)
        moved *= unbounded_sum_roundings(self._terms)
        return np.where(error > moved, error, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class _Convolution:
    """A convolution with stride 1 whose output contains all elements of a node's output.

    The output of the convolution may contain further elements, such as those that the node skips if
    the stride of the node is larger than 1.

    Attributes:
        x: the padded input; its axes are batch, channels, and the spatial axes.
        w: the kernels; their axes are output channels, channels of the group, and the axes of
            space.
        group: the number of groups of channels.
        dilations: the dilation along each spatial axis.
        tiled: whether Winograd's algorithm may compute the convolution.
    """

    x: Array
    w: Array
    group: int
    dilations: Sequence[int]
    tiled: bool

    @property
    def sizes(self) -> list[int]:
        """The length of the output along each spatial axis."""
        axes = zip(self.x.shape[2:], self.w.shape[2:], self.dilations, strict=True)
        return [size - (kernel - 1) * dilation for size, kernel, dilation in axes]

    def cut(self, starts: Sequence[int], sizes: Sequence[int]) -> _Convolution:
        """Return the convolution that yields a part of the output."""
        axes = zip(self.w.shape[2:], self.dilations, strict=True)
        reach = ((kernel - 1) * dilation for kernel, dilation in axes)
        return replace(self, x=_part(self.x, starts, [*map(add, sizes, reach)]))

    def output(self) -> Array:
        """Return the output."""
        # Look up the function at each call, because a correction that limits the memory of large
        # convolutions may have replaced it.
        convolve = reference_modules().op_conv._conv_implementation  # noqa: SLF001
        ones, zeros = [1] * len(self.sizes), [0, 0] * len(self.sizes)
        kernel = self.w.shape[2:]
        return np.asarray(
            convolve(
                self.x, self.w, None, "NOTSET", [*self.dilations], self.group, kernel, zeros, ones
            )
        )

    def fourier_error(self, output: Array) -> Array:
        """Return the scale of the error by Fourier transforms, for each batch and output channel.

        The errors of the two transformed operands are white noise with the power of the operands.
        The errors of the inverse transform have the power of the output.

        Args:
            output: the output of this convolution.
        """
        space = tuple(range(2, self.x.ndim))
        norms = _by_group(np.sum(self.w**2, axis=space), self.group)
        largest = np.max(self.x**2, axis=space).reshape(len(self.x), self.group, -1, 1)
        power = np.mean(output**2, axis=space)
        operands = (norms @ largest).reshape(power.shape)
        stages = log2(max(2, prod(self.sizes)))
        return np.asarray(_CONVOLUTION_STAGE * np.sqrt(stages * (operands + power)))

    def direct_sums(self, strides: Sequence[int]) -> PartialSums:
        """Return the direct sums for each element of a strided output.

        The terms of all channels at one place of the kernels are added before the terms at the next
        place. Implementations that store the channels of images along the last axis add in this
        order. At each place, the terms of the channels are added in blocks.
        """
        channels = self.w.shape[1]
        blocks = ceil(_PARTIAL_SUMS / prod(self.w.shape[2:]))
        edges = np.linspace(0, channels, min(channels, blocks) + 1).astype(int).tolist()
        counts = [ceil(size / stride) for size, stride in zip(self.sizes, strides, strict=True)]
        shape = len(self.x), len(self.w), *counts
        sums = PartialSums(shape)
        kept: Any = (..., *(slice(None, None, stride) for stride in strides))
        for place in np.ndindex(*self.w.shape[2:]):
            terms = _part(self.x, [*map(mul, place, self.dilations)], self.sizes)[kept]
            terms = terms.reshape(len(self.x), self.group, channels, prod(counts))
            kernels = _by_group(self.w[(..., *place)], self.group)
            for start, end in pairwise(edges):
                block = kernels[..., start:end] @ terms[:, :, start:end]
                sums.add(block.reshape(shape), end - start)
        return sums

    def winograd_error(self) -> Array | None:
        """Return the scale of the error of Winograd's algorithm, for each element of the output.

        If there are many output channels, the errors of only some channels are computed, with
        normalized kernels. The error of a channel is then the largest computed error, times the
        norm of the channel's kernel.

        Returns:
            The scale, or None if no known implementation tiles a kernel of this size.
        """
        kernels = self.w.shape[2:][-_TILED_AXES:]
        if max(kernels) == 1 or max(kernels) > _LARGEST_KERNEL:
            return None
        w = _by_group(self.w, self.group)
        norms = np.sqrt(np.sum(w**2, axis=tuple(range(2, w.ndim)), keepdims=True))
        w = np.divide(w, norms, out=np.zeros_like(w), where=norms > 0)
        channels = np.unique(np.linspace(0, w.shape[1] - 1, _MAX_CHANNELS).astype(int))
        if len(channels) < w.shape[1]:
            w = w[:, channels]
        # float32 suffices: few digits matter, and the squares of normalized numbers stay in its
        # range.
        largest = np.abs(self.x).max(initial=0.0) or 1.0
        x, w = (self.x / largest).astype(np.float32), w.reshape(-1, *self.w.shape[1:])
        w = w.astype(np.float32)
        for _ in self.sizes[:-_TILED_AXES]:
            # Each place along the axis becomes an element of the batch, and each term a channel.
            terms = np.moveaxis(sliding_window_view(x, w.shape[2], 2), (2, -1), (1, 3))
            x = terms.reshape(-1, w.shape[2] * x.shape[1], *x.shape[3:])
            w = w.reshape(len(w), -1, *w.shape[3:])
        variances = []
        for points in _POINTS:
            if max(kernels) > len(points):
                continue
            axes = [_matrices(points, kernel) for kernel in kernels]
            exact = _transforms_exactly(self.x, axes)
            variances.append(_tiled_variance(x, w, self.group, axes, exact=exact))
        if not variances:
            return None
        error = _STANDARD_DEVIATIONS * largest * np.sqrt(np.maximum.reduce(variances))
        error = error.reshape(len(self.x), *self.sizes[:-_TILED_AXES], *error.shape[1:])
        # The order of the axes is now batch, group, output channels of the group, space.
        error = np.moveaxis(error, -1 - len(kernels), 1)
        error = error.reshape(len(error), self.group, -1, *self.sizes)
        if error.shape[2] < norms.shape[1]:
            error = error.max(axis=2, keepdims=True)
        error = error * norms.reshape(1, self.group, -1, *[1] * len(self.sizes))
        return np.asarray(error.reshape(len(error), -1, *self.sizes))


def paddings(x: Array, w: Array, attributes: Any) -> Array:
    """Return the padding of a ``Conv``: the padding before and after ``x``, in a row each.

    Args:
        x: the images.
        w: the kernels.
        attributes: the attributes of the node by name.
    """
    rank = x.ndim - 2
    strides, dilations = (along(attributes, name, rank) for name in ("strides", "dilations"))
    mode = attributes["auto_pad"].s.decode() if "auto_pad" in attributes else "NOTSET"
    pads = np.zeros((2, rank), int)
    if mode.startswith("SAME"):
        sizes = np.array(x.shape[2:])
        reach = (np.array(w.shape[2:]) - 1) * dilations + 1
        total = np.maximum((-(-sizes // strides) - 1) * strides + reach - sizes, 0)
        pads[:] = total // 2, total - total // 2
        pads = pads if mode == "SAME_UPPER" else pads[::-1]
    elif mode == "NOTSET" and "pads" in attributes:
        pads[:] = np.reshape(attributes["pads"].ints, (2, rank))
    return pads


def _padded(x: Array, w: Array, attributes: Any) -> _Convolution:
    """Return a convolution with stride 1 whose output contains the output of a ``Conv``."""
    rank = x.ndim - 2
    strides, dilations = (along(attributes, name, rank) for name in ("strides", "dilations"))
    pads = paddings(x, w, attributes)
    if pads.any():
        # numpy.pad takes longer than the arithmetic of small images.
        image, sizes = x, [*x.shape[:2], *(pads.sum(axis=0) + x.shape[2:]).tolist()]
        x = np.zeros(sizes)
        _part(x, pads[0].tolist(), image.shape[2:])[...] = image
    group = attributes["group"].i if "group" in attributes else 1
    return _Convolution(x, w, group, dilations, max(*strides, *dilations) == 1)


def _transposed(x: Array, w: Array, attributes: Any) -> _Convolution:
    """Return a convolution with stride 1 that contains the output of a ``ConvTranspose``."""
    rank = x.ndim - 2
    strides, dilations = (along(attributes, name, rank) for name in ("strides", "dilations"))
    group = attributes["group"].i if "group" in attributes else 1
    sizes = (np.array(x.shape[2:]) - 1) * strides + 1
    dilated = np.zeros((*x.shape[:2], *sizes))
    places: tuple[Any, ...] = (..., *(slice(None, None, stride) for stride in strides))
    dilated[places] = x
    pads = (np.array(w.shape[2:]) - 1) * dilations
    dilated = np.pad(dilated, [(0, 0), (0, 0), *zip(pads, pads, strict=True)])
    kernels = np.concatenate([kernel.swapaxes(0, 1) for kernel in np.split(w, group)])
    kernels = np.flip(kernels, tuple(range(2, w.ndim)))
    return _Convolution(dilated, kernels, group, dilations, max(*strides, *dilations) == 1)


def along(attributes: Any, name: str, rank: int) -> list[int]:
    """Return an attribute with a number for each spatial axis; its default is 1."""
    return list(attributes[name].ints) if name in attributes else [1] * rank


def _part(array: Array, starts: Sequence[int], sizes: Sequence[int]) -> Array:
    """Return the part of an array with given starts and sizes along its last axes."""
    slices = (slice(start, start + size) for start, size in zip(starts, sizes, strict=True))
    index: tuple[Any, ...] = (..., *slices)
    return array[index]


def _by_group(kernels: Array, group: int) -> Array:
    return kernels.reshape(group, -1, *kernels.shape[1:])


@dataclass(frozen=True, slots=True, eq=False)
class _Axis:
    """The matrices of Winograd's algorithm along an axis.

    Attributes:
        inverse: A^T, which transforms the products back, with a row for each output of a tile.
        kernel: G, which transforms a kernel.
        tile: B^T, which transforms a tile of the input.
        grain: a power of two; each element of ``tile`` is a multiple of ``grain``.
    """

    inverse: Array
    kernel: Array
    tile: Array
    grain: float

    @property
    def outputs(self) -> int:
        """The number of outputs of a tile."""
        return len(self.inverse)


def _transforms_exactly(x: Array, axes: Sequence[_Axis]) -> bool:
    """Return whether the transforms of all tiles are exact: the input has few binary digits."""
    growth = prod(float(np.abs(axis.tile).sum(axis=1).max()) for axis in axes)
    largest = growth * float(np.abs(x).max(initial=0.0))
    if not 0 < largest < np.inf:
        return not largest
    # float32 represents every multiple of a unit exactly, up to 2^24 units.
    unit = 2.0 ** ceil(log2(largest) - _DIGITS) / prod(axis.grain for axis in axes)
    if unit <= 0:
        return False
    # The unit is a power of two, so that the quotients are exact.
    multiples = x / unit
    return bool((multiples == np.rint(multiples)).all())


def _tiled_variance(x: Array, w: Array, group: int, axes: Sequence[_Axis], *, exact: bool) -> Array:
    """Return the variance of the error of each output, in units of u^2.

    Args:
        x: the input; its axes are batch, channels, and the spatial axes.
        w: the kernels; their axes are output channels, channels of the group, and the axes of
            space.
        group: the number of groups of channels.
        axes: the matrices along the spatial axes.
        exact: whether the transforms of the input's tiles are exact.
    """
    batch, outputs, channels, rank = len(x), len(w), w.shape[1], len(axes)
    sizes = [old - kernel + 1 for old, kernel in zip(x.shape[2:], w.shape[2:], strict=True)]
    counts = [-(-size // axis.outputs) for size, axis in zip(sizes, axes, strict=True)]
    tiled_sizes = [count * axis.outputs for count, axis in zip(counts, axes, strict=True)]
    missing = [tiled - size for tiled, size in zip(tiled_sizes, sizes, strict=True)]
    x = np.pad(x, [(0, 0), (0, 0), *((0, length) for length in missing)])
    reach = [len(axis.tile) for axis in axes]
    tiles = sliding_window_view(x, reach, tuple(range(2, x.ndim)))
    tiles = tiles[(slice(None), slice(None), *(slice(None, None, axis.outputs) for axis in axes))]

    # The first axes are those within a tile. Group, channels and the axis of all tiles follow.
    tile_axes = tuple(range(rank))
    tiles = np.moveaxis(tiles, range(-rank, 0), tile_axes).swapaxes(rank, rank + 1)
    v, v_variance = (
        array.reshape(prod(reach), group, channels, -1)
        for array in _transformed([axis.tile for axis in axes], tiles)
    )
    w = np.moveaxis(w, range(-rank, 0), tile_axes)
    u, u_variance = (
        array.reshape(prod(reach), group, -1, channels)
        for array in _transformed([axis.kernel for axis in axes], w)
    )
    v_variance = np.zeros_like(v_variance) if exact else v_variance
    # Each partial sum over the channels is rounded.
    variance = u**2 @ (v_variance + (1 + channels / 2) * v**2) + u_variance @ v**2
    _, variance = _transformed(
        [axis.inverse for axis in axes],
        *(array.reshape(*reach, outputs, batch, *counts) for array in (u @ v, variance)),
    )
    # Order the axes: first batch and output channel. Then, for each spatial axis, the axis of the
    # tiles and the axis within a tile.
    order = [1 + rank, rank, *(at for axis in tile_axes for at in (2 + rank + axis, axis))]
    variance = variance.transpose(order).reshape(batch, outputs, *tiled_sizes)
    return _part(variance, [0] * rank, sizes)


def _transformed(
    matrices: Sequence[Array], value: Array, variance: Array | None = None
) -> tuple[Array, Array]:
    """Multiply each of the first axes by a matrix; return the result and the variance of its error.

    Each term of a sum is assumed to be rounded once. The error is u times the magnitude of the
    term.
    """
    variance = np.zeros_like(value) if variance is None else variance
    last = len(matrices) - 1
    for matrix in reversed(matrices):
        # Each contraction moves its axis to the front. After the last contraction, the axes are in
        # order again.
        if matrix.size == 1:
            value, variance = np.moveaxis(value, last, 0), np.moveaxis(variance, last, 0)
        else:
            variance = np.tensordot(matrix**2, variance + value**2, (1, last))
            value = np.tensordot(matrix, value, (1, last))
    return value, variance


@cache
def _matrices(points: Sequence[Any], kernel: int) -> _Axis:
    """Return the matrices of Winograd's algorithm for given interpolation points and for infinity.

    Row i of each matrix belongs to the interpolation point p_i. In the tile's matrix, row i has the
    coefficients of the product of (x - p_j) over j != i. In the kernel's matrix, row i has the
    powers of p_i, divided by the product of (p_i - p_j) over j != i. Column i of the inverse has
    the powers of p_i.
    """
    if kernel == 1:
        identity = np.ones((1, 1), np.float32)
        return _Axis(identity, identity, identity, 1.0)
    places = [Fraction(point) for point in points]

    def powers(count: int) -> Array:
        infinity = [Fraction(0)] * (count - 1) + [Fraction(1)]
        rows = [[place**power for power in range(count)] for place in places]
        return np.array([*rows, infinity])

    inverse, kernels, rows = powers(len(places) + 2 - kernel), powers(kernel), []
    for index, place in enumerate(places):
        roots = places[:index] + places[index + 1 :]
        kernels[index] /= prod(place - root for root in roots)
        rows.append([*_coefficients(roots), Fraction(0)])
    rows.append(_coefficients(places))
    # All denominators are powers of two, because those of the points are.
    grain = 1 / max(coefficient.denominator for row in rows for coefficient in row)
    inverse, kernels, tile = (
        np.array(matrix).astype(np.float32) for matrix in (inverse.T, kernels, rows)
    )
    return _Axis(inverse, kernels, tile, grain)


def _coefficients(roots: Sequence[Fraction]) -> list[Fraction]:
    """Return the coefficients of the monic polynomial with given roots, lowest power first."""
    coefficients = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *coefficients]
        scaled = [*(coefficient * root for coefficient in coefficients), Fraction(0)]
        coefficients = [a - b for a, b in zip(shifted, scaled, strict=True)]
    return coefficients
