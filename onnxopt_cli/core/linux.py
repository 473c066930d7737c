"""Linux-specific process control: adoption of orphans, death with the parent, inspection.

On other systems these functions have no effect.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from functools import cache
from typing import Any

_LIBC: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
_SET_PARENT_DEATH_SIGNAL = 1
_GET_DUMPABLE = 3
_SET_DUMPABLE = 4
_SET_CHILD_SUBREAPER = 36
_GET_CHILD_SUBREAPER = 37
_NEW_PID_NAMESPACE = 0x20000000


def become_subreaper() -> bool:
    """Make this process adopt orphaned descendants; return whether that is possible."""
    return sys.platform == "linux" and not _LIBC.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def can_become_subreaper() -> bool:
    """Return whether processes can adopt orphans, tested by setting the current state again."""
    if sys.platform != "linux":
        return False
    adopts = ctypes.c_int()
    return not _LIBC.prctl(_GET_CHILD_SUBREAPER, ctypes.byref(adopts), 0, 0, 0) and not _LIBC.prctl(
        _SET_CHILD_SUBREAPER, adopts.value, 0, 0, 0
    )


def can_close_to_others() -> bool:
    """Return whether processes can deny inspection, tested by setting the current state again."""
    if sys.platform != "linux":
        return False
    open_now = _LIBC.prctl(_GET_DUMPABLE, 0, 0, 0, 0)
    # State 2 also denies inspection, but only the kernel may set it.
    return open_now >= 0 and (open_now > 1 or not _LIBC.prctl(_SET_DUMPABLE, open_now, 0, 0, 0))


def begin_pid_namespace() -> bool:
    """Put the next child into a new PID namespace as its first process, if possible."""
    return sys.platform == "linux" and not _LIBC.unshare(_NEW_PID_NAMESPACE)


def end_with(parent: int, number: signal.Signals) -> None:
    """Let the kernel send this process a signal when its parent ends; exit if it has ended.

    The function makes only system calls, so it may run between fork and exec.
    """
    if sys.platform == "linux":
        _LIBC.prctl(_SET_PARENT_DEATH_SIGNAL, number, 0, 0, 0)
        if os.getppid() != parent:
            # The parent ended before the call above.
            os._exit(1)


@cache
def close_to_others() -> None:
    """Deny other processes of this user access to the memory and the open files of this process.

    The state is lost by exec, so workers remain accessible.
    """
    if sys.platform == "linux":
        _LIBC.prctl(_SET_DUMPABLE, 0, 0, 0, 0)
