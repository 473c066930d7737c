"""The suites by name: ours, generated from declarations, and the corpora of the installed onnx.

Imported only when a name is looked up, since it brings everything that makes cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path

from onnxopt_cli.cases.onnx.corpora import CORPORA, corpus
from onnxopt_cli.cases.onnx.data_set import directory_files
from onnxopt_cli.cases.onnx.node_model import formula_model
from onnxopt_cli.cases.suites.author import Question
from onnxopt_cli.cases.suites.conformance import conformance
from onnxopt_cli.cases.suites.published import published
from onnxopt_cli.cases.suites.trajectories import trajectories
from onnxopt_cli.cases.values.declared import RandomTensor
from onnxopt_cli.cases.yaml.file import read_yaml_text
from onnxopt_cli.cases.yaml.writer import WrittenCase, yaml_text
from onnxopt_cli.core.case import Case, Content
from onnxopt_cli.core.files import write_atomically
from onnxopt_cli.core.values import Array
from onnxopt_cli.errors import Problem, UsageError
from onnxopt_cli.formula.call import bind, complete_attributes
from onnxopt_cli.formula.operator import Operator
from onnxopt_cli.operators import OPERATORS
from onnxopt_cli.readings.bound.chained import bound_trajectory
from onnxopt_cli.readings.evaluate import evaluate

#: Expected outputs with more elements are left to the formula, to keep the files small.
_WRITTEN_ELEMENTS = 1000


@dataclass(frozen=True, slots=True)
class Suite:
    """A suite of ours: what it is, and what it asks."""

    about: str
    questions: Callable[[], list[Question]]


def _conformance(suite: str) -> list[Question]:
    return [
        question
        for operator in OPERATORS
        if operator.suite_name == suite
        for question in conformance(operator)
    ]


#: By name. Each operator is in the suite that it says, or in that of its domain.
SUITES: Mapping[str, Suite] = {
    "spec": Suite("the cases that the operators' documentation publishes", published),
    **{
        suite: Suite(
            "what a wrong implementation fails, over the whole space of inputs",
            partial(_conformance, suite),
        )
        for suite in dict.fromkeys(operator.suite_name for operator in OPERATORS)
    },
    "trajectories": Suite("what a wrong implementation drifts from in many steps", trajectories),
}


def suite_cases(name: str) -> list[Case]:
    """Return the cases of a suite, the same as from its files."""
    cases: list[Case] = []
    for path, text in yaml_files(name):
        found, problems = read_yaml_text(text, Path(path))
        assert not problems, problems  # noqa: S101 - what we write, we read
        cases += found
    return cases


def yaml_files(name: str) -> Iterator[tuple[str, str]]:
    """Yield the case files of a suite: ``<suite>/<operator>.yaml`` and its text."""
    suite = SUITES[name]
    for operator, questions in _by_operator(suite.questions()):
        text = yaml_text(
            [_written(question) for question in questions],
            suite=name,
            operator=operator,
            about=f"{operator.name}: {suite.about}.",
            notes=f"Written by `onnxopt generate {name}`.",
        )
        yield f"{name}/{operator.name.lower()}.yaml", text


def onnx_files(name: str) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a suite as ONNX test directories: path and content.

    Questions whose answer is a refusal are left out: the layout cannot say so. Trajectories are
    models with a Loop.
    """
    questions = SUITES[name].questions()
    for question in questions:
        if not question.rejects and question.steps is None:
            for path, data in directory_files(_content(question)).items():
                yield f"{name}/test_{question.name}/{path}", data
    if any(question.steps for question in questions):
        for case, content in _looped(name):
            for path, data in directory_files(content).items():
                yield f"{name}/test_{case}/{path}", data


def _looped(name: str) -> Iterator[tuple[str, Content]]:
    """Yield the trajectories of a suite as models with a Loop, and what these must return."""
    for case in suite_cases(name):
        content = case.read()
        if content.trajectory is not None and not content.stepwise:
            judgements = bound_trajectory(content.trajectory)
            outputs = {output: it.expected for output, it in judgements.items()}
            _, operator, question, _ = case.id.split("/")
            yield f"{operator}_{question}", replace(content, expected=outputs)


def _by_operator(questions: list[Question]) -> Iterator[tuple[Operator, Iterator[Question]]]:
    for _, group in groupby(questions, key=lambda question: question.operator.name):
        first, *rest = group
        yield first.operator, iter([first, *rest])


def _written(question: Question) -> WrittenCase:
    return WrittenCase(
        name=question.name,
        inputs=question.inputs,
        attributes=question.attributes,
        outputs=_answer(question),
        about=question.about,
        source=question.source,
        tags=tuple(question.tags),
        rejects=question.rejects,
        notes=question.notes,
        steps=question.steps,
    )


def _answer(question: Question) -> dict[str, Array] | None:
    """Return the outputs to be written; None if there are none or they are too large."""
    inputs = list(question.inputs.values())
    arrays = [value for value in inputs if not isinstance(value, RandomTensor)]
    elements = sum(array.size for array in arrays)
    if (
        question.rejects
        or question.steps
        or len(arrays) < len(inputs)
        or elements > _WRITTEN_ELEMENTS
    ):
        return None
    return _outputs(question, arrays)


def _outputs(question: Question, inputs: list[Array]) -> dict[str, Array]:
    operator = question.operator
    call = bind(operator, inputs, complete_attributes(operator, question.attributes))
    names = operator.output_names(len(call.groups))
    return dict(zip(names, evaluate(call), strict=True))


def _content(question: Question) -> Content:
    inputs = [
        value.make() if isinstance(value, RandomTensor) else value
        for value in question.inputs.values()
    ]
    names = list(question.onnx_names or question.inputs)
    model = formula_model(
        question.operator,
        question.attributes,
        inputs,
        graph_name=f"test_{question.name}",
        producer_name="backend-test",
        input_names=names,
    )
    outputs = _outputs(question, inputs)
    return Content(model, dict(zip(names, inputs, strict=True)), outputs)


#: Those that come with onnxopt.
OWN = tuple(SUITES)

NAMES = (*SUITES, *CORPORA)


def named_suite(name: str) -> tuple[list[Case], list[Problem]]:
    """Return the cases of one of :data:`NAMES`, and what is wrong with its files."""
    return corpus(name) if name in CORPORA else (suite_cases(name), [])


_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Drift:
    """How a folder differs from what should be in it; paths as they would be written."""

    missing: tuple[Path, ...]
    different: tuple[Path, ...]
    same: int

    def __bool__(self) -> bool:
        """Tell whether there is any difference."""
        return bool(self.missing or self.different)


def find_drift(folder: Path, files: Iterable[tuple[str, bytes]]) -> Drift:
    """Compare a folder with the files that should be in it.

    Raises:
        UsageError: if a file that is there cannot be read.
    """
    missing, different, same = [], [], 0
    for name, data in files:
        path = folder / name
        try:
            if path.read_bytes() == data:
                same += 1
            else:
                different.append(path)
        except FileNotFoundError:
            missing.append(path)
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    return Drift(tuple(missing), tuple(different), same)


def write_tree(folder: Path, files: Iterable[tuple[str, bytes]], *, force: bool) -> Drift:
    """Write the files that are missing, and under force those that differ; all or none.

    Returns:
        What was different before.

    Raises:
        UsageError: if a file differs and force is off, or something cannot be written.
    """
    wanted = dict(files)
    drift = find_drift(folder, wanted.items())
    if drift.different and not force:
        names = ", ".join(map(str, drift.different[:_SHOWN]))
        more = (
            "" if len(drift.different) <= _SHOWN else f" and {len(drift.different) - _SHOWN} more"
        )
        raise UsageError(
            f"{names}{more} would change; nothing was written",
            hint="--force overwrites, --check only compares, -o writes elsewhere",
        )
    for path in (*drift.missing, *drift.different):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot create {path.parent}: {error.strerror or error}") from error
        write_atomically(path, wanted[path.relative_to(folder).as_posix()])
    return drift
