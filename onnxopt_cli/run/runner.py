"""Many cases on some backends, in order, as many at a time as there are workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial

import numpy as np

from onnxopt_cli.backends.specification import declared_math
from onnxopt_cli.core.case import Case
from onnxopt_cli.core.result import OUTSIDE_CASES, Outcome, Result, worse
from onnxopt_cli.errors import Problem
from onnxopt_cli.isolation.interruption import Interruption
from onnxopt_cli.isolation.response import Order
from onnxopt_cli.run.answer_key import AnswerKey, JudgeOptions
from onnxopt_cli.run.asking import Asker
from onnxopt_cli.run.evidence import Evidence, NotAskedError
from onnxopt_cli.run.executors import Executor, Pending, Setting, open_executors
from onnxopt_cli.run.judge import (
    AskedCase,
    judge,
    not_run,
    read_question,
    starved,
    unasked_result,
    with_key,
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run, and how.

    Attributes:
        cases: the cases, in order.
        backends: what is under test; each case runs on all of them.
        problems: what was wrong with case files that gave no case.
        judging: how outputs are judged.
        max_fail: stop after so many cases that do not conform; 0 for never.
        started: called with a case's id and a backend's name just before the case starts there.
        review: says of each result, as soon as it is there, how it stands to what was expected.
        interruption: set when the user wants the run to end.
        evidence: what backends have shown to earn passes that need it.
        asker: asks models without a formula what is right; None to ask none.
    """

    cases: Sequence[Case]
    backends: Sequence[Executor]
    problems: Sequence[Problem] = ()
    judging: JudgeOptions = field(default_factory=JudgeOptions)
    max_fail: int = 0
    started: Callable[[str, str], None] = lambda _case, _backend: None
    review: Callable[[Result], Result] = lambda result: result
    interruption: Interruption = field(default_factory=Interruption)
    evidence: Evidence = field(default_factory=Evidence)
    asker: Asker | None = None


@contextmanager
def open_plan(
    backends: Sequence[str], setting: Setting, judging: JudgeOptions, interruption: Interruption
) -> Iterator[Plan]:
    """Start backends, yield a plan without cases for them, and leave no process of theirs behind.

    Raises:
        UsageError: if a backend's specification is not valid, or two ask for the same backend.
        BackendUnavailable: if a backend in this process does not start.
    """
    asker = Asker(judging)
    if set(backends) != {"numpy"}:
        asker.see_what_is_kept()
    with open_executors(backends, setting, interruption, asker) as opened:
        yield Plan((), opened, judging=judging, interruption=interruption, asker=asker)


def run(plan: Plan) -> Iterator[tuple[Result, ...]]:
    """Yield the results of each case, one a backend, in the order of the cases.

    Cases are started ahead of the results that are yielded, as far as workers have use for them.
    After ``max_fail`` cases, or when the user wants the run to end, the rest are yielded as not
    run, so that nothing is lost in silence. What workers did outside of any case comes last.
    """
    cases = iter(plan.cases)
    asked: deque[_Asked] = deque()
    failed = 0
    stopped = ""
    while not stopped:
        ahead = max((executor.ahead for executor in plan.backends), default=1)
        while len(asked) < ahead and (case := next(cases, None)) is not None:
            asked.append(_ask(plan, case))
        if not asked:
            break
        results = _results(plan, asked.popleft())
        failed += any(not result.conforms for result in results)
        yield results
        if plan.interruption.signal:
            stopped = "interrupted"
        elif plan.max_fail and failed >= plan.max_fail:
            stopped = "stopped by --max-fail"
    for case in (*(it.question.case for it in asked), *cases):
        yield tuple(plan.review(not_run(case, it.name, stopped)) for it in plan.backends)
    if not stopped:
        asides = tuple(_asides(plan))
        if asides:
            yield asides


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


def _ask(plan: Plan, case: Case) -> _Asked:
    question = read_question(case, plan.judging)
    content = question.content
    if question.invalid or content is None:
        return _Asked(question, ())
    pending = []
    returned = 0
    if question.key is not None:
        arrays = [it for it in question.key.outputs.values() if isinstance(it, np.ndarray)]
        returned = sum(it.nbytes for it in arrays)
    try:
        for executor in plan.backends:
            started = partial(plan.started, case.id, executor.name)
            if content.trajectory is None or not content.stepwise:
                order = Order(content.model, content.inputs, started, returned=returned)
                pending.append(executor.submit(order))
            else:
                # Not worth importing for cases of one step.
                from onnxopt_cli.run.trajectory import stepwise

                pending.append(partial(stepwise, executor, content.trajectory, started))
    except MemoryError:
        return _Asked(starved(case), ())
    complete: dict[str, Callable[[], AskedCase]] = {}
    if plan.asker and question.key and question.key.formula is None:
        for math in dict.fromkeys(declared_math(it.name) for it in plan.backends):
            answer = plan.asker.ask(content, question.key, math)
            if answer is not None:
                complete[math] = cache(partial(_completed, question, answer))
    return _Asked(question, tuple(pending), complete)


def _completed(question: AskedCase, answer: Callable[[], AnswerKey]) -> AskedCase:
    try:
        return with_key(replace(question, key=answer()))
    except MemoryError:
        return starved(question.case)


def _results(plan: Plan, asked: _Asked) -> tuple[Result, ...]:
    results = []
    for at, executor in enumerate(plan.backends):
        question, pending = asked.question, asked.pending[at] if asked.pending else None
        if asked.complete:
            question = asked.complete[declared_math(executor.name)]()
        if pending is None or question.invalid:
            if pending is not None:
                # Nobody needs the answer, but a worker that is still at it cannot be shut down.
                pending()
            results.append(unasked_result(question, executor.name))
        else:
            results.append(_result(plan, question, executor, pending))
    return tuple(map(plan.review, results))


def _result(plan: Plan, question: AskedCase, executor: Executor, pending: Pending) -> Result:
    try:
        response = pending()
        if isinstance(response, str):
            return not_run(question.case, executor.name, response)
        result = judge(question, executor.name, response, plan.judging)
        if result.outcome is not Outcome.PASS or question.content is None:
            return result
        lacking = plan.evidence.lacking(executor, question.content, response)
    except MemoryError:
        return unasked_result(starved(question.case), executor.name)
    except NotAskedError as error:
        return not_run(question.case, executor.name, str(error))
    return replace(result, outcome=Outcome.UNPROVEN, message=lacking) if lacking else result


def _asides(plan: Plan) -> Iterator[Result]:
    """Yield a result for each place, outside of the cases, where a backend's workers failed."""
    for executor in plan.backends:
        # However many workers there were, the results are the same.
        found: dict[str, Result] = {}
        for aside in executor.finish():
            result = Result(
                f"{OUTSIDE_CASES}/{aside.place}",
                plan.cases[-1].location,
                (),
                executor.name,
                aside.outcome,
                message=aside.message,
            )
            found[aside.place] = worse(found.get(aside.place), plan.review(result))
        yield from found.values()
