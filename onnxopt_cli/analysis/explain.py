"""Explanations of failures: known mistakes that reproduce the outputs of a backend.

An explanation is a small set of known mistakes, called a cover. Each mistake, or combination of
mistakes, reproduces the outputs of some failing cases and is right in every case that the backend
passes. Together they reproduce as many failing cases as possible. Failing cases that no mistake
reproduces are described by a condition. A backend that raises errors, but returns no wrong values,
gets no explanation, because an error may have any reason. A mistake that reproduces wrong values
may account for errors, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, islice, pairwise, product
from operator import attrgetter, itemgetter
from pathlib import Path
from random import Random
from time import monotonic, process_time

import numpy as np
import onnx

from onnxopt_cli.analysis.failure_conditions import (
    FailureCondition,
    failure_condition,
    supports_change,
)
from onnxopt_cli.analysis.generated_inputs import changed
from onnxopt_cli.analysis.lowered_nodes import (
    Submit,
    WrongNode,
    wrong_nodes,
)
from onnxopt_cli.analysis.samples import Sample, has_common_content, sample
from onnxopt_cli.cases.case import Case
from onnxopt_cli.config.run_config import Judging
from onnxopt_cli.core.record import (
    NOT_TRIED,
    UNEXPLAINED,
    Cause,
    Explanation,
)
from onnxopt_cli.core.result import Outcome, Result
from onnxopt_cli.core.text import some_of
from onnxopt_cli.core.tolerance import Branch
from onnxopt_cli.core.values import Array
from onnxopt_cli.errors import InvalidCase, NodeError
from onnxopt_cli.interpret.bound.error_bound import bound
from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.interpret.implementation import Implementation, both
from onnxopt_cli.mutation.formula_changes import formula_changes
from onnxopt_cli.mutation.known_mistakes import all_known_mistakes, distinct, named
from onnxopt_cli.operators.call import Call
from onnxopt_cli.operators.operator import Operator
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.oracle.expected import Expected
from onnxopt_cli.run.reproduce import (
    WITHOUT_FORMULA,
    Observation,
    agrees_with,
    conforms,
    differ,
    observe,
    refuses,
    reproduces,
    reproduces_wrong_elements,
    returned_arrays,
    returns,
)
from onnxopt_cli.run.rerun import ModelRunner, call_model

#: Cases with more output elements are skipped, since one may take longer than all others.
MAX_OUTPUT_ELEMENTS = 1 << 20
#: Number of public implementations that are named for a mistake.
MAX_IMPLEMENTATIONS_NAMED = 2
#: Number of failing cases on which a mistake, or a likely mistake, is tried first.
FIRST_CASES, FIRST_CASES_LIKELY = 12, 36
#: Number of mistakes that are added to one that reproduces some failing cases.
MAX_ADDED_MISTAKES = 2
#: If the remaining failing cases outnumber the reproduced ones by this factor, agreement with a
#: mistake may be chance.
MAX_LEFT_RATIO = 3
#: Seconds for which a backend may be queried even if the search took all of its time.
QUERY_SECONDS = 8
#: Generated inputs on which a mistake is wrong: the number submitted to confirm it, and the
#: number of inputs drawn to find them.
SUBMITTED_TO_CONFIRM, DRAWN_TO_CONFIRM = 24, 96
#: A mistake is dropped if the backend is right in a larger share of these inputs, or if a smaller
#: share of the backend's wrong results equals those of the mistake.
MAX_RIGHT_SHARE, MIN_ALIKE_SHARE = 0.1, 0.5
#: Changes of the formula: seconds in which they are tried; number of changes that are tested on
#: generated inputs, once without and once with a condition; and number of failing cases from which
#: the constants of changes are determined.
CHANGE_SECONDS, MAX_TESTED_CHANGES, CONSTANT_CASES = 3.0, 8, 3
#: A change must reproduce this share of the failing cases. It may be wrong in one passing case, or
#: in the second share of the passing cases.
MIN_REPRODUCED_SHARE, MAX_CONTRADICTING_SHARE = 0.75, 0.01
#: Generated inputs on which a change of the formula is wrong: how many are submitted, and how many
#: inputs are generated to find them.
SUBMITTED_FOR_CHANGE, DRAWN_FOR_CHANGE = 60, 500
#: Number of inputs near to failing cases on which a mistake is tested before its condition is
#: sought.
NEAR_INPUTS = 16
#: While the condition of a mistake is sought, this number of wrong outputs may differ from those of
#: the mistake, in addition to the share MAX_RIGHT_SHARE.
MIN_CONTRADICTING = 3
#: Largest number of equivalent mistakes that are counted.
MAX_EQUIVALENT = 12
#: Number of known mistakes for which a condition is sought, and of failing cases that each of them
#: must reproduce first.
MAX_RESTRICTED, RESTRICTED_CASES = 4, 6
#: Linux: the time on a processor and the time in the queue for one, both in nanoseconds.
SCHEDULER_STATISTICS, NANOSECONDS = Path("/proc/thread-self/schedstat"), 1_000_000_000
#: Number of failing cases that run twice, to see whether outputs depend on earlier runs; the share
#: of them that must do so; and the statement in reports.
REPEATED_CASES, MIN_CHANGING_SHARE = 12, 1 / 3
CHANGES_WHEN_REPEATED = (
    "the same node with the same inputs returns other outputs when it runs again"
)


def least_seconds(run: float) -> float:
    """Return the time limit of the search after a run that took this many seconds."""
    return max(5.0, run / 5)


def explain(
    results: Sequence[Result],
    cases: Mapping[str, Case],
    judging: Judging | None = None,
    *,
    seconds: float = float("inf"),
    progress: Callable[[str], None] = lambda _: None,
    ask: ModelRunner | None = None,
) -> list[Explanation]:
    """Explain the failures of each backend in each operator with a formula.

    Likely mistakes are tried first, alone for all operators, then combined; then all other mistakes
    in the same way. Conditions come last. The operators share the time of each phase equally.

    Args:
        results: all results of a run.
        cases: the cases by id.
        judging: how the run judged outputs.
        seconds: limit of the processor time of this process and of the time that the backends
            take; explanations list the mistakes not tried.
        progress: called with the current activity.
        ask: submits a model to a backend, given by name; returns None if the backend fails.
            Without it, generated inputs cannot confirm mistakes and conditions.
    """
    clock = SearchClock()
    end = clock.now() + seconds
    searches = list(_searches(results, cases, judging or Judging(), progress))
    if ask:
        ask = clock.timed(ask)
        clock.share([search.check_lowered_nodes(ask) for search in searches], end)
    for likely in (True, False):
        clock.share([search.try_single(likely=likely) for search in searches], end)
        clock.share([search.try_combined(likely=likely) for search in searches], end)
    end = max(end, clock.now() + QUERY_SECONDS)
    for number, search in enumerate(searches):
        if clock.now() < end:
            share = (end - clock.now()) / (len(searches) - number)
            until = clock.now() + max(QUERY_SECONDS, share)
            # Without a condition in this time, the failures remain unexplained.
            with suppress(_OutOfTimeError):
                search.find_condition(ask and clock.limited(ask, until))
    stopped = f"stopped after {round(seconds, 1 if seconds > 1 else 3):g} s"
    return [*filter(None, (search.explanation(stopped) for search in searches))]


class _OutOfTimeError(Exception):
    """The search has used its time."""


class SearchClock:
    """Measures the processor time of a search and the time that the backends take.

    Unlike the time of day, it does not depend on the load of the machine.
    """

    def __init__(self) -> None:
        # Seconds that the backends took, minus those in which this process was running or waited
        # for a processor, and the processor time of other processes.
        self._waited = 0.0

    def now(self) -> float:
        """Return the seconds since an arbitrary time."""
        return process_time() + self._waited

    def add(self, seconds: float) -> None:
        """Count the processor time of another process that worked for the search."""
        self._waited += seconds

    def timed(self, ask: ModelRunner) -> ModelRunner:
        """Return a function that runs models and counts the time that the backends take."""

        def run_model(
            backend: str, model: onnx.ModelProto, inputs: Mapping[str, Array]
        ) -> Sequence[Array] | None:
            start, busy = monotonic(), process_time() + _seconds_in_queue()
            try:
                return ask(backend, model, inputs)
            finally:
                busy_seconds = process_time() + _seconds_in_queue() - busy
                self._waited += max(0.0, monotonic() - start - busy_seconds)

        return run_model

    def limited(self, ask: ModelRunner, end: float) -> ModelRunner:
        """Return a function that runs models, and raises an error after a time.

        A search that submits models therefore also ends if its own work takes long.
        """

        def run_model(
            backend: str, model: onnx.ModelProto, inputs: Mapping[str, Array]
        ) -> Sequence[Array] | None:
            if self.now() > end:
                raise _OutOfTimeError
            return ask(backend, model, inputs)

        return run_model

    def share(self, tasks: Sequence[Iterator[None]], end: float) -> None:
        """Advance the tasks in turn, each for an equal part of the remaining time."""
        while tasks and self.now() < end:
            unfinished = []
            for index, task in enumerate(tasks):
                now = self.now()
                until = now + (end - now) / (len(tasks) - index)
                if any(self.now() >= until for _ in task):
                    unfinished.append(task)
            tasks = unfinished


def _seconds_in_queue() -> float:
    """Return how long this thread has waited for a processor; 0 if the system does not count it."""
    try:
        return int(SCHEDULER_STATISTICS.read_text().split()[1]) / NANOSECONDS
    except (OSError, ValueError, IndexError):
        return 0.0


def _searches(
    results: Sequence[Result],
    cases: Mapping[str, Case],
    judging: Judging,
    progress: Callable[[str], None],
) -> Iterator[_Search]:
    """Yield a search for each backend and operator with wrong values."""
    operators: dict[tuple[str, ...], Operator] = {
        (operator.name,): operator for operator in registry().operators
    }
    groups: dict[tuple[str, Operator], list[Result]] = {}
    for result in results:
        case = cases.get(result.case)
        operator = operators.get(result.operators or (case and case.operators) or ())
        if operator is not None:
            groups.setdefault((result.backend, operator), []).append(result)
    for (backend, operator), group in groups.items():
        if any(result.outcome is Outcome.FAIL and returned_arrays(result) for result in group):
            yield _Search(backend, operator, group, cases, judging, progress)


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    """One or more known mistakes, and the failing cases that they reproduce together.

    Attributes:
        names: names of the mistakes.
        mistake: an implementation with all of them.
        cases: the failing cases reproduced.
    """

    names: tuple[str, ...]
    mistake: Implementation
    cases: frozenset[Observation] = frozenset()

    def combined(self, base: _Candidate | None) -> _Candidate | None:
        """Return a base with these mistakes added; None if not all can be combined."""
        if base is None:
            return self
        names, mistake = (*base.names, *self.names), both(base.mistake, self.mistake)
        return _Candidate(names, mistake) if mistake and len({*names}) == len(names) else None


@dataclass(eq=False)
class _Search:
    """The search for explanations of the failures of one backend in one operator.

    Long operations are iterators over small steps, so that searches can share the time.

    Attributes:
        backend: the backend's name.
        operator: the operator.
        results: results of the backend in the operator.
        cases: the cases by id.
        judging: how the run judged outputs.
        progress: called with the current activity.
    """

    backend: str
    operator: Operator
    results: Sequence[Result]
    cases: Mapping[str, Case]
    judging: Judging
    progress: Callable[[str], None]

    def __post_init__(self) -> None:
        passed = sorted(filter(_has_right_values, self.results), key=_output_elements)
        self._unread_passing = [
            result for result in passed if _output_elements(result) <= MAX_OUTPUT_ELEMENTS
        ]
        self._passing: list[Observation] = []
        self._wrong: list[Observation] = []
        self._refused: list[Observation] = []
        self._not_tried: Counter[str] = Counter()
        self._wrong_nodes: dict[WrongNode, list[str]] = {}
        self._reproducing: list[_Candidate] = []
        self._possible: list[_Candidate] = []
        self._condition_cause: Cause | None = None
        self._condition_cases: frozenset[Observation] = frozenset()
        self._began = False
        self._tried_single = False
        self._complete = False

    def _report(self, activity: str) -> None:
        self.progress(f"explaining {self.operator.name}: {activity}")

    @property
    def _all_wrong(self) -> frozenset[Observation]:
        return frozenset(self._wrong)

    # Lowered models -----------------------------------------------------------------------------

    def check_lowered_nodes(self, ask: ModelRunner) -> Iterator[None]:
        """Find the primitive nodes that are wrong where a backend runs lowered models.

        Cases that such a node accounts for do not indicate a mistake of the operator.
        """
        failing = [
            result
            for result in self.results
            if result.failing and result.lowered and returned_arrays(result)
        ]
        failing.sort(key=_output_elements)
        submit = partial(ask, self.backend)
        examples: dict[str, WrongNode] = {}
        for number, result in enumerate(failing):
            # The smallest cases show which operators are wrong; larger ones test only those.
            if number >= FIRST_CASES and not examples:
                return
            self._report(f"{number} of {len(failing)} lowered models")
            yield
            case = self.cases.get(result.case)
            only = frozenset(examples) if number >= FIRST_CASES else frozenset[str]()
            for node in self._wrong_nodes_of(case, submit, only):
                example = examples.setdefault(node.operator, node)
                self._wrong_nodes.setdefault(example, []).append(result.case)
                break

    def _wrong_nodes_of(
        self, case: Case | None, submit: Submit, only: frozenset[str]
    ) -> Iterator[WrongNode]:
        try:
            problem = case.load() if case else None
        except (InvalidCase, NodeError, MemoryError):
            return
        if problem and problem.trajectory is None:
            arrays = {
                name: value
                for name, value in problem.inputs.items()
                if isinstance(value, np.ndarray)
            }
            yield from wrong_nodes(problem.model, arrays, submit, only)

    # Known mistakes -----------------------------------------------------------------------------

    def try_single(self, *, likely: bool) -> Iterator[None]:
        """Read the failing cases, and try each known mistake alone.

        Args:
            likely: whether to try the likely mistakes, or all others.
        """
        if likely:
            yield from self._read_failing()
            self._began = True
        mistakes = [
            mistake
            for mistake in all_known_mistakes(self.operator)
            if self._is_likely(mistake) is likely
        ]
        for number, mistake in enumerate(mistakes if self._wrong else ()):
            self._report(f"{number} of {len(mistakes)} mistakes")
            yield
            if (yield from self._agrees(mistake, FIRST_CASES)):
                self._possible.append(_Candidate((mistake.name,), mistake))
                first = FIRST_CASES_LIKELY if likely else FIRST_CASES
                yield from self._try(self._possible[-1], self._all_wrong, first)
        if not likely:
            self._tried_single = True
            self._complete = not self._left(self._reproducing)

    def _is_likely(self, mistake: Implementation) -> bool:
        """Return whether a mistake is listed for the operator, or made by many programs."""
        listed = mistake.name in {deviation.name for deviation in self.operator.known_mistakes}
        return listed or self._ignores_attribute(mistake) or mistake.precision == np.float32

    def _ignores_attribute(self, mistake: Implementation) -> bool:
        prefixes = tuple(f"{attribute.name} taken as" for attribute in self.operator.attributes)
        return mistake.name.startswith(prefixes)

    def try_combined(self, *, likely: bool) -> Iterator[None]:
        """Try combinations of known mistakes for cases that no single mistake reproduces."""
        if not self._wrong or not (likely or self._tried_single):
            return
        if not self._reproducing and not likely:
            yield from self._try_with_bases([None], self._pairs(), "pairs")
        for _ in range(MAX_ADDED_MISTAKES):
            before = len(self._reproducing)
            bases = self._cover()
            # Single mistakes are tried again, since one that reproduces only few of all cases may
            # have been missed in the first cases.
            chosen = [*bases, None] if bases else []
            yield from self._try_with_bases(chosen, self._possible, "mistakes")
            if len(self._reproducing) == before:
                break
        if self._reproducing and self._left(self._reproducing) and not likely:
            pairs = self._pairs(published=True)
            yield from self._try_with_bases([None, *self._cover()[:1]], pairs, "pairs")
        self._complete = not likely

    def _pairs(self, *, published: bool = False) -> list[_Candidate]:
        """Return pairs of the operator's listed mistakes, and of these with ignored attributes.

        Args:
            published: whether to use only listed mistakes that public programs make.
        """
        listed = {
            deviation.name
            for deviation in self.operator.known_mistakes
            if deviation.seen_in or not published
        }
        chosen = [candidate for candidate in self._possible if candidate.mistake.name in listed]
        ignoring = [
            candidate for candidate in self._possible if self._ignores_attribute(candidate.mistake)
        ]
        couples = [*product(ignoring, chosen), *combinations(chosen, 2)]
        return [*filter(None, (second.combined(first) for first, second in couples))]

    def _try_with_bases(
        self, bases: Sequence[_Candidate | None], candidates: Sequence[_Candidate], what: str
    ) -> Iterator[None]:
        """Combine each candidate with each base, and try them on the remaining cases."""
        for base in bases:
            for number, candidate in enumerate(candidates):
                self._report(f"{number} of {len(candidates)} more {what}")
                yield
                remaining = self._left(self._reproducing)
                if remaining and (combination := candidate.combined(base)):
                    yield from self._try(combination, remaining)

    def _try(
        self, candidate: _Candidate, cases: Iterable[Observation], first: int = FIRST_CASES
    ) -> Iterator[None]:
        """Record a candidate if it reproduces failing cases and agrees with passing ones.

        Args:
            candidate: the mistakes.
            cases: failing cases; the candidate is recorded if it reproduces one of them.
            first: the number of these tried first; the others only if one is reproduced.
        """
        reproduced = []
        # If a candidate reproduces all cases, further ones are only counted as equivalent mistakes.
        solved = any(len(candidate.cases) == len(self._wrong) for candidate in self._reproducing)
        few = _spread(self._in_order(cases), first)
        for observation in (*few, *self._in_order(self._all_wrong.difference(few))):
            if reproduces(candidate.mistake, observation, self.judging):
                reproduced.append(observation)
            elif solved:
                return
            elif observation is few[-1] and not reproduced:
                break
            yield
        if reproduced and (yield from self._agrees(candidate.mistake)):
            self._reproducing.append(replace(candidate, cases=frozenset(reproduced)))

    def _agrees(
        self, mistake: Implementation, most: int | None = None
    ) -> Generator[None, None, bool]:
        """Return whether a mistake is right in the cases that the backend passes."""
        for observation in islice(self._read_passing(), most):
            if not agrees_with(mistake, observation, self.judging):
                return False
            yield
        return True

    def _left(self, candidates: Iterable[_Candidate]) -> frozenset[Observation]:
        """Return the cases with wrong values that no candidate reproduces."""
        return self._all_wrong.difference(*(candidate.cases for candidate in candidates))

    def _cover(self, without: frozenset[str] = frozenset()) -> list[_Candidate]:
        """Return a few candidates that reproduce every case which any candidate reproduces.

        The first candidate reproduces the most cases. Each further one reproduces the most of the
        remaining cases, and is returned with these alone. Of several such candidates, the one with
        the fewest mistakes is chosen, then one that does not round, then the one that refuses the
        most cases which the backend refused.
        """
        cover: list[_Candidate] = []
        remaining = self._all_wrong
        usable = [
            candidate
            for candidate in self._reproducing
            if not without.intersection(candidate.names)
        ]
        while best := max((len(candidate.cases & remaining) for candidate in usable), default=0):
            equals = [candidate for candidate in usable if len(candidate.cases & remaining) == best]
            chosen = min(equals, key=self._cost)
            cover.append(replace(chosen, cases=chosen.cases & remaining))
            remaining -= chosen.cases
        return cover

    def _cost(self, candidate: _Candidate) -> tuple[int, bool, int]:
        refused = sum(refuses(candidate.mistake, observation) for observation in self._refused)
        rounds = candidate.mistake.rounds or candidate.mistake.precision is not None
        return len(candidate.names), rounds, -refused

    def _supported_cover(self) -> list[_Candidate]:
        """Return the cover without mistakes for which :meth:`_is_supported` is false.

        A mistake is always present: the combination that reproduces a case which the mistake
        affects must contain it.
        """
        without: frozenset[str] = frozenset()
        while True:
            cover = self._cover(without)
            doubtful = {
                name
                for candidate in cover
                for name in candidate.names
                if not self._is_supported(name)
            }
            if not doubtful:
                remaining = len(self._left(cover))
                return cover if remaining <= MAX_LEFT_RATIO * (len(self._wrong) - remaining) else []
            without |= doubtful

    def _is_supported(self, name: str) -> bool:
        """Return whether a mistake is in combinations for half of the cases that it affects."""
        containing = [candidate for candidate in self._reproducing if name in candidate.names]
        not_alone = self._left(candidate for candidate in containing if len(candidate.names) == 1)
        if 2 * len(not_alone) <= len(self._wrong):
            return True
        reproduced = self._all_wrong - self._left(containing)
        run = next(
            candidate.mistake.run for candidate in self._possible if candidate.names == (name,)
        )
        affected = {
            observation
            for observation in self._wrong
            if not conforms(run(observation.call), observation, self.judging)
        }
        return 2 * len(reproduced & affected) >= len(affected)

    # Generated inputs ---------------------------------------------------------------------------

    def find_condition(self, ask: ModelRunner | None) -> None:
        """Test the cover on generated inputs, then look for a condition of the failures remaining.

        Args:
            ask: submits a model to a backend; None if backends are not available.
        """
        submit = _submitting(partial(ask, self.backend)) if ask else None
        cover = self._unrefuted_cover(submit)
        remaining = self._in_order(self._left(cover))
        if not remaining:
            return
        self._report("conditions of failing cases")

        def submit_explained(call: Call[Array]) -> Sequence[Array] | None:
            """Return the expected outputs where a mistake of the cover explains the wrong ones."""
            returned = submit(call) if submit else None
            if returned and any(returns(candidate.mistake, call, returned) for candidate in cover):
                return evaluate(call)
            return returned

        if submit and self._changes_when_repeated(remaining, submit):
            self._condition_cause = Cause(CHANGES_WHEN_REPEATED, _ids(remaining))
            self._condition_cases = frozenset(remaining)
            return
        explained = self._in_order(self._all_wrong.difference(remaining))
        passing = [*self._read_passing(), *explained]
        changes = self._formula_changes(remaining, passing) if submit else []
        if submit and self._find_unrestricted(changes, passing, submit):
            return
        mistakes = [] if cover else self._restricted_mistakes(remaining)
        likely = [mistake for mistake in mistakes if self._is_likely(mistake)]
        if self._find_restricted(likely, remaining, passing, submit):
            return
        unlikely = [mistake for mistake in mistakes if mistake not in likely]
        unlikely += self._possible_changes(changes, remaining, passing)
        self._find_condition_or_restricted(unlikely, remaining, passing, submit, submit_explained)

    def _find_condition_or_restricted(
        self,
        unlikely: Sequence[Implementation],
        remaining: Sequence[Observation],
        passing: Sequence[Observation],
        submit: Callable[[Call[Array]], Sequence[Array] | None] | None,
        submit_explained: Callable[[Call[Array]], Sequence[Array] | None],
    ) -> None:
        """Look for a condition, with one of some mistakes or for any wrong outputs."""
        samples = _samples(remaining, passing)
        condition = None
        # "Negated wherever ..." is plainer than a mistake that no program is known to make.
        if unlikely and has_common_content(samples):
            condition = failure_condition(samples, submit and submit_explained)
        if not (condition and condition.names_content):
            if self._find_restricted(unlikely, remaining, passing, submit):
                return
            condition = condition or failure_condition(samples, submit and submit_explained)
        if condition:
            self._set_condition(remaining, condition, Cause(condition.text, ()))

    def _unrefuted_cover(
        self, submit: Callable[[Call[Array]], Sequence[Array] | None] | None
    ) -> list[_Candidate]:
        """Return a cover that generated inputs do not contradict; drop refuted candidates."""
        cover = self._supported_cover() if self._wrong else []
        while refuted := self._refuted(cover, submit):
            # If a combination is refuted, its parts may still be right.
            self._reproducing = [
                candidate for candidate in self._reproducing if not refuted <= {*candidate.names}
            ]
            cover = self._supported_cover()
        return cover

    def _find_restricted(
        self,
        mistakes: Iterable[Implementation],
        remaining: Sequence[Observation],
        passing: Sequence[Observation],
        submit: Callable[[Call[Array]], Sequence[Array] | None] | None,
    ) -> bool:
        """Look for a mistake that a condition restricts; return whether one was found."""
        for mistake in mistakes:
            if submit and not self._reproduces_near(mistake, remaining, submit):
                continue
            outcomes = Counter[bool]()
            compared = _compared(submit, mistake, outcomes) if submit else None
            samples = _samples(remaining, passing, mistake)
            try:
                condition = failure_condition(samples, compared, mistake)
            except _ContradictedError:
                continue
            if (
                condition
                and condition.conditions
                and outcomes[False] <= MAX_RIGHT_SHARE * outcomes.total()
            ):
                cause = self._cause_of(mistake, f", but only where {condition.where}")
                self._set_condition(remaining, condition, cause, mistake)
                return True
        return False

    @staticmethod
    def _reproduces_near(
        mistake: Implementation,
        remaining: Sequence[Observation],
        submit: Callable[[Call[Array]], Sequence[Array] | None],
    ) -> bool:
        """Return whether a mistake reproduces the wrong elements of inputs near to failing cases.

        This test is much faster than the search for a condition.
        """
        random = Random(0)  # noqa: S311 - not a secret
        outcomes = Counter[bool]()
        compared = _compared(submit, mistake, outcomes)
        with suppress(_ContradictedError):
            for _ in range(2 * NEAR_INPUTS):
                call = changed(random, random.choice(remaining).call, (1,))
                if call is not None:
                    compared(call)
                if outcomes.total() == NEAR_INPUTS:
                    break
        return outcomes[False] <= MAX_RIGHT_SHARE * outcomes.total()

    def _cause_of(self, mistake: Implementation, where: str = "") -> Cause:
        """Return a known mistake or a change of the formula as a cause, without cases."""
        text = f"{mistake.name!r}{where}"
        if named(self.operator, mistake.name):
            return Cause(text, (), (mistake.name,))
        return Cause(f"consistent with the change {text}", ())

    # Changes of the formula ---------------------------------------------------------------------

    def _formula_changes(
        self, remaining: Sequence[Observation], passing: Sequence[Observation]
    ) -> list[_Candidate]:
        """Return changes of the formula that reproduce the wrong elements of the cases remaining.

        Of changes with the same outputs, only the plainest is kept.
        """
        ordinary = sorted(remaining, key=_extremeness)[:CONSTANT_CASES]
        few = [*ordinary, *_spread(remaining, RESTRICTED_CASES)]
        end = process_time() + CHANGE_SECONDS
        changes: dict[object, _Candidate] = {}
        for change in formula_changes(self.operator, ordinary):
            if process_time() > end:
                break
            if len(_reproduced(change, few)) < MIN_REPRODUCED_SHARE * len(few):
                continue
            reproduced = _reproduced(change, remaining)
            if len(reproduced) >= MIN_REPRODUCED_SHARE * len(remaining):
                outputs = [
                    hash(output.tobytes())
                    for observation in (*remaining, *passing)
                    for output in change.run(observation.call)
                ]
                candidate = _Candidate((change.name,), change, frozenset(reproduced))
                changes.setdefault(tuple(outputs), candidate)
        return [*changes.values()]

    def _find_unrestricted(
        self,
        changes: Sequence[_Candidate],
        passing: Sequence[Observation],
        submit: Callable[[Call[Array]], Sequence[Array] | None],
    ) -> bool:
        """Look for a change that agrees with the cases; return whether one was found.

        Roundings decide in a few cases, since a change may be discontinuous.
        """
        tested = 0
        for candidate in sorted(changes, key=lambda candidate: -len(candidate.cases)):
            most = max(1, int(MAX_CONTRADICTING_SHARE * len(passing)))
            contradicting = (
                observation
                for observation in passing
                if not agrees_with(candidate.mistake, observation, self.judging)
            )
            if len([*islice(contradicting, most + 1)]) > most:
                continue
            cases = [
                observation
                for observation in self._in_order(candidate.cases)
                if reproduces(candidate.mistake, observation, self.judging)
            ]
            if len(cases) < MIN_REPRODUCED_SHARE * len(candidate.cases):
                continue
            if self._is_confirmed(candidate.mistake, cases, passing, submit):
                cause = self._cause_of(candidate.mistake)
                self._condition_cause = replace(cause, cases=_ids(cases))
                self._condition_cases = frozenset(cases)
                return True
            tested += 1
            if tested == MAX_TESTED_CHANGES:
                break
        return False

    def _is_confirmed(
        self,
        change: Implementation,
        remaining: Sequence[Observation],
        passing: Sequence[Observation],
        submit: Callable[[Call[Array]], Sequence[Array] | None],
    ) -> bool:
        """Return whether generated inputs agree with a change of the formula."""
        candidate, unlike = _Candidate((change.name,), change), 0
        failing = [observation.call for observation in remaining]
        right_calls = [observation.call for observation in passing] or failing
        bases = (failing, right_calls)
        counts = Counter[str]()
        numbers = SUBMITTED_FOR_CHANGE, DRAWN_FOR_CHANGE
        for outcome in self._outcomes(candidate, [candidate], submit, bases, *numbers):
            counts[outcome] += 1
            unlike = counts["right"] + counts["other"]
            if unlike > 1:
                return False
        return supports_change(counts["alike"], unlike)

    def _possible_changes(
        self,
        changes: Sequence[_Candidate],
        remaining: Sequence[Observation],
        passing: Sequence[Observation],
    ) -> list[Implementation]:
        """Return a few changes for which a condition may be found, the most likely first."""
        few = passing[:FIRST_CASES_LIKELY]
        complete = [
            candidate.mistake for candidate in changes if len(candidate.cases) == len(remaining)
        ]
        against = [
            sum(not agrees_with(change, observation, self.judging) for observation in few)
            for change in complete
        ]
        order = sorted(range(len(complete)), key=against.__getitem__)
        return [complete[place] for place in order[:MAX_RESTRICTED]]

    def _set_condition(
        self,
        remaining: Sequence[Observation],
        condition: FailureCondition,
        cause: Cause,
        mistake: Implementation | None = None,
    ) -> None:
        met = [
            observation
            for observation, each in zip(remaining, _samples(remaining, (), mistake), strict=True)
            if condition.meets(each)
        ]
        self._condition_cause = replace(cause, cases=_ids(met))
        self._condition_cases = frozenset(met)

    def _changes_when_repeated(
        self,
        remaining: Sequence[Observation],
        submit: Callable[[Call[Array]], Sequence[Array] | None],
    ) -> bool:
        """Return whether a third of a few failing nodes return other outputs when rerun.

        Such a backend keeps state, and no condition on the inputs describes its failures. The
        outputs of the other nodes may hardly depend on the state.
        """
        few = sorted(remaining, key=_extremeness)[:REPEATED_CASES]
        differing = sum(self._differs_again(observation, submit) for observation in few)
        return differing >= MIN_CHANGING_SHARE * len(few)

    @staticmethod
    def _differs_again(
        observation: Observation, submit: Callable[[Call[Array]], Sequence[Array] | None]
    ) -> bool:
        responses = [submit(observation.call) for _ in range(2)]
        if observation.is_plain:
            responses.insert(0, observation.returned)
        return any(
            bool(earlier and later) and differ(observation.right, earlier or (), later or ())
            for earlier, later in pairwise(responses)
        )

    def _restricted_mistakes(self, remaining: Sequence[Observation]) -> list[Implementation]:
        """Return mistakes that reproduce all wrong elements, but also change right ones.

        Mistakes that change the fewest passing cases come first, since conditions that restrict
        them to the failing cases are the simplest.
        """
        few = _spread(remaining, RESTRICTED_CASES)
        mistakes = [
            mistake
            for mistake in all_known_mistakes(self.operator)
            if not mistake.rounds
            and mistake.precision is None
            and all(reproduces_wrong_elements(mistake, observation) for observation in few)
            and all(reproduces_wrong_elements(mistake, observation) for observation in remaining)
        ]
        passing = [*islice(self._read_passing(), FIRST_CASES_LIKELY)]
        against = {
            mistake.name: sum(
                not agrees_with(mistake, observation, self.judging) for observation in passing
            )
            for mistake in mistakes
        }
        mistakes.sort(key=lambda mistake: (against[mistake.name], not self._is_likely(mistake)))
        return mistakes[:MAX_RESTRICTED]

    def _refuted(
        self,
        cover: Sequence[_Candidate],
        submit: Callable[[Call[Array]], Sequence[Array] | None] | None,
    ) -> frozenset[str]:
        """Return the names of the first candidate that generated inputs contradict, if any."""
        for candidate in cover:
            if candidate.mistake.rounds:
                if not self._rounds_alike(candidate):
                    return frozenset(candidate.names)
                continue
            # A computation in a coarser type may be right in another order of operations.
            if submit is None or candidate.mistake.precision is not None:
                continue
            bases = [
                observation.call
                for observation in (*self._in_order(candidate.cases), *self._passing)
            ]
            counts = Counter(self._outcomes(candidate, cover, submit, [bases]))
            total, wrong = counts.total(), counts["alike"] + counts["other"]
            if counts["right"] > MAX_RIGHT_SHARE * total or counts["alike"] < (
                MIN_ALIKE_SHARE * wrong
            ):
                return frozenset(candidate.names)
        return frozenset()

    def _outcomes(
        self,
        candidate: _Candidate,
        cover: Sequence[_Candidate],
        submit: Callable[[Call[Array]], Sequence[Array] | None],
        bases: Sequence[Sequence[Call[Array]]],
        submitted: int = SUBMITTED_TO_CONFIRM,
        drawn: int = DRAWN_TO_CONFIRM,
    ) -> Iterator[str]:
        """Yield a word about the backend for each generated input on which a mistake is wrong.

        The word is "right" if the backend is right, "alike" if it returns the outputs of a mistake
        of the cover, and "other" if it returns other wrong outputs.

        Args:
            candidate: the mistake.
            cover: other mistakes of the backend, which also count as alike.
            submit: submits a node.
            bases: groups of nodes; each input derives from a node of a random group.
            submitted: number of inputs that the mistake gets wrong and that are submitted.
            drawn: number of inputs that are drawn.
        """
        random = Random(0)  # noqa: S311 - not a secret
        remaining = submitted
        for _ in range(drawn):
            group = random.choice(bases) if len(bases) > 1 else bases[0]
            call = changed(random, random.choice(group), (1, 2, 3, 4, 5, 6))
            mistaken = candidate.mistake.run(call) if call else []
            if call is None or not mistaken:
                continue
            right = [derived_output.branch for derived_output in bound(call)]
            if not _is_wrong(right, mistaken):
                continue
            returned = submit(call)
            if returned is None:
                continue
            remaining -= 1
            if not _is_wrong(right, returned):
                yield "right"
            else:
                alike = any(returns(candidate.mistake, call, returned) for candidate in cover)
                yield "alike" if alike else "other"
            if not remaining:
                return

    def _rounds_alike(self, candidate: _Candidate) -> bool:
        """Return whether the backend's values are nearer to a mistake than to the expected ones.

        The tolerance of such a mistake is as wide as the effect of its roundings, so that agreement
        within the tolerance does not confirm it.
        """
        shares: list[float] = []
        for observation in self._in_order(candidate.cases):
            for right, own, returned in zip(
                observation.right,
                candidate.mistake.run(observation.call),
                observation.returned,
                strict=False,
            ):
                if own.shape != returned.shape:
                    continue
                wrong = right.wrong(returned) & np.isfinite(returned) & np.isfinite(own)
                returned_wide, own_wide = (
                    array[wrong].astype(np.float64) for array in (returned, own)
                )
                error = np.abs(returned_wide - right.expected[wrong])
                shares += (np.abs(returned_wide - own_wide) / error).tolist()
        return not shares or float(np.median(shares)) <= 0.5  # noqa: PLR2004 - nearer

    # Reading cases ------------------------------------------------------------------------------

    def _read_failing(self) -> Iterator[None]:
        """Read the failing cases, and count those on which no mistake can be tried."""
        self._report("reading failing cases")
        accounted = {case for cases in self._wrong_nodes.values() for case in cases}
        for result in filter(attrgetter("failing"), self.results):
            if result.case in accounted:
                continue
            observation: Observation | str = str(result.outcome)
            if _output_elements(result) > MAX_OUTPUT_ELEMENTS:
                observation = "large"
            elif result.outcome in (Outcome.FAIL, Outcome.ERROR):
                observation = self._observed(result)
            if isinstance(observation, str):
                self._not_tried[observation] += 1
            else:
                (self._wrong if observation.returned else self._refused).append(observation)
            yield
        # Small cases first: they are the fastest.
        self._wrong.sort(key=lambda observation: observation.call.size)

    def _observed(self, result: Result) -> Observation | str:
        observation = observe(result, self.cases.get(result.case), self.judging)
        foreign = (
            isinstance(observation, Observation) and observation.call.operator is not self.operator
        )
        return WITHOUT_FORMULA if foreign else observation

    def _read_passing(self) -> Iterator[Observation]:
        """Yield the passing cases on which mistakes can be tried, reading each once."""
        yield from self._passing
        while self._unread_passing:
            observation = self._observed(self._unread_passing.pop(0))
            if isinstance(observation, Observation):
                self._passing.append(observation)
                yield observation

    def _in_order(self, cases: Iterable[Observation]) -> list[Observation]:
        """Return the given cases in the order of the search, the smallest first."""
        chosen = frozenset(cases)
        return [observation for observation in self._wrong if observation in chosen]

    # Results ------------------------------------------------------------------------------------

    def explanation(self, stopped: str) -> Explanation | None:
        """Return the result of the search; None if no failing case was examined.

        Args:
            stopped: words for the time limit, which are part of the note if it stopped the search.
        """
        if not self._began:
            failing = Counter(str(result.outcome) for result in self.results if result.failing)
            unexplained = {NOT_TRIED: failing}
            note = f"{UNEXPLAINED}, {stopped}"
            return Explanation(self.backend, self.operator.name, (), unexplained, note, False)
        node_causes = tuple(
            Cause(
                f"the lowered model's node {node.operator} is wrong: {node.example}", tuple(cases)
            )
            for node, cases in self._wrong_nodes.items()
        )
        if not self._wrong:
            unexplained = {NOT_TRIED: +self._not_tried} if self._not_tried else {}
            note = "each node was run alone" if node_causes else ""
            return (
                Explanation(self.backend, self.operator.name, node_causes, unexplained, note)
                if node_causes
                else None
            )
        cover = self._supported_cover()
        causes, errors = self._causes(cover)
        remaining = self._left(cover)
        if self._condition_cause:
            causes = (*causes, self._condition_cause)
            remaining -= self._condition_cases
        unexplained = {UNEXPLAINED: Counter({"fail": len(remaining)})} if remaining else {}
        if cover:
            unexplained |= {"not reproduced": errors, NOT_TRIED: self._not_tried}
        else:
            unexplained[NOT_TRIED] = self._not_tried + errors
        note = self._note(cover, stopped)
        causes = (*node_causes, *causes)
        return Explanation(
            self.backend, self.operator.name, causes, unexplained, note, self._complete
        )

    def _note(self, cover: Sequence[_Candidate], stopped: str) -> str:
        if cover or (self._condition_cause and self._condition_cause.known_mistakes):
            return "" if self._complete else f"{stopped}, not all other mistakes tried"
        if self._condition_cause:
            if self._complete:
                return "no known mistake and no pair of them reproduces this"
            return f"{stopped}, not all known mistakes tried"
        if self._complete:
            return "no known mistake and no pair of them reproduces"
        if self._tried_single:
            return f"{stopped}, before all pairs of mistakes were tried; no single one reproduces"
        return f"{stopped}, before all known mistakes were tried; none of those tried reproduces"

    def _causes(self, cover: Sequence[_Candidate]) -> tuple[tuple[Cause, ...], Counter[str]]:
        """Return the causes in a cover, and the errors for which none of them accounts."""
        causes: list[Cause] = []
        errors = list(self._refused)

        def add(text: str, candidate: _Candidate) -> None:
            accounted = [
                observation for observation in errors if refuses(candidate.mistake, observation)
            ]
            errors[:] = [observation for observation in errors if observation not in accounted]
            ids = _ids([*self._in_order(candidate.cases), *accounted])
            causes.append(Cause(text, ids, candidate.names))

        for candidate in cover:
            text, seen_in = " and ".join(map(repr, candidate.names)), candidate.mistake.seen_in
            named = f", as in {some_of(seen_in, MAX_IMPLEMENTATIONS_NAMED)}" if seen_in else ""
            add(text + named + self._equivalents(candidate), candidate)
        if cover and (refusing := self._refusing(errors)):
            add(repr(*refusing.names), refusing)
        return tuple(causes), +Counter({str(Outcome.ERROR): len(errors)})

    def _equivalents(self, candidate: _Candidate) -> str:
        """Return how many other mistakes give the same results in the failing cases."""
        equivalents = [
            rival.mistake
            for rival in self._reproducing
            if rival.names != candidate.names
            and len(rival.names) == len(candidate.names)
            and rival.mistake.precision is candidate.mistake.precision
            and candidate.cases <= rival.cases
        ]
        mistakes = [candidate.mistake, *equivalents[:MAX_EQUIVALENT]]
        count = len(distinct(self.operator, mistakes)) - 1
        suffix = "1 other mistake" if count == 1 else f"{count} other mistakes"
        return f" (or {suffix} with the same effect here)" if count and self._complete else ""

    def _refusing(self, errors: Sequence[Observation]) -> _Candidate | None:
        """Return the mistake that refuses most of the refused nodes, and no others."""
        counts = [
            (sum(refuses(candidate.mistake, observation) for observation in errors), candidate)
            for candidate in self._possible
        ]
        for count, candidate in sorted(counts, key=itemgetter(0), reverse=True):
            mistake = candidate.mistake
            if count <= 1 or any(refuses(mistake, observation) for observation in self._wrong):
                continue
            if all(
                agrees_with(mistake, observation, self.judging)
                for observation in self._read_passing()
            ):
                return candidate
        return None


def _samples(
    failing: Sequence[Observation],
    passing: Sequence[Observation],
    mistake: Implementation | None = None,
) -> list[Sample]:
    """Return observations as samples; those of ``passing`` count as right."""
    pairs = [
        *((observation, observation.returned) for observation in failing),
        *((observation, None) for observation in passing),
    ]
    return [
        sample(
            observation.call,
            observation.right,
            returned,
            (mistake.run(observation.call) or None) if mistake else None,
        )
        for observation, returned in pairs
    ]


def _extremeness(observation: Observation) -> float:
    """Return the largest distance of an input element from 1, in orders of magnitude.

    Extreme values hide other operands: a constant has no effect on a sum of 1e30.
    """
    logarithms = [0.0]
    for tensor in observation.call.inputs:
        finite = np.isfinite(tensor)
        size = np.abs(tensor[finite & (tensor != 0)].astype(np.float64))
        logarithms += np.abs(np.log10(size)).tolist()
        logarithms += [np.inf] * (not finite.all())
    return max(logarithms)


def _reproduced(mistake: Implementation, observations: Iterable[Observation]) -> list[Observation]:
    """Return the cases whose wrong elements a mistake reproduces."""
    return [
        observation
        for observation in observations
        if reproduces_wrong_elements(mistake, observation)
    ]


class _ContradictedError(Exception):
    """A backend returns other wrong elements than a mistake."""


def _compared(
    submit: Callable[[Call[Array]], Sequence[Array] | None],
    mistake: Implementation,
    outcomes: Counter[bool],
) -> Callable[[Call[Array]], Sequence[Array] | None]:
    """Return a function that submits nodes, and counts the wrong outputs that a mistake reproduces.

    The function raises an error once too many wrong outputs differ from those of the mistake.
    """

    def compare(call: Call[Array]) -> Sequence[Array] | None:
        returned = submit(call)
        right = [derived_output.branch for derived_output in bound(call)] if returned else []
        if returned and _is_wrong(right, returned):
            observation = Observation("", call, Expected({}, {}), returned)
            outcomes[reproduces_wrong_elements(mistake, observation)] += 1
            if outcomes[False] > MIN_CONTRADICTING + MAX_RIGHT_SHARE * outcomes.total():
                raise _ContradictedError
        return returned

    return compare


def _submitting(ask: Submit) -> Callable[[Call[Array]], Sequence[Array] | None]:
    """Return a function that submits the model of a call."""
    return lambda call: ask(*call_model(call))


def _spread(cases: Sequence[Observation], count: int) -> Sequence[Observation]:
    """Return some cases, spread evenly over the smaller half of all cases, which run fastest."""
    small = cases[: max(count, len(cases) // 2)]
    return small[:: -(-len(small) // count)] if small else small


def _ids(observations: Iterable[Observation]) -> tuple[str, ...]:
    return tuple(observation.case for observation in observations)


def _is_wrong(right: Sequence[Branch], outputs: Sequence[Array]) -> bool:
    """Return whether outputs differ from the expected ones in structure or values."""
    return len(outputs) != len(right) or any(
        (branch.expected.dtype, branch.expected.shape) != (output.dtype, output.shape)
        or bool(branch.wrong(output).any())
        for branch, output in zip(right, outputs, strict=True)
    )


def _has_right_values(result: Result) -> bool:
    """Return whether the values are right, even if the case failed for another reason."""
    return result.outcome is Outcome.PASS or (bool(result.diffs) and not result.wrong)


def _output_elements(result: Result) -> int:
    return sum(diff.elements for diff in result.diffs)
