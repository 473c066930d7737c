"""Faults of the environment: missing memory or disk space, closed streams, missing packages.

Such faults are neither bugs of onnxopt nor verdicts on a backend. If standard output fails, a
command still writes its files. Only the exit code then reveals that output was lost.
"""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from typing import IO, Any

from onnxopt_cli.core.files import working_folder
from onnxopt_cli.core.text import (
    clipped,
    printable,
    without_ci_commands,
)
from onnxopt_cli.errors import OUT_OF_MEMORY, UsageError

_LACKING_CALL = "the kernel lacks a system call, or a container's filter blocks it"
_LOST_FILE_SYSTEM = "a network or user-space file system has failed; mount it again"
# Hints for error numbers of the operating system.
_HINTS = {
    errno.EMFILE: "raise the limit of open files: ulimit -n 256",
    errno.ENFILE: "raise this machine's limit of open files",
    errno.EAGAIN: "raise the limit of processes and threads: ulimit -u; or use -j 1",
    errno.ENOMEM: "raise the limit of memory, or use -j 1",
    errno.ENOSPC: "free space on the disk",
    errno.EDQUOT: "free space within the quota, or raise the quota",
    errno.EFBIG: "raise the limit of the size of files: ulimit -f",
    errno.EROFS: "name a writable place",
    errno.EIO: "the disk may be damaged",
    errno.ESTALE: _LOST_FILE_SYSTEM,
    errno.ENOTCONN: _LOST_FILE_SYSTEM,
    errno.EACCES: "change the permissions of the file and its folders, or name another place",
    errno.ENOSYS: _LACKING_CALL,
    errno.ENOTTY: _LACKING_CALL,
    errno.EOPNOTSUPP: _LACKING_CALL,
    errno.EPERM: "a container's filter or a security module forbids it",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOTDIR: "a part of the path is a file; name another place",
    errno.ELOOP: "a link on the path leads to itself; name another place",
    errno.EISDIR: "the path is a folder; name a file",
    errno.ENXIO: "the path is a socket or pipe; name a regular file",
}

# Matches valid values of the variable COLUMNS.
_COLUMNS = re.compile("[0-9]{1,4}")
# The width of a stream that is not a terminal, and of a terminal that states no width.
_DEFAULT_COLUMNS = 80
# The minimum width of a stream.
_MIN_COLUMNS = 20

# Code that loads the libraries that most commands need, and the schemas of onnx.
_LOAD_LIBRARIES = (
    "import onnxopt_cli._api; from onnxopt_cli.operators.registry import Registry; "
    "Registry.builtin().register_schemas()"
)


def columns_of(stream: IO[str]) -> int:
    """Return the width of a stream: the value of COLUMNS, the width of the terminal, or 80."""
    text = os.environ.get("COLUMNS", "")
    if _COLUMNS.fullmatch(text):
        width = int(text)
    else:
        # Some pseudo-terminals state a width of 0.
        width = _terminal_columns(stream) or _DEFAULT_COLUMNS
    return max(width, _MIN_COLUMNS)


def _terminal_columns(stream: IO[str]) -> int:
    """Return the width of a terminal; 0 if the stream is not a terminal."""
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except OSError:
        # The stream is not a terminal, or has no file descriptor.
        return 0


def require_memory() -> None:
    """Require that the memory limits allow the needed libraries to be loaded.

    If an allocation fails, some libraries end the process with an exit code that has another
    meaning in onnxopt. Therefore, the libraries are first loaded in a separate process.

    Raises:
        UsageError: if the libraries cannot be loaded.
    """
    try:
        import resource
    except ImportError:
        return
    if {"numpy", "onnx"} <= sys.modules.keys():
        # A program that calls onnxopt has already loaded the libraries.
        return
    limits = (resource.RLIMIT_DATA, resource.RLIMIT_AS)
    try:
        limited = any(resource.getrlimit(limit)[0] != resource.RLIM_INFINITY for limit in limits)
    except OSError:
        # Some containers do not let a process read its limits.
        return
    if limited:
        import subprocess

        done = subprocess.run(  # noqa: S603 - our own interpreter
            [sys.executable, "-c", _LOAD_LIBRARIES],
            stdin=subprocess.DEVNULL, capture_output=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise UsageError(
                "the memory limits are too low to load numpy and onnx",
                hint="raise the limits: ulimit -d and -v show them",
            )


def fault_of_environment(error: Exception) -> UsageError | None:
    """Return a usage error for an exception that the environment caused; else None."""
    if isinstance(error, MemoryError):
        return UsageError(f"{OUT_OF_MEMORY} to continue")
    text = str(error)
    if isinstance(error, OSError):
        return _fault_of_system(error)
    for number, hint in _HINTS.items():
        # If a library cannot be imported or a thread cannot be started, the exception contains the
        # text of the system's error.
        if isinstance(error, (ImportError, RuntimeError)) and os.strerror(number) in text:
            return UsageError(f"system error: {printable(text)}", hint=hint)
    if "can't start new thread" in text:
        return UsageError("the system cannot start another thread", hint=_HINTS[errno.EAGAIN])
    return _unfit_package(error)


def _fault_of_system(error: OSError) -> UsageError | None:
    """Return a usage error for a failed system call; None if onnxopt may have caused it."""
    if error.errno == errno.ENOENT and not working_folder():
        return UsageError("the current folder no longer exists", hint="change to an existing one")
    if "temporary directory" in str(error):
        return UsageError(
            "no writable temporary directory",
            hint="set TMPDIR to a folder with free space",
        )
    if error.filename == sys.executable:
        return UsageError(
            f"Python cannot be started: {error.strerror} ({printable(sys.executable)})",
            hint="backends run in Python processes; --isolation none runs them in this process",
        )
    if error.filename == os.devnull and error.errno not in _HINTS:
        return UsageError(
            f"{os.devnull} cannot be opened: {error.strerror}",
            hint="programs need this device; in a container, mount /dev",
        )
    hint = _HINTS.get(error.errno or 0)
    if hint is None:
        return None
    where = f" ({clipped(printable(str(error.filename)), 200)})" if error.filename else ""
    return UsageError(f"system error: {error.strerror}{where}", hint=hint)


def _unfit_package(error: Exception) -> UsageError | None:
    """Return a usage error for a missing or incompatible package; else None."""
    ours = isinstance(error, ImportError) and (error.name or "").startswith("onnxopt_cli")
    # protobuf raises VersionError if its installed version is too old.
    if ours or not (isinstance(error, ImportError) or type(error).__name__ == "VersionError"):
        return None
    return UsageError(
        f"a package that onnxopt needs cannot be loaded: {printable(str(error))}",
        hint="pip install --upgrade onnxopt, in an environment of its own",
    )


class _Stream(io.FileIO):
    """A stream that records its first error, and may discard all output after the error.

    Args:
        descriptor: the file descriptor to write to, which is not closed.
        silent: whether output is discarded after an error; otherwise the error is raised.

    Attributes:
        error: the first error; None if no error has occurred.
    """

    def __init__(self, descriptor: int, *, silent: bool) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.silent = silent
        self.error: OSError | None = None

    def write(self, data: Any, /) -> int:
        if self.error is None or not self.silent:
            try:
                return super().write(data)
            except OSError as error:
                self.error = self.error or error
                if not self.silent:
                    raise
        return len(data)


class _Lines(io.TextIOWrapper):
    """A text stream that changes lines that a CI server would interpret as commands.

    The stream sees the lines as they are printed, after wrapping. Data for programs, such as a
    report, are written as bytes, which the stream does not change.
    """

    _line_is_open = False

    def write(self, text: str, /) -> int:
        super().write(without_ci_commands(text, goes_on=self._line_is_open))
        if text:
            last_line = text.replace("\r", "\n").rpartition("\n")[2]
            continues = self._line_is_open and last_line == text
            self._line_is_open = bool(last_line.strip()) or continues
        return len(text)


def _replace_closed_streams() -> None:
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # Standard output gets a read-only descriptor, so that every write to it fails.
            flags = os.O_WRONLY if name == "stderr" else os.O_RDONLY
            stream = open(os.open(os.devnull, flags), mode, encoding="utf-8")  # noqa: PTH123, SIM115 - stays open
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def guard_streams() -> None:
    """Replace the standard streams by streams that handle errors and disarm commands to CI servers.

    Standard error ignores errors, and standard output records the first error. If the encoding of
    the locale lacks a character, an escape is written. A closed stream is replaced by the null
    device, so that no other file gets its descriptor. If standard output is closed, writing to it
    is an error, as in other programs.
    """
    _replace_closed_streams()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper):
            continue
        stream.reconfigure(errors="backslashreplace")
        # With python -u, the stream has no buffer. A Windows console is not a FileIO.
        raw = getattr(stream.buffer, "raw", stream.buffer)
        if stream is getattr(sys, f"__{name}__") and isinstance(raw, io.FileIO):
            guarded = _Lines(
                io.BufferedWriter(_Stream(raw.fileno(), silent=name == "stderr")),
                encoding=stream.encoding,
                errors=stream.errors,
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )
            setattr(sys, name, guarded)


def silence_output() -> _Stream | None:
    """Ignore further errors of standard output, and return its :class:`_Stream`, if any."""
    output = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if not isinstance(output, _Stream):
        return None
    output.silent = True
    return output


def lost_output() -> OSError | None:
    """Flush standard output; return its first error, or None if all output was written."""
    output = silence_output()
    # Code of a user's operator file may have closed the stream.
    if sys.stdout and not sys.stdout.closed:
        sys.stdout.flush()
    return None if output is None else output.error
