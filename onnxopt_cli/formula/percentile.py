"""Percentiles with linear interpolation, defined also where NumPy's are NaN: beside infinity."""

from __future__ import annotations

from typing import Any

import numpy as np


def percentile(values: Any, percent: Any) -> Any:
    """Return the value below which the given percent of all elements lie.

    With the n elements sorted and h = (n - 1) * percent / 100, it is the element of rank h (counted
    from 0), or for a fractional h what lies between its neighbours a and b in a straight line::

        a + (b - a) * (h - floor(h))

    It is exactly a where h is whole or a = b, whatever is infinite. It is NaN if any element is,
    and if there is none. Finite elements give what ``numpy.percentile`` gives by default.

    Other operands than arrays join in through ``__array_function__``, as in NumPy's functions.

    Args:
        values: of any shape.
        percent: from 0 to 100.

    Raises:
        ValueError: if percent is out of range.
    """
    if hasattr(values, "__array_function__") and not isinstance(values, (np.ndarray, np.generic)):
        return values.__array_function__(percentile, (type(values),), (values, percent), {})
    if not 0 <= percent <= 100:  # noqa: PLR2004 - what percent means
        raise ValueError(f"a percentile of {percent} is asked for; from 0 to 100 there are")
    elements = np.ravel(values)
    if elements.size == 0 or np.isnan(elements).any():
        return elements.dtype.type(np.nan)
    rank = (elements.size - 1) * percent / 100
    return interpolated(np.sort(elements), rank)


def interpolated(ordered: Any, rank: Any) -> Any:
    """Return the element of a rank, which may be fractional, of elements in rising order."""
    lower = int(np.floor(rank))
    a, b = ordered[lower], ordered[min(lower + 1, ordered.size - 1)]
    fraction = rank - lower
    return a if fraction == 0 or a == b else a + (b - a) * fraction
