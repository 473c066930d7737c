"""Commands that run one case again under the same conditions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from onnxopt_cli.config.run_config import RunConfig
from onnxopt_cli.config.settings import words_of
from onnxopt_cli.core.result import OUTSIDE_IDS, Result
from onnxopt_cli.core.text import command_line
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.suites.collect import is_suite

_MAX_COMMAND_CHARS = 3000
# Folders of the test data within the onnx package.
_ONNX_TEST_FOLDERS = ("onnx", "backend", "test")


def repeat_command(result: Result, options: Mapping[str, Any], backend: str = "") -> str:
    """Return a command that runs one case on one backend with the same settings.

    Args:
        result: the result to repeat.
        options: options of the run, as in RunRecord.
        backend: the backend as it is given to ``-b``; empty if that is its name.
    """
    named = ["-b", backend or result.backend]
    words = ["onnxopt", "run", *_target(result), *named, *verdict_options(options)]
    line = command_line([*words, *operator_options(result.operators)])
    if len(line) > _MAX_COMMAND_CHARS:
        # A truncated command would run other cases.
        return f"# a command of {len(line)} characters, not shown: -k takes the case's id"
    return line


def verdict_options(options: Mapping[str, Any]) -> list[str]:
    """Return the command-line words of those options of a run that change verdicts."""
    values = RunConfig.from_json(options).values()
    stated = [
        declared
        for declared in RunConfig.declared()
        if declared.option.repeated and values[declared.name] != declared.default
    ]
    return words_of(stated, values)


def operator_options(names: Iterable[str]) -> list[str]:
    """Return the ``--operators`` options for operators that are defined in files."""
    file_of = {operator.name: operator.file for operator in registry().operators}
    files = dict.fromkeys(file_of[name] for name in names if file_of.get(name) in registry().files)
    paths = (min(str(file), os.path.relpath(file), key=len) for file in files)
    return [word for path in paths for word in ("--operators", path)]


def path_target(path: Path) -> str:
    """Return a path in a form that the command line does not mistake for an option or a suite."""
    text = str(path)
    return f"./{text}" if text.startswith("-") or is_suite(text) else text


def _target(result: Result) -> list[str]:
    path = result.location.path
    if _is_packaged(result):
        return [result.case]
    if path.name.startswith("test_data_set_"):
        path = path.parent
    target = path_target(path)
    if result.case in OUTSIDE_IDS:
        return [target]
    # -k with a complete id selects only that case.
    return [target, "-k", result.case]


def _is_packaged(result: Result) -> bool:
    """Return whether the case belongs to a suite of onnx or onnxopt, and its id selects it."""
    from onnxopt_cli.suites.catalogue import suite_names

    path, suite = result.location.path, result.case.split("/", 1)[0]
    if path.parent == Path(suite) and not path.exists():
        return suite in suite_names()
    parts = path.parts
    length = len(_ONNX_TEST_FOLDERS)
    return suite.startswith("onnx-") and any(
        parts[start : start + length] == _ONNX_TEST_FOLDERS for start in range(len(parts))
    )
