"""Locks on folders. A lock ends with the process that holds it, even if the process is killed.

This module imports as little as possible, because the supervisor of every worker loads it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic, sleep
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: Flags that open a folder, but not a link to a folder.
FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)

_POLL_SECONDS = 0.05


def lock_folder(folder: Path | str) -> int:
    """Lock a folder, and return the descriptor that holds the lock; a link is not followed.

    Raises:
        BlockingIOError: if another process holds the lock, or replaced the folder during the call.
        ImportError, OSError: if the system or the file system does not support such locks.
    """
    import fcntl

    descriptor = os.open(folder, FOLDER)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(descriptor), os.lstat(folder)):
            raise BlockingIOError(errno.EWOULDBLOCK, "replaced", os.fspath(folder))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def locked(folder: Path | str, seconds: float = 0.0) -> Iterator[bool]:
    """Hold a lock on a folder.

    Args:
        folder: the folder; a link to a folder is not locked.
        seconds: time to wait for another process to release the lock.

    Yields:
        Whether the lock is held; False if the system or the file system does not support locks.
    """
    deadline, lock = monotonic() + seconds, None
    with suppress(ImportError, OSError):
        while lock is None:
            try:
                lock = lock_folder(folder)
            except BlockingIOError:
                if monotonic() >= deadline:
                    break
                sleep(_POLL_SECONDS)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            os.close(lock)
