"""Folders for temporary files. If the owner of a folder is killed, a later run removes the folder.

The process that will remove a folder holds a lock on it. When this process ends, for any reason,
the operating system releases the lock. An unlocked folder is therefore abandoned, and the next run
removes it. A random name and an unusual mode distinguish these folders from folders of other
programs. A marker file could do the same, but a backend should find the folder of its worker empty.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic, time

from onnxopt_cli.core.locks import (
    FOLDER,
    lock_folder,
    locked,
)

# The names of these folders, and no other names, begin with this prefix.
_PREFIX = "onnxopt-worker-"
_RANDOM_BYTES = 8
# Only the owner has access. The sticky bit merely marks the folder.
_MODE = 0o1700
# Suffix of a folder's name until the folder is locked.
_UNLOCKED_SUFFIX = ".new"
# The number of seconds after which a new folder that is still unlocked counts as abandoned.
_LOCKING_SECONDS = 3600
# Seconds after which the removal of abandoned folders stops, so that it does not delay a run.
_SWEEP_SECONDS = 0.5


def name_folder() -> str:
    """Return a path for a new folder; empty if the system has no folder for temporary files."""
    # Imported late, because the supervisor, which also uses this module, does not need tempfile.
    import tempfile

    try:
        parent = tempfile.gettempdir()
    except FileNotFoundError:
        return ""
    return os.path.join(parent, f"{_PREFIX}{os.urandom(_RANDOM_BYTES).hex()}")  # noqa: PTH118 - a string to pass on


def enter_folder(folder: str) -> int | None:
    """Create the folder, and direct temporary files of this process and its children to the folder.

    If the folder cannot be created, temporary files stay in the environment's temporary folder.

    Returns:
        The descriptor that holds the lock; None without a lock.
    """
    try:
        lock = _create(folder)
    except OSError:
        return None
    os.environ["TMPDIR"] = folder
    return lock


@contextmanager
def temporary_folder() -> Iterator[str]:
    """Create a folder, and remove it at the end of a ``with`` block.

    If this process is killed, the next run removes the folder.

    Raises:
        OSError: if the folder cannot be created.
    """
    import shutil

    folder = name_folder()
    lock = _create(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _create(folder: str) -> int | None:
    """Create and lock a folder; return the descriptor that holds the lock, or None without a lock.

    Raises:
        OSError: if the folder cannot be created, or its name is empty.
    """
    if not folder:
        raise FileNotFoundError("no usable temporary directory")
    os.mkdir(folder + _UNLOCKED_SUFFIX, 0o700)  # noqa: PTH102 - pathlib is slow to import
    os.chmod(folder + _UNLOCKED_SUFFIX, _MODE)  # noqa: PTH101 - as above
    lock = None
    with suppress(ImportError, OSError):
        lock = lock_folder(folder + _UNLOCKED_SUFFIX)
    os.rename(folder + _UNLOCKED_SUFFIX, folder)  # noqa: PTH104 - as above
    return lock


def remove_folder(folder: str, deadline: float = float("inf")) -> None:
    """Remove the folder and its content as far as possible, without following links.

    Args:
        folder: the folder.
        deadline: time of the monotonic clock at which to stop.
    """
    if not folder:
        return
    with suppress(OSError):
        os.rmdir(folder + _UNLOCKED_SUFFIX)  # noqa: PTH106 - as above
    with suppress(OSError):
        # The backend may have replaced the folder with a link or a file.
        if not _unlink(folder):
            _empty(folder, deadline)
            os.rmdir(folder)  # noqa: PTH106 - as above


def sweep_folders() -> None:
    """Remove folders that killed runs of the current user have left behind.

    If removing the folders takes too long, the removal stops, and the next run continues it.
    """
    import tempfile

    deadline = monotonic() + _SWEEP_SECONDS
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if monotonic() > deadline:
                return
            if _is_name(entry.name.removesuffix(_UNLOCKED_SUFFIX)):
                with suppress(OSError):
                    _sweep(entry, deadline)


def _sweep(entry: os.DirEntry[str], deadline: float) -> None:
    status = entry.stat(follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode) or stat.S_IMODE(status.st_mode) != _MODE:
        return
    if status.st_uid != os.geteuid():
        return
    if entry.name.endswith(_UNLOCKED_SUFFIX) and abs(time() - status.st_ctime) < _LOCKING_SECONDS:
        return
    with locked(entry.path) as has_lock:
        if has_lock:
            remove_folder(entry.path, deadline)


def _is_name(name: str) -> bool:
    """Return whether a folder's name has the form that :func:`name_folder` gives."""
    prefix, number = name[: len(_PREFIX)], name[len(_PREFIX) :]
    is_hexadecimal = set(number) <= set("0123456789abcdef")
    return prefix == _PREFIX and is_hexadecimal and len(number) == 2 * _RANDOM_BYTES


def _empty(folder: str, deadline: float) -> None:
    """Remove the content of a folder.

    Inner folders are moved to the top and emptied there, so that a deeply nested folder needs
    little memory, few descriptors and short paths.
    """
    top = _open(folder)
    try:
        names = os.listdir(top)  # noqa: PTH208 - relative to descriptors
        while names and monotonic() < deadline:
            name = names.pop()
            with suppress(OSError):
                if _unlink(name, top):
                    continue
                inner = _open(name, top)
                try:
                    for child in os.listdir(inner):  # noqa: PTH208 - as above
                        if not _unlink(child, inner):
                            # Moving a folder requires write permission to the folder, which _open
                            # sets.
                            os.close(_open(child, inner))
                            new_name = os.urandom(_RANDOM_BYTES).hex()
                            os.rename(child, new_name, src_dir_fd=inner, dst_dir_fd=top)
                            names.append(new_name)
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)


def _open(name: str, folder: int | None = None) -> int:
    """Open a folder unless the path is a link.

    If the folder's permissions prevent opening it, the permissions are changed first.
    """
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
    """Remove a file or link; return False if the path is a folder or cannot be removed."""
    with suppress(IsADirectoryError, PermissionError):
        os.unlink(name, dir_fd=folder)
        return True
    return False
