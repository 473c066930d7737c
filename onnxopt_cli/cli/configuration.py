"""The configuration file: backends by name, other defaults of options, profiles.

::

    # onnxopt.toml, or [tool.onnxopt] of pyproject.toml
    timeout = 30                          # an option of any command, by its long name

    [backends.trt]                        # onnxopt run -b trt
    backend = "python:ci/trt.py:Backend"
    python = ".venv-trt/bin/python"

    [profiles.ci]                         # onnxopt run --profile ci
    backend = ["trt"]
    rerun = 2

The file is that of the current folder, or of the nearest folder above it that has one, no further
up than the repository. Its paths are relative to its folder. What the command line says precedes
what a profile says, and that the rest of the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import click

from onnxopt_cli.cases.values.regular_file import Malformed, read_regular_file
from onnxopt_cli.core.text import nearest, printable
from onnxopt_cli.errors import UsageError

_PARTS = {"backends", "profiles"}
# Options of a backend that have fields of their own; others stand in its table `options`.
_FIELDS = {"backend", "options", "python", "unsupported", "environment", "math"}
_LARGEST = 1 << 20
# Of options whose values are paths, or end in one after "=".
_PATHS = {"FILE", "LOG", "DIR", "PATH", "DIRECTORY", "FORMAT=PATH", "[PATH|SUITE|ID]..."}


@dataclass(frozen=True)
class Configuration:
    """What a configuration file says.

    Attributes:
        path: the file.
        options: values by the long names of options.
        backends: specifications by name.
        profiles: values by the long names of options, by profile.
    """

    path: Path
    text: str = field(repr=False)
    options: Mapping[str, object]
    backends: Mapping[str, str]
    profiles: Mapping[str, Mapping[str, object]]

    def chosen(self, profile: str) -> dict[str, tuple[object, str]]:
        """Return the value of each option that is set, and where it stands.

        Raises:
            UsageError: if there is no such profile.
        """
        if profile and profile not in self.profiles:
            hint = nearest(
                profile, [*self.profiles], f"it has {', '.join(self.profiles) or 'none'}"
            )
            raise UsageError(f"{self.path} has no profile {profile!r}", hint=hint)
        found = {name: (value, self.place(name)) for name, value in self.options.items()}
        for name, value in self.profiles.get(profile, {}).items():
            found[name] = value, self.place("profiles", profile, name)
        return found

    def specification(self, backend: str) -> str:
        """Return what a backend's name stands for; other text as it is.

        Raises:
            UsageError: if there is no such backend, but one of nearly this name in the file.
        """
        name, comma, rest = backend.partition(",")
        if ":" not in name and name not in self.backends:
            from onnxopt_cli.backends.resolve import known_backends

            hint = nearest(name, [*self.backends])
            if hint and name not in {known.name for known in known_backends()}:
                raise UsageError(f"there is no backend {printable(repr(name))}", hint=hint)
        return self.backends.get(name, name) + comma + rest

    def place(self, *keys: str) -> str:
        """Return ``file:line`` of a key, as far as its line can be found."""
        return _place(self.path, self.text, *keys)


@cache
def read_configuration(path: Path, commands: tuple[click.Command, ...]) -> Configuration:
    """Return what a file says.

    Args:
        path: the file.
        commands: those whose options it may set.

    Raises:
        UsageError: with everything that is wrong with it.
    """
    text, document = _document(path)
    problems: list[str] = []

    def table(value: object, known: Collection[str], *keys: str) -> dict[str, Any]:
        """Return a table, without what nobody knows; all is known if nothing is."""
        if not isinstance(value, dict):
            problems.append(f"{_place(path, text, *keys)}: {'.'.join(keys)} is no table")
            return {}
        for key in [key for key in value if known and key not in known]:
            hint = nearest(key, known)
            there_is_no = f"there is no {printable('.'.join((*keys, key)))}"
            where = _place(path, text, *keys, key)
            problems.append(f"{where}: {'; '.join(filter(None, (there_is_no, hint)))}")
        return value

    known = {
        name for command in commands for parameter in command.params for name in _names(parameter)
    }
    whole = table(document, known | _PARTS)
    backends = {}
    for name, value in table(whole.get("backends", {}), (), "backends").items():
        try:
            written = table(value, _FIELDS, "backends", name)
            backends[name] = _specification(name, written, path.parent)
        except ValueError as error:
            where = _place(path, text, "backends", name)
            problems.append(f"{where}: backends.{printable(name)} {error}")
    profiles = {
        name: table(value, known, "profiles", name)
        for name, value in table(whole.get("profiles", {}), (), "profiles").items()
    }
    if problems:
        raise UsageError("\n".join(problems), hint="docs/configuration.md describes the file")
    options = {name: value for name, value in whole.items() if name not in _PARTS}
    return Configuration(path, text, options, backends, profiles)


def _document(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the text of a file, and what it says of onnxopt."""
    import tomllib

    name = printable(str(path))
    try:
        text = read_regular_file(path, _LARGEST).decode()
        document = tomllib.loads(text)
    except Malformed as error:
        raise UsageError(f"{name} {error}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name}: {printable(str(error))}") from None
    if path.name == "pyproject.toml":
        tool = document.get("tool")
        document = tool.get("onnxopt", {}) if isinstance(tool, dict) else {}
    return text, document


def _specification(name: str, written: Mapping[str, Any], folder: Path) -> str:
    """Return the specification that a backend's table stands for.

    Raises:
        ValueError: saying what is wrong with it.
    """
    if "," in name:
        raise ValueError("has a comma in its name: options follow one after -b")
    backend = written.get("backend")
    if not isinstance(backend, str) or not backend:
        raise ValueError('names no backend: write backend = "python:..."')
    kind, colon, rest = backend.partition(":")
    first, space, others = rest.partition(" ")
    looks_like_path = kind == "python" and ("/" in rest or ".py" in rest)
    if colon and (looks_like_path or (kind == "exec" and "/" in first)):
        near = _relative(folder, first)
        # A command without a slash would be looked for on the path.
        backend = f"{kind}:{near if '/' in near else f'./{near}'}{space}{others}"
    options = {f"env.{name}": value for name, value in _table(written, "environment").items()}
    options |= _table(written, "options")
    if "python" in written:
        options["python"] = _relative(folder, str(written["python"]))
    if "math" in written:
        options["math"] = written["math"]
    for key, value in options.items():
        if not isinstance(value, (str, int, float)) or "," in str(value):
            raise ValueError(f"has {printable(key)} = {printable(repr(value))}, which is no option")
        backend += f",{key}={str(value).lower() if isinstance(value, bool) else value}"
    if "unsupported" in written:
        backend += f",unsupported={written['unsupported']}"
    return backend


def _table(written: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = written.get(name, {})
    if not isinstance(found, dict):
        raise ValueError(f"has {name} that is no table")  # noqa: TRY004 - one kind of error
    return dict(found)


def _place(path: Path, text: str, *keys: str) -> str:
    """Return ``file:line`` of a key: of its own line, or of the header of its table."""
    *above, key = keys
    prefix = ["tool", "onnxopt"] if path.name == "pyproject.toml" else []
    table: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.fullmatch(r"\s*\[([^\[\]]+)\]\s*(?:#.*)?", line):
            table = [part.strip().strip("\"'") for part in header[1].split(".")]
            if table == [*prefix, *keys]:
                return f"{path}:{number}"
        written = re.match(r"\s*[\"']?([\w.-]+)[\"']?\s*=", line)
        if written and [*table, *written[1].split(".")] == [*prefix, *above, key]:
            return f"{path}:{number}"
    return str(path)


def _names(parameter: click.Parameter) -> Iterator[str]:
    """Yield the names by which a file may set a parameter."""
    if isinstance(parameter, click.Argument):
        yield str(parameter.name)
    elif parameter.name != "profile":
        yield from (name[2:] for name in parameter.opts if name.startswith("--"))


def _relative(folder: Path, path: str) -> str:
    """Return a path that a file in a folder names, as this folder sees it."""
    return path if Path(path).is_absolute() else os.path.relpath(folder / path)


def apply_configuration(
    context: click.Context, path: Path | None, profile: str, commands: tuple[click.Command, ...]
) -> Mapping[str, str]:
    """Let a configuration file say what the options of a command are if nobody gives them.

    Args:
        context: the command's.
        path: the file; None if there is none.
        profile: of which it says what else holds; may be empty.
        commands: those whose options the file may set.

    Returns:
        Where the value of each parameter stands that the file sets.

    Raises:
        UsageError: if something is wrong with the file, or there is no such profile.
    """
    if path is None:
        raise UsageError(
            f"there is no profile {profile!r}: no configuration file is here",
            hint="onnxopt.toml, or [tool.onnxopt] in pyproject.toml",
        )
    found = read_configuration(path, commands)
    chosen = found.chosen(profile)
    defaults: dict[str, Any] = {}
    places: dict[str, str] = {}
    for parameter in context.command.params:
        for name in _names(parameter):
            value, place = chosen.get(name, (None, ""))
            # Where a command takes one value it is for the user to choose among several.
            if value is not None and (_takes_many(parameter) or not _several(value)):
                defaults[str(parameter.name)] = _checked(context, parameter, value, place, found)
                places[str(parameter.name)] = place
    context.default_map = {**(context.default_map or {}), **defaults}
    return places


def _takes_many(parameter: click.Parameter) -> bool:
    return bool(getattr(parameter, "multiple", False)) or parameter.nargs == -1


def _several(value: object) -> bool:
    return isinstance(value, list) and len(value) != 1


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
    metavar = getattr(parameter, "metavar", None) or ""
    if metavar in _PATHS or isinstance(parameter.type, click.Path):
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
    """Return a path, or ``FORMAT=PATH``, of the file; a suite or an id is no path."""
    before, equals, path = str(value).rpartition("=")
    if path == "-" or (not equals and not (folder / path).exists() and "/" not in path):
        return str(value)
    return f"{before}{equals}{_relative(folder, path)}"
