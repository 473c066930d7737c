"""Writing many files under one folder: what is there and differs is never overwritten unasked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from onnxopt_cli.core.files import write_atomically
from onnxopt_cli.errors import UsageError

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Drift:
    """How a folder differs from what should be in it; paths as they would be written."""

    missing: tuple[Path, ...]
    different: tuple[Path, ...]
    same: int

    def __bool__(self) -> bool:
        """Tell whether there is any difference."""
        return bool(self.missing or self.different)


def find_drift(folder: Path, files: Iterable[tuple[str, bytes]]) -> Drift:
    """Compare a folder with the files that should be in it.

    Raises:
        UsageError: if a file that is there cannot be read.
    """
    missing, different, same = [], [], 0
    for name, data in files:
        path = folder / name
        try:
            if path.read_bytes() == data:
                same += 1
            else:
                different.append(path)
        except FileNotFoundError:
            missing.append(path)
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    return Drift(tuple(missing), tuple(different), same)


def write_tree(folder: Path, files: Iterable[tuple[str, bytes]], *, force: bool) -> Drift:
    """Write the files that are missing, and under force those that differ; all or none.

    Returns:
        What was different before.

    Raises:
        UsageError: if a file differs and force is off, or something cannot be written.
    """
    wanted = dict(files)
    drift = find_drift(folder, wanted.items())
    if drift.different and not force:
        names = ", ".join(map(str, drift.different[:_SHOWN]))
        more = (
            "" if len(drift.different) <= _SHOWN else f" and {len(drift.different) - _SHOWN} more"
        )
        raise UsageError(
            f"{names}{more} would change; nothing was written",
            hint="--force overwrites, --check only compares, -o writes elsewhere",
        )
    for path in (*drift.missing, *drift.different):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot create {path.parent}: {error.strerror or error}") from error
        write_atomically(path, wanted[path.relative_to(folder).as_posix()])
    return drift
