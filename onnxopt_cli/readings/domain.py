"""Where a formula has a value, found out by asking it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np

from onnxopt_cli.operators.operator import Operator


@cache
def nonnegative_tensors(operator: Operator) -> tuple[str, ...]:
    """Return the tensors for whose negative values the formula has no result."""
    return tuple(name for name in operator.tensors if undefined_at(operator, {name: -1.0}))


def undefined_at(operator: Operator, values: Mapping[str, float]) -> bool:
    """Tell whether the formula has no value where some operands have the given ones.

    The other tensors are zero, the other scalars one, the other attributes a half.
    """
    operands: dict[str, object] = {item.name: np.float64(1) for item in operator.scalars}
    operands |= dict.fromkeys(operator.tensors, np.float64(0))
    operands |= {
        item.name: item.choices[0] if item.choices else np.float64(0.5)
        for item in operator.attributes
    }
    operands |= {name: np.float64(value) for name, value in values.items()}
    with np.errstate(all="ignore"):
        return any(np.isnan(result) for result in operator.formula(**operands))
