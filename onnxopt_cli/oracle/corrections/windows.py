"""Convolutions as the specification has them, many windows at once.

onnx's reference looks up each element of each window. Of a network that is most of the time that
asking takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from onnxopt_cli.core.values import Array
from onnxopt_cli.oracle.corrections.replacements import instead_of

# Of batches, channels, rows and columns.
_IMAGE_AXES = 4


@instead_of("op_conv.im2col")
def fast_columns(
    _kept: Any,
    x: Array,
    kernel_shape: Sequence[int],
    pads: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int] | None = None,
) -> tuple[Array, tuple[int, ...]]:
    """Return the windows of a convolution as columns, and how many there are: ``im2col``."""
    rank = len(kernel_shape)
    apart = np.array(dilations or [1] * rank)
    reach = (np.array(kernel_shape) - 1) * apart + 1
    around = zip(pads[:rank], pads[rank:], strict=True)
    windows = strided_windows(np.pad(x, [(0, 0), (0, 0), *around]), reach, np.array(strides), apart)
    count = windows.shape[2 : 2 + rank]
    axes = (1, *range(2 + rank, 2 + 2 * rank), 0, *range(2, 2 + rank))
    columns = windows.transpose(axes).reshape(-1, len(x) * prod(count))
    return np.ascontiguousarray(columns), count


@instead_of(
    "op_col2im.col2im_naive_implementation", "op_conv_transpose.col2im_naive_implementation"
)
def fast_image(
    kept: Any,
    columns: Array,
    image_shape: Sequence[int],
    kernel_shape: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    strides: Sequence[int],
) -> Array:
    """Add up the columns of a transposed convolution: ``col2im``.

    What lies at one place of all windows is added at once.
    """
    apart, step, around = np.array(dilations), np.array(strides), np.reshape(pads, (2, -1))
    sizes = np.array(image_shape) + around.sum(axis=0)
    count = (sizes - (np.array(kernel_shape) - 1) * apart - 1) // step + 1
    if around.min() < 0 or columns.shape != (prod(kernel_shape), prod(count)):
        result: Array = kept(columns, image_shape, kernel_shape, dilations, pads, strides)
        return result
    whole = np.zeros(sizes, columns.dtype)
    for place, column in zip(np.ndindex(*kernel_shape), columns, strict=True):
        start = np.array(place) * apart
        whole[tuple(map(slice, start, start + step * count, step))] += column.reshape(count)
    return whole[tuple(map(slice, around[0], around[0] + image_shape))]


@instead_of("op_conv_transpose.ConvTranspose._run")
def _grouped(
    node: Any, kept: Any, x: Array, w: Array, b: Array | None = None, group: int = 1, **rest: Any
) -> tuple[Array]:
    """Transpose the convolutions of each group with its channels and biases.

    Where the output's shape is stated, the padding follows from it.
    """
    if rest.get("output_shape") or rest["auto_pad"].startswith("SAME"):
        rest |= {"pads": _padding(x, w, **rest)}
    biases = [None] * group if b is None else np.split(b, group)
    parts = zip(np.split(x, group, 1), np.split(w, group), biases, strict=True)
    return (np.concatenate([kept(node, *it, group=1, **rest)[0] for it in parts], axis=1),)


def _padding(
    x: Array,
    w: Array,
    auto_pad: str,
    output_shape: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    **_: Any,
) -> list[int]:
    """Return the padding of a transposed convolution whose output has a shape."""
    sizes, ones = np.array(x.shape[2:]), [1] * (x.ndim - 2)
    step, apart = np.array(strides or ones), np.array(dilations or ones)
    reach = (np.array(w.shape[2:]) - 1) * apart + 1
    shape = np.array(output_shape or sizes * step)
    total = step * (sizes - 1) + np.array(output_padding or 0) + reach - shape
    half = total // 2
    front = half if auto_pad == "SAME_UPPER" else total - half
    return [*front.tolist(), *(total - front).tolist()]


@instead_of("op_deform_conv.DeformConv._run")
def _deformed(
    node: Any,
    kept: Any,
    x: Array,
    w: Array,
    offset: Array,
    b: Array | None = None,
    mask: Array | None = None,
    **about: Any,
) -> Any:
    """Interpolate at the pixels' own coordinates: the reference normalizes them, in float32."""
    if x.ndim != _IMAGE_AXES:
        return kept(node, x, w, offset, b, mask, **about)
    count, group = about.get("offset_group") or 1, about.get("group") or 1
    (top, left, *_), step = about.get("pads") or [0] * 4, about.get("strides") or [1, 1]
    apart, kernel, shape = about.get("dilations") or [1, 1], w.shape[2:], offset.shape[2:]
    moved = offset.reshape(len(x), count, *kernel, 2, *shape)
    places = []
    for axis, before in enumerate((top, left)):
        inside = np.arange(kernel[axis]) * apart[axis]
        outside = np.arange(shape[axis]) * step[axis] - before
        grid = np.add.outer(inside, outside)
        grid = grid[:, None, :, None] if axis == 0 else grid[None, :, None, :]
        places.append(moved[:, :, :, :, axis] + grid)
    images = x.reshape(len(x), count, -1, *x.shape[2:])
    columns = _bilinear(images, *places)
    if mask is not None:
        columns = columns * mask.reshape(len(x), count, 1, *kernel, *shape)
    columns = columns.reshape(len(x), group, -1, *kernel, *shape)
    weights = w.reshape(group, -1, *w.shape[1:])
    found = np.einsum("ngcijhw,gocij->ngohw", columns, weights)
    found = found.reshape(len(x), -1, *shape)
    found = found if b is None else found + b.reshape(-1, 1, 1)
    return (found.astype(x.dtype),)


def _bilinear(images: Array, y: Array, x: Array) -> Array:
    """Interpolate images of groups at places of each group; what lies outside is zero."""
    rows, columns = images.shape[-2:]
    flat = images.reshape(*images.shape[:-2], -1)
    total: Any = 0
    for down, right in ((0, 0), (0, 1), (1, 0), (1, 1)):
        row, column = np.floor(y) + down, np.floor(x) + right
        weight = (1 - np.abs(y - row)) * (1 - np.abs(x - column))
        inside = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
        at = np.where(inside, row * columns + column, 0).astype(np.int64)
        shape = (*at.shape[:2], images.shape[2], *at.shape[2:])
        spread = np.broadcast_to(at[:, :, None], shape).reshape(*shape[:3], -1)
        pixels = np.take_along_axis(flat, spread, -1).reshape(shape)
        total = total + np.where(inside[:, :, None], weight[:, :, None] * pixels, 0)
    return np.asarray(total)


def strided_windows(whole: Array, reach: Array, step: Array, apart: Array) -> Array:
    """Return all windows along the last axes, the elements of each along further axes."""
    rank = len(reach)
    last = tuple(range(whole.ndim - rank, whole.ndim))
    windows = sliding_window_view(whole, tuple(reach), last)
    chosen: tuple[Any, ...] = (..., *(slice(None, None, it) for it in (*step, *apart)))
    return windows[chosen]
