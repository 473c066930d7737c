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

from onnxopt_cli.backends.host import Request
from onnxopt_cli.backends.specification import declared_math
from onnxopt_cli.cases.case import Case, unanswered
from onnxopt_cli.config.run_config import Execution, Judging
from onnxopt_cli.core.helper_process import claimed
from onnxopt_cli.core.result import (
    OUTSIDE_CASES,
    Outcome,
    Result,
    with_shared,
    worse,
)
from onnxopt_cli.core.values import total_bytes
from onnxopt_cli.errors import Fault, InvalidCase
from onnxopt_cli.oracle.reference_oracle import ReferenceOracle
from onnxopt_cli.run.executors import (
    Executor,
    InProcess,
    NotHereError,
    Pending,
    not_here,
    open_executors,
)
from onnxopt_cli.run.judge import (
    LoadedCase,
    invalid_result,
    judge,
    load_case,
    starved,
    with_expected,
)
from onnxopt_cli.run.vacuity import NotSubmittedError, VacuityCheck
from onnxopt_cli.workers.interruption import Interruption
from onnxopt_cli.workers.parallel import parallel

if TYPE_CHECKING:
    from onnxopt_cli.run.remote import Remote
    from onnxopt_cli.workers.cluster.dask_client import Cluster

# Fewer cases are not worth forking for; and how many a process takes at a time, at most, and how
# many times it does.
_MIN_PARALLEL_CASES = 20
_MAX_CHUNK_GROUPS = 32
_CHUNK_COUNT = 1000
# How many cases other processes may go on with while one here waits for a worker that starts.
_CASES_AHEAD = 500
# Bytes of a case.
_LARGE_BYTES = 16 << 20
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
        vacuity: what backends have shown to earn passes that need it.
        reference_oracle: asks models without a formula what is right; None to ask none.
        judges: number of processes that run and judge what needs no worker; 1 for this one.
        elsewhere: runs and judges cases on other machines; None to do it on this one.
    """

    cases: Sequence[Case]
    backends: Sequence[Executor]
    problems: Sequence[Fault] = ()
    judging: Judging = field(default_factory=Judging)
    max_fail: int = 0
    failed: int = 0
    started: Callable[[str, str], None] = lambda _case, _backend: None
    review: Callable[[Result], Result] = lambda result: result
    interruption: Interruption = field(default_factory=Interruption)
    vacuity: VacuityCheck = field(default_factory=VacuityCheck)
    reference_oracle: ReferenceOracle | None = None
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
    reference_oracle = ReferenceOracle(judging)
    if set(backends) != {"numpy"}:
        reference_oracle.see_what_is_kept()
    with open_executors(backends, execution, interruption, reference_oracle, cluster) as opened:
        yield Plan(
            (),
            opened,
            judging=judging,
            interruption=interruption,
            reference_oracle=reference_oracle,
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
    many = plan.judges > 1 and len(plan.cases) >= _MIN_PARALLEL_CASES
    judged = _judged(plan) if plan.elsewhere or many else None
    with closing(judged) if judged else nullcontext():
        while True:
            if stopped := _reason_to_stop(plan, failed):
                break
            most = max((executor.ahead for executor in plan.backends), default=1)
            # What is asked here is kept whole until it is answered; results are small.
            while here <= most:
                waits = judged is not None and asked and not isinstance(asked[0][1], tuple)
                if len(asked) >= (_CASES_AHEAD if waits else most) or not (
                    case := next(cases, None)
                ):
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
    reference_oracle = plan.reference_oracle and replace(plan.reference_oracle, workers=not_here)
    alone = Plan(
        (), ours, judging=plan.judging, vacuity=plan.vacuity, reference_oracle=reference_oracle
    )
    # Cases of one place are of one trajectory, whose limits are derived once.
    groups = [[*group] for _, group in groupby(plan.cases, attrgetter("location"))]
    chunk = min(_MAX_CHUNK_GROUPS, max(1, len(groups) // _CHUNK_COUNT))
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
        if (
            sum(seen[2] if seen else Path(path).stat().st_size for path, seen in files)
            > _LARGE_BYTES
        ):
            return None
        problem = case.load()
        if total_bytes(problem.inputs.values()) > _LARGE_BYTES:
            return None
    except (InvalidCase, OSError):
        return None
    return results_apart(plan, replace(case, load=lambda: problem))


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

    loaded_case: LoadedCase
    pending: tuple[Pending, ...]
    complete: Mapping[str, Callable[[], LoadedCase]] = field(default_factory=dict)


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
    loaded_case = load_case(case)
    problem = loaded_case.problem
    # What is right of large outputs is found while workers compute theirs.
    large = problem is not None and total_bytes(problem.inputs.values()) > _LARGE_BYTES
    expected = problem.stored if problem and large else None
    if expected is None:
        loaded_case = with_expected(loaded_case, plan.judging)
    if loaded_case.invalid or problem is None:
        return _Asked(loaded_case, ())
    pending: list[Pending] = []
    outputs = loaded_case.key.outputs if loaded_case.key else expected or {}
    returned = total_bytes(outputs.values())
    loop = problem.trajectory is not None
    call = None if loop else problem.call
    try:
        for executor in plan.backends:
            started = partial(plan.started, case.id, executor.name)
            if problem.trajectory is not None and problem.stepwise:
                # Not worth importing for cases of one step.
                from onnxopt_cli.run.stepwise import stepwise

                pending.append(partial(stepwise, executor, problem, started))
            else:
                request = Request(
                    problem.model,
                    problem.inputs,
                    started,
                    expected_bytes=returned,
                    formula_loop=loop,
                    call=call,
                )
                pending.append(executor.submit(request))
    except MemoryError:
        return _Asked(starved(case), ())
    if expected is not None:
        loaded_case = with_expected(loaded_case, plan.judging)
    complete: dict[str, Callable[[], LoadedCase]] = {}
    if plan.reference_oracle and loaded_case.key and loaded_case.key.formula is None:
        for math in dict.fromkeys(declared_math(it.name) for it in plan.backends):
            answer = plan.reference_oracle.ask(problem, loaded_case.key, math)
            if answer is not None:
                complete[math] = cache(partial(with_expected, loaded_case, plan.judging, answer))
    return _Asked(loaded_case, tuple(pending), complete)


def _results(plan: Plan, asked: _Asked) -> tuple[Result, ...]:
    with _named(asked.loaded_case.case):
        return _judged_on_each(plan, asked)


def _judged_on_each(plan: Plan, asked: _Asked) -> tuple[Result, ...]:
    results = []
    for executor, pending in zip(plan.backends, asked.pending or repeat(None), strict=False):
        complete = asked.complete and asked.complete.get(declared_math(executor.name))
        loaded_case = complete() if complete else asked.loaded_case
        results.append(_result(plan, loaded_case, executor, pending))
    return tuple(map(plan.review, results))


def _result(
    plan: Plan, loaded_case: LoadedCase, executor: Executor, pending: Pending | None
) -> Result:
    try:
        # Also where nobody needs the response: a worker that is still at it cannot be shut down.
        response = pending() if pending else "not asked"
        if loaded_case.invalid:
            return invalid_result(loaded_case, executor.name)
        if isinstance(response, str):
            return unanswered(loaded_case.case, executor.name, response)
        result = judge(loaded_case, executor.name, response, plan.judging)
        if result.outcome is not Outcome.PASS or loaded_case.problem is None:
            return result
        lacking = plan.vacuity.lacking(executor, loaded_case.problem, response)
    except MemoryError:
        return invalid_result(starved(loaded_case.case), executor.name)
    except NotSubmittedError as error:
        return unanswered(loaded_case.case, executor.name, str(error))
    return replace(result, outcome=Outcome.VACUOUS, message=lacking) if lacking else result


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
