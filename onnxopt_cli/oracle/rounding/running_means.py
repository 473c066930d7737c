"""Means that are updated at each term, as in Welford's recurrence, for rows of any length."""

from __future__ import annotations

import numpy as np

from onnxopt_cli.core.values import Array

# In rows of at most this number of terms, the recurrence takes one step in Python for each term.
_MAX_STEPS = 1 << 13
# With at least this number of rows, the recurrence takes one step for each term even in long rows.
_MANY_ROWS = 32
# The number of terms in a section. If there are few long rows, all steps of a section are computed
# together.
_SECTION_TERMS = 1 << 11
# The largest number of sweeps over a section.
_MAX_SWEEPS = 10


def running_means(terms: Array) -> Array:
    """Return, for each k, the mean of the first k terms along the first axis.

    If m is the mean of all terms before the k-th term x, the mean of k terms is m + (x - m) / k,
    computed in the type of the terms.
    """
    means = np.empty_like(terms)
    mean = np.zeros_like(terms[0])
    if len(terms) <= _MAX_STEPS or mean.size >= _MANY_ROWS:
        for place, term in enumerate(terms):
            mean = mean + (term - mean) / terms.dtype.type(place + 1)
            means[place] = mean
        return means
    for first in range(0, len(terms), _SECTION_TERMS):
        section = slice(first, first + _SECTION_TERMS)
        means[section] = _means_of_section(terms[section], first, mean)
        mean = means[section][-1]
    return means


def means_before(means: Array, mean: Array | float = 0.0) -> Array:
    """Return, for each term, the mean of all earlier terms; ``mean`` for the first term."""
    return np.concatenate([np.full_like(means[:1], mean), means[:-1]])


def _means_of_section(terms: Array, first: int, mean: Array) -> Array:
    """Return the running mean after each term of a section, by a fixed-point iteration.

    If step j has the rounding error d_j, the mean of k terms has the error
    (1 d_1 + ... + k d_k) / k. Each sweep computes the rounding errors of all steps from the means
    of the previous sweep, and new means from these errors. If a sweep changes no mean, the means
    are exactly those of the recurrence. If the sweeps end earlier, the errors of the means are as
    large as those of the recurrence.

    Args:
        terms: the terms of the section.
        first: the number of terms before the section.
        mean: the computed mean of these terms.
    """
    wide = np.dtype(
        np.float64 if terms.dtype.itemsize < np.dtype(float).itemsize else np.longdouble
    )
    counts = np.arange(first + 1, first + len(terms) + 1).reshape(-1, *[1] * mean.ndim)
    wide_counts, narrow_counts = counts.astype(wide), counts.astype(terms.dtype)
    exact = (first * mean.astype(wide) + np.add.accumulate(terms, dtype=wide)) / wide_counts
    means = exact.astype(terms.dtype)
    for _ in range(_MAX_SWEEPS):
        before = means_before(means, mean)
        after = before + (terms - before) / narrow_counts
        errors = (after.astype(wide) - before) * wide_counts - (terms.astype(wide) - before)
        revised = (exact + np.add.accumulate(errors) / wide_counts).astype(terms.dtype)
        if np.array_equal(revised, means):
            break
        means = revised
    return means
