"""Options that several commands share, derived from the declarations of the settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click
from click.core import ParameterSource

from onnxopt_cli.cli.completion import (
    complete_backend,
    complete_capability,
    complete_operator,
    complete_pattern,
    complete_report,
    complete_target,
)
from onnxopt_cli.config.run_config import ClusterConfig, RunConfig
from onnxopt_cli.config.settings import (
    File,
    Flag,
    JobCount,
    Number,
    OneOf,
    Settings,
    Size,
    Text,
)
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import UsageError

if TYPE_CHECKING:
    from onnxopt_cli.backends.configuration import Configuration
    from onnxopt_cli.core.record import BackendIdentity
    from onnxopt_cli.workers.cluster.dask_client import Cluster
    from onnxopt_cli.workers.interruption import Interruption


def _parsed(parse: Callable[[str], int]) -> Callable[[str], int]:
    """Return a click type for a parser that raises ValueError."""

    def convert(written: str) -> int:
        try:
            return parse(written)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return convert


class FiniteNumber(click.FloatRange):
    """A finite number in a range. Unlike click's type, this type rejects NaN and infinity."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number; overrides a method of click."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not finite", param, ctx)
        return number


_Option: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]


def _together(*options: _Option) -> _Option:
    """Return a decorator that adds the options to a command in the given order."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def option(written: str, about: str, name: str | None = None, **others: Any) -> _Option:
    """Return an option, given as the help shows it, for example ``-o, --output DIR``.

    Args:
        written: the spellings, followed by the metavar of the value. Without a metavar, click
            derives it from the type.
        about: help text.
        name: name of the command's parameter; by default derived from the longest spelling.
        others: further arguments of :func:`click.option`.
    """
    *short, last = written.split(", ")
    spelling, _, metavar = last.partition(" ")
    names = filter(None, (*short, spelling, name))
    return click.option(*names, metavar=metavar or None, help=about, **others)


# The functions for shell completion, by the kinds of names that can be values of options.
_COMPLETE = {
    "backend": complete_backend,
    "capability": complete_capability,
    "operator": complete_operator,
    "pattern": complete_pattern,
    "report": complete_report,
    "target": complete_target,
}


def option_of(
    settings: type[Settings], name: str, about: str = "", parameter: str = "", **others: Any
) -> _Option:
    """Return the option of a setting.

    Args:
        settings: the group that declares the setting.
        name: name of the setting.
        about: help text; empty to use the help text of the declaration.
        parameter: name of the command's parameter; empty to use the name of the setting.
        others: arguments of :func:`click.option` that override the declaration.
    """
    (declared,) = (setting for setting in settings.declared() if setting.name == name)
    declaration = declared.option
    arguments = _click_arguments(declaration.kind, declared.default)
    if declaration.typed_default is not None:
        arguments["default"] = declaration.typed_default
    arguments |= others
    if declaration.many is True:
        arguments.setdefault("multiple", True)
    elif declaration.many:
        arguments |= {"nargs": declaration.many}
    if declaration.written.startswith("["):
        complete = arguments["shell_complete"]
        return click.argument(name, metavar=declaration.written, nargs=-1, shell_complete=complete)
    main_option = option(
        declaration.written, about or declaration.about, parameter or name, **arguments
    )
    if declaration.shorthand is None:
        return main_option
    spelling, value, meaning = declaration.shorthand
    return _together(option(spelling, meaning, name, flag_value=value), main_option)


def _click_arguments(kind: Text, default: Any) -> dict[str, Any]:
    """Return the arguments of :func:`click.option` for a kind of value and its default."""
    if isinstance(kind, Flag):
        return {"default": True} if default else {"is_flag": True}
    arguments: dict[str, Any] = {"type": _click_type(kind)}
    if kind.of:
        arguments["shell_complete"] = _COMPLETE[kind.of]
        if kind.of == "backend":
            arguments["callback"] = expand_backend
    if isinstance(default, tuple):
        arguments |= {"default": default} if default else {}
    elif default is not None:
        arguments["default"] = kind.word(default)
    return arguments


def _click_type(kind: Text) -> Any:
    match kind:
        case JobCount() | Size():
            return _parsed(kind.parse)
        case Number(whole=True):
            most = None if kind.most is None else int(kind.most)
            return click.IntRange(int(kind.least), most)
        case Number():
            return FiniteNumber(kind.least, kind.most, min_open=kind.beyond)
        case OneOf():
            return click.Choice([*map(str, kind.members)])
        case File():
            # If a file need not exist, it is checked when it is opened.
            return click.Path(
                exists=kind.exists, dir_okay=kind.folder, readable=kind.exists, path_type=Path
            )
        case _:
            return None


def options_of(settings: type[Settings]) -> _Option:
    """Return the options of all settings of a group, in the order of their declaration."""
    return _together(*(option_of(settings, declared.name) for declared in settings.declared()))


PATH = click.Path(path_type=Path)
targets_argument = option_of(RunConfig, "targets")


@contextmanager
def opened_cluster(
    config: ClusterConfig, interruption: Interruption, *packages: str
) -> Iterator[Cluster | None]:
    """Open the cluster that the options name; yield None if they name no cluster.

    Args:
        config: the options.
        interruption: set when the user interrupts the command.
        packages: further packages; the workers must have the same versions of them as this machine.

    Raises:
        UsageError: if the cluster cannot be used.
        BackendUnavailable: if no scheduler answers.
    """
    if config.cluster is None:
        yield None
        return
    from onnxopt_cli.cli.console import note
    from onnxopt_cli.workers.cluster.dask_client import Cluster

    tls = [*map(str, config.tls)]
    with closing(
        Cluster(config.cluster, interruption, note, config.ship, tls, config.insecure, packages)
    ) as cluster:
        yield cluster


# Keys in the dictionary `meta` of a click context. The values are the content of the configuration
# file, the places of its settings, and the registry that the command uses.
_CONFIGURATION, _PLACES = "onnxopt configuration", "onnxopt places"
_REGISTRY = "onnxopt registry"


def _apply(context: click.Context, _parameter: click.Parameter, profile: str | None) -> None:
    from onnxopt_cli.backends.configuration import find_configuration

    # During shell completion, click sets resilient_parsing.
    if context.resilient_parsing or not (profile or find_configuration()):
        return
    from onnxopt_cli.cli.configured_defaults import apply_configuration, configuration_here

    configuration = configuration_here(context, profile)
    if configuration is not None:
        context.meta[_CONFIGURATION] = configuration
        context.meta[_PLACES] = apply_configuration(context, configuration, profile)


def expand_backend(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Replace the name of a backend in the configuration file with its specification.

    Raises:
        BackendUnavailable: if the file chooses an adapter that is not installed. (An adapter that
            the command line chooses need not be installed.)
    """
    configuration: Configuration | None = context.meta.get(_CONFIGURATION)
    if configuration is None or not value:
        return value
    from onnxopt_cli.backends.configuration import require_installed
    from onnxopt_cli.backends.specification import split_label

    written = [value] if isinstance(value, str) else value
    expanded = [*map(configuration.backend, written)]
    source = context.get_parameter_source(str(parameter.name))
    for text, backend in zip(written, expanded, strict=True):
        if text != backend:
            name = split_label(text)[1].partition(",")[0]
            require_installed(backend, configuration.place("backends", name))
        elif source is ParameterSource.DEFAULT_MAP:
            require_installed(backend, context.meta[_PLACES][parameter.name])
    return expanded[0] if isinstance(value, str) else tuple(expanded)


def require_built_in(backends: Iterable[BackendIdentity]) -> None:
    """Require that a log names only built-in backends, because a log must not select code to run.

    Raises:
        UsageError: if the log names another backend.
    """
    from onnxopt_cli.backends.resolve import BUILT_IN

    for backend in backends:
        if (backend.specification or backend.name) not in BUILT_IN:
            raise UsageError(
                f"the log names the backend {printable(backend.text)}, and a log "
                "must not select code to run",
                hint="if you trust the backend, name it: -b BACKEND",
            )


def expand_installable(
    context: click.Context, _parameter: click.Parameter, value: Sequence[str]
) -> Sequence[str]:
    """Replace names as :func:`expand_backend` does, but accept adapters that are not installed."""
    configuration: Configuration | None = context.meta.get(_CONFIGURATION)
    return [configuration.backend(text) for text in value] if configuration else value


def _use(context: click.Context, parameter: click.Parameter, files: Sequence[Path]) -> None:
    """Until the command ends, use a registry with the operators of the environment and of files."""
    # Imported late, because the import is slow, and help and completion do not need it.
    from onnxopt_cli.operators.registry import Registry, registry

    try:
        if not context.meta.get(_REGISTRY):
            # The registry is stored in `meta`, because a second context of the command, which
            # parses options from a log, must use the same registry.
            context.meta[_REGISTRY] = new_registry = Registry.of_environment()
            root = context.find_root()
            enter = (
                root.obj.enter_context if isinstance(root.obj, ExitStack) else root.with_resource
            )
            enter(new_registry.in_use())
        if registry().files or files:
            from onnxopt_cli import _api as api

            api.add_operators(*files)
    except UsageError as error:
        if context.get_parameter_source(str(parameter.name)) is ParameterSource.DEFAULT_MAP:
            places = context.meta[_PLACES]
            error.message = f"{places[parameter.name]}: {error.message}"
        raise


# Options of every command that depends on operators. They are processed before all other options,
# whose values are checked against the operators and the configuration.
_FIRST: dict[str, Any] = {"is_eager": True, "expose_value": False}
_configured = (
    option("--profile NAME", "Use a profile of onnxopt.toml.", callback=_apply, **_FIRST),
    option(
        "--operators FILE",
        "Load operators from this Python file; its code is executed. May be given several times.",
        "operator_files",
        type=PATH,
        multiple=True,
        callback=_use,
        **_FIRST,
    ),
)


def with_operators_option(command: click.Command) -> click.Command:
    """Add the options that choose operators to a command, or to each command of a group."""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            with_operators_option(inner)
    elif not any(parameter.name == "operator_files" for parameter in command.params):
        for option in _configured:
            option(command)
    return command
