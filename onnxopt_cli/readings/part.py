"""Part of a call's elements, with reductions over all of them, so that large tensors have blocks.

A formula on the operands of a block comes as far as its first reduction. What that is of is kept,
block by block, and reduced; then every block comes as far as the next one, or to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

import numpy as np

from onnxopt_cli.core.blocks import in_blocks, joined
from onnxopt_cli.core.values import Array
from onnxopt_cli.formula.call import Call
from onnxopt_cli.readings.vocabulary import Joining, Percentile, Reduction, Row

Make = Callable[[Any], Any]

_reducing = Lock()


@dataclass(frozen=True, slots=True)
class Part(Call[Array]):
    """Elements of a call of one group, whose reductions are those of all elements.

    Attributes:
        whole: the call, a Call[Array].
        known: the results of its reductions, as far as they were needed, by formula and by what
            was computed with.
    """

    whole: Any = None
    known: dict[object, list[Any]] = field(default_factory=dict)

    def apply(self, scalar: Make, tensor: Make, number: Make) -> list[tuple[Any, Array, Array]]:
        """Call the formula as any call does, with operands that know what reductions yield."""
        whole = replace(self.whole, operator=self.operator)
        made: list[Any] = [tensor(self.groups[0][0][:0]), number(0.5)]
        types = [getattr(it, "value", it).dtype for it in made]
        known = self.known.setdefault((self.operator.formula, type(made[0]), *types), [])

        def results(call: Call[Array]) -> list[tuple[Any, Array, Array]]:
            reduced = iter(known)
            makes = [lambda it, m=m: _Operand(m(it), reduced) for m in (scalar, tensor, number)]
            return [(_plain(result), *like) for result, *like in Call.apply(call, *makes)]

        def reduced_of(places: slice) -> Any:
            try:
                return results(whole.at(places))
            except _ReductionReached as reached:
                return reached.args[1]

        while True:
            count = len(known)
            try:
                return results(self)
            except _ReductionReached as reached:
                function, _ = reached.args
                with _reducing:
                    if len(known) == count:
                        blocks = in_blocks(reduced_of, np.size(whole.groups[0][0]))
                        known.append(function(*map(_joined, zip(*blocks, strict=True))))


class _ReductionReached(Exception):
    """The formula needs what a function of all elements yields: it, and its operands here."""


class _Operand(Joining):
    """An operand of any reading, and what reductions yield, in the order in which they come."""

    def __init__(self, operand: Any, reduced: Iterator[Any]) -> None:
        self.operand, self.reduced = operand, reduced

    @property
    def dtype(self) -> Any:
        """The operand's type."""
        return self.operand.dtype

    def astype(self, dtype: Any) -> _Operand:
        """Return it rounded to a type on the way."""
        return _Operand(self.operand.astype(dtype), self.reduced)

    def applied(self, function: Callable[..., Any], row: Row, inputs: Sequence[Any]) -> Any:
        """Return what a function yields, if need be of all elements."""
        operands = list(map(_plain, inputs))
        if not isinstance(row, Reduction | Percentile):
            return _Operand(function(*operands), self.reduced)
        for result in self.reduced:
            return _Operand(result, self.reduced)
        raise _ReductionReached(function, operands)


def _plain(operand: Any) -> Any:
    return operand.operand if isinstance(operand, _Operand) else operand


def _joined(blocks: Sequence[Any]) -> Any:
    """Return the operand of all elements that has these blocks."""
    if hasattr(blocks[0], "joined"):
        return blocks[0].joined(blocks)
    return joined(blocks) if np.ndim(blocks[0]) else blocks[0]
