"""Average pooling as onnx's reference computes it, to the bit, but not one window at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array


@contextmanager
def fast_pooling() -> Iterator[None]:
    """Let onnx's reference pool by a faster function meanwhile."""
    from onnx.reference.ops import op_pool_common

    slow = op_pool_common.pool

    def replacement(*arguments: Any, **options: Any) -> Array:
        return _pool(slow, *arguments, **options)

    op_pool_common.pool = replacement
    try:
        yield
    finally:
        op_pool_common.pool = slow


def _pool(
    slow: Any,
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
    # The arguments are those of the reference's own function, which is `slow`. Windows without
    # padding are averaged together, others one by one. What is not an average, or has windows
    # that are cut off, is left to the reference.
    rank = len(x_shape) - 2
    steps, spread = strides or [1] * rank, dilations if dilations is not None else [1] * rank
    required, given = _all_pads(pads_required, rank), _all_pads(pads, rank)
    reach = [1 + (kernel[it] - 1) * spread[it] for it in range(rank)]
    sizes = [x_shape[it + 2] + required[it] + required[it + rank] for it in range(rank)]
    counts = [int((sizes[it] - reach[it]) / steps[it] + 1) for it in range(rank)]
    ends = [(counts[it] - 1) * steps[it] + reach[it] for it in range(rank)]
    whole = all(
        0 < counts[it] <= out_shape[it]
        and ends[it] <= min(x_shape[it + 2] + given[it] + given[it + rank], padded.shape[it + 2])
        for it in range(rank)
    )
    if pooling_type != "AVG" or not whole:
        rest = (x_shape, kernel, strides, out_shape, pooling_type, pads_required, pads, dilations)
        result: Array = slow(padded, *rest, count_include_pad, p)
        return result
    windows = []
    for starts in product(*(range(0, reach[it], spread[it]) for it in range(rank))):
        stops = [start + ends[it] - reach[it] + 1 for it, start in enumerate(starts)]
        place: tuple[Any, ...] = (..., *map(slice, starts, stops, steps))
        windows.append(padded[place])
    values = np.stack(windows, axis=-1)
    means = np.mean(values, axis=-1)
    if count_include_pad != 1:
        for at in zip(*np.nonzero(np.isnan(values).any(axis=-1)), strict=True):
            window = values[at]
            means[at] = np.average(window[~np.isnan(window)])
    pooled = np.zeros([*x_shape[:2], *out_shape], dtype=padded.dtype)
    pooled[tuple(map(slice, means.shape))] = means
    return pooled


def _all_pads(pads: Sequence[int] | None, rank: int) -> list[int]:
    """Return pads as the reference understands them: none, or one for all."""
    if pads is None:
        return [0] * (2 * rank)
    return list(pads) * (2 * rank) if len(pads) == 1 else list(pads)
