"""Progress of long operations; the caller decides how to show it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

#: A function that opens a progress display, given the names of an activity and of a kind of items.
#: The value of the context is a function that is called with the number of completed items and the
#: total number of items, which is None if unknown.
OpenProgress: TypeAlias = Callable[
    [str, str], AbstractContextManager[Callable[[int, int | None], object]]
]


def hide_progress(
    _doing: str, _things: str
) -> AbstractContextManager[Callable[[int, int | None], object]]:
    """Return a progress display that shows nothing."""
    return nullcontext(lambda _done, _total: None)
