"""The first record of a log, which identifies the run: cases, files, backends and options.

The record has a digest of each file that the run depends on. A digest is computed once. Later, the
file is read again only if its signature (size, modification time and the like) has changed. A file
with a new signature but the same content counts as unchanged.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b
from pathlib import Path, PurePath
from typing import Any

from onnxopt_cli.backends.backend_code import snapshot_files
from onnxopt_cli.cases.case import (
    Case,
    Problem,
)
from onnxopt_cli.config.run_config import RunConfig, Shard
from onnxopt_cli.core.files import shown_path
from onnxopt_cli.core.record import PROCESSOR, BackendIdentity, require_once
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

#: The version of the log format, as the header of a log states it.
SCHEMA = "onnxopt.log/1"
_CHUNK_BYTES = 1 << 20
# The largest number of files whose digests a log lists one by one. If a run depends on more files,
# its log has one digest per folder.
_MAX_LISTED_FILES = 5_000
# A file of at most this number of bytes is identified by its content. A larger file is identified
# by size and modification time.
_MAX_FILE_BYTES = 4 << 30
#: Once this number of bytes has been hashed in total, all further files are identified by size and
#: modification time.
MAX_HASHED_BYTES = 16 << 30
# The largest number of files that a message names.
_MAX_NAMED_FILES = 5
_CHANGED = "changed during the run"


def time_now() -> str:
    """Return the present time in the form of a log, such as ``2026-01-31T23:59:59.012345Z``."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass(frozen=True, slots=True)
class Contents:
    """Digests of the files of a run, for comparison with another run.

    Attributes:
        backends: a hash of the files of all backends.
        files: a short digest of each file of backends and cases, by displayed path. If there are
            very many files, a digest of each folder.
    """

    backends: str = ""
    files: Mapping[str, str] = field(default_factory=dict)

    def differences(self, other: Contents) -> list[str]:
        """Return texts that name the differing files; empty if the runs have no common path."""
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
    """Records the digests and signatures of files at the beginning of a run."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Signature, bytes]] = {}
        self._backends = ""
        self._left = MAX_HASHED_BYTES
        # Files that are too large to be hashed.
        self._unread: set[str] = set()

    def see_backends(self, backends: list[str]) -> None:
        """Record the files of operators and backends, before any code of a backend runs.

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
        """Return the digest of a file, which the first call for this file computes.

        Args:
            path: the file. An unreadable file has a digest, too.
            seen: the signature of the file when it was read earlier; empty if it was not read
                before.

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
        if size > min(self._left, _MAX_FILE_BYTES):
            if not self._unread:
                logging.getLogger(__name__).warning(
                    "%s has %d bytes: the log identifies the file by size and time, not by "
                    "content; the same applies to further large files, and to all files after the "
                    "first %d bytes",
                    *(printable(shown_path(Path(path))), size, MAX_HASHED_BYTES),
                )
            self._unread.add(path)
        else:
            self._left -= size
        return self._look(path)

    def _look(self, path: str) -> tuple[Signature, bytes]:
        return _look(path, -1 if path in self._unread else _MAX_FILE_BYTES)

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
        files = {_shown(path): _short(digest) for path, digest in digests.items()}
        return Contents(self._backends, files)

    def guarded(self, case: Case) -> Case:
        """Return a copy of a case; loading the copy raises InvalidCase if any file has changed."""
        return replace(case, load=partial(self._load, case.load))

    def changed(self) -> Iterator[Fault]:
        """Yield a fault for each recorded file that has changed."""
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
        # The signature of the file is new, but its content is unchanged.
        self._known[path] = now, digest
        return False


def _look(path: str, most: int) -> tuple[Signature, bytes]:
    """Return a file's signature and digest.

    The digest of an unreadable file is the digest of the error message.

    Args:
        path: the file.
        most: the largest size in bytes at which the content is hashed. If a file is larger, its
            size and modification time are hashed instead.
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


def _shown(path: str) -> str:
    return printable(shown_path(Path(path)))


def _short(digest: bytes) -> str:
    return digest.hex()[:16]


def changed_files(cases: Iterable[Case], digests: Mapping[str, str]) -> list[str]:
    """Return the files of cases that do not have the digests of an earlier run.

    Args:
        cases: the cases.
        digests: the digests of :class:`Contents`; files without a digest are not compared.

    Returns:
        The displayed paths.

    Raises:
        UsageError: if a file has changed since the cases were collected.
    """
    snapshot = FileSnapshot()
    changed: dict[str, None] = {}
    for case in cases:
        # A case whose files cannot be listed cannot be loaded either.
        with suppress(OSError):
            for path, seen in case.files().items():
                name = _shown(path)
                if name in digests and digests[name] != _short(snapshot.digest(path, seen)):
                    changed[name] = None
    return [*changed]


@dataclass(frozen=True, slots=True)
class CaseList:
    """The number of cases, and a hash of the cases."""

    count: int
    hash: str

    @classmethod
    def of(cls, cases: Sequence[Case], snapshot: FileSnapshot) -> CaseList:
        """Identify cases by their ids and the contents of their files.

        The folders of the files are ignored, because shards may run on several machines. A case of
        onnx or onnxopt is identified by the version of the package.

        Raises:
            UsageError: if a file has changed since the cases were collected.
        """
        digest = blake2b(digest_size=16)
        for case in cases:
            case_digest = blake2b(digest_size=16)
            case_digest.update(case.id.encode("utf-8", "surrogatepass") + b"\0")
            case_digest.update(case.source.encode("utf-8", "surrogatepass"))
            # If files cannot be listed, loading the case reports an error.
            with suppress(OSError):
                for path, seen in case.files().items():
                    file_name = PurePath(path).name
                    case_digest.update(file_name.encode("utf-8", "surrogateescape") + b"\0")
                    case_digest.update(snapshot.digest(path, seen))
            digest.update(case_digest.digest())
        return cls(len(cases), digest.hexdigest())

    def __str__(self) -> str:
        return f"{self.count} with hash {self.hash[:8]}"


@dataclass(frozen=True, slots=True)
class Header:
    """Description of a run: cases, backends, versions and options.

    Attributes:
        started: the start time in UTC, such as ``2026-01-31T23:59:59.012345Z``. Older logs omit the
            fraction.
        versions: the versions of onnxopt, Python and relevant packages, and the machine.
        backends: the backends under test.
        cases: the selected cases of all shards.
        shard: the part of the cases that runs; None for all cases.
        expectations: a hash of the expectation files; empty without them.
        options: the settings of the run, as RunConfig.to_json returns them.
        hostname: name of the machine; empty in older logs.
        contents: digests of the files of backends and cases.
        left_out: for each excluded capability, the reason and the number of cases that need it.
        origin: commit, branch and job on a CI server; empty elsewhere and in older logs.
    """

    started: str
    versions: Mapping[str, str]
    backends: tuple[BackendIdentity, ...]
    cases: CaseList
    shard: Shard | None
    expectations: str
    options: Mapping[str, Any]
    hostname: str = ""
    contents: Contents = field(default_factory=Contents)
    left_out: Mapping[str, str] = field(default_factory=dict)
    origin: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the record."""
        return {"record": "header", "schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Header:
        """Return the header of a record that conforms to the schema.

        Raises:
            ValueError: if the shard or the backends are invalid.
        """
        shard = data["shard"]
        if shard is not None and shard["index"] > shard["count"]:
            raise ValueError(f"found shard {shard['index']} of {shard['count']}")
        require_once(backend["name"] for backend in data["backends"])
        return cls(
            started=data["started"],
            versions=data["versions"],
            expectations=data["expectations"],
            options=data["options"],
            backends=tuple(BackendIdentity(**backend) for backend in data["backends"]),
            cases=CaseList(**data["cases"]),
            shard=None if shard is None else Shard(**shard),
            # Logs of earlier versions lack some fields.
            left_out=data.get("left_out", {}),
            hostname=data.get("hostname", ""),
            origin=data.get("origin", {}),
            contents=Contents(**data.get("contents", {})),
        )

    def differences(self, other: Header) -> list[str]:
        """List the differences from the header of another run; the shards are not compared."""
        differences = _change("the cases", self.cases, other.cases)
        if self.backends != other.backends:
            differences.append(f"the backends ({_backends(self)}, now {_backends(other)})")
        elif self.contents.backends != other.contents.backends:
            differences.append("the files of the backends")
        if differences:
            differences += self.contents.differences(other.contents)
        if self.expectations != other.expectations:
            differences.append("the content of the expectation files")
        # With --lf, a resumed run selects cases by their ids, so the numbers of cases may differ.
        excluded = (", ".join(sorted(header.left_out)) or "none" for header in (self, other))
        differences += _change("the excluded capabilities", *excluded)
        # The processor is the only entry of the versions that cannot affect a verdict.
        for name in sorted((self.versions.keys() | other.versions.keys()) - {PROCESSOR}):
            versions = (header.versions.get(name, "none") for header in (self, other))
            differences += _change(name, *versions)
        settings = RunConfig.declared()
        flags = {setting.name: setting.option.flag for setting in settings}
        may_differ = {setting.name for setting in settings if setting.option.may_differ}
        for name in sorted((self.options.keys() | other.options.keys()) - may_differ):
            option = f"the option {flags.get(name, name)}"
            differences += _change(option, self.options.get(name), other.options.get(name))
        return [printable(text) for text in differences]


def _change(name: str, before: object, now: object) -> list[str]:
    return [] if before == now else [f"{name} ({before}, now {now})"]


def _backends(header: Header) -> str:
    return ", ".join(f"{backend.name} [{backend.version}]" for backend in header.backends)
