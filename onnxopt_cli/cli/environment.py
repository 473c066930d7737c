"""What the machine lacks or does not allow, in words: it is neither our defect nor a verdict."""

from __future__ import annotations

import errno
import os
import sys

from onnxopt_cli.core.text import printable
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
}


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
    if any(resource.getrlimit(limit)[0] != resource.RLIM_INFINITY for limit in limits):
        import subprocess

        done = subprocess.run(
            [sys.executable, "-c", "import numpy, onnx, onnxopt_cli.cases.collect"],
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
        if error.errno == errno.ENOENT and not _has_folder():
            return UsageError("the current folder is gone", hint="change to one that is there")
        if "temporary directory" in text:
            return UsageError(
                "there is no folder for temporary files that takes any",
                hint="set TMPDIR to a folder with room",
            )
        hint = _LACKS.get(error.errno or 0)
        if hint is None:
            return None
        where = f" ({printable(str(error.filename))})" if error.filename else ""
        return UsageError(f"the system says: {error.strerror}{where}", hint=hint)
    for number, hint in _LACKS.items():
        # What comes of it where a library is loaded or a thread is started.
        if isinstance(error, (ImportError, RuntimeError)) and os.strerror(number) in text:
            return UsageError(f"the system says: {printable(text)}", hint=hint)
    if "can't start new thread" in text:
        return UsageError("the system starts no more threads", hint=_LACKS[errno.EAGAIN])
    return None


def _has_folder() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 - only whether there is one
    except OSError:
        return False
    return True
