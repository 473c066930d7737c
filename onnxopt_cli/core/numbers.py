"""Format numbers briefly for messages and reports."""

from __future__ import annotations

import math

import numpy as np


def error(number: float | None) -> str:
    """Return an error with three digits; a dash for None."""
    if number is None:
        return "-"
    if number == 0:
        return "0"
    return f"{number:.3g}" if math.isfinite(number) else str(number)


def count(number: int | None) -> str:
    """Return a whole number, in scientific notation from 10 million on; a dash for None."""
    if number is None:
        return "-"
    return str(number) if number < 10**7 else f"{number:.1e}"


def element(value: object, kind: str) -> str:
    """Return a tensor's element with only as many digits as its dtype can represent.

    Args:
        value: a Python number, bool or string.
        kind: the tensor's dtype and shape, as in ``float32[2,3]``.
    """
    if isinstance(value, float):
        if kind.startswith("float64"):
            return repr(value)
        # A saved report is not validated: its number may be beyond the range of float32.
        with np.errstate(over="ignore"):
            return str(np.float32(value)) if kind.startswith("float32") else f"{value:g}"
    return repr(value) if isinstance(value, str) else str(value)
