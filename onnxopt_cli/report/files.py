"""The reports that a run writes to files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnxopt_cli.core.files import write_atomically
from onnxopt_cli.core.record import RunRecord
from onnxopt_cli.errors import UsageError
from onnxopt_cli.report.json_report import json_report

#: What each format makes of a run.
_FORMATS: Mapping[str, Callable[[RunRecord], str]] = {"json": json_report}


@dataclass(frozen=True, slots=True)
class Reports:
    """Formats and where to write them, checked before the run begins."""

    wanted: tuple[tuple[str, Path], ...]

    @classmethod
    def parse(cls, requests: Sequence[str]) -> Reports:
        """Read ``FORMAT=PATH`` requests.

        Raises:
            UsageError: if a format is unknown or the path's folder cannot be written to.
        """
        wanted = []
        for request in requests:
            name, equals, target = request.partition("=")
            if not equals or not target or name not in _FORMATS:
                known = ", ".join(_FORMATS)
                raise UsageError(f"--report takes FORMAT=PATH; FORMAT is {known}, not {request!r}")
            path = Path(target)
            if path.is_dir() or not path.absolute().parent.is_dir():
                raise UsageError(f"--report cannot write {path}: the folder must exist")
            wanted.append((name, path))
        return cls(tuple(wanted))

    def write(self, record: RunRecord) -> None:
        """Write all reports.

        Raises:
            UsageError: if a file cannot be written.
        """
        for name, path in self.wanted:
            write_atomically(path, _FORMATS[name](record).encode())
