"""Explain failures by known mistakes that reproduce the outputs of a backend.

An explanation is a small set of known mistakes, called a cover. Each mistake, or combination of
mistakes, reproduces the outputs of some failing cases. It must also compute right outputs in every
case that the backend passes. The mistakes of a cover together reproduce as many failing cases as
possible. For failing cases that no mistake reproduces,
:mod:`~onnxopt_cli.analysis.explanation.explain_remaining` looks for another cause.

If a backend raises errors but returns no wrong values, the errors are not explained, because an
error may have any reason. A mistake that reproduces wrong values may also account for errors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, islice, product
from operator import attrgetter
from pathlib import Path
from time import monotonic, process_time

import numpy as np
import onnx

from onnxopt_cli.analysis.explanation.condition_queries import SubmitCall
from onnxopt_cli.analysis.explanation.explain_remaining import (
    CHANGES_WHEN_REPEATED,
    CauseSearch,
    case_ids,
    changes_when_repeated,
    contradicts,
    spread,
)
from onnxopt_cli.analysis.explanation.lowered_nodes import Submit, WrongNode, wrong_nodes
from onnxopt_cli.cases.case import Case
from onnxopt_cli.config.run_config import Judging
from onnxopt_cli.core.record import NOT_TRIED, UNEXPLAINED, Cause, Explanation
from onnxopt_cli.core.result import Outcome, Result
from onnxopt_cli.core.text import exception_text, printable, some_of
from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.errors import InvalidCase, NodeError, OnnxoptError, is_debugging
from onnxopt_cli.interpret.implementation import Implementation, both
from onnxopt_cli.mutation.equivalence import distinct
from onnxopt_cli.mutation.known_mistakes import all_known_mistakes, ignores_attribute, is_likely
from onnxopt_cli.operators.operator import Operator
from onnxopt_cli.operators.registry import failing_operator, registry
from onnxopt_cli.run.executors import ModelRunner, call_model
from onnxopt_cli.run.reproduce import (
    WITHOUT_FORMULA,
    Observation,
    agrees_with,
    conforms,
    observe,
    refuses,
    reproduces,
    returned_arrays,
)

#: The largest number of output elements of an examined case. A single larger case may take longer
#: than all other cases together.
MAX_OUTPUT_ELEMENTS = 1 << 20
#: Largest number of public implementations that are named as examples of a mistake.
MAX_IMPLEMENTATIONS_NAMED = 2
#: A mistake is first tried on this number of failing cases.
FIRST_CASES = 12
#: A likely mistake is first tried on this number of failing cases.
FIRST_CASES_LIKELY = 36
#: If a mistake reproduces only some failing cases, it is combined with at most MAX_ADDED_MISTAKES
#: other mistakes.
MAX_ADDED_MISTAKES = 2
#: A cover may agree with a few failing cases by chance. It is discarded if more than MAX_LEFT_RATIO
#: failing cases remain for each case that the cover reproduces.
MAX_LEFT_RATIO = 3
#: Seconds that the search for other causes may take for each operator. This search comes after the
#: search for known mistakes, and mostly waits for the backend. It ends with counterfactuals, for
#: which COUNTERFACTUAL_SHARE of its time is reserved.
QUERY_SECONDS = 12.0
COUNTERFACTUAL_SHARE = 1 / 3
#: Largest number of equivalent mistakes that are counted.
MAX_EQUIVALENT = 12
#: A file of Linux with two times in nanoseconds: the time for which this thread ran on a processor,
#: and the time for which it waited for one.
SCHEDULER_STATISTICS = Path("/proc/thread-self/schedstat")
NANOSECONDS = 1_000_000_000


def least_seconds(run: float) -> float:
    """Return the time limit of the search, given the duration of the run in seconds."""
    return max(5.0, run / 5)


def explain(
    results: Sequence[Result],
    cases: Mapping[str, Case],
    judging: Judging | None = None,
    *,
    seconds: float = float("inf"),
    query_seconds: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
    ask: ModelRunner | None = None,
) -> list[Explanation]:
    """Explain the failures of each backend in each operator with a formula.

    For all operators, the search first tries single likely mistakes, and then combinations of
    likely mistakes. All other mistakes follow in the same way. The search for other causes comes
    last. In each phase, the operators share the time equally.

    Args:
        results: all results of a run.
        cases: the cases by id.
        judging: how the run judged outputs.
        seconds: limit of the search for known mistakes. Both the processor time of this process and
            the time of the backends count. If the limit ends the search, explanations state that
            some mistakes have not been tried.
        query_seconds: limit of the search for other causes, which may also use the rest of
            ``seconds``; None for :data:`QUERY_SECONDS` for each operator.
        progress: called with the current activity.
        ask: submits a model to the backend with a given name; returns None if the backend fails.
            Without ``ask``, generated inputs cannot confirm mistakes and conditions.
    """
    clock = SearchClock()
    end = clock.now() + seconds
    searches = list(_searches(results, cases, judging or Judging(), progress))
    if ask:
        ask = clock.timed(ask)
        clock.share([search.guarded(search.check_lowered_nodes(ask)) for search in searches], end)
    for likely in (True, False):
        clock.share([search.guarded(search.try_single(likely=likely)) for search in searches], end)
        clock.share(
            [search.guarded(search.try_combined(likely=likely)) for search in searches], end
        )
    if query_seconds is None:
        end = max(end, clock.now() + QUERY_SECONDS * len(searches))
    else:
        end += query_seconds
    for number, search in enumerate(searches):
        share = (end - clock.now()) / (len(searches) - number)
        # Failures for which no cause is found within the time limit remain unexplained.
        with suppress(_OutOfTimeError), search.guard():
            first_share = share * (1 - COUNTERFACTUAL_SHARE)
            limited = ask and clock.limited(ask, clock.now() + first_share)
            search.find_other_cause(limited, first_share)
        if ask:
            with search.guard():
                last_share = share * COUNTERFACTUAL_SHARE
                limited = clock.limited(ask, clock.now() + last_share)
                search.find_counterfactuals(_until_out_of_time(limited), last_share)
    stopped = stopped_after(seconds)
    return [*filter(None, (search.explanation(stopped) for search in searches))]


def stopped_after(seconds: float) -> str:
    """Return the note for a search that reached its time limit."""
    return f"stopped after {round(seconds, 1 if seconds > 1 else 3):g} s"


def note_on_bug(error: Exception) -> str:
    """Return the note for a search that was ended by a bug.

    A bug in the search does not end the run, because the verdict on a backend does not depend on
    the explanation.

    Raises:
        Exception: ``error`` itself, if it is not a bug of onnxopt or if ONNXOPT_DEBUG is set.
    """
    is_bug = not isinstance(error, (OnnxoptError, OSError, MemoryError))
    if not is_bug or failing_operator(error) or is_debugging():
        raise error
    return f"a bug in onnxopt ended the search for causes: {printable(exception_text(error))}"


class _OutOfTimeError(Exception):
    """Raised if the search has exceeded its time limit."""


def _until_out_of_time(ask: ModelRunner) -> ModelRunner:
    """Return a function that reports a timeout instead of raising an error after a time limit."""

    def run_model(
        backend: str, model: onnx.ModelProto, inputs: Mapping[str, Value]
    ) -> Sequence[Value] | Outcome:
        try:
            return ask(backend, model, inputs)
        except _OutOfTimeError:
            return Outcome.TIMEOUT

    return run_model


class SearchClock:
    """Measures the processor time of a search and the time that the backends take.

    Unlike wall time, the measured time hardly depends on the load of the machine.

    Attributes:
        evaluations: the number of evaluations of nodes, see
            :class:`~onnxopt_cli.analysis.explanation.node_examination.SearchLimit`.
    """

    def __init__(self) -> None:
        self.evaluations = 0
        # The sum of two times: the seconds that the backends took, without the seconds in which
        # this process ran or waited for a processor; and the processor time of the processes that
        # worked for the search.
        self._waited = 0.0

    def now(self) -> float:
        """Return the measured seconds since an arbitrary time."""
        return process_time() + self._waited

    def add(self, seconds: float) -> None:
        """Add the processor time of another process that worked for the search."""
        self._waited += seconds

    def timed(self, ask: ModelRunner) -> ModelRunner:
        """Return a function that runs models and counts the time that the backends take.

        The first model of each backend is not counted, because its time includes the start of the
        backend.
        """
        started: set[str] = set()

        def run_model(
            backend: str, model: onnx.ModelProto, inputs: Mapping[str, Value]
        ) -> Sequence[Value] | Outcome:
            self.evaluations += 1
            if backend not in started:
                started.add(backend)
                return ask(backend, model, inputs)
            start, busy = monotonic(), process_time() + _seconds_in_queue()
            try:
                return ask(backend, model, inputs)
            finally:
                busy_seconds = process_time() + _seconds_in_queue() - busy
                self._waited += max(0.0, monotonic() - start - busy_seconds)

        return run_model

    def limited(self, ask: ModelRunner, end: float) -> ModelRunner:
        """Return a function that runs models until a time limit, and raises an error afterwards.

        The error also ends a search whose own computations take long.

        Args:
            ask: runs a model on a backend.
            end: the end of the search, as a value of :meth:`now`.
        """

        def run_model(
            backend: str, model: onnx.ModelProto, inputs: Mapping[str, Value]
        ) -> Sequence[Value] | Outcome:
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
    """Return the seconds for which this thread has waited for a processor; 0 if unknown."""
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
        cases: the failing cases that the mistakes reproduce.
    """

    names: tuple[str, ...]
    mistake: Implementation
    cases: frozenset[Observation] = frozenset()

    def combined(self, base: _Candidate | None) -> _Candidate | None:
        """Return a candidate that also has the mistakes of ``base``; None if this is impossible."""
        if base is None:
            return self
        names, mistake = (*base.names, *self.names), both(base.mistake, self.mistake)
        return _Candidate(names, mistake) if mistake and len({*names}) == len(names) else None


@dataclass(eq=False)
class _Search:
    """The search for explanations of the failures of one backend in one operator.

    Long operations are iterators over small steps, so that several searches can share the time.

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
        self._other_cause: Cause | None = None
        self._bug = ""
        self._began = False
        self._tried_single = False
        self._complete = False
        self._tested_cover = False

    def _report(self, activity: str) -> None:
        self.progress(f"explaining {self.operator.name}: {activity}")

    @property
    def _all_wrong(self) -> frozenset[Observation]:
        return frozenset(self._wrong)

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Catch an exception that a bug of onnxopt raises, and end the search."""
        try:
            yield
        except _OutOfTimeError:
            raise
        except Exception as error:  # noqa: BLE001 - the search may have any bug
            self._bug = note_on_bug(error)

    def guarded(self, steps: Iterator[None]) -> Iterator[None]:
        """Yield the steps of a part of the search; a bug ends the search."""
        with self.guard():
            if not self._bug:
                yield from steps

    # Lowered models -----------------------------------------------------------------------------

    def check_lowered_nodes(self, ask: ModelRunner) -> Iterator[None]:
        """Find wrong primitive nodes in the cases that a backend runs as lowered models.

        A case that fails because of a wrong primitive node does not indicate a mistake of the
        operator.
        """
        failing = [
            result
            for result in self.results
            if result.failing and result.lowered and returned_arrays(result)
        ]
        failing.sort(key=_output_elements)
        submit = _outputs_of(partial(ask, self.backend))
        examples: dict[str, WrongNode] = {}
        for number, result in enumerate(failing):
            # The smallest cases show which primitive operators are wrong. In larger cases, only
            # these operators are tested.
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
        """Read the failing cases, and try single known mistakes.

        Args:
            likely: whether to try the likely mistakes instead of all others.
        """
        if likely:
            yield from self._read_failing()
            self._began = True
        mistakes = [
            mistake
            for mistake in all_known_mistakes(self.operator)
            if is_likely(self.operator, mistake) is likely
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

    def try_combined(self, *, likely: bool) -> Iterator[None]:
        """Try combinations of known mistakes for cases that no single mistake reproduces."""
        if not self._wrong or not (likely or self._tried_single):
            return
        if not self._reproducing and not likely:
            yield from self._try_with_bases([None], self._pairs(), "pairs")
        for _ in range(MAX_ADDED_MISTAKES):
            before = len(self._reproducing)
            bases = self._cover()
            # Single mistakes are tried again on the remaining cases. A mistake may have been
            # dropped because it reproduces none of the cases that were tried first.
            chosen = [*bases, None] if bases else []
            yield from self._try_with_bases(chosen, self._possible, "mistakes")
            if len(self._reproducing) == before:
                break
        if self._reproducing and self._left(self._reproducing) and not likely:
            pairs = self._pairs(published=True)
            yield from self._try_with_bases([None, *self._cover()[:1]], pairs, "pairs")
        self._complete = not likely

    def _pairs(self, *, published: bool = False) -> list[_Candidate]:
        """Return pairs of listed mistakes, and pairs of an ignored attribute and a listed mistake.

        The attribute ``known_mistakes`` of the operator contains the listed mistakes.

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
            candidate
            for candidate in self._possible
            if ignores_attribute(self.operator, candidate.mistake)
        ]
        couples = [*product(ignoring, chosen), *combinations(chosen, 2)]
        return [*filter(None, (second.combined(first) for first, second in couples))]

    def _try_with_bases(
        self, bases: Sequence[_Candidate | None], candidates: Sequence[_Candidate], what: str
    ) -> Iterator[None]:
        """Try each candidate, combined with each base, on the cases that are not yet reproduced.

        Args:
            bases: candidates to which mistakes are added; None to try a candidate by itself.
            candidates: the mistakes that are added.
            what: the kind of candidates, for the progress display.
        """
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
        """Record a candidate if it reproduces failing cases and agrees with passing cases.

        Args:
            candidate: the mistakes.
            cases: failing cases; the candidate is recorded if it reproduces one of them.
            first: the number of cases that are tried first. All other cases are tried only if the
                candidate reproduces one of the first cases.
        """
        reproduced = []
        # Once a recorded candidate reproduces all cases, other such candidates are only counted as
        # equivalent mistakes.
        solved = any(len(candidate.cases) == len(self._wrong) for candidate in self._reproducing)
        few = spread(self._in_order(cases), first)
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
        """Return whether a mistake computes right outputs in the cases that the backend passes."""
        for observation in islice(self._read_passing(), most):
            if not agrees_with(mistake, observation, self.judging):
                return False
            yield
        return True

    def _left(self, candidates: Iterable[_Candidate]) -> frozenset[Observation]:
        """Return the cases with wrong values that no candidate reproduces."""
        return self._all_wrong.difference(*(candidate.cases for candidate in candidates))

    def _cover(self, without: frozenset[str] = frozenset()) -> list[_Candidate]:
        """Return a small set of candidates that together reproduce all reproducible cases.

        The first candidate is the one that reproduces the most cases. Each further candidate is the
        one that reproduces the most of the remaining cases; it is returned with only those cases.
        Ties are broken by three criteria, in this order: fewer mistakes, no mistake in rounding,
        and more refusals of nodes that the backend also refuses.
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
        """Return the cover without the mistakes for which :meth:`_is_supported` is false.

        If a backend has a mistake, the mistake must be part of every combination that reproduces an
        affected case. The result is empty if too many failing cases remain.
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
        """Return whether the candidates that contain a mistake reproduce half of its failing cases.

        A failing case belongs to the mistake if the mistake makes an output of the case wrong.
        """
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

    def find_other_cause(self, ask: ModelRunner | None, seconds: float) -> None:
        """Test the cover on generated inputs, then look for a cause of the remaining failures.

        Args:
            ask: submits a model to a backend, and raises an error after the time limit; None if no
                backend is available.
            seconds: the time limit.
        """
        submit = _submitting(_outputs_of(partial(ask, self.backend))) if ask else None
        cover = self._uncontradicted_cover(submit)
        self._tested_cover = True
        remaining = self._in_order(self._left(cover))
        if not remaining:
            return
        self._report("conditions of failing cases")
        if submit and changes_when_repeated(remaining, submit):
            self._other_cause = Cause(CHANGES_WHEN_REPEATED, case_ids(remaining))
            return
        explained = self._in_order(self._all_wrong.difference(remaining))
        passing = [*self._read_passing(), *explained]
        mistakes = [candidate.mistake for candidate in cover]
        self._other_cause = CauseSearch(
            self.operator, self.judging, remaining, passing, mistakes, submit, seconds
        ).cause()

    def find_counterfactuals(self, ask: ModelRunner, seconds: float) -> None:
        """Look for counterfactuals of the failures that have no cause.

        The arguments are those of :meth:`find_other_cause`.
        """
        cover = self._supported_cover() if self._wrong else []
        remaining = self._in_order(self._left(cover))
        if self._other_cause or not remaining:
            return
        self._report("counterfactuals of failing cases")
        submit = _submitting(_outputs_of(partial(ask, self.backend)))
        mistakes = [candidate.mistake for candidate in cover]
        self._other_cause = CauseSearch(
            self.operator, self.judging, remaining, (), mistakes, submit, seconds
        ).counterfactual_cause()

    def _uncontradicted_cover(self, submit: SubmitCall | None) -> list[_Candidate]:
        """Return a cover that generated inputs do not contradict; drop other candidates."""
        cover = self._supported_cover() if self._wrong else []
        while contradicted := self._contradicted(cover, submit):
            # Inputs that contradict a combination may still agree with one of its mistakes.
            self._reproducing = [
                candidate
                for candidate in self._reproducing
                if not contradicted <= {*candidate.names}
            ]
            cover = self._supported_cover()
        return cover

    def _contradicted(
        self, cover: Sequence[_Candidate], submit: SubmitCall | None
    ) -> frozenset[str]:
        """Return the mistakes of the first candidate that generated inputs contradict, if any."""
        mistakes = [candidate.mistake for candidate in cover]
        for candidate in cover:
            reproduced = self._in_order(candidate.cases)
            if contradicts(candidate.mistake, reproduced, self._passing, mistakes, submit):
                return frozenset(candidate.names)
        return frozenset()

    # Reading cases ------------------------------------------------------------------------------

    def _read_failing(self) -> Iterator[None]:
        """Read the failing cases, and count the cases on which no mistake can be tried."""
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
        # Small cases come first, because they are the fastest.
        self._wrong.sort(key=lambda observation: observation.call.size)

    def _observed(self, result: Result) -> Observation | str:
        observation = observe(result, self.cases.get(result.case), self.judging)
        foreign = (
            isinstance(observation, Observation) and observation.call.operator is not self.operator
        )
        return WITHOUT_FORMULA if foreign else observation

    def _read_passing(self) -> Iterator[Observation]:
        """Yield the passing cases on which mistakes can be tried; each case is read only once."""
        yield from self._passing
        while self._unread_passing:
            observation = self._observed(self._unread_passing.pop(0))
            if isinstance(observation, Observation):
                self._passing.append(observation)
                yield observation

    def _in_order(self, cases: Iterable[Observation]) -> list[Observation]:
        """Return cases in the order of the search, the smallest first."""
        chosen = frozenset(cases)
        return [observation for observation in self._wrong if observation in chosen]

    # Results ------------------------------------------------------------------------------------

    def explanation(self, stopped: str) -> Explanation | None:
        """Return the result of the search; None if no failing case was examined.

        Args:
            stopped: a description of the time limit, for the note if the limit ended the search.
        """
        with self.guard():
            if self._began and not self._bug:
                return self._found_explanation(stopped)
        failing = Counter(str(result.outcome) for result in self.results if result.failing)
        note = self._bug or f"{UNEXPLAINED}, {stopped}"
        return Explanation(
            self.backend, self.operator.name, (), {NOT_TRIED: failing}, note, bool(self._bug)
        )

    def _found_explanation(self, stopped: str) -> Explanation | None:
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
        if self._other_cause:
            causes = (*causes, self._other_cause)
            accounted = frozenset(self._other_cause.cases)
            remaining = frozenset(each for each in remaining if each.case not in accounted)
        unexplained = {UNEXPLAINED: Counter({"fail": len(remaining)})} if remaining else {}
        if cover:
            unexplained |= {"not reproduced": errors, NOT_TRIED: self._not_tried}
        else:
            unexplained[NOT_TRIED] = self._not_tried + errors
        note = self._note(cover, stopped)
        causes = (*node_causes, *causes)
        complete = self._complete and (self._tested_cover or not cover)
        return Explanation(self.backend, self.operator.name, causes, unexplained, note, complete)

    def _note(self, cover: Sequence[_Candidate], stopped: str) -> str:
        if cover or (self._other_cause and self._other_cause.known_mistakes):
            notes = [] if self._complete else [f"{stopped}, not all other mistakes tried"]
            if not self._tested_cover and cover:
                notes.append("the time limit ended the tests with generated inputs")
            return "; ".join(notes)
        if self._other_cause:
            if self._complete:
                return "no known mistake and no pair of them reproduces this"
            return f"{stopped}, not all known mistakes tried"
        if self._complete:
            return "no known mistake and no pair of them reproduces"
        if self._tried_single:
            return f"{stopped}, before all pairs of mistakes were tried; no single one reproduces"
        return f"{stopped}, before all known mistakes were tried; none of those tried reproduces"

    def _causes(self, cover: Sequence[_Candidate]) -> tuple[tuple[Cause, ...], Counter[str]]:
        """Return the causes that a cover states, and the number of errors without a cause."""
        causes: list[Cause] = []
        errors = list(self._refused)
        for candidate in cover:
            text, seen_in = " and ".join(map(repr, candidate.names)), candidate.mistake.seen_in
            named = f", as in {some_of(seen_in, MAX_IMPLEMENTATIONS_NAMED)}" if seen_in else ""
            accounted = [
                observation for observation in errors if refuses(candidate.mistake, observation)
            ]
            errors = [observation for observation in errors if observation not in accounted]
            ids = case_ids([*self._in_order(candidate.cases), *accounted])
            causes.append(Cause(text + named + self._equivalents(candidate), ids, candidate.names))
        return tuple(causes), +Counter({str(Outcome.ERROR): len(errors)})

    def _equivalents(self, candidate: _Candidate) -> str:
        """Return a note on the number of other mistakes with the same effect; may be empty."""
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


def _outputs_of(
    ask: Callable[[onnx.ModelProto, Mapping[str, Array]], Sequence[Value] | Outcome],
) -> Submit:
    """Return a function that submits a model and returns its outputs, or None.

    The result is None if the backend fails or an output is not a tensor.
    """

    def submit(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> Sequence[Array] | None:
        returned = ask(model, inputs)
        arrays = [value for value in returned if isinstance(value, np.ndarray)]
        return arrays if len(arrays) == len(returned) else None

    return submit


def _submitting(ask: Submit) -> SubmitCall:
    """Return a function that converts a node to a model, and submits the model."""
    return lambda call: ask(*call_model(call))


def _has_right_values(result: Result) -> bool:
    """Return whether all values of a result are right, even if the case failed."""
    return result.outcome is Outcome.PASS or (bool(result.diffs) and not result.wrong)


def _output_elements(result: Result) -> int:
    return sum(diff.elements for diff in result.diffs)
