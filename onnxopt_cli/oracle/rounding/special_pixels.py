"""NaN and infinities among the pixels of an interpolation.

The weight of a pixel is 0 if the distance from a point to the pixel is the radius of the
interpolation. An implementation may skip this pixel or multiply it by 0. If the pixel is NaN or
infinite, the product is NaN. Linear interpolation may also be computed as ``a + t * (b - a)``,
which is NaN if a is infinite. The specification prescribes none of these forms, so all of their
results are right. ``RoiAlign`` averages interpolations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from onnx import helper

from onnxopt_cli.core.values import Array
from onnxopt_cli.oracle.corrections import grids
from onnxopt_cli.oracle.corrections.corrected_reference import INTERPOLATING
from onnxopt_cli.oracle.patching import reference_modules, replaced

# For each mode, the distance from a point to the farthest pixel whose weight may be nonzero.
_RADIUS = {b"linear": 1, b"bilinear": 1, b"cubic": 2, b"bicubic": 2}
# If a coordinate should be an integer but is rounded, a weight that should be 0 is less than
# _NEGLIGIBLE.
_NEGLIGIBLE = 2.0**-12
# The operator that averages interpolations over regions.
_REGIONS = "RoiAlign"
# An index beyond the end of all axes.
_BEYOND = np.iinfo(np.int64).max // 2


def interpolates_special(node: Any, operands: Sequence[Any]) -> bool:
    """Return whether a node interpolates between pixels of which some are NaN or infinite."""
    if node.op_type not in {*INTERPOLATING, _REGIONS} or operands[0].dtype.kind not in "fV":
        return False
    return _radius(node) > 0 and not np.isfinite(operands[0]).all()


def with_special_pixels(
    node: Any,
    compute: Callable[..., Sequence[Any]],
    operands: Sequence[Any],
    output: Array,
    *,
    skips: bool,
) -> Array:
    """Return another right output of an interpolation with NaN or infinite pixels.

    Args:
        node: the node.
        compute: takes operands and returns the outputs of the node.
        operands: its operands.
        output: its output.
        skips: whether pixels of weight 0 are skipped. Otherwise, an element is NaN if one of its
            pixels is NaN or infinite, even if the weight of this pixel is 0.
    """
    x, *other_operands = operands
    if skips and node.op_type == _REGIONS:
        return _without_zeros(compute, operands, output)
    if skips:
        with _skipping_zeros(), np.errstate(invalid="ignore"):
            return np.asarray(compute(x, *other_operands)[0])
    # A filter that is stretched may begin and end at a pixel of weight 0.
    margin = 1 if _attribute(node, "antialias") else 0
    with _marking(_radius(node), margin):
        (marked,) = compute((~np.isfinite(x)).astype(x.dtype), *other_operands)
    return np.where(marked != 0, np.asarray(np.nan, output.dtype), output)


def _attribute(node: Any, name: str) -> Any:
    """Return the value of an attribute of a node; None if the node does not set it."""
    values = (
        helper.get_attribute_value(attribute)
        for attribute in node.onnx_node.attribute
        if attribute.name == name and not attribute.ref_attr_name
    )
    return next(values, None)


def _radius(node: Any) -> int:
    """Return the radius of a node's interpolation; 0 if it selects the nearest pixel."""
    if node.op_type == _REGIONS:
        return 1
    default = b"linear" if node.op_type == "GridSample" else b"nearest"
    return _RADIUS.get(_attribute(node, "mode") or default, 0)


def _without_zeros(
    compute: Callable[..., Sequence[Any]], operands: Sequence[Any], output: Array
) -> Array:
    """Return the output of RoiAlign if pixels of weight 0 are skipped. No weight is negative."""
    x, *other_operands = operands
    parts = np.where(np.isfinite(x), x, 0), np.isposinf(x), np.isneginf(x), np.isnan(x)
    finite, plus, minus, nan = (
        np.asarray(compute(part.astype(x.dtype), *other_operands)[0]) for part in parts
    )
    is_plus, is_minus = plus > _NEGLIGIBLE, minus > _NEGLIGIBLE
    is_nan = (nan > _NEGLIGIBLE) | (is_plus & is_minus)
    values = np.select([is_nan, is_plus, is_minus], [np.nan, np.inf, -np.inf], finite)
    return values.astype(output.dtype)


def _skipping_zeros() -> AbstractContextManager[None]:
    """Skip pixels of weight 0 in a ``with`` block."""
    along_axis = reference_modules().op_resize._interpolate_1d_along_axis  # noqa: SLF001

    def resized(data: Array, axis: int, *args: Any, **kwargs: Any) -> Array:
        finite = along_axis(np.where(np.isfinite(data), data, 0.0), axis, *args, **kwargs)
        weights = _resize_weights(along_axis, data.shape[axis], args, kwargs)

        def any_of(is_weighted: Array, is_special: Array) -> Array:
            counts = np.tensordot(is_weighted.astype(float), is_special.astype(float), (1, axis))
            return np.moveaxis(counts, 0, axis) > 0

        above, below = weights > _NEGLIGIBLE, weights < -_NEGLIGIBLE
        plus, minus = np.isposinf(data), np.isneginf(data)
        is_plus = any_of(above, plus) | any_of(below, minus)
        is_minus = any_of(above, minus) | any_of(below, plus)
        is_nan = any_of(above | below, np.isnan(data)) | (is_plus & is_minus)
        return np.select([is_nan, is_plus, is_minus], [np.nan, np.inf, -np.inf], finite)

    def weighted_sum(weights: Array, values: Array) -> Array:
        is_used = (np.abs(weights) > _NEGLIGIBLE) | np.isfinite(values)
        return np.asarray(np.where(is_used, weights * values, 0).sum(axis=-1, dtype=values.dtype))

    return replaced(
        (reference_modules().op_resize, "_interpolate_1d_along_axis", resized),
        (grids, "weighted_sum", weighted_sum),
    )


def _marking(radius: int, margin: int) -> AbstractContextManager[None]:
    """Replace interpolation in a ``with`` block by a search for marked pixels.

    In the block, the images have 1 for each marked pixel and 0 for all others. The output has a
    positive number for each point with a marked pixel, and 0 for all others.

    Args:
        radius: the distance from a point to the farthest pixel whose weight may be nonzero.
        margin: a further distance of pixels that ``Resize`` multiplies by 0.
    """
    along_axis = reference_modules().op_resize._interpolate_1d_along_axis  # noqa: SLF001

    def resized(data: Array, axis: int, *args: Any, **kwargs: Any) -> Array:
        weights = _resize_weights(along_axis, data.shape[axis], args, kwargs)
        places = np.broadcast_to(np.arange(weights.shape[1]), weights.shape)
        first, last = _range(places, np.abs(weights) > _NEGLIGIBLE, radius)
        within = (places >= first - margin) & (places <= last + margin) & (first <= last)
        return np.moveaxis(np.tensordot(within.astype(float), data, (1, axis)), 0, axis)

    def sampled(image: Array, coordinates: Array, axes: Sequence[Any], mode: str) -> Array:
        return _marks_at(image, coordinates, axes, mode, radius=radius)

    return replaced(
        (reference_modules().op_resize, "_interpolate_1d_along_axis", resized),
        (grids, "_interpolated", sampled),
        (reference_modules().op_roi_align, "PreCalc", _MarkedCorners),
    )


class _MarkedCorners:
    """The corners of a point of RoiAlign, each with the weight 1, or 0 outside of the image.

    onnx's reference sets ``w1`` first. Outside of the image, it sets the integer 0.
    """

    pos1 = pos2 = pos3 = pos4 = 0
    w1 = w2 = w3 = w4 = 0.0

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "w1":
            value = float(not isinstance(value, int))
        elif name.startswith("w"):
            value = self.w1
        super().__setattr__(name, value)


def _resize_weights(
    along_axis: Callable[..., Array], length: int, args: Sequence[Any], kwargs: dict[str, Any]
) -> Array:
    """Return the weights with which Resize interpolates along an axis.

    Args:
        along_axis: the function of onnx's reference that interpolates along an axis.
        length: the length of the axis.
        args: its other positional arguments.
        kwargs: its named arguments.

    Returns:
        One row for each element of the output, with one weight per pixel. The weights of an element
        outside of the region of ``tf_crop_and_resize`` are 0.
    """
    return along_axis(np.eye(length), 0, *args, **kwargs | {"extrapolation_value": 0.0})


def _range(places: Array, is_used: Array, radius: int) -> tuple[Array, Array]:
    """Return the first and last pixels that a point may read along an axis.

    If a point has only one pixel with a nonzero weight, the point coincides with this pixel. All
    other pixels within the radius then have the weight 0.

    Args:
        places: the places of pixels on the axis. The last axis holds the pixels of a point.
        is_used: whether their weights are nonzero; of the same shape.
        radius: the radius of the interpolation.

    Returns:
        Two arrays whose last axes have the length 1. If no pixel of a point has a nonzero weight,
        its first pixel is greater than its last pixel.
    """
    first = np.where(is_used, places, _BEYOND).min(axis=-1, keepdims=True)
    last = np.where(is_used, places, -_BEYOND).max(axis=-1, keepdims=True)
    around = np.where(first == last, radius, 0)
    return first - around, last + around


def _marks_at(
    image: Array, coordinates: Array, axes: Sequence[Any], mode: str, *, radius: int
) -> Array:
    """Return 1 for each channel and point of GridSample with a marked pixel, and 0 for all others.

    Args:
        image: an image with 1 for each marked pixel; its axes are the channels, then the axes of
            space.
        coordinates: the coordinates of the points, one row per spatial axis.
        axes: the spatial axes.
        mode: the interpolation.
        radius: its radius.
    """
    begin, taps = grids.TAPS[mode]
    weights_of = grids.cubic_weights if mode == "cubic" else grids.linear_weights
    rank = len(axes)
    indices, has_pixels = [], np.ones(coordinates.shape[1], bool)
    for axis, (rule, coordinate) in enumerate(zip(axes, coordinates, strict=True)):
        floor = np.floor(coordinate)
        steps = np.arange(begin, begin + taps)
        places, inside = rule.places(np.add.outer(floor.astype(np.int64), steps))
        is_used = inside & (np.abs(weights_of(coordinate - floor)) > _NEGLIGIBLE)
        first, last = _range(places, is_used, radius)
        has_pixels &= (first <= last)[:, 0]
        within = np.minimum(first + np.arange(taps + 2 * radius), last)
        shape = (-1, *[within.shape[1] if place == axis else 1 for place in range(rank)])
        indices.append(np.clip(within, 0, image.shape[1 + axis] - 1).reshape(shape))
    every_channel: Any = (slice(None), *indices)
    marks = image[every_channel].max(axis=tuple(range(2, 2 + rank)))
    return np.where(has_pixels, marks, np.zeros((), image.dtype))
