"""Telling how far something long is; who shows it, and how, is not known here."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

#: Opens what takes note that so many of all are done, of something to some things.
Telling: TypeAlias = Callable[[str, str], AbstractContextManager[Callable[[int, int], object]]]


def silently(_doing: str, _things: str) -> AbstractContextManager[Callable[[int, int], object]]:
    """Tell nobody."""
    return nullcontext(lambda _done, _all: None)
