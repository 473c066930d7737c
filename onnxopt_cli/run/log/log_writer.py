"""Writing a log. If the run is killed, at most the last record is lost."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from time import monotonic
from typing import Any

from onnxopt_cli.core.files import create_last_folder
from onnxopt_cli.core.record import RunRecord, explanation_to_json
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import UsageError

# The number of seconds between synchronisations of the file with the disk. A power failure may lose
# the records since the last synchronisation.
_SYNCHRONISE_SECONDS = 1.0

_CHUNK_BYTES = 1 << 20
#: The largest number of bytes of a log that is written or read. Readers keep the whole log in
#: memory.
MAX_BYTES = 256 << 20
#: Every line of a log begins with these bytes. No report begins with them.
LOG_LINE = b'{"record":'
#: The record that marks a log as unreliable.
SPOILED = "spoiled"

# The error numbers of calls that the system or file system does not support, or that a container
# forbids.
_LACKING = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK, errno.EPERM, errno.EACCES}

_FLAGS = os.O_RDWR | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
# Opening a device must not block, and a terminal must not become the controlling terminal.
_FLAGS |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)


class LogWriter:
    """An open log file, which is locked if the system supports file locks.

    If a record cannot be written, no exception is raised. The error is stored in :attr:`failure`,
    and the run continues, so that its verdict is shown.

    A log to which another program writes is unreliable. To detect such a log, the writer compares
    the size of the file before each record, and its content at the end, with its own records. If
    they differ, the writer stores a failure, and adds a last record that marks the log as
    spoiled. Readers reject such a log.

    Attributes:
        failure: why the log is incomplete; empty if no error has occurred.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._synchronised = monotonic()
        self._regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        self._size = 0
        self._digest = blake2b()
        self.failure = ""

    @classmethod
    def create(cls, path: Path) -> LogWriter:
        """Create a log, or open an empty file.

        Raises:
            UsageError: if the file is not empty or cannot be written.
        """
        with _opened(path, os.O_CREAT) as descriptor:
            writer = cls(path, descriptor)
            if not writer._has_size(0):
                raise UsageError(
                    f"{printable(str(path))} exists, and a log is never overwritten",
                    hint="continue it with --resume, or name another file",
                )
        return writer

    @classmethod
    def append(cls, path: Path, size: int, digest: bytes = b"") -> LogWriter:
        """Open a log to append to its first ``size`` bytes, which must have the given digest.

        Raises:
            UsageError: if the log cannot be written, if another run is writing it, or if it has
                changed since it was read.
        """
        with _opened(path, 0) as descriptor:
            writer = cls(path, descriptor)
            writer._size, writer._digest = size, _hashed(descriptor, size)
            if size and writer._digest.digest() != digest:
                raise UsageError(f"{printable(str(path))} changed while it was read")
            os.ftruncate(descriptor, size)
        return writer

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a record; do nothing if an earlier record could not be written."""
        if self.failure:
            return
        line = record_line(record)
        if not self._has_size(self._size):
            self._mark_as_foreign()
            return
        if self._size + len(line) > MAX_BYTES:
            self.failure = f"it would exceed {MAX_BYTES} bytes; --shard divides a run"
            return
        try:
            unwritten = line
            while unwritten:
                unwritten = unwritten[os.write(self._descriptor, unwritten) :]
            self._size += len(line)
            self._digest.update(line)
            if monotonic() - self._synchronised > _SYNCHRONISE_SECONDS:
                self._synchronise()
        except OSError as error:
            self.failure = error.strerror or str(error)
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)

    def close(self) -> None:
        """Synchronise and verify the file, and close it."""
        try:
            self._synchronise()
            if not self.failure and self._regular and not self._is_ours():
                self._mark_as_foreign()
        except OSError as error:
            self.failure = self.failure or error.strerror or str(error)
        with contextlib.suppress(OSError):
            os.close(self._descriptor)

    def require_complete(self) -> None:
        """Require that the log is complete.

        Raises:
            UsageError: if the log is not complete. The message states the reason.
        """
        if self.failure:
            raise UsageError(
                f"the log {printable(str(self._path))} is not complete: {self.failure}",
                hint="run again with another log"
                if self.failure == _FOREIGN or not self._regular
                else "the outcomes shown are final; --resume runs the cases that the log lacks",
            )

    def _has_size(self, size: int) -> bool:
        return not self._regular or os.fstat(self._descriptor).st_size == size

    def _is_ours(self) -> bool:
        """Return whether the path leads to the open file, and the file has the written content."""
        status = os.fstat(self._descriptor)
        try:
            status_at_path = self._path.stat()
        except OSError:
            return False
        if not os.path.samestat(status, status_at_path) or status.st_size != self._size:
            return False
        return _hashed(self._descriptor, self._size).digest() == self._digest.digest()

    def _mark_as_foreign(self) -> None:
        """Mark the log as unreliable by adding a record on a new line."""
        self.failure = _FOREIGN
        with contextlib.suppress(OSError):
            os.write(self._descriptor, b"\n" + record_line({"record": SPOILED, "why": _FOREIGN}))

    def _synchronise(self) -> None:
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            # Some file systems do not support synchronisation.
            if error.errno not in _LACKING:
                raise
        self._synchronised = monotonic()


_FOREIGN = "another program wrote to it, replaced it or removed it during the run"


_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def record_line(record: Mapping[str, Any]) -> bytes:
    """Return a record as a line of a log."""
    return _ENCODER.encode(record).encode() + b"\n"


def footer(record: RunRecord) -> dict[str, Any]:
    """Return the last record of a run's log."""
    counts = Counter(result.outcome.value for result in record.results)
    return {
        "record": "footer",
        "exit_code": record.exit_code,
        **({"ended": record.ended} if record.ended else {}),
        "counts": dict(sorted(counts.items())),
        "problems": list(map(asdict, record.problems)),
        "findings": list(map(asdict, record.findings)),
        "explanations": list(map(explanation_to_json, record.explanations)),
    }


def _hashed(descriptor: int, size: int) -> blake2b:
    """Return the hash of the first ``size`` bytes of a file, or of all bytes if it is shorter."""
    digest = blake2b()
    # The file is open for appending, so its position does not affect later writes.
    os.lseek(descriptor, 0, os.SEEK_SET)
    while data := os.read(descriptor, min(_CHUNK_BYTES, size)):
        digest.update(data)
        size -= len(data)
    return digest


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    """Open and lock a file for a log; close it if an error occurs."""
    try:
        if flags & os.O_CREAT:
            create_last_folder(path.parent)
        # Only the user may write to the log, even if the umask would allow others to write.
        descriptor = os.open(path, _FLAGS | flags, 0o644)
        try:
            _require_file(descriptor, path)
            _lock(descriptor, path)
            yield descriptor
        except BaseException:
            os.close(descriptor)
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"cannot write the log {printable(str(path))}: {reason}") from error


def _require_file(descriptor: int, path: Path) -> None:
    """Reject pipes and terminals. They may block, and cannot be read again to resume a run."""
    mode = os.fstat(descriptor).st_mode
    # Devices such as /dev/null and /dev/full are harmless.
    is_device = stat.S_ISCHR(mode) and not os.isatty(descriptor)
    if not stat.S_ISREG(mode) and not is_device:
        raise UsageError(
            f"the log {printable(str(path))} is not a regular file",
            hint="name a file, as in --log run.jsonl; --report json=FILE also writes to pipes",
        )


def _lock(descriptor: int, path: Path) -> None:
    try:
        import fcntl
    except ImportError:
        # Windows lacks POSIX file locks. Two runs that write to the same log are not detected
        # there.
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(f"another run is writing {printable(str(path))}") from None
    except OSError as error:
        # If the file system or container does not support locks, the log is written without a lock,
        # as on Windows.
        if error.errno not in _LACKING:
            raise
