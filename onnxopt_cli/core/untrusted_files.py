"""Files that other users may have written: checks of ownership, and reading within limits.

Only regular files are read, up to a maximum size, and only inside a given folder. Code from a file
runs only if no other user can have written it, or if the user consents.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TypeAlias

from onnxopt_cli.core.text import printable

#: A signature identifies a version of a file by device, inode, size, mtime_ns and ctime_ns. After a
#: change, a program can reset mtime, but not ctime. The signature is None if the file changed while
#: it was read.
Signature: TypeAlias = tuple[int, int, int, int, int] | None


class Malformed(Exception):
    """Raised if a file or message breaks its format.

    The message states the actual and the expected content, but not the location. The caller that
    opened the file adds the location, and reports a :class:`onnxopt_cli.errors.Fault`.
    """


class TooLarge(Malformed):
    """Raised if a file or message exceeds a limit of onnxopt."""


#: Protobuf's limit on the number of bytes of a message, and therefore of a model or a tensor in a
#: file.
PROTOBUF_LIMIT = 2**31 - 1

# With O_NONBLOCK, opening a named pipe does not block. Without O_BINARY, Windows would translate
# line ends.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)

#: The maximum number of bytes of files that are read to load one case.
MAX_CASE_BYTES = 4 << 30
#: The maximum number of bytes of the files that are read to validate all cases of one case file,
#: not counting the case file.
MAX_CASE_FILE_BYTES = 16 << 30

_WRITABLE_BY_ALL = stat.S_IWOTH
_OVERFLOW_USER = 65534
# The maximum number of symbolic links that Linux follows in a path.
_MAX_LINKS = 40
# Files of these types must not be writable by all users. Devices such as /dev/null may be writable,
# because reading them does not return data that was written to them.
_HOLD_CODE = {stat.S_IFREG, stat.S_IFDIR}

# For each active context of recorded(), the signatures that have been recorded.
_records: list[dict[str, Signature]] = []
# For each active context of reading_at_most(), the number of remaining bytes, and the limit.
_allowances: list[list[int]] = []


@contextmanager
def reading_at_most(size: int) -> Iterator[None]:
    """Limit the number of bytes read in a ``with`` block; reading more raises TooLarge."""
    _allowances.append([size, size])
    try:
        yield
    finally:
        _allowances.pop()


def _spend(size: int) -> None:
    for allowance in _allowances:
        allowance[0] -= size
        if allowance[0] < 0:
            raise TooLarge(f"brings the total size of files to more than {allowance[1]} bytes")


@contextmanager
def recorded() -> Iterator[Mapping[str, Signature]]:
    """Record the signatures of the files that are opened in a ``with`` block, by their paths."""
    record: dict[str, Signature] = {}
    _records.append(record)
    try:
        yield record
    finally:
        # The record is found by identity, because another record may be equal.
        _records[:] = [active for active in _records if active is not record]


def signature(status: os.stat_result) -> Signature:
    """Return the signature of a file."""
    times = status.st_mtime_ns, status.st_ctime_ns
    return (status.st_dev, status.st_ino, status.st_size, *times)


def read_regular_file(
    path: Path | str, limit: int = PROTOBUF_LIMIT, *, links: bool = True
) -> bytes:
    """Return the content of a file.

    Args:
        path: the file.
        limit: the maximum size in bytes.
        links: whether symbolic links in the path are followed; otherwise they are an error.

    Raises:
        Malformed: if the file is missing, unreadable or not regular; the subclass TooLarge, if the
            file exceeds the limit.
    """
    with open_regular_file(path, limit=limit, links=links) as (descriptor, status):
        return read_exactly(descriptor, status.st_size)


@contextmanager
def open_regular_file(
    path: Path | str, *, limit: int | None = None, links: bool = True
) -> Iterator[tuple[int, os.stat_result]]:
    """Open a file for reading and yield its descriptor and status.

    Args:
        path: the file.
        limit: the maximum size in bytes; None for no limit.
        links: whether symbolic links in the path are followed. Pass ``links=False`` for a path that
            has been resolved and checked, because another program may have replaced a part of the
            path by a link since then.

    Raises:
        Malformed: if the file is missing, unreadable or not regular; the subclass TooLarge, if the
            file exceeds the limit.
    """
    try:
        descriptor = os.open(path, _FLAGS) if links else _open_without_links(Path(path))
    except FileNotFoundError:
        raise Malformed("is missing") from None
    except OSError as error:
        raise Malformed(f"cannot be read: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Malformed("is not a regular file")
        if limit is not None and status.st_size > limit:
            raise TooLarge(f"has {status.st_size} bytes; at most {limit} were expected")
        yield descriptor, status
        for record in _records:
            before, after = signature(status), signature(os.fstat(descriptor))
            unchanged = before == after == record.setdefault(str(path), before)
            record[str(path)] = before if unchanged else None
    except OSError as error:
        raise Malformed(f"cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)


def _open_without_links(path: Path) -> int:
    """Open a file without following links; if possible, open folder by folder from the root."""
    if os.open not in os.supports_dir_fd or not path.is_absolute():
        return os.open(path, _FLAGS | getattr(os, "O_NOFOLLOW", 0))
    # Without O_PATH, as on macOS, all folders of the path must be readable.
    folder = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW
    inner = os.open(path.anchor, folder)
    try:
        for part in path.parts[1:-1]:
            outer, inner = inner, os.open(part, folder, dir_fd=inner)
            os.close(outer)
        return os.open(path.name, _FLAGS | os.O_NOFOLLOW, dir_fd=inner)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR}:
            raise Malformed("has become a symbolic link since it was checked") from None
        raise
    finally:
        os.close(inner)


def read_exactly(descriptor: int, size: int) -> bytes:
    """Read the next ``size`` bytes of an open file.

    Raises:
        Malformed: if the file ends before ``size`` bytes are read.
    """
    _spend(size)
    parts = []
    # A single system call reads less than 2 GiB, and even less on some file systems.
    while size and (data := os.read(descriptor, size)):
        parts.append(data)
        size -= len(data)
    if size:
        raise Malformed(f"ends {size} bytes early")
    return b"".join(parts)


def read_into(descriptor: int, room: memoryview) -> None:
    """Fill a buffer with the next bytes of an open file.

    Raises:
        Malformed: if the file ends before the buffer is full.
    """
    _spend(len(room))
    with os.fdopen(descriptor, "rb", buffering=0, closefd=False) as file:
        while room and (count := file.readinto(room)):
            room = room[count:]
    if room:
        raise Malformed(f"ends {len(room)} bytes early")


def contained_path(folder: Path, text: str) -> Path:
    """Return the file that a relative path names; all symbolic links are resolved.

    Args:
        folder: the folder of the case file.
        text: the path in the case file, with ``/`` between its parts.

    Raises:
        Malformed: if the path is absolute, contains ``..``, or leads out of the folder through a
            link.
    """
    parts = inner_parts(text)
    if parts is None:
        raise Malformed("is not a path inside the folder of the case file")
    root = folder.resolve()
    try:
        path = root.joinpath(*parts).resolve()
    except (OSError, RuntimeError) as error:
        raise Malformed(f"cannot be resolved: {error}") from None
    if not path.is_relative_to(root):
        raise Malformed("leads out of the folder of the case file through a symbolic link")
    return path


def inner_parts(text: str) -> tuple[str, ...] | None:
    """Return a path's parts; None if the path is absolute or contains ``..`` on any system."""
    path = PurePosixPath(text)
    absolute = path.is_absolute() or PureWindowsPath(text).anchor
    if absolute or not path.parts or ".." in path.parts or "\\" in text or "\0" in text:
        return None
    return path.parts


def is_owned(status: os.stat_result) -> bool:
    """Return whether a file is owned by this user."""
    return not hasattr(os, "geteuid") or status.st_uid == os.geteuid()


def is_private(status: os.stat_result) -> bool:
    """Return whether a file is owned by this user and not accessible to others."""
    return is_owned(status) and (os.name != "posix" or not status.st_mode & 0o077)


def foreign(path: Path) -> str:
    """Return why another user may have written a file; empty if no other user could.

    If the path is a link, its target is checked, too. A file and its folder must belong to this
    user or to root, and the file must not be writable by all users. The folder of the file may be
    writable by all users only if it has the sticky bit, as ``/tmp`` has. In such a folder, the file
    must not be a hard link, because every user can create hard links. If the path itself is a
    folder, it must not be writable by all users, even with the sticky bit. The folders and links on
    the path must satisfy the same rules, because their owners can replace the file.

    Args:
        path: the file or folder; the result is empty if it does not exist.
    """
    if not hasattr(os, "geteuid"):
        return ""
    for place in dict.fromkeys((path, Path(os.path.realpath(path)))):
        try:
            file, folder = place.lstat(), place.parent.stat()
        except OSError:
            return ""
        if owner := _other_owner(file):
            return f"it belongs to {owner}"
        if owner := _other_owner(folder):
            return f"its folder belongs to {owner}"
        if stat.S_IFMT(file.st_mode) in _HOLD_CODE and file.st_mode & _WRITABLE_BY_ALL:
            return "everybody may write to it"
        if folder.st_mode & _WRITABLE_BY_ALL:
            if not folder.st_mode & stat.S_ISVTX:
                return "everybody may write to its folder"
            if stat.S_ISREG(file.st_mode) and file.st_nlink > 1:
                return "it is a hard link in a folder to which everybody may write"
    return _replaceable(path)


def _replaceable(path: Path) -> str:
    """Return why another user may replace a file through its path; empty if no user can."""
    for place in _traversed(path):
        try:
            status = place.lstat()
        except OSError:
            return ""
        # In a user namespace, the root user of the surrounding system appears as the overflow user.
        if status.st_uid != _OVERFLOW_USER and (owner := _other_owner(status)):
            return f"{printable(str(place))} on its path belongs to {owner}"
        is_open = status.st_mode & _WRITABLE_BY_ALL and not status.st_mode & stat.S_ISVTX
        if stat.S_ISDIR(status.st_mode) and is_open:
            return f"everybody may write to {printable(str(place))} on its path"
    return ""


def _traversed(path: Path) -> Iterator[Path]:
    """Yield the folders and links through which the system reaches a file, the outermost first."""
    place = Path(path.absolute().anchor)
    pending = list(reversed(path.absolute().parts[1:]))
    links = 0
    while pending and links < _MAX_LINKS:
        part = pending.pop()
        if part == "..":
            place = place.parent
            continue
        place /= part
        if place.is_symlink():
            links += 1
            yield place
            target = place.readlink()
            pending += [part for part in reversed(target.parts) if part != target.anchor]
            place = Path(target.anchor) if target.anchor else place.parent
        elif pending:
            yield place


def _other_owner(status: os.stat_result) -> str:
    """Return the name of the owner of a file; empty if the owner is this user or root."""
    if status.st_uid in {0, os.geteuid()}:
        return ""
    return user_name(status.st_uid)


def user_name(number: int) -> str:
    """Return the name and uid of a user, or only the uid if the user has no name."""
    import pwd

    try:
        return f"{printable(pwd.getpwuid(number).pw_name)} (uid {number})"
    except (KeyError, OverflowError):
        return f"uid {number}"
