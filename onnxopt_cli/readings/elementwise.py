"""Operators that work element by element, whose large tensors are computed in blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from onnxopt_cli.core.blocks import LARGE, in_blocks
from onnxopt_cli.core.values import Array
from onnxopt_cli.formula.call import Call
from onnxopt_cli.formula.operator import Operator
from onnxopt_cli.readings.vocabulary import (
    MatrixProduct,
    Percentile,
    Reduction,
    Row,
    Shorthand,
    row_of,
)


def has_blocks(call: Call[Any]) -> bool:
    """Tell whether a call is large, and can be computed block by block."""
    large = any(np.size(group[0]) >= LARGE for group in call.groups)
    return large and is_elementwise(call.operator)


def computed_in_blocks(
    call: Call[Array], compute: Callable[[Call[Array]], Sequence[Array]]
) -> list[Array]:
    """Return what is computed of a call of one group, by computing it of its blocks.

    Args:
        call: a call of an elementwise operator.
        compute: returns flat outputs of a call of flat tensors, whatever their number of elements.
    """
    first = call.groups[0][0]
    outputs = [np.empty(first.size, it.dtype) for it in compute(call.at(slice(0, 0)))]

    def fill(places: slice) -> None:
        for output, values in zip(outputs, compute(call.at(places)), strict=True):
            output[places] = values

    for _ in in_blocks(fill, first.size):
        pass
    return [output.reshape(first.shape) for output in outputs]


@cache
def is_elementwise(operator: Operator) -> bool:
    """Tell whether each element of a result depends on the elements in its place alone.

    The formula is called with operands that note which functions of the vocabulary it uses.
    """
    if any(map(operator.carries, operator.outputs)):
        return False
    rows: list[Row] = []
    operand = _Noting(rows)
    names = [*(it.name for it in operator.scalars), *operator.tensors]
    choices = {it.name: it.choices for it in operator.attributes if it.choices}
    try:
        for chosen in product(*choices.values()):
            attributes: dict[str, Any] = {it.name: operand for it in operator.attributes}
            attributes |= dict(zip(choices, chosen, strict=True))
            operator.formula(*(operand for _ in names), **attributes)
    except Exception:  # noqa: BLE001 - a wrong formula may fail in every way
        return False
    return not any(isinstance(row, Reduction | Percentile | MatrixProduct) for row in rows)


class _Noting(NDArrayOperatorsMixin):
    """An operand that notes what is done with it."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    def __bool__(self) -> bool:
        raise TypeError("the formula depends on a value in a way that cannot be followed")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        return self._noted(row_of(ufunc, method, options), inputs)

    def __array_function__(
        self, function: Callable[..., Any], _: Any, inputs: Sequence[Any], options: dict[str, Any]
    ) -> Any:
        return self._noted(row_of(function, "__call__", options), inputs)

    def _noted(self, row: Row, inputs: Sequence[Any]) -> Any:
        if isinstance(row, Shorthand):
            return row.written(*inputs)
        self._rows.append(row)
        return self
