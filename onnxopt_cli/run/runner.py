"""Many cases on some backends, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from onnxopt_cli.backends.lowering import Lowering
from onnxopt_cli.backends.protocol import Backend
from onnxopt_cli.core.case import Case
from onnxopt_cli.core.outcome import Outcome
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
        started: called with a case's id and a backend's name just before the case starts there.
        review: says of each result, as soon as it is there, how it stands to what was expected.
    """

    cases: Sequence[Case]
    backends: Sequence[Backend]
    problems: Sequence[Problem] = ()
    lowering: Lowering = Lowering.AUTO
    judging: Judging = field(default_factory=Judging)
    max_fail: int = 0
    started: Callable[[str, str], None] = lambda _case, _backend: None
    review: Callable[[Result], Result] = lambda result: result


def run(plan: Plan) -> Iterator[tuple[Result, ...]]:
    """Yield the results of each case, one a backend, as they come.

    After ``max_fail`` cases the rest are yielded as not run, so that nothing is lost in silence.
    """
    failed = 0
    for case in plan.cases:
        if plan.max_fail and failed >= plan.max_fail:
            yield tuple(plan.review(not_run(case, backend)) for backend in plan.backends)
            continue
        for backend in plan.backends:
            plan.started(case.id, backend.name)
        judged = judge_case(case, plan.backends, plan.lowering, plan.judging)
        results = tuple(map(plan.review, judged))
        failed += any(not result.conforms for result in results)
        yield results


def not_run(case: Case, backend: Backend) -> Result:
    """Return the result of a case that --max-fail kept from running."""
    message = "stopped by --max-fail"
    operators = case.operators or ()
    return Result(case.id, case.location, operators, backend.name, Outcome.NOT_RUN, message=message)
