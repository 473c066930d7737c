"""What became of examples: the result of each, its kinds of failures, and what was found so far."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from onnxopt_cli.core.case import Case, Location
from onnxopt_cli.core.diff import Diff
from onnxopt_cli.core.record import Explanation
from onnxopt_cli.core.result import HARMLESS, Outcome, Result
from onnxopt_cli.errors import BackendUnavailable
from onnxopt_cli.fuzz.graph_example import Example
from onnxopt_cli.fuzz.node_example import NAME, SUITE
from onnxopt_cli.grade.explain import explain
from onnxopt_cli.isolation.response import Order
from onnxopt_cli.readings.mistakes.deviate import named
from onnxopt_cli.run.answer_key import JudgeOptions
from onnxopt_cli.run.executors import Executor
from onnxopt_cli.run.judge import answered, judge, read_question
from onnxopt_cli.run.reproduce import Observation, observe, reproduces

_COSTLY = frozenset({Outcome.CRASH, Outcome.TIMEOUT, Outcome.OOM, Outcome.PROTOCOL, Outcome.LEAK})


@dataclass(frozen=True, slots=True)
class Trial:
    """An example that was put to a backend.

    Attributes:
        example: the example.
        case: it, as a case.
        result: what came of it.
    """

    example: Example
    case: Case
    result: Result

    @property
    def failed(self) -> bool:
        """True if the result speaks against the backend."""
        outcome = self.result.outcome
        # What a backend does not know, it has refused.
        refused = outcome is Outcome.UNSUPPORTED and bool(self.example.breach)
        return outcome not in HARMLESS and not refused

    @property
    def is_costly(self) -> bool:
        """True if the example cost a process or the timeout."""
        return self.result.outcome in _COSTLY

    @property
    def size(self) -> tuple[int, int]:
        """How large the example is: number of elements, and length of its files."""
        content = self.case.read()
        elements = sum(getattr(value, "size", 0) for value in content.inputs.values())
        return elements, sum(map(len, self.example.files(NAME, "", "").values()))


def attempt(example: Example, executor: Executor) -> Trial:
    """Run an example; what is expected of it is computed while the backend is at work.

    Raises:
        BackendUnavailable: if the backend cannot be started any more, or the user wants to end.
    """
    content = example.content()
    case = Case(f"{SUITE}/{NAME}", Location(Path(f"{NAME}.yaml")), lambda: content)
    pending = executor.submit(Order(content.model, content.inputs))
    judging = JudgeOptions()
    question = answered(read_question(case), judging)
    # An invalid example is a defect of the strategies.
    assert not question.invalid, question.invalid  # noqa: S101 - as said
    formula = question.key and question.key.formula
    if executor.ahead > 1 and formula and not formula.blocks:
        # Limits that are asked for only then would be computed while the backend waits.
        formula.judgements  # noqa: B018 - kept there
    response = pending()
    if isinstance(response, str):
        raise BackendUnavailable(response)
    return Trial(example, case, judge(question, executor.name, response, judging))


#: The kind of failures in which nothing but numbers is wrong.
VALUES = "wrong numbers"

_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|\[[^\]]*\]|\([^)]*\)")
_LONGEST = 120


def kinds_of(trial: Trial) -> tuple[str, ...]:
    """Say of what kinds a failure is, without what differs from example to example.

    Outputs with a wrong type and a wrong shape are of two kinds, whose causes may be two.
    """
    result = trial.result
    if result.outcome is Outcome.FAIL and trial.example.breach:
        return (f"accepted though {trial.example.breach}",)
    if result.outcome is not Outcome.FAIL:
        # When it does not return, the message says only for how long it did not.
        said = "" if result.outcome is Outcome.TIMEOUT else f": {_general(result.message)}"
        return (f"{result.outcome}{said}",)
    structures = [diff for diff in result.diffs if diff.structure is not None]
    if structures:
        return tuple(dict.fromkeys(kind for diff in structures for kind in _structure(diff)))
    if any(diff.mismatches for diff in result.diffs):
        return (VALUES,)
    return ("inputs changed",)


def _structure(diff: Diff) -> list[str]:
    expected_type, _, expected_shape = diff.kind.partition("[")
    found = str(diff.structure).removeprefix("is ")
    actual_type, bracket, actual_shape = found.partition("[")
    if not bracket:
        return [f"an output {_general(str(diff.structure))}"]
    said = [] if actual_type == expected_type else [f"{actual_type} for {expected_type}"]
    said += [] if actual_shape == expected_shape else ["another shape"]
    return said


def _general(message: str) -> str:
    first = message.partition("\n")[0]
    return _NUMBER.sub("#", _QUOTED.sub("...", first))[:_LONGEST]


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
    """All findings of a run.

    Attributes:
        all: their explanations, by kind.
    """

    def __init__(self) -> None:
        self.all: dict[FailureKind, Explanation | None] = {}
        self._passed: dict[str, deque[Trial]] = defaultdict(partial(deque, maxlen=_PASSED))

    def forget_passed(self) -> None:
        """Explain by examples to come alone."""
        self._passed.clear()

    def saw(self, trial: Trial) -> None:
        """Take note of an example that passed."""
        if trial.result.outcome is Outcome.PASS and not trial.example.breach:
            self._passed[trial.example.subject].append(trial)

    def kinds(self, trial: Trial) -> tuple[FailureKind, ...]:
        """Say of what kinds a failure is; wrong numbers are told apart by what explains them."""
        return tuple(self._kind(trial, what) for what in kinds_of(trial))

    def new(self, trial: Trial) -> FailureKind | None:
        """Return the first kind of a failure that was not found before, if there is one."""
        return next((kind for kind in self.kinds(trial) if kind not in self.all), None)

    def _kind(self, trial: Trial, what: str) -> FailureKind:
        example = trial.example
        known = [kind for kind in self.all if kind.what == what]
        if len(example.operators) > 1:
            # What goes wrong with a node alone goes wrong with several, too.
            for kind in known:
                if kind.subject in example.operators:
                    return kind
        known = [kind for kind in known if kind.subject == example.subject]
        if what != VALUES:
            return FailureKind(example.subject, what)
        for kind in known:
            explanation = self.all[kind]
            # What nothing explains may be anything, so that only one such kind can be told.
            if not (explanation and explanation.deviations) or _explains(explanation, trial):
                return kind
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
        self.all[finding.kind] = explained.explanation
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
    seen = observe(trial.result, trial.case, JudgeOptions())
    if not isinstance(seen, Observation) or seen.call.operator.name != explanation.operator:
        return False
    names = [cause.deviations for cause in explanation.causes if cause.deviations]
    mistakes = [named(seen.call.operator, *it) for it in names]
    return any(it is not None and reproduces(it, seen, JudgeOptions()) for it in mistakes)
