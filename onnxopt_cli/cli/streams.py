"""Standard output and error where the disk is full, the pipe is closed or there is no stream.

What a command prints is for a reader; that nobody reads it must neither cost what the command
writes to files nor change what it exits with, except to say so.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any, cast


class _Stream(io.RawIOBase):
    """A stream that keeps its first error and may go on in silence after it.

    Args:
        raw: where bytes really go.
        silent: whether to go on; else the error is raised.

    Attributes:
        error: the first error; None as long as there is none.
    """

    def __init__(self, raw: io.RawIOBase, *, silent: bool) -> None:
        self._raw = raw
        self.silent = silent
        self.error: OSError | None = None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._raw.fileno()

    def isatty(self) -> bool:
        return self._raw.isatty()

    def write(self, data: Any, /) -> int | None:
        if self.error is None or not self.silent:
            try:
                return self._raw.write(data)
            except OSError as error:
                self.error = self.error or error
                if not self.silent:
                    raise
        return len(data)


def guard_streams() -> None:
    """Let standard error never fail and standard output remember that it has.

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
        if stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, _guarded(stream, silent=name == "stderr"))


def go_on_without_reader() -> None:
    """Let what is printed from now on go nowhere if nobody takes it: files are to be written."""
    output = _output()
    if output is not None:
        output.silent = True


def lost_output() -> OSError | None:
    """Put out what is still held of standard output; return why not all of it was taken."""
    go_on_without_reader()
    sys.stdout.flush()
    output = _output()
    return None if output is None else output.error


def _output() -> _Stream | None:
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return raw if isinstance(raw, _Stream) else None


def _guarded(stream: io.TextIOWrapper, *, silent: bool) -> io.TextIOWrapper:
    # Under python -u there is no buffer in between.
    raw = cast("io.RawIOBase", getattr(stream.buffer, "raw", stream.buffer))
    return io.TextIOWrapper(
        io.BufferedWriter(_Stream(raw, silent=silent)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
