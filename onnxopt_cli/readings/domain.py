"""Where a formula has a value, found out by asking it."""

from __future__ import annotations

from functools import cache

import numpy as np

from onnxopt_cli.operators.operator import Operator


@cache
def nonnegative_tensors(operator: Operator) -> tuple[str, ...]:
    """Return the tensors for whose negative values the formula has no result.

    They are found by making one of them -1 and all others zero.
    """
    return tuple(name for name in operator.tensors if _fails_below_zero(operator, name))


def _fails_below_zero(operator: Operator, name: str) -> bool:
    operands = {item.name: np.float64(1) for item in operator.scalars}
    operands |= {item: np.float64(item == name and -1) for item in operator.tensors}
    attributes = {
        item.name: item.choices[0] if item.choices else np.float64(0.5)
        for item in operator.attributes
    }
    with np.errstate(all="ignore"):
        return any(np.isnan(result) for result in operator.formula(**operands, **attributes))
