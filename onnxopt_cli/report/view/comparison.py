"""Compare two runs: outcomes, accuracy and durations."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from onnxopt_cli.core.record import RunRecord
from onnxopt_cli.core.result import Diff, Outcome, Result, short_count, short_error
from onnxopt_cli.core.text import printable
from onnxopt_cli.report.view.result_view import verdict_options

# The ranks of outcomes; a smaller rank is better. An outcome without an entry has the rank _WORST.
_RANKS = {Outcome.PASS: 0, Outcome.SKIP: 1, Outcome.UNSUPPORTED: 2, Outcome.FAIL: 3}
_WORST = 4


class Direction(StrEnum):
    """Whether a change is an improvement."""

    WORSE = "worse"
    BETTER = "better"
    UNRANKED = "other"
    SLOWER = "slower"


class Subject(StrEnum):
    """The property of a result that has changed."""

    OUTCOME = "outcome"
    ACCURACY = "accuracy"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Change:
    """A difference between two runs.

    Attributes:
        direction: whether the change is an improvement.
        case: the case's id.
        backend: the backend in the new run; if the new run lacks the case, the backend in the old
            run.
        subject: what changed.
        what: the name of the output if its error changed; otherwise the subject.
        before: the old value; empty if the old run has no result.
        now: the new value; empty if the new run has no result.
    """

    direction: Direction
    case: str
    backend: str
    subject: Subject
    what: str
    before: str
    now: str


def compare_runs(old: RunRecord, new: RunRecord) -> list[Change]:
    """Return all changes of outcomes, followed by all changes of accuracy.

    In each of these groups, deteriorations come first. Backends with the same name are compared. If
    each run has a single backend, these two backends are compared.
    """
    before, after = _by_case(old), _by_case(new)
    changes = [
        change
        for key in dict.fromkeys([*after, *before])
        for change in _changes(before.get(key), after.get(key))
    ]
    directions = list(Direction)
    return sorted(
        changes,
        key=lambda change: (change.subject != Subject.OUTCOME, directions.index(change.direction)),
    )


def have_common_results(old: RunRecord, new: RunRecord) -> bool:
    """Return whether two runs have a case in common, or one of the runs has no results."""
    before, after = _by_case(old), _by_case(new)
    return not (before and after) or not before.keys().isdisjoint(after)


def other_options(old: RunRecord, new: RunRecord) -> str:
    """Describe differences in options that change verdicts; empty without a difference."""
    names = [
        name
        for name in {**old.options, **new.options}
        if old.options.get(name) != new.options.get(name)
    ]
    before, now = (
        printable(shlex.join(verdict_options({name: run.options.get(name) for name in names})))
        or "none"
        for run in (old, new)
    )
    return f"the options differ: {before} before, {now} now" if before != now else ""


def slower_cases(old: Sequence[RunRecord], new: Sequence[RunRecord]) -> list[Change]:
    """Return the cases whose time has grown by more than the noise, the largest growth first.

    For each case, the ratio of the largest to the smallest time is computed. The noise is the
    median of these ratios. A case is slower if two conditions hold: every new time exceeds every
    old time, and the ratio of the smallest new time to the smallest old time exceeds the fourth
    power of the noise. If there is only one old run or only one new run, the noise is unknown and
    no case is returned.

    Args:
        old: the old run and its repetitions.
        new: the new run and its repetitions.
    """
    before, after = _times(old), _times(new)
    pairs = [
        (key, before[key], times)
        for key, times in after.items()
        if len(before.get(key, ())) > 1 and len(times) > 1
    ]
    if not pairs:
        return []
    noise = median(max(times) / min(times) for _, *sides in pairs for times in sides)
    slower = []
    for (case, backend), old_times, new_times in pairs:
        was, now = min(old_times), min(new_times)
        if now > max(old_times) and now > was * noise**4:
            texts = (f"{1000 * seconds:.3g} ms" for seconds in (was, now))
            name = backend or new[0].backends[0].name
            slower.append(
                (now / was, Change(Direction.SLOWER, case, name, Subject.TIME, "time", *texts))
            )
    return [change for _, change in sorted(slower, key=lambda item: -item[0])]


def _times(records: Sequence[RunRecord]) -> dict[tuple[str, str], list[float]]:
    """Return the times in seconds of each case with outputs, one time per run."""
    times: dict[tuple[str, str], list[float]] = {}
    for record in records:
        for key, result in _by_case(record).items():
            if result.diffs and result.seconds > 0:
                times.setdefault(key, []).append(result.seconds)
    return times


def is_regression(change: Change, *, accuracy: bool) -> bool:
    """Return whether a change is a worse outcome or, with ``accuracy``, a larger error."""
    gating = {Subject.OUTCOME, Subject.ACCURACY} if accuracy else {Subject.OUTCOME}
    return change.direction is Direction.WORSE and change.subject in gating


def _by_case(record: RunRecord) -> dict[tuple[str, str], Result]:
    single = len(record.backends) == 1
    return {(result.case, "" if single else result.backend): result for result in record.results}


def _changes(before: Result | None, now: Result | None) -> Iterator[Change]:
    result = now or before
    was, is_now = (_word(before), _word(now))
    if result and was != is_now:
        direction = _direction(before, now)
        place = result.case, result.backend
        yield Change(direction, *place, Subject.OUTCOME, "outcome", was, is_now)
    elif before and now:
        old = {diff.name: diff for diff in before.diffs}
        for diff in now.diffs:
            if diff.name in old:
                yield from _accuracy(now.case, now.backend, old[diff.name], diff)


def _word(result: Result | None) -> str:
    if result is None:
        return ""
    return f"{result.outcome} (flaky)" if result.flaky else result.outcome.value


def _direction(before: Result | None, now: Result | None) -> Direction:
    """Return the direction of a change of outcome; UNRANKED if only one run has a result."""
    if before is None or now is None or Outcome.NOT_RUN in {before.outcome, now.outcome}:
        return Direction.UNRANKED
    return _compared(_rank(before), _rank(now))


def _rank(result: Result) -> float:
    """Return the rank of an outcome; larger is worse. Flaky failures rank before other failures."""
    rank = _RANKS.get(result.outcome, _WORST)
    return min(rank, 2.5) if result.flaky else rank


def _compared(old: float, new: float) -> Direction:
    if old == new:
        return Direction.UNRANKED
    return Direction.WORSE if new > old else Direction.BETTER


def _accuracy(case: str, backend: str, old: Diff, new: Diff) -> Iterator[Change]:
    """Yield the change of an output's error, by the first of two measures that has changed.

    The first measure is error / tolerance or, if the tolerances differ, the absolute error. The
    second measure is the distance in ulp.
    """
    if str(old.tolerance) == str(new.tolerance):
        measures = [("error / tolerance", old.tolerance_used, new.tolerance_used)]
    else:
        measures = [("abs error", old.max_absolute, new.max_absolute)]
    if old.max_ulp is not None and new.max_ulp is not None:
        measures.append(("ulp", old.max_ulp, new.max_ulp))
    for unit, was, now in measures:
        direction = _compared(_size(was), _size(now))
        if direction is not Direction.UNRANKED:
            before, after = (_measured(number, unit) for number in (was, now))
            subject = Subject.ACCURACY
            yield Change(direction, case, backend, subject, new.name, before, after)
            return


def _measured(number: float, unit: str) -> str:
    text = _number(number)
    return f"{unit} {text}" if unit == "error / tolerance" else f"{text} {unit}"


def _size(number: float) -> float:
    return math.inf if math.isnan(number) else number


def _number(number: float) -> str:
    return short_count(number) if isinstance(number, int) else short_error(number)
