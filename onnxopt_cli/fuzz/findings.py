"""Run examples, classify their failures, and keep the findings of a search."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path

from onnxopt_cli.analysis.explanation.explain import explain
from onnxopt_cli.backends.host import Request
from onnxopt_cli.cases.case import Case
from onnxopt_cli.cases.onnx.model_file import read_model
from onnxopt_cli.cases.yaml.case_file import read_yaml_file
from onnxopt_cli.config.run_config import Judging
from onnxopt_cli.core.files import write_atomically
from onnxopt_cli.core.record import Explanation
from onnxopt_cli.core.result import (
    HARMLESS,
    PROCESS_FAILURES,
    Diff,
    Location,
    Outcome,
    Result,
)
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import BackendUnavailable, InvalidCase, UsageError
from onnxopt_cli.fuzz.choices import NAME, SUITE
from onnxopt_cli.fuzz.drawn_examples import Example, GeneratedExample
from onnxopt_cli.fuzz.random_graph import RandomGraph
from onnxopt_cli.interpret.evaluate import has_blocks
from onnxopt_cli.mutation.known_mistakes import named
from onnxopt_cli.oracle.oracles import Oracles, resolved
from onnxopt_cli.oracle.reference_oracle import estimated_here
from onnxopt_cli.run.executors import Executor, InProcess, run_on
from onnxopt_cli.run.judge import judge
from onnxopt_cli.run.reproduce import (
    Observation,
    observe,
    reproduces,
)

# Kinds of examples without a formula. Their tolerances are condition estimates.
_ESTIMATED = (GeneratedExample, RandomGraph)
#: The description of failures in which types and shapes are correct, but values are wrong.
VALUES = "wrong numbers"
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|\[[^\]]*\]|\([^)]*\)")
_MAX_KIND_CHARS = 120
# A known mistake explains a failure only if the mistake also agrees with the latest
# _PASSED_PER_OPERATOR passing examples of the operator.
_PASSED_PER_OPERATOR = 100
# Characters that are replaced in names of files.
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
_MAX_STEM_CHARS = 60


@dataclass(frozen=True, slots=True)
class Trial:
    """An example that has run on a backend.

    Attributes:
        example: the example.
        case: the example as a case.
        result: the result of the case.
    """

    example: Example
    case: Case
    result: Result

    @property
    def failed(self) -> bool:
        """Whether the result is a failure of the backend."""
        outcome = self.result.outcome
        # The outcome `unsupported` is not a failure in two cases. First, an invalid node may be
        # rejected in any way. Second, few backends support all versions and types of ONNX's
        # operators.
        refused = outcome is Outcome.UNSUPPORTED and (
            bool(self.example.breach) or isinstance(self.example, _ESTIMATED)
        )
        return outcome not in HARMLESS and not refused

    @property
    def is_costly(self) -> bool:
        """Whether the worker must be restarted, because the backend crashed or reached a limit."""
        return self.result.outcome in PROCESS_FAILURES

    @property
    def size(self) -> tuple[int, int]:
        """The number of input elements, and the number of bytes of the case's files."""
        problem = self.case.load()
        elements = sum(getattr(value, "size", 0) for value in problem.inputs.values())
        return elements, sum(map(len, self.example.files(NAME, "", "").values()))


def attempt(example: Example, executor: Executor) -> Trial:
    """Run an example on a backend, and compute the expected result at the same time.

    Raises:
        BackendUnavailable: if the backend cannot be restarted, or the user interrupted the search.
    """
    problem = example.problem()
    case = Case(f"{SUITE}/{NAME}", Location(Path(f"{NAME}.yaml")), lambda: problem)
    request = Request(problem.model, problem.inputs)
    pending = executor.submit(request)
    judging = Judging()
    problem = case.load()
    if isinstance(example, _ESTIMATED):
        expected = estimated_here(problem)
    else:
        expected = resolved(Oracles(judging).expected(problem))
    assert not expected.unusable, expected.unusable  # noqa: S101 - a defect of the strategies
    runs_elsewhere = not (isinstance(executor, InProcess) and executor.runs_here(request))
    if runs_elsewhere and expected.derive and problem.call and not has_blocks(problem.call):
        # The error bounds are derived while the backend runs the example. Otherwise, judge() would
        # derive them while the backend is idle. If the backend runs in this process, it cannot run
        # at the same time. Then judge() derives the bounds, and only if an output differs from the
        # expected output.
        expected.derive()
    response = pending()
    if isinstance(response, str):
        raise BackendUnavailable(response)
    math = executor.specification.math
    result = judge(case, problem, expected, executor.name, response, judging, math)
    return Trial(example, case, result)


def kinds_of(trial: Trial) -> tuple[str, ...]:
    """Return descriptions of a failure, without details that differ between examples.

    A wrong type and a wrong shape have separate descriptions, because their causes may differ.
    """
    result = trial.result
    if result.outcome is Outcome.FAIL and trial.example.breach:
        return (f"accepted though {trial.example.breach}",)
    if result.outcome is not Outcome.FAIL:
        # The message of a timeout states only the duration.
        detail = "" if result.outcome is Outcome.TIMEOUT else f": {_general(result.message)}"
        return (f"{result.outcome}{detail}",)
    structures = [diff for diff in result.diffs if diff.structure is not None]
    if structures:
        return tuple(dict.fromkeys(kind for diff in structures for kind in _structure(diff)))
    if any(diff.mismatches for diff in result.diffs):
        return (VALUES,)
    return ("inputs changed",)


def _structure(diff: Diff) -> list[str]:
    expected_type, _, expected_shape = diff.kind.partition("[")
    actual = str(diff.structure).removeprefix("is ")
    actual_type, bracket, actual_shape = actual.partition("[")
    if not bracket:
        return [f"an output {_general(str(diff.structure))}"]
    kinds = [] if actual_type == expected_type else [f"{actual_type} for {expected_type}"]
    kinds += [] if actual_shape == expected_shape else ["another shape"]
    return kinds


def _general(message: str) -> str:
    first = message.partition("\n")[0]
    return _NUMBER.sub("#", _QUOTED.sub("...", first))[:_MAX_KIND_CHARS]


@dataclass(frozen=True, slots=True)
class FailureKind:
    """A kind of failure, which several examples may have.

    Attributes:
        subject: name of the operator, or ``several nodes`` or ``random graph``.
        description: description of the failure.
        number: distinguishes kinds with the same subject and description; the first number is 1.
    """

    subject: str
    description: str
    number: int = 1


@dataclass(frozen=True, slots=True)
class Finding:
    """A distinct failure.

    Attributes:
        kind: the kind of the failure; the example may also have failures of other kinds.
        trial: the smallest example with the failure.
        explanation: the known mistakes that reproduce the failure; None if no search took place.
        flaky: whether the example fails in some runs and passes in others.
        replayed: whether an earlier run found the failure.
    """

    kind: FailureKind
    trial: Trial
    explanation: Explanation | None = None
    flaky: bool = False
    replayed: bool = False

    @property
    def subject(self) -> str:
        """The subject of the failure; for a random graph, the operators of the smallest example."""
        example = self.trial.example
        return example.subgraph if isinstance(example, RandomGraph) else self.kind.subject

    @property
    def result(self) -> Result:
        """The result of the smallest example."""
        return self.trial.result


class Findings:
    """All findings of a run.

    Args:
        executor: runs the generated inputs that test explanations.

    Attributes:
        all: explanations of the findings, by kind.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.all: dict[FailureKind, Explanation | None] = {}
        self._traits: dict[FailureKind, frozenset[Hashable]] = {}
        self._passed: dict[str, deque[Trial]] = defaultdict(
            partial(deque, maxlen=_PASSED_PER_OPERATOR)
        )

    def forget_passed(self) -> None:
        """Forget the passing examples; later explanations need not agree with them."""
        self._passed.clear()

    def record(self, trial: Trial) -> None:
        """Store a passing example; explanations of later failures must agree with it."""
        if trial.result.outcome is Outcome.PASS and not trial.example.breach:
            self._passed[trial.example.subject].append(trial)

    def kinds(self, trial: Trial) -> tuple[FailureKind, ...]:
        """Return the kinds of a failure.

        A failure with wrong values belongs to a known kind if the explanation of that kind also
        explains this failure.
        """
        return tuple(self._kind(trial, description) for description in kinds_of(trial))

    def new(self, trial: Trial) -> FailureKind | None:
        """Return the first new kind of a failure; None if all kinds of the failure are known."""
        return next((kind for kind in self.kinds(trial) if kind not in self.all), None)

    def _kind(self, trial: Trial, description: str) -> FailureKind:
        example = trial.example
        known_kinds = [kind for kind in self.all if kind.description == description]
        if len(example.operators) > 1 and not isinstance(example, RandomGraph):
            # An operator that fails in a single node also fails in models with several nodes.
            for kind in known_kinds:
                if kind.subject in example.operators:
                    return kind
        known_kinds = [kind for kind in known_kinds if kind.subject == example.subject]
        if description != VALUES:
            return FailureKind(example.subject, description)
        if isinstance(example, _ESTIMATED):
            # Each kind has a shrunk example. If an example has all traits (types, attributes,
            # inputs) of a shrunk example, it most likely fails for the same reason.
            for kind in known_kinds:
                if self._traits.get(kind, frozenset()) <= example.traits:
                    return kind
            return FailureKind(example.subject, description, len(known_kinds) + 1)
        for kind in known_kinds:
            explanation = self.all[kind]
            # Failures without an explanation cannot be distinguished. Therefore, all of them belong
            # to the same kind.
            if not (explanation and explanation.known_mistakes) or _explains(explanation, trial):
                return kind
        return FailureKind(example.subject, description, len(known_kinds) + 1)

    def add(self, finding: Finding, similar: Sequence[Trial], seconds: float) -> Finding:
        """Explain a finding and store it.

        Args:
            finding: a finding without an explanation.
            similar: other failures of the kind. The explanation must also reproduce the first of
                these failures that has the same descriptions as the finding.
            seconds: time limit of the search for an explanation; 0 to skip the search.
        """
        explained = replace(finding, explanation=self._explanation(finding, similar, seconds))
        self.all[finding.kind] = explained.explanation
        if isinstance(finding.trial.example, _ESTIMATED):
            self._traits[finding.kind] = finding.trial.example.traits
        return explained

    def _explanation(
        self, finding: Finding, similar: Sequence[Trial], seconds: float
    ) -> Explanation | None:
        if not seconds or isinstance(finding.trial.example, _ESTIMATED):
            return None
        kinds = kinds_of(finding.trial)
        same = [trial for trial in similar if kinds_of(trial) == kinds][:1]
        passed = self._passed.get(finding.kind.subject, ())
        trials = {str(place): trial for place, trial in enumerate((finding.trial, *same, *passed))}
        results = [replace(trial.result, case=name) for name, trial in trials.items()]
        cases = {name: trial.case for name, trial in trials.items()}
        explanations = explain(
            results,
            cases,
            seconds=seconds,
            query_seconds=0.0,
            ask=lambda _, model, inputs: run_on(self._executor, model, inputs),
        )
        return explanations[0] if explanations else None


def _explains(explanation: Explanation, trial: Trial) -> bool:
    """Return whether the known mistakes of an explanation also reproduce another failure."""
    observation = observe(trial.result, trial.case, Judging())
    if not isinstance(observation, Observation):
        return False
    operator = observation.call.operator
    if operator.name != explanation.operator:
        return False
    mistakes = [
        named(operator, *cause.known_mistakes)
        for cause in explanation.causes
        if cause.known_mistakes
    ]
    return any(
        mistake is not None and reproduces(mistake, observation, Judging()) for mistake in mistakes
    )


def keep(finding: Finding, folder: Path, headline: str, source: str) -> Path:
    """Write a finding as a case that ``onnxopt run`` accepts, without overwriting any file.

    Args:
        finding: the finding.
        folder: the destination; created if it does not exist.
        headline: the failure in one line.
        source: the command that found the failure.

    Returns:
        The path of the new case file or test directory, or of an existing one that contains the
        same example.

    Raises:
        UsageError: if the case cannot be written.
    """
    example = finding.trial.example
    about = f"Found by fuzzing: {printable(headline)}"
    words = f"{finding.subject} {finding.kind.description}".lower()
    stem = _NOT_IN_NAMES.sub("_", words).strip("_")[:_MAX_STEM_CHARS].rstrip("_")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted((*folder.glob("*.yaml"), *folder.glob("test_*/"))):
            if _holds(path, example):
                return path
        for number in count(1):
            name = stem if number == 1 else f"{stem}_{number}"
            files = example.files(name, about, printable(source))
            if _write(folder, files):
                break
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror or error}") from error
    # The case file, or the directory of the case.
    return folder / Path(next(iter(files))).parts[0]


def _write(folder: Path, files: Mapping[str, bytes]) -> bool:
    """Write new files, and return whether they were written.

    If any of the files exists, no file is written. Another run may write to the same folder at the
    same time.
    """
    written: list[Path] = []
    try:
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / name, data, new=True)
            written.append(folder / name)
    except FileExistsError:
        for path in written:
            path.unlink()
        return False
    return True


def _holds(path: Path, example: Example) -> bool:
    """Return whether a case file or directory contains an example.

    The description of the case is ignored.
    """
    if path.is_dir() != isinstance(example, RandomGraph):
        return False
    if path.is_dir():
        try:
            model = read_model(path / "model.onnx")
        except InvalidCase:
            return False
        files = example.files(path.name.removeprefix("test_"), model.doc_string, "")
    else:
        cases, _ = read_yaml_file(path)
        if len(cases) != 1:
            return False
        files = example.files(path.stem, cases[0].about, cases[0].source)
    return all(
        file.is_file() and file.stat().st_size == len(data) and file.read_bytes() == data
        for file, data in ((path.parent / name, data) for name, data in files.items())
    )
