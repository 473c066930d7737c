"""What a worker writes to stdout and stderr: read as it comes, and only its end kept."""

from __future__ import annotations

import os

from onnxopt_cli.core.text import printable

_KEPT = 16 << 10
_SHOWN_LINES = 20
_SHOWN_CHARACTERS = 2000
_READ = 64 << 10
#: Most that is read at a time, so that a flood does not keep the runner from its other work.
_MOST_AT_ONCE = 1 << 20


class Printed:
    """Reads a pipe to which a worker writes.

    Args:
        descriptor: the reading end, which is closed by :meth:`close`.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self._end = bytearray()
        self._count = 0

    def read(self) -> bool:
        """Take what is there; return False if nothing will come any more."""
        taken = 0
        while taken < _MOST_AT_ONCE:
            try:
                data = os.read(self.descriptor, _READ)
            except BlockingIOError:
                return True
            if not data:
                return False
            taken += len(data)
            self._count += len(data)
            self._end += data
            del self._end[:-_KEPT]
        return True

    def forget(self) -> None:
        """Let go of what was written so far: it belongs to an earlier case."""
        self._end.clear()
        self._count = 0

    def text(self) -> str:
        """Return the last lines, printable; the first line says so where some are missing."""
        whole = bytes(self._end).decode("utf-8", "replace").replace("\r\n", "\n").strip("\n")
        lines = whole.split("\n")[-_SHOWN_LINES:]
        shown = "\n".join(lines)[-_SHOWN_CHARACTERS:]
        if not shown:
            return ""
        missing = self._count > _KEPT or len(shown) < len(whole)
        start = f"... the end of {self._count} bytes:\n" if missing else ""
        return start + printable(shown, lines=True)

    def close(self) -> None:
        """Close the pipe."""
        os.close(self.descriptor)
