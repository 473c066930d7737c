"""Read ``gallery.yaml``, and turn its rows into cases.

A row describes a defect of one runtime: a sentence, the case that shows the defect, and the wrong
and the right value of an element, shape or type of an output. The case comes from another suite or
from ``cases.yaml``. The case of a row has the id ``gallery/<adapter>/<name of the row>``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from onnxopt_cli.backends.specification import parse_specification
from onnxopt_cli.cases.case import Case
from onnxopt_cli.cases.yaml.case_file import read_yaml_text
from onnxopt_cli.core.result import Location
from onnxopt_cli.core.values import Array
from onnxopt_cli.errors import Fault

#: The name of the suite.
GALLERY = "gallery"
#: The version of the suite. Increment the version when a row is added, removed or changed.
VERSION = "3"
#: A value in a row: an element, or a mapping with one of the keys ``shape``, ``type`` and ``text``.
Observation: TypeAlias = float | int | bool | Mapping[str, Any]
#: A function that takes the name of a suite and the stem of an operator's file, and returns the
#: cases and faults of that file; an empty stem stands for all files.
FindCases: TypeAlias = Callable[[str, str], tuple[list[Case], list[Fault]]]


@dataclass(frozen=True, slots=True)
class Defect:
    """A row of the gallery.

    Attributes:
        name: the name of the row, unique within its runtime.
        operator: the operator.
        defect: the behaviour of the runtime, in one sentence.
        case: id of the case that shows the defect; a text without a slash names a case in
            ``cases.yaml``.
        output: the name of the output.
        wrong: what the runtime returns.
        right: what the specification requires.
        element: the index of the element that ``wrong`` and ``right`` are about.
        upstream: the issue or pull request about the defect, or a note that none was found or
            searched for.
        found_by: the suites and searches that show the defect.
        feature: if the runtime accepts and ignores a feature, the opset that introduced the
            feature; otherwise None.
        varies: whether the wrong value differs between runs.
    """

    name: str
    operator: str
    defect: str
    case: str
    output: str
    wrong: Observation
    right: Observation
    element: tuple[int, ...] = ()
    upstream: str = "not searched"
    found_by: tuple[str, ...] = ("onnx-node",)
    feature: int | None = None
    varies: bool = False

    def observe(self, output: Array) -> Observation | None:
        """Return the element, shape or type of an output that ``right`` describes.

        Returns:
            None if the output lacks the element, or if ``right`` is a text.
        """
        if isinstance(self.right, Mapping):
            if "shape" in self.right:
                return {"shape": list(output.shape)}
            return {"type": str(output.dtype)} if "type" in self.right else None
        inside = len(self.element) == output.ndim and all(
            index < size for index, size in zip(self.element, output.shape, strict=True)
        )
        element: Observation | None = output[self.element].item() if inside else None
        return element


@dataclass(frozen=True, slots=True)
class TestedRuntime:
    """A runtime of the gallery.

    Attributes:
        adapter: the name of its adapter or built-in backend.
        title: its name as its documentation writes it.
        distribution: the Python distribution that contains it.
        version: the version of the distribution in which the defects were observed.
        checked: the date of the last check.
        setting: further components and settings that matter, such as the device.
        defects: the rows.
    """

    adapter: str
    title: str
    distribution: str
    version: str
    checked: date
    setting: str
    defects: tuple[Defect, ...]


@cache
def runtimes() -> tuple[TestedRuntime, ...]:
    """Return the runtimes in the order of the file."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    # The C loader is as safe as SafeLoader and ten times as fast.
    document = yaml.load(_text("gallery.yaml"), Loader=loader)  # noqa: S506
    tested: list[TestedRuntime] = []
    for adapter, fields in document.items():
        defects = tuple(map(_defect, fields.pop("defects")))
        tested.append(TestedRuntime(adapter=adapter, defects=defects, **fields))
    return tuple(tested)


def _defect(fields: Mapping[str, Any]) -> Defect:
    sequences = {name: tuple(fields[name]) for name in ("element", "found_by") if name in fields}
    return Defect(**{**fields, **sequences})


def _text(name: str) -> str:
    return resources.files("onnxopt_cli.suites.gallery").joinpath(name).read_text("utf-8")


@cache
def own_cases() -> tuple[Case, ...]:
    """Return the cases of ``cases.yaml``, which are in no other suite."""
    cases, problems = read_yaml_text(_text("cases.yaml"), Path(GALLERY, "cases.yaml"))
    assert not problems, problems  # noqa: S101 - a file of the package
    return tuple(cases)


def gallery_cases(find: FindCases, adapter: str = "") -> tuple[list[Case], list[Fault]]:
    """Return the cases of the rows.

    Args:
        find: finds the cases of other suites.
        adapter: the runtime; if it has no rows, the rows of all runtimes are used.

    Returns:
        The cases, and a fault for each row whose case the installed onnx does not contain.
    """
    chosen = [runtime for runtime in runtimes() if runtime.adapter == adapter] or runtimes()
    needed = {_suite_and_stem(row.case) for runtime in chosen for row in runtime.defects}
    available = {case.id.rpartition("/")[2]: case for case in own_cases()}
    for suite, stem in sorted(needed - {("", "")}):
        available |= {case.id: case for case in find(suite, stem)[0]}
    cases: list[Case] = []
    missing: list[Fault] = []
    for runtime in chosen:
        for row in runtime.defects:
            path = Path(GALLERY, f"{runtime.adapter}.yaml")
            if row.case in available:
                cases.append(_row_case(path, row, available[row.case]))
            else:
                name = f"{path.with_suffix('')}/{row.name}"
                missing.append(Fault(name, f"the installed onnx has no case {row.case}"))
    return cases, missing


def _suite_and_stem(case: str) -> tuple[str, str]:
    """Return the suite of a case, and the stem of its file if each operator has a file."""
    suite, _, rest = case.rpartition("/")[0].partition("/")
    return suite, "" if suite.startswith("onnx-") else rest


def _row_case(path: Path, row: Defect, shown_by: Case) -> Case:
    tags = dict.fromkeys(shown_by.tags)
    if row.feature is not None:
        tags["feature"] = None
    return replace(
        shown_by,
        id=f"{path.parent}/{path.stem}/{row.name}",
        location=Location(path),
        about=row.defect,
        source=shown_by.id,
        tags=tuple(tags),
        suite_version=VERSION,
    )


def targets_for(targets: Sequence[str], backends: Iterable[str]) -> tuple[str, ...]:
    """Limit the target ``gallery`` to the rows of the tested runtimes.

    Args:
        targets: the targets of a run.
        backends: the specifications of its backends.

    Returns:
        The targets. The target ``gallery`` is unchanged if the gallery has no rows of the tested
        runtimes.

    Raises:
        UsageError: if a specification is malformed.
    """
    tested = dict.fromkeys(map(_adapter_name, backends))
    adapters = [runtime.adapter for runtime in runtimes() if runtime.adapter in tested]
    limited: list[str] = []
    for target in targets:
        is_complete = target.partition("@")[0] == GALLERY
        if is_complete and adapters:
            limited += [f"{target}/{adapter}" for adapter in adapters]
        else:
            limited.append(target)
    return tuple(limited)


def _adapter_name(backend: str) -> str:
    """Return the name of an adapter or built-in backend, without version and options."""
    specification = parse_specification(backend)
    return (specification.adapter or specification.name).replace("_", "-")
