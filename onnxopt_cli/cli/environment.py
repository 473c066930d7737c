"""What the machine lacks or does not allow: memory, room on the disk, a stream that is open.

It is neither our defect nor a verdict. That nobody reads what a command prints must neither cost
what it writes to files nor change what it exits with, except to say so.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any

from onnxopt_cli.core.files import working_folder
from onnxopt_cli.core.text import (
    clipped,
    printable,
    without_ci_commands,
)
from onnxopt_cli.errors import OUT_OF_MEMORY, UsageError

# What to do about what the system may lack, or not allow.
_LACKS = {
    errno.EMFILE: "let more files be open at once: ulimit -n 256",
    errno.ENFILE: "let more files be open at once on this machine",
    errno.EAGAIN: "let more processes and threads run at once: ulimit -u; or use -j 1",
    errno.ENOMEM: "let more memory be used, or use -j 1",
    errno.ENOSPC: "make room on the disk",
    errno.EDQUOT: "make room within the quota",
    errno.EFBIG: "let files be larger: ulimit -f",
    errno.EROFS: "choose a place that can be written",
    errno.EIO: "the disk may be damaged",
    errno.EACCES: "let it be read and its folders be entered, or name another place",
    errno.ENOSYS: "the kernel, or the filter of a container, lacks a call that this needs",
    errno.EPERM: "the filter of a container, or a security module, forbids it",
    errno.ENAMETOOLONG: "choose a shorter name",
}

# What most commands load: what a run does, and the schemas of onnx.
_LOADS = (
    "import onnxopt_cli._api; from onnxopt_cli.operators.registry import Registry; "
    "Registry.builtin().register_schemas()"
)


def require_memory() -> None:
    """Refuse limits under which the libraries that every command needs cannot be loaded.

    Some of them end the process where they get no memory, with an exit code that means another
    thing, so they are tried in one of its own.

    Raises:
        UsageError: if they cannot be loaded.
    """
    try:
        import resource
    except ImportError:
        return
    if {"numpy", "onnx"} <= sys.modules.keys():
        # A program that calls the command has loaded them.
        return
    limits = (resource.RLIMIT_DATA, resource.RLIMIT_AS)
    try:
        limited = any(resource.getrlimit(it)[0] != resource.RLIM_INFINITY for it in limits)
    except OSError:
        # Nobody may ask, as in some containers.
        return
    if limited:
        import subprocess

        done = subprocess.run(  # noqa: S603 - our own interpreter
            [sys.executable, "-c", _LOADS],
            stdin=subprocess.DEVNULL, capture_output=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise UsageError(
                "the limits on memory here are too low to load numpy and onnx",
                hint="raise them: ulimit -d and -v show what they are",
            )


def fault_of_environment(error: Exception) -> UsageError | None:
    """Return in words what the system lacks for which an error was raised; None if nothing."""
    if isinstance(error, MemoryError):
        return UsageError(f"{OUT_OF_MEMORY} to go on")
    text = str(error)
    if isinstance(error, OSError):
        if error.errno == errno.ENOENT and not working_folder():
            return UsageError("the current folder is gone", hint="change to one that is there")
        if "temporary directory" in text:
            return UsageError(
                "there is no folder for temporary files that takes any",
                hint="set TMPDIR to a folder with room",
            )
        if error.filename == sys.executable:
            return UsageError(
                f"Python cannot be started: {error.strerror} ({printable(sys.executable)})",
                hint="backends run in processes of it; --isolation none runs them in this one",
            )
        hint = _LACKS.get(error.errno or 0)
        if hint is None:
            return None
        where = f" ({clipped(printable(str(error.filename)), 200)})" if error.filename else ""
        return UsageError(f"the system says: {error.strerror}{where}", hint=hint)
    for number, hint in _LACKS.items():
        # What comes of it where a library is loaded or a thread is started.
        if isinstance(error, (ImportError, RuntimeError)) and os.strerror(number) in text:
            return UsageError(f"the system says: {printable(text)}", hint=hint)
    if "can't start new thread" in text:
        return UsageError("the system starts no more threads", hint=_LACKS[errno.EAGAIN])
    return _unfit_package(error)


def _unfit_package(error: Exception) -> UsageError | None:
    """Return in words that a package is missing, or does not fit the others; None if it is ours."""
    ours = isinstance(error, ImportError) and (error.name or "").startswith("onnxopt_cli")
    # protobuf has a kind of error of its own for a runtime that is too old.
    if ours or not (isinstance(error, ImportError) or type(error).__name__ == "VersionError"):
        return None
    return UsageError(
        f"a package that onnxopt needs cannot be loaded: {printable(str(error))}",
        hint="pip install --upgrade onnxopt, in an environment of its own",
    )


class _Stream(io.FileIO):
    """A stream that keeps its first error and may go on in silence after it.

    Args:
        descriptor: where bytes go; it stays open.
        silent: whether to go on; else the error is raised.

    Attributes:
        error: the first error; None as long as there is none.
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
    """Lines for people, of which a CI server takes none for a command to itself.

    This is the last place that they pass, after all wrapping. What is for programs, such as a
    report, is written as bytes.
    """

    _goes_on = False

    def write(self, text: str, /) -> int:
        super().write(without_ci_commands(text, goes_on=self._goes_on))
        if text:
            rest = text.rpartition("\n")[2]
            self._goes_on = bool(rest.strip()) or (self._goes_on and rest == text)
        return len(text)


def guard_streams() -> None:
    """Let standard error never fail and standard output remember that it has, and neither command.

    A character that the locale's encoding lacks is shown as an escape. A stream that is closed is
    opened to nothing, so that no file of ours gets its number.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - stays open
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper):
            continue
        stream.reconfigure(errors="backslashreplace")
        # Under python -u there is no buffer in between. A console of Windows is no file.
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
    """Let what is printed from now on go nowhere if nobody takes it: files are to be written."""
    output = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if not isinstance(output, _Stream):
        return None
    output.silent = True
    return output


def lost_output() -> OSError | None:
    """Put out what is still held of standard output; return why not all of it was taken."""
    output = silence_output()
    # A user's operator file is code, and may have closed it.
    if sys.stdout and not sys.stdout.closed:
        sys.stdout.flush()
    return None if output is None else output.error
