"""What a run ran with, for its record."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from onnxopt_cli import __version__
from onnxopt_cli.core.record import BackendIdentity, RunRecord
from onnxopt_cli.core.result import Result
from onnxopt_cli.run.runner import Plan


def versions() -> dict[str, str]:
    """Return the versions of onnxopt, Python, the packages that matter, and the machine."""
    return {
        "onnxopt": __version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        **{package: version(package) for package in ("numpy", "onnx", "ml_dtypes")},
    }


def make_record(
    plan: Plan, results: Sequence[Result], options: Mapping[str, Any], exit_code: int
) -> RunRecord:
    """Return the record of a run that has just finished."""
    return RunRecord(
        versions=versions(),
        backends=tuple(BackendIdentity(it.name, it.version) for it in plan.backends),
        options=dict(options),
        results=tuple(results),
        problems=tuple(plan.problems),
        exit_code=exit_code,
    )
