"""Sums of exponentials exp(x - m), where m is the largest operand, by the algorithms of runtimes.

Each summing function returns m and the sum. Some algorithms compute the logarithm of the sum of
exp(x) instead. Their functions return this logarithm in place of m, and 1 in place of the sum.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from math import prod
from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.oracle.patching import replaced

# The largest injected error of a logarithm. A logarithm with this error has no correct digit, but
# the exponential of the error does not overflow.
_MAX_MOVE = 100.0
#: Operators whose results are the shares exp(x) / sum, or the logarithms of these shares.
SHARES = frozenset({"LogSoftmax", "Softmax", "SoftmaxCrossEntropyLoss"})
#: Operators that divide by a sum of exponentials, or take its logarithm.
OPERATORS = frozenset({"LogSoftmax", "ReduceLogSumExp", "Softmax"})


def summed(x: Array, axes: Any) -> tuple[Array, Array]:
    """Return the largest operand m along axes, and the sum of exp(x - m)."""
    largest = x.max(axis=axes, keepdims=True)
    total = np.sum(np.exp(x - largest), axis=axes, keepdims=True, dtype=x.dtype)
    return largest, total


def _online(x: Array, axes: Any) -> tuple[Array, Array]:
    """Return m and the sum as :func:`summed`, in one pass: each new maximum rescales the sum."""
    terms, shape = _terms(x, axes)
    largest = np.maximum.accumulate(terms)
    scales, powers = np.exp(largest[:-1] - largest[1:]), np.exp(terms - largest)
    total = powers[0]
    for scale, power in zip(scales, powers[1:], strict=True):
        total = np.where(np.isneginf(largest[-1]), total, total * scale + power)
    return largest[-1].reshape(shape), total.reshape(shape)


def _logarithmic(x: Array, axes: Any) -> tuple[Array, Array]:
    """Return the logarithm of each sum, computed by ``logaddexp``, and ones."""
    terms, shape = _terms(x, axes)
    total = np.logaddexp.reduce(terms)
    return total.reshape(shape), np.ones(shape, x.dtype)


def _logarithmic_without_log1p(x: Array, axes: Any) -> tuple[Array, Array]:
    """Return the logarithm of each sum, computed with ``log(1 + exp(d))`` per term, and ones."""
    terms, shape = _terms(x, axes)
    # The lowest finite number stands for -inf, because the difference of two infinities would be
    # NaN. Adding log(2) to this number has no effect, because the result is rounded to the number.
    terms = np.maximum(terms, np.finfo(x.dtype).min)
    total = terms[0]
    for term in terms[1:]:
        larger = np.maximum(total, term)
        total = larger + np.log(1 + np.exp(np.minimum(total, term) - larger))
    total = np.where(total == np.finfo(x.dtype).min, -np.inf, total).astype(x.dtype)
    return total.reshape(shape), np.ones(shape, x.dtype)


def _terms(x: Array, axes: Any) -> tuple[Array, tuple[int, ...]]:
    """Return a matrix with the terms of one sum in each column, and the shape of the sums."""
    places = range(x.ndim) if axes is None else np.atleast_1d(axes).tolist()
    along = sorted(int(axis) % x.ndim for axis in places)
    shape = tuple(1 if at in along else size for at, size in enumerate(x.shape))
    moved = np.moveaxis(x, along, range(len(along)))
    return moved.reshape(prod(x.shape[at] for at in along), -1), shape


def moved_logarithms(move: Callable[[Array], Array]) -> AbstractContextManager[None]:
    """Perturb the logarithm of a sum in a ``with`` block.

    The largest operand is added to the logarithm. The rounding error of this addition is injected.

    Args:
        move: takes the largest operand and returns the rounding error of the addition.
    """
    exact_sum = summed

    def moved(x: Array, axes: Any) -> tuple[Array, Array]:
        largest, total = exact_sum(x, axes)
        finite = np.where(np.isfinite(largest), largest, 0.0)
        return largest, total * np.exp(np.clip(move(finite), -_MAX_MOVE, _MAX_MOVE))

    return replaced((sys.modules[__name__], "summed", moved))


def in_one_pass(*, of_logarithms: bool) -> list[Callable[[], AbstractContextManager[None]]]:
    """Return functions whose context managers replace :func:`summed` by one-pass algorithms.

    Args:
        of_logarithms: whether to include an algorithm for nodes that return logarithms of the sums.
    """
    module: Any = sys.modules[__name__]
    without_log1p = [_logarithmic_without_log1p] if of_logarithms else []
    algorithms = (_online, _logarithmic, *without_log1p)
    return [partial(replaced, (module, "summed", algorithm)) for algorithm in algorithms]
