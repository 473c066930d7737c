"""Keeping what was found as cases, beside what is there already."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import count
from pathlib import Path

from onnxopt_cli.cases.yaml.file import read_yaml_file
from onnxopt_cli.core.files import write_atomically
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import UsageError
from onnxopt_cli.fuzz.findings import Finding
from onnxopt_cli.fuzz.graph_example import Example

_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
_LONGEST = 60


def keep(finding: Finding, folder: Path, headline: str, source: str) -> Path:
    """Write a finding as a case that ``onnxopt run`` accepts; nothing is ever overwritten.

    Args:
        finding: what was found.
        folder: where to; created if it is not there.
        headline: what is wrong, one line.
        source: what found it, one line.

    Returns:
        The case file; an earlier one if it has the same example.

    Raises:
        UsageError: if it cannot be written.
    """
    example = finding.trial.example
    about = f"Found by fuzzing: {printable(headline)}"
    words = f"{finding.kind.subject} {finding.kind.what}".lower()
    stem = _NOT_IN_NAMES.sub("_", words).strip("_")[:_LONGEST].rstrip("_")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.glob("*.yaml")):
            if _holds(path, example):
                return path
        for number in count(1):
            name = stem if number == 1 else f"{stem}_{number}"
            if _write(folder, example.files(name, about, printable(source))):
                break
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror or error}") from error
    return folder / f"{name}.yaml"


def _write(folder: Path, files: Mapping[str, bytes]) -> bool:
    """Write new files, all or none; another run may be writing to the same folder."""
    written: list[Path] = []
    try:
        for name, data in files.items():
            write_atomically(folder / name, data, new=True)
            written.append(folder / name)
    except FileExistsError:
        for path in written:
            path.unlink()
        return False
    return True


def _holds(path: Path, example: Example) -> bool:
    """Tell whether a case file is of an example, whatever it says about it."""
    cases, _ = read_yaml_file(path)
    if len(cases) != 1:
        return False
    files = example.files(path.stem, cases[0].about, cases[0].source)
    return all(
        each.is_file() and each.stat().st_size == len(data) and each.read_bytes() == data
        for each, data in ((path.parent / name, data) for name, data in files.items())
    )
