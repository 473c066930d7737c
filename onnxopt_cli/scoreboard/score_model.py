"""The content of the site of a scoreboard: results by backend, operator and version.

This module reads logs and counts results, and :mod:`onnxopt_cli.scoreboard.site` renders the
results.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log2

from onnxopt_cli.cases.case import Case
from onnxopt_cli.core.record import SUITE, BackendIdentity, Explanation, RunRecord
from onnxopt_cli.core.result import HARMLESS, OUTSIDE_IDS, Diff, Outcome, Result
from onnxopt_cli.core.tolerance import Provenance
from onnxopt_cli.report.view.accuracy import Accuracy
from onnxopt_cli.report.view.agreement import agreeing_backends
from onnxopt_cli.report.view.run_view import RunView
from onnxopt_cli.report.view.verdict import counted, in_words
from onnxopt_cli.run.log.log_header import FileSnapshot
from onnxopt_cli.run.log.log_reader import Log
from onnxopt_cli.scoreboard.result_store import ResultKey, ResultStore, holds_for
from onnxopt_cli.scoreboard.scoreboard_file import ScoreboardFile, ScoredBackend

#: At least this share of the elements loses at most the typical number of bits.
TYPICAL_SHARE = 0.99
_CONTESTED = "contested"
_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class Score:
    """The numbers of results of some cases on a backend.

    Attributes:
        total: the number of cases.
        outcomes: the number of results by outcome, in the order in which outcomes are defined.
        problem: why the backend could not be started; empty if it was started.
        contested: number of passes by a second reading of the specification.
        agreeing: number of failures for which another backend has the same wrong result.
        older: number of cases that ran in an older opset than their own.
    """

    total: int
    outcomes: Mapping[Outcome, int]
    problem: str = ""
    contested: int = 0
    agreeing: int = 0
    older: int = 0

    @property
    def passed(self) -> int:
        """The number of cases with the outcome pass."""
        return self.outcomes.get(Outcome.PASS, 0)

    @property
    def missing(self) -> int:
        """The number of cases without a result."""
        return self.total - sum(self.outcomes.values())

    @property
    def others(self) -> str:
        """The outcomes other than pass, in words: ``2 fail, 1 error``."""
        failures = {
            word: count for word, count in self.outcomes.items() if word is not Outcome.PASS
        }
        words = [in_words(failures)] if failures else []
        if self.missing:
            words.append("not started" if self.problem else f"{self.missing} not run")
        return ", ".join(words)

    @property
    def words(self) -> str:
        """The number of results with each outcome, in words."""
        passed = f"{self.passed} pass" if self.passed or not self.missing else ""
        return ", ".join(filter(None, (passed, self.others)))

    @property
    def look(self) -> str:
        """The CSS class of the score, which determines its color on the page."""
        judged = self.total - self.missing
        conforming = sum(self.outcomes.get(word, 0) for word in HARMLESS)
        if not judged:
            return "none"
        if conforming == self.total:
            return "all"
        unsupported = self.outcomes.get(Outcome.UNSUPPORTED, 0)
        if unsupported == judged:
            return "unsupported"
        if conforming + unsupported == self.total:
            return "supported"
        return "some" if conforming else "zero"


@dataclass(frozen=True, slots=True)
class VersionScore:
    """The results of one version of a backend.

    Attributes:
        version: the version that the backend reported.
        onnxopt: the version of onnxopt.
        day: the date of the last result: ``2026-01-31``.
        machine: system, architecture and processor.
        suites: names and versions of the suites.
        outcomes: the outcome of each case.
    """

    version: str
    onnxopt: str
    day: str
    machine: str
    suites: tuple[str, ...]
    outcomes: Mapping[str, Outcome]

    def score(self, cases: Iterable[str]) -> Score:
        """Count the results of some cases; cases without a result are ignored."""
        outcomes = [self.outcomes[case] for case in cases if case in self.outcomes]
        return Score(len(outcomes), counted(Outcome, outcomes))

    def changes(self, earlier: VersionScore) -> list[tuple[str, Outcome, Outcome]]:
        """Return the cases whose outcome has changed since another version, with both outcomes."""
        return [
            (case, earlier.outcomes[case], outcome)
            for case, outcome in self.outcomes.items()
            if earlier.outcomes.get(case, outcome) is not outcome
        ]


@dataclass(frozen=True)
class Column:
    """A backend on the scoreboard.

    Attributes:
        label: its label.
        specification: the specification of the current version.
        version: the version that it reported; empty if it did not start.
        problem: why it could not be started; empty if it was started.
        failed_starts: the specifications that could not be started, each with the reason.
        record: the results of the chosen cases in the current version.
        history: the results by version, the newest version first.
    """

    label: str
    specification: str
    version: str
    problem: str
    failed_starts: tuple[tuple[str, str], ...]
    record: RunRecord
    history: tuple[VersionScore, ...]

    @cached_property
    def results(self) -> Mapping[str, Result]:
        """The results by the ids of their cases."""
        return {result.case: result for result in self.record.results}

    @cached_property
    def outside(self) -> tuple[Result, ...]:
        """Failures of the backend outside of cases."""
        return tuple(result for result in self.record.results if result.case in OUTSIDE_IDS)

    def view(self, cases: Iterable[str]) -> RunView:
        """Return the results of some of the cases as reports show them."""
        results = tuple(self.results[case] for case in cases if case in self.results)
        return RunView(replace(self.record, results=results))


@dataclass(frozen=True, slots=True)
class BitsLost:
    """The accuracy of the floating-point outputs of some cases, in lost bits of the significand.

    Attributes:
        typical: the largest number of bits that an element loses if the worst 1 % of the elements
            are ignored. The number is infinite if, for more than 1 % of the elements, only one of
            the expected and the actual value is finite.
        most: the number of bits that the worst element loses.
        elements: number of elements.
    """

    typical: float
    most: float
    elements: int

    @classmethod
    def of(cls, results: Iterable[Result]) -> BitsLost | None:
        """Measure the outputs whose values were compared; return None without such outputs."""
        diffs = [diff for result in results for diff in result.diffs if _has_bits(diff)]
        if not diffs:
            return None
        # The names of backend, operator and output are empty, because only the measures are used.
        row = Accuracy.of("", "", "", Provenance.DERIVED, diffs)
        within = row.ulp_within(TYPICAL_SHARE)
        typical = float("inf") if within is None else log2(1 + within)
        return cls(typical, row.bits_lost, row.elements)


def _has_bits(diff: Diff) -> bool:
    return diff.structure is None and diff.elements > 0 and diff.max_ulp is not None


@dataclass(frozen=True)
class Scores:
    """The results of all backends.

    Attributes:
        columns: the backends.
        cases: the chosen cases by id.
        rows: the ids of the chosen cases by row of the matrix, in alphabetical order.
        suites: the ids of the chosen cases by suite.
        agreements: by label and case, the labels of other backends with the same wrong result.
    """

    columns: tuple[Column, ...]
    cases: Mapping[str, Case]
    rows: Mapping[str, tuple[str, ...]]
    suites: Mapping[str, tuple[str, ...]]
    agreements: Mapping[tuple[str, str], tuple[str, ...]]

    def score(self, column: Column, cases: Sequence[str]) -> Score:
        """Return the score of a backend on some of the cases."""
        results = [column.results[case] for case in cases if case in column.results]
        return Score(
            total=len(cases),
            outcomes=counted(Outcome, (result.outcome for result in results)),
            problem=column.problem,
            older=sum(bool(result.opset) for result in results),
            contested=sum(is_contested(result) for result in results),
            agreeing=sum((column.label, result.case) in self.agreements for result in results),
        )

    def total(self, column: Column) -> Score:
        """Count all results of a backend."""
        return self.score(column, [*self.cases])


def is_contested(result: Result) -> bool:
    """Return whether a result relies on the second reading of a contested question."""
    return result.note.startswith(_CONTESTED)


def read_scores(
    scoreboard: ScoreboardFile,
    cases: Sequence[Case],
    chosen: Sequence[Case],
    rows: Mapping[str, str],
    versions: Mapping[tuple[str, str], str],
    tell: Callable[[str], None],
) -> Scores:
    """Read the logs of all backends and count their results.

    Args:
        scoreboard: the backends and the folder of the logs.
        cases: all cases of the suites.
        chosen: the cases that the site shows.
        rows: for each case, the row of the matrix in which it is counted.
        versions: the version of each backend that was started, by label and specification.
        tell: shows a notice about a file that cannot be used.
    """
    by_row: defaultdict[str, list[str]] = defaultdict(list)
    by_suite: defaultdict[str, list[str]] = defaultdict(list)
    for case in chosen:
        by_row[rows[case.id]].append(case.id)
        by_suite[case.suite].append(case.id)
    cases_by_id = {case.id: case for case in cases}
    reader = _Reader(scoreboard, cases_by_id, {case.id for case in chosen}, tell)
    columns = tuple(reader.column(backend, versions) for backend in scoreboard.backends)
    return Scores(
        columns=columns,
        cases={case.id: case for case in chosen},
        rows={row: tuple(by_row[row]) for row in sorted(by_row, key=_row_order)},
        suites={suite: tuple(ids) for suite, ids in by_suite.items()},
        agreements=_agreements(columns),
    )


def _row_order(row: str) -> tuple[bool, str, str]:
    # Operators come first; their names begin with a capital letter. Rows for other models come
    # last.
    return not row[:1].isupper(), row.lower(), row


class _Reader:
    """A reader of the logs of backends.

    Args:
        scoreboard: the scoreboard, which names the folder of the logs.
        cases: all cases by id.
        chosen: the ids of the cases that the site shows.
        tell: shows a notice about a file that cannot be used.
    """

    def __init__(
        self,
        scoreboard: ScoreboardFile,
        cases: Mapping[str, Case],
        chosen: set[str],
        tell: Callable[[str], None],
    ) -> None:
        self._results, self._cases, self._chosen = scoreboard.results, cases, chosen
        self._tell, self._snapshot = tell, FileSnapshot()

    def column(self, backend: ScoredBackend, versions: Mapping[tuple[str, str], str]) -> Column:
        """Return the results of a backend."""
        store = ResultStore(self._results, backend, self._tell)
        failed_starts = tuple(
            (specification, problem)
            for specification in backend.specifications
            if (problem := store.failed_start(specification))
        )
        current = backend.specifications[-1]
        problem = dict(failed_starts).get(current, "")
        logs = [*store.logs()]
        key = None if problem else self._current_key(backend, versions, logs)
        current_logs = [
            log
            for log in logs
            if ResultKey.of(log.header) == key and holds_for(log, self._cases, self._snapshot)
        ]
        version = key.version if key else ""
        return Column(
            label=backend.label,
            specification=current,
            version=version,
            problem=problem,
            failed_starts=failed_starts,
            record=self._record(current_logs, current, version),
            history=_history(logs),
        )

    def _current_key(
        self,
        backend: ScoredBackend,
        versions: Mapping[tuple[str, str], str],
        logs: Sequence[Log],
    ) -> ResultKey | None:
        """Return the key of the results to show; None without results."""
        current = backend.specifications[-1]
        if (backend.label, current) in versions:
            return ResultKey.here(current, versions[backend.label, current])
        keys = [ResultKey.of(log.header) for log in logs]
        return next((key for key in reversed(keys) if key.specification == current), None)

    def _record(self, logs: Sequence[Log], specification: str, version: str) -> RunRecord:
        """Merge the results of logs; later logs take precedence."""
        results: dict[str, Result] = {}
        explanations: list[Explanation] = []
        for log in logs:
            explanations += log.record.explanations
            for (case, _), result in log.results.items():
                if case in self._chosen or case in OUTSIDE_IDS:
                    results[case] = result
        return RunRecord(
            versions={name: text for log in logs for name, text in log.header.versions.items()},
            backends=(BackendIdentity(specification, version),),
            options=logs[-1].header.options if logs else {},
            results=tuple(
                result for result in results.values() if result.outcome is not Outcome.NOT_RUN
            ),
            explanations=tuple(explanations),
            started=logs[-1].header.started if logs else "",
        )


def _history(logs: Sequence[Log]) -> tuple[VersionScore, ...]:
    """Return the results by version of the backend and of onnxopt, the newest versions first."""
    groups: defaultdict[tuple[str, str], list[Log]] = defaultdict(list)
    for log in logs:
        key = ResultKey.of(log.header)
        groups[key.version, key.onnxopt].append(log)
    scores = []
    for (version, onnxopt), group in groups.items():
        latest = group[-1].header
        key = ResultKey.of(latest)
        suites = Counter(
            f"{name.removeprefix(SUITE)}@{text}"
            for log in group
            for name, text in log.header.versions.items()
            if name.startswith(SUITE)
        )
        outcomes = {
            case: result.outcome
            for log in group
            for (case, _), result in log.results.items()
            if result.outcome is not Outcome.NOT_RUN and case not in OUTSIDE_IDS
        }
        machine = ", ".join(filter(None, (key.machine, key.processor)))
        day = latest.started[:10]
        scores.append(VersionScore(version, onnxopt, day, machine, tuple(suites), outcomes))
    ordered = sorted(scores, key=lambda score: (natural(score.version), natural(score.onnxopt)))
    return tuple(reversed(ordered))


def natural(text: str) -> tuple[tuple[bool, int, str], ...]:
    """Return a sort key for texts that orders numbers within the texts by their values."""
    parts = _DIGITS.split(text)
    return tuple(
        (part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts if part
    )


def _agreements(columns: Sequence[Column]) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return, by label and case, the labels of other backends with the same wrong result."""
    failing: defaultdict[str, list[Result]] = defaultdict(list)
    for column in columns:
        for result in column.record.results:
            if result.outcome is Outcome.FAIL and result.returned:
                failing[result.case].append(replace(result, backend=column.label))
    agreements = {}
    for case, results in failing.items():
        for labels in agreeing_backends(results):
            for label in labels:
                agreements[label, case] = tuple(name for name in labels if name != label)
    return agreements
