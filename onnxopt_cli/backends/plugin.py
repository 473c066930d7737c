"""Backends that others write in Python: ONNX's own interface, or an object with ``run``.

ONNX's interface is a class, an instance or a module with ``prepare(model, device)``, which returns
something with ``run(inputs)``, the inputs being a list in the graph's order. ``supports_device``
and ``is_compatible`` are asked if they are there. The option ``device`` is ``CPU`` by default.

Ours is an instance, a module, or a class that needs no arguments, with ``run(model, inputs)``, or
that function alone, the inputs being a dict by name. Both return the outputs as a list or tuple in
the graph's order, or as a dict by name.

A plugin says that it does not know something with NotImplementedError, unittest.SkipTest (which
onnx's BackendIsNotSupposedToImplementIt is) or :class:`onnxopt_cli.errors.Unsupported`; or with any
error in which a regular expression is found, the option ``unsupported`` or the plugin's attribute
of that name.

A module is looked for on ``sys.path``, then in the current directory. The folder of a file is put
at the end of ``sys.path`` and stays there, so that it can import its neighbours, also later. A file
keeps its name where importing that finds it, so that processes which it spawns find its functions;
else it is loaded under one that no module has.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from hashlib import sha256
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import onnx

from onnxopt_cli.backends.protocol import (
    Backend,
    Prepared,
    misused,
    reporting,
    unavailable,
)
from onnxopt_cli.backends.specification import Specification
from onnxopt_cli.core.files import run_file
from onnxopt_cli.core.text import (
    exception_text,
    nearest,
    printable,
    some_of,
)
from onnxopt_cli.errors import Unsupported

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def load_plugin(specification: Specification, entry_point: EntryPoint | None = None) -> Backend:
    """Return a plugin as a backend; what importing or making it raises is passed on.

    Args:
        specification: how the user asked for it.
        entry_point: where it is, if it is installed under a name.

    Raises:
        UsageError: if its source can be neither a module nor a file, or its interface has no such
            option.
        BackendUnavailable: if there is no such module, file or attribute, or if the object has
            neither interface or does not support the device.
    """
    if entry_point is None:
        found, version = _import_attribute(specification)
    else:
        found, distribution = entry_point.load(), entry_point.dist
        version = printable(f"{distribution.name} {distribution.version}") if distribution else ""
    if callable(getattr(found, "prepare", None)):
        return _OnnxPlugin(specification, _instance(found, "prepare"), version)
    if isinstance(found, FunctionType) and _takes_two(found):
        found = SimpleNamespace(run=found)
    if callable(getattr(found, "run", None)):
        return _RunPlugin(specification, _instance(found, "run"), version)
    kind = "a class" if isinstance(found, type) else f"of type {type(found).__name__}"
    what = f" is {printable(kind)} with neither prepare(model, device) nor run(model, inputs)"
    raise unavailable(
        specification.text,
        what,
        "give an implementation of onnx.backend.base.Backend, or an object with "
        "run(model, inputs) that returns the outputs",
    )


class _RunPlugin(Backend):
    """A plugin with ``run(model, inputs)``."""

    options: tuple[str, ...] = ("unsupported",)

    def __init__(self, specification: Specification, plugin: Any, version: str) -> None:
        python = ("python",) if specification.source else ()
        specification.require_known((*self.options, *python))
        self.name = specification.text
        self.version = version
        self._plugin = plugin
        stated = getattr(plugin, "unsupported", None)
        # Others may use the name for a method of theirs.
        self.unsupported = None if callable(stated) else stated

    def prepare(self, model: onnx.ModelProto) -> Prepared:
        # The plugin may change it, and it is used again.
        model = deepcopy(model)
        run = self._plugin.run
        return Prepared(reporting(_unsupported)(lambda inputs: run(model, dict(inputs))))


class _OnnxPlugin(_RunPlugin):
    """A plugin with ONNX's interface."""

    options = ("device", "unsupported")

    def __init__(self, specification: Specification, plugin: Any, version: str) -> None:
        super().__init__(specification, plugin, version)
        self._device = specification.options.get("device", "CPU")
        if not self._agrees("supports_device", self._device):
            what = f" does not support the device {printable(self._device)}"
            raise unavailable(self.name, what)

    def prepare(self, model: onnx.ModelProto) -> Prepared:
        model = deepcopy(model)
        with reporting(_unsupported):
            if not self._agrees("is_compatible", model, self._device):
                raise Unsupported(f"not compatible with the model on {printable(self._device)}")
            prepared = self._plugin.prepare(model, self._device)
        run = getattr(prepared, "run", None)
        if not callable(run):
            raise TypeError(f"prepare returned a {type(prepared).__name__}, which has no run")
        return Prepared(reporting(_unsupported)(lambda inputs: run(list(inputs.values()))))

    def _agrees(self, question: str, *about: object) -> bool:
        ask = getattr(self._plugin, question, None)
        return ask is None or bool(ask(*about))


def _takes_two(function: FunctionType) -> bool:
    """Tell whether a function can be called with a model and inputs."""
    with suppress(TypeError):
        return bool(inspect.signature(function).bind(None, None))
    return False


def _instance(found: object, method: str) -> object:
    """Return the object, or an instance of it if it is a class whose method needs one."""
    plain = isinstance(inspect.getattr_static(found, method), FunctionType)
    return found() if isinstance(found, type) and plain else found


def _unsupported(error: BaseException) -> Unsupported | None:
    # It need not be imported before something is raised.
    from unittest import SkipTest

    known = isinstance(error, (NotImplementedError, SkipTest))
    return Unsupported(exception_text(error)) if known else None


def _import_attribute(specification: Specification) -> tuple[object, str]:
    """Return an attribute of a module or file, and the version that its package states."""
    backend, source = specification.text, specification.source
    if source.endswith(".py") or "/" in source or "\\" in source:
        module = _load_file(backend, Path(source))
        package, name = module, Path(source).stem
    else:
        module = _import_module(backend, source)
        name = source.partition(".")[0]
        package = sys.modules.get(name, module)
    found: object = module
    for part in specification.attribute.split("."):
        if not hasattr(found, part):
            public = [known for known in dir(found) if not known.startswith("_")]
            listed = f"it has {some_of(public, 10)}" if public else "it has no attributes"
            what = f": {printable(source)} has no {printable(part)}"
            raise unavailable(backend, what, nearest(part, public, listed))
        found = getattr(found, part)
    version = getattr(package, "__version__", None)
    return found, printable(f"{name} {version}") if type(version) is str else ""


def _load_file(backend: str, path: Path) -> ModuleType:
    path = Path(os.path.realpath(path))
    if not path.is_file():
        what = "is not a file" if path.exists() else "does not exist"
        raise unavailable(backend, f": {printable(str(path))} {what}")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    if _imports_its_own_name(path):
        sys.meta_path.insert(0, _FinderElsewhere(path))
        return run_file(path, _unique_name(path))
    return run_file(path, _module_name(path))


def _imports_its_own_name(path: Path) -> bool:
    """Return whether a file imports a module of its own name, such as the runtime that it wraps."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError, RecursionError):
        # Running the file says what is wrong with it.
        return False
    names = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    ]
    names += [
        node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level == 0
    ]
    return path.stem in {name.partition(".")[0] for name in names}


class _FinderElsewhere:
    """Finds the module that has the name of a plugin's file, wherever the file itself is first.

    Args:
        path: the plugin's file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def find_spec(
        self, name: str, _: Sequence[str] | None = None, __: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the specification of a module of that name outside of the plugin's folder.

        Raises:
            ModuleNotFoundError: if there is none; the file would import itself.
        """
        if name != self._path.stem:
            return None
        folder = str(self._path.parent)
        others = [entry for entry in sys.path if os.path.realpath(entry or ".") != folder]
        found = PathFinder.find_spec(name, others)
        if found is None:
            what = f"No module named {name!r}; {self._path.name}, which imports it, has its name"
            raise ModuleNotFoundError(what, name=name)
        return found


def _module_name(path: Path) -> str:
    own = path.stem
    if own.isidentifier():
        # What is imported already may have no specification; what shadows the file may be broken.
        with suppress(ValueError, ImportError):
            found = importlib.util.find_spec(own)
            if found and found.origin and Path(found.origin).resolve() == path:
                return own
    return _unique_name(path)


def _unique_name(path: Path) -> str:
    return f"onnxopt_plugin_{sha256(str(path).encode('utf-8', 'surrogateescape')).hexdigest()[:16]}"


def _import_module(backend: str, name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        what = f": {printable(name)!r} is not a module's name"
        raise misused(backend, what, "a file's name ends in .py")
    with suppress(FileNotFoundError):
        # The current folder may be gone, and the module elsewhere.
        here = str(Path.cwd())
        if here not in sys.path and "" not in sys.path:
            sys.path.append(here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # A module that the plugin itself lacks is another matter.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        hint = "is it installed here? a file is written python:path/to/file.py:attribute"
        what = f": there is no module {printable(error.name)}"
        raise unavailable(backend, what, hint) from error
