"""Finds ONNX test directories by names; files are parsed only when a case is read.

::

    <root>/<kind>/test_<name>/model.onnx [data.json]
                              test_data_set_<N>/input_<i>.pb output_<i>.pb
    <root>/light/light_<x>.onnx light_<x>_output_0.pb
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path

from onnxopt_cli.cases.case import Case, loading_failure
from onnxopt_cli.cases.onnx.bare_model import bare_model_case
from onnxopt_cli.cases.onnx.data_set import (
    DATA_FILE,
    LIGHT_PREFIX,
    CaseFiles,
    data_set_files,
    find_numbers,
    is_number,
    light_files,
    read_checked_case,
    read_directory_data,
)
from onnxopt_cli.config.run_config import DRAWN_INPUTS, ModelInputs
from onnxopt_cli.core.result import Location
from onnxopt_cli.core.untrusted_files import Malformed
from onnxopt_cli.errors import Fault

# The kinds of test directories in onnx itself. Their suites are called ``onnx-<kind>``.
_ONNX_KINDS = frozenset(
    {"node", "simple", "pytorch-operator", "pytorch-converted", "light", "real", "model"}
)
_MODEL = "model.onnx"
_DATA_SET = "test_data_set_"
_LIGHT_MODELS = f"{LIGHT_PREFIX}*.onnx"
_MAX_DEPTH = 16
#: Largest number of files and folders that are searched below the root.
MAX_ENTRIES = 500_000
#: Largest number of files and folders outside the root that are searched because symbolic links
#: lead to them.
MAX_LINKED_ENTRIES = 50_000
_YAML_SUFFIXES = (".yaml", ".yml")


def find_directories(root: Path) -> tuple[list[Case], list[Fault]]:
    """Find the cases of all ONNX test directories at or below a folder.

    Symbolic links are followed; each folder is visited once, under its own name.

    Args:
        root: a tree with test directories, a test directory, or one of its data sets.

    Returns:
        A case for each data set, in the order of names and numbers, and the faults of directories.
        A fault is a missing or remote model, a lack of data sets, a gap in their numbers, or an
        unprintable name.
    """
    cases: list[Case] = []
    problems: list[Fault] = []
    resolved = Path(os.path.realpath(root))
    try:
        for item in _at_or_below(root, resolved):
            if isinstance(item, Case):
                cases.append(item)
            else:
                problems.append(item)
    except Exception as error:  # noqa: BLE001 - the folder is arbitrary
        problems.append(Fault(str(root), loading_failure(error)))
    return cases, problems


def _at_or_below(root: Path, resolved: Path) -> Iterator[Case | Fault]:
    """Yield the cases at or below a folder, and the faults of directories."""
    if is_data_set(resolved):
        # The path that the user typed may be "." or a link, so its parent may be another folder.
        parent = root.parent if root.name == resolved.name else resolved.parent
        number = resolved.name.removeprefix(_DATA_SET)
        yield _data_set(parent, str(resolved.parent), int(number))
    else:
        yield from _Search(str(resolved)).in_folder(root, str(resolved), 0)


def is_data_set(path: Path) -> bool:
    """Return whether a path without links is that of a data set of a test directory.

    Raises:
        OSError: if the path is too long.
    """
    return is_number(path.name.removeprefix(_DATA_SET)) and (path.parent / _MODEL).is_file()


def find_model_cases(path: Path, settings: ModelInputs) -> tuple[list[Case], list[Fault]]:
    """Find the cases of one model file, without the cases of other models in its folder.

    Args:
        path: the model.
        settings: the source of the inputs of a model without test data.

    Returns:
        The cases, and the problems of the directory. A ``model.onnx`` yields the cases of the data
        sets beside it. A model of onnx's light corpus yields its own case. Any other model, and
        any model whose inputs ``settings`` states, yields a case without stored outputs.
    """
    folder = path.parent
    if settings != DRAWN_INPUTS:
        return [bare_model_case(path, settings)], []
    light_output = folder / f"{path.stem}_output_0.pb"
    if fnmatch.fnmatchcase(path.name, _LIGHT_MODELS) and light_output.exists():
        case = _case(os.path.realpath(folder), f"{path.stem}/0", path, light_files(path))
        return ([case], []) if isinstance(case, Case) else ([], [case])
    if path.name == _MODEL and any(folder.glob(f"{_DATA_SET}*")):
        return find_directories(folder)
    return [bare_model_case(path, settings)], []


class _Search:
    """Searches for test directories below a folder.

    Args:
        root: the folder, with links resolved.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        # The folders that have been searched, with links resolved.
        self._visited: set[str] = set()
        # Numbers of files and folders that may still be searched: below the root (True), and
        # outside the root (False).
        self._remaining = {True: MAX_ENTRIES, False: MAX_LINKED_ENTRIES}

    def in_folder(self, path: Path, real: str, depth: int) -> Iterator[Case | Fault]:
        """Yield the cases of a folder or of its subfolders, and the faults of directories.

        Args:
            path: the folder as the user typed it, for messages.
            real: the folder with links resolved, from which ids are derived.
            depth: number of folders between the folder and the root.
        """
        below = _contains(self._root, real)
        if real in self._visited or self._remaining[below] < 0:
            return
        self._visited.add(real)
        try:
            names = self._entries(path, below, depth)
        except Malformed as error:
            yield Fault(str(path), str(error))
            return
        data_sets = [name for name in names if name.startswith(_DATA_SET)]
        if not data_sets and any(name.endswith(_YAML_SUFFIXES) for name in names):
            # The model belongs to the case files in its folder.
            names.pop(_MODEL, None)
        if data_sets and _MODEL in names:
            problems: list[Fault] = []
            for number in find_numbers(path, data_sets, _DATA_SET, "", problems):
                yield _data_set(path, real, number)
            yield from problems
        elif message := _incomplete(path, names, data_sets):
            yield Fault(str(path), message)
        else:
            for name in sorted(fnmatch.filter(names, _LIGHT_MODELS)):
                model = path / name
                yield _case(real, f"{model.stem}/0", model, light_files(model))
            yield from self._in_subfolders(path, real, depth, names)

    def _entries(self, path: Path, below: bool, depth: int) -> dict[str, os.DirEntry[str]]:
        """Return the entries of a folder by name.

        Args:
            path: the folder.
            below: whether the folder is below the root.
            depth: number of folders between the folder and the root.

        Raises:
            Malformed: if the folder cannot be read, or exceeds the limit of depth or of entries.
        """
        if depth > _MAX_DEPTH:
            raise Malformed(f"is more than {_MAX_DEPTH} folders deep; not searched")
        try:
            with os.scandir(path) as entries:
                names = {entry.name: entry for entry in islice(entries, self._remaining[below] + 1)}
        except OSError as error:
            raise Malformed(f"cannot be read: {error.strerror}") from None
        if len(names) > self._remaining[below]:
            limit = MAX_ENTRIES if below else MAX_LINKED_ENTRIES
            region = "" if below else " reached through links"
            # The limit is reported once, and no more folders are searched.
            self._remaining[below] = -1
            raise Malformed(f"is not searched: the limit is {limit} files and folders{region}")
        self._remaining[below] -= len(names)
        return names

    def _in_subfolders(
        self, path: Path, real: str, depth: int, names: Mapping[str, os.DirEntry[str]]
    ) -> Iterator[Case | Fault]:
        visible = [name for name in names if not name.startswith(".")]
        # Unlike DirEntry.is_dir, isdir returns False for a link that leads to itself.
        folders = [name for name in visible if os.path.isdir(names[name])]  # noqa: PTH112
        for name in sorted(folders):
            subfolder = os.path.join(real, name)  # noqa: PTH118 - faster for many names
            target = os.path.realpath(subfolder) if names[name].is_symlink() else subfolder
            if target != self._root and _contains(target, self._root):
                yield Fault(str(path / name), "links to a folder that contains it; not searched")
            else:
                yield from self.in_folder(path / name, target, depth + 1)


def _contains(folder: str, path: str) -> bool:
    """Return whether ``path`` equals ``folder`` or is below it, for paths without links."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _data_set(path: Path, real: str, number: int) -> Case | Fault:
    """Return a data set of the test directory at `path`; `real` is the path with links resolved."""
    parent, name = os.path.split(real)
    files = data_set_files(path, number)
    return _case(parent, f"{name}/{number}", files.folder, files)


def _case(folder: str, name: str, place: Path, files: CaseFiles) -> Case | Fault:
    suite = os.path.basename(folder) or "root"  # noqa: PTH119 - faster for many names
    if suite in _ONNX_KINDS:
        suite = f"onnx-{suite}"
    case_id = f"{suite}/{name}"
    if case_id.isprintable():
        return Case(
            case_id, Location(place), partial(read_checked_case, files), files=files.present
        )
    return Fault(str(place), f"has a name that is not printable: {case_id!a}")


def _incomplete(path: Path, names: Collection[str], data_sets: Sequence[str]) -> str:
    """Return a message if a folder is an incomplete test directory, else an empty string."""
    if data_sets:
        return f"has data sets, but no {_MODEL}"
    if _MODEL in names:
        return f"has no data sets: no folder {_DATA_SET}0"
    if DATA_FILE in names:
        with suppress(Malformed):
            _, url = read_directory_data(path / DATA_FILE)
            if url:
                return f"has no {_MODEL}: it is at {url[:200]!a}, but onnxopt downloads no files"
    values = any(name.startswith(("input_", "output_")) for name in names)
    lacks_model = path.name.startswith("test_") and (not names or DATA_FILE in names or values)
    return f"has no {_MODEL}" if lacks_model else ""
