"""Sums of exponentials as runtimes form them: once the largest is known, or in one pass.

All yield the largest operand, or what stands for it, and the sum relative to its exponential.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from math import prod
from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.oracle.rounding.patched_functions import replaced

# Nothing is left of a logarithm that moves this far, and its exponential does not overflow.
MAX_MOVE = 100.0
#: Operators whose results are shares of such a sum, or logarithms of shares.
SHARES = frozenset({"LogSoftmax", "Softmax", "SoftmaxCrossEntropyLoss"})
#: Operators that divide by such a sum, or take its logarithm.
OPERATORS = frozenset({"LogSoftmax", "ReduceLogSumExp", "Softmax"})


def summed(x: Array, axes: Any) -> tuple[Array, Array]:
    """Subtract the largest of all, then add up."""
    largest = x.max(axis=axes, keepdims=True)
    total = np.sum(np.exp(x - largest), axis=axes, keepdims=True, dtype=x.dtype)
    return largest, total


def _online(x: Array, axes: Any) -> tuple[Array, Array]:
    """Subtract the largest so far, and scale the sum whenever there is a larger one."""
    terms, shape = _in_a_row(x, axes)
    largest = np.maximum.accumulate(terms)
    scales, powers = np.exp(largest[:-1] - largest[1:]), np.exp(terms - largest)
    total = powers[0]
    for scale, power in zip(scales, powers[1:], strict=True):
        total = np.where(np.isneginf(largest[-1]), total, total * scale + power)
    return largest[-1].reshape(shape), total.reshape(shape)


def _logarithmic(x: Array, axes: Any) -> tuple[Array, Array]:
    """Add up logarithms: ``logaddexp``."""
    terms, shape = _in_a_row(x, axes)
    total = np.logaddexp.reduce(terms)
    return total.reshape(shape), np.ones(shape, x.dtype)


def _plainly_logarithmic(x: Array, axes: Any) -> tuple[Array, Array]:
    """Add up logarithms with ``log(1 + exp(d))``, which rounds 1 + exp(d)."""
    terms, shape = _in_a_row(x, axes)
    # The difference of two infinities is NaN, and two of the lowest numbers add up to as much.
    terms = np.maximum(terms, np.finfo(x.dtype).min)
    total = terms[0]
    for term in terms[1:]:
        larger = np.maximum(total, term)
        total = larger + np.log(1 + np.exp(np.minimum(total, term) - larger))
    total = np.where(total == np.finfo(x.dtype).min, -np.inf, total).astype(x.dtype)
    return total.reshape(shape), np.ones(shape, x.dtype)


def _in_a_row(x: Array, axes: Any) -> tuple[Array, tuple[int, ...]]:
    """Return what is added up along the first axis, and the shape of the sums."""
    places = range(x.ndim) if axes is None else np.atleast_1d(axes).tolist()
    along = sorted(int(it) % x.ndim for it in places)
    shape = tuple(1 if at in along else size for at, size in enumerate(x.shape))
    moved = np.moveaxis(x, along, range(len(along)))
    return moved.reshape(prod(x.shape[at] for at in along), -1), shape


def moved_logarithms(move: Callable[[Array], Array]) -> AbstractContextManager[None]:
    """Perturb the logarithm of a sum in a block, as adding it to the largest operand does.

    Args:
        move: returns the error of the logarithm, given the largest operand.
    """
    kept = summed

    def moved(x: Array, axes: Any) -> tuple[Array, Array]:
        largest, total = kept(x, axes)
        finite = np.where(np.isfinite(largest), largest, 0.0)
        return largest, total * np.exp(np.clip(move(finite), -MAX_MOVE, MAX_MOVE))

    return replaced((sys.modules[__name__], "summed", moved))


def in_one_pass(*, of_logarithms: bool) -> list[AbstractContextManager[None]]:
    """Return what lets :func:`summed` be one of the others meanwhile, each one.

    Args:
        of_logarithms: whether there is an operator that yields the logarithm of such a sum.
    """
    module: Any = sys.modules[__name__]
    ways = (_online, _logarithmic, *([_plainly_logarithmic] if of_logarithms else ()))
    return [replaced((module, "summed", way)) for way in ways]
