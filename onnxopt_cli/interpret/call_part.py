"""Compute a formula with reductions block by block.

The formula runs on each block up to its first reduction, such as a sum. The operands of the
reduction are collected from all blocks and reduced. Then the formula runs on each block again, with
the result of the reduction, up to the next reduction or to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count
from threading import Lock
from typing import Any

import numpy as np

from onnxopt_cli.core.blocks import in_blocks, joined
from onnxopt_cli.core.values import Array
from onnxopt_cli.interpret.vocabulary import (
    Joining,
    Percentile,
    Reduction,
    Row,
)
from onnxopt_cli.operators.call import Call

Make = Callable[[Any], Any]

_reducing = Lock()


@dataclass(frozen=True, slots=True)
class Part(Call[Array]):
    """Some elements of a call of one group, whose reductions include all elements.

    Attributes:
        whole: the whole call, a Call[Array].
        expressions: a unique object for each expression of the formula, by the function and the
            expressions of its operands.
        reduced: results of the reductions computed so far, by expression. Formulas that differ only
            after a reduction, such as mutants, share its result.
    """

    whole: Any = None
    expressions: dict[object, object] = field(default_factory=dict)
    reduced: dict[object, Any] = field(default_factory=dict)

    def expression(self, *parts: object) -> object:
        """Return the object that identifies an expression; the same in all threads."""
        return self.expressions.setdefault(parts, object())

    def apply(self, scalar: Make, tensor: Make, number: Make) -> list[tuple[Any, Array, Array]]:
        """Call the formula like :meth:`Call.apply`; its reductions include all elements."""
        whole_call = replace(self.whole, operator=self.operator)

        def results(call: Call[Array]) -> list[tuple[Any, Array, Array]]:
            place = count()

            def made(make: Make, value: Any) -> _Operand:
                operand = make(value)
                # All kinds of arrays, including subclasses of ndarray, share expressions.
                interpretation = type(operand) if isinstance(operand, Joining) else None
                dtype = np.result_type(getattr(operand, "value", operand))
                return _Operand(operand, self.expression(next(place), interpretation, dtype), self)

            makers = (partial(made, make) for make in (scalar, tensor, number))
            outputs = Call.apply(call, *makers)
            return [(_plain(result), like, first) for result, like, first in outputs]

        def reduced_of(places: slice) -> Any:
            try:
                return results(whole_call.at(places))
            except _ReductionReached as reached:
                return reached.args[2]

        while True:
            try:
                return results(self)
            except _ReductionReached as reached:
                function, expression, _ = reached.args
                with _reducing:
                    if expression not in self.reduced:
                        size = np.size(whole_call.groups[0][0])
                        blocks = in_blocks(reduced_of, size)
                        # Further operands, such as a percent, are the same for all blocks.
                        first, *further = next(blocks)
                        parts = chain([first], (part for part, *_ in blocks))
                        elements = _joined(first, parts, size)
                        self.reduced[expression] = function(elements, *further)


class _ReductionReached(Exception):
    """The formula needs the result of a reduction that has not been computed.

    The arguments are the function, its expression, and its operands in a block.
    """


class _Operand(Joining):
    """An operand of any interpretation, with the expression whose value it is, and its part."""

    def __init__(self, operand: Any, expression: object, part: Part) -> None:
        self.operand, self.expression, self.part = operand, expression, part

    @property
    def dtype(self) -> Any:
        """The operand's type."""
        return self.operand.dtype

    def astype(self, dtype: Any) -> _Operand:
        """Return the operand rounded to a type."""
        expression = self.part.expression("astype", np.dtype(dtype), self.expression)
        return _Operand(self.operand.astype(dtype), expression, self.part)

    def applied(self, function: Callable[..., Any], row: Row, inputs: Sequence[Any]) -> Any:
        """Return the result of a function; of a reduction, the result for all elements."""
        expression = self.part.expression(function, *map(_expression, inputs))
        operands = list(map(_plain, inputs))
        if not isinstance(row, Reduction | Percentile):
            result = function(*operands)
        elif expression in self.part.reduced:
            result = self.part.reduced[expression]
        else:
            raise _ReductionReached(function, expression, operands)
        return _Operand(result, expression, self.part)


def _plain(operand: Any) -> Any:
    return operand.operand if isinstance(operand, _Operand) else operand


def _expression(operand: Any) -> object:
    # Key constants by type and repr: 1 == 1.0, and NaN != NaN.
    return operand.expression if isinstance(operand, _Operand) else (type(operand), repr(operand))


def _joined(first: Any, blocks: Iterable[Any], size: int) -> Any:
    """Return the operand of all elements, given its blocks; a scalar is equal in all blocks."""
    if hasattr(first, "joined"):
        return first.joined(blocks, size)
    return joined(((block,) for block in blocks), size)[0] if np.ndim(first) else first
