"""Control of processes: helpers, signals, and the adoption and death of processes on Linux.

A helper process is a fork of this process. It works for this process, ends with it, and ignores
Ctrl-C. On systems other than Linux, the functions that use prctl or unshare have no effect.

This module imports as little as possible, because the supervisor of every worker loads it.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

_LIBC: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
_SET_PARENT_DEATH_SIGNAL = 1
_GET_DUMPABLE = 3
_SET_DUMPABLE = 4
_SET_CHILD_SUBREAPER = 36
_GET_CHILD_SUBREAPER = 37
_NEW_PID_NAMESPACE = 0x20000000
# The number of the system call kcmp on 64-bit Linux by machine, and its argument KCMP_FILES.
_KCMP = {"x86_64": 312, "aarch64": 272}
_KCMP_FILES = 2


def become_subreaper() -> bool:
    """Make this process adopt orphaned descendants; return whether the system supports this."""
    return sys.platform == "linux" and not _LIBC.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def can_become_subreaper() -> bool:
    """Return whether processes can adopt orphans, by setting the state that is already set."""
    if sys.platform != "linux":
        return False
    adopts = ctypes.c_int()
    return not _LIBC.prctl(_GET_CHILD_SUBREAPER, ctypes.byref(adopts), 0, 0, 0) and not _LIBC.prctl(
        _SET_CHILD_SUBREAPER, adopts.value, 0, 0, 0
    )


def can_close_to_others() -> bool:
    """Return whether processes can deny inspection, by setting the state that is already set."""
    if sys.platform != "linux":
        return False
    open_now = _LIBC.prctl(_GET_DUMPABLE, 0, 0, 0, 0)
    # State 2 also denies inspection, but only the kernel may set this state.
    return open_now >= 0 and (open_now > 1 or not _LIBC.prctl(_SET_DUMPABLE, open_now, 0, 0, 0))


def share_descriptors(first: int, second: int) -> bool:
    """Return whether two threads use the same table of file descriptors; False if unknown.

    Args:
        first: the id of a thread.
        second: the id of another thread.
    """
    kcmp = _kcmp_number()
    return kcmp is not None and not _LIBC.syscall(kcmp, first, second, _KCMP_FILES, 0, 0)


@cache
def _kcmp_number() -> int | None:
    is_supported = sys.platform == "linux" and sys.maxsize > 1 << 32
    return _KCMP.get(os.uname().machine) if is_supported else None


def begin_pid_namespace() -> bool:
    """Put the next child into a new PID namespace as its first process, if possible."""
    return sys.platform == "linux" and not _LIBC.unshare(_NEW_PID_NAMESPACE)


def end_with(parent: int, number: signal.Signals) -> None:
    """Request a signal when the parent of this process ends; exit if the parent has already ended.

    The function makes only system calls, so it may run between fork and exec.
    """
    if sys.platform == "linux":
        _LIBC.prctl(_SET_PARENT_DEATH_SIGNAL, number, 0, 0, 0)
        if os.getppid() != parent:
            # The parent ended before the call of prctl.
            os._exit(1)


@cache
def close_to_others() -> None:
    """Deny other processes of this user access to the memory and the open files of this process.

    A process becomes accessible again when it executes another program. Workers execute another
    program, and are therefore accessible.
    """
    if sys.platform == "linux":
        _LIBC.prctl(_SET_DUMPABLE, 0, 0, 0, 0)


#: Signals by which a user ends a command.
SIGNALS: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM)
if sys.platform != "win32":
    SIGNALS += (signal.SIGHUP,)

#: Supervisors and helpers that this process has started and for which it has not waited yet.
STARTED: set[int] = set()

_is_command = False
_exceptions_are_lost = ContextVar("_exceptions_are_lost", default=False)


def claim_process() -> None:
    """Declare that this process runs the command onnxopt, not a program that imports onnxopt."""
    global _is_command  # noqa: PLW0603 - a property of the process
    _is_command = True


def claimed() -> bool:
    """Return whether this process runs the command onnxopt."""
    return _is_command


def fork_helper(work: Callable[[], object]) -> int:
    """Fork a process that calls a function, and return its process id.

    The helper ends when this process ends, even if this process is killed. The helper ignores
    Ctrl-C, and backends cannot inspect it.

    Args:
        work: the function; the helper ends when the function returns or raises an exception.

    Raises:
        OSError: if the system allows no more processes.
    """
    parent = os.getpid()
    with held_signals(), warnings.catch_warnings():
        # Python warns if a process with threads forks. Only NumPy's libraries have threads, and
        # these libraries support forks.
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
        if process:
            STARTED.add(process)
            return process
        try:
            # Exclude existing objects from garbage collection, which would otherwise write to, and
            # so copy, all memory of the parent.
            gc.freeze()
            begin_helper(parent)
            work()
        finally:
            os._exit(1)


def begin_helper(parent: int) -> None:
    """Set up a helper process, which ends with its parent and is inaccessible to backends."""
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    plain_signals()
    close_to_others()
    end_with(parent, signal.SIGKILL)


def plain_signals() -> None:
    """Ignore Ctrl-C in a helper process, which its parent ends with SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


@contextmanager
def held_signals() -> Iterator[None]:
    """Block SIGNALS during a fork. The child unblocks SIGNALS by calling :func:`plain_signals`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class losing_exceptions:  # noqa: N801 - in lower case, as contextlib.suppress
    """Mark a call into a library that suppresses exceptions of signal handlers.

    During the call, signal handlers postpone their exceptions.
    """

    # A context manager that is a class is entered faster than a generator, and every record of a
    # log enters this context manager.
    __slots__ = ("_token",)

    def __enter__(self) -> None:
        self._token = _exceptions_are_lost.set(True)

    def __exit__(self, *_: object) -> None:
        _exceptions_are_lost.reset(self._token)


def exceptions_are_lost() -> bool:
    """Return whether :func:`losing_exceptions` is active, for signal handlers."""
    return _exceptions_are_lost.get()
