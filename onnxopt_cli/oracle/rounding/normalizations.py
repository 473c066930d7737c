"""Normalizations by the mean and variance of their input, with perturbed averages.

An error of the mean moves all elements of its group alike. Perturbing single elements does not show
that: their mean moves by 1 / sqrt(n) of their own movements. The averages themselves are therefore
perturbed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.oracle.patching import replaced

#: Operators that subtract a mean and divide by a deviation.
NORMALIZE = frozenset(
    {"BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization"}
    | {"MeanVarianceNormalization"}
)
_FLOAT32_BYTES = 4
# The published body of MeanVarianceNormalization adds it to the deviation.
_MVN_EPSILON = float(np.float32(1e-9))


def mean_of(x: Array, axes: tuple[int, ...]) -> Array:
    """Return means along axes, which keep length 1."""
    return np.asarray(np.mean(x, axis=axes, keepdims=True))


def variance_of(centred: Array, axes: tuple[int, ...]) -> Array:
    """Return variances of centred numbers along axes, which keep length 1."""
    return np.asarray(np.mean(centred * centred, axis=axes, keepdims=True))


def moved_averages(
    move: Callable[[Array, Array, int], Array], uncertainty: Callable[[Array], Array]
) -> AbstractContextManager[None]:
    """Perturb means and variances in a block.

    The error of an average near zero is relative to the distance of its terms from the mean. That
    of algorithms that shift by the first element is relative to the distance of that element.

    If the elements differ by less than the error of the mean, the variance of a stable algorithm
    may be anything between zero and the square of that error. It is then zero in the runs that
    would move it down.

    Args:
        move: returns the errors of averages, given the averages, the distance of their terms from
            the mean, and the number of terms of each average.
        uncertainty: returns the largest errors of means, given the means.
    """
    exact_mean, exact_variance = mean_of, variance_of
    mean_error = np.zeros(())

    def moved_mean(x: Array, axes: tuple[int, ...]) -> Array:
        nonlocal mean_error
        mean = exact_mean(x, axes)
        mean_error = uncertainty(mean)
        average_distance = exact_mean(np.abs(x - mean), axes)
        spread = np.maximum(average_distance, np.abs(_first(x, axes) - mean))
        return mean + move(mean, spread, x.size // max(1, mean.size))

    def moved_variance(centred: Array, axes: tuple[int, ...]) -> Array:
        variance = exact_variance(centred, axes)
        spread = np.maximum(variance, _first(centred, axes) ** 2)
        error = move(variance, spread, centred.size // max(1, variance.size))
        return np.where((variance < mean_error**2) & (error < 0), 0.0, variance + error)

    module = sys.modules[__name__]
    return replaced((module, "mean_of", moved_mean), (module, "variance_of", moved_variance))


def _first(x: Array, axes: tuple[int, ...]) -> Array:
    first: Array = x[tuple(slice(1) if axis in axes else slice(None) for axis in range(x.ndim))]
    return first if first.size else np.zeros_like(x, shape=())


def standardized(
    x: Array, axes: Sequence[int], epsilon: float = 0.0, added: float = 0.0
) -> tuple[Array, Array, Array]:
    """Return a tensor scaled to mean 0 and variance 1, its mean, and its variance.

    16-bit tensors are computed in float32. The variance is the mean of (X - E(X))^2. The published
    bodies compute E(X^2) - E(X)^2, which loses u (mean / deviation)^2.

    Args:
        x: the tensor.
        axes: the axes of its statistics.
        epsilon: a number added to the variance.
        added: a number added to the deviation.
    """
    along = tuple(axes)
    wide = x.astype(np.float32) if x.dtype.itemsize < _FLOAT32_BYTES else x
    mean = mean_of(wide, along)
    centred = wide - mean
    variance = variance_of(centred, along)
    deviation = np.sqrt(variance + wide.dtype.type(epsilon)) + wide.dtype.type(added)
    return centred / deviation, mean, variance


def layer_normalization(
    _original: Any, x: Array, scale: Array, bias: Array | None, axis: int, epsilon: float
) -> tuple[Array, Array, Array]:
    """Normalize from an axis on; return the mean and the inverse deviation, too."""
    normal, mean, variance = standardized(x, range(axis % x.ndim, x.ndim), epsilon)
    y = normal.astype(x.dtype) * scale
    inverse = 1 / np.sqrt(variance + variance.dtype.type(epsilon))
    return (y if bias is None else y + bias), mean.astype(x.dtype), inverse.astype(x.dtype)


def instance_normalization(
    _node: Any, _original: Any, x: Array, scale: Array, bias: Array, epsilon: float
) -> tuple[Array]:
    """Normalize each channel of each batch."""
    normal, *_ = standardized(x, range(2, x.ndim), epsilon)
    scales, biases = (_by_channel(array, x).astype(normal.dtype) for array in (scale, bias))
    return ((normal * scales + biases).astype(x.dtype),)


def batch_normalization(
    _original: Any,
    x: Array,
    scale: Array,
    bias: Array,
    mean: Array,
    variance: Array,
    momentum: float,
    epsilon: float,
) -> tuple[Array, ...]:
    """Normalize each channel of all batches; return the batch's and the running statistics, too.

    The order of the results is that of the reference's own function.
    """
    normal, *statistics = standardized(x, (0, *range(2, x.ndim)), epsilon)
    scales, biases = (_by_channel(array, x).astype(normal.dtype) for array in (scale, bias))
    batch = [array.reshape(-1) for array in statistics]
    running = [
        old.astype(normal.dtype) * momentum + new * (1 - momentum)
        for old, new in zip((mean, variance), batch, strict=True)
    ]
    results = (normal * scales + biases, *batch, *running)
    return tuple(result.astype(x.dtype) for result in results)


def group_normalization(
    x: Array, scale: Array, bias: Array, epsilon: float, num_groups: int
) -> Array:
    """Normalize each group of channels of each batch."""
    groups = x.reshape(len(x), num_groups, -1)
    normal = standardized(groups, (2,), epsilon)[0].reshape(x.shape).astype(x.dtype)
    # Before version 21, scale and bias have one element per group, not per channel.
    scales, biases = (
        _by_channel(np.repeat(array, x.shape[1] // array.size), x) for array in (scale, bias)
    )
    return np.asarray(normal * scales + biases)


def mean_variance_normalization(x: Array, axes: Sequence[int]) -> Array:
    """Normalize along axes."""
    return standardized(x, axes, added=_MVN_EPSILON)[0].astype(x.dtype)


def _by_channel(array: Array, x: Array) -> Array:
    return array.reshape(-1, *[1] * (x.ndim - 2))
