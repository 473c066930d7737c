"""A run as one JSON document, for programs.

The document's ``schema`` names its version; a new field does not change it, a changed meaning does.
Numbers that JSON cannot hold are the strings ``"nan"``, ``"inf"`` and ``"-inf"``.
"""

from __future__ import annotations

import json
import math
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from onnxopt_cli import __version__
from onnxopt_cli.core.diff import Diff, Element
from onnxopt_cli.core.result import Result
from onnxopt_cli.core.tolerance import Budget, Relative, Tolerance, Ulps
from onnxopt_cli.run.runner import Plan

SCHEMA = "onnxopt.report/1"


def json_report(
    results: Sequence[Result],
    plan: Plan,
    options: Mapping[str, Any],
    exit_code: int,
) -> str:
    """Return a run as JSON text.

    Args:
        results: all results, in the order in which they came.
        plan: what was run.
        options: the run's options by their long names.
        exit_code: what the run exits with.
    """
    document = {
        "schema": SCHEMA,
        "versions": {
            "onnxopt": __version__,
            "python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}",
            **{package: version(package) for package in ("numpy", "onnx", "ml_dtypes")},
        },
        "backends": [{"name": it.name, "version": it.version} for it in plan.backends],
        "options": dict(options),
        "problems": [{"where": it.where, "what": it.what} for it in plan.problems],
        "results": [_result(it) for it in results],
        "summary": dict(sorted(Counter(it.outcome.value for it in results).items())),
        "exit_code": exit_code,
    }
    return json.dumps(document, indent=1, allow_nan=False, ensure_ascii=True) + "\n"


def _result(result: Result) -> dict[str, Any]:
    return {
        "case": result.case,
        "location": str(result.location),
        "operators": list(result.operators),
        "backend": result.backend,
        "outcome": result.outcome.value,
        "lowered": result.lowered,
        "message": result.message,
        "seconds": round(result.seconds, 6),
        "weak": dict(result.weak),
        "outputs": [_diff(it) for it in result.diffs],
    }


def _diff(diff: Diff) -> dict[str, Any]:
    return {
        "name": diff.name,
        "kind": diff.kind,
        "agrees": diff.agrees,
        "structure": diff.structure,
        "tolerance": _tolerance(diff.tolerance),
        "elements": diff.elements,
        "mismatches": diff.mismatches,
        "max_absolute": _number(diff.max_absolute),
        "max_relative": _number(diff.max_relative),
        "max_ulp": diff.max_ulp,
        "needed_rtol": diff.needed_rtol,
        "needed_atol": diff.needed_atol,
        "budget_used": _number(diff.budget_used),
        "worst": [_element(it) for it in diff.worst],
    }


def _tolerance(tolerance: Tolerance | None) -> dict[str, Any] | None:
    match tolerance:
        case None:
            return None
        case Relative(rtol=rtol, atol=atol):
            limits: dict[str, Any] = {"rtol": rtol, "atol": atol}
        case Ulps(ulp=ulp):
            limits = {"ulp": ulp}
        case Budget(factor=factor):
            limits = {"factor": factor}
    return {"from": tolerance.provenance.value, **limits}


def _element(element: Element) -> dict[str, Any]:
    return {
        "index": list(element.index),
        "expected": _number(element.expected),
        "actual": _number(element.actual),
        "absolute": _number(element.absolute),
        "relative": _number(element.relative),
        "ulp": element.ulp,
        "limit": _number(element.limit),
    }


def _number(value: object) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return str(value) if isinstance(value, complex) else value
