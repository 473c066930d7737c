"""Loading a plugin's object from a module, a file or an installed entry point.

A module is looked for on ``sys.path``, then in the current directory. The folder of a file is put
at the end of ``sys.path`` and stays there, so that it can import its neighbours, also later. A file
keeps its name where importing that finds it, so that processes which it spawns find its functions;
else it is loaded under one that no module has.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from hashlib import sha256
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from onnxopt_cli.core.text import exception_text, printable
from onnxopt_cli.errors import BackendUnavailable, OnnxoptError, UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def import_attribute(backend: str, source: str, attribute: str) -> tuple[object, str]:
    """Return an attribute of a module or file, and the version that its package states.

    Args:
        backend: the backend's specification, for messages.
        source: a file, if it ends in ``.py`` or contains a path separator; else a module.
        attribute: dotted path of the attribute.

    Raises:
        UsageError: if the source can be neither a module nor a file.
        BackendUnavailable: if there is no such module, file or attribute, or if importing it
            raises or ends the interpreter.
    """
    if source.endswith(".py") or "/" in source or "\\" in source:
        module = _load_file(backend, Path(source))
        package, name = module, Path(source).stem
    else:
        module = _import_module(backend, source)
        name = source.partition(".")[0]
        package = sys.modules.get(name, module)
    with starting(backend):
        found: object = module
        for part in attribute.split("."):
            if not hasattr(found, part):
                raise _no_attribute(backend, source, part, found)
            found = getattr(found, part)
        version = getattr(package, "__version__", None)
        return found, printable(f"{name} {version}") if type(version) is str else ""


def load_entry_point(backend: str, entry_point: EntryPoint) -> tuple[object, str]:
    """Return an entry point's object, and its distribution with version.

    Raises:
        BackendUnavailable: if importing it raises, or ends the interpreter.
    """
    with starting(backend):
        distribution = entry_point.dist
        version = f"{distribution.name} {distribution.version}" if distribution else ""
        return entry_point.load(), printable(version)


@contextmanager
def starting(backend: str) -> Iterator[None]:
    """Turn whatever a plugin raises while it starts, SystemExit too, into BackendUnavailable."""
    try:
        yield
    except (OnnxoptError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise BackendUnavailable(
            f"backend {printable(backend)} does not start: {exception_text(error)}"
        ) from error


def _load_file(backend: str, path: Path) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        what = "is no file" if path.exists() else "does not exist"
        raise BackendUnavailable(f"backend {printable(backend)}: {printable(str(path))} {what}")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    name = _module_name(path)
    if name in sys.modules:
        return sys.modules[name]
    loader = SourceFileLoader(name, str(path))
    specification = importlib.util.spec_from_loader(name, loader)
    with starting(backend):
        module = importlib.util.module_from_spec(specification)  # type: ignore[arg-type]
        sys.modules[name] = module
        try:
            loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return module


def _module_name(path: Path) -> str:
    own = path.stem
    if own.isidentifier():
        # What is imported already may have no specification; what shadows the file may be broken.
        with suppress(ValueError, ImportError):
            found = importlib.util.find_spec(own)
            if found and found.origin and Path(found.origin).resolve() == path:
                return own
    return f"onnxopt_plugin_{sha256(str(path).encode('utf-8', 'surrogateescape')).hexdigest()[:16]}"


def _import_module(backend: str, name: str) -> ModuleType:
    if not _MODULE.fullmatch(name):
        raise UsageError(
            f"backend {printable(backend)}: {printable(name)!r} is no module's name",
            hint="a file's name ends in .py",
        )
    with suppress(FileNotFoundError):
        # The current folder may be gone, and the module elsewhere.
        here = str(Path.cwd())
        if here not in sys.path and "" not in sys.path:
            sys.path.append(here)
    with starting(backend):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            # A module that the plugin itself lacks is another matter.
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            raise BackendUnavailable(
                f"backend {printable(backend)}: there is no module {printable(error.name)}",
                hint="is it installed here? a file is written python:path/to/file.py:attribute",
            ) from error


def _no_attribute(backend: str, source: str, name: str, found: object) -> BackendUnavailable:
    public = [known for known in dir(found) if not known.startswith("_")]
    near = get_close_matches(name, public, n=3)
    listed = near or public[:10]
    start = "did you mean" if near else "it has"
    return BackendUnavailable(
        f"backend {printable(backend)}: {printable(source)} has no {printable(name)}",
        hint=f"{start} {', '.join(map(printable, listed))}" if listed else "it has no attributes",
    )
