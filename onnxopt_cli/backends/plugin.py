"""Python plugins: backends with ONNX's own interface, or objects with ``run``.

ONNX's interface is a class, an instance or a module with ``prepare(model, device)``. This function
returns an object with ``run(inputs)``, where the inputs are a list in the graph's order. The
optional methods ``supports_device`` and ``is_compatible`` are called if they exist. The option
``device`` is ``CPU`` by default.

The interface of onnxopt is a function ``run(model, inputs)``, where the inputs are a dict by name.
The function is the plugin itself, or belongs to an instance, a module, or a class without
constructor arguments. Both interfaces return the outputs as a list or tuple in the graph's order,
or as a dict by name.

A plugin reports a feature as unsupported with NotImplementedError, unittest.SkipTest (the base
class of onnx's BackendIsNotSupposedToImplementIt) or :class:`onnxopt_cli.errors.Unsupported`. An
error that matches a regular expression also reports an unsupported feature. The option
``unsupported``, or the plugin's attribute of this name, contains the expression.

A module is imported from ``sys.path``, then from the current directory. The folder of a file is
appended to ``sys.path`` and stays there, so that the file can import modules beside it at any time.
If the import system finds the file under the file's own name, the file is loaded under this name.
Processes that the plugin spawns can then import its functions. Otherwise, the file is loaded under
a unique name.
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
from onnxopt_cli.backends.specification import Specification, is_path
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
    """Load a plugin as a backend; exceptions of its import and its constructor propagate.

    Args:
        specification: the backend as the user specified it.
        entry_point: the entry point of an installed plugin.

    Raises:
        UsageError: if the source names neither a module nor a file, or the plugin's interface
            lacks one of the options.
        BackendUnavailable: if the module, file or attribute does not exist, or if the object has
            neither interface or does not support the device.
    """
    if entry_point is None:
        plugin, version = _import_attribute(specification)
    else:
        plugin, distribution = entry_point.load(), entry_point.dist
        version = printable(f"{distribution.name} {distribution.version}") if distribution else ""
    if callable(getattr(plugin, "prepare", None)):
        return _OnnxPlugin(specification, _instance(plugin, "prepare"), version)
    if isinstance(plugin, FunctionType) and _takes_two(plugin):
        plugin = SimpleNamespace(run=plugin)
    if callable(getattr(plugin, "run", None)):
        return _RunPlugin(specification, _instance(plugin, "run"), version)
    kind = "a class" if isinstance(plugin, type) else f"of type {type(plugin).__name__}"
    description = (
        f" is {printable(kind)} with neither prepare(model, device) nor run(model, inputs)"
    )
    raise unavailable(
        specification.text,
        description,
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
        # A method `unsupported` of a plugin has another purpose and is ignored.
        self.unsupported = None if callable(stated) else stated

    def prepare(self, model: onnx.ModelProto) -> Prepared:
        # The plugin may modify the model, and the caller uses the model again.
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
            description = f" does not support the device {printable(self._device)}"
            raise unavailable(self.name, description)

    def prepare(self, model: onnx.ModelProto) -> Prepared:
        model = deepcopy(model)
        with reporting(_unsupported):
            if not self._agrees("is_compatible", model, self._device):
                raise Unsupported(f"is_compatible rejects the model on {printable(self._device)}")
            prepared = self._plugin.prepare(model, self._device)
        run = getattr(prepared, "run", None)
        if not callable(run):
            raise TypeError(f"prepare returned a {type(prepared).__name__}, which has no run")
        return Prepared(reporting(_unsupported)(lambda inputs: run(list(inputs.values()))))

    def _agrees(self, method: str, *arguments: object) -> bool:
        predicate = getattr(self._plugin, method, None)
        return predicate is None or bool(predicate(*arguments))


def _takes_two(function: FunctionType) -> bool:
    """Return whether a function can be called with a model and inputs."""
    with suppress(TypeError):
        return bool(inspect.signature(function).bind(None, None))
    return False


def _instance(plugin: object, method: str) -> object:
    """Return the plugin or, if it is a class whose method needs an instance, an instance of it."""
    plain = isinstance(inspect.getattr_static(plugin, method), FunctionType)
    return plugin() if isinstance(plugin, type) and plain else plugin


def _unsupported(error: BaseException) -> Unsupported | None:
    # Imported late, because most runs do not need the module.
    from unittest import SkipTest

    is_unsupported = isinstance(error, (NotImplementedError, SkipTest))
    return Unsupported(exception_text(error)) if is_unsupported else None


def _import_attribute(specification: Specification) -> tuple[object, str]:
    """Return an attribute of a module or file, and the ``__version__`` of its package."""
    backend, source = specification.text, specification.source
    if is_path(source):
        require_plugin_file(specification)
        # All adapters of onnxopt are in the same folder, under the names of their runtimes. If the
        # folder were on the import path, an adapter would be imported in place of a missing
        # runtime.
        is_shipped = bool(specification.adapter) and specification.adapter != source
        module = _load_file(Path(source), with_folder=not is_shipped)
        package, package_name = module, Path(source).stem
    else:
        module = _import_module(backend, source)
        package_name = source.partition(".")[0]
        package = sys.modules.get(package_name, module)
    attribute: object = module
    for part in specification.attribute.split("."):
        if not hasattr(attribute, part):
            public = [name for name in dir(attribute) if not name.startswith("_")]
            listed = f"it has {some_of(public, 10)}" if public else "it has no attributes"
            description = f": {printable(source)} has no {printable(part)}"
            raise unavailable(backend, description, nearest(part, public, listed))
        attribute = getattr(attribute, part)
    version = getattr(package, "__version__", None)
    return attribute, printable(f"{package_name} {version}") if type(version) is str else ""


def require_plugin_file(specification: Specification) -> None:
    """Require that the file of a plugin exists; accept every other backend.

    Raises:
        BackendUnavailable: if the file does not exist.
    """
    source = specification.source
    if source and is_path(source):
        path = Path(os.path.realpath(source))
        if not path.is_file():
            problem = "is not a file" if path.exists() else "does not exist"
            raise unavailable(specification.text, f": {printable(str(path))} {problem}")


def _load_file(path: Path, *, with_folder: bool) -> ModuleType:
    """Run a file as a module; if ``with_folder`` is true, the file can import modules beside it."""
    path = Path(os.path.realpath(path))
    if not with_folder:
        return run_file(path, _unique_name(path))
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
        # The error is reported when the file runs.
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
    """Finds a module with the name of a plugin, in any folder except the plugin's.

    Args:
        path: the plugin's file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def find_spec(
        self, name: str, _: Sequence[str] | None = None, __: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the module in a folder other than the plugin's, and return its specification.

        If the plugin's folder were searched, the plugin's file would import itself.

        Raises:
            ModuleNotFoundError: if no other folder contains the module.
        """
        if name != self._path.stem:
            return None
        folder = str(self._path.parent)
        entries = [entry for entry in sys.path if os.path.realpath(entry or ".") != folder]
        specification = PathFinder.find_spec(name, entries)
        if specification is None:
            message = (
                f"No module named {name!r}; the plugin {self._path.name}, which imports this "
                "module, has the same name"
            )
            raise ModuleNotFoundError(message, name=name)
        return specification


def _module_name(path: Path) -> str:
    name = path.stem
    if name.isidentifier():
        # A module that is already imported may lack a specification (ValueError), and a package
        # that shadows the file may be broken (ImportError).
        with suppress(ValueError, ImportError):
            specification = importlib.util.find_spec(name)
            origin = specification and specification.origin
            if origin and Path(origin).resolve() == path:
                return name
    return _unique_name(path)


def _unique_name(path: Path) -> str:
    return f"onnxopt_plugin_{sha256(str(path).encode('utf-8', 'surrogateescape')).hexdigest()[:16]}"


def _import_module(backend: str, name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        description = f": {printable(name)!r} is not a module's name"
        raise misused(backend, description, "the name of a file ends in .py")
    with suppress(FileNotFoundError):
        # The current folder may have been deleted; the module may still be on sys.path.
        folder = str(Path.cwd())
        if folder not in sys.path and "" not in sys.path:
            sys.path.append(folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # If a dependency of the plugin is missing, the error is the plugin's own.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        hint = "is it installed here? for a file, write python:path/to/file.py:attribute"
        description = f": no module named {printable(error.name)}"
        raise unavailable(backend, description, hint) from error
