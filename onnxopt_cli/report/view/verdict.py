"""The conformity of a backend, and counts of results by outcome, as all reports state them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TypeVar

from onnxopt_cli.core.result import HARMLESS, NOT_ITS_FAULT, Outcome, Result, Standing
from onnxopt_cli.workers.interruption import INTERRUPTED

#: Labels of results whose meaning an expectation file changes. For such results, the outcome alone
#: would mislead.
EXPECTED_FAILURE = "expected failure"
UNEXPECTED_PASS = "unexpected pass"  # noqa: S105 - a label, not a password
_PLURALS = {EXPECTED_FAILURE: "expected failures", UNEXPECTED_PASS: "unexpected passes"}
#: The labels of results in the order of reports.
LABELS = (
    Outcome.PASS.value,
    *_PLURALS,
    *(outcome.value for outcome in Outcome if outcome is not Outcome.PASS),
)
Word = TypeVar("Word", bound=str)


class Conformity(StrEnum):
    """Conformity of a backend in a run; only with ``CONFORMS``, all cases that apply pass."""

    CONFORMS = "conforms"
    EXPECTED_FAILURES = "fails only as expected"
    NOT_STARTED = "could not be started"
    NOT_TESTED = "was not tested"
    NOT_JUDGED = "was not judged in all cases"
    DOES_NOT_CONFORM = "does not conform"


_WORDS: Mapping[int | None, str] = {
    None: "did not finish",
    0: Conformity.CONFORMS.value,
    1: Conformity.DOES_NOT_CONFORM.value,
    2: "has invalid cases or expectations",
    4: "has a backend that could not be started",
    5: "was not tested",
    **dict.fromkeys(INTERRUPTED, "was interrupted"),
}


def is_expected_failure(result: Result) -> bool:
    """Return whether a result is a failure that an expectation file predicts."""
    return result.conforms and result.outcome not in HARMLESS


def label(result: Result) -> str:
    """Return the word under which a result is counted.

    The word is the outcome of the result, unless an expectation file changes the meaning of the
    outcome.
    """
    if is_expected_failure(result):
        return EXPECTED_FAILURE
    if result.standing is Standing.UNEXPECTED_PASS:
        return UNEXPECTED_PASS
    return result.outcome.value


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


def run_verdict(exit_code: int | None, results: Iterable[Result]) -> str:
    """Return the verdict on a run, such as ``conforms`` or ``does not conform``."""
    if exit_code == 0 and any(map(is_expected_failure, results)):
        return Conformity.EXPECTED_FAILURES.value
    return _WORDS.get(exit_code, f"ended with exit code {exit_code}")


def counts_by_label(results: Iterable[Result]) -> dict[str, int]:
    """Return the number of results by label, without zeros."""
    return counted(LABELS, map(label, results))


def counted(words: Iterable[Word], occurring: Iterable[Word | None]) -> dict[Word, int]:
    """Return how often each of ``words`` occurs; words that do not occur are omitted."""
    counts = Counter(occurring)
    return {word: counts[word] for word in words if counts[word]}


def in_words(counts: Mapping[Word, int]) -> str:
    """Return counts as text: ``376 pass, 145 expected failures``."""
    return ", ".join(
        f"{number} {_PLURALS.get(word, word) if number > 1 else word}"
        for word, number in counts.items()
    )


def count_columns(counts: Mapping[str, Mapping[str, int]]) -> tuple[list[str], list[list[str]]]:
    """Return the labels that occur, and a row with the counts by label for each name."""
    used = [word for word in LABELS if any(word in by_label for by_label in counts.values())]
    rows = [
        [name, *(str(by_label.get(word, "")) for word in used)] for name, by_label in counts.items()
    ]
    return used, rows
