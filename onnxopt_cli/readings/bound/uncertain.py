"""Tensors that come out of nodes and go into others: their errors are carried along.

The reference goes its own way from the first node on, in the wide type, and is not rounded in
between. Where rounding decides a choice, the error covers both sides of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.formula.call import Call
from onnxopt_cli.readings.bound.bound import FACTOR, Judgement, bounded_outputs, judged
from onnxopt_cli.readings.bound.bounded import Bounded, Level, either, given, output
from onnxopt_cli.readings.bound.precision import Precision, precision_of
from onnxopt_cli.readings.evaluate import WIDE, rounded


@dataclass(frozen=True, slots=True, eq=False)
class Uncertain:
    """A tensor that is known up to an error, or an array that is not.

    Attributes:
        dtype: element type.
        shape: its shape.
        exactly: the array; None if there is an error.
        bounded: value and error; None if there is none.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    exactly: Array | None = None
    bounded: Bounded | None = None

    @classmethod
    def exact(cls, array: Array) -> Uncertain:
        """Return an array that is known."""
        return cls(array.dtype, array.shape, exactly=array)

    def operand(self, precision: Precision, level: Level) -> Bounded:
        """Return it as an operand that an implementation may convert to a precision."""
        scalar = level is Level.SCALAR
        if self.bounded is None:
            assert self.exactly is not None  # noqa: S101 - for the type checker: one of them is
            return given(self.exactly.reshape(()) if scalar else self.exactly, precision, level)
        bounded = replace(self.bounded, level=level)
        return output(bounded, precision) if bounded.precision is not precision else bounded

    @property
    def tensor(self) -> Bounded:
        """It as an operand in its own type."""
        return self.operand(precision_of(self.dtype), Level.TENSOR)

    @property
    def array(self) -> Array:
        """The array, or the one that is nearest to the value."""
        if self.exactly is not None:
            return self.exactly
        return rounded(self.value, self.dtype, self.shape)

    @property
    def value(self) -> Array:
        """The value in the wide type."""
        return np.broadcast_to(np.asarray(self.tensor.value, WIDE), self.shape)

    @property
    def error(self) -> Array:
        """The bound on the error, float64."""
        return np.broadcast_to(np.float64(self.tensor.error), self.shape)

    def judgement(self, factor: float = FACTOR) -> Judgement:
        """Return what an output must be, and how far off it may be."""
        return judged(self.value, self.error, self.dtype, self.shape, factor)


def uncertain_outputs(call: Call[Uncertain]) -> list[Uncertain]:
    """Return the outputs of a node in its order."""
    return call.by_group(_part)


def _part(call: Call[Uncertain]) -> list[Uncertain]:
    results = bounded_outputs(
        call,
        lambda scalar, precision: scalar.operand(precision, Level.SCALAR),
        lambda tensor, precision: tensor.operand(precision, Level.TENSOR),
    )
    return [
        Uncertain(like.dtype, first.shape, bounded=_whole(either(bounded), first.shape))
        for bounded, like, first in results
    ]


def _whole(bounded: Bounded, shape: tuple[int, ...]) -> Bounded:
    """Return what a formula yields as a tensor: a mask may be integers, a constant one number."""
    return replace(bounded, value=np.broadcast_to(np.asarray(bounded.value, WIDE), shape))
