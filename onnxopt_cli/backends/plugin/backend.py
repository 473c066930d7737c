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
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import onnx

from onnxopt_cli.backends.plugin.loading import starting
from onnxopt_cli.backends.protocol import Backend, Prepared
from onnxopt_cli.backends.specification import Specification
from onnxopt_cli.backends.unsupported import with_patterns
from onnxopt_cli.core.text import exception_text, printable
from onnxopt_cli.core.values import Value
from onnxopt_cli.errors import BackendUnavailable, Unsupported


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
