"""Keeping what was found as cases, beside what is there already."""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path

from onnxopt_cli.core.files import write_atomically
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import UsageError
from onnxopt_cli.run.fuzzing.findings import Finding

_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
_LONGEST = 60


def keep(finding: Finding, folder: Path, headline: str) -> Path:
    """Write a finding as a case that ``onnxopt run`` accepts; nothing is ever overwritten.

    Args:
        finding: what was found.
        folder: where to; created if it is not there.
        headline: what is wrong, one line.

    Returns:
        The case file; an earlier one if it is the same to the last byte.

    Raises:
        UsageError: if it cannot be written.
    """
    about = f"Found by fuzzing: {printable(headline)}"
    words = f"{finding.kind.subject} {finding.kind.what}".lower()
    stem = _NOT_IN_NAMES.sub("_", words).strip("_")[:_LONGEST].rstrip("_")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number in count(1):
            name = stem if number == 1 else f"{stem}_{number}"
            files = {
                folder / key: it for key, it in finding.trial.example.files(name, about).items()
            }
            if all(path.is_file() and path.read_bytes() == it for path, it in files.items()):
                break
            if not any(path.exists() for path in files):
                for path, data in files.items():
                    write_atomically(path, data)
                break
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror or error}") from error
    return folder / f"{name}.yaml"
