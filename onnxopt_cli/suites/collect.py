"""Find the cases that the user names by path, suite or id."""

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
from onnxopt_cli.cases.onnx.bare_model import require_settings_of_models
from onnxopt_cli.cases.onnx.directory import (
    MAX_ENTRIES,
    find_directories,
    find_model_cases,
    is_data_set,
)
from onnxopt_cli.cases.tensors.declared import DEFAULT_MEMORY
from onnxopt_cli.cases.yaml.case_file import read_apart, read_yaml_file
from onnxopt_cli.config.run_config import DRAWN_INPUTS, ModelInputs
from onnxopt_cli.core.progress import OpenProgress, hide_progress
from onnxopt_cli.core.result import OUTSIDE_CASES, Location
from onnxopt_cli.core.text import nearest, printable
from onnxopt_cli.core.untrusted_files import Malformed, open_regular_file
from onnxopt_cli.errors import (
    Fault,
    NothingSelected,
    UsageError,
)
from onnxopt_cli.operators.registry import registry

_YAML = (".yaml", ".yml", ".json")
# The text by which JSON files in a folder are recognized as case files.
_CASE_FILE = re.compile(rb'"onnxopt"\s*:\s*\d')
_HEAD_BYTES = 1 << 16
# The largest number of names in a folder that are compared with a misspelt name.
_MAX_NAMES = 1000
# The least similarity, from 0 to 1, at which an id is suggested instead of a similar path.
_SIMILAR_IDS = 0.8
# The largest number of files and folders among which the file of an id is searched.
_MAX_SEARCHED = 20_000
_DEFAULT = "cases"
_Found: TypeAlias = tuple[list[Case], list[Fault]]
# Cache of generated suites, because generating a suite takes about a second.
_Suites: TypeAlias = dict[tuple[object, ...], _Found]
#: Calls a function with each of many paths, possibly in other processes, and returns the results in
#: the order of the paths.
Each: TypeAlias = Callable[
    [Callable[[Path], _Found | None], Sequence[Path]], Iterable[_Found | None]
]
# Case files with fewer bytes in total are read in this process, because starting other processes
# takes longer.
_PARALLEL_MIN_BYTES = 4 << 20


class Collection(NamedTuple):
    """The cases that were found, in a stable order, and the faults of unreadable files."""

    cases: tuple[Case, ...]
    problems: tuple[Fault, ...]


def suite_versions(cases: Sequence[Case]) -> dict[str, str]:
    """Return the version of each suite that has a version.

    Raises:
        UsageError: if two cases of a suite have different versions.
    """
    first: dict[str, Case] = {}
    for case in cases:
        if case.suite_version:
            earlier = first.setdefault(case.suite, case)
            if earlier.suite_version != case.suite_version:
                raise UsageError(
                    f"two versions of the suite {printable(case.suite)}: {earlier.suite_version} "
                    f"in {earlier.location} and {case.suite_version} in {case.location}",
                    hint="run them one after the other",
                )
    return {suite: case.suite_version for suite, case in first.items()}


def require_version(pin: str, suites: Mapping[str, str], where: str = "") -> None:
    """Check that a suite has the required version.

    Args:
        pin: suite and version, as in ``conformance@2``.
        suites: the available version of each suite.
        where: the file and line of the requirement.

    Raises:
        UsageError: if the version differs.
    """
    suite, _, required = pin.partition("@")
    available = suites.get(suite, required)
    if available != required:
        package = "onnx" if suite.startswith("onnx-") else "onnxopt"
        raise UsageError(
            printable(
                f"{where}{': ' * bool(where)}{pin} is required, {suite}@{available} is installed"
            ),
            hint=f"install the version of {package} that contains it, or read the changes in "
            f"{suite}@{available} and require that",
        )


def default_targets() -> list[str]:
    """Return the folder ``cases`` if it exists, else the names of the generated suites."""
    if Path(_DEFAULT).is_dir():
        return [f"{_DEFAULT}/"]
    from onnxopt_cli.suites.catalogue import NAMED_ONLY, suites

    return [name for name in suites() if name not in NAMED_ONLY]


def collect(
    targets: Sequence[str],
    memory: int = DEFAULT_MEMORY,
    each: Each | None = None,
    open_progress: OpenProgress = hide_progress,
    model_inputs: ModelInputs = DRAWN_INPUTS,
) -> Collection:
    """Find the cases of the targets.

    Args:
        targets: files, folders, names of suites, or ids of cases in suites and below the current
            folder; empty for the default targets.
        memory: the maximum size of a case of a case file in bytes; 0 for no limit.
        each: the function that reads the files of a large folder.
        open_progress: opens a progress display for the files that are read or made.
        model_inputs: the inputs of model files without test data.

    Raises:
        UsageError: if a target does not exist; if ``model_inputs`` does not fit the models, or no
            target is a model; if two different cases have the same id; or if an id is reserved for
            results outside of cases.
        NothingSelected: if a target contains neither a case nor a fault.
    """
    targets = targets or default_targets()
    cases: dict[str, Case] = {}
    problems: list[Fault] = []
    suites: _Suites = {}
    empty: list[str] = []
    for target in targets:
        found, wrong = _find(target, suites, memory, each, open_progress, model_inputs)
        problems += [problem for problem in wrong if problem not in problems]
        if not found and not wrong:
            empty.append(target)
        for case in found:
            if case.id.startswith(f"{OUTSIDE_CASES}/"):
                raise UsageError(
                    f"{case.location}: no suite may have the name {OUTSIDE_CASES}",
                    hint="the name is reserved for results outside of cases; rename the suite",
                )
            earlier = cases.setdefault(case.id, case)
            if earlier is not case and not _same_place(earlier.location, case.location):
                raise UsageError(
                    f"two cases have the id {printable(case.id)}: "
                    f"{earlier.location} and {case.location}",
                    hint="run them one after the other, or rename a suite or a folder",
                )
    if empty:
        raise NothingSelected(
            f"no case in {', '.join(map(printable, empty))}",
            hint="cases are .yaml or .json files, or ONNX test directories with a model.onnx",
        )
    if model_inputs != DRAWN_INPUTS:
        paths = [case.location.path for case in cases.values()]
        require_settings_of_models([path for path in paths if path.suffix == ".onnx"], model_inputs)
    return Collection(tuple(cases.values()), tuple(problems))


def find_again(
    places: Mapping[str, Location], model_inputs: ModelInputs = DRAWN_INPUTS
) -> dict[str, Case]:
    """Find cases of an earlier run by their ids and locations.

    The locations may come from anyone. Therefore, no folder is searched.

    Args:
        places: the location of each case by its id.
        model_inputs: the inputs of model files in that run.

    Returns:
        The cases by id, without cases that no longer exist.
    """
    targets = {_target_of(case, place.path) for case, place in places.items()}
    found: dict[str, Case] = {}
    suites: _Suites = {}
    for target in sorted(filter(None, targets)):
        with suppress(UsageError):
            cases, _ = _find(target, suites, 0, model_inputs=model_inputs)
            found |= {case.id: case for case in cases if case.id in places}
    return found


def _target_of(case: str, path: Path) -> str:
    """Return the file, the data set or the suite with a case; empty if none of them exists."""
    # The path may be too long or contain a null character.
    with suppress(OSError, ValueError):
        if path.is_file() or is_data_set(Path(os.path.realpath(path))):
            return str(path)
    suite = case.partition("/")[0]
    return suite if is_suite(suite) else ""


def _find(
    target: str,
    suites: _Suites,
    memory: int,
    each: Each | None = None,
    open_progress: OpenProgress = hide_progress,
    model_inputs: ModelInputs = DRAWN_INPUTS,
) -> _Found:
    if not target:
        # An empty target usually comes from an unset variable of a script; Path("") would be the
        # current folder.
        raise UsageError("a target is empty", hint="write . for the current folder")
    path = Path(target)
    if path.exists() and is_suite(target):
        # A path in the current folder must not take the place of a suite that a CI gate names.
        return _find_named(target, suites, open_progress)
    if path.is_dir():
        return _find_in_folder(path, memory, each, open_progress)
    if path.exists():
        if path.suffix.lower() in _YAML:
            return read_yaml_file(path, memory)
        if path.suffix == ".onnx":
            return find_model_cases(path, model_inputs)
        raise UsageError(
            f"{printable(target)} is not a case file",
            hint="cases are .yaml or .json files, or ONNX test directories with a model.onnx",
        )
    if path.is_symlink():
        raise UsageError(
            f"{printable(target)} is a broken symbolic link",
            hint="fix the link, or name its intended target",
        )
    # The ids of a suite's cases begin with the suite's name.
    name = target.partition("/")[0]
    if not is_suite(name) and (cases := _find_by_id(target, memory, model_inputs)):
        return cases, []
    return _find_named(target, suites, open_progress)


def _find_by_id(target: str, memory: int, model_inputs: ModelInputs) -> list[Case]:
    """Return the cases below the current folder whose ids equal the target, or begin with it.

    The second part of an id is the name of a file without its suffix, or of a test directory.

    Raises:
        UsageError: if only the last part of the id is unknown.
    """
    stem = target.partition("/")[2].partition("/")[0]
    if not stem:
        return []
    found: list[Case] = []
    remaining = _MAX_SEARCHED
    for parent, folders, files in os.walk("."):
        remaining -= len(folders) + len(files)
        if remaining < 0:
            break
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        names = [f"{stem}{suffix}" for suffix in (*_YAML, ".onnx")]
        for name in [*{stem}.intersection(folders), *(name for name in names if name in files)]:
            with suppress(UsageError):
                found += _find(f"{parent}/{name}", {}, memory, model_inputs=model_inputs)[0]
    cases = [case for case in found if f"{case.id}/".startswith(f"{target.rstrip('/')}/")]
    near = nearest(target, [case.id for case in found], cutoff=_SIMILAR_IDS)
    if near and not cases:
        raise UsageError(f"no such path, suite or case: {printable(target)}", hint=near)
    return cases


def is_suite(target: str) -> bool:
    """Return whether a target is the name of a suite, with or without a version."""
    from onnxopt_cli.suites.catalogue import suite_names

    return target.partition("@")[0] in suite_names()


def _find_named(target: str, suites: _Suites, open_progress: OpenProgress) -> _Found:
    from onnxopt_cli.suites.catalogue import named_suite, suite_names

    name, _, rest = target.partition("/")
    suite, at, pinned = name.partition("@")
    names = suite_names()
    if suite not in names:
        hints = [nearest(suite, names), _near_path(Path(target))]
        if "/" in target:
            hints.reverse()
        hints.insert(0, _operator_hint(target))
        raise UsageError(
            f"no such path, suite or case: {printable(target)}",
            hint=next(filter(None, hints), f"the suites are {', '.join(names)}"),
        )
    # Only the cases of the named operator are made, since making a complete suite takes seconds.
    stem = rest.partition("/")[0]
    part = suite, stem
    if part not in suites:
        suites[part] = named_suite(suite, open_progress, stem)
    found, problems = suites[part]
    if at:
        require_version(f"{suite}@{pinned}", suite_versions(found))
    if not rest:
        return found, problems
    prefix = f"{suite}/{rest}".rstrip("/")
    chosen = [case for case in found if f"{case.id}/".startswith(f"{prefix}/")]
    if not chosen:
        near = nearest(target, [case.id for case in found], f"onnxopt list {suite} shows all")
        raise UsageError(f"the suite {suite} has no case {printable(target)}", hint=near)
    return chosen, []


def _operator_hint(target: str) -> str:
    """Return a hint for a target that is the name of an operator; empty for any other target."""
    from onnx.defs import get_all_schemas

    names = [operator.name for operator in registry().operators]
    names += [schema.name for schema in get_all_schemas()]
    name = next((name for name in names if name.lower() == target.lower()), "")
    return name and f"{name} is an operator; --operator {name} selects its cases"


def _near_path(path: Path) -> str:
    """Return a hint with a name similar to the first missing part of a path; may be empty."""
    while not (folder := path.parent).is_dir():
        if folder == path:
            return ""
        path = folder
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, _MAX_NAMES)]
    except OSError:
        return ""
    near = printable(nearest(path.name, names))
    return f"{near[:-1]} in {printable(str(folder))}?" if near and folder != Path() else near


def _find_in_folder(
    folder: Path, memory: int, each: Each | None, open_progress: OpenProgress
) -> _Found:
    """Find case files and ONNX directories under a folder, except in hidden folders."""
    cases, problems = find_directories(folder)
    paths: list[Path] = []
    remaining = MAX_ENTRIES
    for parent, folders, files in os.walk(folder):
        remaining -= len(folders) + len(files)
        if remaining < 0:
            message = f"not searched for case files: more than {MAX_ENTRIES} files and folders"
            problems.append(Fault(parent, message))
            break
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        visible = [Path(parent, name) for name in sorted(files) if not name.startswith(".")]
        paths += filter(_may_hold_cases, visible)
    results: Iterable[_Found | None] = repeat(None)
    if each and sum(map(_size, paths)) > _PARALLEL_MIN_BYTES:
        results = each(partial(read_apart, memory=memory), paths)
    with open_progress("reading", "files") as tick:
        for done, (path, result) in enumerate(zip(paths, results, strict=False), start=1):
            read, wrong = result or read_yaml_file(path, memory)
            cases += read
            problems += wrong
            tick(done, len(paths))
    return cases, problems


def _size(path: Path) -> int:
    """Return the size of a file; 0 if it is inaccessible.

    The reader of the file reports the error.
    """
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
            return _CASE_FILE.search(os.read(descriptor, _HEAD_BYTES)) is not None
    except (Malformed, OSError):
        return False


def _same_place(first: Location, second: Location) -> bool:
    same_file = os.path.realpath(first.path) == os.path.realpath(second.path)
    return first.line == second.line and same_file
