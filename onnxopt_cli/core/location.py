"""The location of a case."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Location:
    """A file, and a line if the file is text."""

    path: Path
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" if self.line else str(self.path)

    @classmethod
    def parse(cls, text: str) -> Location:
        """Return the location that ``str`` has turned into a text."""
        path, colon, line = text.rpartition(":")
        if path and colon and line.isascii() and line.isdigit():
            return cls(Path(path), int(line[:9]))
        return cls(Path(text))
