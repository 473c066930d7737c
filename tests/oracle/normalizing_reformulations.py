"""Reformulations of normalizations in float32, and an unstable implementation.

The functions in :data:`STATISTICS` return the means and variances of rows of float32. The functions
in :data:`APPLICATIONS` normalize rows with given means and variances.
"""

import numpy as np

F = np.float32


def sequential_sum(x):
    return np.add.accumulate(x, axis=-1, dtype=F)[..., -1:]


def pairwise_sum(x):
    return x.sum(-1, keepdims=True, dtype=F)


def vectorized_sum(x, lanes=8):
    """Add as a vector unit does: first the terms of each lane in order, then the lanes."""
    padded = np.pad(x, [(0, 0), (0, -x.shape[-1] % lanes)])
    return sequential_sum(
        sequential_sum(np.moveaxis(padded.reshape(len(x), -1, lanes), 1, -1))[..., 0]
    )


def double_sum(x):
    return x.astype(np.float64).sum(-1, keepdims=True).astype(F)


def two_pass(total):
    def statistics(x):
        count = F(x.shape[-1])
        mean = total(x) / count
        return mean, total((x - mean) ** 2) / count

    return statistics


def reciprocal_of_count(x):
    share = F(1) / F(x.shape[-1])
    mean = pairwise_sum(x) * share
    return mean, pairwise_sum((x - mean) ** 2) * share


def reversed_sum(x):
    return sequential_sum(x[..., ::-1])


def corrected_two_pass(total):
    """Compute the variance in two passes; correct it for the rounding error of the mean."""

    def statistics(x):
        count = F(x.shape[-1])
        mean = total(x) / count
        return mean, (total((x - mean) ** 2) - total(x - mean) ** 2 / count) / count

    return statistics


def shifted(total):
    """Subtract the first element, and compute the variance of the differences in one pass."""

    def statistics(x):
        first, count = x[..., :1], F(x.shape[-1])
        mean = total(x - first) / count
        return first + mean, np.maximum(total((x - first) ** 2) / count - mean**2, F(0))

    return statistics


def welford(x):
    mean, squares = np.zeros(len(x), F), np.zeros(len(x), F)
    for place, column in enumerate(x.T, start=1):
        before = column - mean
        mean = mean + before / F(place)
        squares = squares + before * (column - mean)
    return mean[:, None], (squares / F(x.shape[-1]))[:, None]


def merged(x, length=64):
    """Compute statistics of parts by Welford's recurrence, and merge them by Chan's formula."""
    count, mean, squares = 0, F(0), F(0)
    for start in range(0, x.shape[-1], length):
        part = x[:, start : start + length]
        size = part.shape[-1]
        part_mean, variance = welford(part)
        difference, total = part_mean - mean, count + size
        squares = squares + variance * F(size) + difference**2 * F(count * size / total)
        mean, count = mean + difference * F(size / total), total
    return mean, squares / F(count)


def one_pass(x):
    """Compute the variance as E(X^2) - E(X)^2, which cancels if the mean is large."""
    count = F(x.shape[-1])
    mean = pairwise_sum(x) / count
    return mean, pairwise_sum(x * x) / count - mean * mean


STATISTICS = {
    "two passes, pairwise sums": two_pass(pairwise_sum),
    "two passes, sequential sums": two_pass(sequential_sum),
    "two passes, vectorized sums": two_pass(vectorized_sum),
    "two passes, sums in double": two_pass(double_sum),
    "by the reciprocal of the count": reciprocal_of_count,
    "corrected": corrected_two_pass(pairwise_sum),
    "shifted": shifted(pairwise_sum),
    "Welford": welford,
    "Chan": merged,
}
SEQUENTIAL_STATISTICS = {
    "corrected, sequential": corrected_two_pass(sequential_sum),
    "corrected, from the last": corrected_two_pass(reversed_sum),
    "shifted, sequential": shifted(sequential_sum),
    "shifted, from the last": shifted(reversed_sum),
    "two passes, from the last": two_pass(reversed_sum),
    "Welford": welford,
}


def by_newton(x, mean, variance, scale, bias):
    root = (1.0001 / np.sqrt(variance.astype(np.float64))).astype(F)
    for _ in range(2):
        root = root * (F(1.5) - F(0.5) * variance * root * root)
    return (x - mean) * (root * scale) + bias


def folded(x, mean, variance, scale, bias):
    factor = scale / np.sqrt(variance)
    return x * factor + (bias - mean * factor)


def folded_and_fused(x, mean, variance, scale, bias):
    factor = (scale / np.sqrt(variance)).astype(np.float64)
    shift = (bias - mean * factor).astype(F)
    return (x * factor + shift).astype(F)


APPLICATIONS = {
    "quotient": lambda x, mean, variance, scale, bias: (
        (x - mean) / np.sqrt(variance) * scale + bias
    ),
    "scaled first": lambda x, mean, variance, scale, bias: (
        scale * (x - mean) / np.sqrt(variance) + bias
    ),
    "reciprocal": lambda x, mean, variance, scale, bias: (
        (x - mean) * (F(1) / np.sqrt(variance)) * scale + bias
    ),
    "Newton": by_newton,
    "folded": folded,
    "folded and fused": folded_and_fused,
}
