"""Choices: the only source of randomness of the generators.

A generator obtains integers and options from a source of choices. In the suite, they follow from a
seed; in a search for failures, hypothesis chooses them, and shrinks an example by choosing simpler
ones. The first option is the simplest.
"""

from __future__ import annotations

from random import Random
from typing import Protocol, TypeVar

T = TypeVar("T")


class Choices(Protocol):
    """Makes the choices of a generator."""

    def integer(self, least: int, most: int) -> int:
        """Return an integer from least to most; the simplest is the one nearest to zero."""
        ...


class SeededChoices:
    """Choices that follow from a seed; the same in every version of Python.

    Args:
        seed: a text that identifies the node.
    """

    def __init__(self, seed: str) -> None:
        self._random = Random(seed)  # noqa: S311 - test data

    def integer(self, least: int, most: int) -> int:
        """Return an integer from least to most."""
        # The stream of random() is the only one that Python guarantees.
        return least + int(self._random.random() * (most - least + 1))
