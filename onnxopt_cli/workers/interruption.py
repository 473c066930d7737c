"""Ctrl-C, SIGTERM and SIGHUP: the first ends a run in order, the second at once."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType

from onnxopt_cli.core.helper_process import SIGNALS

# How long to wait where nothing can be raised, or was dropped, and how many times.
_LATER_SECONDS = 0.01
_MOST_WAITS = 100
# Whoever calls these is in jsonschema_rs, which drops what a handler raises.
_DROPPING = {"iter_errors", "validator_for"}
#: Exit codes after one of them.
INTERRUPTED = frozenset(128 + number for number in SIGNALS)


class Stop(KeyboardInterrupt):
    """The user wants the command to end; raised wherever the program is.

    Attributes:
        exit_code: what the command exits with.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


def stop_by_raising() -> None:
    """Let a signal raise :class:`Stop`, so that what was begun is cleaned up."""
    if sys.platform != "win32":
        # Whoever started the command may ignore the ends of children, and so would it and they.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    sys.unraisablehook = _signal_again
    for number in SIGNALS:
        # Whoever started the command may have it ignore them.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)


_waits = itertools.count()


def _stop(number: int, frame: FrameType | None) -> None:
    """Raise Stop; a moment later where that would crash a library or be lost."""
    if _must_wait(frame) and next(_waits) < _MOST_WAITS:
        _send_later(number)
    else:
        raise Stop(number)


def _must_wait(frame: FrameType | None) -> bool:
    """Tell whether something is imported, or where exceptions are dropped."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith("<frozen importlib") or code is _signal_again.__code__:
            return True
        if not _DROPPING.isdisjoint(code.co_names):
            return True
        frame = frame.f_back
    return False


def _send_later(number: int) -> None:
    # Windows ends the process that os.kill is called for.
    send = signal.raise_signal if sys.platform == "win32" else partial(os.kill, os.getpid())
    threading.Timer(_LATER_SECONDS, send, (number,)).start()


def _signal_again(unraisable: sys.UnraisableHookArgs) -> None:
    """Send the signal again that came where Python drops exceptions: a finalizer, a callback."""
    stop = unraisable.exc_value
    if isinstance(stop, Stop):
        _send_later(stop.exit_code - 128)
    else:
        sys.__unraisablehook__(unraisable)


@dataclass(eq=False, slots=True)
class Interruption:
    """Whether the user has asked the run to end.

    Attributes:
        signal: the signal that came, or 0.
    """

    signal: int = 0
    _at_once: bool = False

    @property
    def exit_code(self) -> int:
        """128 and the number of the signal, as shells have it; 0 without one."""
        return 128 + self.signal if self.signal else 0

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let the first signal raise KeyboardInterrupt too, where nobody looks for one.

        Raises:
            KeyboardInterrupt: if one has come already, too.
        """
        self._at_once = True
        try:
            if self.signal:
                raise Stop(self.signal)
            yield
        finally:
            self._at_once = False

    def handle(self, number: int, frame: FrameType | None = None) -> None:
        """Take note of a signal.

        Raises:
            KeyboardInterrupt: if it is the second, or is to act at once.
        """
        again, self.signal = bool(self.signal), self.signal or number
        if again or self._at_once:
            _stop(self.signal, frame)


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Take note of the first signal, and raise KeyboardInterrupt at the second.

    Whoever raises KeyboardInterrupt because of a signal need not say which: it becomes a
    :class:`Stop`.

    Only the main thread hears signals; in any other nothing changes.
    """
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    before = {
        number: signal.signal(number, interruption.handle)
        for number in SIGNALS
        # nohup means it; a shell has what it starts with & ignore SIGINT, whoever sends it.
        if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield interruption
    except KeyboardInterrupt:
        if interruption.signal:
            raise Stop(interruption.signal) from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
