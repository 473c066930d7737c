"""Normalizations by the mean and variance of their input, with perturbed averages.

If the mean has an error, all n elements that are normalized together move alike. If the elements
are perturbed independently, their mean moves by only 1 / sqrt(n) of their movements, which is too
little to reveal the error. Therefore the averages themselves are perturbed by the error of stable
algorithms. This error is the larger of two numbers: a bound for independent roundings, and twice
the error of sequential algorithms for the same elements. In a sequential algorithm, all roundings
may have the same sign.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.oracle.patching import replaced
from onnxopt_cli.oracle.rounding.perturbations import sum_roundings, unbounded_sum_roundings
from onnxopt_cli.oracle.rounding.running_means import means_before, running_means
from onnxopt_cli.oracle.widen import ROUNDOFF

#: Operators that subtract a mean and divide by a deviation.
NORMALIZE = frozenset(
    {"BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization"}
    | {"MeanVarianceNormalization"}
)
_FLOAT32_BYTES = 4
# The ratio of the allowed error to the error of sequential algorithms.
_OBSERVED_FACTOR = 2.0
# If a sum subtracts the first element from all terms, the unit is _SHIFTED_SHARE times the error of
# the sum. The tolerance of 8 roundings is then 5 standard deviations.
_SHIFTED_SHARE = 5 / 8
# The number of sums that a vector unit accumulates side by side.
_LANES = 8
# The numbers of blocks whose statistics are merged.
_BLOCK_COUNTS = (4, 16)
# The number that the published body of MeanVarianceNormalization adds to the deviation.
_MVN_EPSILON = float(np.float32(1e-9))


def _mean_of(x: Array, axes: tuple[int, ...]) -> Array:
    """Return the means along axes, which are kept with length 1."""
    return np.asarray(np.mean(x, axis=axes, keepdims=True))


def _variance_of(centred: Array, axes: tuple[int, ...]) -> Array:
    """Return the variances of centred numbers along axes, which are kept with length 1."""
    return np.asarray(np.mean(centred * centred, axis=axes, keepdims=True))


@dataclass(slots=True)
class AverageErrors:
    """Twice the largest errors of sequential float32 algorithms for the statistics of a node.

    The errors remain zero for short rows, because short sums have errors of at most one rounding.
    """

    mean: Array = field(default_factory=lambda: np.zeros(()))
    variance: Array = field(default_factory=lambda: np.zeros(()))

    def observing(self) -> AbstractContextManager[None]:
        """Record the errors of the statistics that are computed in a ``with`` block."""
        exact_mean = _mean_of

        def observed_mean(x: Array, axes: tuple[int, ...]) -> Array:
            mean = exact_mean(x, axes)
            if sum_roundings(x.size // max(1, mean.size)) > 1:
                variance = _variance_of(x - mean, axes)
                statistics = _sequential_statistics(x.astype(np.float32), axes)
                means, variances = zip(*statistics, strict=True)
                merged_mean, merged_variance = _errors_of_merged_recurrences(x - mean, mean, axes)
                self.mean = _OBSERVED_FACTOR * np.maximum(_largest_error(means, mean), merged_mean)
                self.variance = _OBSERVED_FACTOR * np.maximum(
                    _largest_error(variances, variance), merged_variance
                )
            return mean

        return replaced((sys.modules[__name__], "_mean_of", observed_mean))


def _largest_error(values: Sequence[Array], exact: Array) -> Array:
    """Return the largest finite error of each element; 0 if an element has no finite error."""
    errors = np.abs([value.reshape(exact.shape) - exact for value in values])
    return np.asarray(np.where(np.isfinite(errors), errors, 0.0).max(axis=0))


@dataclass(frozen=True, slots=True)
class ErrorModel:
    """The allowed errors of a node's averages, and the errors to inject in a perturbed run.

    Attributes:
        roundoff: the relative error that is allowed per rounding of an average.
        observed: the errors of sequential algorithms, which are allowed as well.
        mean_roundoff: the largest relative error of a mean by any stable algorithm.
        roundings: takes averages and returns their roundings in this run, between -1 and 1.
        step: the share of an allowed error that is injected.
    """

    roundoff: float
    observed: AverageErrors
    mean_roundoff: float
    roundings: Callable[[Array], Array]
    step: float

    def bound(self, size: Array) -> Array:
        """Return the allowed errors of averages; ``size`` holds the errors in roundings."""
        return np.asarray(np.where(np.isfinite(size), self.roundoff * size, 0.0))

    def injected(self, average: Array, bound: Array, observed: Array) -> Array:
        """Return the errors of averages in this run.

        The bounds are multiplied by the magnitudes of this run's roundings. The observed errors are
        not scaled, because the observed errors of a mean and of its variance occur together.
        """
        shares = self.roundings(average)
        return (
            np.asarray(np.sign(shares) * np.maximum(np.abs(shares) * bound, observed)) * self.step
        )


def moved_averages(errors: ErrorModel) -> AbstractContextManager[None]:
    """Perturb means and variances in a ``with`` block.

    Let s^2 be the variance, d the distance of the first element from the mean, and r the error of a
    sum of n terms. All errors are in roundings. The error of a mean is r |mean| plus the average
    distance of the terms from the mean. If the first element is subtracted from all terms before
    they are summed, the error of the mean is |mean| + r d instead.

    The error of a variance is (r + 1) s^2. If the first element is subtracted, the variance is the
    difference of s^2 + d^2 and d^2, whose errors are r (s^2 + d^2) and 2 r d^2 (Chan, Golub and
    LeVeque 1983).

    If the elements differ by less than the error of the mean, a stable algorithm may compute any
    variance between zero and the square of that error. In this case, or if the variance is smaller
    than its own error, each perturbed run with a negative rounding uses the variance zero.
    """
    exact_mean, exact_variance = _mean_of, _variance_of
    mean_error = np.zeros(())

    def moved_mean(x: Array, axes: tuple[int, ...]) -> Array:
        nonlocal mean_error
        mean = exact_mean(x, axes)
        size, distance = np.abs(mean), np.abs(_first(x, axes) - mean)
        mean_error = np.where(np.isfinite(size), errors.mean_roundoff * size, 0.0)
        terms = x.size // max(1, mean.size)
        by_sum = sum_roundings(terms) * size + exact_mean(np.abs(x - mean), axes)
        shifted = size + max(1.0, _SHIFTED_SHARE * unbounded_sum_roundings(terms)) * distance
        bound = errors.bound(np.maximum(by_sum, shifted))
        return mean + errors.injected(mean, bound, errors.observed.mean)

    def moved_variance(centred: Array, axes: tuple[int, ...]) -> Array:
        # To first order, the error of the mean has no effect on the variance.
        centred = centred - exact_mean(centred, axes)
        variance = exact_variance(centred, axes)
        square = _first(centred, axes) ** 2
        terms = centred.size // max(1, variance.size)
        by_sum = (sum_roundings(terms) + 1) * variance
        shifted = np.hypot(variance + square, 2 * square)
        shifted *= _SHIFTED_SHARE * unbounded_sum_roundings(terms)
        bound = errors.bound(np.maximum(np.maximum(by_sum, variance + square), shifted))
        error = errors.injected(variance, bound, errors.observed.variance)
        # The error reduces the variance by at most a quarter, and increases it by at most half. At
        # these limits, the tolerance of a normalized element already exceeds twice the magnitude of
        # the element. The observed error of a sequential algorithm is not limited, because the
        # variance may be an output of the node.
        largest = np.maximum(variance / 2, errors.observed.variance * errors.step)
        error = np.clip(error, -variance / 4, largest)
        undetermined = (variance < mean_error**2) | (variance < bound)
        return np.where(undetermined & (error < 0), 0.0, variance + error)

    module = sys.modules[__name__]
    return replaced((module, "_mean_of", moved_mean), (module, "_variance_of", moved_variance))


def _first(x: Array, axes: tuple[int, ...]) -> Array:
    first: Array = x[tuple(slice(1) if axis in axes else slice(None) for axis in range(x.ndim))]
    return first if first.size else np.zeros_like(x, shape=())


def _sequential_statistics(x: Array, axes: tuple[int, ...]) -> Iterator[tuple[Array, Array]]:
    """Yield float32 means and variances of rows by algorithms that take one term at a time.

    Three algorithms run both from the first to the last term and in reverse: two passes, one pass
    over the terms minus the first term, and Welford's recurrence. Further algorithms are two passes
    with eight partial sums, and Welford's recurrence in 4 and in 16 blocks of consecutive terms. If
    the terms are similar or sorted, the roundings of a sequential algorithm have the same sign. In
    some rows, the roundings of a single sum or recurrence alternate in sign, but those of partial
    sums or blocks do not.
    """
    rows = np.moveaxis(x, axes, range(len(axes)))
    rows = rows.reshape(prod(x.shape[axis] for axis in axes), -1)
    count = np.float32(len(rows))

    def mean(terms: Array) -> Array:
        return np.asarray(np.add.accumulate(terms)[-1] / count)

    for terms in (rows, rows[::-1]):
        average = mean(terms)
        yield average, mean((terms - average) ** 2)
        shifted = terms - terms[0]
        distance = mean(shifted)
        yield terms[0] + distance, mean(shifted**2) - distance**2
        yield _by_recurrence(terms)
    average = _sum_in_lanes(rows) / count
    yield average, _sum_in_lanes((rows - average) ** 2) / count
    for blocks in _BLOCK_COUNTS:
        yield _by_merged_recurrences(rows, blocks)


def _sum_in_lanes(terms: Array) -> Array:
    """Add every eighth term to the same partial sum, then add the partial sums."""
    count_in_lanes = len(terms) // _LANES * _LANES
    lanes = terms[:count_in_lanes].reshape(-1, _LANES, *terms.shape[1:])
    partial_sums = np.add.accumulate(lanes)[-1]
    remaining_terms = terms[count_in_lanes:]
    return np.asarray(np.add.accumulate(np.concatenate([partial_sums, remaining_terms]))[-1])


def _errors_of_merged_recurrences(
    centred: Array, mean: Array, axes: tuple[int, ...]
) -> tuple[Array, Array]:
    """Return error bounds of means and variances by recurrences whose statistics are merged.

    Each lane or block of the terms has its own recurrence.

    Let h = u |m| be the largest rounding error of an update of a mean m. If the terms have a step,
    so that later terms have a different mean, the roundings of many updates have the same sign. The
    variance is a sum of products of two distances. Both factors have the error of a mean, so the
    variance has an error of 2 a h, where a is the average distance of the terms from the mean.

    The j-th term x moves the mean by (x - m) / j. If this is less than h, the update is lost. An
    outlier at the distance D moves the mean by D / j. Later terms move the mean back by D / j^2,
    which is lost from j = sqrt(D / h) on. Terms at the average distance move the mean up or down at
    random. From j = a / h on, these updates are also lost. The error of the mean is therefore at
    most D / max(sqrt(D / h), a / h). Such an error occurs only in rows of more than a / h terms.
    The error of the variance is the square of the error of the mean.

    A single sequential recurrence shows these errors only if steps and outliers are at certain
    places. If lanes or blocks have separate recurrences, and their statistics are merged, the
    errors also show for steps and outliers at other places.

    Args:
        centred: the terms minus their mean.
        mean: the mean.
        axes: the axes of the mean.
    """
    distances = np.abs(centred)
    update_error = ROUNDOFF[np.dtype(np.float32)] * np.abs(mean)
    average = distances.mean(axis=axes, keepdims=True)
    outlier = distances.max(axis=axes, keepdims=True)
    terms = distances.size // max(1, mean.size)
    is_lost = (average > 0) & (average < terms * update_error)
    square = outlier * update_error
    with np.errstate(all="ignore"):
        lost = np.where(is_lost, np.minimum(np.sqrt(square), square / average), 0.0)
    return lost, np.maximum(lost**2, 2 * average * update_error)


def _by_recurrence(terms: Array) -> tuple[Array, Array]:
    """Return means and variances by Welford's recurrence, which updates both at each term."""
    means = running_means(terms)
    products = (terms - means_before(means)) * (terms - means)
    return means[-1], np.add.accumulate(products)[-1] / np.float32(len(terms))


def _by_merged_recurrences(terms: Array, blocks: int) -> tuple[Array, Array]:
    """Return means and variances of blocks by Welford's recurrence, merged by Chan's formula."""
    length = len(terms) // blocks
    parts = np.moveaxis(terms[: blocks * length].reshape(blocks, length, -1), 1, 0)
    statistics = [(length, *pair) for pair in zip(*_by_recurrence(parts), strict=True)]
    if remaining := len(terms) - blocks * length:
        statistics.append((remaining, *_by_recurrence(terms[-remaining:])))
    (count, mean, variance), *later_statistics = statistics
    squares = variance * np.float32(count)
    for size, other_mean, other_variance in later_statistics:
        difference, total = other_mean - mean, count + size
        squares = squares + other_variance * np.float32(size)
        squares = squares + difference**2 * np.float32(count * size / total)
        mean = mean + difference * np.float32(size / total)
        count = total
    return mean, squares / np.float32(count)


def _standardized(
    x: Array, axes: Sequence[int], epsilon: float = 0.0, added: float = 0.0
) -> tuple[Array, Array, Array]:
    """Return a tensor scaled to mean 0 and variance 1, and the tensor's original mean and variance.

    16-bit tensors are computed in float32. The variance is the mean of (X - E(X))^2. The published
    bodies compute E(X^2) - E(X)^2 instead, which has a relative error of u (mean / deviation)^2.

    Args:
        x: the tensor.
        axes: the axes of its statistics.
        epsilon: a number that is added to the variance.
        added: a number that is added to the standard deviation.
    """
    along = tuple(axes)
    wide = x.astype(np.float32) if x.dtype.itemsize < _FLOAT32_BYTES else x
    mean = _mean_of(wide, along)
    centred = wide - mean
    variance = _variance_of(centred, along)
    deviation = np.sqrt(variance + wide.dtype.type(epsilon)) + wide.dtype.type(added)
    return centred / deviation, mean, variance


def layer_normalization(
    _original: Any, x: Array, scale: Array, bias: Array | None, axis: int, epsilon: float
) -> tuple[Array, Array, Array]:
    """Normalize over an axis and all later axes; also return mean and inverse deviation.

    The mean and the inverse deviation of a 16-bit tensor are float32, as ``stash_type`` requires.
    """
    normal, mean, variance = _standardized(x, range(axis % x.ndim, x.ndim), epsilon)
    y = normal.astype(x.dtype) * scale
    inverse = 1 / np.sqrt(variance + variance.dtype.type(epsilon))
    return (y if bias is None else y + bias), mean, inverse


def instance_normalization(
    _node: Any, _original: Any, x: Array, scale: Array, bias: Array, epsilon: float
) -> tuple[Array]:
    """Normalize each channel of each batch."""
    normal, *_ = _standardized(x, range(2, x.ndim), epsilon)
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
    """Normalize each channel of all batches; also return the batch's and the running statistics.

    The order of the results is that of the reference's own function.
    """
    normal, *statistics = _standardized(x, (0, *range(2, x.ndim)), epsilon)
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
    groups = x.reshape(len(x), num_groups, prod(x.shape[1:]) // num_groups)
    normal = _standardized(groups, (2,), epsilon)[0].reshape(x.shape).astype(x.dtype)
    # Before version 21, scale and bias have one element per group instead of one per channel.
    scales, biases = (
        _by_channel(np.repeat(array, x.shape[1] // array.size), x) for array in (scale, bias)
    )
    return np.asarray(normal * scales + biases)


def mean_variance_normalization(x: Array, axes: Sequence[int]) -> Array:
    """Normalize to mean 0 and variance 1 along axes."""
    return _standardized(x, axes, added=_MVN_EPSILON)[0].astype(x.dtype)


def _by_channel(array: Array, x: Array) -> Array:
    return array.reshape(-1, *[1] * (x.ndim - 2))
