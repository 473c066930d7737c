"""Progress of long operations; the caller decides how to show it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

#: Opens a progress display for an activity and a kind of items, both in words; yields a function
#: that takes the number of items done and their total number.
Telling: TypeAlias = Callable[[str, str], AbstractContextManager[Callable[[int, int], object]]]


def silently(_doing: str, _things: str) -> AbstractContextManager[Callable[[int, int], object]]:
    """Return a progress display that shows nothing."""
    return nullcontext(lambda _done, _total: None)
