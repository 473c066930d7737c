"""Where a formula has a value, found out by asking it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from onnxopt_cli.formula.operator import Attribute, Operator


@cache
def nonnegative_tensors(operator: Operator) -> tuple[str, ...]:
    """Return the tensors for whose negative values the formula has no result."""
    return tuple(name for name in operator.tensors if undefined_at(operator, {name: -1.0}))


@cache
def is_elementwise(operator: Operator) -> bool:
    """Tell whether each element of a result depends on the elements in its place alone."""
    if any(map(operator.carries, operator.outputs)):
        return False
    random = np.random.RandomState(1)
    columns = {name: random.rand(7) for name in operator.tensors}
    alone = [
        _applied(operator, {name: column[place] for name, column in columns.items()})
        for place in range(7)
    ]
    return all(
        np.array_equal(together, apart, equal_nan=True)
        for together, apart in zip(
            _applied(operator, columns), zip(*alone, strict=True), strict=True
        )
    )


def undefined_at(operator: Operator, values: Mapping[str, float]) -> bool:
    """Tell whether the formula has no value where some operands have the given ones.

    The other tensors are zero, the other scalars one, the other attributes a half, or
    half-way between their limits.
    """
    given = {name: np.float64(value) for name, value in values.items()}
    return any(np.isnan(result) for result in _applied(operator, given))


def _applied(operator: Operator, values: Mapping[str, object]) -> tuple[Any, ...]:
    operands: dict[str, object] = {item.name: np.float64(1) for item in operator.scalars}
    operands |= dict.fromkeys(operator.tensors, np.float64(0))
    operands |= {
        item.name: item.choices[0] if item.choices else np.float64(_middle(item))
        for item in operator.attributes
    }
    with np.errstate(all="ignore"):
        return operator.formula(**operands | dict(values))


def _middle(attribute: Attribute) -> float:
    return 0.5 if attribute.limits is None else sum(attribute.limits) / 2
