"""The command that runs one case on one backend again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnxopt_cli.core.result import OUTSIDE_CASES, Result

# Options that change a verdict, by their names in RunRecord.options.
_VALUED = {
    "rule": "--tolerance",
    "rtol": "--rtol",
    "atol": "--atol",
    "ulp": "--ulp",
    "budget": "--budget",
    "lower": "--lower",
}
_UNSAID = (None, "auto")
_INSTALLED = ("onnx", "backend", "test")


def repeat_command(result: Result, options: Mapping[str, Any]) -> str:
    """Return a command that runs just this case on just this backend, judged in the same way.

    Args:
        result: the case and the backend.
        options: those of the run, as in RunRecord.
    """
    words = ["onnxopt", "run", *_target(result), "-b", result.backend]
    for name, option in _VALUED.items():
        if options.get(name) not in _UNSAID:
            words += [option, str(options[name])]
    if options.get("signed_zeros"):
        words.append("--signed-zeros")
    return shlex.join(words)


def _target(result: Result) -> list[str]:
    path = result.location.path
    if _comes_with_a_package(result):
        return [result.case]
    if path.name.startswith("test_data_set_"):
        path = path.parent
    # A path may look like an option.
    target = f"./{path}" if str(path).startswith("-") else str(path)
    if result.case.startswith(f"{OUTSIDE_CASES}/"):
        return [target]
    # A whole id selects that case alone.
    return [target, "-k", result.case]


def _comes_with_a_package(result: Result) -> bool:
    """Tell whether the case is one of onnx's or ours, which are asked for by their ids."""
    from onnxopt_cli.cases.suites.suites import SUITES

    path, suite = result.location.path, result.case.split("/", 1)[0]
    if suite in SUITES:
        return path.parent == Path(suite) and not path.exists()
    parts = path.parts
    return suite.startswith("onnx-") and any(
        parts[start : start + len(_INSTALLED)] == _INSTALLED for start in range(len(parts))
    )
