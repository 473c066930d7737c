"""Corrections of convolutions and pools. The corrections compute all windows together.

onnx's reference loops over the elements of each window. In an estimate, these loops would take most
of the time. The reference also has errors. It marks padding by NaN, and therefore ignores a NaN in
the input. It treats dilated windows with SAME_* padding as dense. The reference computes the
indices of MaxPool in two ways, each of which is wrong in some cases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from onnxopt_cli.core.values import Array, dtype_name
from onnxopt_cli.oracle.patching import accelerates, replaces

# Batch, channel, row and column.
_IMAGE_RANK = 4
# A convolution keeps at most this number of bytes of windows in memory at the same time.
_MAX_WINDOW_BYTES = 1 << 27
# A pool copies at most this number of bytes of windows at a time. The number is small, so that the
# copies stay in the processor's cache.
_POOL_BLOCK_BYTES = 1 << 20
# If there are at most this number of windows, one call adds all their elements. A separate call for
# each place within a window would take longer than the additions.
_FEW_WINDOWS = 1 << 10
_SHORT_TYPES = frozenset({"float16", "bfloat16"})


@accelerates("op_conv.im2col")
def fast_columns(
    _original: Any,
    x: Array,
    kernel_shape: Sequence[int],
    pads: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int] | None = None,
) -> tuple[Array, tuple[int, ...]]:
    """Return the windows of a convolution as columns (``im2col``), and the windows per axis."""
    rank = len(kernel_shape)
    dilation = np.array(dilations or [1] * rank)
    extent = (np.array(kernel_shape) - 1) * dilation + 1
    padded = _padded_by_zeros(x, np.reshape(pads, (2, rank))) if any(pads) else x
    windows = _strided_windows(padded, extent, np.array(strides), dilation)
    count = windows.shape[2 : 2 + rank]
    axes = (1, *range(2 + rank, 2 + 2 * rank), 0, *range(2, 2 + rank))
    rows, width = x.shape[1] * prod(kernel_shape), len(x) * prod(count)
    columns = windows.transpose(axes).reshape(rows, width)
    return np.ascontiguousarray(columns), count


def convolved_in_blocks(
    convolve: Callable[..., Array],
    x: Array,
    w: Array,
    b: Array | None,
    auto_pad: str,
    dilations: Sequence[int] | None,
    group: int,
    kernel_shape: Sequence[int] | None,
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
) -> Array:
    """Compute parts of a convolution one after the other if all windows would not fit in memory.

    The output is divided along its longest axis, which leaves the sum over each window unchanged.

    Args:
        convolve: the implementation of onnx's reference, which takes the other arguments.
        x: the images.
        w: the kernels.
        b: the bias.
        auto_pad: the attribute of the node; the following arguments are also attributes.
        dilations: the distances between the elements of a kernel.
        group: the number of groups.
        kernel_shape: the shape of a kernel.
        pads: the padding.
        strides: the distances between windows.
    """
    rank = x.ndim - 2
    dilation, stride = (np.array(steps or [1] * rank) for steps in (dilations, strides))
    extent = (np.array(w.shape[2:]) - 1) * dilation + 1
    sizes = np.array(x.shape[2:])
    padding = np.zeros((2, rank), int)
    if auto_pad in {"SAME_LOWER", "SAME_UPPER"}:
        total = np.maximum((-(-sizes // stride) - 1) * stride + extent - sizes, 0)
        padding[:] = total // 2, total - total // 2
        padding = padding if auto_pad == "SAME_UPPER" else padding[::-1]
    elif auto_pad != "VALID" and pads is not None:
        padding[:] = np.reshape(pads, (2, rank))
    counts = (sizes + padding.sum(axis=0) - extent) // stride + 1
    # The reference fills the gaps of a dilated kernel with zeros.
    window_bytes = x.shape[1] * prod(extent.tolist()) * x.itemsize
    axis = int(np.argmax(counts))
    place_bytes = window_bytes * len(x) * prod(counts.tolist()) // max(1, counts[axis])
    block = int(max(1, _MAX_WINDOW_BYTES // max(1, place_bytes)))
    if padding.min() < 0 or counts.min() < 1 or block >= counts[axis]:
        return convolve(x, w, b, auto_pad, dilations, group, kernel_shape, pads, strides)
    padded, no_pads = _padded_by_zeros(x, padding), [0] * (2 * rank)
    parts = []
    for first in range(0, counts[axis], block):
        count = min(block, counts[axis] - first)
        start = first * stride[axis]
        read: list[Any] = [slice(None)] * x.ndim
        read[2 + axis] = slice(start, start + (count - 1) * stride[axis] + extent[axis])
        image = padded[tuple(read)]
        parts.append(
            convolve(image, w, b, "NOTSET", dilations, group, kernel_shape, no_pads, strides)
        )
    return np.concatenate(parts, axis=2 + axis)


def _padded_by_zeros(x: Array, pads: Array) -> Array:
    """Return images with zeros added before and after them along each spatial axis."""
    if pads.min() < 0:
        raise ValueError("a convolution with negative padding")
    front, back = pads
    sizes = np.array(x.shape[2:])
    padded = np.zeros((*x.shape[:2], *(sizes + front + back)), x.dtype)
    inside: Any = (..., *map(slice, front, front + sizes))
    padded[inside] = x
    return padded


@accelerates("op_col2im.Col2Im._run")
def _images_of_columns(
    node: Any,
    original: Any,
    data: Array,
    image_shape: Array,
    block_shape: Array,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> tuple[Array]:
    """Sum the columns of all images and channels together."""
    ones = [1] * len(image_shape)
    places = prod(block_shape.tolist())
    channels = data.shape[1] // max(1, places)
    columns = data.reshape(len(data), channels, places, data.shape[-1]) if places else data
    steps = (dilations or ones, pads or [0, 0] * len(ones), strides or ones)
    images = summed_columns(columns, image_shape.tolist(), block_shape.tolist(), *steps)
    if images is None:
        result: tuple[Array] = original(
            node, data, image_shape, block_shape, dilations=dilations, pads=pads, strides=strides
        )
        return result
    return (images,)


def summed_columns(
    columns: Array,
    image_shape: Sequence[int],
    kernel_shape: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    strides: Sequence[int],
) -> Array | None:
    """Return images whose elements are sums of elements of columns: ``col2im``.

    Args:
        columns: the elements of all windows. The second-to-last axis is the place within a window,
            the last axis is the window, and all earlier axes belong to the image.
        image_shape: the shape of an image.
        kernel_shape: the shape of a window.
        dilations: the distances between the elements of a window.
        pads: the padding of the image.
        strides: the distances between windows.

    Returns:
        The images; None if the padding is negative or if the columns do not fit the images.
    """
    dilation, stride, padding = np.array(dilations), np.array(strides), np.reshape(pads, (2, -1))
    sizes = np.array(image_shape) + padding.sum(axis=0)
    count = (sizes - (np.array(kernel_shape) - 1) * dilation - 1) // stride + 1
    if padding.min() < 0 or columns.shape[-2:] != (prod(kernel_shape), prod(count.tolist())):
        return None
    images = columns.shape[:-2]
    padded = np.zeros((*images, *sizes), columns.dtype)
    if prod(images) * columns.shape[-1] > _FEW_WINDOWS:
        # Each iteration adds one element of every window to the images.
        for index, place in enumerate(np.ndindex(*kernel_shape)):
            start = np.array(place) * dilation
            target: Any = (..., *map(slice, start, start + stride * count, stride))
            padded[target] += columns[..., index, :].reshape(*images, *count)
    else:
        places = np.indices([*kernel_shape]).reshape(len(sizes), -1, 1) * dilation[:, None, None]
        windows = np.indices(count.tolist()).reshape(len(sizes), 1, -1) * stride[:, None, None]
        within_image = np.ravel_multi_index([*(places + windows)], sizes.tolist())
        first_of_image = np.arange(prod(images)).reshape(*images, 1, 1) * prod(sizes.tolist())
        np.add.at(padded.reshape(-1), first_of_image + within_image, columns)
    inside: Any = (..., *map(slice, padding[0], padding[0] + image_shape))
    result: Array = padded[inside]
    return result


@replaces("op_conv_transpose.ConvTranspose._run")
def _grouped(
    node: Any,
    original: Any,
    x: Array,
    w: Array,
    b: Array | None = None,
    group: int = 1,
    **kwargs: Any,
) -> tuple[Array]:
    """Compute each group of a transposed convolution from the channels and biases of the group.

    If the shape of the output is given, the padding follows from the shape.
    """
    if kwargs.get("output_shape") or kwargs["auto_pad"].startswith("SAME"):
        kwargs |= {"pads": _transposed_pads(x, w, **kwargs)}
    biases = [None] * group if b is None else np.split(b, group)
    # The reference has no output for an empty batch, so an image of zeros is convolved instead.
    images = x if len(x) else np.zeros((1, *x.shape[1:]), x.dtype)
    parts = zip(np.split(images, group, 1), np.split(w, group), biases, strict=True)
    outputs = [_transposed(node, original, *part, **kwargs) for part in parts]
    return (np.concatenate(outputs, axis=1)[: len(x)],)


def _transposed(
    node: Any, original: Any, x: Array, w: Array, b: Array | None, **attributes: Any
) -> Array:
    """Return the transposed convolution of one group of channels."""
    ones = [1] * (x.ndim - 2)
    dilation, stride, pads, added = (
        attributes.get(name) or default
        for name, default in (
            ("dilations", ones),
            ("strides", ones),
            ("pads", [0, 0] * len(ones)),
            ("output_padding", [0] * len(ones)),
        )
    )
    extent = (np.array(w.shape[2:]) - 1) * dilation + 1
    padding = np.reshape(pads, (2, -1)).sum(axis=0)
    shape = np.array(stride) * (np.array(x.shape[2:]) - 1) + added + extent - padding
    shape = attributes.get("output_shape") or shape.tolist()
    # State the sizes, because NumPy does not infer the sizes of a tensor without channels.
    kernels = w.reshape(len(w), prod(w.shape[1:])).T
    images = []
    for image in x:
        columns = np.matmul(kernels, image.reshape(len(image), prod(image.shape[1:])))
        columns = columns.reshape(w.shape[1], prod(w.shape[2:]), columns.shape[-1])
        summed = summed_columns(columns, shape, w.shape[2:], dilation, pads, stride)
        if summed is None:
            result: Array = original(node, x, w, b, group=1, **attributes)[0]
            return result
        images.append(summed if b is None else summed + b.reshape(-1, *ones))
    return np.stack(images).astype(x.dtype)


def _transposed_pads(
    x: Array,
    w: Array,
    auto_pad: str,
    output_shape: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    **_: Any,
) -> list[int]:
    """Return the padding of a transposed convolution whose output has a given shape."""
    sizes, ones = np.array(x.shape[2:]), [1] * (x.ndim - 2)
    stride, dilation = np.array(strides or ones), np.array(dilations or ones)
    extent = (np.array(w.shape[2:]) - 1) * dilation + 1
    shape = np.array(output_shape or sizes * stride)
    total = stride * (sizes - 1) + np.array(output_padding or 0) + extent - shape
    half = total // 2
    front = half if auto_pad == "SAME_UPPER" else total - half
    return [*front.tolist(), *(total - front).tolist()]


@replaces("op_deform_conv.DeformConv._run")
def _deformed(
    node: Any,
    original: Any,
    x: Array,
    w: Array,
    offset: Array,
    b: Array | None = None,
    mask: Array | None = None,
    **attributes: Any,
) -> Any:
    """Interpolate at coordinates in pixels. The reference normalizes coordinates in float32."""
    if x.ndim != _IMAGE_RANK:
        return original(node, x, w, offset, b, mask, **attributes)
    count, group = attributes.get("offset_group") or 1, attributes.get("group") or 1
    kernel, shape = w.shape[2:], offset.shape[2:]
    offsets = offset.reshape(len(x), count, *kernel, 2, *shape)
    coordinates = offsets + regular_coordinates(attributes, kernel, shape)
    channels = x.shape[1]
    images = x.reshape(len(x), count, channels // count, *x.shape[2:])
    columns = _bilinear(images, coordinates[:, :, :, :, 0], coordinates[:, :, :, :, 1])
    if mask is not None:
        columns = columns * mask.reshape(len(x), count, 1, *kernel, *shape)
    # Use a matrix product for the sums, because runs with sequential sums replace numpy.matmul.
    terms = channels // group * prod(kernel)
    columns = columns.reshape(len(x), group, terms, prod(shape))
    weights = w.reshape(group, len(w) // group, terms)
    y = np.matmul(weights, columns).reshape(len(x), len(w), *shape)
    y = y if b is None else y + b.reshape(-1, 1, 1)
    return (y.astype(x.dtype),)


def regular_coordinates(
    attributes: Mapping[str, Any], kernel: Sequence[int], shape: Sequence[int]
) -> Array:
    """Return the coordinates of DeformConv in pixels, without offsets.

    The result has the two axes of the kernel, the axis of the coordinates, and the two axes of the
    output, in this order.
    """
    top, left, *_ = attributes.get("pads") or [0] * 4
    strides, dilations = (attributes.get(name) or [1, 1] for name in ("strides", "dilations"))
    rows, columns = (
        np.add.outer(
            np.arange(kernel[axis]) * dilations[axis],
            np.arange(shape[axis]) * strides[axis] - padding,
        )
        for axis, padding in enumerate((top, left))
    )
    full = (*kernel, *shape)
    grids = (rows[:, None, :, None], columns[None, :, None, :])
    return np.stack([np.broadcast_to(grid, full) for grid in grids], axis=2)


def _bilinear(images: Array, y: Array, x: Array) -> Array:
    """Interpolate images at the coordinates of their group. Pixels outside an image are zero."""
    rows, columns = images.shape[-2:]
    flat = images.reshape(*images.shape[:-2], rows * columns)
    total: Any = 0
    for down, right in ((0, 0), (0, 1), (1, 0), (1, 1)):
        row, column = np.floor(y) + down, np.floor(x) + right
        weight = (1 - np.abs(y - row)) * (1 - np.abs(x - column))
        inside = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
        index = np.where(inside, row * columns + column, 0).astype(np.int64)
        shape = (*index.shape[:2], images.shape[2], *index.shape[2:])
        channel_index = np.broadcast_to(index[:, :, None], shape)
        channel_index = channel_index.reshape(*shape[:3], prod(shape[3:]))
        pixels = np.take_along_axis(flat, channel_index, -1).reshape(shape)
        total = total + np.where(inside[:, :, None], weight[:, :, None] * pixels, 0)
    return np.asarray(total)


def _strided_windows(padded: Array, extent: Array, stride: Array, dilation: Array) -> Array:
    """Return all windows of padded images.

    The spatial axes of the result index the windows. The same number of additional axes index the
    elements within a window.
    """
    rank = len(extent)
    axes = tuple(range(padded.ndim - rank, padded.ndim))
    windows = sliding_window_view(padded, tuple(extent), axes)
    steps: tuple[Any, ...] = (..., *(slice(None, None, step) for step in (*stride, *dilation)))
    return windows[steps]


@dataclass(frozen=True, slots=True)
class _Geometry:
    """The windows of a pool. Each array has one element per spatial axis.

    Attributes:
        size: the length of the input.
        front: the padding before the input.
        back: the padding after the input, as the node states it.
        count: the number of windows.
        extent: the length of a window, including the gaps between its elements.
        stride: the distance between two windows.
        dilation: the distance between two elements of a window.
    """

    size: Array
    front: Array
    back: Array
    count: Array
    extent: Array
    stride: Array
    dilation: Array

    def padded(self, x: Array, value: Any) -> Array:
        """Return the input, padded by a value to the extent of all windows."""
        covered = np.full([*x.shape[: -self.size.size], *self._covered], value, x.dtype)
        lengths = np.minimum(self.size, np.maximum(self._covered - self.front, 0))
        inside: Any = (..., *map(slice, self.front, self.front + lengths))
        read: Any = (..., *map(slice, lengths))
        covered[inside] = x[read]
        return covered

    def windows(self, padded: Array) -> Array:
        """Return the windows of the result of :meth:`padded`, each along the last axis."""
        windows = _strided_windows(padded, self.extent, self.stride, self.dilation)
        rank = self.size.size
        return windows.reshape(*windows.shape[:-rank], prod(windows.shape[-rank:]))

    def sums(self, padded: Array) -> Array:
        """Return the sum of each window of the result of :meth:`padded`."""
        windows = _strided_windows(padded, self.extent, self.stride, self.dilation)
        shape = windows.shape[: padded.ndim]
        axis = int(np.argmax(shape))
        block_bytes = windows.itemsize * windows.size // max(1, shape[axis])
        block = max(1, _POOL_BLOCK_BYTES // max(1, block_bytes))
        parts = []
        for first in range(0, max(1, shape[axis]), block):
            selected: Any = (*[slice(None)] * axis, slice(first, first + block))
            parts.append(np.sum(_flat_windows(windows[selected], padded.ndim), axis=-1))
        return np.concatenate(parts, axis=axis)

    def counts(self, *, padding: bool) -> Array:
        """Count the elements of each window that lie in the input.

        If ``padding`` is set, elements in the padding of the input are counted as well.
        """
        counted = [
            inside[start].sum(axis=-1)
            for inside, start in zip(self._inside(padding=padding), self._elements(), strict=True)
        ]
        return np.asarray(reduce(np.multiply.outer, counted))

    def within(self, *, padding: bool) -> Array:
        """Return a mask of window elements that lie in the input.

        If ``padding`` is set, elements in the padding of the input are included.
        """
        inside = np.asarray(reduce(np.logical_and.outer, self._inside(padding=padding)))
        return self.windows(inside)

    def _inside(self, *, padding: bool) -> list[Array]:
        """Return, for each axis, a mask of indices that lie in the input.

        If ``padding`` is set, indices in the padding of the input are included.
        """
        first = np.zeros_like(self.front) if padding else self.front
        end = self.front + self.size + (self.back if padding else 0)
        return [
            (np.arange(covered) >= low) & (np.arange(covered) < high)
            for covered, low, high in zip(self._covered, first, end, strict=True)
        ]

    def _elements(self) -> list[Array]:
        """Return, for each axis, the indices of the elements of each window, one row per window."""
        return [
            np.add.outer(np.arange(count) * stride, np.arange(0, extent, dilation))
            for count, stride, extent, dilation in zip(
                self.count, self.stride, self.extent, self.dilation, strict=True
            )
        ]

    @property
    def _covered(self) -> Array:
        """The length, including padding, that all windows together cover along each axis."""
        return (self.count - 1) * self.stride + self.extent


def _flat_windows(windows: Array, rank: int) -> Array:
    """Return a contiguous copy of windows, with the elements of a window along the last axis.

    Args:
        windows: the windows.
        rank: the number of axes before the axes of the elements.
    """
    copied = np.empty(windows.shape, windows.dtype)
    # NumPy copies rows of the last axis one after the other, which is slow for short rows.
    by_place = windows.shape[-1] < windows.shape[-2]
    for place in range(windows.shape[-1]) if by_place else [slice(None)]:
        copied[..., place] = windows[..., place]
    return copied.reshape(*windows.shape[:rank], prod(windows.shape[rank:]))


def _geometry(x: Array, attributes: dict[str, Any]) -> _Geometry:
    size = np.array(x.shape[2:])
    ones, zeros = [1] * size.size, [0] * 2 * size.size
    stride, dilation = (np.array(attributes.get(k) or ones) for k in ("strides", "dilations"))
    extent = (np.array(attributes["kernel_shape"]) - 1) * dilation + 1
    auto_pad = attributes.get("auto_pad") or "NOTSET"
    if auto_pad.startswith("SAME"):
        count = -(-size // stride)
        total = np.maximum((count - 1) * stride + extent - size, 0)
        front = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
        return _Geometry(size, front, total - front, count, extent, stride, dilation)
    pads = zeros if auto_pad == "VALID" else attributes.get("pads") or zeros
    front, back = np.reshape(pads, (2, -1))
    room = size + front + back - extent
    count = room // stride + 1
    if attributes.get("ceil_mode"):
        count = -(-room // stride) + 1
        # Omit the last window if it would start in the padding after the input.
        count -= (count - 1) * stride >= size + front
    if count.min() < 1:
        raise ValueError("a window of a pool is larger than its padded input")
    return _Geometry(size, front, back, count, extent, stride, dilation)


def _wide(x: Array) -> Array:
    """Return a tensor in the type in which it is accumulated: float32 for 16-bit types."""
    return x.astype(np.float32) if dtype_name(x.dtype) in _SHORT_TYPES else x


@replaces("op_average_pool.AveragePool_1._run", "op_average_pool.AveragePool_7._run")
@replaces("op_average_pool.AveragePool_11._run", "op_average_pool.AveragePool_19._run")
def _averaged(_pool: Any, _original: Any, x: Array, **attributes: Any) -> tuple[Array]:
    """Divide by the number of elements.

    Elements of the padding count if ``count_include_pad`` is set.
    """
    geometry = _geometry(x, attributes)
    padding_counts = bool(attributes.get("count_include_pad"))
    counted = geometry.counts(padding=padding_counts)
    total = geometry.sums(geometry.padded(_wide(x), 0))
    return ((total / counted.astype(total.dtype)).astype(x.dtype),)


@replaces("op_lp_pool.LpPool._run")
def _root_of_powers(pool: Any, _original: Any, x: Array, **attributes: Any) -> tuple[Array]:
    """Compute the root of a sum of powers.

    The reference uses the mean of the powers instead of their sum.
    """
    geometry, power = _geometry(x, attributes), attributes.get("p") or pool.p
    powers = np.abs(_wide(x)) ** power
    total = geometry.sums(geometry.padded(powers, 0))
    return ((total ** (1 / power)).astype(x.dtype),)


@replaces("op_max_pool.MaxPool._run")
def _maximum(pool: Any, _original: Any, x: Array, **attributes: Any) -> tuple[Array, ...]:
    """Return the maximum of each window, or NaN if the window contains NaN, and its first index."""
    geometry = _geometry(x, attributes)
    in_input = geometry.within(padding=False)
    if not in_input.any(axis=-1).all():
        raise ValueError("a window of a pool consists of padding")
    lowest = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
    windows = geometry.windows(geometry.padded(x, lowest))
    maximum: Array = windows.max(axis=-1)
    if len(pool.onnx_node.output) == 1:
        return (maximum,)
    is_maximum = windows == maximum[..., None]
    if x.dtype.kind == "f":
        is_maximum |= np.isnan(windows)
    first = np.argmax(is_maximum & in_input, axis=-1)[..., None]
    # An image of indices is padded like the input. Its windows therefore contain the indices of the
    # elements of the input.
    lengths, column_major = geometry.size.tolist(), attributes.get("storage_order")
    indices = np.arange(geometry.size.prod()).reshape(lengths[::-1] if column_major else lengths)
    indices = indices.T if column_major else indices
    indices = geometry.windows(geometry.padded(indices, -1))
    indices = np.broadcast_to(indices, windows.shape)
    within_image = np.take_along_axis(indices, first, -1)[..., 0]
    first_of_image = np.arange(x.shape[0] * x.shape[1]) * geometry.size.prod()
    rank = geometry.size.size
    return maximum, within_image + first_of_image.reshape(*x.shape[:2], *[1] * rank)
