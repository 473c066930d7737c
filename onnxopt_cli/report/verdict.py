"""What became of a run, in words and counts that every report shows alike."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import TypeVar

from onnxopt_cli.backends.specification import declared_math
from onnxopt_cli.cases.select import CAPABILITIES
from onnxopt_cli.core.record import SUITE, RunRecord
from onnxopt_cli.core.result import (
    ABSOLUTE_ONLY,
    HARMLESS,
    NOT_ITS_FAULT,
    Outcome,
    Result,
)
from onnxopt_cli.core.text import clipped, printable
from onnxopt_cli.core.tolerance import Relative
from onnxopt_cli.workers.interruption import INTERRUPTED

#: Reasons that a sentence has room for, and characters of each.
_REASONS = 3
_REASON = 200
Word = TypeVar("Word", bound=StrEnum)


class Conformity(StrEnum):
    """What all results of a backend come to; ``CONFORMS`` alone says that nothing is wrong."""

    CONFORMS = "conforms"
    EXPECTED_FAILURES = "fails only as expected"
    NOT_STARTED = "could not be started"
    NOT_TESTED = "was not tested"
    NOT_JUDGED = "was not judged in all cases"
    DOES_NOT_CONFORM = "does not conform"


# What some passes rest on, and what their notes say.
_RESTS_ON = {
    "by the second reading of a contested question": "contested",
    f"with {ABSOLUTE_ONLY}": ABSOLUTE_ONLY,
}
_WORDS: Mapping[int | None, str] = {
    None: "did not finish",
    0: Conformity.CONFORMS.value,
    1: Conformity.DOES_NOT_CONFORM.value,
    2: "has invalid cases or expectations",
    4: "has a backend that could not be started",
    5: "was not tested",
    **dict.fromkeys(INTERRUPTED, "was interrupted"),
}


@dataclass(frozen=True, slots=True)
class Tally:
    """A backend's results, counted.

    Attributes:
        name: the backend as the user asked for it.
        version: the implementation that answered.
        results: all of its results.
        outcomes: how often each occurred, in the order of their definition.
        lowered: how many cases ran as primitive operators.
        said: what they come to.
    """

    name: str
    version: str
    results: Sequence[Result]
    outcomes: Mapping[Outcome, int]
    lowered: int
    said: Conformity


def is_expected_failure(result: Result) -> bool:
    """Return whether a result is one that an expectation file predicts, and that is no pass."""
    return result.conforms and result.outcome not in HARMLESS


def conformity(results: Sequence[Result]) -> Conformity:
    """Return what all results of a backend come to."""
    against = {result.outcome for result in results if not result.conforms}
    if any(result.not_started for result in results):
        return Conformity.NOT_STARTED
    if all(result.outcome is Outcome.SKIP for result in results):
        return Conformity.NOT_TESTED
    if against:
        judged = not against <= NOT_ITS_FAULT
        return Conformity.DOES_NOT_CONFORM if judged else Conformity.NOT_JUDGED
    if any(map(is_expected_failure, results)):
        return Conformity.EXPECTED_FAILURES
    return Conformity.CONFORMS


def verdict(record: RunRecord) -> str:
    """Say what became of the run: ``conforms``, ``does not conform``, ``was interrupted``."""
    code = record.exit_code
    if code == 0 and any(map(is_expected_failure, record.results)):
        return Conformity.EXPECTED_FAILURES.value
    return _WORDS.get(code, f"ended with exit code {code}")


def scope(record: RunRecord) -> str:
    """Say what was asked, what was left out, and how it was judged; empty if nothing is known."""
    suites = [
        f"{name.removeprefix(SUITE)}@{version}"
        for name, version in record.versions.items()
        if name.startswith(SUITE)
    ]
    left_out = record.left_out.items()
    parts = [", ".join(suites), *(f"without {name} ({why})" for name, why in left_out)]
    declaring = [it.name for it in record.backends if ",math=" in it.name]
    parts += [f"{name} judged as math={declared_math(name)}" for name in declaring]
    passes = [it for it in record.results if it.note and it.outcome is Outcome.PASS]
    for words, mark in _RESTS_ON.items():
        counts = Counter(it.backend for it in passes if mark in it.note)
        parts += [f"{name} passes {count} {words}" for name, count in counts.items()]
    return printable("; ".join(filter(None, parts)))


def fallback(record: RunRecord, most: int = _REASONS) -> str:
    """Say how many cases are judged by ONNX's tolerance because their own is unknown, and why.

    Args:
        record: of the run.
        most: how many reasons are named, the most frequent ones first.

    Returns:
        ``3 cases judged by ONNX's tolerance: its shape depends on roundings (2); ...``; empty if
        no case is.
    """
    cases: defaultdict[str, set[str]] = defaultdict(set)
    for result in record.results:
        for diff in result.diffs:
            if isinstance(diff.tolerance, Relative) and diff.tolerance.reason:
                cases[diff.tolerance.reason].add(result.case)
    total = len(set().union(*cases.values()))
    if not total:
        return ""
    ordered = sorted(cases.items(), key=lambda item: -len(item[1]))
    several = len(ordered) > 1
    told = [
        clipped(printable(reason), _REASON) + f" ({len(ids)})" * several
        for reason, ids in ordered[:most]
    ]
    if (left := len(ordered) - most) > 0:
        told.append(f"{left} more reason{'s' * (left > 1)}")
    return f"{total} case{'s' * (total > 1)} judged by ONNX's tolerance: {'; '.join(told)}"


def by_capability(results: Sequence[Result]) -> dict[str, dict[Outcome, int]]:
    """Count the outcomes of the cases that need each capability, and of those that need none.

    Returns:
        Nothing where no case needs any.
    """
    if not any(result.capabilities for result in results):
        return {}
    found: dict[str, list[Outcome]] = {}
    # What a case needs is known once it has been read.
    for result in (it for it in results if it.outcome is not Outcome.NOT_RUN):
        for name in result.capabilities or ["none of these"]:
            found.setdefault(name, []).append(result.outcome)
    ordered = [*CAPABILITIES, *sorted(found.keys() - CAPABILITIES.keys())]
    return {name: counted(Outcome, found[name]) for name in ordered if name in found}


def counted(words: Iterable[Word], occurring: Iterable[Word | None]) -> dict[Word, int]:
    """Return how often each of the words occurs that does, in the order of the words."""
    counts = Counter(occurring)
    return {word: counts[word] for word in words if counts[word]}


def outcome_columns(
    counts: Mapping[str, Mapping[Outcome, int]],
) -> tuple[list[str], list[list[str]]]:
    """Return the outcomes that occur in some counts, and for each of these a row: name, numbers."""
    used = [outcome for outcome in Outcome if any(outcome in it for it in counts.values())]
    rows = [[name, *(str(it.get(one, "")) for one in used)] for name, it in counts.items()]
    return [it.value for it in used], rows


def in_words(counts: Mapping[Word, int]) -> str:
    """Return counts as text: ``285 pass, 7 skip``."""
    return ", ".join(f"{number} {word}" for word, number in counts.items())


def tallies(record: RunRecord) -> list[Tally]:
    """Return the counts of each backend."""
    rows = []
    for backend in record.backends:
        mine = [result for result in record.results if result.backend == backend.name]
        outcomes = counted(Outcome, (result.outcome for result in mine))
        lowered = sum(result.lowered for result in mine)
        name, version, said = backend.name, backend.version, conformity(mine)
        rows.append(Tally(name, version, mine, outcomes, lowered, said))
    return rows


def failures(record: RunRecord) -> list[Result]:
    """Return the results that are not as expected, without those that were never run.

    An invalid case occurs once, with the first backend: no backend is to blame for it.
    """
    failed = []
    invalid: set[str] = set()
    for result in record.results:
        if result.conforms or result.outcome is Outcome.NOT_RUN or result.case in invalid:
            continue
        if result.outcome is Outcome.INVALID:
            invalid.add(result.case)
        failed.append(result)
    return failed


def by_kind(failed: Sequence[Result]) -> list[Result]:
    """Return failures in an order in which the first few show the most.

    First comes one of each backend, operator and outcome, then a second of each, and so on.
    """
    # Sorting asks for the key of each once, in their order.
    seen: defaultdict[tuple[object, ...], Iterator[int]] = defaultdict(count)
    return sorted(failed, key=lambda it: next(seen[it.backend, it.operators, it.outcome]))


def badge_report(record: RunRecord) -> str:
    """Return the badge as JSON text, with counts: green if every result is a pass.

    Expected failures turn it yellow. A shard may hold no case at all, which is neither good nor
    bad.
    """
    against = sum(not result.conforms for result in record.results)
    expected = sum(map(is_expected_failure, record.results))
    skipped = sum(it.conforms and it.outcome is Outcome.SKIP for it in record.results)
    conforming = len(record.results) - against - expected - skipped
    good = record.exit_code == 0
    color = "red"
    if good:
        color = "yellow" if expected else "brightgreen" if conforming else "lightgrey"
        message = f"{conforming} conform"
        if expected:
            message += f", {expected} expected failure{'s' * (expected > 1)}"
        if skipped:
            message += f", {skipped} skipped"
    elif record.exit_code == 1 and against:
        message = f"{against} of {len(record.results)} do not conform"
    else:
        message = verdict(record)
    if said := scope(record):
        message += f" ({said})"
    badge = {
        "schemaVersion": 1,
        "label": "onnxopt",
        "message": message,
        "color": color,
        "isError": not good,
    }
    return json.dumps(badge) + "\n"
