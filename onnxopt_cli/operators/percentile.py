"""Percentiles with linear interpolation, defined also where NumPy's are NaN: beside infinity."""

from __future__ import annotations

from typing import Any

import numpy as np

# So many are a sample, as a power of two.
_SAMPLE = 14


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
    return interpolated(*neighbours(elements, rank), rank)


def neighbours(elements: Any, rank: Any) -> tuple[Any, Any]:
    """Return the elements of the whole ranks below and above one that may be fractional.

    Of many elements only those are put in order that are between two of a sample.
    """
    lower = int(rank)
    upper, step = min(lower + 1, elements.size - 1), 1 + (elements.size >> _SAMPLE)
    if step > 1:
        sample = np.sort(elements[::step])
        place, margin = lower // step, 1 << _SAMPLE // 2 + 2
        least, most = sample[max(place - margin, 0)], sample[min(place + margin, sample.size - 1)]
        below = int(np.count_nonzero(elements < least))
        between = elements[(elements >= least) & (elements <= most)]
        if below <= lower <= upper < below + between.size:
            elements, lower, upper = between, lower - below, upper - below
    ordered = np.partition(elements, [lower, upper])
    return ordered[lower], ordered[upper]


def interpolated(a: Any, b: Any, rank: Any) -> Any:
    """Return what has a rank, which may be fractional, between its neighbours."""
    fraction = rank - int(rank)
    return a if fraction == 0 or a == b else a + (b - a) * fraction
