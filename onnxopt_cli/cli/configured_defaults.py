"""Settings of a configuration file as defaults of a command's options."""

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

# Metavars of parameters that are declared as text, although their value is a path, or ends in "="
# and a path.
_PATHS = {"FORMAT=PATH", "[PATH|SUITE|ID]..."}


def _names(parameter: click.Parameter) -> Iterator[str]:
    """Yield the names by which a configuration file may set a parameter."""
    if isinstance(parameter, click.Argument):
        yield str(parameter.name)
    elif parameter.name != "profile":
        yield from (name[2:] for name in parameter.opts if name.startswith("--"))


def configured_commands(context: click.Context) -> Iterator[click.Command]:
    """Yield the commands for which a configuration file may set all options.

    For any other command, the file may set only the operator files.
    """
    root = context.find_root()
    if isinstance(root.command, click.Group):
        for name in ("run", "audit", "fuzz", "list"):
            if command := root.command.get_command(root, name):
                yield command


def configuration_here(context: click.Context, profile: str | None = None) -> Configuration | None:
    """Return the configuration that applies in the current folder; None without a file.

    Raises:
        UsageError: if the file has errors, all of which the message lists, or if a profile is named
            but no file exists.
    """
    option_names = {
        name
        for command in configured_commands(context)
        for parameter in command.params
        for name in _names(parameter)
    }
    configuration = known_configuration(option_names)
    if configuration is None and profile:
        raise UsageError(
            f"no profile {profile!r}: no configuration file found",
            hint="onnxopt.toml, or [tool.onnxopt] in pyproject.toml",
        )
    return configuration


def apply_configuration(
    context: click.Context, configuration: Configuration, profile: str | None
) -> Mapping[str, str]:
    """Use the settings of a configuration file as defaults of a command's options.

    Args:
        context: context of the command.
        configuration: contents of the file.
        profile: name of the profile that overrides settings; None for no profile.

    Returns:
        For each parameter that the file sets, by name, the place of the value in the file.

    Raises:
        UsageError: if an option does not accept its value, or the profile does not exist.
    """
    chosen = configuration.chosen(profile)
    defaults: dict[str, Any] = {}
    places: dict[str, str] = {}
    sets_all_options = context.command in configured_commands(context)
    for parameter in context.command.params:
        if not sets_all_options and parameter.name != "operator_files":
            continue
        for name in _names(parameter):
            value, place = chosen.get(name, (None, ""))
            several = isinstance(value, list) and len(value) != 1
            # If the file has several values but the command accepts only one, the file sets no
            # default, and the user has to choose.
            if value is not None and (_takes_many(parameter) or not several):
                default = _checked(context, parameter, value, place, configuration)
                defaults[str(parameter.name)] = default
                places[str(parameter.name)] = place
    context.default_map = {**(context.default_map or {}), **defaults}
    return places


def _takes_many(parameter: click.Parameter) -> bool:
    return parameter.multiple or parameter.nargs != 1


def _checked(
    context: click.Context,
    parameter: click.Parameter,
    value: Any,
    place: str,
    configuration: Configuration,
) -> Any:
    """Return a setting in the form of a command-line value."""
    elements = value if isinstance(value, list) else [value]
    flag = isinstance(parameter, click.Option) and parameter.is_flag
    for element in elements:
        is_bool = isinstance(element, bool)
        if not isinstance(element, (str, int, float)) or (is_bool and not flag):
            text = "true or false" if is_bool else printable(str(element))
            raise UsageError(f"{place}: found {text}, expected text or a number")
    if parameter.metavar in _PATHS or isinstance(parameter.type, click.Path):
        elements = [_own_path(configuration.path.parent, element) for element in elements]
    # Numbers of TOML become text, because click parses text.
    elements = [element if isinstance(element, bool) else str(element) for element in elements]
    setting = elements if _takes_many(parameter) else elements[0]
    try:
        parameter.type_cast_value(context, setting)
    except click.BadParameter as error:
        raise UsageError(f"{place}: {error.message}") from None
    return setting


def _own_path(folder: Path, value: object) -> str:
    """Return a setting with its path resolved against a folder; suites and ids are unchanged."""
    before, equals, path = str(value).rpartition("=")
    if path == "-" or (not equals and not (folder / path).exists() and _is_of_suite(path)):
        return str(value)
    return f"{before}{equals}{relative(folder, path)}"


def _is_of_suite(text: str) -> bool:
    """Return whether a text may be the name of a suite or the id of one of its cases."""
    # Imported late, because existing paths do not need the module.
    from onnxopt_cli.suites.catalogue import suite_names

    name, slash, _ = text.partition("/")
    return not slash or name.partition("@")[0] in suite_names()
