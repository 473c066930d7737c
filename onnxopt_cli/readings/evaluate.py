"""The formula on numbers: computed in a wide type, rounded once to each output's type."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.formula.call import Call
from onnxopt_cli.formula.operator import Attribute, Operator
from onnxopt_cli.readings.elementwise import computed_in_blocks, has_blocks

#: The widest float that NumPy computes in here: 80 bits on x86, double on some other machines.
WIDE = np.dtype(np.longdouble)


def evaluate(
    call: Call[Array], dtype: np.dtype[Any] = WIDE, attributes: np.dtype[Any] | None = None
) -> list[Array]:
    """Return the node's outputs, each in its own dtype and the shape of its group's first tensor.

    R's, T's and the tensors' values and the float32 attributes enter exactly; every operation is
    carried out in :data:`WIDE`; only the result is rounded. What is computed in another dtype, or
    has its attributes in another one, is one more implementation, and no reference.
    """

    def compute(call: Call[Array]) -> list[Array]:
        with np.errstate(all="ignore"):
            return [
                rounded(result, like.dtype, np.shape(first))
                for result, like, first in call.apply(
                    lambda scalar: scalar.reshape(()).astype(dtype),
                    lambda tensor: tensor.astype(dtype),
                    (attributes or dtype).type,
                )
            ]

    if has_blocks(call):
        return call.by_group(lambda part: computed_in_blocks(part, compute))
    return compute(call)


def widen(tensor: Array) -> Array:
    """Return the tensor in the wide type."""
    return tensor.astype(WIDE)


def one_element(tensor: Array) -> Array:
    """Return a tensor of one element, of whatever rank, as a wide scalar."""
    return tensor.reshape(()).astype(WIDE)


def rounded(result: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Round a formula's result to an output's dtype and give it the output's shape."""
    return np.broadcast_to(np.asarray(result), shape).astype(dtype)


@cache
def nonnegative_tensors(operator: Operator) -> tuple[str, ...]:
    """Return the tensors for whose negative values the formula has no result."""
    return tuple(name for name in operator.tensors if undefined_at(operator, {name: -1.0}))


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
