"""Write findings as cases to a folder, without overwriting existing cases."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import count
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from onnxopt_cli.cases.yaml.case_file import read_yaml_file
from onnxopt_cli.core.files import write_atomically
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import UsageError
from onnxopt_cli.fuzz.findings import Finding
from onnxopt_cli.fuzz.graph_example import Example
from onnxopt_cli.fuzz.random_graph import RandomGraph

_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
_MAX_STEM_CHARS = 60


def keep(finding: Finding, folder: Path, headline: str, source: str) -> Path:
    """Write a finding as a case that ``onnxopt run`` accepts, without overwriting any file.

    Args:
        finding: the finding.
        folder: the destination; created if it does not exist.
        headline: the failure in one line.
        source: the command that found the failure.

    Returns:
        The path of the case file or test directory; that of an existing one with the same example.

    Raises:
        UsageError: if the case cannot be written.
    """
    example = finding.trial.example
    about = f"Found by fuzzing: {printable(headline)}"
    words = f"{finding.subject} {finding.kind.description}".lower()
    stem = _NOT_IN_NAMES.sub("_", words).strip("_")[:_MAX_STEM_CHARS].rstrip("_")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted((*folder.glob("*.yaml"), *folder.glob("test_*/"))):
            if _holds(path, example):
                return path
        for number in count(1):
            name = stem if number == 1 else f"{stem}_{number}"
            files = example.files(name, about, printable(source))
            if _write(folder, files):
                break
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror or error}") from error
    # The case file, or the directory of the case.
    return folder / Path(next(iter(files))).parts[0]


def _write(folder: Path, files: Mapping[str, bytes]) -> bool:
    """Write new files, and return True; if one of them exists, write none, and return False.

    Another run may write to the same folder at the same time.
    """
    written: list[Path] = []
    try:
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / name, data, new=True)
            written.append(folder / name)
    except FileExistsError:
        for path in written:
            path.unlink()
        return False
    return True


def _holds(path: Path, example: Example) -> bool:
    """Return whether a case file or directory contains an example; its description may differ."""
    if path.is_dir() != isinstance(example, RandomGraph):
        return False
    if path.is_dir():
        try:
            model = onnx.load_model(path / "model.onnx", load_external_data=False)
        except (OSError, DecodeError):
            return False
        files = example.files(path.name.removeprefix("test_"), model.doc_string, "")
    else:
        cases, _ = read_yaml_file(path)
        if len(cases) != 1:
            return False
        files = example.files(path.stem, cases[0].about, cases[0].source)
    return all(
        file.is_file() and file.stat().st_size == len(data) and file.read_bytes() == data
        for file, data in ((path.parent / name, data) for name, data in files.items())
    )
