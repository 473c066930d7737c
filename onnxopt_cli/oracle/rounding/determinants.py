"""To what a determinant is right, whatever algorithm computes it."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, lgamma, log
from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array

# How often rows and columns are balanced. Where zeros leave no product, that has no end.
_ROUNDS = 4
# Reflections mix small rows with large ones, and are off by as much more at most.
_MIXED = 64.0


def determinant_scale(_node: Any, given: Sequence[Any], _output: Array) -> Array:
    """Return the root mean square of the determinants of matrices like these.

    If rows of n elements have independent directions, the mean of det^2 is n! / n^n times the
    product of their squared lengths. A sum of n! products with random signs is as large, and so is
    the error of an expansion by cofactors, in roundings. Factorizations are nearer where the rank
    is low.

    That is the scale of rows and columns as they are, for reflections, as far as it is not much
    larger than when they are balanced, which is what elimination and cofactors keep to.

    Args:
        given: the matrices, in their last two axes.
    """
    matrices = given[0]
    count = matrices.shape[-1]
    if not count:
        return np.ones(matrices.shape[:-2])
    size = np.where(np.isfinite(matrices), np.abs(matrices), 0.0)
    mixed = np.maximum(*(np.prod(_lengths(size, axis), axis=(-1, -2)) for axis in (-1, -2)))
    balanced = np.ones(matrices.shape[:-2])
    for axis in (-1, -2) * _ROUNDS:
        lengths = _lengths(size, axis)
        balanced = balanced * np.prod(lengths, axis=(-1, -2))
        size = np.divide(size, lengths, out=np.zeros_like(size), where=lengths != 0)
    share = exp((lgamma(count + 1) - count * log(count)) / 2)
    return np.asarray(share * np.minimum(mixed, _MIXED * balanced))


def _lengths(size: Array, axis: int) -> Array:
    """Return lengths of rows or columns; one of zeros may be mixed with the largest."""
    lengths = np.sqrt(np.sum(size * size, axis=axis, keepdims=True))
    return np.where(lengths == 0, lengths.max(axis=(-1, -2), keepdims=True), lengths)
