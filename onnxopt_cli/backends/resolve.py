"""Create a backend from its specification, and list the backends that have a name."""

from __future__ import annotations

import importlib.util
import os
import platform
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import TYPE_CHECKING

from onnxopt_cli.backends.protocol import (
    Backend,
    misused,
    starting,
    with_patterns,
)
from onnxopt_cli.backends.reference import NumpyBackend, ReferenceBackend
from onnxopt_cli.backends.specification import (
    ADAPTER,
    ENVIRONMENT,
    OWN_OPTIONS,
    Specification,
    parse_specification,
)
from onnxopt_cli.config.run_config import Limits
from onnxopt_cli.core.text import (
    exception_text,
    nearest,
    printable,
)
from onnxopt_cli.errors import BackendUnavailable, UsageError
from onnxopt_cli.operators.registry import registry

# To start fast, importlib.metadata and each kind of backend are imported where they are used.
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.metadata import EntryPoint

    from onnxopt_cli.backends.adapter.adapter_environment import AdapterEnvironment

# The entry-point group in which installed packages register backends by name.
_ENTRY_POINTS = "onnxopt.backends"

#: Names of the built-in backends.
BUILT_IN = ("numpy", "onnxruntime", "onnx-reference")
# The words with which specifications of unnamed backends begin, before a colon.
_KINDS = ("python", "exec", "adapter")
# Suffixes of the names of distributions that contain the package onnxruntime.
_ONNXRUNTIME_BUILDS = ("", "-gpu", "-directml", "-openvino", "-qnn", "-training")


@dataclass(frozen=True, slots=True)
class KnownBackend:
    """A backend with a name, such as a built-in backend.

    Attributes:
        name: the name to write after ``-b``.
        kind: ``built in``, or the object reference of the entry point.
        version: the package that implements the backend, with its version; empty if the backend is
            not available.
        problem: the reason why the backend is not available; empty if it is available.
    """

    name: str
    kind: str
    version: str
    problem: str = ""


def resolve_backend(text: str) -> Backend:
    """Parse the specification of a backend, and create the backend; see :func:`create_backend`.

    Args:
        text: a built-in backend, an entry point's name, a Python attribute, a command or an
            adapter, with options; see :mod:`onnxopt_cli.backends.specification`.

    Raises:
        UsageError: if the text is malformed.
    """
    return create_backend(parse_specification(text))


def create_backend(specification: Specification, limits: Limits | None = None) -> Backend:
    """Create the backend that a user specified.

    Args:
        specification: the backend.
        limits: the time limits of a backend that is a command; None for the default limits.

    Raises:
        UsageError: if the backend does not exist, or does not have one of the options.
        BackendUnavailable: if the module, file, attribute or program does not exist, or does not
            start; or if the environment of the adapter does not exist.
    """
    if specification.name == "numpy":
        specification.require_known(())
        return NumpyBackend()
    # Backends other than numpy may use onnx to validate models or infer shapes. For this, onnx
    # needs the schemas of the operators.
    registry().register_schemas()
    options = {
        name: value
        for name, value in specification.options.items()
        if not name.startswith(ENVIRONMENT) and name not in OWN_OPTIONS
    }
    environment = None
    if specification.adapter:
        from onnxopt_cli.backends.adapter.adapter_environment import AdapterEnvironment

        # The environment is found before the variables below are set, because these variables
        # concern the backend, not the search.
        environment = AdapterEnvironment.of(replace(specification, options=options))
    for name, value in specification.options.items():
        if name.startswith(ENVIRONMENT):
            try:
                os.environ[name.removeprefix(ENVIRONMENT)] = value
            except (OSError, ValueError) as error:
                problem = f": {printable(name)}={printable(value)} cannot be set as a variable"
                raise misused(specification.given, problem, exception_text(error)) from None
    specification = replace(specification, options=options)
    with starting(specification.given):
        if environment is not None:
            return _adapter(environment, limits)
        return with_patterns(_backend(specification, limits), _option(specification))


def _option(specification: Specification) -> list[str]:
    """Return the regular expression of the option ``unsupported``, if the option is given."""
    option = specification.options.get("unsupported")
    return [] if option is None else [option]


def _adapter(environment: AdapterEnvironment, limits: Limits | None) -> Backend:
    """Start the plugin of an adapter in the adapter's environment, which must exist."""
    runnable = environment.runnable()
    try:
        backend = _backend(runnable, limits)
    except BackendUnavailable as error:
        error.hint = environment.system_hint or error.hint
        raise
    if unpinned := environment.unpinned():
        backend.version += f" ({unpinned})"
    return with_patterns(backend, [*environment.adapter.unsupported, *_option(runnable)])


def _backend(specification: Specification, limits: Limits | None) -> Backend:
    installed = {} if specification.name in BUILT_IN else entry_points_by_name()
    if specification.command or (specification.source and "python" in specification.options):
        from onnxopt_cli.backends.exec.exec_backend import ExecBackend

        return ExecBackend(specification, limits or Limits())
    if specification.source or specification.name in installed:
        from onnxopt_cli.backends.plugin import load_plugin

        return load_plugin(specification, installed.get(specification.name))
    if specification.name == "onnxruntime":
        from onnxopt_cli.backends.onnxruntime_backend import OnnxRuntimeBackend

        return OnnxRuntimeBackend(specification)
    if specification.name == "onnx-reference":
        specification.require_known(("unsupported",))
        return ReferenceBackend()
    raise _unknown_backend(specification.name, [*BUILT_IN, *installed])


def require_known_name(specification: Specification) -> None:
    """Require that a named backend exists, without importing the backend.

    Raises:
        UsageError: if the backend does not exist.
    """
    if specification.name and specification.name not in BUILT_IN:
        installed = entry_points_by_name()
        if specification.name not in installed:
            raise _unknown_backend(specification.name, [*BUILT_IN, *installed])


def _unknown_backend(name: str, names: Sequence[str]) -> UsageError:
    """Return the error for a backend that does not exist, with a hint.

    Args:
        name: the backend as the user wrote it.
        names: the names of all backends.
    """
    notations = "python:module:attribute, exec:COMMAND and adapter:NAME"
    listed = f"the backends are {', '.join(names)}, {notations}"
    hint = nearest(name, names) or _other_kind(name)
    return UsageError(f"unknown backend {printable(repr(name))}", hint=f"{hint} {listed}".strip())


def _other_kind(name: str) -> str:
    """Return a hint if a name resembles a plugin, command or adapter; otherwise an empty text."""
    from difflib import get_close_matches

    prefix, colon, rest = name.partition(":")
    if colon and (kinds := get_close_matches(prefix.lower(), _KINDS, n=1)):
        return f"did you mean {kinds[0]}:{printable(rest)}?"
    if name.endswith(".py"):
        return f"did you mean python:{printable(name)}:ATTRIBUTE?"
    if prefix.endswith(".py") and rest:
        return f"did you mean python:{printable(name)}?"
    return ""


def known_backends() -> list[KnownBackend]:
    """Return all named backends, without importing them."""
    return [
        KnownBackend("numpy", "built in", f"numpy {version('numpy')}"),
        _known_onnxruntime(),
        KnownBackend("onnx-reference", "built in", f"onnx {version('onnx')}"),
        *map(_known_plugin, entry_points_by_name().values()),
    ]


def known_adapters() -> list[KnownBackend]:
    """Return the shipped adapters.

    The version of an adapter is the version of its runtime.
    """
    from onnxopt_cli.backends.adapter.adapter_environment import AdapterEnvironment
    from onnxopt_cli.backends.adapter.adapter_file import read_adapter, shipped_adapters

    adapters = []
    for name in shipped_adapters():
        specification = parse_specification(f"{ADAPTER}{name}")
        adapter, problem = read_adapter(specification), ""
        pinned = adapter.pinned("", platform.python_version())
        version = ", ".join(
            f"{runtime} {pinned.get(adapter.package_name(runtime), '')}".strip()
            for runtime in adapter.runtimes
        )
        try:
            environment = AdapterEnvironment.for_adapter(specification, adapter)
            installed = environment.packages() is not None
        except BackendUnavailable as error:
            installed, problem = False, error.message
        kind = "adapter, installed" if installed else "adapter"
        adapters.append(KnownBackend(specification.text, kind, version, problem))
    return adapters


def entry_points_by_name() -> dict[str, EntryPoint]:
    """Return the entry points by name.

    If several entry points share a name, the first on ``sys.path`` is returned.
    """
    by_name: dict[str, EntryPoint] = {}
    for entry_point in entry_points(group=_ENTRY_POINTS):
        if entry_point.name not in BUILT_IN:
            by_name.setdefault(entry_point.name, entry_point)
    return by_name


def _known_onnxruntime() -> KnownBackend:
    if importlib.util.find_spec("onnxruntime") is None:
        problem = 'not installed: pip install "onnxopt[ort]"'
        return KnownBackend("onnxruntime", "built in", "", problem)
    for build in _ONNXRUNTIME_BUILDS:
        package = f"onnxruntime{build}"
        with suppress(PackageNotFoundError):
            return KnownBackend("onnxruntime", "built in", f"{package} {version(package)}")
    return KnownBackend("onnxruntime", "built in", "onnxruntime")


def _known_plugin(entry_point: EntryPoint) -> KnownBackend:
    distribution = entry_point.dist
    package_version = f"{distribution.name} {distribution.version}" if distribution else ""
    module = entry_point.module.partition(".")[0]
    problem = "" if importlib.util.find_spec(module) else f"no module named {module}"
    fields = entry_point.name, entry_point.value, "" if problem else package_version, problem
    return KnownBackend(*map(printable, fields))
