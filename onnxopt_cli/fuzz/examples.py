"""Examples of all sorts: what must be refused, one by one, and what hypothesis chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Never, TypeVar

from onnxopt_cli.formula.operator import Operator
from onnxopt_cli.fuzz.breaches import breaches
from onnxopt_cli.fuzz.example import Example
from onnxopt_cli.fuzz.graph_example import draw_graph
from onnxopt_cli.fuzz.node_example import draw_node
from onnxopt_cli.fuzz.source import Source, rarely

T = TypeVar("T")

#: About one example in so many has several nodes.
_GRAPHS = 10


@cache
def examples(operators: tuple[Operator, ...]) -> Any:
    """Return a hypothesis strategy of examples of some operators."""
    from hypothesis import strategies

    @strategies.composite
    def drawn(draw: Callable[[Any], Any]) -> Example:
        return _draw(_Source(draw), operators)

    return drawn()


def _draw(source: Source, operators: Sequence[Operator]) -> Example:
    if rarely(source, _GRAPHS):
        return draw_graph(source, operators)
    return draw_node(source, source.choice(operators))


def refusals(operators: Sequence[Operator]) -> Iterator[tuple[Example, list[Example]]]:
    """Yield a simple node of each operator, and with it each way to break its signature once.

    They are too few to be left to chance.
    """
    for operator in operators:
        node = draw_node(_Simplest(), operator)
        yield node, [replace(node, broken=broken) for broken in breaches(operator)]


class _Simplest:
    """The simplest choices."""

    def choice(self, options: Sequence[T]) -> T:
        return options[0]

    def integer(self, least: int, most: int) -> int:
        return min(max(0, least), most)

    def reject(self) -> Never:
        raise AssertionError("the simplest node of an operator has no result")


class _Source:
    """Choices that hypothesis makes."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self._draw = draw

    def choice(self, options: Sequence[T]) -> T:
        return options[self.integer(0, len(options) - 1)]

    def integer(self, least: int, most: int) -> int:
        return least if least == most else self._draw(_integers(least, most))

    def reject(self) -> Never:
        import hypothesis

        hypothesis.reject()


@cache
def _integers(least: int, most: int) -> Any:
    from hypothesis import strategies

    return strategies.integers(least, most)
