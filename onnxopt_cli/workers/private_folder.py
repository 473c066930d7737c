"""A folder for the temporary files of one worker, so that a worker that is killed leaves none.

Whoever is to remove the folder holds a lock on it, which ends with that process however it ends.
So a folder of ours without a lock is nobody's, and the next run removes it. Somebody else's may be
named alike: ours has a random name, and a mode that no folder is given by chance. Unlike a file in
it, a mode leaves the folder empty for the backend.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from time import monotonic, time

from onnxopt_cli.core.locks import (
    FOLDER,
    lock_folder,
    locked,
)

# No other temporary file of ours begins so: only these folders are locked.
_PREFIX = "onnxopt-worker-"
_RANDOM_BYTES = 8
# For its owner alone; the sticky bit means nothing there.
_MODE = 0o1700
# Until it is locked a folder has this name, too.
_UNLOCKED = ".new"
# Nobody takes so long to lock a folder.
_LOCKING_SECONDS = 3600
# The sweep is no reason for a run to wait.
_SWEEP_SECONDS = 0.5


def name_folder() -> str:
    """Return the path of a folder that is not there yet, where temporary files belong.

    Where nothing takes temporary files it is empty, and there will be no folder.
    """
    # The worker's supervisor, which uses this file too, has no use for what is imported here.
    import tempfile

    try:
        parent = tempfile.gettempdir()
    except FileNotFoundError:
        return ""
    return os.path.join(parent, f"{_PREFIX}{os.urandom(_RANDOM_BYTES).hex()}")  # noqa: PTH118 - a string to pass on


def enter_folder(folder: str) -> int | None:
    """Make the folder, and let this process and those it starts put temporary files there.

    Where it cannot be made, temporary files go where they always go.

    Returns:
        The descriptor that holds the lock, or None if there is none.
    """
    if not folder:
        return None
    try:
        os.mkdir(folder + _UNLOCKED, 0o700)  # noqa: PTH102 - pathlib costs a worker's start time
        os.chmod(folder + _UNLOCKED, _MODE)  # noqa: PTH101 - as above
        lock = None
        with suppress(ImportError, OSError):
            lock = lock_folder(folder + _UNLOCKED)
        os.rename(folder + _UNLOCKED, folder)  # noqa: PTH104 - as above
    except OSError:
        return None
    os.environ["TMPDIR"] = folder
    return lock


def remove_folder(folder: str, deadline: float = float("inf")) -> None:
    """Remove the folder with all that is in it, as far as that is possible, links not followed.

    Args:
        folder: the folder.
        deadline: when to leave the rest, by the monotonic clock.
    """
    if not folder:
        return
    with suppress(OSError):
        os.rmdir(folder + _UNLOCKED)  # noqa: PTH106 - as above
    with suppress(OSError):
        # The backend may have put a link or a file in its place.
        if not _unlink(folder):
            _empty(folder, deadline)
            os.rmdir(folder)  # noqa: PTH106 - as above


def sweep_folders() -> None:
    """Remove what killed runs of this user have left, and nothing that may belong to a living one.

    What takes too long is left to the next run.
    """
    import tempfile

    deadline = monotonic() + _SWEEP_SECONDS
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if monotonic() > deadline:
                return
            if _is_name(entry.name.removesuffix(_UNLOCKED)):
                with suppress(OSError):
                    _sweep(entry, deadline)


def _sweep(entry: os.DirEntry[str], deadline: float) -> None:
    status = entry.stat(follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode) or stat.S_IMODE(status.st_mode) != _MODE:
        return
    if status.st_uid != os.geteuid():
        return
    if entry.name.endswith(_UNLOCKED) and abs(time() - status.st_ctime) < _LOCKING_SECONDS:
        return
    with locked(entry.path) as held:
        if held:
            remove_folder(entry.path, deadline)


def _is_name(name: str) -> bool:
    """Tell whether a folder's name is one that :func:`name_folder` makes."""
    prefix, number = name[: len(_PREFIX)], name[len(_PREFIX) :]
    digits = set(number) <= set("0123456789abcdef")
    return prefix == _PREFIX and digits and len(number) == 2 * _RANDOM_BYTES


def _empty(folder: str, deadline: float) -> None:
    """Remove what is in a folder.

    Folders in it are moved to its top and emptied there, so that depth needs neither memory nor
    descriptors, nor paths that are too long.
    """
    top = _open(folder)
    try:
        left = os.listdir(top)  # noqa: PTH208 - relative to descriptors
        while left and monotonic() < deadline:
            name = left.pop()
            with suppress(OSError):
                if _unlink(name, top):
                    continue
                inner = _open(name, top)
                try:
                    for child in os.listdir(inner):  # noqa: PTH208 - as above
                        if not _unlink(child, inner):
                            # To move a folder takes the right to write to it.
                            os.close(_open(child, inner))
                            moved = os.urandom(8).hex()
                            os.rename(child, moved, src_dir_fd=inner, dst_dir_fd=top)
                            left.append(moved)
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)


def _open(name: str, folder: int | None = None) -> int:
    """Open a folder, no link to one, and let its owner do everything there."""
    try:
        descriptor = os.open(name, FOLDER, dir_fd=folder)
    except PermissionError:
        if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise
        os.chmod(name, _MODE, dir_fd=folder)
        descriptor = os.open(name, FOLDER, dir_fd=folder)
    with suppress(OSError):
        os.fchmod(descriptor, _MODE)
    return descriptor


def _unlink(name: str, folder: int | None = None) -> bool:
    """Remove what is no folder; return False if it is one, or cannot be removed."""
    with suppress(IsADirectoryError, PermissionError):
        os.unlink(name, dir_fd=folder)
        return True
    return False
