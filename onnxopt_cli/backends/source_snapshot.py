"""The files that a backend is made of, found without running any of it.

A Python file counts with the modules beside it that it imports, and those that they import; a
module of a package with all code of the package. A command counts with its program and with those
of its arguments that are files, or end in one, as ``--config=FILE``. What is loaded in another way,
such as weights and libraries from elsewhere, is not found.
"""

from __future__ import annotations

import ast
import os
import shutil
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.machinery import PathFinder, all_suffixes
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from onnxopt_cli.backends.specification import parse_specification
from onnxopt_cli.cases.tensors.regular_file import Malformed, read_regular_file

#: Beside an installed module stand all the others, which have versions of their own.
INSTALLED_FOLDERS = frozenset({"site-packages", "dist-packages", Path(os.__file__).parent.name})
#: A package may keep what changes from run to run beside its code, such as caches.
CODE_SUFFIXES = (*all_suffixes(), ".so", ".dll", ".dylib")
# Of a package with more files the first ones count, in the order of their names.
_MOST_FILES = 20_000
_MOST_FOLDERS = 20_000
_LARGEST_SOURCE = 16 * 2**20


def snapshot_files(text: str) -> dict[str, Path]:
    """Return the files of a backend by names that do not depend on where they stand.

    Args:
        text: the backend as the user asks for it; one of ours has no files.

    Raises:
        UsageError: if it is not written as backends are.
    """
    specification = parse_specification(text)
    source = specification.source
    if source.endswith(".py") or "/" in source or "\\" in source:
        return dict(with_neighbours(Path(source)))
    if source:
        return dict(_module(source))
    if specification.command:
        return dict(_command(specification.command))
    from onnxopt_cli.backends.resolve import entry_points_by_name

    entry_point = entry_points_by_name().get(specification.name)
    return dict(_module(entry_point.module)) if entry_point else {}


def _module(name: str) -> Iterable[tuple[str, Path]]:
    """Return the files of the package that a module belongs to, or those of a module of its own."""
    found = _find(name.partition(".")[0])
    if found is None:
        return ()
    return package_files(found) if found.is_dir() else with_neighbours(found)


def _find(top: str) -> Path | None:
    """Return the file of a module or the folder of a package."""
    specification = None
    # Finders are anybody's code, and may raise anything; importing will say what is wrong.
    with suppress(Exception):
        # What an editable installation brings is found by a finder of its own, not by PathFinder.
        specification = find_spec(top) or PathFinder.find_spec(top, [str(Path.cwd())])
    if specification is None:
        return None
    file = specification.origin if specification.has_location else None
    place = next(iter(specification.submodule_search_locations or ()), file)
    return Path(place) if place else None


def package_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Return the files with code of a package, by names that begin with its own."""
    paths = islice(_code_below(folder), _MOST_FILES)
    return ((f"{folder.name}/{path.relative_to(folder).as_posix()}", path) for path in paths)


def _code_below(folder: Path) -> Iterator[Path]:
    for parent, folders, names in islice(os.walk(folder), _MOST_FOLDERS):
        folders[:] = sorted(name for name in folders if name != "__pycache__" and name[0] != ".")
        for name in sorted(names):
            if name[0] != "." and (name.endswith(CODE_SUFFIXES) or ".so." in name):
                yield Path(parent, name)


def with_neighbours(file: Path) -> Iterator[tuple[str, Path]]:
    """Yield a file and what it imports from its own folder, and so on."""
    folder = Path(os.path.realpath(file)).parent
    seen = {file.name}
    unread = [file]
    while unread:
        path = unread.pop()
        yield path.name, path
        for top in sorted(_imported(path)) if folder.name not in INSTALLED_FOLDERS else ():
            package = folder / top
            if top not in seen and package.is_dir() and package != folder:
                seen.add(top)
                yield from package_files(package)
            for module in (f"{top}{suffix}" for suffix in all_suffixes()):
                if module not in seen and (folder / module).is_file():
                    seen.add(module)
                    # As the user would name it.
                    unread.append(file.parent / module)


def _imported(path: Path) -> set[str]:
    """Return the first parts of the names of all modules that a Python file imports anywhere."""
    if path.suffix != ".py":
        return set()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(read_regular_file(path, _LARGEST_SOURCE))
    except (Malformed, SyntaxError, ValueError, RecursionError, MemoryError):
        # Importing it will say what is wrong.
        return set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def _command(command: Sequence[str]) -> Iterator[tuple[str, Path]]:
    program = shutil.which(command[0])
    if program is not None:
        yield Path(program).name, Path(program)
    for place, argument in enumerate(command[1:], start=1):
        for text in (argument, argument.partition("=")[2]):
            # Unlike Path.is_file, this takes any text.
            if not os.path.isfile(text):  # noqa: PTH113
                continue
            for name, found in with_neighbours(Path(text)):
                yield f"{place}/{name}", found
