"""What got better and what got worse from one run to another. Nothing here prints."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from rich.table import Table
from rich.text import Text

from onnxopt_cli.core import numbers
from onnxopt_cli.core.diff import Diff
from onnxopt_cli.core.record import RunRecord
from onnxopt_cli.core.result import Outcome, Result
from onnxopt_cli.core.text import printable
from onnxopt_cli.report.diff_text import verdict_options
from onnxopt_cli.report.terminal import plain_table
from onnxopt_cli.report.verdict import in_words

# Outcomes that are not named here are the worst.
_RANKS = {Outcome.PASS: 0, Outcome.SKIP: 1, Outcome.UNSUPPORTED: 2, Outcome.FAIL: 3}
_WORST = 4


class Direction(StrEnum):
    """Where a change leads."""

    WORSE = "worse"
    BETTER = "better"
    OTHER = "other"
    SLOWER = "slower"


_STYLES = dict(zip(Direction, ("bold red", "green", "dim", "yellow"), strict=True))


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two runs.

    Attributes:
        direction: where it leads.
        case: the case's id.
        backend: the backend in the new run, or in the old one where the case is gone.
        what: the outcome, or an output.
        before: how it was; empty where there was no result.
        now: how it is; empty where there is no result.
    """

    direction: Direction
    case: str
    backend: str
    what: str
    before: str
    now: str


def compare_runs(old: RunRecord, new: RunRecord) -> list[Change]:
    """Return all that changed: outcomes, then accuracy, each by what got worse first.

    Backends are compared by name; where each run has but one, these two are compared.
    """
    before, after = _by_case(old), _by_case(new)
    changes = [
        change
        for key in dict.fromkeys([*after, *before])
        for change in _changes(before.get(key), after.get(key))
    ]
    return sorted(changes, key=lambda it: (it.what != "outcome", [*Direction].index(it.direction)))


def other_options(old: RunRecord, new: RunRecord) -> str:
    """Say how two runs differ in options that change verdicts; empty if they do not."""
    every = {**old.options, **new.options}
    names = [it for it in every if old.options.get(it) != new.options.get(it)]
    said = (verdict_options({it: run.options.get(it) for it in names}) for run in (old, new))
    before, now = (printable(shlex.join(it)) or "none" for it in said)
    return f"the options differ: {before} before, {now} now" if before != now else ""


def slower_cases(old: Sequence[RunRecord], new: Sequence[RunRecord]) -> list[Change]:
    """Return what took a backend longer by more than the noise, the most by factor first.

    Of each case the least time of its runs counts. Every new one must exceed every old one, and the
    least the least by a factor that is the fourth power of what a case's own times vary by, in the
    median case. One run a side knows no noise, so it tells nothing.

    Args:
        old: the old run and repeats of it.
        new: the new one, likewise.
    """
    before, after = _times(old), _times(new)
    pairs = [(key, before[key], times) for key, times in after.items() if key in before]
    pairs = [it for it in pairs if len(it[1]) > 1 and len(it[2]) > 1]
    if not pairs:
        return []
    noise = median(max(times) / min(times) for _, *sides in pairs for times in sides)
    found = []
    for (case, backend), were, are in pairs:
        was, now = min(were), min(are)
        if now > max(were) and now > was * noise**4:
            said = (f"{1000 * seconds:.3g} ms" for seconds in (was, now))
            name = backend or new[0].backends[0].name
            found.append((now / was, Change(Direction.SLOWER, case, name, "time", *said)))
    return [change for _, change in sorted(found, key=lambda it: -it[0])]


def _times(records: Sequence[RunRecord]) -> dict[tuple[str, str], list[float]]:
    """Return the seconds that a backend took in each run to return outputs of a case."""
    times: dict[tuple[str, str], list[float]] = {}
    for record in records:
        for key, result in _by_case(record).items():
            if result.diffs and result.seconds > 0:
                times.setdefault(key, []).append(result.seconds)
    return times


def comparison_table(changes: Sequence[Change]) -> Table:
    """Return changes as a table; one backend stands above it, and takes no room of its columns."""
    backends = {it.backend for it in changes}
    many = len(backends) > 1
    table = plain_table((), ("", "case", *["backend"] * many, "what", "before", "now"))
    for it in changes:
        direction = Text(it.direction.value, _STYLES[it.direction])
        words = it.case, *[it.backend] * many, it.what, it.before or "-", it.now or "-"
        table.add_row(direction, *map(Text, map(printable, words)))
    if not many:
        table.title, table.title_justify = Text(printable(*backends)), "left"
    return table


def comparison_verdict(changes: Sequence[Change]) -> Text:
    """Return the changes in numbers."""
    if not changes:
        return Text("nothing changed", "green")
    counts = Counter(change.direction for change in changes)
    # Most comparisons have no times.
    said = [it for it in Direction if counts[it] or it is not Direction.SLOWER]
    return Text(in_words({it: counts[it] for it in said}))


def _by_case(record: RunRecord) -> dict[tuple[str, str], Result]:
    single = len(record.backends) == 1
    return {(it.case, "" if single else it.backend): it for it in record.results}


def _changes(before: Result | None, now: Result | None) -> Iterator[Change]:
    there = now or before
    was, is_now = (_word(before), _word(now))
    if there and was != is_now:
        direction = _direction(before, now)
        yield Change(direction, there.case, there.backend, "outcome", was, is_now)
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
    """Say where a change of outcome leads; a case that came or went leads nowhere."""
    if before is None or now is None or Outcome.NOT_RUN in {before.outcome, now.outcome}:
        return Direction.OTHER
    return _towards(_rank(before), _rank(now))


def _rank(result: Result) -> float:
    """Return how bad an outcome is: what passes now and then is between passing and failing."""
    rank = _RANKS.get(result.outcome, _WORST)
    return min(rank, 2.5) if result.flaky else rank


def _towards(old: float, new: float) -> Direction:
    if old == new:
        return Direction.OTHER
    return Direction.WORSE if new > old else Direction.BETTER


def _accuracy(case: str, backend: str, old: Diff, new: Diff) -> Iterator[Change]:
    """Yield how an output's error changed, in tolerances where both have the same, and in ulp."""
    if str(old.tolerance) == str(new.tolerance):
        measures = [("error / tolerance", old.tolerance_used, new.tolerance_used)]
    else:
        measures = [("abs error", old.max_absolute, new.max_absolute)]
    if old.max_ulp is not None and new.max_ulp is not None:
        measures.append(("ulp", old.max_ulp, new.max_ulp))
    for unit, was, now in measures:
        direction = _towards(_size(was), _size(now))
        if direction is not Direction.OTHER:
            before, after = (_measured(number, unit) for number in (was, now))
            yield Change(direction, case, backend, new.name, before, after)
            return


def _measured(number: float, unit: str) -> str:
    shown = _number(number)
    return f"{unit} {shown}" if unit == "error / tolerance" else f"{shown} {unit}"


def _size(number: float) -> float:
    return math.inf if math.isnan(number) else number


def _number(number: float) -> str:
    return numbers.count(number) if isinstance(number, int) else numbers.error(number)
