"""Where the choices that make up an example come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Source(Protocol):
    """Makes choices; a failing example is made smaller by making other ones."""

    def choice(self, options: Sequence[T]) -> T:
        """Return one of the options, the simplest being the first."""

    def integer(self, least: int, most: int) -> int:
        """Return an integer from least to most, the simplest being the one nearest to zero."""

    def reject(self) -> None:
        """Give up this example: it would say nothing. Does not return."""


def rarely(source: Source, times: int = 8) -> bool:
    """Return True about once in so many times; False is simpler."""
    return source.integer(0, times - 1) == times - 1
