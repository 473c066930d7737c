"""What the files held that a run is of, and whether they still do.

A file's digest is computed once. Later its signature is looked at, and only where that is another
one is the file read again; so a file that was touched but not changed is the same.
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
    Signature,
)
from onnxopt_cli.cases.tensors.regular_file import (
    Malformed,
    open_regular_file,
    recorded,
    signature,
)
from onnxopt_cli.core.files import shown_path
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import (
    Fault,
    InvalidCase,
    UsageError,
)
from onnxopt_cli.operators.registry import registry

_CHUNK_BYTES = 1 << 20
# A log names so many files; of more it has the folders.
_MOST_NAMED = 5_000
#: Larger files count by size and the time of their last change; so do those that come after so many
#: bytes of others.
MAX_FILE_BYTES = 4 << 30
MAX_HASHED_BYTES = 16 << 30
_LISTED = 5
_MEANWHILE = "changed while the run went on"


@dataclass(frozen=True, slots=True)
class Contents:
    """What files held, to be compared with what they hold another time.

    Attributes:
        backends: a hash of the files of all backends.
        files: a short digest of each file, backends' and cases', by a path to show; of very many
            files one of each folder.
    """

    backends: str = ""
    files: Mapping[str, str] = field(default_factory=dict)

    def differences(self, other: Contents) -> list[str]:
        """Name the files that are not the same; none if the two have no path in common."""
        if not self.files.keys() & other.files.keys():
            return []
        names = [
            name
            for name in {**self.files, **other.files}
            if self.files.get(name) != other.files.get(name)
        ]
        more = len(names) - _LISTED
        found = [f"the content of {name}" for name in names[:_LISTED]]
        return found + ([f"and of {more} more files"] if more > 0 else [])


class FileSnapshot:
    """Knows what files held when the run began."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Signature, bytes]] = {}
        self._backends = ""
        self._left = MAX_HASHED_BYTES
        # Files that are not read for their size.
        self._unread: set[str] = set()

    def see_backends(self, backends: list[str]) -> None:
        """Take note of the files of backends, before any of their code runs, and of operators.

        Raises:
            UsageError: if a backend is not written as backends are.
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
        """Return the digest of a file, the first one if it is asked for again.

        Args:
            path: the file; one that cannot be read has a digest, too.
            seen: its signature when it was read before; empty if it was not.

        Raises:
            UsageError: if it has changed since.
        """
        if path not in self._known:
            self._known[path] = self._first_look(path)
        known, digest = self._known[path]
        if seen not in ((), known):
            raise UsageError(
                f"{printable(shown_path(Path(path)))} changed while the run began",
                hint="run it again when nobody writes to it",
            )
        return digest

    def _first_look(self, path: str) -> tuple[Signature, bytes]:
        size = _size(path)
        if size > min(self._left, MAX_FILE_BYTES):
            if not self._unread:
                logging.getLogger(__name__).warning(
                    "%s has %d bytes: in the log it counts by size and time, as do further files "
                    "that are so large or come after %d bytes",
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
        """All that was seen."""
        digests = {path: digest for path, (_, digest) in self._known.items()}
        while len(digests) > _MOST_NAMED:
            folders: dict[str, blake2b] = {}
            for path, digest in sorted(digests.items()):
                parent = str(PurePath(path).parent)
                folders.setdefault(parent, blake2b(digest_size=16)).update(digest)
            if len(folders) == len(digests):
                break
            digests = {path: it.digest() for path, it in folders.items()}
        shown = {shown_path(Path(path)): digest.hex()[:16] for path, digest in digests.items()}
        return Contents(self._backends, {printable(path): it for path, it in shown.items()})

    def guarded(self, case: Case) -> Case:
        """Return a case that is invalid if it is read from other files than were seen."""
        return replace(case, load=partial(self._load, case.load))

    def changed(self) -> Iterator[Fault]:
        """Yield each file that is no longer what it was."""
        for path, (known, digest) in self._known.items():
            if _signature(path) != known and self._look(path)[1] != digest:
                yield Fault(shown_path(Path(path)), _MEANWHILE)

    def _load(self, load: Callable[[], Problem]) -> Problem:
        with recorded() as opened:
            problem = load()
        others = [path for path, now in opened.items() if self._other(path, now)]
        if others:
            raise InvalidCase([Fault(shown_path(Path(path)), _MEANWHILE) for path in others])
        return problem

    def _other(self, path: str, now: Signature) -> bool:
        if path not in self._known or now is None:
            return True
        known, digest = self._known[path]
        if now == known:
            return False
        found, content = self._look(path)
        if found != now or content != digest:
            return True
        # Only touched.
        self._known[path] = now, digest
        return False


def _look(path: str, most: int) -> tuple[Signature, bytes]:
    """Return a file's signature and digest, or of one that cannot be read, the reason's.

    Args:
        path: the file.
        most: bytes that are read; of a larger file its size and time count.
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
