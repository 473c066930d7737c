"""The content that all formats of a report share: counts, causes and details of a run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import count

from onnxopt_cli.backends.specification import parse_specification
from onnxopt_cli.cases.select import CAPABILITIES
from onnxopt_cli.core.record import SUITE, BackendIdentity, Explanation, RunRecord
from onnxopt_cli.core.result import (
    ABSOLUTE_ONLY,
    HARMLESS,
    INCONCLUSIVE,
    OUTSIDE_IDS,
    Outcome,
    Result,
    Standing,
)
from onnxopt_cli.core.text import clipped, printable
from onnxopt_cli.core.tolerance import Relative
from onnxopt_cli.errors import UsageError
from onnxopt_cli.report.view.accuracy import Accuracy, accuracy
from onnxopt_cli.report.view.agreement import agreements
from onnxopt_cli.report.view.causes import FailureGroup, group_failures, reasons_alike
from onnxopt_cli.report.view.comparison import Change, compare_runs
from onnxopt_cli.report.view.result_view import ResultView
from onnxopt_cli.report.view.verdict import (
    Conformity,
    conformity,
    counted,
    counts_by_label,
    in_words,
    is_expected_failure,
    label,
    run_verdict,
)

#: The title of a report begins with these words if the verdict does not concern a single backend.
NEUTRAL_SUBJECT = "onnxopt report:"
_MAX_REASONS = 3
_MAX_REASON_CHARS = 200
# Qualifications of passes. A pass is qualified if its note contains the mark of the qualification.
_QUALIFICATIONS = {
    "by the second reading of a contested question": "contested",
    f"with {ABSOLUTE_ONLY}": ABSOLUTE_ONLY,
    "with inconclusive elements, whose tolerance reaches half of their value": INCONCLUSIVE,
}
# Cases with these outcomes have no result. Their reasons are listed separately from failures.
WITHOUT_RESULT = frozenset({Outcome.UNSUPPORTED, Outcome.NOT_RUN})
_NO_CAPABILITY = "none of these"


@dataclass(frozen=True, slots=True)
class BackendView:
    """The results of a backend, and their counts.

    Attributes:
        name: the backend's name.
        specification: its specification; empty if equal to the name.
        version: the version that the backend reported.
        results: all its results.
        counts: number of results by label.
        unusual: numbers of changed and of flaky results. ``counts`` contains these results under
            their outcomes.
        lowered: number of cases that ran as primitive operators.
        older: number of cases that ran in an older opset than their own.
        conformity: the backend's conformity.
    """

    name: str
    specification: str
    version: str
    results: Sequence[Result]
    counts: Mapping[str, int]
    unusual: Mapping[Standing, int]
    lowered: int
    older: int
    conformity: Conformity

    @classmethod
    def of(cls, backend: BackendIdentity, results: Sequence[Result]) -> BackendView:
        """Count the results of a backend."""
        standings = (Standing.CHANGED, Standing.FLAKY)
        return cls(
            name=backend.name,
            specification=backend.specification,
            version=backend.version,
            results=results,
            counts=counts_by_label(results),
            unusual=counted(standings, (result.standing for result in results)),
            lowered=sum(result.lowered for result in results),
            older=sum(bool(result.opset) for result in results),
            conformity=conformity(results),
        )

    @property
    def text(self) -> str:
        """The counts in words: ``376 pass, 145 expected failures, 2 fail (1 changed)``."""
        unusual = f" ({in_words(self.unusual)})" if self.unusual else ""
        lowered = f", {self.lowered} of the cases lowered" if self.lowered else ""
        older = f", {self.older} of the cases in an older opset" if self.older else ""
        return f"{in_words(self.counts)}{unusual}{lowered}{older}"


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason why cases are unsupported, do not apply or did not run.

    Attributes:
        outcome: the outcome of the cases.
        backend: the backend's name.
        text: the reason; reasons that differ only in names are merged.
        results: the results with this reason.
    """

    outcome: Outcome
    backend: str
    text: str
    results: tuple[Result, ...]


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """The numbers of results of an operator on a backend, by outcome.

    Attributes:
        operator: the operator; for a model of several operators, the kind of model in parentheses.
        backend: the backend's name.
        counts: number of results by label.
        failing: number of results with an outcome other than pass and skip.
    """

    operator: str
    backend: str
    counts: Mapping[str, int]
    failing: int


@dataclass(frozen=True)  # The class has no slots, because of its cached properties.
class RunView:
    """A run, as every report shows it.

    Attributes:
        record: the run.
        baseline: an earlier run with which the report compares the run; may be None.
    """

    record: RunRecord
    baseline: RunRecord | None = None

    @cached_property
    def verdict(self) -> str:
        """The verdict on the run, such as ``conforms`` or ``does not conform``."""
        return run_verdict(self.record.exit_code, self.record.results)

    @property
    def subject(self) -> str:
        """The name of the only backend if the verdict is about it; else :data:`NEUTRAL_SUBJECT`."""
        backends = self.record.backends
        is_about_backend = self.verdict in list(Conformity)
        return backends[0].name if is_about_backend and len(backends) == 1 else NEUTRAL_SUBJECT

    @cached_property
    def backends(self) -> tuple[BackendView, ...]:
        """The counts of each backend."""
        by_backend: defaultdict[str, list[Result]] = defaultdict(list)
        for result in self.record.results:
            by_backend[result.backend].append(result)
        return tuple(
            BackendView.of(backend, by_backend[backend.name]) for backend in self.record.backends
        )

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """The number of results of all backends by label."""
        return counts_by_label(self.record.results)

    @cached_property
    def nonconforming(self) -> tuple[Result, ...]:
        """The results that are not as expected, except cases that did not run.

        An invalid case is listed only once, with the first backend, because no backend is at fault.
        """
        nonconforming = []
        invalid: set[str] = set()
        for result in self.record.results:
            if result.conforms or result.outcome is Outcome.NOT_RUN or result.case in invalid:
                continue
            if result.outcome is Outcome.INVALID:
                invalid.add(result.case)
            nonconforming.append(result)
        return tuple(nonconforming)

    @cached_property
    def failures(self) -> tuple[Result, ...]:
        """The results that are not as expected, except unsupported cases."""
        return tuple(
            result for result in self.nonconforming if result.outcome not in WITHOUT_RESULT
        )

    @cached_property
    def expected_failures(self) -> tuple[Result, ...]:
        """The failures that an expectation file predicts."""
        return tuple(filter(is_expected_failure, self.record.results))

    @cached_property
    def causes(self) -> tuple[FailureGroup, ...]:
        """The failures by cause: wrong values first, then frequent causes."""
        return tuple(group_failures(self.failures, self.record.explanations))

    @cached_property
    def expected_causes(self) -> tuple[FailureGroup, ...]:
        """The expected failures by cause."""
        return tuple(group_failures(self.expected_failures, self.record.explanations))

    @cached_property
    def open_explanations(self) -> tuple[Explanation, ...]:
        """The explanations that leave failures unexplained, or whose search ran out of time."""
        return tuple(
            explanation
            for explanation in self.record.explanations
            if not (explanation.causes and explanation.complete) or any(explanation.others.values())
        )

    @cached_property
    def reasons(self) -> tuple[Reason, ...]:
        """The reasons why cases have no result: unsupported, not applicable, or not run.

        Frequent reasons come first. Unsupported results that an expectation file predicts are
        omitted.
        """
        results = [
            result
            for result in self.record.results
            if result.outcome in {Outcome.SKIP, Outcome.NOT_RUN}
            or (result.outcome is Outcome.UNSUPPORTED and not result.conforms)
        ]
        alike: defaultdict[tuple[Outcome, str, str], list[Result]] = defaultdict(list)
        for result, text in zip(results, reasons_alike(results), strict=True):
            alike[result.outcome, result.backend, text].append(result)
        reasons = (Reason(*key, tuple(group)) for key, group in alike.items())
        return tuple(sorted(reasons, key=lambda reason: -len(reason.results)))

    @cached_property
    def operators(self) -> tuple[OperatorRow, ...]:
        """The counts for each operator and backend, ordered by operator and then by backend."""
        groups: defaultdict[tuple[str, str], list[Result]] = defaultdict(list)
        for result in self.record.results:
            groups[operator_of(result), result.backend].append(result)
        return tuple(
            OperatorRow(
                operator=operator,
                backend=backend,
                counts=counts_by_label(group),
                failing=sum(result.outcome not in HARMLESS for result in group),
            )
            for (operator, backend), group in sorted(groups.items(), key=lambda item: item[0])
        )

    @cached_property
    def capabilities(self) -> Mapping[str, Mapping[str, int]]:
        """The counts of cases by capability, followed by the counts of cases that need none.

        The result is empty if no case needs a capability. Cases that did not run are not counted,
        because their capabilities are unknown.
        """
        groups = results_by_capability(self.record.results)
        return {name: counts_by_label(results) for name, results in groups.items()}

    @cached_property
    def accuracy(self) -> tuple[Accuracy, ...]:
        """The accuracy by backend and output."""
        return accuracy(self.record.results)

    @cached_property
    def agreements(self) -> tuple[str, ...]:
        """A line for each set of backends that agree with each other in failing cases."""
        return tuple(agreements(self.record))

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """The differences from the baseline, worse outcomes first; empty without a baseline."""
        return tuple(compare_runs(self.baseline, self.record)) if self.baseline else ()

    @cached_property
    def origin(self) -> Mapping[str, str]:
        """The label, commit, branch and job of the run, as far as they are known."""
        label = self.record.options.get("label")
        return {**({"label": str(label)} if label else {}), **self.record.origin}

    @cached_property
    def seconds(self) -> float:
        """The time in seconds that all backends took together."""
        return sum(result.seconds for result in self.record.results)

    @cached_property
    def duration(self) -> str:
        """The time from start to end, as ``12.3 s``.

        The text is empty if the run is unfinished, or if the clock of the system was set back.
        """
        try:
            started, ended = map(datetime.fromisoformat, (self.record.started, self.record.ended))
            seconds = (ended - started).total_seconds()
        except (TypeError, ValueError):
            return ""
        return f"{seconds:.1f} s" if seconds >= 0 else ""

    @cached_property
    def scope(self) -> str:
        """A text with the suites, the excluded capabilities and the qualifications of passes."""
        record = self.record
        suites = [
            f"{name.removeprefix(SUITE)}@{version}"
            for name, version in record.versions.items()
            if name.startswith(SUITE)
        ]
        left_out = record.left_out.items()
        label = "suite" if len(suites) == 1 else "suites"
        parts = [f"{label} {', '.join(suites)}"] if suites else []
        parts += [f"without {name} ({reason})" for name, reason in left_out]
        parts += [
            f"{backend.name} judged as math={math}"
            for backend in record.backends
            if (math := declared_math(backend))
        ]
        passes = [
            result for result in record.results if result.note and result.outcome is Outcome.PASS
        ]
        for words, mark in _QUALIFICATIONS.items():
            counts = Counter(result.backend for result in passes if mark in result.note)
            parts += [
                f"{name} passes {number} case{'s' * (number > 1)} {words}"
                for name, number in counts.items()
            ]
        return printable("; ".join(parts))

    @cached_property
    def fallback(self) -> str:
        """The number of cases that are judged by ONNX's tolerance as a fallback, with the reasons.

        An example is ``3 cases judged by ONNX's tolerance: its shape depends on roundings (2);
        ...``. The text is empty if no case is judged by ONNX's tolerance.
        """
        cases: defaultdict[str, set[str]] = defaultdict(set)
        for result in self.record.results:
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
            for reason, ids in ordered[:_MAX_REASONS]
        ]
        if (hidden := len(ordered) - _MAX_REASONS) > 0:
            reasons.append(f"{hidden} more reason{'s' * (hidden > 1)}")
        return f"{total} case{'s' * (total > 1)} judged by ONNX's tolerance: {'; '.join(reasons)}"

    def result(self, result: Result) -> ResultView:
        """Return the details of a result of the run."""
        return ResultView(result, self.record.options, self._texts.get(result.backend, ""))

    @cached_property
    def _texts(self) -> Mapping[str, str]:
        """The argument of ``-b`` for each backend, by the backend's name."""
        return {backend.name: backend.text for backend in self.record.backends}

    @cached_property
    def examples(self) -> tuple[ResultView, ...]:
        """The nonconforming results, ordered so that every kind of failure occurs early.

        The first failures of all combinations of backend, operator and outcome come first, then the
        second failures, and so on. Unsupported results come last.
        """
        # The function sorted() calls the key function once per item, in order.
        numbers: defaultdict[tuple[object, ...], Iterator[int]] = defaultdict(count)

        def rank(result: Result) -> tuple[bool, int]:
            number = next(numbers[result.backend, result.operators, label(result)])
            return result.outcome in WITHOUT_RESULT, number

        return tuple(map(self.result, sorted(self.nonconforming, key=rank)))


def declared_math(backend: BackendIdentity) -> str:
    """Return the option ``math`` of a backend; empty if it is absent."""
    if ",math=" in backend.text:
        # The specification in a log may be invalid.
        with suppress(UsageError):
            return parse_specification(backend.text.strip()).math
    return ""


def operator_of(result: Result) -> str:
    """Return the operator of a model; for several operators, the kind of model in parentheses."""
    if result.case in OUTSIDE_IDS:
        return "(outside of cases)"
    names = result.operators
    return names[0] if len(names) == 1 else "(several)" if names else "(unknown)"


def results_by_capability(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Return the results by needed capability; empty if no case needs a capability."""
    if not any(result.capabilities for result in results):
        return {}
    groups: defaultdict[str, list[Result]] = defaultdict(list)
    for result in results:
        # The capabilities of a case are unknown until the case has been read.
        if result.outcome is not Outcome.NOT_RUN:
            for name in result.capabilities or [_NO_CAPABILITY]:
                groups[name].append(result)
    ordered = [*CAPABILITIES, *sorted(groups.keys() - CAPABILITIES.keys())]
    return {name: groups[name] for name in ordered if name in groups}
