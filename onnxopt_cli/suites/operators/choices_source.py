"""Choices: the only source of randomness of the generators.

A generator asks for integers and options. A seed answers in the suite, and hypothesis in a search
for failures, which shrinks an example by shrinking the answers. The first option is the simplest.
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
