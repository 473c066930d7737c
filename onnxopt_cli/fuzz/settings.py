"""Values that an example's attributes and scalars may have: where the formula has a result."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from onnxopt_cli.core.values import DTYPES, Array
from onnxopt_cli.formula.operator import Attribute, AttributeValue, Operator, Scalar
from onnxopt_cli.fuzz.source import Source
from onnxopt_cli.readings.evaluate import WIDE, undefined_at

_FRACTIONS = (
    0.5, 0.0, 0.9, 0.1, 0.25, 0.75, 0.999, 0.9999, 0.01, 0.3, 1e-3, 1e-6, 1e-8, 1.0, 1.5, 2.0, -0.5,
    float(np.nextafter(np.float32(1), np.float32(0))), 1e-30,
)  # fmt: skip
#: Where between its limits an attribute is drawn.
_SHARES = (0.5, 0.0, 1.0, 0.25, 0.8, 0.333, 0.6, 0.995, 0.01)
_COUNTS = (
    *range(13), 20, 31, 99, 100, 1000, 12345, 2**20, 2**24 + 1, 2**31 + 5, 2**32 + 1, -1, -7,
)  # fmt: skip
#: Rates stay finite: what an infinite one makes of zero depends on the order of operations.
_RATES = (1.0, 0.1, 0.5, 2.0, 0.0, 1e-3, 0.3, 1e-8, -0.1, 1e4, 1e-30, 1e20, float("nan"))

#: One element of some rank counts as a scalar.
_RANKS = (0, 0, 0, 1, 2)


def draw_attributes(source: Source, operator: Operator, groups: int) -> dict[str, AttributeValue]:
    """Draw the attributes that a node gives; optional ones may be left out."""
    attributes: dict[str, AttributeValue] = {}
    for attribute in operator.attributes:
        if attribute.choices:
            attributes[attribute.name] = source.choice(attribute.choices)
            continue
        numbers = _numbers(operator, attribute)
        # Left out in one of three examples where that is allowed.
        omissions = 0 if attribute.required else len(numbers) // 2
        place = source.integer(0, omissions + len(numbers) - 1) - omissions
        if place < 0:
            continue
        if attribute.each:
            more = groups - 1 if groups > 1 and source.integer(0, 1) else 0
            others = [source.choice(numbers) for _ in range(more)]
            attributes[attribute.name] = (numbers[place], *others)
        else:
            attributes[attribute.name] = numbers[place]
    return attributes


def draw_scalar(source: Source, scalar: Scalar) -> Array:
    """Draw a tensor of one element: a count, or a finite rate or NaN."""
    rank, dtype, value = source.choice(_scalars(scalar))
    return np.full((1,) * rank, value, dtype)


def has_result(
    operator: Operator, attributes: Mapping[str, AttributeValue], scalars: Mapping[str, Array]
) -> bool:
    """Tell whether the formula has a finite result where all tensors are one.

    Where it has none, such as where a rate is divided by zero, the order of operations decides
    about what comes back, and every order is right.
    """
    operands: dict[str, object] = dict.fromkeys(operator.tensors, WIDE.type(1))
    for name, value in scalars.items():
        number = value.reshape(()).astype(WIDE)[()]
        # NaN makes everything NaN, in any order.
        operands[name] = WIDE.type(1) if np.isnan(number) else number
    for attribute in operator.attributes:
        given = attributes.get(attribute.name, attribute.default)
        first = given[0] if isinstance(given, tuple) else given
        operands[attribute.name] = first if isinstance(first, str) else WIDE.type(np.float32(first))
    with np.errstate(all="ignore"):
        return bool(np.all([np.isfinite(result) for result in operator.formula(**operands)]))


@cache
def _numbers(operator: Operator, attribute: Attribute) -> tuple[float, ...]:
    if attribute.limits is not None:
        least, most = attribute.limits
        return tuple(round(least + share * (most - least), 3) for share in _SHARES)
    return tuple(
        value for value in _FRACTIONS if not undefined_at(operator, {attribute.name: value})
    )


@cache
def _scalars(scalar: Scalar) -> tuple[tuple[int, np.dtype[Any], float], ...]:
    return tuple(
        (rank, DTYPES[name], value)
        for rank in _RANKS
        for name in scalar.dtypes
        for value in (_COUNTS if DTYPES[name].kind == "i" else _RATES)
    )
