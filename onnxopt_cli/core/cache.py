"""The cache of onnxopt: results that are slow to compute, in a private folder of the user.

Verdicts depend on the entries. Therefore, an entry is read only if onnxopt wrote it on this machine
for this user:

- The folder belongs to the user, and other users have no access.
- Files are written completely or not at all.
- An index lists the size, mtime, ctime and SHA-256 digest of every entry. If an entry differs from
  its row of the index, it is computed again. Programs cannot set ctime. Therefore, entries that
  were copied or unpacked are also computed again.

The index is read once, before any backend runs. The cache is not protected against programs of the
same user: such a program can forge entries and their index.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import platformdirs

from onnxopt_cli.core.codec import read_json
from onnxopt_cli.core.files import write_atomically
from onnxopt_cli.core.locks import locked
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.untrusted_files import (
    Malformed,
    foreign,
    is_owned,
    is_private,
    read_regular_file,
)
from onnxopt_cli.errors import UsageError

#: Name of the environment variable that overrides the folder of the cache.
CACHE_VARIABLE = "ONNXOPT_CACHE_DIR"

_INDEX = "index.json"
_INDEX_LIMIT = 16 << 20
# Maximum number of bytes of an entry. In practice, the largest entry contains all node cases of
# onnx, and has 13 MB.
_MAX_ENTRY_BYTES = 64 << 20
_MAX_CACHE_BYTES = 1 << 30
# Maximum number of entries. The index of this number of entries is smaller than _INDEX_LIMIT.
_MAX_ENTRIES = 50_000
_LOCK_SECONDS = 3.0
# The folders that could not be used. A warning about each folder is logged once.
_reported: set[Path] = set()


def cache_folder() -> Path:
    """Return the folder of onnxopt's cache, which need not exist."""
    if folder := os.environ.get(CACHE_VARIABLE):
        return Path(folder)
    try:
        return platformdirs.user_cache_path("onnxopt")
    except RuntimeError:
        # If HOME is not set and the user is missing from the password database, the user has no
        # home folder. No folder can be created below os.devnull, so the command warns and runs
        # without a cache.
        return Path(os.devnull, "onnxopt")


def make_private_folder(folder: Path) -> None:
    """Create a folder in the cache if it is missing; only this user has access to it.

    Raises:
        OSError: if the folder cannot be created, or another user may have written to it.
    """
    for missing in reversed([place for place in (folder, *folder.parents) if not place.exists()]):
        missing.mkdir(0o700, exist_ok=True)
    if reason := exposure(folder):
        raise PermissionError(errno.EPERM, reason, str(folder))


def exposure(folder: Path) -> str:
    """Return why a folder in the cache is not private to this user; empty for a private folder.

    Raises:
        OSError: if the folder does not exist.
    """
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        return "it is not a folder"
    # foreign(folder) accepts a parent folder that all users may write to, if it has the sticky bit.
    # Therefore, the parent folder is checked as well.
    if reason := foreign(folder) or foreign(folder.parent):
        return reason
    return "" if is_private(status) else "other users have access to it"


def write_cached(path: Path, data: bytes) -> None:
    """Write a file of the cache; a pipe or a link with the same name is replaced.

    Raises:
        UsageError: if the file cannot be written.
    """
    with suppress(OSError):
        if not _signature(path):
            path.unlink()
    write_atomically(path, data)


@dataclass(frozen=True)
class _Entry:
    """A row of the index: the signature and the SHA-256 digest of a file."""

    signature: tuple[int, ...]
    digest: str

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return self.signature[0]


class Cache:
    """The entries of one kind, by key.

    Args:
        name: name of the folder. If the entries depend on the version of a library, either their
            keys or this name must contain the version.
        purpose: a clause for a warning that the cache cannot be used. The clause states what
            happens instead: ``estimates are computed``.

    Attributes:
        unusable: the reason why the folder cannot be used; empty if the folder can be used.
    """

    def __init__(self, name: str, purpose: str) -> None:
        self._folder = cache_folder() / name
        self._purpose = purpose
        self._new: set[str] = set()
        self.unusable = ""
        try:
            self.unusable = exposure(self._folder)
        except FileNotFoundError:
            # The folder is created when the first entry is stored.
            pass
        except OSError as error:
            self.unusable = error.strerror or str(error)
        self._entries = {} if self.unusable else self._index()

    def get(self, key: str) -> bytes | None:
        """Return an entry, or None if it is missing or not trusted."""
        self._warn()
        entry = self._entries.get(key)
        try:
            if entry is None or _signature(self._folder / key) != entry.signature:
                return None
            data = read_regular_file(self._folder / key, _MAX_ENTRY_BYTES)
        except (OSError, Malformed):
            return None
        return data if sha256(data).hexdigest() == entry.digest else None

    def put(self, key: str, data: bytes) -> None:
        """Store an entry; do nothing if the cache cannot be used."""
        if self.unusable or not key or len(data) > _MAX_ENTRY_BYTES:
            return
        try:
            if not self._new or not self._folder.is_dir():
                # Once the folder is private, other users cannot change it, but the user may remove
                # it during a run.
                make_private_folder(self._folder)
            write_cached(self._folder / key, data)
            signature = _signature(self._folder / key)
        except (OSError, UsageError) as error:
            self.unusable = getattr(error, "strerror", None) or str(error)
            self._warn()
            return
        self._entries[key] = _Entry(signature, sha256(data).hexdigest())
        self._new.add(key)

    def close(self) -> None:
        """Add the new entries to the index for later runs."""
        if not self._new:
            return
        with locked(self._folder, _LOCK_SECONDS), suppress(OSError, UsageError):
            if exposure(self._folder):
                return
            # Another run may have changed the index, or written the same entries, after this run
            # read the index.
            entries = self._index()
            for key in self._new:
                if signature := _signature(self._folder / key):
                    entries[key] = replace(self._entries[key], signature=signature)
            total_bytes = sum(entry.size for entry in entries.values())
            while total_bytes > _MAX_CACHE_BYTES or len(entries) > _MAX_ENTRIES:
                oldest = next(iter(entries))
                total_bytes -= entries.pop(oldest).size
                (self._folder / oldest).unlink(missing_ok=True)
            rows = {key: [*entry.signature, entry.digest] for key, entry in entries.items()}
            write_cached(self._folder / _INDEX, json.dumps(rows).encode())
        self._new = set()

    def _warn(self) -> None:
        if self.unusable and self._folder not in _reported:
            _reported.add(self._folder)
            logging.getLogger(__name__).warning(
                "%s without a cache, which takes longer: cannot use %s: %s\n"
                "  %s=DIR names another place",
                self._purpose,
                printable(str(self._folder)),
                printable(self.unusable),
                CACHE_VARIABLE,
            )

    def _index(self) -> dict[str, _Entry]:
        path = self._folder / _INDEX
        try:
            if not _signature(path):
                return {}
            index = read_json(read_regular_file(path, _INDEX_LIMIT))
            return {
                str(key): _Entry((int(size), int(mtime), int(ctime)), str(digest))
                for key, (size, mtime, ctime, digest) in index.items()
                if key.isalnum()
            }
        except (OSError, Malformed, ArithmeticError, ValueError, TypeError, AttributeError):
            return {}


def _signature(path: Path) -> tuple[int, ...]:
    """Return the size, mtime and ctime of a file; an empty tuple if the file is not usable.

    A file is usable if it is a regular file, belongs to this user, and has one hard link. Programs
    cannot set the ctime of a file.
    """
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return ()
    is_usable = stat.S_ISREG(status.st_mode) and is_owned(status) and status.st_nlink == 1
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns) if is_usable else ()
