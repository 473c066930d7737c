"""Many cases on some backends, in order, as many at a time as there are workers."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import groupby, repeat
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, cast

from onnxopt_cli.backends.specification import declared_math
from onnxopt_cli.config.run_config import Execution, Judging
from onnxopt_cli.core.case import Case
from onnxopt_cli.core.helper_process import claimed
from onnxopt_cli.core.result import OUTSIDE_CASES, Outcome, Result, unanswered, with_shared, worse
from onnxopt_cli.core.values import total_bytes
from onnxopt_cli.errors import InvalidCase, Problem
from onnxopt_cli.isolation.interruption import Interruption
from onnxopt_cli.isolation.parallel import parallel
from onnxopt_cli.isolation.response import Order
from onnxopt_cli.run.asking import Asker
from onnxopt_cli.run.evidence import Evidence, NotAskedError
from onnxopt_cli.run.executors import (
    Executor,
    InProcess,
    NotHereError,
    Pending,
    not_here,
    open_executors,
)
from onnxopt_cli.run.judge import (
    AskedCase,
    answered,
    judge,
    read_question,
    starved,
    unasked_result,
)

if TYPE_CHECKING:
    from onnxopt_cli.cluster.client import Cluster
    from onnxopt_cli.run.remote import Remote

# Fewer cases are not worth forking for; and how many a process takes at a time, at most, and how
# many times it does.
_FEWEST = 20
_CHUNK = 32
_CHUNKS = 1000
# How many cases other processes may go on with while one here waits for a worker that starts.
_AHEAD = 500
# Bytes of a case.
_LARGE = 16 << 20
# What may come out otherwise where the case is the only one that runs.
_ASKED_HERE = frozenset({Outcome.INVALID, Outcome.OOM, Outcome.NOT_RUN})


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run, and how.

    Attributes:
        cases: the cases, in order.
        backends: what is under test; each case runs on all of them.
        problems: what was wrong with case files that gave no case.
        judging: how outputs are judged.
        max_fail: stop after so many cases that do not conform; 0 for never.
        failed: how many of these there were before.
        started: called with a case's id and a backend's name just before the case starts there.
        review: says of each result, as soon as it is there, how it stands to what was expected.
        interruption: set when the user wants the run to end.
        evidence: what backends have shown to earn passes that need it.
        asker: asks models without a formula what is right; None to ask none.
        judges: number of processes that run and judge what needs no worker; 1 for this one.
        elsewhere: runs and judges cases on other machines; None to do it on this one.
    """

    cases: Sequence[Case]
    backends: Sequence[Executor]
    problems: Sequence[Problem] = ()
    judging: Judging = field(default_factory=Judging)
    max_fail: int = 0
    failed: int = 0
    started: Callable[[str, str], None] = lambda _case, _backend: None
    review: Callable[[Result], Result] = lambda result: result
    interruption: Interruption = field(default_factory=Interruption)
    evidence: Evidence = field(default_factory=Evidence)
    asker: Asker | None = None
    judges: int = 1
    elsewhere: Remote | None = None


@contextmanager
def open_plan(
    backends: Sequence[str],
    execution: Execution,
    judging: Judging,
    interruption: Interruption,
    cluster: Cluster | None = None,
) -> Iterator[Plan]:
    """Start backends, yield a plan without cases for them, and leave no process of theirs behind.

    Raises:
        UsageError: if a backend's specification is not valid, or two ask for the same backend.
    """
    asker = Asker(judging)
    if set(backends) != {"numpy"}:
        asker.see_what_is_kept()
    with open_executors(backends, execution, interruption, asker, cluster) as opened:
        yield Plan(
            (),
            opened,
            judging=judging,
            interruption=interruption,
            asker=asker,
            judges=1 if cluster else execution.jobs,
            elsewhere=cast("Remote", opened[0]) if cluster and opened else None,
        )


def run(plan: Plan) -> Iterator[tuple[Result, ...]]:
    """Yield the results of each case, one a backend, in the order of the cases.

    Cases are started ahead of the results that are yielded, as far as workers have use for them.
    After ``max_fail`` cases, or when the user wants the run to end, the rest are yielded as not
    run, so that nothing is lost in silence. What workers did outside of any case comes last.
    """
    cases = iter(plan.cases)
    asked: deque[tuple[Case, _Asked | tuple[Result, ...]]] = deque()
    failed = plan.failed
    here = 0
    many = plan.judges > 1 and len(plan.cases) >= _FEWEST
    judged = _judged(plan) if plan.elsewhere or many else None
    with closing(judged) if judged else nullcontext():
        while True:
            if stopped := _reason_to_stop(plan, failed):
                break
            most = max((executor.ahead for executor in plan.backends), default=1)
            # What is asked here is kept whole until it is answered; results are small.
            while here <= most:
                waits = judged is not None and asked and not isinstance(asked[0][1], tuple)
                if len(asked) >= (_AHEAD if waits else most) or not (case := next(cases, None)):
                    break
                row = next(judged, None) if judged else None
                asked.append((case, row or _ask(plan, case)))
                here += not row
            if not asked:
                break
            case, begun = asked.popleft()
            if isinstance(begun, tuple):
                results = _told(plan, case, begun)
            else:
                here -= 1
                results = _results(plan, begun)
            failed += _fails(results)
            yield results
    for case in (*(case for case, _ in asked), *cases):
        yield tuple(plan.review(unanswered(case, it.name, stopped)) for it in plan.backends)
    if not stopped:
        incidents = tuple(_incidents(plan))
        if incidents:
            yield incidents


def _reason_to_stop(plan: Plan, failed: int) -> str:
    """Return why no more cases may start; empty as long as they may."""
    if plan.interruption.signal:
        return "interrupted"
    if 0 < plan.max_fail <= failed:
        return f"stopped after {failed} case{'s' * (failed > 1)} that did not conform"
    return ""


def _fails(results: Sequence[Result]) -> bool:
    """Return whether a case counts for ``max_fail``: it ran on a backend and does not conform."""
    return any(not result.conforms and not result.not_started for result in results)


def _judged(plan: Plan) -> Generator[tuple[Result, ...] | None]:
    """Return what yields results of each case from elsewhere; None where that is not."""
    return plan.elsewhere.rows(plan.cases) if plan.elsewhere else _forked(plan)


def _forked(plan: Plan) -> Generator[tuple[Result, ...] | None]:
    """Yield the results of each case, run and judged in other processes; None where that is not.

    Only what our own reference computes by a formula is: a backend has processes of its own, which
    must not be those that know what is right.
    """
    ours = [it.apart() for it in plan.backends if isinstance(it, InProcess) and it.ours]
    # A program that calls us may have threads, with which no process can be forked.
    if len(ours) < len(plan.backends) or not claimed():
        return
    asker = plan.asker and replace(plan.asker, workers=not_here)
    alone = Plan((), ours, judging=plan.judging, evidence=plan.evidence, asker=asker)
    # Cases of one place are of one trajectory, whose limits are derived once.
    groups = [[*group] for _, group in groupby(plan.cases, attrgetter("location"))]
    chunk = min(_CHUNK, max(1, len(groups) // _CHUNKS))
    work = partial(_alone, alone, os.getpid())
    for rows in parallel(work, groups, plan.judges, chunk, lambda: plan.interruption.signal):
        yield from rows


def _alone(plan: Plan, parent: int, cases: Sequence[Case]) -> list[tuple[Result, ...] | None]:
    """Run and judge cases in a process of its own; None for each that the parent has to."""
    here = os.getpid() != parent
    return [_results_of(plan, case) if here else None for case in cases]


def _results_of(plan: Plan, case: Case) -> tuple[Result, ...] | None:
    try:
        # Two large ones at a time take twice the memory.
        files = case.files().items()
        if sum(seen[2] if seen else Path(path).stat().st_size for path, seen in files) > _LARGE:
            return None
        content = case.read()
        if total_bytes(content.inputs.values()) > _LARGE:
            return None
    except (InvalidCase, OSError):
        return None
    return results_apart(plan, replace(case, read=lambda: content))


def results_apart(plan: Plan, case: Case) -> tuple[Result, ...] | None:
    """Run a case for another process; return None if that has to run it itself."""
    try:
        results = run_case(plan, case)
    except NotHereError:
        return None
    return None if any(it.outcome in _ASKED_HERE for it in results) else results


def _told(plan: Plan, case: Case, results: tuple[Result, ...]) -> tuple[Result, ...]:
    """Take the results that another process has sent; what many share is ours, and not a copy."""
    told = []
    for executor, result in zip(plan.backends, results, strict=True):
        plan.started(case.id, executor.name)
        own = with_shared(
            result,
            case=case.id,
            location=case.location,
            operators=case.operators or result.operators,
            backend=executor.name,
        )
        told.append(plan.review(own))
    return tuple(told)


def run_case(plan: Plan, case: Case) -> tuple[Result, ...]:
    """Run one case, whether it is one of the plan's or not, and return its results."""
    return _results(plan, _ask(plan, case))


@dataclass(frozen=True, slots=True)
class _Asked:
    """A case that has been read and, unless it is invalid, submitted to every backend.

    ``complete`` waits for what is right of its outputs, where that had to be asked, by the
    mathematics that a backend declares.
    """

    question: AskedCase
    pending: tuple[Pending, ...]
    complete: Mapping[str, Callable[[], AskedCase]] = field(default_factory=dict)


@contextmanager
def _named(case: Case) -> Iterator[None]:
    """Say of whatever is raised meanwhile at which case it was."""
    try:
        yield
    except Exception as error:
        error.add_note(f"at case {case.id}")
        raise


def _ask(plan: Plan, case: Case) -> _Asked:
    with _named(case):
        return _begun(plan, case)


def _begun(plan: Plan, case: Case) -> _Asked:
    question = read_question(case)
    content = question.content
    # What is right of large outputs is found while workers compute theirs.
    large = content is not None and total_bytes(content.inputs.values()) > _LARGE
    expected = content.expected if content and large else None
    if expected is None:
        question = answered(question, plan.judging)
    if question.invalid or content is None:
        return _Asked(question, ())
    pending: list[Pending] = []
    outputs = question.key.outputs if question.key else expected or {}
    returned = total_bytes(outputs.values())
    loop = content.trajectory is not None
    try:
        for executor in plan.backends:
            started = partial(plan.started, case.id, executor.name)
            if content.trajectory is not None and content.stepwise:
                # Not worth importing for cases of one step.
                from onnxopt_cli.run.trajectory import stepwise

                pending.append(partial(stepwise, executor, content.trajectory, started))
            else:
                order = Order(content.model, content.inputs, started, returned=returned, ours=loop)
                pending.append(executor.submit(order))
    except MemoryError:
        return _Asked(starved(case), ())
    if expected is not None:
        question = answered(question, plan.judging)
    complete: dict[str, Callable[[], AskedCase]] = {}
    if plan.asker and question.key and question.key.formula is None:
        for math in dict.fromkeys(declared_math(it.name) for it in plan.backends):
            answer = plan.asker.ask(content, question.key, math)
            if answer is not None:
                complete[math] = cache(partial(answered, question, plan.judging, answer))
    return _Asked(question, tuple(pending), complete)


def _results(plan: Plan, asked: _Asked) -> tuple[Result, ...]:
    with _named(asked.question.case):
        return _judged_on_each(plan, asked)


def _judged_on_each(plan: Plan, asked: _Asked) -> tuple[Result, ...]:
    results = []
    for executor, pending in zip(plan.backends, asked.pending or repeat(None), strict=False):
        complete = asked.complete and asked.complete.get(declared_math(executor.name))
        question = complete() if complete else asked.question
        results.append(_result(plan, question, executor, pending))
    return tuple(map(plan.review, results))


def _result(plan: Plan, question: AskedCase, executor: Executor, pending: Pending | None) -> Result:
    try:
        # Also where nobody needs the response: a worker that is still at it cannot be shut down.
        response = pending() if pending else "not asked"
        if question.invalid:
            return unasked_result(question, executor.name)
        if isinstance(response, str):
            return unanswered(question.case, executor.name, response)
        result = judge(question, executor.name, response, plan.judging)
        if result.outcome is not Outcome.PASS or question.content is None:
            return result
        lacking = plan.evidence.lacking(executor, question.content, response)
    except MemoryError:
        return unasked_result(starved(question.case), executor.name)
    except NotAskedError as error:
        return unanswered(question.case, executor.name, str(error))
    return replace(result, outcome=Outcome.UNPROVEN, message=lacking) if lacking else result


def _incidents(plan: Plan) -> Iterator[Result]:
    """Yield a result for each place, outside of the cases, where a backend's workers failed."""
    for executor in plan.backends:
        # However many workers there were, the results are the same.
        found: dict[str, Result] = {}
        for it in executor.finish():
            name, where = f"{OUTSIDE_CASES}/{it.place}", plan.cases[-1].location
            result = Result(name, where, (), executor.name, it.outcome, message=it.message)
            found[it.place] = worse(found.get(it.place), plan.review(result))
        yield from found.values()
