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
import onnx

from onnxopt_cli.core.values import Array
from onnxopt_cli.readings.conditioned.replaced import replaced

_OPERATORS = frozenset(
    {"GroupNormalization", "InstanceNormalization", "LayerNormalization"}
    | {"MeanVarianceNormalization"}
)
_FLOAT32_BYTES = 4
# What the published body of MeanVarianceNormalization adds to the deviation.
_MVN_EPSILON = float(np.float32(1e-9))


def normalizes(node: onnx.NodeProto) -> bool:
    """Tell whether a node normalizes its first input by statistics of that input."""
    if node.op_type != "BatchNormalization":
        return node.op_type in _OPERATORS
    return len(node.output) > 1 or any(it.name == "training_mode" and it.i for it in node.attribute)


def average(terms: Array, axes: tuple[int, ...]) -> Array:
    """Return averages along axes, which stay with length 1."""
    return np.asarray(np.mean(terms, axis=axes, keepdims=True))


def moved_averages(move: Callable[[Array, Array, int], Array]) -> AbstractContextManager[None]:
    """Let averages be off meanwhile.

    Args:
        move: returns how far averages are off, given them, how far their terms are off them on
            average, and how many terms each of them has.
    """
    exact = average

    def moved(terms: Array, axes: tuple[int, ...]) -> Array:
        found = exact(terms, axes)
        spread = exact(np.abs(terms - found), axes)
        return found + move(found, spread, terms.size // max(1, found.size))

    return replaced((sys.modules[__name__], "average", moved))


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
    mean = average(wide, along)
    centred = wide - mean
    variance = average(centred * centred, along)
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
