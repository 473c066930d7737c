"""Float types by what rounding in them can cost."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Precision:
    """A type that an honest implementation computes in.

    Attributes:
        unit_roundoff: largest relative error of rounding to nearest.
        smallest_normal: below it a result may be flushed to zero.
        largest: above it a result is infinite.
        dtype: the type itself; None for the precision of numbers that have no type yet.
    """

    unit_roundoff: float
    smallest_normal: float
    largest: float
    dtype: np.dtype[Any] | None


#: Of attributes and literals, which take the type of what they meet: the errors of expressions of
#: these alone are counted as in float32, and scaled when the type is known.
UNTYPED = Precision(2.0**-24, 0.0, math.inf, None)


@cache
def precision_of(dtype: np.dtype[Any]) -> Precision:
    """Return the precision of a NumPy float type."""
    limits = np.finfo(dtype)
    return Precision(float(limits.eps) / 2, float(limits.smallest_normal), float(limits.max), dtype)


def coarsest(precisions: Iterable[Precision]) -> Precision:
    """Return the precision with the largest unit roundoff."""
    return max(precisions, key=lambda precision: precision.unit_roundoff)


def finest(precisions: Iterable[Precision]) -> Precision:
    """Return the precision with the smallest unit roundoff."""
    return min(precisions, key=lambda precision: precision.unit_roundoff)
