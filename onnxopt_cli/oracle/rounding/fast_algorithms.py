"""How far fast algorithms are off: convolutions by Winograd or Fourier, and transforms themselves.

They mix what a direct sum keeps apart, and so does their error. Its deviation is derived from what
they compute, where each rounding is independent of the others. ``docs/conditioned.md`` has the
equations and their sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from math import ceil, log2, prod, sqrt
from operator import add, mul
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from onnxopt_cli.core.values import Array

# Of 16 units, so that a limit is 4 times the deviation of Winograd's error if each rounding is as
# large as it may be. Roundings spread evenly, so that their deviation is about 0.4 of that.
_STANDARD_DEVIATIONS = 4 / 16
# By how much of a rounding each of log2(n) stages of a Fourier transform moves what it yields.
_STAGE, _STAGE_OF_CONVOLUTION = 1 / 3, 1 / 6
# A transform that is computed as sums of n terms is off by sqrt(n) / 10 roundings of the root mean
# square, and by sqrt(n) / 40 of the largest element.
_TERMS, _PARTIAL = 10, 40
# Where tiles of 6 and of 8 elements are interpolated, beside infinity: F(4, 3) and F(2, 5), F(6, 3)
# and F(4, 5).
_HALF = Fraction(1, 2)
_POINTS = ((0, 1, -1, 2, -2), (0, 1, -1, 2, -2, _HALF, -_HALF))
_LARGEST_KERNEL = 7
# Of a number in float32.
_DIGITS = 24
# Of so many output channels of a group Winograd's error is computed.
_CHANNELS = 16
# Tiles lie along the last axes; what lies along another is added up as channels are.
_TILED_AXES = 2


def transform_scale(node: Any, given: Sequence[Any], output: Array) -> Array:
    """Return to what a ``DFT`` or ``STFT`` is right: a share of the root mean square of each line.

    Two algorithms turn the largest element of a line into the others. Bluestein's, for lengths that
    are not powers of two, computes angles in the model's type and may not reduce them. A sum of
    terms, one after the other, has partial sums as large as 1 / pi of the largest element.

    Args:
        node: the node, as onnx's reference has it.
        given: its inputs.
        output: what it yields.
    """
    axis = transformed_axis(node, given)
    power = np.sum(_finite(output) ** 2, axis=-1, keepdims=True).mean(axis, keepdims=True)
    terms = max(2, _transform_length(node, given, output, axis))
    share = max(_STAGE * sqrt(log2(terms)), sqrt(terms) / _TERMS)
    magnitudes = np.sqrt(np.sum(_finite(output) ** 2, axis=-1, keepdims=True))
    largest = magnitudes.max(axis, keepdims=True, initial=0.0)
    turned = sqrt(terms) / _PARTIAL if terms & (terms - 1) == 0 else 1.0
    return np.maximum(share * np.sqrt(power), turned * largest)


def _transform_length(node: Any, given: Sequence[Any], output: Array, axis: int) -> int:
    """Return how many terms a spectrum has, of which ``onesided`` may leave out half."""
    if node.op_type == "STFT":
        window, length = [*given, None, None][2:4]
        return int(length.item()) if length is not None else len(window)
    asked = given[1].item() if len(given) > 1 and given[1] is not None else given[0].shape[axis]
    return max(int(asked), output.shape[axis])


def transformed_axis(node: Any, given: Sequence[Any]) -> int:
    """Return the axis of a ``DFT`` or ``STFT`` along which the output is a spectrum."""
    if node.op_type == "STFT":
        return -2
    axis = given[2].item() if len(given) > 2 and given[2] is not None else -2  # noqa: PLR2004
    return int({it.name: it.i for it in node.onnx_node.attribute}.get("axis", axis))


def convolution_scale(node: Any, given: Sequence[Any], output: Array) -> Array:
    """Return to what a ``Conv`` or ``ConvTranspose`` is right, whatever algorithm computes it.

    Args:
        node: the node, as onnx's reference has it.
        given: its inputs.
        output: what it yields.
    """
    x, w = map(_finite, given[:2])
    attributes = {it.name: it for it in node.onnx_node.attribute}
    whole = (_transposed if node.op_type == "ConvTranspose" else _padded)(x, w, attributes)
    scale = whole.fourier_error()[(...,) + (None,) * (output.ndim - 2)]
    tiled = whole.winograd_error() if whole.tiled else None
    if tiled is not None:
        kept = tiled
        if node.op_type == "ConvTranspose" and "output_shape" not in attributes:
            # Its padding is what is cut off, before or after tiles are laid.
            starts = list(attributes["pads"].ints if "pads" in attributes else ())
            starts = (starts or [0] * (output.ndim - 2))[: output.ndim - 2]
            kept = _part(tiled, starts, output.shape[2:])
            if any(starts) and kept.shape == output.shape:
                cut = whole.cut(starts, output.shape[2:]).winograd_error()
                kept = kept if cut is None else np.maximum(kept, cut)
        if kept.shape != output.shape:
            # Where borders lie that are cut off is for the reference to know.
            kept = tiled.max(tuple(range(2, tiled.ndim)), keepdims=True)
        scale = np.maximum(scale, kept)
    # Those of a network are kept at once, and few digits matter.
    return np.broadcast_to(scale.astype(np.float32), output.shape)


def mixes_infinite(node: Any, given: Sequence[Any]) -> bool:
    """Tell whether a fast algorithm may spread what is not finite in a node's operands."""
    count = {"Conv": 2, "ConvTranspose": 2, "DFT": 1, "STFT": 1}.get(node.op_type, 0)
    return not all(np.isfinite(it).all() for it in given[:count] if it.dtype.kind in "fV")


def spread(node: Any, given: Sequence[Any], output: Array, special: float) -> Array:
    """Return an output with NaN, or an infinity, wherever a fast algorithm may yield it.

    That is all of what is mixed with an operand that is not finite. What is NaN anyway stays so,
    and an infinity may become NaN, but none of the other sign.
    """
    size = output.astype(np.float64)
    if node.op_type in {"DFT", "STFT"}:
        axes = (transformed_axis(node, given), -1)
        mixed = ~np.isfinite(size).all(axes, keepdims=True) & ~np.isnan(size)
    else:
        x, w = (~np.isfinite(it.astype(np.float64)) for it in given[:2])
        group = next((it.i for it in node.onnx_node.attribute if it.name == "group"), 1)
        kernels = w.reshape(group, -1, *w.shape[1:])
        if node.op_type == "ConvTranspose":
            kernels = kernels.swapaxes(1, 2)
        images = x.reshape(len(x), group, 1, -1).any(-1)
        mixed = images | kernels.reshape(*kernels.shape[:2], -1).any(-1)
        mixed = mixed.reshape(*output.shape[:2], *[1] * (output.ndim - 2))
        if np.isinf(special):
            mixed = mixed & np.isfinite(size)
    return np.where(mixed, np.asarray(special, output.dtype), output)


def _finite(array: Array) -> Array:
    return np.where(np.isfinite(array), array, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class _Whole:
    """A convolution with stride 1, of which some elements may be left out afterwards.

    Attributes:
        x: the input with its padding: batch, channels, space.
        w: the kernels: output channels, channels of the group, space.
        group: into how many groups the channels are divided.
        apart: the dilation along each axis of space.
        tiled: whether Winograd's algorithms may compute it.
    """

    x: Array
    w: Array
    group: int
    apart: Sequence[int]
    tiled: bool

    @property
    def sizes(self) -> list[int]:
        """How many elements the output has along each axis of space."""
        each = zip(self.x.shape[2:], self.w.shape[2:], self.apart, strict=True)
        return [size - (kernel - 1) * apart for size, kernel, apart in each]

    def cut(self, starts: Sequence[int], sizes: Sequence[int]) -> _Whole:
        """Return the convolution that yields a part of the output."""
        reach = ((n - 1) * apart for n, apart in zip(self.w.shape[2:], self.apart, strict=True))
        return replace(self, x=_part(self.x, starts, [*map(add, sizes, reach)]))

    def fourier_error(self) -> Array:
        """Return a share of the deviation of the error for each batch and output channel.

        The errors of both transformed operands are white, and as large as the operands are. Those
        of the transform back are as large as the output.
        """
        space = tuple(range(2, self.x.ndim))
        norms = _by_group(np.sum(self.w**2, axis=space), self.group)
        largest = np.max(self.x**2, axis=space).reshape(len(self.x), self.group, -1, 1)
        power = np.mean(self._output() ** 2, axis=space)
        operands = (norms @ largest).reshape(power.shape)
        stages = log2(max(2, prod(self.sizes)))
        return np.asarray(_STAGE_OF_CONVOLUTION * np.sqrt(stages * (operands + power)))

    def _output(self) -> Array:
        found = np.zeros((len(self.x), len(self.w), *self.sizes))
        for place in np.ndindex(*self.w.shape[2:]):
            terms = _part(self.x, [*map(mul, place, self.apart)], self.sizes)
            terms = terms.reshape(len(self.x), self.group, -1, prod(self.sizes))
            kernels = _by_group(self.w[(..., *place)], self.group)
            found += (kernels @ terms).reshape(found.shape)
        return found

    def winograd_error(self) -> Array | None:
        """Return a share of the deviation of the error of each element; None if nobody tiles it.

        Of many output channels some are computed. Others are as large by their kernels' norms.
        """
        kernels = self.w.shape[2:][-_TILED_AXES:]
        if max(kernels) == 1 or max(kernels) > _LARGEST_KERNEL:
            return None
        w = _by_group(self.w, self.group)
        norms = np.sqrt(np.sum(w**2, axis=tuple(range(2, w.ndim)), keepdims=True))
        w = np.divide(w, norms, out=np.zeros_like(w), where=norms > 0)
        some = np.unique(np.linspace(0, w.shape[1] - 1, _CHANNELS).astype(int))
        if len(some) < w.shape[1]:
            w = w[:, some]
        # Few digits matter, and no square leaves the range.
        most = np.abs(self.x).max(initial=0.0) or 1.0
        x, w = (self.x / most).astype(np.float32), w.reshape(-1, *self.w.shape[1:])
        w = w.astype(np.float32)
        for _ in self.sizes[:-_TILED_AXES]:
            # Each place along the axis is a batch, each term a channel.
            terms = np.moveaxis(sliding_window_view(x, w.shape[2], 2), (2, -1), (1, 3))
            x = terms.reshape(-1, w.shape[2] * x.shape[1], *x.shape[3:])
            w = w.reshape(len(w), -1, *w.shape[3:])
        found = []
        for points in _POINTS:
            if max(kernels) > len(points):
                continue
            axes = [_matrices(points, it) for it in kernels]
            # A tile may be larger than the image: what it yields beyond is cut off.
            exact = _transforms_exactly(self.x, axes)
            found.append(_tiled_variance(x, w, self.group, axes, exact=exact))
        if not found:
            return None
        error = _STANDARD_DEVIATIONS * most * np.sqrt(np.maximum.reduce(found))
        error = error.reshape(len(self.x), *self.sizes[:-_TILED_AXES], *error.shape[1:])
        # Batch, group, output channels of the group, space.
        error = np.moveaxis(error, -1 - len(kernels), 1)
        error = error.reshape(len(error), self.group, -1, *self.sizes)
        if error.shape[2] < norms.shape[1]:
            error = error.max(axis=2, keepdims=True)
        error = error * norms.reshape(1, self.group, -1, *[1] * len(self.sizes))
        return np.asarray(error.reshape(len(error), -1, *self.sizes))


def _padded(x: Array, w: Array, attributes: Any) -> _Whole:
    """Return the convolution of which a ``Conv`` keeps some elements."""
    rank = x.ndim - 2
    strides, apart = (_along(attributes, name, rank) for name in ("strides", "dilations"))
    mode = attributes["auto_pad"].s.decode() if "auto_pad" in attributes else "NOTSET"
    around = np.zeros((2, rank), int)
    if mode.startswith("SAME"):
        sizes = np.array(x.shape[2:])
        reach = (np.array(w.shape[2:]) - 1) * apart + 1
        total = np.maximum((-(-sizes // strides) - 1) * strides + reach - sizes, 0)
        around[:] = total // 2, total - total // 2
        around = around if mode == "SAME_UPPER" else around[::-1]
    elif mode == "NOTSET" and "pads" in attributes:
        around[:] = np.reshape(attributes["pads"].ints, (2, rank))
    x = np.pad(x, [(0, 0), (0, 0), *around.T.tolist()])
    group = attributes["group"].i if "group" in attributes else 1
    return _Whole(x, w, group, apart, max(*strides, *apart) == 1)


def _transposed(x: Array, w: Array, attributes: Any) -> _Whole:
    """Return the convolution that yields all of a ``ConvTranspose``."""
    rank = x.ndim - 2
    strides, apart = (_along(attributes, name, rank) for name in ("strides", "dilations"))
    group = attributes["group"].i if "group" in attributes else 1
    sizes = (np.array(x.shape[2:]) - 1) * strides + 1
    spread = np.zeros((*x.shape[:2], *sizes))
    places: tuple[Any, ...] = (..., *(slice(None, None, it) for it in strides))
    spread[places] = x
    around = (np.array(w.shape[2:]) - 1) * apart
    spread = np.pad(spread, [(0, 0), (0, 0), *zip(around, around, strict=True)])
    kernels = np.concatenate([it.swapaxes(0, 1) for it in np.split(w, group)])
    kernels = np.flip(kernels, tuple(range(2, w.ndim)))
    return _Whole(spread, kernels, group, apart, max(*strides, *apart) == 1)


def _along(attributes: Any, name: str, rank: int) -> list[int]:
    return list(attributes[name].ints) if name in attributes else [1] * rank


def _part(array: Array, starts: Sequence[int], sizes: Sequence[int]) -> Array:
    """Return so many elements along each of the last axes."""
    index: tuple[Any, ...] = (..., *(slice(a, a + n) for a, n in zip(starts, sizes, strict=True)))
    return array[index]


def _by_group(kernels: Array, group: int) -> Array:
    return kernels.reshape(group, -1, *kernels.shape[1:])


@dataclass(frozen=True, slots=True, eq=False)
class _Axis:
    """What Winograd's algorithm multiplies by along an axis.

    Attributes:
        back: the matrix that transforms the products back, a row for each output of a tile.
        kernel: the one that transforms a kernel.
        tile: the one that transforms a tile of the input.
        grain: a power of two of which the elements of ``tile`` are multiples.
    """

    back: Array
    kernel: Array
    tile: Array
    grain: float

    @property
    def kept(self) -> int:
        """How many outputs a tile has."""
        return len(self.back)


def _transforms_exactly(x: Array, axes: Sequence[_Axis]) -> bool:
    """Return whether tiles of an input have so few binary digits that no sum of them rounds."""
    growth = prod(float(np.abs(it.tile).sum(axis=1).max()) for it in axes)
    largest = growth * float(np.abs(x).max(initial=0.0))
    if not 0 < largest < np.inf:
        return not largest
    # Multiples of a unit are exact in float32 up to 2^24 units.
    unit = 2.0 ** ceil(log2(largest) - _DIGITS) / prod(it.grain for it in axes)
    return bool(unit > 0 and (x % unit == 0).all())


def _tiled_variance(x: Array, w: Array, group: int, axes: Sequence[_Axis], *, exact: bool) -> Array:
    """Return the variance of the error of each output, in squares of a rounding.

    Args:
        x: the input: batch, channels, space.
        w: the kernels: output channels, channels of the group, space.
        group: into how many groups the channels are divided.
        axes: by what the axes of space are multiplied.
        exact: whether transforming tiles of the input rounds nothing.
    """
    batch, outputs, channels, rank = len(x), len(w), w.shape[1], len(axes)
    sizes = [old - kernel + 1 for old, kernel in zip(x.shape[2:], w.shape[2:], strict=True)]
    counts = [-(-size // it.kept) for size, it in zip(sizes, axes, strict=True)]
    missing = [n * it.kept - size for n, it, size in zip(counts, axes, sizes, strict=True)]
    x = np.pad(x, [(0, 0), (0, 0), *((0, it) for it in missing)])
    reach = [len(it.tile) for it in axes]
    tiles = sliding_window_view(x, reach, tuple(range(2, x.ndim)))
    tiles = tiles[(slice(None), slice(None), *(slice(None, None, it.kept) for it in axes))]

    # The elements of a tile come first, then group, channels and all tiles.
    within = tuple(range(rank))
    tiles = np.moveaxis(tiles, range(-rank, 0), within).swapaxes(rank, rank + 1)
    v, of_v = (
        it.reshape(prod(reach), group, channels, -1)
        for it in _transformed([it.tile for it in axes], tiles)
    )
    u, of_u = (
        it.reshape(prod(reach), group, -1, channels)
        for it in _transformed([it.kernel for it in axes], np.moveaxis(w, range(-rank, 0), within))
    )
    of_v = np.zeros_like(of_v) if exact else of_v
    # Of the sums over channels each partial one rounds.
    of_product = u**2 @ (of_v + (1 + channels / 2) * v**2) + of_u @ v**2
    _, variance = _transformed(
        [it.back for it in axes],
        *(it.reshape(*reach, outputs, batch, *counts) for it in (u @ v, of_product)),
    )
    # Batch and output channel, then each axis: tile, and place within.
    order = [1 + rank, rank, *(at for axis in within for at in (2 + rank + axis, axis))]
    whole = [n * it.kept for n, it in zip(counts, axes, strict=True)]
    variance = variance.transpose(order).reshape(batch, outputs, *whole)
    return _part(variance, [0] * rank, sizes)


def _transformed(
    matrices: Sequence[Array], value: Array, variance: Array | None = None
) -> tuple[Array, Array]:
    """Multiply the first axes by a matrix each; return the variance of roundings, too.

    Each term of a sum rounds once, by as much as it is large.
    """
    variance = np.zeros_like(value) if variance is None else variance
    last = len(matrices) - 1
    for matrix in reversed(matrices):
        # What is contracted comes first; after all of them the axes are in order again.
        if matrix.size == 1:
            value, variance = np.moveaxis(value, last, 0), np.moveaxis(variance, last, 0)
        else:
            variance = np.tensordot(matrix**2, variance + value**2, (1, last))
            value = np.tensordot(matrix, value, (1, last))
    return value, variance


@cache
def _matrices(points: Sequence[Any], kernel: int) -> _Axis:
    """Return what a tile is multiplied by that is interpolated at points and infinity.

    The tile's rows are the coefficients of ``prod(x - p_j)`` over all other points. The kernel's
    are powers of its point, divided by ``prod(p_i - p_j)``. The others are powers of the points.
    """
    if kernel == 1:
        one = np.ones((1, 1), np.float32)
        return _Axis(one, one, one, 1.0)
    places = [Fraction(it) for it in points]

    def powers(count: int) -> Array:
        last = [Fraction(0)] * (count - 1) + [Fraction(1)]
        rows = [[it**power for power in range(count)] for it in places]
        return np.array([*rows, last])

    back, kernels, rows = powers(len(places) + 2 - kernel), powers(kernel), []
    for at, place in enumerate(places):
        others = places[:at] + places[at + 1 :]
        kernels[at] /= prod(place - it for it in others)
        rows.append([*_coefficients(others), Fraction(0)])
    rows.append(_coefficients(places))
    # Denominators are powers of two, as those of the points are.
    grain = 1 / max(it.denominator for row in rows for it in row)
    back, kernels, tile = (np.array(it).astype(np.float32) for it in (back.T, kernels, rows))
    return _Axis(back, kernels, tile, grain)


def _coefficients(roots: Sequence[Fraction]) -> list[Fraction]:
    """Return those of the polynomial with these roots and leading 1, the lowest first."""
    found = [Fraction(1)]
    for root in roots:
        shifted, scaled = [Fraction(0), *found], [*(it * root for it in found), Fraction(0)]
        found = [a - b for a, b in zip(shifted, scaled, strict=True)]
    return found
