"""Percentiles with linear interpolation.

NumPy's percentile returns NaN next to an infinite element, even if no interpolation is needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# Binary logarithm of the number of elements in the sample.
_SAMPLE_BITS = 14


def percentile(values: Any, percent: Any) -> Any:
    """Return a percentile of all elements, with linear interpolation.

    Let the n elements be sorted in ascending order, and let h = (n - 1) * percent / 100. If h is an
    integer, the percentile is the element of rank h, counted from 0. If h is not an integer, the
    percentile is interpolated between the elements a and b of the ranks below and above h::

        a + (b - a) * (h - floor(h))

    If h is an integer or a = b, the result is exactly a, even if a is infinite. The result is NaN
    if an element is NaN or the tensor is empty. For finite elements the result equals the default
    of ``numpy.percentile``.

    Operands other than arrays are handled by their ``__array_function__``, as in NumPy's functions.

    Args:
        values: a tensor of any shape.
        percent: a number from 0 to 100.

    Raises:
        ValueError: if percent is out of range.
    """
    if hasattr(values, "__array_function__") and not isinstance(values, (np.ndarray, np.generic)):
        return values.__array_function__(percentile, (type(values),), (values, percent), {})
    if not 0 <= percent <= 100:  # noqa: PLR2004 - the largest percent
        raise ValueError(f"the percent is {percent}; expected a number from 0 to 100")
    elements = np.ravel(values)
    if elements.size == 0 or np.isnan(elements).any():
        return elements.dtype.type(np.nan)
    rank = (elements.size - 1) * percent / 100
    return interpolated(*neighbours(elements, rank), rank)


def neighbours(elements: Any, rank: Any) -> tuple[Any, Any]:
    """Return the elements at the integer ranks below and above a given rank.

    If there are many elements, a sorted sample provides two limits. Both results very probably lie
    between these limits. To save time, only the elements between the limits are partitioned.
    """
    lower = int(rank)
    upper, step = min(lower + 1, elements.size - 1), 1 + (elements.size >> _SAMPLE_BITS)
    if step > 1:
        sample = np.sort(elements[::step])
        place, margin = lower // step, 1 << _SAMPLE_BITS // 2 + 2
        least, most = sample[max(place - margin, 0)], sample[min(place + margin, sample.size - 1)]
        below = int(np.count_nonzero(elements < least))
        between = elements[(elements >= least) & (elements <= most)]
        if below <= lower <= upper < below + between.size:
            elements, lower, upper = between, lower - below, upper - below
    ordered = np.partition(elements, [lower, upper])
    return ordered[lower], ordered[upper]


def interpolated(a: Any, b: Any, rank: Any) -> Any:
    """Return the interpolation between two neighbours at a rank."""
    fraction = rank - int(rank)
    return a if fraction == 0 or a == b else a + (b - a) * fraction
