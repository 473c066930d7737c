"""Ctrl-C and SIGTERM: the first ends a run in order, the second at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Whether the user has asked the run to end.

    Attributes:
        signal: the signal that came, or 0.
    """

    def __init__(self) -> None:
        self.signal = 0
        self._at_once = False

    @property
    def exit_code(self) -> int:
        """What an interrupted run exits with: 130 after Ctrl-C, 143 after SIGTERM; else 0."""
        return 128 + self.signal if self.signal else 0

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let the first signal raise KeyboardInterrupt too, where nobody looks for one."""
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def hear(self, number: int, _frame: FrameType | None = None) -> None:
        """Take note of a signal.

        Raises:
            KeyboardInterrupt: if it is the second, or is to act at once.
        """
        again, self.signal = bool(self.signal), self.signal or number
        if again or self._at_once:
            raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Take note of the first signal, and raise KeyboardInterrupt at the second.

    Only the main thread hears signals; in any other nothing changes.
    """
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    before = {number: signal.signal(number, interruption.hear) for number in _SIGNALS}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
