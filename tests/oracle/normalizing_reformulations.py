"""Right ways to normalize in float32 that round differently, and one that cancels.

Each takes rows of float32 and returns their means and variances, or applies these.
"""

import numpy as np

F = np.float32


def in_order(x):
    return np.add.accumulate(x, axis=-1, dtype=F)[..., -1:]


def by_pairs(x):
    return x.sum(-1, keepdims=True, dtype=F)


def in_lanes(x, lanes=8):
    """Sum as a vector unit does: each lane in order, then the lanes."""
    padded = np.pad(x, [(0, 0), (0, -x.shape[-1] % lanes)])
    return in_order(in_order(np.moveaxis(padded.reshape(len(x), -1, lanes), 1, -1))[..., 0])


def in_double(x):
    return x.astype(np.float64).sum(-1, keepdims=True).astype(F)


def two_pass(total):
    def statistics(x):
        count = F(x.shape[-1])
        mean = total(x) / count
        return mean, total((x - mean) ** 2) / count

    return statistics


def by_reciprocal(x):
    share = F(1) / F(x.shape[-1])
    mean = by_pairs(x) * share
    return mean, by_pairs((x - mean) ** 2) * share


def corrected(x):
    """Take back what the rounded mean adds to the squares."""
    count = F(x.shape[-1])
    centred = x - by_pairs(x) / count
    variance = (by_pairs(centred**2) - by_pairs(centred) ** 2 / count) / count
    return by_pairs(x) / count, variance


def shifted(x):
    """Take one pass over what is left without the first element."""
    first, count = x[..., :1], F(x.shape[-1])
    mean = by_pairs(x - first) / count
    return first + mean, np.maximum(by_pairs((x - first) ** 2) / count - mean**2, F(0))


def welford(x):
    mean, squares = np.zeros(len(x), F), np.zeros(len(x), F)
    for place, column in enumerate(x.T, start=1):
        before = column - mean
        mean = mean + before / F(place)
        squares = squares + before * (column - mean)
    return mean[:, None], (squares / F(x.shape[-1]))[:, None]


def merged(x, length=64):
    """Welford's statistics of parts, merged as Chan does."""
    count, mean, squares = 0, F(0), F(0)
    for start in range(0, x.shape[-1], length):
        part = x[:, start : start + length]
        size = part.shape[-1]
        own, variance = welford(part)
        apart, together = own - mean, count + size
        squares = squares + variance * F(size) + apart**2 * F(count * size / together)
        mean, count = mean + apart * F(size / together), together
    return mean, squares / F(count)


def one_pass(x):
    """E(X^2) - E(X)^2, which cancels: wrong where the mean is large."""
    count = F(x.shape[-1])
    mean = by_pairs(x) / count
    return mean, by_pairs(x * x) / count - mean * mean


STATISTICS = {
    "two passes by pairs": two_pass(by_pairs),
    "two passes in order": two_pass(in_order),
    "two passes in lanes": two_pass(in_lanes),
    "two passes, sums in double": two_pass(in_double),
    "by the reciprocal of the count": by_reciprocal,
    "corrected": corrected,
    "shifted": shifted,
    "Welford": welford,
    "Chan": merged,
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
