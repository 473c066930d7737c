"""What a configuration file says, as defaults of a command's options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from onnxopt_cli.backends.configuration import (
    Configuration,
    known_configuration,
    relative,
)
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import UsageError

# Of other parameters whose values may be paths, or end in one after "=".
_PATHS = {"FORMAT=PATH", "[PATH|SUITE|ID]..."}


def _names(parameter: click.Parameter) -> Iterator[str]:
    """Yield the names by which a file may set a parameter."""
    if isinstance(parameter, click.Argument):
        yield str(parameter.name)
    elif parameter.name != "profile":
        yield from (name[2:] for name in parameter.opts if name.startswith("--"))


def configured_commands(context: click.Context) -> Iterator[click.Command]:
    """Yield the commands of which the file may set all options; of others only operators."""
    root = context.find_root()
    if isinstance(root.command, click.Group):
        found = [root.command.get_command(root, it) for it in ("run", "audit", "fuzz", "list")]
        yield from filter(None, found)


def configuration_here(context: click.Context, profile: str | None = None) -> Configuration | None:
    """Return what the file says that holds in the current folder; None if there is none.

    Raises:
        UsageError: with everything that is wrong with it; or if it should have a profile, and is
            not there.
    """
    parameters = [it for command in configured_commands(context) for it in command.params]
    found = known_configuration({name for it in parameters for name in _names(it)})
    if found is None and profile:
        raise UsageError(
            f"there is no profile {profile!r}: no configuration file is here",
            hint="onnxopt.toml, or [tool.onnxopt] in pyproject.toml",
        )
    return found


def apply_configuration(
    context: click.Context, found: Configuration, profile: str | None
) -> Mapping[str, str]:
    """Let a configuration file say what the options of a command are if nobody gives them.

    Args:
        context: the command's.
        found: what the file says.
        profile: of which it says what else holds; None for none.

    Returns:
        Where the value of each parameter stands that the file sets.

    Raises:
        UsageError: if a value is none that its option takes, or there is no such profile.
    """
    chosen = found.chosen(profile)
    defaults: dict[str, Any] = {}
    places: dict[str, str] = {}
    whole = context.command in configured_commands(context)
    for parameter in context.command.params:
        if not whole and parameter.name != "operator_files":
            continue
        for name in _names(parameter):
            value, place = chosen.get(name, (None, ""))
            several = isinstance(value, list) and len(value) != 1
            # Where a command takes one value it is for the user to choose among several.
            if value is not None and (_takes_many(parameter) or not several):
                defaults[str(parameter.name)] = _checked(context, parameter, value, place, found)
                places[str(parameter.name)] = place
    context.default_map = {**(context.default_map or {}), **defaults}
    return places


def _takes_many(parameter: click.Parameter) -> bool:
    return parameter.multiple or parameter.nargs != 1


def _checked(
    context: click.Context, parameter: click.Parameter, value: Any, place: str, found: Configuration
) -> Any:
    """Return a value as the command line would have it."""
    values = value if isinstance(value, list) else [value]
    flag = isinstance(parameter, click.Option) and parameter.is_flag
    for it in values:
        if not isinstance(it, (str, int, float)) or (isinstance(it, bool) and not flag):
            what = "true or false" if isinstance(it, bool) else printable(str(it))
            raise UsageError(f"{place}: found {what}, expected text or a number")
    if parameter.metavar in _PATHS or isinstance(parameter.type, click.Path):
        values = [_own_path(found.path.parent, it) for it in values]
    # Numbers are written as such, and options are text.
    values = [it if isinstance(it, bool) else str(it) for it in values]
    given = values if _takes_many(parameter) else values[0]
    try:
        parameter.type_cast_value(context, given)
    except click.BadParameter as error:
        raise UsageError(f"{place}: {error.message}") from None
    return given


def _own_path(folder: Path, value: object) -> str:
    """Return a path, or ``FORMAT=PATH``, of the file; a suite or an id is not a path."""
    before, equals, path = str(value).rpartition("=")
    if path == "-" or (not equals and not (folder / path).exists() and _is_of_suite(path)):
        return str(value)
    return f"{before}{equals}{relative(folder, path)}"


def _is_of_suite(text: str) -> bool:
    """Tell whether a text may name a suite, or is the id of a case of one."""
    # Not worth importing for paths that are there.
    from onnxopt_cli.suites.catalogue import suite_names

    name, slash, _ = text.partition("/")
    return not slash or name.partition("@")[0] in suite_names()
