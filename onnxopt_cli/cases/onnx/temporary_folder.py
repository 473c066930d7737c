"""A folder to be filled and renamed into place, of which a kill leaves nothing for long."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

# Others hold a lock for as long as it takes to remove what was left; some may never let go.
_LOCK_SECONDS = 3.0
_LOOK_SECONDS = 0.05


@contextmanager
def temporary_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Make a folder, remove it in the end if it is still there, and those of killed processes now.

    A process holds a lock on its folder as long as it lives, so a folder without one is nobody's.
    Where the system or the file system has no such locks, or another process does not let go of
    the one on the parent, nothing of other processes is removed.

    Args:
        parent: where to make it; only folders for temporary use may begin with the prefix there.
        prefix: how its name begins.

    Raises:
        OSError: if it cannot be made.
    """
    whole = _lock(parent, wait=True)
    try:
        if whole is not None:
            _remove_abandoned(parent, prefix)
        folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
        own = _lock(folder, wait=True)
    finally:
        _unlock(whole)
    try:
        yield folder
    finally:
        _remove(folder)
        _unlock(own)


def _remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove the folders that no process holds; nobody else may make one meanwhile."""
    for folder in parent.glob(f"{prefix}*"):
        lock = _lock(folder, wait=False)
        if lock is not None:
            _remove(folder)
            _unlock(lock)


def _remove(folder: Path) -> None:
    # Folders may be nested deeper than Python can follow.
    with suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)


def _lock(folder: Path, *, wait: bool) -> int | None:
    """Lock a folder and return the descriptor that holds the lock; None if that is not possible.

    With ``wait`` another process has a moment to let go of it.
    """
    try:
        import fcntl
    except ImportError:
        return None
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    deadline = monotonic() + (_LOCK_SECONDS if wait else 0)
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if monotonic() < deadline:
                sleep(_LOOK_SECONDS)
                continue
        except OSError:
            pass
        else:
            return descriptor
        os.close(descriptor)
        return None


def _unlock(lock: int | None) -> None:
    if lock is not None:
        os.close(lock)
