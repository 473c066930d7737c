"""Progress of long operations; the caller decides how to show it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

#: Function that opens a progress display. The arguments of the function are an activity and a kind
#: of items, both in words. The context is a function of the number of items done and the total
#: number of items, which is None if unknown.
OpenProgress: TypeAlias = Callable[
    [str, str], AbstractContextManager[Callable[[int, int | None], object]]
]


def hide_progress(
    _doing: str, _things: str
) -> AbstractContextManager[Callable[[int, int | None], object]]:
    """Return a progress display that shows nothing."""
    return nullcontext(lambda _done, _total: None)
