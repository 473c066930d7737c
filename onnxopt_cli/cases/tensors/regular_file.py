"""Reading files that may be anything: only regular ones, up to a size, and inside a folder."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath

from onnxopt_cli.cases.case import Signature


class Malformed(Exception):
    """A file or message breaks its format.

    The message says what was found and what was expected, but not where: whoever opened the file
    knows that and makes a :class:`onnxopt_cli.errors.Fault` of it. No user ever meets this one.
    """


#: Protobuf's own limit on a message, and so on a model and on a tensor in a file.
PROTOBUF_LIMIT = 2**31 - 1

# A named pipe must not block the open; Windows has neither flag, but needs to be told of bytes.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)

#: How many bytes of files are read for one case; and for all cases of a case file until its text is
#: known to be right.
MAX_CASE_BYTES = 4 << 30
MAX_CASE_FILE_BYTES = 16 << 30

_records: list[dict[str, Signature]] = []
# How much more may be read, and how much in all, each within the one before.
_allowances: list[list[int]] = []


@contextmanager
def reading_at_most(size: int) -> Iterator[None]:
    """Let no more than so many bytes be read here meanwhile; what asks for more is malformed."""
    _allowances.append([size, size])
    try:
        yield
    finally:
        _allowances.pop()


def _spend(size: int) -> None:
    for allowance in _allowances:
        allowance[0] -= size
        if allowance[0] < 0:
            raise Malformed(f"brings what is read to more than {allowance[1]} bytes")


@contextmanager
def recorded() -> Iterator[Mapping[str, Signature]]:
    """Note which files are opened here meanwhile, by the path that was used, and what they were."""
    record: dict[str, Signature] = {}
    _records.append(record)
    try:
        yield record
    finally:
        # By identity: two records may be equal.
        _records[:] = [other for other in _records if other is not record]


def signature(status: os.stat_result) -> Signature:
    """Return the signature of a file."""
    times = status.st_mtime_ns, status.st_ctime_ns
    return (status.st_dev, status.st_ino, status.st_size, *times)


def read_regular_file(
    path: Path | str, limit: int = PROTOBUF_LIMIT, *, links: bool = True
) -> bytes:
    """Read a whole file; with links off none of its path may be a symbolic link.

    Raises:
        Malformed: if it is missing, unreadable, no regular file, or larger than ``limit`` bytes.
    """
    with open_regular_file(path, limit=limit, links=links) as (descriptor, status):
        return read_exactly(descriptor, status.st_size)


@contextmanager
def open_regular_file(
    path: Path | str, flags: int = 0, *, limit: int | None = None, links: bool = True
) -> Iterator[tuple[int, os.stat_result]]:
    """Open a file for reading and yield its descriptor and status.

    Args:
        path: the file.
        flags: of ``os.open``, beside those for reading.
        limit: bytes that it may have; None for any number.
        links: whether symbolic links are followed. A path that was found to lead nowhere else is
            opened without, as a link may have taken the place of a part of it since.

    Raises:
        Malformed: if it is missing, unreadable, no regular file or larger than the limit.
    """
    try:
        descriptor = os.open(path, _FLAGS | flags) if links else _open_without_links(Path(path))
    except FileNotFoundError:
        raise Malformed("is missing") from None
    except OSError as error:
        raise Malformed(f"cannot be read: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Malformed("is not a regular file")
        if limit is not None and status.st_size > limit:
            raise Malformed(f"has {status.st_size} bytes, more than the {limit} that are read")
        yield descriptor, status
        for record in _records:
            before, after = signature(status), signature(os.fstat(descriptor))
            same = before == after == record.setdefault(str(path), before)
            record[str(path)] = before if same else None
    except OSError as error:
        raise Malformed(f"cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)


def _open_without_links(path: Path) -> int:
    """Open a file, folder by folder from the root, where the system can."""
    if os.open not in os.supports_dir_fd or not path.is_absolute():
        return os.open(path, _FLAGS | getattr(os, "O_NOFOLLOW", 0))
    # macOS has no O_PATH; there the folders must be readable.
    folder = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW
    inner = os.open(path.anchor, folder)
    try:
        for part in path.parts[1:-1]:
            outer, inner = inner, os.open(part, folder, dir_fd=inner)
            os.close(outer)
        return os.open(path.name, _FLAGS | os.O_NOFOLLOW, dir_fd=inner)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR}:
            raise Malformed("leads through a symbolic link since it was looked at") from None
        raise
    finally:
        os.close(inner)


def read_exactly(descriptor: int, size: int) -> bytes:
    """Read the next ``size`` bytes of an open file.

    Raises:
        Malformed: if the file ends before.
    """
    _spend(size)
    parts = []
    # One system call yields less than 2 GiB, and less still on some file systems.
    while size and (data := os.read(descriptor, size)):
        parts.append(data)
        size -= len(data)
    if size:
        raise Malformed(f"ends {size} bytes early")
    return b"".join(parts)


def read_into(descriptor: int, room: memoryview) -> None:
    """Fill a buffer with the next bytes of an open file.

    Raises:
        Malformed: if the file ends before.
    """
    _spend(len(room))
    with os.fdopen(descriptor, "rb", buffering=0, closefd=False) as file:
        while room and (count := file.readinto(room)):
            room = room[count:]
    if room:
        raise Malformed(f"ends {len(room)} bytes early")


def contained_path(folder: Path, text: str) -> Path:
    """Return the file that a relative path names, with every symbolic link followed.

    Args:
        folder: where the case file stands.
        text: the path as the case file has it, with ``/`` between its parts.

    Raises:
        Malformed: if it is no relative path, goes up, or a link on it leads out of the folder.
    """
    parts = inner_parts(text)
    if parts is None:
        raise Malformed("is not a path inside the folder of the case file")
    root = folder.resolve()
    try:
        path = root.joinpath(*parts).resolve()
    except (OSError, RuntimeError) as error:
        raise Malformed(f"cannot be followed: {error}") from None
    if not path.is_relative_to(root):
        raise Malformed("leads out of the folder of the case file through a symbolic link")
    return path


def inner_parts(text: str) -> tuple[str, ...] | None:
    """Return the parts of a relative path that goes nowhere up, on any system; None if it may."""
    path = PurePosixPath(text)
    absolute = path.is_absolute() or PureWindowsPath(text).anchor
    if absolute or not path.parts or ".." in path.parts or "\\" in text or "\0" in text:
        return None
    return path.parts
