"""Where an operation of the bound reading rounds nothing, whatever its rule allows for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxopt_cli.readings.bound.precision import Precision

if TYPE_CHECKING:
    from onnxopt_cli.readings.bound.bounded import Bounded

#: Operations whose exact result every honest evaluation yields in a type that can hold it.
UNROUNDED = frozenset({np.add, np.subtract, np.absolute, np.negative})


def is_unrounded(operands: Sequence[Bounded], result: Bounded) -> Any:
    """Tell where operands are exact, and so is the result, because its type can hold it."""
    exact: Any = np.bool_(True)
    for operand in operands:
        exact = exact & (operand.doubt == 0)
    normal = (result.value == 0) | (result.magnitude >= result.precision.smallest_normal)
    return exact & normal & is_held(result.value, result.precision)


def rounding(operand: Bounded, precision: Precision) -> Any:
    """Return the error of rounding to a type, which what it can hold does not have.

    Infinity and NaN are among it.
    """
    error = precision.unit_roundoff * operand.magnitude
    if not (error < np.inf).all():
        error = np.where(error < np.inf, error, 0.0)
    exact = operand.error == 0
    return np.where(exact & is_held(operand.value, precision), 0.0, error) if exact.any() else error


def is_held(value: Any, precision: Precision) -> Any:
    """Tell where a type can hold a value, which no type is known to be able to."""
    if precision.dtype is None:
        return np.bool_(False)
    return value == np.asarray(value).astype(precision.dtype)
