"""From the results of a run to its exit code."""

from __future__ import annotations

from collections.abc import Sequence

from onnxopt_cli.core.outcome import Outcome
from onnxopt_cli.core.record import RunRecord
from onnxopt_cli.core.result import Result
from onnxopt_cli.errors import Problem
from onnxopt_cli.isolation.interruption import INTERRUPTED


def contradiction(record: RunRecord, *, part: bool) -> str:
    """Say why a saved run cannot have ended with its exit code; empty if it can.

    An interrupted run has a code of its own, whatever its results; one that did not finish none.

    Args:
        record: the run.
        part: whether it is a shard's.
    """
    code = record.exit_code
    if code is None or code in INTERRUPTED:
        return ""
    right = exit_code(record.results, record.problems, record.findings, part=part)
    return "" if code == right else f"found the exit code {code}, but the results amount to {right}"


def exit_code(
    results: Sequence[Result],
    problems: Sequence[Problem],
    findings: Sequence[Problem] = (),
    *,
    part: bool = False,
) -> int:
    """Return 0 only if every result conforms or is expected, and every expectation holds.

    Args:
        results: of all cases on all backends; what was not run does not conform.
        problems: what was wrong with case files that gave no case.
        findings: entries of expectation files that no longer hold.
        part: whether they are those of a shard, which may hold nothing that applies.

    Returns:
        2 if a case is invalid that is not expected to be, 1 if something else does not conform, 5
        if no case applies to some backend.
    """
    unexpected = [result for result in results if not result.conforms]
    if problems or any(result.outcome is Outcome.INVALID for result in unexpected):
        return 2
    if unexpected or findings:
        return 1
    return 0 if part or not untested(results) else 5


def untested(results: Sequence[Result]) -> list[str]:
    """Return the backends to which no case applies; they have neither passed nor failed."""
    applied: dict[str, bool] = {}
    for result in results:
        tried = result.outcome is not Outcome.SKIP
        applied[result.backend] = applied.get(result.backend, False) or tried
    return [backend for backend, tried in applied.items() if not tried]
