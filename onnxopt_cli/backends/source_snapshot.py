"""Find the files of a backend without running it.

The files of a Python file are itself and the modules beside it that it imports, recursively; those
of a module in a package are all code of the package. The files of a command are its program and
its arguments that are files or have the form ``--config=FILE``. Those of an adapter are its file,
the modules beside a user's own file, programs in JavaScript with the same name, and its locks.
Files that are loaded in another way, such as weights and libraries, are not found.
"""

from __future__ import annotations

import ast
import glob
import os
import shutil
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.machinery import PathFinder, all_suffixes
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from onnxopt_cli.backends.specification import Specification, is_path, parse_specification
from onnxopt_cli.core.untrusted_files import Malformed, read_regular_file

#: Folders of installed modules. Their neighbours are unrelated packages, which are not included.
INSTALLED_FOLDERS = frozenset({"site-packages", "dist-packages", Path(os.__file__).parent.name})
#: Suffixes of code; other files of a package, such as caches, may change from run to run.
CODE_SUFFIXES = (*all_suffixes(), ".so", ".dll", ".dylib")
# Limits of a package; the first files in the order of their names are included.
_MAX_FILES = 20_000
_MAX_FOLDERS = 20_000
_MAX_SOURCE_BYTES = 16 * 2**20


def snapshot_files(text: str) -> dict[str, Path]:
    """Return the files of a backend by names that do not depend on their location.

    Args:
        text: the backend's specification; a built-in backend has no files.

    Raises:
        UsageError: if the specification is malformed.
    """
    specification = parse_specification(text)
    if specification.adapter:
        return dict(_adapter(specification))
    source = specification.source
    if is_path(source):
        return dict(with_neighbours(Path(source)))
    if source:
        return dict(_module(source))
    if specification.command:
        return dict(_command(specification.command))
    from onnxopt_cli.backends.resolve import entry_points_by_name

    entry_point = entry_points_by_name().get(specification.name)
    return dict(_module(entry_point.module)) if entry_point else {}


def _adapter(specification: Specification) -> Iterator[tuple[str, Path]]:
    from onnxopt_cli.backends.adapter.adapter_file import (
        adapter_source,
        lock_path,
        npm_lock_path,
    )

    source = adapter_source(specification)
    path = Path(source)
    if specification.adapter == source:
        yield from with_neighbours(path)
    else:
        yield path.name, path
    for program in sorted(path.parent.glob(f"{glob.escape(path.stem)}.*js")):
        if program.is_file():
            yield program.name, program
    for lock in (lock_path(path), npm_lock_path(path)):
        if lock.is_file():
            yield f"{lock.parent.name}/{lock.name}", lock


def _module(name: str) -> Iterable[tuple[str, Path]]:
    """Return the files of a module's top-level package, or of a module outside of packages."""
    path = _find(name.partition(".")[0])
    if path is None:
        return ()
    return package_files(path) if path.is_dir() else with_neighbours(path)


def _find(top: str) -> Path | None:
    """Return the file of a module or the folder of a package."""
    specification = None
    # Third-party finders may raise any exception; the later import reports the error.
    with suppress(Exception):
        # find_spec includes the finders of editable installations, which PathFinder does not.
        specification = find_spec(top) or PathFinder.find_spec(top, [str(Path.cwd())])
    if specification is None:
        return None
    file = specification.origin if specification.has_location else None
    place = next(iter(specification.submodule_search_locations or ()), file)
    return Path(place) if place else None


def package_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Return the code files of a package, by names that begin with the package's name."""
    paths = islice(_code_below(folder), _MAX_FILES)
    return ((f"{folder.name}/{path.relative_to(folder).as_posix()}", path) for path in paths)


def _code_below(folder: Path) -> Iterator[Path]:
    for parent, folders, names in islice(os.walk(folder), _MAX_FOLDERS):
        folders[:] = sorted(name for name in folders if name != "__pycache__" and name[0] != ".")
        for name in sorted(names):
            if name[0] != "." and (name.endswith(CODE_SUFFIXES) or ".so." in name):
                yield Path(parent, name)


def with_neighbours(file: Path) -> Iterator[tuple[str, Path]]:
    """Yield a file and the modules of its folder that it imports, recursively."""
    folder = Path(os.path.realpath(file)).parent
    seen_names = {file.name}
    unread = [file]
    while unread:
        path = unread.pop()
        yield path.name, path
        for top in sorted(_imported(path)) if folder.name not in INSTALLED_FOLDERS else ():
            package = folder / top
            if top not in seen_names and package.is_dir() and package != folder:
                seen_names.add(top)
                yield from package_files(package)
            for module in (f"{top}{suffix}" for suffix in all_suffixes()):
                if module not in seen_names and (folder / module).is_file():
                    seen_names.add(module)
                    # Keep the path as the user wrote it: `folder` has links resolved.
                    unread.append(file.parent / module)


def _imported(path: Path) -> set[str]:
    """Return the top-level names of all modules that a Python file imports anywhere."""
    if path.suffix != ".py":
        return set()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(read_regular_file(path, _MAX_SOURCE_BYTES))
    except (Malformed, SyntaxError, ValueError, RecursionError, MemoryError):
        # The later import reports the error.
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
            # Path.is_file raises for some texts.
            if not os.path.isfile(text):  # noqa: PTH113
                continue
            for name, path in with_neighbours(Path(text)):
                yield f"{place}/{name}", path
