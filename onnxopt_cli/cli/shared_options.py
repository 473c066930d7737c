"""Options of several commands: which operators, how cases get to a backend, how many processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
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
from onnxopt_cli.errors import UsageError

if TYPE_CHECKING:
    from onnxopt_cli.backends.configuration import Configuration
    from onnxopt_cli.workers.cluster.dask_client import Cluster
    from onnxopt_cli.workers.interruption import Interruption


def _parsed(parse: Callable[[str], int]) -> Callable[[str], int]:
    """Return a type of click from a function that raises ValueError."""

    def convert(written: str) -> int:
        try:
            return parse(written)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return convert


class FiniteNumber(click.FloatRange):
    """A finite number in a range; NaN is neither below nor above any, and so in each."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number; see click."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not finite", param, ctx)
        return number


_Option: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]


def _together(*options: _Option) -> _Option:
    """Return what adds options to a command, in their order."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def option(written: str, about: str, name: str | None = None, **others: Any) -> _Option:
    """Return an option, given as the help shows it: ``-o, --output DIR``, and what it does.

    Args:
        written: its spellings; and what its value is called, unless its type says it.
        about: what it does.
        name: of the command's parameter, if not the longest spelling.
        others: what click takes beside these.
    """
    *short, last = written.split(", ")
    spelling, _, metavar = last.partition(" ")
    names = filter(None, (*short, spelling, name))
    return click.option(*names, metavar=metavar or None, help=about, **others)


# What completes a text in a shell, by what it names.
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
        settings: the group that declares it.
        name: of the setting.
        about: what it does; empty for what the declaration says.
        parameter: name of the command's parameter; empty for that of the setting.
        others: arguments of :func:`click.option` that precede those of the declaration.
    """
    (declared,) = (one for one in settings.declared() if one.name == name)
    chosen = declared.option
    given = _given_to_click(chosen.kind, declared.default)
    if chosen.typed_default is not None:
        given["default"] = chosen.typed_default
    given |= others
    if chosen.many is True:
        given.setdefault("multiple", True)
    elif chosen.many:
        given |= {"nargs": chosen.many}
    if chosen.written.startswith("["):
        complete = given["shell_complete"]
        return click.argument(name, metavar=chosen.written, nargs=-1, shell_complete=complete)
    made = option(chosen.written, about or chosen.about, parameter or name, **given)
    if chosen.shorthand is None:
        return made
    spelling, value, meaning = chosen.shorthand
    return _together(option(spelling, meaning, name, flag_value=value), made)


def _given_to_click(kind: Text, default: Any) -> dict[str, Any]:
    """Return what click is told of a kind of value and its default."""
    if isinstance(kind, Flag):
        return {"default": True} if default else {"is_flag": True}
    given: dict[str, Any] = {"type": _click_type(kind)}
    if kind.of:
        given["shell_complete"] = _COMPLETE[kind.of]
        if kind.of == "backend":
            given["callback"] = expand_backend
    if isinstance(default, tuple):
        given |= {"default": default} if default else {}
    elif default is not None:
        given["default"] = kind.word(default)
    return given


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
            # An error of a file that need not exist is reported where the file is opened.
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
    chosen: ClusterConfig, interruption: Interruption, *packages: str
) -> Iterator[Cluster | None]:
    """Open the cluster that the options name, if they do.

    Args:
        chosen: the options.
        interruption: set when the user wants to end.
        packages: what workers must have in our version beside what all have.

    Raises:
        UsageError: if it cannot be used.
        BackendUnavailable: if no scheduler answers there.
    """
    if chosen.cluster is None:
        yield None
        return
    from onnxopt_cli.cli.console import note
    from onnxopt_cli.workers.cluster.dask_client import Cluster

    tls = [*map(str, chosen.tls)]
    found = Cluster(chosen.cluster, interruption, note, chosen.ship, tls, chosen.insecure, packages)
    with closing(found) as cluster:
        yield cluster


# The keys, among what a command's context holds, of what the configuration file says, and of where
# it says what.
_CONFIGURATION, _PLACES = "onnxopt configuration", "onnxopt places"
# The key of the registry that the command uses.
_REGISTRY = "onnxopt registry"


def _apply(context: click.Context, _parameter: click.Parameter, profile: str | None) -> None:
    from onnxopt_cli.backends.configuration import find_configuration

    # Not where a word is being completed.
    if context.resilient_parsing or not (profile or find_configuration()):
        return
    from onnxopt_cli.cli.configured_defaults import apply_configuration, configuration_here

    found = configuration_here(context, profile)
    if found is not None:
        context.meta[_CONFIGURATION] = found
        context.meta[_PLACES] = apply_configuration(context, found, profile)


def expand_backend(context: click.Context, _parameter: click.Parameter, value: Any) -> Any:
    """Put the specification of a backend in place of its name in the configuration file."""
    found: Configuration | None = context.meta.get(_CONFIGURATION)
    if found is None or not value:
        return value
    return found.backend(value) if isinstance(value, str) else tuple(map(found.backend, value))


def _use(context: click.Context, parameter: click.Parameter, files: Sequence[Path]) -> None:
    """Use a registry of the environment's operators and those of files until the command ends."""
    # Importing it takes a while, which help and completion of options need not wait for.
    from onnxopt_cli.operators.registry import Registry, registry

    try:
        if not context.meta.get(_REGISTRY):
            # A second context of the command, for what a log says, uses the same registry.
            context.meta[_REGISTRY] = made = Registry.of_environment()
            root = context.find_root()
            enter = (
                root.obj.enter_context if isinstance(root.obj, ExitStack) else root.with_resource
            )
            enter(made.in_use())
        if registry().files or files:
            from onnxopt_cli import _api as api

            api.add_operators(*files)
    except UsageError as error:
        if context.get_parameter_source(str(parameter.name)) is ParameterSource.DEFAULT_MAP:
            places = context.meta[_PLACES]
            error.message = f"{places[parameter.name]}: {error.message}"
        raise


# Of every command that knows operators. Both come first, as the others are checked against what
# there is.
_FIRST: dict[str, Any] = {"is_eager": True, "expose_value": False}
_configured = (
    option("--profile NAME", "Use a profile of onnxopt.toml.", callback=_apply, **_FIRST),
    option(
        "--operators FILE",
        "Also know the operators of this Python file. Its code runs. Again for more.",
        "operator_files",
        type=PATH,
        multiple=True,
        callback=_use,
        **_FIRST,
    ),
)


def with_operators_option(command: click.Command) -> click.Command:
    """Give a command the options that choose operators, or each command of a group."""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            with_operators_option(inner)
    elif not any(parameter.name == "operator_files" for parameter in command.params):
        for option in _configured:
            option(command)
    return command
