"""The code that a backend's specification makes run, as far as it names where that stands.

More than the files of :mod:`onnxopt_cli.backends.source_snapshot`: also the bytecode that Python
takes in place of a file, modules that are found in the current folder, what a command runs with
``-m`` or from a folder, the environment of an interpreter, and the folders that a variable such as
``PATH`` or ``PYTHONPATH`` names. What Python or ``PATH`` finds where it is installed is left out.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import PathFinder
from itertools import islice
from pathlib import Path

from onnxopt_cli.backends.source_snapshot import (
    CODE_SUFFIXES,
    INSTALLED_FOLDERS,
    package_files,
    snapshot_files,
    with_neighbours,
)
from onnxopt_cli.backends.specification import parse_specification

# Variables that say where programs, libraries or modules are, or what an interpreter reads first.
_NAMES_CODE = re.compile(
    r"PATH|LD_\w+|DYLD_\w+|PYTHON\w+|BASH_ENV|ENV|NODE_PATH|PERL5?LIB|RUBYLIB|CLASSPATH|GCONV_PATH"
    r"|\w+(LIBRARY|PLUGIN|LAYER|LOAD)_PATH|\w+_PRELOAD"
)
_MAX_ENTRIES = 20_000


def named_code(text: str) -> Iterator[Path]:
    """Yield the files and folders of a backend's code that its specification says where to find.

    Args:
        text: the backend as a configuration file names it.

    Raises:
        UsageError: if it is not written as backends are.
    """
    specification = parse_specification(text)
    source, command = specification.source, specification.command
    environment = {
        name.removeprefix("env."): value
        for name, value in specification.options.items()
        if name.startswith("env.")
    }
    yield from _of_environment(environment)
    if "python" in specification.options:
        yield from _interpreter(Path(specification.options["python"]))
    modules = [Path.cwd(), *_entries(environment.get("PYTHONPATH", ""))]
    if source.endswith(".py") or "/" in source:
        yield from snapshot_files(text).values()
    elif source:
        found = [Path(entry or ".") for entry in sys.path]
        yield from _module(source, [*modules, *(it for it in found if not _is_installed(it))])
    elif command:
        if "/" in command[0]:
            yield from _interpreter(Path(command[0]))
        elif program := shutil.which(command[0], path=environment.get("PATH", "")):
            yield from _interpreter(Path(program))
        # The name of an argument begins with its place.
        yield from (path for name, path in snapshot_files(text).items() if "/" in name)
        yield from _of_arguments(command[1:], modules)


def with_bytecode(files: Iterable[Path]) -> Iterator[Path]:
    """Yield files, then the bytecode that Python takes in their place, and the folders of it."""
    stems: dict[Path, set[str]] = {}
    for file in files:
        yield file
        if file.suffix == ".py":
            for path in (file, Path(os.path.realpath(file))):
                stems.setdefault(path.parent / "__pycache__", set()).add(path.stem)
    for folder, known in stems.items():
        if not os.path.lexists(folder):
            continue
        yield folder
        for entry in _listed(folder):
            # Before the tag of the interpreter; a stem may have dots, too.
            names = {entry.name[: dot.start()] for dot in re.finditer(r"\.", entry.name)}
            if entry.suffix == ".pyc" and names & known:
                yield entry


def _module(name: str, folders: Iterable[Path]) -> Iterator[Path]:
    """Yield the files of a module or package in any of some folders, and what stands beside it."""
    top = name.partition(".")[0]
    for folder in dict.fromkeys(Path(os.path.abspath(folder)) for folder in folders):  # noqa: PTH100
        found = None
        # A module of that name may be loaded already, in an odd way.
        with suppress(Exception):
            found = PathFinder.find_spec(top, [str(folder)])
        if found is None:
            continue
        if found.submodule_search_locations is None:
            if found.origin and found.has_location:
                yield from (path for _, path in with_neighbours(Path(found.origin)))
            continue
        for place in found.submodule_search_locations:
            yield from (path for _, path in package_files(Path(place)))
        yield from (it for it in _listed(folder) if _is_code(it))


def _of_arguments(arguments: Sequence[str], folders: Sequence[Path]) -> Iterator[Path]:
    """Yield what a command runs: a folder, a module that ``-m`` names, or another interpreter."""
    following = [*arguments, ""][1:]
    for argument, after in zip(arguments, following, strict=True):
        if option := re.fullmatch(r"-[A-Za-z]*?m([\w.]*)", argument):
            name = option[1] or after
            if all(part.isidentifier() for part in name.split(".")):
                yield from _module(name, folders)
        for text in (argument, argument.partition("=")[2]):
            if text and os.path.isdir(text):  # noqa: PTH112 - takes any text
                yield from _run_folder(Path(text))
            elif "/" in text and stat.S_ISREG(_mode(Path(text))):
                yield from _interpreter(Path(text))


def _run_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder with its files, and what its ``__main__.py`` imports.

    Of a folder for everybody's files, such as ``/tmp``, only the latter runs.
    """
    main = folder / "__main__.py"
    if _mode(main):
        yield from (path for _, path in with_neighbours(main))
    if not _is_shared(folder):
        yield folder
        yield from (it for it in _listed(folder) if stat.S_ISREG(_mode(it)))


def _of_environment(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the folders and files that variables name, with the code in these folders."""
    for name, value in environment.items():
        if not _NAMES_CODE.fullmatch(name):
            continue
        for path in _entries(value.replace(" ", os.pathsep) if "PRELOAD" in name else value):
            # Of a folder of programs, the one that runs is looked at.
            if stat.S_ISDIR(_mode(path)) and name != "PATH":
                yield from _searched(path)
            else:
                yield path


def _interpreter(program: Path) -> Iterator[Path]:
    """Yield a program; if it is Python, with its environment and what that imports at its start."""
    yield program
    if not re.match(r"python|pypy", program.name, re.IGNORECASE):
        return
    for place in dict.fromkeys((program.absolute(), Path(os.path.realpath(program)))):
        prefix = place.parent.parent
        for root in (place.parent, prefix):
            yield root / "pyvenv.cfg"
        for pattern in ("lib*/py*/site-packages", "Lib/site-packages"):
            for folder in prefix.glob(pattern):
                yield folder.parent
                yield from _searched(folder)


def _searched(folder: Path) -> Iterator[Path]:
    """Yield a folder in which modules or libraries are looked for, and what can be found there."""
    yield folder
    for entry in _listed(folder):
        if _is_code(entry) or entry.suffix == ".pth":
            yield entry
        elif entry.name.isidentifier():
            yield entry / "__init__.py"


def _is_code(path: Path) -> bool:
    return path.name.endswith(CODE_SUFFIXES) or ".so." in path.name


def _is_installed(folder: Path) -> bool:
    return folder.name in INSTALLED_FOLDERS or folder.suffix == ".zip"


def _is_shared(folder: Path) -> bool:
    mode = _mode(folder)
    return bool(mode & stat.S_IWOTH and mode & stat.S_ISVTX)


def _mode(path: Path) -> int:
    """Return the type and permissions of what a path leads to; 0 where nothing can be seen."""
    with suppress(OSError, ValueError):
        return path.stat().st_mode
    return 0


def _entries(value: str) -> list[Path]:
    """Return the paths of a variable; an empty one among others is the current folder."""
    return [Path(entry or ".").absolute() for entry in value.split(os.pathsep)] if value else []


def _listed(folder: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(islice(folder.iterdir(), _MAX_ENTRIES))
    return []
