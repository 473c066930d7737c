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
from pathlib import Path
from typing import Any

from onnxopt_cli.cases.values.regular_file import Malformed, read_regular_file
from onnxopt_cli.core.text import nearest, printable
from onnxopt_cli.errors import UsageError

# Names the file to use, whatever folder this is; empty for none.
_VARIABLE = "ONNXOPT_CONFIG"
_PARTS = {"backends", "profiles"}
# Options of a backend that have fields of their own; others stand in its table `options`.
_FIELDS = {"backend", "options", "python", "unsupported", "environment", "math"}
_LARGEST = 1 << 20


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

    def chosen(self, profile: str | None) -> dict[str, tuple[object, str]]:
        """Return the value of each option that is set, and where it stands.

        Raises:
            UsageError: if there is no such profile.
        """
        if profile and profile not in self.profiles:
            listed = f"it has {', '.join(self.profiles) or 'none'}"
            hint = nearest(profile, self.profiles, listed)
            raise UsageError(f"{self.path} has no profile {profile!r}", hint=hint)
        found = {name: (value, self.place(name)) for name, value in self.options.items()}
        if profile:
            for name, value in self.profiles[profile].items():
                found[name] = value, self.place("profiles", profile, name)
        return found

    @property
    def operators(self) -> list[Path]:
        """The files of operators, as seen from the current folder."""
        written: Any = self.options.get("operators", [])
        paths = [written] if isinstance(written, str) else written
        return [Path(relative(self.path.parent, path)) for path in paths]

    def backend(self, backend: str) -> str:
        """Return what a backend's name stands for, options after a comma kept; other text as it is.

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


def find_configuration() -> Path | None:
    """Return the file that holds in the current folder; None if there is none."""
    if _VARIABLE in os.environ:
        named = os.environ[_VARIABLE]
        return Path(named) if named else None
    try:
        here = Path.cwd()
    except OSError:
        # It is gone, and no file is there.
        return None
    for folder in (here, *here.parents):
        own, shared = folder / "onnxopt.toml", folder / "pyproject.toml"
        # One that cannot be read is said to be so, not passed over.
        if own.exists() or own.is_symlink():
            return own
        if shared.is_file() and b"tool.onnxopt" in shared.read_bytes():
            return shared
        if (folder / ".git").exists():
            break
    return None


def read_configuration(path: Path, known: Collection[str] = ()) -> Configuration:
    """Return what a file says.

    Args:
        path: the file.
        known: names of the options that it may set; none if any.

    Raises:
        UsageError: with everything that is wrong with it.
    """
    text, document = _document(path)
    problems: list[str] = []

    def report(problem: str, *keys: str) -> None:
        problems.append(f"{_place(path, text, *keys)}: {problem}")

    def table(value: object, known: Collection[str], *keys: str) -> dict[str, Any]:
        """Return a table, without what nobody knows; all is known if nothing is."""
        if not isinstance(value, dict):
            report(f"{'.'.join(keys) or 'tool.onnxopt'} is not a table", *keys)
            return {}
        for key in [key for key in value if known and key not in known]:
            hint = nearest(key, known)
            there_is_no = f"there is no {printable('.'.join((*keys, key)))}"
            report("; ".join(filter(None, (there_is_no, hint))), *keys, key)
        return value

    whole = table(document, {*known, *_PARTS} if known else ())
    backends = {}
    for name, value in table(whole.get("backends", {}), (), "backends").items():
        try:
            written = table(value, _FIELDS, "backends", name)
            backends[name] = _specification(name, written, path.parent)
        except ValueError as error:
            report(f"backends.{printable(name)} {error}", "backends", name)
    profiles = {
        name: table(value, known, "profiles", name)
        for name, value in table(whole.get("profiles", {}), (), "profiles").items()
    }
    others = [key for key in whole if key != "backends" and "\0" in "".join(_texts(whole[key]))]
    for key in others:
        report(f"{printable(key)} has a character of code 0", key)
    files = whole.get("operators", "")
    if not isinstance(files, (str, list)) or not all(isinstance(it, str) for it in files):
        report("operators is neither a path nor a list of paths", "operators")
    if problems:
        raise UsageError("\n".join(problems), hint="docs/configuration.md describes the file")
    options = {name: value for name, value in whole.items() if name not in _PARTS}
    return Configuration(path, text, options, backends, profiles)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in parts:
        yield from _texts(part)


def _document(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the text of a file, and what it says of onnxopt."""
    import tomllib

    name = printable(str(path))
    try:
        text = read_regular_file(path, _LARGEST).decode("utf-8-sig")
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
        near = relative(folder, first)
        # A command without a slash would be looked for on the path.
        backend = f"{kind}:{near if '/' in near else f'./{near}'}{space}{others}"
    options = {f"env.{name}": value for name, value in _table(written, "environment").items()}
    options |= _table(written, "options")
    if "python" in written:
        options["python"] = relative(folder, str(written["python"]))
    if "math" in written:
        options["math"] = written["math"]
    for key, value in options.items():
        if not isinstance(value, (str, int, float)) or "," in str(value) or "=" in key:
            raise ValueError(
                f"has {printable(key)} = {printable(repr(value))}, which is not an option"
            )
        backend += f",{key}={str(value).lower() if isinstance(value, bool) else value}"
    if "unsupported" in written:
        backend += f",unsupported={written['unsupported']}"
    if "\0" in backend:
        raise ValueError("has a character of code 0")
    return backend


def _table(written: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = written.get(name, {})
    if not isinstance(found, dict):
        raise ValueError(f"has {name} that is not a table")  # noqa: TRY004 - one kind of error
    return dict(found)


def _place(path: Path, text: str, *keys: str) -> str:
    """Return ``file:line`` of a key: of its own line, or of the header of its table."""
    wanted = [*(("tool", "onnxopt") if path.name == "pyproject.toml" else ()), *keys]
    table: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.fullmatch(r"\s*\[([^\[\]]+)\]\s*(?:#.*)?", line):
            table = [part.strip().strip("\"'") for part in header[1].split(".")]
            if table == wanted:
                return f"{path}:{number}"
        written = re.match(r"\s*[\"']?([\w.-]+)[\"']?\s*=", line)
        if written and [*table, *written[1].split(".")] == wanted:
            return f"{path}:{number}"
    return str(path)


def relative(folder: Path, path: str) -> str:
    """Return a path that a file in a folder names, as the current folder sees it."""
    return path if Path(path).is_absolute() else os.path.relpath(folder / path)
