"""Summaries of a run in words and counts, which all reports share."""

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

_MAX_REASONS = 3
_MAX_REASON_CHARS = 200
Word = TypeVar("Word", bound=StrEnum)


class Conformity(StrEnum):
    """Conformity of a backend in a run; only ``CONFORMS`` means that every result is a pass."""

    CONFORMS = "conforms"
    EXPECTED_FAILURES = "fails only as expected"
    NOT_STARTED = "could not be started"
    NOT_TESTED = "was not tested"
    NOT_JUDGED = "was not judged in all cases"
    DOES_NOT_CONFORM = "does not conform"


# Qualifications of passes, and the mark of each in the note of a result.
_QUALIFICATIONS = {
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
    """The results of a backend, counted.

    Attributes:
        name: the backend's specification.
        version: the version that the backend reported.
        results: all its results.
        outcomes: number of results by outcome, in the order of their definition.
        lowered: number of cases that ran as primitive operators.
        conformity: the backend's conformity.
    """

    name: str
    version: str
    results: Sequence[Result]
    outcomes: Mapping[Outcome, int]
    lowered: int
    conformity: Conformity


def is_expected_failure(result: Result) -> bool:
    """Return whether a result is a failure that an expectation file predicts."""
    return result.conforms and result.outcome not in HARMLESS


def conformity(results: Sequence[Result]) -> Conformity:
    """Return the conformity of a backend from all its results."""
    nonconforming = {result.outcome for result in results if not result.conforms}
    if any(result.not_started for result in results):
        return Conformity.NOT_STARTED
    if all(result.outcome is Outcome.SKIP for result in results):
        return Conformity.NOT_TESTED
    if nonconforming:
        judged = not nonconforming <= NOT_ITS_FAULT
        return Conformity.DOES_NOT_CONFORM if judged else Conformity.NOT_JUDGED
    if any(map(is_expected_failure, results)):
        return Conformity.EXPECTED_FAILURES
    return Conformity.CONFORMS


def verdict(record: RunRecord) -> str:
    """Return the verdict on the run: ``conforms``, ``does not conform``, ``was interrupted``."""
    code = record.exit_code
    if code == 0 and any(map(is_expected_failure, record.results)):
        return Conformity.EXPECTED_FAILURES.value
    return _WORDS.get(code, f"ended with exit code {code}")


def scope(record: RunRecord) -> str:
    """Describe the suites, the excluded capabilities and the qualifications of passes."""
    suites = [
        f"{name.removeprefix(SUITE)}@{version}"
        for name, version in record.versions.items()
        if name.startswith(SUITE)
    ]
    left_out = record.left_out.items()
    parts = [", ".join(suites), *(f"without {name} ({reason})" for name, reason in left_out)]
    declaring = [backend.name for backend in record.backends if ",math=" in backend.name]
    parts += [f"{name} judged as math={declared_math(name)}" for name in declaring]
    passes = [result for result in record.results if result.note and result.outcome is Outcome.PASS]
    for words, mark in _QUALIFICATIONS.items():
        counts = Counter(result.backend for result in passes if mark in result.note)
        parts += [f"{name} passes {count} {words}" for name, count in counts.items()]
    return printable("; ".join(filter(None, parts)))


def fallback(record: RunRecord, most: int = _MAX_REASONS) -> str:
    """Return the number of cases judged by ONNX's tolerance as a fallback, with the reasons.

    Args:
        record: the run.
        most: maximum number of reasons to name, the most frequent ones first.

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
    reasons = [
        clipped(printable(reason), _MAX_REASON_CHARS) + f" ({len(ids)})" * several
        for reason, ids in ordered[:most]
    ]
    if (hidden := len(ordered) - most) > 0:
        reasons.append(f"{hidden} more reason{'s' * (hidden > 1)}")
    return f"{total} case{'s' * (total > 1)} judged by ONNX's tolerance: {'; '.join(reasons)}"


def by_capability(results: Sequence[Result]) -> dict[str, dict[Outcome, int]]:
    """Count the outcomes by capability, and those of cases that need no capability.

    The result is empty if no case needs a capability.
    """
    if not any(result.capabilities for result in results):
        return {}
    outcomes: dict[str, list[Outcome]] = {}
    for result in results:
        # The capabilities of a case are unknown until it has been read.
        if result.outcome is not Outcome.NOT_RUN:
            for name in result.capabilities or ["none of these"]:
                outcomes.setdefault(name, []).append(result.outcome)
    ordered = [*CAPABILITIES, *sorted(outcomes.keys() - CAPABILITIES.keys())]
    return {name: counted(Outcome, outcomes[name]) for name in ordered if name in outcomes}


def counted(words: Iterable[Word], occurring: Iterable[Word | None]) -> dict[Word, int]:
    """Return the positive counts of the words, in the order of the words."""
    counts = Counter(occurring)
    return {word: counts[word] for word in words if counts[word]}


def outcome_columns(
    counts: Mapping[str, Mapping[Outcome, int]],
) -> tuple[list[str], list[list[str]]]:
    """Return the outcomes that occur, and for each name a row with the name and its counts."""
    used = [kind for kind in Outcome if any(kind in by_kind for by_kind in counts.values())]
    rows = [
        [name, *(str(by_kind.get(kind, "")) for kind in used)] for name, by_kind in counts.items()
    ]
    return [kind.value for kind in used], rows


def in_words(counts: Mapping[Word, int]) -> str:
    """Return counts as text: ``285 pass, 7 skip``."""
    return ", ".join(f"{number} {word}" for word, number in counts.items())


def tallies(record: RunRecord) -> list[Tally]:
    """Return the counts of each backend."""
    rows = []
    for backend in record.backends:
        results = [result for result in record.results if result.backend == backend.name]
        rows.append(
            Tally(
                name=backend.name,
                version=backend.version,
                results=results,
                outcomes=counted(Outcome, (result.outcome for result in results)),
                lowered=sum(result.lowered for result in results),
                conformity=conformity(results),
            )
        )
    return rows


def failures(record: RunRecord) -> list[Result]:
    """Return the results that are not as expected, without cases that did not run.

    An invalid case occurs once, with the first backend, since it is not a backend's fault.
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
    """Return failures in an order whose beginning has every kind.

    The first failure of each backend, operator and outcome comes first, then the second of each,
    and so on.
    """
    # sorted() calls the key function once per item, in order.
    numbers: defaultdict[tuple[object, ...], Iterator[int]] = defaultdict(count)
    return sorted(
        failed,
        key=lambda result: next(numbers[result.backend, result.operators, result.outcome]),
    )


def badge_report(record: RunRecord) -> str:
    """Return a badge with counts as JSON text.

    The badge is green if every result is a pass, yellow with expected failures, grey for a shard
    without cases, and red otherwise.
    """
    nonconforming = sum(not result.conforms for result in record.results)
    expected = sum(map(is_expected_failure, record.results))
    skipped = sum(result.conforms and result.outcome is Outcome.SKIP for result in record.results)
    conforming = len(record.results) - nonconforming - expected - skipped
    good = record.exit_code == 0
    color = "red"
    if good:
        color = "yellow" if expected else "brightgreen" if conforming else "lightgrey"
        message = f"{conforming} conform"
        if expected:
            message += f", {expected} expected failure{'s' * (expected > 1)}"
        if skipped:
            message += f", {skipped} skipped"
    elif record.exit_code == 1 and nonconforming:
        message = f"{nonconforming} of {len(record.results)} do not conform"
    else:
        message = verdict(record)
    if run_scope := scope(record):
        message += f" ({run_scope})"
    badge = {
        "schemaVersion": 1,
        "label": "onnxopt",
        "message": message,
        "color": color,
        "isError": not good,
    }
    return json.dumps(badge) + "\n"
