"""Which known mistake, or which two, reproduces what a failing backend returned.

An explanation rests on wrong values. It reproduces all of them that were kept, and fails no case
that the backend passes. An error may have any reason: a mistake that values support may account for
errors too, and errors alone are never explained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from time import monotonic

from onnxopt_cli.core.case import Case
from onnxopt_cli.core.record import Explanation
from onnxopt_cli.core.result import Outcome, Result
from onnxopt_cli.formula.operator import Operator
from onnxopt_cli.operators import OPERATORS
from onnxopt_cli.readings.implementation import Implementation
from onnxopt_cli.readings.mistakes.deviate import all_deviations, distinct
from onnxopt_cli.run.answer_key import JudgeOptions
from onnxopt_cli.run.reproduce import (
    Observation,
    conforms,
    observe,
    pairs,
    refuses,
    reproduces,
    returned_arrays,
)

#: Cases with larger outputs are not read: reading alone may take longer than all the rest.
_MOST_ELEMENTS = 1 << 20
#: Names of implementations that are known to do so take at most so many columns, but for the first.
_SEEN = 40


def least_seconds(run: float) -> float:
    """Return for how long to look for mistakes after a run of so many seconds."""
    return max(10.0, run / 5)


def explain(
    results: Sequence[Result],
    cases: Mapping[str, Case],
    judging: JudgeOptions | None = None,
    *,
    seconds: float = float("inf"),
    progress: Callable[[str], None] = lambda _: None,
) -> list[Explanation]:
    """Explain the failures of each backend in each operator with a formula.

    Single mistakes are tried for all of them first, then pairs; in both each has an equal part of
    the time.

    Args:
        results: all results of a run.
        cases: the cases by id.
        judging: how the run judged outputs.
        seconds: how long to look; the explanations say what was left.
        progress: called now and then with what is going on.
    """
    end = monotonic() + seconds
    searches = list(_searches(results, cases, judging or JudgeOptions()))
    _share([search.alone() for search in searches], end, progress)
    _share([search.together() for search in searches], end, progress)
    stopped = f"stopped after {round(seconds, 1 if seconds > 1 else 3):g} s"
    found = (search.explanation(stopped) for search in searches)
    return [it for it in found if it is not None]


def _share(tasks: Sequence[Iterator[str]], end: float, progress: Callable[[str], None]) -> None:
    """Go on with each task in turn, each for an equal part of the time that is left."""
    while tasks and monotonic() < end:
        unfinished = []
        for place, task in enumerate(tasks):
            now = monotonic()
            until = now + (end - now) / (len(tasks) - place)
            for doing in task:
                progress(doing)
                if monotonic() >= until:
                    unfinished.append(task)
                    break
        tasks = unfinished


def _searches(
    results: Sequence[Result], cases: Mapping[str, Case], judging: JudgeOptions
) -> Iterator[_Search]:
    known: dict[tuple[str, ...], Operator] = {(operator.name,): operator for operator in OPERATORS}
    groups: dict[tuple[str, Operator], list[Result]] = {}
    for result in results:
        case = cases.get(result.case)
        operator = known.get(result.operators or (case and case.operators) or ())
        if operator is not None:
            groups.setdefault((result.backend, operator), []).append(result)
    for (backend, operator), group in groups.items():
        if any(it.outcome is Outcome.FAIL and returned_arrays(it) for it in group):
            yield _Search(backend, operator, group, cases, judging)


class _Search:
    """The search for what explains the failures of a backend in an operator.

    What takes long is an iterator over small steps, of which each says what it is at.
    """

    def __init__(
        self,
        backend: str,
        operator: Operator,
        results: Sequence[Result],
        cases: Mapping[str, Case],
        judging: JudgeOptions,
    ) -> None:
        self._backend = backend
        self._operator = operator
        self._failing = [it for it in results if it.failing]
        passed = sorted(filter(_is_right, results), key=_elements)
        self._passed = [it for it in passed if _elements(it) <= _MOST_ELEMENTS]
        self._cases = cases
        self._judging = judging
        self._wrong: list[Observation] = []
        self._refused: list[Observation] = []
        self._right: list[Observation] = []
        self._untried: Counter[str] = Counter()
        self._fitting: list[Implementation] = []
        self._began = False
        self._tried_alone = False
        self._complete = False

    def alone(self) -> Iterator[str]:
        """Read the failing cases, and try each known mistake alone."""
        yield from self._read_failing()
        self._began = True
        if self._wrong:
            yield from self._try(all_deviations(self._operator), "mistakes")
        self._tried_alone = True
        self._complete = bool(self._fitting)

    def together(self) -> Iterator[str]:
        """Try two known mistakes at once, if no single one will do."""
        if self._tried_alone and self._wrong and not self._fitting:
            yield from self._try(tuple(pairs(self._operator)), "pairs")
            self._complete = True

    def explanation(self, stopped: str) -> Explanation | None:
        """Return what the search has found; None if there was nothing to look for.

        Args:
            stopped: says when the search was stopped, if it was.
        """
        if not self._began:
            failing = Counter(str(it.outcome) for it in self._failing)
            return self._explanation(f"not explained, {stopped}", (), {"not tried": failing})
        if not self._wrong:
            return None
        if self._fitting:
            return self._named(stopped)
        if self._complete:
            found = "none of the known mistakes, nor two of them, reproduces"
        elif self._tried_alone:
            found = f"{stopped}, before all pairs of mistakes were tried; no single one reproduces"
        else:
            found = f"{stopped}, before all known mistakes were tried; none so far reproduces"
        others = {"not tried": self._untried + _errors(self._refused)}
        return self._explanation(found, self._wrong, others, complete=self._complete)

    def _read_failing(self) -> Iterator[str]:
        """Read the cases that failed, and count those that nothing can be tried on."""
        wrong: list[Observation] = []
        refused: list[Observation] = []
        untried = Counter[str]()
        for result in self._failing:
            seen: Observation | str = str(result.outcome)
            if _elements(result) > _MOST_ELEMENTS:
                seen = "large"
            elif result.outcome in (Outcome.FAIL, Outcome.ERROR):
                seen = self._evidence(result)
            if isinstance(seen, str):
                untried[seen] += 1
            else:
                (wrong if seen.returned else refused).append(seen)
            yield f"explaining {self._operator.name}"
        # Small cases first: most candidates fall at the first one.
        self._wrong = sorted(wrong, key=lambda it: it.size)
        self._refused, self._untried = refused, untried

    def _evidence(self, result: Result) -> Observation | str:
        seen = observe(result, self._cases.get(result.case), self._judging)
        strange = isinstance(seen, Observation) and seen.call.operator is not self._operator
        return "without formula" if strange else seen

    def _try(self, candidates: Sequence[Implementation], what: str) -> Iterator[str]:
        for number, candidate in enumerate(candidates):
            doing = f"explaining {self._operator.name}: {number} of {len(candidates)} {what}"
            yield doing
            if (yield from self._fits(candidate, doing)):
                self._fitting.append(candidate)

    def _fits(self, candidate: Implementation, doing: str) -> Generator[str, None, bool]:
        """Tell whether a candidate reproduces what failed, and passes what the backend passed."""
        for seen in self._wrong:
            if not reproduces(candidate, seen, self._judging):
                return False
            yield doing
        for seen in self._read_passed():
            if not conforms(candidate.run(seen.call), seen, self._judging):
                return False
            yield doing
        return True

    def _read_passed(self) -> Iterator[Observation]:
        """Yield the cases that passed and that something can be tried on."""
        yield from self._right
        while self._passed:
            seen = self._evidence(self._passed.pop(0))
            if isinstance(seen, Observation):
                self._right.append(seen)
                yield seen

    def _named(self, stopped: str) -> Explanation:
        """Name the mistake that accounts for most errors, the first of them that do."""
        fitting = distinct(self._operator, self._fitting)
        refused = [[it for it in self._refused if refuses(each, it)] for each in fitting]
        first, mine = max(zip(fitting, refused, strict=True), key=lambda pair: len(pair[1]))
        found = f"consistent with {first.name!r}{_seen_in(first)}"
        if not self._complete:
            found += f" ({stopped}, not all others tried)"
        elif fitting[1:]:
            found += f" (or {len(fitting) - 1} more that do the same here)"
        rest = [it for it in self._refused if it not in mine]
        return self._explanation(
            found,
            [*self._wrong, *mine],
            {"not reproduced": _errors(rest), "not tried": self._untried},
            deviations=(first.name,),
            complete=self._complete,
        )

    def _explanation(
        self,
        found: str,
        seen: Iterable[Observation],
        others: Mapping[str, Mapping[str, int]],
        *,
        deviations: tuple[str, ...] = (),
        complete: bool = False,
    ) -> Explanation:
        return Explanation.of(
            self._backend,
            self._operator.name,
            found,
            [each.case for each in seen],
            others,
            deviations=deviations,
            complete=complete,
        )


def _is_right(result: Result) -> bool:
    """Tell whether a backend returned what is right, whatever else it did."""
    values = bool(result.diffs) and all(diff.agrees for diff in result.diffs)
    return result.outcome is Outcome.PASS or values


def _elements(result: Result) -> int:
    return sum(diff.elements for diff in result.diffs)


def _errors(refused: Sequence[Observation]) -> Counter[str]:
    return Counter({str(Outcome.ERROR): len(refused)} if refused else {})


def _seen_in(implementation: Implementation) -> str:
    """Return which public implementations are known to do so, as many as there is room for."""
    shown: list[str] = []
    for name in implementation.seen_in:
        if shown and len(", ".join([*shown, name])) > _SEEN:
            break
        shown.append(name)
    left = len(implementation.seen_in) - len(shown)
    more = f" and {left} more" if left else ""
    return f", as in {', '.join(shown)}{more}" if shown else ""
