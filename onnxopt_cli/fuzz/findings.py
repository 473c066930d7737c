"""What was found so far, and whether a failure is something else."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from onnxopt_cli.core.outcome import Outcome
from onnxopt_cli.core.record import Explanation
from onnxopt_cli.core.result import Result
from onnxopt_cli.fuzz.kinds import VALUES, kinds_of
from onnxopt_cli.fuzz.trial import Trial
from onnxopt_cli.grade.explain import explain
from onnxopt_cli.run.expectation import Judging
from onnxopt_cli.run.reproduce import Observation, named, observe, reproduces

#: So many of the latest examples that passed, by operator, must pass with what explains a finding.
_PASSED = 100


@dataclass(frozen=True, slots=True)
class FailureKind:
    """A kind of failure.

    Attributes:
        subject: the operator, or what stands for several.
        what: what goes wrong, in words.
        number: counts the kinds that the words do not tell apart.
    """

    subject: str
    what: str
    number: int = 1


@dataclass(frozen=True, slots=True)
class Finding:
    """A distinct failure.

    Attributes:
        kind: what tells it from others; the example may show other kinds, too.
        trial: the smallest example that shows it.
        explanation: what reproduces it; None if nothing was looked for.
        flaky: True if the same example did not fail every time.
        replayed: True if it is an earlier one.
    """

    kind: FailureKind
    trial: Trial
    explanation: Explanation | None = None
    flaky: bool = False
    replayed: bool = False

    @property
    def result(self) -> Result:
        """What came of the smallest example."""
        return self.trial.result


class Findings:
    """All findings of a run, by kind."""

    def __init__(self) -> None:
        self.all: dict[FailureKind, Finding] = {}
        self._passed: dict[str, deque[Trial]] = {}

    def saw(self, trial: Trial) -> None:
        """Take note of an example that passed."""
        if trial.result.outcome is Outcome.PASS and not trial.example.breach:
            latest = self._passed.setdefault(trial.example.subject, deque(maxlen=_PASSED))
            latest.append(trial)

    def kinds(self, trial: Trial) -> tuple[FailureKind, ...]:
        """Say of what kinds a failure is; wrong numbers are told apart by what explains them."""
        return tuple(self._kind(trial, what) for what in kinds_of(trial))

    def new(self, trial: Trial) -> FailureKind | None:
        """Return the first kind of a failure that was not found before, if there is one."""
        return next((kind for kind in self.kinds(trial) if kind not in self.all), None)

    def _kind(self, trial: Trial, what: str) -> FailureKind:
        example = trial.example
        known = [it for it in self.all.values() if it.kind.what == what]
        if len(example.operators) > 1:
            # What goes wrong with a node alone goes wrong with several, too.
            for finding in known:
                if finding.kind.subject in example.operators:
                    return finding.kind
        known = [it for it in known if it.kind.subject == example.subject]
        if what != VALUES:
            return FailureKind(example.subject, what)
        for finding in known:
            explanation = finding.explanation
            # What nothing explains may be anything, so that only one such kind can be told.
            if explanation is None or not explanation.deviations:
                return finding.kind
            if _explains(explanation, trial):
                return finding.kind
        return FailureKind(example.subject, what, len(known) + 1)

    def add(self, finding: Finding, seen: Sequence[Trial], seconds: float) -> Finding:
        """Explain a finding and keep it.

        Args:
            finding: without an explanation.
            seen: other failures of the kind, of which the explanation should reproduce the first
                one that shows the same kinds.
            seconds: how long to look for an explanation; 0 for not at all.
        """
        explained = replace(finding, explanation=self._explanation(finding, seen, seconds))
        self.all[finding.kind] = explained
        return explained

    def _explanation(
        self, finding: Finding, seen: Sequence[Trial], seconds: float
    ) -> Explanation | None:
        if not seconds:
            return None
        alike = [other for other in seen if kinds_of(other) == kinds_of(finding.trial)][:1]
        passed = self._passed.get(finding.kind.subject, ())
        trials = {str(place): trial for place, trial in enumerate((finding.trial, *alike, *passed))}
        results = [replace(trial.result, case=name) for name, trial in trials.items()]
        cases = {name: trial.case for name, trial in trials.items()}
        found = explain(results, cases, seconds=seconds)
        return found[0] if found else None


def _explains(explanation: Explanation, trial: Trial) -> bool:
    """Tell whether what explains some failures reproduces another one, too."""
    seen = observe(trial.result, trial.case, Judging())
    if not isinstance(seen, Observation) or seen.call.operator.name != explanation.operator:
        return False
    mistakes = [named(seen.call.operator, name) for name in explanation.deviations]
    return any(it is not None and reproduces(it, seen, Judging()) for it in mistakes)
