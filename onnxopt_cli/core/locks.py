"""Locks on folders, which end with the process that holds them however it ends.

The supervisor of every worker loads this, so it imports no more than it has to.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic, sleep
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: How a folder is opened, and no link to one.
FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)

_LOOK_SECONDS = 0.05


def lock_folder(folder: Path | str) -> int:
    """Lock a folder, no link to one, and return the descriptor that holds the lock.

    Raises:
        BlockingIOError: if another process has it.
        ImportError, OSError: if the system or the file system has no such locks.
    """
    import fcntl

    descriptor = os.open(folder, FOLDER)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def locked(folder: Path | str, seconds: float = 0.0) -> Iterator[bool]:
    """Hold a lock on a folder.

    Args:
        folder: the folder, no link to one.
        seconds: how long to wait for another process to let go of it.

    Yields:
        Whether the lock is held; False also where the system or the file system has no such locks.
    """
    deadline, lock = monotonic() + seconds, None
    with suppress(ImportError, OSError):
        while lock is None:
            try:
                lock = lock_folder(folder)
            except BlockingIOError:
                if monotonic() >= deadline:
                    break
                sleep(_LOOK_SECONDS)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            os.close(lock)
