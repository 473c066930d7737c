"""Handles Ctrl-C, SIGTERM and SIGHUP: the first ends a run cleanly, the second immediately."""

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

from onnxopt_cli.core.process_control import SIGNALS, exceptions_are_lost

# Seconds after which a signal is sent again if it arrived where raising an exception is unsafe.
_RESEND_SECONDS = 0.01
# The largest number of times that a signal is sent again.
_MAX_RESENDS = 100
#: The reason for a missing response if a signal has ended the run.
INTERRUPTED_REASON = "interrupted"
#: Exit codes of a command that a signal has ended.
INTERRUPTED = frozenset(128 + number for number in SIGNALS)


class Stop(KeyboardInterrupt):
    """A signal has asked the command to end; the handler may raise the exception anywhere.

    Attributes:
        exit_code: the exit code of the command.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


def stop_by_raising() -> None:
    """Make signals raise :class:`Stop`, so that ``finally`` clauses clean up."""
    if sys.platform != "win32":
        # The parent process may ignore SIGCHLD, and this process and its children would inherit
        # this setting.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    sys.unraisablehook = _send_unraised_signal_again
    for number in SIGNALS:
        # A signal that the parent process has set to be ignored stays ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)


_resends = itertools.count()


def _stop(number: int, frame: FrameType | None) -> None:
    """Raise Stop; if that would crash a library, or Stop would be lost, resend the signal."""
    if _raising_is_unsafe(frame) and next(_resends) < _MAX_RESENDS:
        _send_later(number)
    else:
        raise Stop(number)


def _raising_is_unsafe(frame: FrameType | None) -> bool:
    """Return whether an import is in progress, or an exception of the handler would be lost."""
    if exceptions_are_lost():
        return True
    # An extension module may crash if an exception interrupts its import. Python has no hook that
    # surrounds all imports, so the frames are searched.
    while frame is not None:
        code = frame.f_code
        is_import = code.co_filename.startswith("<frozen importlib")
        if is_import or code is _send_unraised_signal_again.__code__:
            return True
        frame = frame.f_back
    return False


def _send_later(number: int) -> None:
    # On Windows, os.kill would terminate the process.
    send = signal.raise_signal if sys.platform == "win32" else partial(os.kill, os.getpid())
    threading.Timer(_RESEND_SECONDS, send, (number,)).start()


def _send_unraised_signal_again(unraisable: sys.UnraisableHookArgs) -> None:
    """Send a signal again if a finalizer or a weak reference's callback has discarded Stop."""
    stop = unraisable.exc_value
    if isinstance(stop, Stop):
        _send_later(stop.exit_code - 128)
    else:
        sys.__unraisablehook__(unraisable)


@dataclass(eq=False, slots=True)
class Interruption:
    """Records whether a signal has asked the run to end.

    Attributes:
        signal: the number of the signal, or 0.
    """

    signal: int = 0
    _at_once: bool = False

    @property
    def exit_code(self) -> int:
        """128 plus the number of the signal, as in shells; 0 without a signal."""
        return 128 + self.signal if self.signal else 0

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let the first signal raise KeyboardInterrupt as well, for code that does not poll.

        Raises:
            KeyboardInterrupt: also if a signal has already arrived.
        """
        self._at_once = True
        try:
            if self.signal:
                raise Stop(self.signal)
            yield
        finally:
            self._at_once = False

    def handle(self, number: int, frame: FrameType | None = None) -> None:
        """Record a signal.

        Raises:
            KeyboardInterrupt: if the signal is the second one, or arrives within :meth:`at_once`.
        """
        again, self.signal = bool(self.signal), self.signal or number
        if again or self._at_once:
            _stop(self.signal, frame)


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Record the first signal, and raise KeyboardInterrupt when the second arrives.

    Code that polls the interruption may raise a plain KeyboardInterrupt. When this exception leaves
    the ``with`` block, it becomes a :class:`Stop` with the number of the signal.

    Only the main thread receives signals; in other threads the function does nothing.
    """
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    previous_handlers = {
        number: signal.signal(number, interruption.handle)
        for number in SIGNALS
        # An ignored SIGHUP stays ignored, because nohup sets it. An ignored SIGINT is handled
        # nevertheless, because shells start every background command (&) with SIGINT ignored.
        if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield interruption
    except KeyboardInterrupt:
        if interruption.signal:
            raise Stop(interruption.signal) from None
        raise
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
