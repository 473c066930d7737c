"""What only Linux does for a process: who its orphans go to, when it ends, who may look into it.

Elsewhere nothing here does anything.
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
    """Let what the process's descendants leave behind become its own children, if possible."""
    return sys.platform == "linux" and not _LIBC.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def can_become_subreaper() -> bool:
    """Tell whether the system lets processes adopt orphans, by asking for what is so already."""
    if sys.platform != "linux":
        return False
    adopts = ctypes.c_int()
    return not _LIBC.prctl(_GET_CHILD_SUBREAPER, ctypes.byref(adopts), 0, 0, 0) and not _LIBC.prctl(
        _SET_CHILD_SUBREAPER, adopts.value, 0, 0, 0
    )


def can_close_to_others() -> bool:
    """Tell whether the system lets processes keep others out, by asking for what is so already."""
    if sys.platform != "linux":
        return False
    open_now = _LIBC.prctl(_GET_DUMPABLE, 0, 0, 0, 0)
    # The kernel lets nobody ask for the third state, in which it keeps them out itself.
    return open_now >= 0 and (open_now > 1 or not _LIBC.prctl(_SET_DUMPABLE, open_now, 0, 0, 0))


def begin_pid_namespace() -> bool:
    """Have the next child be the first process of a new PID namespace, if possible."""
    return sys.platform == "linux" and not _LIBC.unshare(_NEW_PID_NAMESPACE)


def end_with(parent: int, number: signal.Signals) -> None:
    """Have this process sent a signal when its parent ends; end now if it has ended.

    These are system calls alone, so it may be called between fork and exec.
    """
    if sys.platform == "linux":
        _LIBC.prctl(_SET_PARENT_DEATH_SIGNAL, number, 0, 0, 0)
        if os.getppid() != parent:
            # It ended before we had said so.
            os._exit(1)


@cache
def close_to_others() -> None:
    """Keep other processes of this user out of this one: its memory and /proc/PID/fd.

    Workers are not closed so: what they execute is open again.
    """
    if sys.platform == "linux":
        _LIBC.prctl(_SET_DUMPABLE, 0, 0, 0, 0)
