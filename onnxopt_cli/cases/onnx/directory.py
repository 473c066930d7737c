"""Finding ONNX test directories: names only, nothing is parsed until a case is read.

::

    <root>/<kind>/test_<name>/model.onnx [data.json]
                              test_data_set_<N>/input_<i>.pb output_<i>.pb
    <root>/light/light_<x>.onnx light_<x>_output_0.pb
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from onnxopt_cli.cases.onnx.data_set import (
    DATA_FILE,
    LIGHT_PREFIX,
    CaseFiles,
    data_set_files,
    find_numbers,
    is_number,
    light_files,
    read_case,
    read_directory_data,
)
from onnxopt_cli.cases.values.regular_file import Malformed
from onnxopt_cli.core.case import Case, Location
from onnxopt_cli.errors import Problem

#: The kinds of test directories that onnx itself has; their suites are ``onnx-<kind>``.
ONNX_KINDS = frozenset(
    {"node", "simple", "pytorch-operator", "pytorch-converted", "light", "real", "model"}
)
_MODEL = "model.onnx"
_DATA_SET = "test_data_set_"
_MAXIMUM_DEPTH = 16
_YAML_SUFFIXES = (".yaml", ".yml")


def find_directories(root: Path) -> tuple[list[Case], list[Problem]]:
    """Find the cases of all ONNX test directories at or below a folder.

    Symbolic links are followed, each folder being visited once, under its own name.

    Args:
        root: a tree with test directories, one of them, or one of its data sets.

    Returns:
        A case for each data set, in the order of names and numbers, and what is wrong with
        directories: no model or one that is elsewhere, no data sets, gaps in their numbers, names
        that cannot be shown.
    """
    search = _Search()
    resolved = Path(os.path.realpath(root))
    number = resolved.name.removeprefix(_DATA_SET)
    if is_number(number) and (resolved.parent / _MODEL).is_file():
        # The path as typed may have no usable parent: it may be ".", or a link.
        parent = root.parent if root.name == resolved.name else resolved.parent
        search.data_set(parent, str(resolved.parent), int(number))
    else:
        search.folder(root, str(resolved), 0)
    return search.cases, search.problems


class _Search:
    """One walk through a tree.

    Attributes:
        cases: found so far.
        problems: found so far.
    """

    def __init__(self) -> None:
        self.cases: list[Case] = []
        self.problems: list[Problem] = []
        self._visited: set[str] = set()

    def data_set(self, path: Path, real: str, number: int) -> None:
        """Take one data set of the test directory at ``path``, or ``real`` without links."""
        parent, name = os.path.split(real)
        files = data_set_files(path, number)
        self._case(parent, f"{name}/{number}", files.folder, files)

    def folder(self, path: Path, real: str, depth: int) -> None:
        """Take a folder, or what lies below it.

        Args:
            path: as the user typed it, for messages.
            real: the same without links, for names.
            depth: number of folders above it since the root.
        """
        if real in self._visited:
            return
        self._visited.add(real)
        if depth > _MAXIMUM_DEPTH:
            self._problem(path, f"lies more than {_MAXIMUM_DEPTH} folders deep; not searched")
            return
        try:
            with os.scandir(path) as entries:
                names = {entry.name: entry for entry in entries}
        except OSError as error:
            self._problem(path, f"cannot be read: {error.strerror}")
            return
        data_sets = [name for name in names if name.startswith(_DATA_SET)]
        if not data_sets and any(name.endswith(_YAML_SUFFIXES) for name in names):
            # A model beside YAML files is one that they name.
            names.pop(_MODEL, None)
        if data_sets or _MODEL in names:
            self._test_directory(path, real, data_sets, _MODEL in names)
        elif not self._lost_model(path, names):
            self._light_models(path, real, names)
            for name in sorted(names):
                if not name.startswith(".") and _is_folder(names[name]):
                    below = os.path.join(real, name)  # noqa: PTH118 - many, and strings do
                    if names[name].is_symlink():
                        below = os.path.realpath(below)
                    self.folder(path / name, below, depth + 1)

    def _test_directory(self, path: Path, real: str, data_sets: list[str], has_model: bool) -> None:
        if not has_model:
            self._problem(path, f"has data sets, but no {_MODEL}")
        elif not data_sets:
            self._problem(path, f"has no data sets: no folder {_DATA_SET}0")
        else:
            for number in find_numbers(path, data_sets, _DATA_SET, "", self.problems):
                self.data_set(path, real, number)

    def _light_models(self, path: Path, real: str, names: Iterable[str]) -> None:
        for name in sorted(fnmatch.filter(names, f"{LIGHT_PREFIX}*.onnx")):
            model = path / name
            self._case(real, f"{model.stem}/0", model, light_files(model))

    def _case(self, folder: str, name: str, place: Path, files: CaseFiles) -> None:
        suite = os.path.basename(folder) or "root"  # noqa: PTH119 - many, and strings do
        if suite in ONNX_KINDS:
            suite = f"onnx-{suite}"
        case_id = f"{suite}/{name}"
        if case_id.isprintable():
            read = partial(read_case, files)
            self.cases.append(Case(case_id, Location(place), read, files=files.present))
        else:
            self._problem(place, f"has a name that cannot be shown: {case_id!a}")

    def _lost_model(self, path: Path, names: dict[str, os.DirEntry[str]]) -> bool:
        """Tell whether a folder without model and data sets is a test directory all the same."""
        if DATA_FILE in names:
            try:
                _, url = read_directory_data(path / DATA_FILE)
            except Malformed:
                url = ""
            if url:
                what = f"has no {_MODEL}: it is at {url[:200]!a}, and nothing is downloaded"
                self._problem(path, what)
                return True
        if not path.name.startswith("test_"):
            return False
        values = any(name.startswith(("input_", "output_")) for name in names)
        if names and DATA_FILE not in names and not values:
            return False
        self._problem(path, f"has no {_MODEL}")
        return True

    def _problem(self, path: Path, what: str) -> None:
        self.problems.append(Problem(str(path), what))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False
