"""Helper processes: forks of this process that work for it, end with it, and ignore Ctrl-C."""

from __future__ import annotations

import gc
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from onnxopt_cli.core.linux import close_to_others, end_with

#: What a user stops a command with.
SIGNALS: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM)
if sys.platform != "win32":
    SIGNALS += (signal.SIGHUP,)

#: The supervisors and helpers that this process has started and not waited for yet.
STARTED: set[int] = set()

_alone = False


def claim_process() -> None:
    """Say that this process belongs to a command of ours, and to no program that calls it."""
    global _alone  # noqa: PLW0603 - there is one process
    _alone = True


def claimed() -> bool:
    """Tell whether this process belongs to a command of ours."""
    return _alone


def fork_helper(work: Callable[[], object]) -> int:
    """Fork a process that works and ends, and return its number.

    It ends with this process, however that ends, leaves Ctrl-C to it, and is closed to backends.

    Args:
        work: what it does; if that returns or raises, the process ends.

    Raises:
        OSError: if the system allows no more processes.
    """
    parent = os.getpid()
    with held_signals(), warnings.catch_warnings():
        # Of threads: those of NumPy's libraries see to it themselves that they can be forked.
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
        if process:
            STARTED.add(process)
            return process
        try:
            # Looking for garbage among what the parent has would copy all of it.
            gc.freeze()
            begin_helper(parent)
            work()
        finally:
            os._exit(1)


def begin_helper(parent: int) -> None:
    """End with the parent, however that ends, leave Ctrl-C to it, and be closed to backends."""
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    plain_signals()
    close_to_others()
    end_with(parent, signal.SIGKILL)


def plain_signals() -> None:
    """Let a helper process leave Ctrl-C to its parent, which ends it with SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


@contextmanager
def held_signals() -> Iterator[None]:
    """Keep signals waiting while processes are forked that go on with :func:`plain_signals`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
