"""Part of a call's elements, with reductions over all of them, so that large tensors have blocks.

A formula on the operands of a block comes as far as its first reduction. What that is of is kept,
block by block, and reduced; then every block comes as far as the next one, or to the end.
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
    """Elements of a call of one group, whose reductions are those of all elements.

    Attributes:
        whole: the call, a Call[Array].
        expressions: what stands for each, by its function and what stands for its operands.
        reduced: the results of reductions, as far as they were needed, by what stands for them:
            formulas that differ only after one share it.
    """

    whole: Any = None
    expressions: dict[object, object] = field(default_factory=dict)
    reduced: dict[object, Any] = field(default_factory=dict)

    def expression(self, *parts: object) -> object:
        """Return what stands for an expression, in every thread."""
        return self.expressions.setdefault(parts, object())

    def apply(self, scalar: Make, tensor: Make, number: Make) -> list[tuple[Any, Array, Array]]:
        """Call the formula as any call does, with operands that know what reductions yield."""
        whole = replace(self.whole, operator=self.operator)

        def results(call: Call[Array]) -> list[tuple[Any, Array, Array]]:
            place = count()

            def made(make: Make, value: Any) -> _Operand:
                operand = make(value)
                # Arrays are what they are, of whatever class.
                reading = type(operand) if isinstance(operand, Joining) else None
                dtype = np.result_type(getattr(operand, "value", operand))
                return _Operand(operand, self.expression(next(place), reading, dtype), self)

            found = Call.apply(call, *(partial(made, make) for make in (scalar, tensor, number)))
            return [(_plain(result), like, first) for result, like, first in found]

        def reduced_of(places: slice) -> Any:
            try:
                return results(whole.at(places))
            except _ReductionReached as reached:
                return reached.args[2]

        while True:
            try:
                return results(self)
            except _ReductionReached as reached:
                function, expression, _ = reached.args
                with _reducing:
                    if expression not in self.reduced:
                        size = np.size(whole.groups[0][0])
                        blocks = in_blocks(reduced_of, size)
                        # What comes beside the elements is the same for all of them.
                        first, *others = next(blocks)
                        elements = _joined(first, chain([first], (it for it, *_ in blocks)), size)
                        self.reduced[expression] = function(elements, *others)


class _ReductionReached(Exception):
    """The formula needs what a function of all elements yields: it, the expression, operands."""


class _Operand(Joining):
    """An operand of any reading, what stands for its expression, and the part that it is of."""

    def __init__(self, operand: Any, expression: object, part: Part) -> None:
        self.operand, self.expression, self.part = operand, expression, part

    @property
    def dtype(self) -> Any:
        """The operand's type."""
        return self.operand.dtype

    def astype(self, dtype: Any) -> _Operand:
        """Return it rounded to a type on the way."""
        expression = self.part.expression("astype", np.dtype(dtype), self.expression)
        return _Operand(self.operand.astype(dtype), expression, self.part)

    def applied(self, function: Callable[..., Any], row: Row, inputs: Sequence[Any]) -> Any:
        """Return what a function yields, if need be of all elements."""
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
    # Of a constant, what is equal may be another type, and what is none may not be equal to itself.
    return operand.expression if isinstance(operand, _Operand) else (type(operand), repr(operand))


def _joined(first: Any, blocks: Iterable[Any], size: int) -> Any:
    """Return the operand of all elements that has these blocks; of a scalar it is the first."""
    if hasattr(first, "joined"):
        return first.joined(blocks, size)
    return joined(((block,) for block in blocks), size)[0] if np.ndim(first) else first
