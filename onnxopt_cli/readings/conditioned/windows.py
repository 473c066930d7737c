"""Pools and convolutions as onnx's reference computes them, to the bit, but many windows at once.

It takes one window of a pool after the other, and looks up each element of each window of a
convolution. Of a network that is most of the time that asking takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from onnxopt_cli.core.values import Array


def fast_pool(
    kept: Any,
    padded: Array,
    x_shape: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int] | None,
    out_shape: Sequence[int],
    pooling_type: str,
    pads_required: Sequence[int] | None,
    pads: Sequence[int] | None,
    dilations: Sequence[int] | None,
    count_include_pad: int = 0,
    p: int | None = None,
) -> Array:
    """Pool, given the reference's own function and its arguments.

    Windows are averaged together that have as many elements beside NaN, which is padding that does
    not count. Averages that count NaN are left to the reference.
    """
    rank = len(kernel)
    steps, spread = strides or [1] * rank, [1] * rank if dilations is None else dilations
    reach = 1 + (np.array(kernel) - 1) * spread
    sizes = np.array(x_shape[2:])
    # One number stands for all of them.
    required, given = (
        np.broadcast_to(0 if it is None else it, 2 * rank).reshape(2, rank).sum(axis=0)
        for it in (pads_required, pads)
    )
    counts = ((sizes + required - reach) / steps + 1).astype(int)
    counts_nan = count_include_pad == 1 and np.isnan(padded).any()
    if counts_nan or counts.min() < 1 or (counts > out_shape).any():
        rest = (x_shape, kernel, strides, out_shape, pooling_type, pads_required, pads, dilations)
        result: Array = kept(padded, *rest, count_include_pad, p)
        return result
    # Of a window that is cut off nothing beyond counts.
    whole = np.full([*x_shape[:2], *((counts - 1) * steps + reach)], np.nan, padded.dtype)
    inside: tuple[Any, ...] = (..., *map(slice, np.minimum(sizes + given, whole.shape[2:])))
    whole[inside] = padded[inside]
    windows = _windows(whole, reach, np.array(steps), np.array(spread))
    if pooling_type == "MAX":
        return np.fmax.reduce(windows, axis=tuple(range(-rank, 0)))
    values = windows.reshape(*x_shape[:2], *counts, -1)
    if pooling_type == "LPPOOL":
        power = p or 1
        means = np.nansum(np.abs(values) ** power, axis=-1) ** (1 / power)
    else:
        means, counted = np.mean(values, axis=-1), ~np.isnan(values)
        sizes = counted.sum(axis=-1)
        for size in set(sizes[sizes < values.shape[-1]].tolist()):
            at = sizes == size
            means[at] = values[at][counted[at]].reshape(np.count_nonzero(at), size).mean(axis=-1)
    pooled = np.zeros([*x_shape[:2], *out_shape], dtype=padded.dtype)
    pooled[tuple(map(slice, means.shape))] = means
    return pooled


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
    windows = _windows(np.pad(x, [(0, 0), (0, 0), *around]), reach, np.array(strides), apart)
    count = windows.shape[2 : 2 + rank]
    axes = (1, *range(2 + rank, 2 + 2 * rank), 0, *range(2, 2 + rank))
    columns = windows.transpose(axes).reshape(-1, len(x) * prod(count))
    return np.ascontiguousarray(columns), count


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


def _windows(whole: Array, reach: Array, step: Array, apart: Array) -> Array:
    """Return all windows, the elements of each along further axes."""
    rank = len(reach)
    windows = sliding_window_view(whole, tuple(reach), tuple(range(2, 2 + rank)))
    chosen: tuple[Any, ...] = (..., *(slice(None, None, it) for it in (*step, *apart)))
    return windows[chosen]
