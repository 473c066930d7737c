"""Digests of the files that a run depends on, and detection of changes during the run.

The digest of a file is computed once. Later the file is read again only if its signature (such as
size and modification time) differs. A file that was touched but has the same content counts as
unchanged.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path, PurePath

from onnxopt_cli.backends.source_snapshot import snapshot_files
from onnxopt_cli.cases.case import (
    Case,
    Problem,
)
from onnxopt_cli.core.files import shown_path
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.untrusted_files import (
    Malformed,
    Signature,
    open_regular_file,
    recorded,
    signature,
)
from onnxopt_cli.errors import (
    Fault,
    InvalidCase,
    UsageError,
)
from onnxopt_cli.operators.registry import registry

_CHUNK_BYTES = 1 << 20
# If a run depends on more files, its log has one digest for each folder instead of each file.
_MAX_LISTED_FILES = 5_000
#: Larger files are identified by size and modification time instead of content.
MAX_FILE_BYTES = 4 << 30
#: When this total number of bytes has been hashed, further files are also identified by size and
#: modification time.
MAX_HASHED_BYTES = 16 << 30
# A message names at most this number of files.
_MAX_NAMED_FILES = 5
_CHANGED = "changed during the run"


@dataclass(frozen=True, slots=True)
class Contents:
    """Digests of the files of a run, for comparison with another run.

    Attributes:
        backends: a hash of the files of all backends.
        files: a short digest of each file of backends and cases, by displayed path; if there are
            very many files, a digest of each folder.
    """

    backends: str = ""
    files: Mapping[str, str] = field(default_factory=dict)

    def differences(self, other: Contents) -> list[str]:
        """Name the files that differ; empty if the runs have no path in common."""
        if not self.files.keys() & other.files.keys():
            return []
        names = [
            name
            for name in {**self.files, **other.files}
            if self.files.get(name) != other.files.get(name)
        ]
        more = len(names) - _MAX_NAMED_FILES
        texts = [f"the content of {name}" for name in names[:_MAX_NAMED_FILES]]
        return texts + ([f"and of {more} more files"] if more > 0 else [])


class FileSnapshot:
    """Digests and signatures of files when the run began."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Signature, bytes]] = {}
        self._backends = ""
        self._left = MAX_HASHED_BYTES
        # Files that are too large to be read.
        self._unread: set[str] = set()

    def see_backends(self, backends: list[str]) -> None:
        """Record the files of backends, before any of their code runs, and of operators.

        Raises:
            UsageError: if the specification of a backend is invalid.
        """
        digest = blake2b(digest_size=16)
        for text in backends:
            for name, path in snapshot_files(text).items():
                digest.update(name.encode("utf-8", "surrogateescape") + b"\0")
                digest.update(self.digest(str(path)))
            digest.update(b"\0")
        for path in registry().files:
            digest.update(path.name.encode("utf-8", "surrogateescape") + self.digest(str(path)))
        self._backends = digest.hexdigest()

    def digest(self, path: str, seen: object = ()) -> bytes:
        """Return the digest of a file as it was at the first call.

        Args:
            path: the file; an unreadable file also has a digest.
            seen: the signature of the file when it was read earlier; empty if it was not read.

        Raises:
            UsageError: if the file has changed since it was read.
        """
        if path not in self._known:
            self._known[path] = self._first_look(path)
        known, digest = self._known[path]
        if seen not in ((), known):
            raise UsageError(
                f"{printable(shown_path(Path(path)))} changed while the run began",
                hint="run again when no other program writes to the file",
            )
        return digest

    def _first_look(self, path: str) -> tuple[Signature, bytes]:
        size = _size(path)
        if size > min(self._left, MAX_FILE_BYTES):
            if not self._unread:
                logging.getLogger(__name__).warning(
                    "%s has %d bytes: the log identifies it by size and time, and likewise further "
                    "large files and all files after the first %d bytes",
                    *(printable(shown_path(Path(path))), size, MAX_HASHED_BYTES),
                )
            self._unread.add(path)
        else:
            self._left -= size
        return self._look(path)

    def _look(self, path: str) -> tuple[Signature, bytes]:
        return _look(path, -1 if path in self._unread else MAX_FILE_BYTES)

    @property
    def contents(self) -> Contents:
        """The digests of all recorded files."""
        digests = {path: digest for path, (_, digest) in self._known.items()}
        while len(digests) > _MAX_LISTED_FILES:
            folders: dict[str, blake2b] = {}
            for path, digest in sorted(digests.items()):
                parent = str(PurePath(path).parent)
                folders.setdefault(parent, blake2b(digest_size=16)).update(digest)
            if len(folders) == len(digests):
                break
            digests = {path: folder.digest() for path, folder in folders.items()}
        files = {
            printable(shown_path(Path(path))): digest.hex()[:16] for path, digest in digests.items()
        }
        return Contents(self._backends, files)

    def guarded(self, case: Case) -> Case:
        """Return a case whose loading raises InvalidCase if its files have changed."""
        return replace(case, load=partial(self._load, case.load))

    def changed(self) -> Iterator[Fault]:
        """Yield a fault for each file that has changed."""
        for path, (known, digest) in self._known.items():
            if _signature(path) != known and self._look(path)[1] != digest:
                yield Fault(shown_path(Path(path)), _CHANGED)

    def _load(self, load: Callable[[], Problem]) -> Problem:
        with recorded() as opened:
            problem = load()
        changed = [path for path, now in opened.items() if self._has_changed(path, now)]
        if changed:
            raise InvalidCase([Fault(shown_path(Path(path)), _CHANGED) for path in changed])
        return problem

    def _has_changed(self, path: str, now: Signature) -> bool:
        if path not in self._known or now is None:
            return True
        known, digest = self._known[path]
        if now == known:
            return False
        signature_now, digest_now = self._look(path)
        if signature_now != now or digest_now != digest:
            return True
        # The file was touched, not modified.
        self._known[path] = now, digest
        return False


def _look(path: str, most: int) -> tuple[Signature, bytes]:
    """Return a file's signature and digest; for an unreadable file, the digest of the reason.

    Args:
        path: the file.
        most: the largest size in bytes at which the content is hashed; of a larger file, size and
            modification time are hashed instead.
    """
    digest = blake2b(digest_size=16)
    try:
        with open_regular_file(path) as (descriptor, status):
            if status.st_size > most:
                digest.update(repr((status.st_size, status.st_mtime_ns)).encode())
                return signature(status), digest.digest()
            while data := os.read(descriptor, _CHUNK_BYTES):
                digest.update(data)
            before, after = signature(status), signature(os.fstat(descriptor))
            return (before if before == after else None), digest.digest()
    except Malformed as error:
        digest.update(b"\0" + str(error).encode("utf-8", "replace"))
        return None, digest.digest()


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


def _signature(path: str) -> Signature:
    try:
        return signature(Path(path).stat())
    except OSError:
        return None
