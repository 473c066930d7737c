"""Helper processes: forks that work for this process, end with it, and ignore Ctrl-C."""

from __future__ import annotations

import gc
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from onnxopt_cli.core.linux import close_to_others, end_with

#: Signals by which a user ends a command.
SIGNALS: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM)
if sys.platform != "win32":
    SIGNALS += (signal.SIGHUP,)

#: Supervisors and helpers that this process has started and not waited for yet.
STARTED: set[int] = set()

_is_command = False
_exceptions_are_lost = ContextVar("_exceptions_are_lost", default=False)


def claim_process() -> None:
    """Declare that this process runs an onnxopt command, not a program that imports onnxopt."""
    global _is_command  # noqa: PLW0603 - a property of the process
    _is_command = True


def claimed() -> bool:
    """Return whether this process runs an onnxopt command."""
    return _is_command


def fork_helper(work: Callable[[], object]) -> int:
    """Fork a process that calls a function, and return its process id.

    The helper ends with this process even if that is killed, ignores Ctrl-C, and cannot be
    inspected by backends.

    Args:
        work: the function; the helper ends when it returns or raises.

    Raises:
        OSError: if the system allows no more processes.
    """
    parent = os.getpid()
    with held_signals(), warnings.catch_warnings():
        # Python warns if a process with threads forks. NumPy's libraries prepare their threads for
        # a fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
        if process:
            STARTED.add(process)
            return process
        try:
            # Garbage collection would touch, and so copy, all memory of the parent.
            gc.freeze()
            begin_helper(parent)
            work()
        finally:
            os._exit(1)


def begin_helper(parent: int) -> None:
    """Set up a helper process: its signals, its death with the parent, no access for backends."""
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    plain_signals()
    close_to_others()
    end_with(parent, signal.SIGKILL)


def plain_signals() -> None:
    """Ignore Ctrl-C in a helper process, whose parent ends it with SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


@contextmanager
def held_signals() -> Iterator[None]:
    """Block SIGNALS during a fork. The child unblocks them by calling :func:`plain_signals`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def losing_exceptions() -> Iterator[None]:
    """Mark a call into a library that suppresses exceptions of signal handlers.

    Signal handlers postpone their exceptions until the call has returned.
    """
    token = _exceptions_are_lost.set(True)
    try:
        yield
    finally:
        _exceptions_are_lost.reset(token)


def exceptions_are_lost() -> bool:
    """Return whether :func:`losing_exceptions` is active; for signal handlers."""
    return _exceptions_are_lost.get()
