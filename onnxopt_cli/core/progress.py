"""Progress of long operations; the caller decides how to show the progress."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

#: A function that opens a progress display as a context manager. Its arguments name an activity and
#: a kind of items. The context manager yields a function, which is called with the number of
#: completed items and the total number of items (None if unknown).
OpenProgress: TypeAlias = Callable[
    [str, str], AbstractContextManager[Callable[[int, int | None], object]]
]


def hide_progress(
    _doing: str, _things: str
) -> AbstractContextManager[Callable[[int, int | None], object]]:
    """Return a progress display that shows nothing."""
    return nullcontext(lambda _done, _total: None)
