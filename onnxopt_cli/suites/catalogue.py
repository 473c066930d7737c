"""The suites by name: the generated suites, and the corpora of the installed onnx.

Import this module late, because it imports everything that generates cases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple
from unicodedata import normalize

import numpy as np

from onnxopt_cli.cases.case import Case, Problem
from onnxopt_cli.cases.onnx.corpora import (
    CORPORA,
    corpus,
    node_contents,
)
from onnxopt_cli.cases.onnx.data_set import directory_files
from onnxopt_cli.cases.onnx.node_model import PLAIN_WIRING, formula_model
from onnxopt_cli.cases.yaml.case_file import read_yaml_text
from onnxopt_cli.cases.yaml.case_writer import CaseTemplate, yaml_text
from onnxopt_cli.core.files import write_atomically
from onnxopt_cli.core.progress import OpenProgress, hide_progress
from onnxopt_cli.core.result import Location
from onnxopt_cli.core.text import (
    FreeNames,
    nearest,
    printable,
    some_of,
)
from onnxopt_cli.core.untrusted_files import Malformed, TooLarge, read_regular_file
from onnxopt_cli.core.values import Array
from onnxopt_cli.errors import Fault, UsageError
from onnxopt_cli.interpret.bound.chained_nodes import bound_trajectory
from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.operators.call import bind, complete_attributes
from onnxopt_cli.operators.operator import Operator
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.suites.conformance import beyond_pairs, conformance
from onnxopt_cli.suites.extremes import many_sizes
from onnxopt_cli.suites.gallery.gallery_suite import GALLERY, gallery_cases
from onnxopt_cli.suites.gradients import GRADIENTS, gradient_cases, gradient_directories
from onnxopt_cli.suites.operators.operator_suite import (
    OPERATORS,
    operator_cases,
    operator_directories,
    operator_files,
)
from onnxopt_cli.suites.pairwise import large, pairwise
from onnxopt_cli.suites.written import published, trajectories

#: The largest number of input elements of a case whose expected outputs are stored in files.
_WRITTEN_ELEMENTS = 1000
_MAX_SHOWN_FILES = 5
_NODE = "onnx-node"


#: Slow suites, whose cases run only if the user names the suite.
NAMED_ONLY = ("pairwise", "large")


class Suite(NamedTuple):
    """A generated suite: a description, its case templates, and its version.

    The version is incremented when a case is added, removed or changed. The id of a removed case is
    never reused.
    """

    about: str
    templates: Callable[[Operator], Iterable[CaseTemplate]]
    version: str


def _of_suite(suite: str, operator: Operator) -> Iterable[CaseTemplate]:
    return conformance(operator) if operator.suite_name == suite else ()


def _all_pairwise(operator: Operator) -> Sequence[CaseTemplate]:
    return (*pairwise(operator), *beyond_pairs(operator))


def _all_large(operator: Operator) -> Sequence[CaseTemplate]:
    return (*large(operator), *many_sizes(operator))


def conformance_suites() -> list[str]:
    """Return the names of the suites with the conformance cases of the operators."""
    return list(dict.fromkeys(operator.suite_name for operator in registry().operators))


def suites() -> dict[str, Suite]:
    """Return the generated suites by name.

    The conformance cases of an operator are in the suite that its declaration names, by default in
    the suite of its domain.
    """
    about = "cases across the input space that wrong implementations fail"
    return {
        "spec": Suite("the examples of the operators' documentation", published, "1"),
        **{suite: Suite(about, partial(_of_suite, suite), "16") for suite in conformance_suites()},
        "trajectories": Suite("many steps, in which errors accumulate", trajectories, "1"),
        "pairwise": Suite("pairs of dimensions of the input space", _all_pairwise, "7"),
        "large": Suite("tensor sizes around those of large blocks", _all_large, "5"),
    }


def suite_names() -> list[str]:
    """Return the names of all suites, including the corpora of the installed onnx."""
    return [*suites(), OPERATORS, GRADIENTS, GALLERY, *CORPORA]


def written_suites() -> list[str]:
    """Return the names of the suites that can be written as files."""
    return [*suites(), OPERATORS, GRADIENTS, _NODE]


def named_suite(
    name: str, open_progress: OpenProgress = hide_progress, stem: str = ""
) -> tuple[list[Case], list[Fault]]:
    """Return the cases of one of :func:`suite_names`, and the faults in the suite's files.

    If ``stem`` is given, a generated suite is limited to the operator whose file has this stem, and
    the suite ``gallery`` to the runtime whose adapter is named ``stem``. If no operator or adapter
    matches ``stem``, all cases are returned.
    """
    if name in CORPORA:
        return corpus(name, open_progress)
    if name == OPERATORS:
        return operator_cases(stem, open_progress), []
    if name == GALLERY:
        return gallery_cases(lambda suite, part: named_suite(suite, open_progress, part), stem)
    if name == GRADIENTS:
        return gradient_cases(), []
    operators = [operator for operator in registry().operators if operator.name.lower() == stem]
    return suite_cases(name, open_progress, operators or None), []


def suite_cases(
    name: str,
    open_progress: OpenProgress = hide_progress,
    operators: Sequence[Operator] | None = None,
) -> list[Case]:
    """Return the cases of a generated suite, as in its files but without outputs.

    Most cases are created directly from their templates, since writing and reading a case file
    takes longer than running its cases. Only templates of refusals and trajectories are written as
    text and read again, because the reader of case files builds their models.
    """
    cases: list[Case] = []
    suite = suites()[name]
    for operator, templates in _by_operator(suite, open_progress, operators):
        path = Path(name, f"{operator.lower()}.yaml")
        read: dict[str, list[Case]] = {}
        if expanded := [template for template in templates if template.rejects or template.steps]:
            text = yaml_text(expanded, suite=f"{name}@{suite.version}")
            read_cases, problems = read_yaml_text(text, path)
            assert not problems, problems  # noqa: S101 - the reader accepts all written files
            for case in read_cases:
                read.setdefault(case.id.split("/")[2], []).append(case)
        for template in templates:
            cases += read.get(template.name) or [_case(template, path, suite.version)]
    return cases


def _by_operator(
    suite: Suite,
    open_progress: OpenProgress = hide_progress,
    operators: Sequence[Operator] | None = None,
) -> Iterator[tuple[str, list[CaseTemplate]]]:
    """Yield the case templates of a suite for each of the operators; None selects all operators."""
    if operators is None:
        operators = registry().operators
    with open_progress("making cases", "operators") as tick:
        for done, operator in enumerate(operators):
            tick(done, len(operators))
            free = FreeNames("{}_{}")
            templates = []
            for template in suite.templates(operator):
                unique_name = free(template.name)
                if unique_name != template.name:
                    template = replace(template, name=unique_name)  # noqa: PLW2901
                templates.append(template)
            if templates:
                yield operator.name, templates


def _case(template: CaseTemplate, path: Path, version: str) -> Case:
    return Case(
        id=f"{path.parent}/{path.stem}/{template.name}",
        location=Location(path),
        load=lambda: _problem(template),
        operators=(template.operator.name,),
        about=template.about,
        source=template.source,
        tags=tuple(template.tags),
        suite_version=version,
    )


class SuiteFiles(NamedTuple):
    """The files of a written suite.

    Attributes:
        files: content by relative path; no two paths differ only in letter case.
        cases: number of cases in the files.
        left_out: for each reason, the number of cases that the format cannot express, or of
            operators that the suite does not cover.
    """

    files: Mapping[str, bytes]
    cases: int
    left_out: Mapping[str, int] = MappingProxyType({})


def yaml_files(name: str) -> SuiteFiles:
    """Return the case files of a suite: ``<suite>/<operator>.yaml`` and its content."""
    suite, cases = suites()[name], 0
    files: list[tuple[str, bytes]] = []
    for operator, templates in _by_operator(suite):
        text = yaml_text(
            [replace(template, outputs=_written_outputs(template)) for template in templates],
            suite=f"{name}@{suite.version}",
            about=f"{operator}: {suite.about}.",
            notes=f"Written by `onnxopt generate {name}`.",
        )
        files.append((f"{name}/{operator.lower()}.yaml", text.encode()))
        cases += len(templates)
    return SuiteFiles(distinct_files(files), cases)


def onnx_files(name: str) -> SuiteFiles:
    """Return the files of a suite as ONNX test directories: ``<suite>/test_<operator>_<case>/...``.

    Published cases keep the names that onnx gives them. Trajectories are models with a Loop.
    """
    contents: dict[str, Problem] = {}
    left_out: Counter[str] = Counter()
    # On some file systems, names that differ only in letter case are the same directory.
    free = FreeNames("{}_{}", alike=str.casefold)
    by_operator = _by_operator(suites()[name])
    templates = [template for _, of_operator in by_operator for template in of_operator]
    for template in templates:
        if template.rejects:
            left_out["refusals, which a test directory cannot express"] += 1
        elif not template.steps:
            prefix = "" if template.source else f"{template.operator.name.lower()}_"
            test = free(f"test_{prefix}{template.name}")
            contents[test] = _problem(template, test=test)
    for case in suite_cases(name) if any(template.steps for template in templates) else []:
        problem = case.load()
        if problem.trajectory is None:
            continue
        if problem.stepwise:
            left_out["trajectories run step by step, which are written as a Loop only"] += 1
            continue
        bounds = bound_trajectory(problem.trajectory)
        outputs = {output: derived.expected for output, derived in bounds.items()}
        _, operator, template_name, _ = case.id.split("/")
        test = free(f"test_{operator}_{template_name}")
        contents[test] = replace(problem, stored=outputs)
    files = (
        (f"{name}/{test}/{path}", data)
        for test, problem in contents.items()
        for path, data in directory_files(problem).items()
    )
    return SuiteFiles(distinct_files(files), len(contents), left_out)


def suite_files(name: str, form: str | None = None) -> SuiteFiles:
    """Return the files of a generated suite, or of onnx's node cases.

    Args:
        name: the name of the suite.
        form: ``yaml`` for YAML files, ``onnx`` for ONNX test directories; None for the default
            format of the suite.

    Raises:
        UsageError: if the suite is unknown or has no files of the requested format.
    """
    if name in suites():
        return onnx_files(name) if form == "onnx" else yaml_files(name)
    if name == OPERATORS:
        from onnxopt_cli.suites.operators.generators import NOT_COVERED

        contents, count = operator_directories() if form == "onnx" else operator_files()
        left_out = {
            f"{reason}: {', '.join(names)}": len(names) for reason, names in NOT_COVERED.items()
        }
        return SuiteFiles(distinct_files(contents), count, left_out)
    if name not in (_NODE, GRADIENTS):
        if name in suite_names():
            hint = f"onnxopt run {name} runs its cases"
            raise UsageError(f"cannot generate {name!r}: it is not a generated suite", hint=hint)
        names = written_suites()
        hint = nearest(name, names, f"the suites are {', '.join(names)}")
        raise UsageError(f"cannot generate {name!r}: unknown suite", hint=hint)
    if form == "yaml":
        raise UsageError(
            f"{name} can only be written as ONNX test directories", hint="omit --format"
        )
    if name == GRADIENTS:
        contents, count = gradient_directories()
        return SuiteFiles(distinct_files(contents), count)
    tests = 0
    files: list[tuple[str, bytes]] = []
    for test, problem in node_contents():
        tests += 1
        files += ((f"node/{test}/{path}", data) for path, data in directory_files(problem).items())
    return SuiteFiles(distinct_files(files), tests)


def distinct_files(files: Iterable[tuple[str, bytes]]) -> dict[str, bytes]:
    """Return a mapping of paths to the contents of files.

    Raises:
        UsageError: if two paths are equal, or are the same file on some file systems.
    """
    contents: dict[str, bytes] = {}
    used: dict[str, str] = {}
    for path, data in files:
        earlier = used.setdefault(normalize("NFC", path).casefold(), path)
        if path in contents or earlier != path:
            other_spelling = f" or {earlier!r}" if earlier != path else ""
            raise UsageError(
                f"two files have the path {path!r}{other_spelling}; nothing was written",
                hint="rename one of the operators, cases or suites that they are named after",
            )
        contents[path] = data
    return contents


def _written_outputs(template: CaseTemplate) -> dict[str, Array] | None:
    """Return the outputs to store.

    The result is None for random or large inputs, for rejection cases and for trajectories.
    """
    arrays = [value for value in template.inputs.values() if isinstance(value, np.ndarray)]
    literal = len(arrays) == len(template.inputs) and not template.rejects and not template.steps
    small = sum(array.size for array in arrays) <= _WRITTEN_ELEMENTS
    return _outputs(template, arrays) if literal and small else None


def _outputs(template: CaseTemplate, inputs: list[Array]) -> dict[str, Array]:
    operator = template.operator
    call = bind(operator, inputs, complete_attributes(operator, template.attributes))
    names = operator.output_names(len(call.groups))
    return dict(zip(names, evaluate(call), strict=True))


def _problem(template: CaseTemplate, test: str = "") -> Problem:
    """Return the content of a case template as a model of one node, with its inputs.

    The content includes outputs if the case is published, or if ``test`` is the name of a test
    directory to which the case is written.
    """
    inputs = [
        value if isinstance(value, np.ndarray) else value.make()
        for value in template.inputs.values()
    ]
    names = list((test and template.onnx_names) or template.inputs)
    fed = dict(zip(names, inputs, strict=True))
    model = formula_model(
        template.operator,
        template.attributes,
        inputs,
        graph_name=test or template.name,
        input_names=names,
    )
    if test:
        # The producer of onnx's own test directories.
        model.producer_name = "backend-test"
    outputs = _outputs(template, inputs) if test or template.source else None
    if template.wiring is not PLAIN_WIRING:
        model = template.wiring.apply(model, fed)
        fed, outputs = template.wiring.fed(fed), outputs and template.wiring.yielded(outputs)
    return Problem(model, fed, outputs)


class Drift(NamedTuple):
    """The differences between a folder and the files that it should contain."""

    missing: tuple[Path, ...]
    different: tuple[Path, ...]
    same: int


def find_drift(folder: Path, files: Mapping[str, bytes]) -> Drift:
    """Compare a folder with the files that it should contain.

    Raises:
        UsageError: if an existing file cannot be read, or is not regular.
    """
    missing, different = [], []
    for name, data in files.items():
        path = folder / name
        try:
            if not path.exists():
                missing.append(path)
            elif read_regular_file(path, len(data)) != data:
                different.append(path)
        except TooLarge:
            different.append(path)
        except Malformed as error:
            raise UsageError(f"{printable(str(path))} {error}") from error
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    same = len(files) - len(missing) - len(different)
    return Drift(tuple(missing), tuple(different), same)


def write_tree(folder: Path, files: Mapping[str, bytes], *, force: bool) -> Drift:
    """Write the missing files.

    With ``force``, files that differ are also written.

    Returns:
        The differences before writing.

    Raises:
        UsageError: if a file differs and ``force`` is off (nothing is written then), or if a file
            cannot be written.
    """
    drift = find_drift(folder, files)
    if drift.different and not force:
        raise UsageError(
            f"{some_of([*map(str, drift.different)], _MAX_SHOWN_FILES)} would change; "
            "nothing was written",
            hint="--force overwrites, --check only compares, -o writes elsewhere",
        )
    for path in (*drift.missing, *drift.different):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot create {path.parent}: {error.strerror or error}") from error
        write_atomically(path, files[path.relative_to(folder).as_posix()])
    return drift
