"""Normalizations by statistics of their own input, and how their averages round.

A mean that is off moves all elements of its group alike. Elements that are moved one by one do not
show that: the mean of n elements moves by 1 / sqrt(n) of what each of them moves. So averages are
moved themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.oracle.rounding.patched_functions import replaced

#: Operators that take a mean away and divide by a deviation.
NORMALIZE = frozenset(
    {"BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization"}
    | {"MeanVarianceNormalization"}
)
_FLOAT32_BYTES = 4
# What the published body of MeanVarianceNormalization adds to the deviation.
_MVN_EPSILON = float(np.float32(1e-9))


def mean_of(x: Array, axes: tuple[int, ...]) -> Array:
    """Return means along axes, which stay with length 1."""
    return np.asarray(np.mean(x, axis=axes, keepdims=True))


def variance_of(centred: Array, axes: tuple[int, ...]) -> Array:
    """Return variances of what has no mean, along axes, which stay with length 1."""
    return np.asarray(np.mean(centred * centred, axis=axes, keepdims=True))


def moved_averages(
    move: Callable[[Array, Array, int], Array], uncertainty: Callable[[Array], Array]
) -> AbstractContextManager[None]:
    """Let means and variances be off meanwhile.

    Wherever the mean is, they are right to how far elements are off it. Some algorithms begin with
    the first element, and are as far off as that is.

    Where elements differ by less than the mean may be off, a stable algorithm may find no variance
    at all, or as much as the square of that error. The variance is then zero wherever it moves
    down.

    Args:
        move: returns how far averages are off, given them, the scale of their terms to which they
            are off wherever they are, and how many terms each of them has.
        uncertainty: returns how far means may be off at most, given them.
    """
    mean, variance = mean_of, variance_of
    uncertain = np.zeros(())

    def moved_mean(x: Array, axes: tuple[int, ...]) -> Array:
        nonlocal uncertain
        found = mean(x, axes)
        uncertain = uncertainty(found)
        spread = np.maximum(mean(np.abs(x - found), axes), np.abs(_first(x, axes) - found))
        return found + move(found, spread, x.size // max(1, found.size))

    def moved_variance(centred: Array, axes: tuple[int, ...]) -> Array:
        found = variance(centred, axes)
        spread = np.maximum(found, _first(centred, axes) ** 2)
        moved = move(found, spread, centred.size // max(1, found.size))
        return np.where((found < uncertain**2) & (moved < 0), 0.0, found + moved)

    module = sys.modules[__name__]
    return replaced((module, "mean_of", moved_mean), (module, "variance_of", moved_variance))


def _first(x: Array, axes: tuple[int, ...]) -> Array:
    first: Array = x[tuple(slice(1) if axis in axes else slice(None) for axis in range(x.ndim))]
    return first if first.size else np.zeros_like(x, shape=())


def standardized(
    x: Array, axes: Sequence[int], epsilon: float = 0.0, added: float = 0.0
) -> tuple[Array, Array, Array]:
    """Return a tensor with mean 0 and variance 1, its mean, and its variance.

    What has 16 bits is computed in float32. The variance is taken about the mean: the published
    bodies take E(X^2) - E(X)^2, which loses the square of what X - E(X) loses.

    Args:
        x: the tensor.
        axes: along which axes it has statistics.
        epsilon: what is added to the variance.
        added: what is added to the deviation.
    """
    along = tuple(axes)
    wide = x.astype(np.float32) if x.dtype.itemsize < _FLOAT32_BYTES else x
    mean = mean_of(wide, along)
    centred = wide - mean
    variance = variance_of(centred, along)
    deviation = np.sqrt(variance + wide.dtype.type(epsilon)) + wide.dtype.type(added)
    return centred / deviation, mean, variance


def layer_normalization(
    _kept: Any, x: Array, scale: Array, bias: Array | None, axis: int, epsilon: float
) -> tuple[Array, Array, Array]:
    """Normalize from an axis on; return mean and inverse deviation, too."""
    normal, mean, variance = standardized(x, range(axis % x.ndim, x.ndim), epsilon)
    found = normal.astype(x.dtype) * scale
    inverse = 1 / np.sqrt(variance + variance.dtype.type(epsilon))
    return (found if bias is None else found + bias), mean.astype(x.dtype), inverse.astype(x.dtype)


def instance_normalization(
    _node: Any, _kept: Any, x: Array, scale: Array, bias: Array, epsilon: float
) -> tuple[Array]:
    """Normalize each channel of each batch."""
    normal, *_ = standardized(x, range(2, x.ndim), epsilon)
    scales, biases = (_by_channel(it, x).astype(normal.dtype) for it in (scale, bias))
    return ((normal * scales + biases).astype(x.dtype),)


def batch_normalization(
    _kept: Any,
    x: Array,
    scale: Array,
    bias: Array,
    mean: Array,
    variance: Array,
    momentum: float,
    epsilon: float,
) -> tuple[Array, ...]:
    """Normalize each channel of all batches; return the statistics of the batch and the new ones.

    Their order is that of the reference's own function.
    """
    normal, *found = standardized(x, (0, *range(2, x.ndim)), epsilon)
    scales, biases = (_by_channel(it, x).astype(normal.dtype) for it in (scale, bias))
    batch = [it.reshape(-1) for it in found]
    running = [
        old.astype(normal.dtype) * momentum + new * (1 - momentum)
        for old, new in zip((mean, variance), batch, strict=True)
    ]
    return tuple(it.astype(x.dtype) for it in (normal * scales + biases, *batch, *running))


def group_normalization(
    x: Array, scale: Array, bias: Array, epsilon: float, num_groups: int
) -> Array:
    """Normalize each group of channels of each batch."""
    groups = x.reshape(len(x), num_groups, -1)
    normal = standardized(groups, (2,), epsilon)[0].reshape(x.shape).astype(x.dtype)
    # Until version 21 there was one scale for each group, not for each channel.
    scales, biases = (_by_channel(np.repeat(it, x.shape[1] // it.size), x) for it in (scale, bias))
    return np.asarray(normal * scales + biases)


def mean_variance_normalization(x: Array, axes: Sequence[int]) -> Array:
    """Normalize along axes."""
    return standardized(x, axes, added=_MVN_EPSILON)[0].astype(x.dtype)


def _by_channel(array: Array, x: Array) -> Array:
    return array.reshape(-1, *[1] * (x.ndim - 2))
