"""Backends that others write in Python: ONNX's own interface, or an object with ``run``.

ONNX's interface is a class, an instance or a module with ``prepare(model, device)``, which returns
something with ``run(inputs)``, the inputs being a list in the graph's order. ``supports_device``
and ``is_compatible`` are asked if they are there. The option ``device`` is ``CPU`` by default.

Ours is an instance, a module, or a class that needs no arguments, with ``run(model, inputs)``, the
inputs being a dict by name. Both return the outputs as a list or tuple in the graph's order, or as
a dict by name.

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

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from hashlib import sha256
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import onnx

from onnxopt_cli.backends.protocol import Backend, Prepared
from onnxopt_cli.backends.specification import Specification
from onnxopt_cli.backends.unsupported import with_patterns
from onnxopt_cli.core.text import exception_text, printable
from onnxopt_cli.core.values import Value
from onnxopt_cli.errors import BackendUnavailable, OnnxoptError, Unsupported, UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def wrap_plugin(specification: Specification, found: object, version: str) -> Backend:
    """Return a plugin's object as a backend.

    Args:
        specification: how the user asked for it.
        found: the object.
        version: the plugin's name and version, or empty.

    Raises:
        UsageError: if the object's interface has no such option.
        BackendUnavailable: if the object has neither interface, cannot be made, does not support
            the device, or states something that is no regular expression.
    """
    with starting(specification.text):
        if callable(getattr(found, "prepare", None)):
            specification.require_known(("device", "unsupported"))
            plugin = _instance(found, "prepare")
            return _watched(specification, _OnnxPlugin(specification, plugin, version), plugin)
        if callable(getattr(found, "run", None)):
            specification.require_known(("unsupported",))
            plugin = _instance(found, "run")
            return _watched(specification, _RunPlugin(specification.text, plugin, version), plugin)
    kind = "a class" if isinstance(found, type) else f"of type {type(found).__name__}"
    raise BackendUnavailable(
        f"backend {printable(specification.text)} is {printable(kind)} "
        "with neither prepare(model, device) nor run(model, inputs)",
        hint="give an implementation of onnx.backend.base.Backend, or an object with "
        "run(model, inputs) that returns the outputs",
    )


class _OnnxPlugin:
    """A plugin with ONNX's interface."""

    def __init__(self, specification: Specification, plugin: Any, version: str) -> None:
        self.name = specification.text
        self.version = version
        self._plugin = plugin
        self._device = specification.options.get("device", "CPU")
        if not self._says_yes("supports_device", self._device):
            raise BackendUnavailable(
                f"backend {printable(self.name)} does not support the device "
                f"{printable(self._device)}"
            )

    def prepare(self, model: onnx.ModelProto) -> Prepared:
        model = _copy(model)
        with _reporting_unsupported():
            if not self._says_yes("is_compatible", model, self._device):
                raise Unsupported(f"not compatible with the model on {printable(self._device)}")
            prepared = self._plugin.prepare(model, self._device)
        if not callable(getattr(prepared, "run", None)):
            raise TypeError(f"prepare returned a {type(prepared).__name__}, which has no run")
        return _OnnxPrepared(prepared)

    def _says_yes(self, question: str, *about: object) -> bool:
        ask = getattr(self._plugin, question, None)
        return ask is None or bool(ask(*about))


class _OnnxPrepared:
    """A model that a plugin with ONNX's interface has prepared."""

    def __init__(self, prepared: Any) -> None:
        self._prepared = prepared

    def run(self, inputs: Mapping[str, Value]) -> Any:
        with _reporting_unsupported():
            return self._prepared.run(list(inputs.values()))


class _RunPlugin:
    """A plugin with ``run(model, inputs)``."""

    def __init__(self, name: str, plugin: Any, version: str) -> None:
        self.name = name
        self.version = version
        self._plugin = plugin

    def prepare(self, model: onnx.ModelProto) -> Prepared:
        return _RunPrepared(self._plugin, _copy(model))


class _RunPrepared:
    """A model for a plugin with ``run(model, inputs)``."""

    def __init__(self, plugin: Any, model: onnx.ModelProto) -> None:
        self._plugin = plugin
        self._model = model

    def run(self, inputs: Mapping[str, Value]) -> Any:
        with _reporting_unsupported():
            return self._plugin.run(self._model, dict(inputs))


def _watched(specification: Specification, backend: Backend, plugin: object) -> Backend:
    stated = getattr(plugin, "unsupported", None)
    # Others may use the name for a method of theirs.
    own = () if stated is None or callable(stated) else (stated,)
    return with_patterns(backend, specification.options.get("unsupported"), own)


def _instance(found: object, method: str) -> object:
    """Return the object, or an instance of it if it is a class whose method needs one."""
    plain = isinstance(inspect.getattr_static(found, method), FunctionType)
    return found() if isinstance(found, type) and plain else found


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy that a plugin may change: the model is used again after it."""
    own = onnx.ModelProto()
    own.CopyFrom(model)
    return own


@contextmanager
def _reporting_unsupported() -> Iterator[None]:
    try:
        yield
    except NotImplementedError as error:
        raise Unsupported(exception_text(error)) from error
    except Exception as error:
        # Not worth importing before something is raised.
        from unittest import SkipTest

        if not isinstance(error, SkipTest):
            raise
        raise Unsupported(exception_text(error)) from error


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
