"""Many cases on some backends, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from onnxopt_cli.backends.lowering import Lowering
from onnxopt_cli.backends.protocol import Backend
from onnxopt_cli.core.case import Case
from onnxopt_cli.core.outcome import HARMLESS, Outcome
from onnxopt_cli.core.result import Result
from onnxopt_cli.errors import Problem
from onnxopt_cli.run.expectation import Judging
from onnxopt_cli.run.judge import judge_case


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run, and how.

    Attributes:
        cases: the cases, in order.
        backends: what is under test; each case runs on all of them before the next case.
        problems: what was wrong with case files that gave no case.
        lowering: when a backend is given primitive operators.
        judging: how outputs are judged.
        max_fail: stop after so many cases that do not conform; 0 for never.
    """

    cases: Sequence[Case]
    backends: Sequence[Backend]
    problems: Sequence[Problem] = ()
    lowering: Lowering = Lowering.AUTO
    judging: Judging = field(default_factory=Judging)
    max_fail: int = 0


def run(plan: Plan) -> Iterator[tuple[Result, ...]]:
    """Yield the results of each case, one a backend, as they come.

    After ``max_fail`` cases the rest are yielded as not run, so that nothing is lost in silence.
    """
    failed = 0
    for case in plan.cases:
        if plan.max_fail and failed >= plan.max_fail:
            yield tuple(_not_run(case, backend) for backend in plan.backends)
            continue
        results = judge_case(case, plan.backends, plan.lowering, plan.judging)
        failed += any(result.outcome not in HARMLESS for result in results)
        yield results


def exit_code(results: Sequence[Result], problems: Sequence[Problem]) -> int:
    """Return 0 if all conforms, 2 if a case is invalid, 1 if something else does not conform."""
    if problems or any(result.outcome is Outcome.INVALID for result in results):
        return 2
    return int(any(result.outcome not in HARMLESS for result in results))


def _not_run(case: Case, backend: Backend) -> Result:
    message = "stopped by --max-fail"
    operators = case.operators or ()
    return Result(case.id, case.location, operators, backend.name, Outcome.NOT_RUN, message=message)
