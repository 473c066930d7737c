"""GridSample, computed for all points together.

onnx's reference computes one point after the other, and rounds coordinates to float32. In this
module, coordinates have the type of the grid.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array

# The largest number of pixels in memory at the same time.
_MAX_PIXELS = 1 << 22
# Coordinates beyond _FARTHEST are replaced by _FARTHEST, which can be converted to an integer.
# These coordinates, including infinite ones, are outside of all images.
_FARTHEST = 2.0**52
#: For each interpolation mode, the distance of the first pixel from the floor of the coordinate,
#: and the number of pixels along an axis.
TAPS = {"nearest": (0, 1), "linear": (0, 2), "cubic": (-1, 4)}


def sampled(x: Array, grid: Array, mode: str, padding: str, *, align_corners: bool) -> Array:
    """Return the values of images at the points of a grid.

    Args:
        x: the images; their axes are batch, channels, and the spatial axes.
        grid: for each image, the coordinates of points, between -1 and 1. The last axis of the grid
            holds the coordinates of a point, beginning with the coordinate along the last axis of
            space.
        mode: "nearest", "linear" or "cubic".
        padding: "zeros", "border" or "reflection".
        align_corners: whether -1 and 1 are the centers of the first and last pixels; otherwise,
            they are the outer edges of these pixels.

    Raises:
        ArithmeticError: if a coordinate is NaN, or cannot be reflected.
    """
    values = np.zeros((*x.shape[:2], prod(grid.shape[1:-1])), x.dtype)
    if not values.size:
        return values.reshape(*x.shape[:2], *grid.shape[1:-1])
    sizes = x.shape[2:]
    points = grid.reshape(len(x), -1, len(sizes))[..., ::-1]
    axes = [_Axis(size, padding, align_corners=align_corners) for size in sizes]
    coordinates = np.stack([axis.coordinates(points[..., k], mode) for k, axis in enumerate(axes)])
    block = max(1, _MAX_PIXELS // (x.shape[1] * TAPS[mode][1] ** len(sizes)))
    for place, image in enumerate(x):
        for start in range(0, values.shape[-1], block):
            part = coordinates[:, place, start : start + block]
            values[place, :, start : start + block] = _interpolated(image, part, axes, mode)
    return values.reshape(*x.shape[:2], *grid.shape[1:-1])


def moves_to_border(mode: str) -> bool:  # noqa: ARG001 - a second reading depends on the mode
    """Return whether the padding "border" moves points outside of an image to its border.

    Otherwise, the points are not moved, but the indices of the pixels that are read are clipped.
    """
    return True


class _Axis:
    """A spatial axis, with the rule for coordinates outside of an image."""

    def __init__(self, size: int, padding: str, *, align_corners: bool) -> None:
        self._size, self._padding, self._aligned = size, padding, align_corners
        self._least, self._largest = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)

    def coordinates(self, n: Array, mode: str) -> Array:
        """Return coordinates in pixels, computed from coordinates between -1 and 1."""
        if self._aligned:
            x = (n + 1) / 2.0 * (self._size - 1)
        else:
            x = ((n + 1) * self._size - 1) / 2.0
        x = np.rint(x) if mode == "nearest" else x
        if self._padding == "reflection":
            x = self._reflected(x).astype(x.dtype)
        elif self._padding == "border" and moves_to_border(mode):
            outside = (x < self._least) | (x > self._largest)
            x = np.where(outside, np.clip(x, 0, self._size - 1), x)
        if np.isnan(x).any():
            raise ArithmeticError("a coordinate of GridSample is NaN")
        return np.clip(x, -_FARTHEST, _FARTHEST)

    def places(self, indices: Array) -> tuple[Array, Array]:
        """Return indices moved into the image, and a mask that is false for padding by zeros."""
        inside = (indices >= 0) & (indices < self._size)
        if self._padding == "zeros":
            return np.where(inside, indices, 0), inside
        if self._padding == "reflection":
            indices = self._reflected(indices).astype(np.int64)
        return np.clip(indices, 0, self._size - 1), np.ones_like(inside)

    def _reflected(self, x: Array) -> Array:
        """Return coordinates, reflected at the borders until they are in the image."""
        x = x.astype(np.float64)
        below, above = x < self._least, x > self._largest
        length = self._largest - self._least
        distance = np.where(below, self._least - x, x - self._largest)[below | above]
        if not distance.size:
            return x
        if not length or not np.isfinite(distance).all():
            raise ArithmeticError("a coordinate of GridSample cannot be reflected")
        periods = np.trunc(distance / length)
        remainder = distance - periods * length
        from_least = below[below | above] == (periods % 2 == 0)
        x[below | above] = np.where(from_least, self._least + remainder, self._largest - remainder)
        return x


def _interpolated(image: Array, coordinates: Array, axes: list[_Axis], mode: str) -> Array:
    """Return the values of all channels of an image at points.

    Args:
        image: the image; its axes are the channels, then the spatial axes.
        coordinates: the coordinates of the points, one row per spatial axis.
        axes: the spatial axes.
        mode: the interpolation.
    """
    rank, (first, taps) = len(axes), TAPS[mode]
    with np.errstate(invalid="ignore"):
        floors = np.floor(coordinates).astype(np.int64)
    indices, inside = [], []
    for axis, (rule, floor) in enumerate(zip(axes, floors, strict=True)):
        place, is_inside = rule.places(np.add.outer(floor, np.arange(first, first + taps)))
        shape = (-1, *[taps if shape_axis == axis else 1 for shape_axis in range(rank)])
        indices.append(place.reshape(shape))
        inside.append(is_inside.reshape(shape))
    every_channel: Any = (slice(None), *indices)
    pixels = image[every_channel]
    values = np.where(reduce(np.logical_and, inside), pixels, np.zeros((), image.dtype))
    if mode == "nearest":
        return values.reshape(values.shape[:2])
    weights: Callable[[Array], Array] = cubic_weights if mode == "cubic" else linear_weights
    ratios = coordinates - floors.astype(coordinates.dtype)
    for ratio in ratios[::-1]:
        # The weights are computed separately for each line of pixels.
        of_lines = np.broadcast_to(
            ratio.reshape(-1, *[1] * (values.ndim - 3)), (*values.shape[:-1],)
        )
        values = weighted_sum(weights(of_lines).astype(image.dtype), values)
    return values


def weighted_sum(weights: Array, values: Array) -> Array:
    """Return the sums of products of weights and values along the last axis."""
    return np.asarray(np.einsum("...i,...i->...", weights, values))


def linear_weights(ratio: Array) -> Array:
    """Return the weights of two pixels along a new last axis.

    Args:
        ratio: the distances of points from the first pixel.
    """
    return np.stack([1 - ratio, ratio], axis=-1)


def cubic_weights(ratio: Array) -> Array:
    """Return the weights of four pixels along a new last axis (Keys 1981, with a = -0.75).

    Args:
        ratio: the distances of points from the second pixel.
    """
    a = -0.75

    def outer(x: Array) -> Array:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    def inner(x: Array) -> Array:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    weights = [outer(ratio + 1), inner(ratio), inner(1 - ratio), outer(2 - ratio)]
    return np.stack(weights, axis=-1)
