"""From what the user named - paths, suites, ids - to cases."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from typing import NamedTuple, TypeAlias

from onnxopt_cli.cases.case import Case
from onnxopt_cli.cases.onnx.directory import (
    MAX_ENTRIES,
    find_directories,
    find_model_cases,
)
from onnxopt_cli.cases.tensors.declared import USUAL_MEMORY
from onnxopt_cli.cases.tensors.regular_file import Malformed, open_regular_file
from onnxopt_cli.cases.yaml.case_file import read_apart, read_yaml_file
from onnxopt_cli.core.location import Location
from onnxopt_cli.core.progress import Telling, silently
from onnxopt_cli.core.result import OUTSIDE_CASES
from onnxopt_cli.core.text import nearest, printable
from onnxopt_cli.errors import (
    Fault,
    NothingSelected,
    UsageError,
)
from onnxopt_cli.operators.registry import registry

_YAML = (".yaml", ".yml", ".json")
# Other JSON files than case files may lie beside these.
_CASES = re.compile(rb'"onnxopt"\s*:\s*\d')
_HEAD = 1 << 16
# Of a folder, where a misspelt name is looked for.
_MOST_NAMES = 1000
_DEFAULT = "cases"
_Found: TypeAlias = tuple[list[Case], list[Fault]]
# Those of the suites that were asked for so far: finding them takes a second.
_Suites: TypeAlias = dict[tuple[object, ...], _Found]
#: Calls a function with each of many files, in order, perhaps in other processes.
Each: TypeAlias = Callable[
    [Callable[[Path], _Found | None], Sequence[Path]], Iterable[_Found | None]
]
# Bytes of case files from which on other processes are worth starting to read them.
_PROGRESS_BYTES = 4 << 20


class Collection(NamedTuple):
    """The cases found, in a stable order, and what was wrong with files that gave none."""

    cases: tuple[Case, ...]
    problems: tuple[Fault, ...]


def suite_versions(cases: Sequence[Case]) -> dict[str, str]:
    """Return the version of each suite that states one.

    Raises:
        UsageError: if two cases of a suite state different ones.
    """
    first: dict[str, Case] = {}
    for case in cases:
        if case.suite_version:
            other = first.setdefault(case.suite, case)
            if other.suite_version != case.suite_version:
                raise UsageError(
                    f"two versions of the suite {printable(case.suite)}: {other.suite_version} in "
                    f"{other.location} and {case.suite_version} in {case.location}",
                    hint="run them one after the other",
                )
    return {suite: case.suite_version for suite, case in first.items()}


def require_version(pin: str, suites: Mapping[str, str], where: str = "") -> None:
    """Refuse a suite of another version than the one that was asked for.

    Args:
        pin: suite and version, as in ``conformance@2``.
        suites: the versions that there are; others than the suite's are not looked at.
        where: the file and line that asks.

    Raises:
        UsageError: says what to do.
    """
    suite, _, wanted = pin.partition("@")
    found = suites.get(suite, wanted)
    if found != wanted:
        package = "onnx" if suite.startswith("onnx-") else "onnxopt"
        raise UsageError(
            printable(f"{where}{': ' * bool(where)}{pin} is asked for, here is {suite}@{found}"),
            hint=f"install the {package} that has it; or see what is new in {suite}@{found}, "
            "and ask for that",
        )


def default_targets() -> list[str]:
    """Return the folder ``cases``, or where there is none the suites that come with onnxopt."""
    if Path(_DEFAULT).is_dir():
        return [f"{_DEFAULT}/"]
    from onnxopt_cli.suites.catalogue import NAMED_ONLY, suites

    return [name for name in suites() if name not in NAMED_ONLY]


def collect(
    targets: Sequence[str],
    memory: int = USUAL_MEMORY,
    each: Each | None = None,
    telling: Telling = silently,
) -> Collection:
    """Find the cases that the targets name.

    Args:
        targets: files, folders, names of suites or ids; none means the default ones.
        memory: bytes that a case of a case file may take; 0 for no limit.
        each: reads the many files of a folder.
        telling: opens what takes note how many files are read, or made, and how many there are.

    Raises:
        UsageError: if a target is neither, two different cases have one id, or one has an id that
            results outside of cases have.
        NothingSelected: if the targets hold neither a case nor a problem.
    """
    targets = targets or default_targets()
    cases: dict[str, Case] = {}
    problems: list[Fault] = []
    suites: _Suites = {}
    for target in targets:
        found, wrong = _find(target, suites, memory, each, telling)
        problems += [problem for problem in wrong if problem not in problems]
        for case in found:
            if case.id.startswith(f"{OUTSIDE_CASES}/"):
                raise UsageError(
                    f"{case.location}: no suite may have the name {OUTSIDE_CASES}",
                    hint="it stands for what backends do outside of cases; rename the suite",
                )
            other = cases.setdefault(case.id, case)
            if other is not case and not _same_place(other.location, case.location):
                raise UsageError(
                    f"two cases have the id {printable(case.id)}: "
                    f"{other.location} and {case.location}",
                    hint="run them one after the other, or rename the suite of one, or its folder",
                )
    if not cases and not problems:
        raise NothingSelected(
            f"no case in {', '.join(map(printable, targets))}",
            hint="cases are .yaml or .json files, or ONNX test directories with a model.onnx",
        )
    return Collection(tuple(cases.values()), tuple(problems))


def find_again(places: Mapping[str, Location]) -> dict[str, Case]:
    """Find cases of an earlier run by their ids and where they stood.

    Args:
        places: the location of each case by its id.

    Returns:
        The cases by id; those that are no longer there are left out.
    """
    targets = {
        str(place.path) if place.path.exists() else case.partition("/")[0]
        for case, place in places.items()
    }
    found: dict[str, Case] = {}
    suites: _Suites = {}
    for target in sorted(targets):
        with suppress(UsageError):
            found |= {case.id: case for case in _find(target, suites, 0)[0] if case.id in places}
    return found


def _find(
    target: str,
    suites: _Suites,
    memory: int,
    each: Each | None = None,
    telling: Telling = silently,
) -> _Found:
    if not target:
        # An unset variable of a script; as a path it would be the current folder.
        raise UsageError("a target is empty", hint="write . for the current folder")
    path = Path(target)
    if path.is_dir():
        return _find_in_folder(path, memory, each, telling)
    if path.exists():
        if path.suffix.lower() in _YAML:
            return read_yaml_file(path, memory)
        if path.suffix == ".onnx":
            return find_model_cases(path)
        raise UsageError(
            f"{printable(target)} is not a case file",
            hint="cases are .yaml or .json files, or ONNX test directories with a model.onnx",
        )
    if path.is_symlink():
        raise UsageError(
            f"{printable(target)} is a link that leads nowhere",
            hint="mend it, or name what it should lead to",
        )
    return _find_named(target, suites, telling)


def _find_named(target: str, suites: _Suites, telling: Telling) -> _Found:
    from onnxopt_cli.suites.catalogue import named_suite, suite_names

    name, _, rest = target.partition("/")
    suite, at, pinned = name.partition("@")
    known = suite_names()
    if suite not in known:
        likely = [nearest(suite, known), _near_path(Path(target))]
        if "/" in target:
            likely.reverse()
        raise UsageError(
            f"there is no path, suite or case {printable(target)}",
            hint=next(filter(None, likely), f"the suites are {', '.join(known)}"),
        )
    # To make all of a suite for a case of one operator takes seconds.
    stem = rest.partition("/")[0]
    operators = [
        operator for operator in registry().operators if operator.name.lower() == stem
    ] or registry().operators
    part = suite, *operators
    if part not in suites:
        suites[part] = named_suite(suite, telling, operators)
    found, problems = suites[part]
    if at:
        require_version(f"{suite}@{pinned}", suite_versions(found))
    if not rest:
        return found, problems
    wanted = f"{suite}/{rest}".rstrip("/")
    chosen = [case for case in found if f"{case.id}/".startswith(f"{wanted}/")]
    if not chosen:
        near = nearest(target, [case.id for case in found], f"onnxopt list {suite} shows all")
        raise UsageError(f"the suite {suite} has no case {printable(target)}", hint=near)
    return chosen, []


def _near_path(path: Path) -> str:
    """Ask for what has a name like the first that is not there; empty if nothing has."""
    while not (folder := path.parent).is_dir():
        if folder == path:
            return ""
        path = folder
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, _MOST_NAMES)]
    except OSError:
        return ""
    near = printable(nearest(path.name, names))
    return f"{near[:-1]} in {printable(str(folder))}?" if near and folder != Path() else near


def _find_in_folder(folder: Path, memory: int, each: Each | None, telling: Telling) -> _Found:
    """Find case files and ONNX directories under a folder; hidden folders are left out."""
    cases, problems = find_directories(folder)
    paths: list[Path] = []
    left = MAX_ENTRIES
    for parent, folders, files in os.walk(folder):
        left -= len(folders) + len(files)
        if left < 0:
            what = f"is not searched for case files: {MAX_ENTRIES} files and folders come before it"
            problems.append(Fault(parent, what))
            break
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found = [Path(parent, name) for name in sorted(files) if not name.startswith(".")]
        paths += filter(_may_hold_cases, found)
    apart: Iterable[_Found | None] = repeat(None)
    if each and sum(map(_size, paths)) > _PROGRESS_BYTES:
        apart = each(partial(read_apart, memory=memory), paths)
    with telling("reading", "files") as tick:
        for done, (path, sent) in enumerate(zip(paths, apart, strict=False), start=1):
            read, wrong = sent or read_yaml_file(path, memory)
            cases += read
            problems += wrong
            tick(done, len(paths))
    return cases, problems


def _size(path: Path) -> int:
    """Return the size of a file; 0 where it cannot be seen, which its reader says."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _may_hold_cases(path: Path) -> bool:
    suffix = path.suffix.lower()
    if suffix != ".json":
        return suffix in _YAML
    try:
        with open_regular_file(str(path)) as (descriptor, _):
            return _CASES.search(os.read(descriptor, _HEAD)) is not None
    except (Malformed, OSError):
        return False


def _same_place(one: Location, other: Location) -> bool:
    return one.line == other.line and os.path.realpath(one.path) == os.path.realpath(other.path)
