"""Find the files that contain the code of a backend, without running the backend.

The source snapshot of a Python file consists of the file itself and the modules beside it that it
imports, recursively. The snapshot of a module in a package consists of all code of the package. The
snapshot of a command consists of its program, and of each file that an argument names, as in
``FILE`` or ``--config=FILE``. The snapshot of an adapter consists of the adapter's file, JavaScript
programs with the same name, and the lock files. If the adapter is a user's own, the snapshot also
includes the modules that the adapter's file imports from its own folder. Other files that a backend
loads, such as weights and libraries, are not included.

The check of file owners covers more: all files from which a specification can run code. They are:

- the files of the snapshot, and bytecode that Python loads in place of a source file;
- modules in the current folder, and modules and folders that a command runs;
- the environment of an interpreter;
- the folders in variables such as ``PATH`` or ``PYTHONPATH``.

Installed code that Python or ``PATH`` finds by default is not included.
"""

from __future__ import annotations

import ast
import glob
import os
import re
import shutil
import stat
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import PathFinder, all_suffixes
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from onnxopt_cli.backends.specification import (
    ENVIRONMENT,
    Specification,
    is_path,
    parse_specification,
)
from onnxopt_cli.core.untrusted_files import Malformed, read_regular_file

# Names of folders with installed modules. The modules beside an installed module belong to
# unrelated packages, which are not included.
_INSTALLED_FOLDERS = frozenset({"site-packages", "dist-packages", Path(os.__file__).parent.name})
# Suffixes of files that contain code; the other files of a package, such as caches, may change from
# run to run.
_CODE_SUFFIXES = (*all_suffixes(), ".so", ".dll", ".dylib")
# The largest number of files in the snapshot of a package. If a package has more files, only the
# first files in the order of their names are included.
_MAX_FILES = 20_000
# The largest number of folders of a package that are searched.
_MAX_FOLDERS = 20_000
_MAX_SOURCE_BYTES = 16 * 2**20


def snapshot_files(text: str) -> dict[str, Path]:
    """Return the source snapshot of a backend: its files, by names independent of their location.

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
        return dict(_with_neighbours(Path(source)))
    if source:
        return dict(_module_files(source))
    if specification.command:
        return dict(_command(specification.command))
    from onnxopt_cli.backends.resolve import entry_points_by_name

    entry_point = entry_points_by_name().get(specification.name)
    return dict(_module_files(entry_point.module)) if entry_point else {}


def _adapter(specification: Specification) -> Iterator[tuple[str, Path]]:
    from onnxopt_cli.backends.adapter.adapter_file import (
        adapter_source,
        lock_path,
        npm_lock_path,
    )

    source = adapter_source(specification)
    path = Path(source)
    if specification.adapter == source:
        yield from _with_neighbours(path)
    else:
        yield path.name, path
    for program in sorted(path.parent.glob(f"{glob.escape(path.stem)}.*js")):
        if program.is_file():
            yield program.name, program
    for lock in (lock_path(path), npm_lock_path(path)):
        if lock.is_file():
            yield f"{lock.parent.name}/{lock.name}", lock


def _module_files(name: str) -> Iterable[tuple[str, Path]]:
    """Return the files of a module's top-level package, or of a module outside of packages."""
    path = _find(name.partition(".")[0])
    if path is None:
        return ()
    return _package_files(path) if path.is_dir() else _with_neighbours(path)


def _find(top: str) -> Path | None:
    """Return the file of a module or the folder of a package."""
    specification = None
    # Third-party finders may raise any exception; a later import reports the error.
    with suppress(Exception):
        # The function find_spec also uses the finders of editable installations, but PathFinder
        # does not.
        specification = find_spec(top) or PathFinder.find_spec(top, [str(Path.cwd())])
    if specification is None:
        return None
    file = specification.origin if specification.has_location else None
    place = next(iter(specification.submodule_search_locations or ()), file)
    return Path(place) if place else None


def _package_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Return the code files of a package, by names that begin with the package's name."""
    paths = islice(_code_below(folder), _MAX_FILES)
    return ((f"{folder.name}/{path.relative_to(folder).as_posix()}", path) for path in paths)


def _code_below(folder: Path) -> Iterator[Path]:
    for parent, folders, names in islice(os.walk(folder), _MAX_FOLDERS):
        folders[:] = sorted(name for name in folders if name != "__pycache__" and name[0] != ".")
        for name in sorted(names):
            if name[0] != "." and _is_code(name):
                yield Path(parent, name)


def _with_neighbours(file: Path) -> Iterator[tuple[str, Path]]:
    """Yield a file, and the modules in the same folder that the file imports, recursively."""
    folder = Path(os.path.realpath(file)).parent
    seen_names = {file.name}
    unread = [file]
    while unread:
        path = unread.pop()
        yield path.name, path
        for top in sorted(_imported(path)) if folder.name not in _INSTALLED_FOLDERS else ():
            package = folder / top
            if top not in seen_names and package.is_dir() and package != folder:
                seen_names.add(top)
                yield from _package_files(package)
            for module in (f"{top}{suffix}" for suffix in all_suffixes()):
                if module not in seen_names and (folder / module).is_file():
                    seen_names.add(module)
                    # Keep the path as the user wrote it, because links are resolved in `folder`.
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
        # A later import reports the error.
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
            for name, path in _with_neighbours(Path(text)):
                yield f"{place}/{name}", path


# Variables that contain the paths of programs, libraries, modules or start files of an interpreter.
_NAMES_CODE = re.compile(
    r"PATH|LD_\w+|DYLD_\w+|PYTHON\w+|BASH_ENV|ENV|NODE_PATH|PERL5?LIB|RUBYLIB|CLASSPATH|GCONV_PATH"
    r"|GEM_(HOME|PATH)|\w+(LIBRARY|PLUGIN|LAYER|LOAD)_PATH|\w+_PRELOAD"
)
# Options that `named_code` handles itself, or that cannot contain a path.
_NO_PATHS = frozenset({"python", "unsupported"})
# The folders of installed packages, relative to the interpreter's prefix.
_SITE_PACKAGES = ("lib*/py*/site-packages", "Lib/site-packages")
_MAX_ENTRIES = 20_000


def named_code(text: str) -> Iterator[Path]:
    """Yield the files and folders from which a backend's specification can run code.

    Args:
        text: the specification.

    Raises:
        UsageError: if the specification is malformed.
    """
    specification = parse_specification(text)
    source, command = specification.source, specification.command
    environment = {
        name.removeprefix(ENVIRONMENT): value
        for name, value in specification.options.items()
        if name.startswith(ENVIRONMENT)
    }
    yield from _of_environment(environment)
    for name, value in specification.options.items():
        if name not in _NO_PATHS and not name.startswith(ENVIRONMENT):
            yield from _of_option(value)
    if "python" in specification.options:
        yield from _interpreter(Path(specification.options["python"]))
    modules = [Path.cwd(), *_entries(environment.get("PYTHONPATH", ""))]
    if specification.adapter or is_path(source):
        yield from _with_folder(snapshot_files(text).values())
    elif source:
        entries = [Path(entry or ".") for entry in sys.path]
        modules += [entry for entry in entries if not _is_installed(entry)]
        yield from _module_code(source, modules)
    elif command:
        if "/" in command[0]:
            yield from _interpreter(Path(command[0]))
        elif program := shutil.which(command[0], path=environment.get("PATH", "")):
            yield from _interpreter(Path(program))
        # In the snapshot, only the names of files from arguments contain a slash, because they
        # begin with the position of the argument.
        named = (path for name, path in snapshot_files(text).items() if "/" in name)
        yield from _with_folder(named)
        yield from _of_arguments(command[1:], modules)


def with_bytecode(files: Iterable[Path]) -> Iterator[Path]:
    """Yield files, the bytecode that Python loads in their place, and the bytecode's folders."""
    stems: dict[Path, set[str]] = {}
    for file in files:
        yield file
        if file.suffix == ".py":
            for path in (file, Path(os.path.realpath(file))):
                stems.setdefault(path.parent / "__pycache__", set()).add(path.stem)
    for folder, folder_stems in stems.items():
        if not os.path.lexists(folder):
            continue
        yield folder
        for entry in _listed(folder):
            # The stem precedes the interpreter's tag (`name.cpython-311.pyc`) and may contain dots.
            names = {entry.name[: dot.start()] for dot in re.finditer(r"\.", entry.name)}
            if entry.suffix == ".pyc" and names & folder_stems:
                yield entry


def _with_folder(files: Iterable[Path]) -> Iterator[Path]:
    """Yield files, and the code beside each Python file.

    A Python file can compute the name of a module in its folder, and import that module.
    """
    folders = set()
    for file in files:
        yield file
        if file.suffix == ".py" and not _is_installed(file.parent):
            folders.add(file.parent)
    for folder in folders:
        yield from _code_in(folder)


def _module_code(name: str, folders: Iterable[Path]) -> Iterator[Path]:
    """Yield the files of a module or package in any of the folders, and the code beside them."""
    top = name.partition(".")[0]
    for folder in dict.fromkeys(Path(os.path.abspath(folder)) for folder in folders):  # noqa: PTH100
        spec = None
        # A module in sys.modules may lack a valid specification.
        with suppress(Exception):
            spec = PathFinder.find_spec(top, [str(folder)])
        if spec is None:
            continue
        if spec.submodule_search_locations is None:
            if spec.origin and spec.has_location:
                yield from _with_folder(path for _, path in _with_neighbours(Path(spec.origin)))
            continue
        for location in spec.submodule_search_locations:
            yield from (path for _, path in _package_files(Path(location)))
        yield from (path for path in _listed(folder) if _is_code(path.name))


def _of_arguments(arguments: Sequence[str], folders: Sequence[Path]) -> Iterator[Path]:
    """Yield the code that arguments name: a folder, a module after ``-m``, or an interpreter."""
    following = [*arguments, ""][1:]
    for argument, after in zip(arguments, following, strict=True):
        if option := re.fullmatch(r"-[A-Za-z]*?m([\w.]*)", argument):
            name = option[1] or after
            if all(part.isidentifier() for part in name.split(".")):
                yield from _module_code(name, folders)
        for text in (argument, argument.partition("=")[2]):
            if text and os.path.isdir(text):  # noqa: PTH112 - accepts any text
                yield from _run_folder(Path(text))
        yield from _of_option(argument)


def _of_option(option: str) -> Iterator[Path]:
    """Yield the paths in an option or variable, as in ``-r./x``, ``-I./lib`` or ``-agent:x.jar``.

    The text ``./x`` may stand for ``./x.js``, because an interpreter may add the suffix.
    """
    # A path itself may contain a separator.
    parts = re.split(r"[\s=:,;@]", option.replace("file://", "="))
    values = [option, option.partition("=")[2], *parts]
    for text in dict.fromkeys(text for value in values for text in (value, value[2:]) if text):
        path = Path(text)
        if stat.S_ISREG(_mode(path)):
            yield from _interpreter(path)
        elif stat.S_ISDIR(_mode(path)):
            yield from _run_folder(path)
        elif "/" in text and not path.suffix:
            for entry in _listed(path.parent):
                if entry.stem == path.name and stat.S_ISREG(_mode(entry)):
                    yield entry


def _run_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder with its files, and the modules that its ``__main__.py`` imports.

    A shared folder such as ``/tmp`` is not yielded as a whole, because it contains unrelated files.
    """
    main = folder / "__main__.py"
    if _mode(main):
        yield from (path for _, path in _with_neighbours(main))
    if not _is_shared(folder):
        yield folder
        yield from (path for path in _listed(folder) if stat.S_ISREG(_mode(path)))


def _of_environment(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the files and folders that environment variables name, and the code in the folders."""
    for name, value in environment.items():
        if name in {"PYTHONUSERBASE", "PYTHONHOME"}:
            for prefix in _entries(value):
                yield from _installed_below(prefix)
        if name == "HOME":
            # Python loads the packages of the user from this folder.
            yield from _installed_below(Path(value, ".local"))
        if not _NAMES_CODE.fullmatch(name):
            yield from _of_option(value)
            continue
        for path in _entries(value.replace(" ", os.pathsep) if "PRELOAD" in name else value):
            # Folders of PATH contain unrelated programs; `named_code` yields only the program that
            # runs.
            if stat.S_ISDIR(_mode(path)) and name != "PATH":
                yield from _searched(path)
            else:
                yield path


def _interpreter(program: Path) -> Iterator[Path]:
    """Yield a program; if the program is Python, also the code that it loads at its start."""
    yield program
    if not re.match(r"python|pypy", program.name, re.IGNORECASE):
        return
    for path in dict.fromkeys((program.absolute(), Path(os.path.realpath(program)))):
        prefix = path.parent.parent
        for root in (path.parent, prefix):
            yield root / "pyvenv.cfg"
        yield from _installed_below(prefix)


def _installed_below(prefix: Path) -> Iterator[Path]:
    """Yield the folders of installed packages below an interpreter's prefix, with their code."""
    for pattern in _SITE_PACKAGES:
        for folder in prefix.glob(pattern):
            yield folder.parent
            yield from _searched(folder)


def _searched(folder: Path) -> Iterator[Path]:
    """Yield a folder from which modules or libraries are loaded, and the code in the folder."""
    yield folder
    yield from _code_in(folder)


def _code_in(folder: Path) -> Iterator[Path]:
    """Yield the modules, libraries and packages at the top level of a folder."""
    for entry in _listed(folder):
        if _is_code(entry.name) or entry.suffix == ".pth":
            yield entry
        elif entry.name.isidentifier():
            yield entry / "__init__.py"


def _is_code(name: str) -> bool:
    return name.endswith(_CODE_SUFFIXES) or ".so." in name


def _is_installed(folder: Path) -> bool:
    return folder.name in _INSTALLED_FOLDERS or folder.suffix == ".zip"


def _is_shared(folder: Path) -> bool:
    mode = _mode(folder)
    return bool(mode & stat.S_IWOTH and mode & stat.S_ISVTX)


def _mode(path: Path) -> int:
    """Return the mode of the file at a path, after following links; 0 if there is no such file."""
    with suppress(OSError, ValueError):
        return path.stat().st_mode
    return 0


def _entries(value: str) -> list[Path]:
    """Return the paths in a variable; an empty path stands for the current folder."""
    return [Path(entry or ".").absolute() for entry in value.split(os.pathsep)] if value else []


def _listed(folder: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(islice(folder.iterdir(), _MAX_ENTRIES))
    return []
