"""From the results of a run to its exit code."""

from __future__ import annotations

from collections.abc import Sequence

from onnxopt_cli.core.outcome import Outcome
from onnxopt_cli.core.result import Result
from onnxopt_cli.errors import Problem

#: Exit codes after Ctrl-C and SIGTERM.
INTERRUPTED = frozenset({130, 143})


def contradiction(
    code: int | None,
    results: Sequence[Result],
    problems: Sequence[Problem],
    findings: Sequence[Problem],
) -> str:
    """Say why a saved run cannot have ended with an exit code; empty if it can.

    An interrupted run has a code of its own, whatever its results; one that did not finish none.
    """
    if code is None or code in INTERRUPTED:
        return ""
    right = exit_code(results, problems, findings)
    return "" if code == right else f"found the exit code {code}, but the results amount to {right}"


def exit_code(
    results: Sequence[Result], problems: Sequence[Problem], findings: Sequence[Problem] = ()
) -> int:
    """Return 0 only if every result conforms or is expected, and every expectation holds.

    Args:
        results: of all cases on all backends; what was not run does not conform.
        problems: what was wrong with case files that gave no case.
        findings: entries of expectation files that no longer hold.

    Returns:
        2 if a case is invalid that is not expected to be, 1 if something else does not conform.
    """
    unexpected = [result for result in results if not result.conforms]
    if problems or any(result.outcome is Outcome.INVALID for result in unexpected):
        return 2
    return int(bool(unexpected or findings))
