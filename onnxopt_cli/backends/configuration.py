"""The configuration file: named backends, default values of options, and profiles.

::

    # onnxopt.toml, or [tool.onnxopt] of pyproject.toml
    timeout = 30                          # an option of any command, by its long name

    [backends.trt]                        # onnxopt run -b trt
    backend = "python:ci/trt.py:Backend"
    python = ".venv-trt/bin/python"

    [profiles.ci]                         # onnxopt run --profile ci
    backend = ["trt"]
    rerun = 2

onnxopt uses the configuration file in the current folder. In a repository, if the current folder
has no such file, onnxopt uses the file of the nearest parent folder that has one. The file names
code that onnxopt runs. Therefore, the file and the code must belong to this user or to root. A file
that ``ONNXOPT_CONFIG`` names may belong to any user. Paths are relative to the file's folder. The
command line takes precedence over a profile, and a profile over the rest of the file.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnxopt_cli.backends.protocol import unavailable
from onnxopt_cli.backends.specification import (
    ADAPTER,
    ENVIRONMENT,
    LABEL_FORM,
    is_label,
    parse_specification,
    split_label,
)
from onnxopt_cli.core.text import nearest, printable
from onnxopt_cli.core.untrusted_files import Malformed, foreign, read_regular_file, user_name
from onnxopt_cli.errors import UsageError

# Environment variable with the path of the configuration file. If the value is empty, no file is
# used.
_VARIABLE = "ONNXOPT_CONFIG"
_PARTS = {"backends", "profiles"}
#: Fields of a backend's table. All other options of the backend are in the field `options`.
BACKEND_FIELDS = {"backend", "options", "python", "unsupported", "environment", "math"}
_MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True)
class Configuration:
    """The content of a configuration file.

    Attributes:
        path: the file.
        text: the text of the file.
        options: values by the long names of options.
        backends: specifications by name.
        profiles: for each profile, values by the long names of options.
    """

    path: Path
    text: str = field(repr=False)
    options: Mapping[str, object]
    backends: Mapping[str, str]
    profiles: Mapping[str, Mapping[str, object]]

    def chosen(self, profile: str | None) -> dict[str, tuple[object, str]]:
        """Return the value of each option that is set, with the ``file:line`` of the value.

        Raises:
            UsageError: if the profile does not exist.
        """
        if profile and profile not in self.profiles:
            listed = f"it has {', '.join(self.profiles) or 'none'}"
            hint = nearest(profile, self.profiles, listed)
            raise UsageError(f"{self.path} has no profile {profile!r}", hint=hint)
        values = {name: (value, self.place(name)) for name, value in self.options.items()}
        if profile:
            for name, value in self.profiles[profile].items():
                values[name] = value, self.place("profiles", profile, name)
        return values

    @property
    def operators(self) -> list[Path]:
        """The operator files, relative to the current folder."""
        paths = _listed(self.options.get("operators"))
        return [Path(relative(self.path.parent, path)) for path in paths]

    def code(self) -> Iterator[Path]:
        """Yield the code files of the operators, backends and interpreters that the file names.

        Folders from which code is imported are included.
        """
        from onnxopt_cli.backends.backend_code import named_code, with_bytecode

        yield from with_bytecode(self._named(named_code))

    def _named(self, of_backend: Callable[[str], Iterator[Path]]) -> Iterator[Path]:
        backends = [*self.backends.values()]
        for options in (self.options, *self.profiles.values()):
            operators = _listed(options.get("operators"))
            yield from (Path(relative(self.path.parent, operator)) for operator in operators)
            backends += _listed(options.get("backend"))
        for text in dict.fromkeys(backends):
            with suppress(UsageError):
                yield from of_backend(text.strip())

    def backend(self, backend: str) -> str:
        """Expand the name of a backend in the file: ``trt`` becomes ``trt=python:...``.

        Options that follow a comma are kept, as in ``trt,device=0``. If another name precedes the
        name in the file, as in ``fast=trt``, this other name identifies the backend. Any other text
        is returned unchanged.

        Raises:
            UsageError: if the name is unknown, but resembles a name in the file.
        """
        label, unnamed = split_label(backend)
        name, comma, options = unnamed.partition(",")
        if ":" not in name and name not in self.backends:
            from onnxopt_cli.backends.resolve import known_backends

            hint = nearest(name, [*self.backends])
            if hint and name not in {backend.name for backend in known_backends()}:
                raise UsageError(f"unknown backend {printable(repr(name))}", hint=hint)
        if name not in self.backends:
            return backend
        return f"{label or name}={self.backends[name]}{comma}{options}"

    def place(self, *keys: str) -> str:
        """Return ``file:line`` of a key, or only ``file`` if the line is not found."""
        return place_of_key(self.path, self.text, *keys)


def find_configuration() -> Path | None:
    """Return the file that applies to the current folder, or None.

    Raises:
        UsageError: if a user other than the current user and root may have written the file.
    """
    if _VARIABLE in os.environ:
        named = os.environ[_VARIABLE]
        return Path(named) if named else None
    try:
        current = Path.cwd()
    except OSError:
        # The current folder has been deleted.
        return None
    for folder in searched_folders(current):
        onnxopt_toml, pyproject = folder / "onnxopt.toml", folder / "pyproject.toml"
        # The function lexists also finds a dangling link, so that reading the link reports an
        # error.
        if os.path.lexists(onnxopt_toml):
            path = onnxopt_toml
        elif has_settings(pyproject):
            path = pyproject
        else:
            continue
        _require_own(path, path)
        return path
    return None


def searched_folders(current: Path) -> Iterator[Path]:
    """Yield the current folder and, in a repository, its parents up to the repository's root."""
    folders = [current, *current.parents]
    # A repository in a folder that is writable to all is ignored, because any user can create it.
    roots = (
        folder
        for folder in folders
        if os.path.lexists(folder / ".git") and not _is_open_to_all(folder)
    )
    root = next(roots, current)
    for folder in folders:
        yield folder
        if folder == root:
            break


def _is_open_to_all(folder: Path) -> bool:
    return os.name == "posix" and bool(folder.stat().st_mode & stat.S_IWOTH)


def has_settings(path: Path) -> bool:
    """Return whether a ``pyproject.toml`` mentions ``tool.onnxopt``.

    Raises:
        UsageError: if the file is too large or cannot be read.
    """
    if not path.is_file():
        return False
    try:
        return b"tool.onnxopt" in read_regular_file(path, _MAX_FILE_BYTES)
    except Malformed as error:
        hint = f"set {_VARIABLE}=FILE to use another file, or {_VARIABLE}= to use none"
        raise UsageError(f"{printable(str(path))} {error}", hint=hint) from None


def _require_own(file: Path, configuration: Path) -> None:
    """Reject a configuration file or a file of code that another user may have written.

    Raises:
        UsageError: if another user may have written it; the message names the file and its owner.
    """
    if owner := foreign(file):
        name = printable(str(configuration.absolute()))
        role = f"{'holds' if file.is_dir() else 'is'} code that {name} names"
        if file == configuration:
            role = "names code"
        raise UsageError(
            f"{printable(str(file))} {role}, and {owner}: not run as {user_name(os.geteuid())}",
            hint=f"set {_VARIABLE}={name} to use the file anyway, or {_VARIABLE}= to use none",
        )


def require_installed(backend: str, place: str) -> None:
    """Reject an adapter that a configuration file names but that is not installed yet.

    If ``ONNXOPT_CONFIG`` names the configuration file, every adapter is accepted.

    Args:
        backend: the specification of the backend.
        place: the place in the file, for the message.

    Raises:
        BackendUnavailable: if it is such an adapter. The hint is the command that installs it.
    """
    _, unnamed = split_label(backend)
    if not unnamed.startswith(ADAPTER) or _VARIABLE in os.environ:
        return
    from onnxopt_cli.backends.adapter.adapter_environment import AdapterEnvironment

    environment = AdapterEnvironment.of(parse_specification(unnamed))
    if environment.packages() is None:
        problem = (
            f" is not installed; {printable(place)} names it, but a configuration file must not "
            "install packages"
        )
        raise unavailable(backend, problem, environment.install_hint)


def known_configuration(known: Collection[str] = ()) -> Configuration | None:
    """Return the configuration that applies to the current folder, or None.

    Args:
        known: names of the options that the file may set; empty to accept every name.

    Raises:
        UsageError: if the file has errors, all of which the message lists, or if another user,
            except root, may have written the file or the code that it names. The owners are not
            checked if ``ONNXOPT_CONFIG`` names the file.
    """
    path = find_configuration()
    if path is None:
        return None
    configuration = read_configuration(path, known)
    if _VARIABLE not in os.environ:
        for code in configuration.code():
            _require_own(code, path)
    return configuration


def read_configuration(path: Path, known: Collection[str] = ()) -> Configuration:
    """Read a configuration file.

    Args:
        path: the file.
        known: names of the options that the file may set; empty to accept every name.

    Raises:
        UsageError: listing all errors of the file.
    """
    text, document = _document(path)
    problems: list[str] = []

    def report(problem: str, *keys: str) -> None:
        problems.append(f"{place_of_key(path, text, *keys)}: {problem}")

    def table(value: object, known: Collection[str], *keys: str) -> dict[str, Any]:
        """Return a value that must be a table, and record its errors.

        An error is recorded if the value is not a table, and for each key outside of ``known``.
        If ``known`` is empty, every key is accepted.
        """
        if not isinstance(value, dict):
            report(f"{'.'.join(keys) or 'tool.onnxopt'} is not a table", *keys)
            return {}
        for key in [key for key in value if known and key not in known]:
            hint = nearest(key, known)
            problem = f"unknown key {printable('.'.join((*keys, key)))}"
            report("; ".join(filter(None, (problem, hint))), *keys, key)
        return value

    settings = table(document, {*known, *_PARTS} if known else ())
    backends = {}
    for name, value in table(settings.get("backends", {}), (), "backends").items():
        try:
            written = table(value, BACKEND_FIELDS, "backends", name)
            backends[name] = backend_of_table(name, written, path.parent)
        except ValueError as error:
            report(f"backends.{printable(name)} {error}", "backends", name)
    profiles = {
        name: table(value, known, "profiles", name)
        for name, value in table(settings.get("profiles", {}), (), "profiles").items()
    }
    names = [
        key for key in settings if key != "backends" and "\0" in "".join(_texts(settings[key]))
    ]
    for name in names:
        report(f"{printable(name)} contains a null character", name)
    files = settings.get("operators", "")
    if not isinstance(files, (str, list)) or not all(isinstance(file, str) for file in files):
        report("operators is neither a path nor a list of paths", "operators")
    if problems:
        hint = "the file may set operators, [backends], [profiles.NAME] and options of onnxopt run"
        raise UsageError("\n".join(problems), hint=hint)
    options = {name: value for name, value in settings.items() if name not in _PARTS}
    return Configuration(path, text, options, backends, profiles)


def _listed(value: Any) -> list[str]:
    """Return the texts of an option, which is a text or a list; ignore other types."""
    items = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return [item for item in items if isinstance(item, str)]


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in parts:
        yield from _texts(part)


def _document(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the text of a configuration file, and its table of settings."""
    import tomllib

    name = printable(str(path))
    try:
        text = read_regular_file(path, _MAX_FILE_BYTES).decode("utf-8-sig")
        document = tomllib.loads(text)
    except Malformed as error:
        raise UsageError(f"{name} {error}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name}: {printable(str(error))}") from None
    if path.name == "pyproject.toml":
        tool = document.get("tool")
        document = tool.get("onnxopt", {}) if isinstance(tool, dict) else {}
    return text, document


def backend_of_table(name: str, written: Mapping[str, Any], folder: Path) -> str:
    """Return the specification that a backend's table describes.

    Args:
        name: the name of the backend.
        written: the table, with fields of :data:`BACKEND_FIELDS`.
        folder: the folder of the file, to which paths are relative.

    Raises:
        ValueError: describing the error in the table.
    """
    if name and not is_label(name):
        raise ValueError(f"is not a valid backend name: expected {LABEL_FORM}")
    backend = written.get("backend")
    if not isinstance(backend, str) or not backend:
        raise ValueError('names no backend: write backend = "python:..."')
    kind, colon, source = backend.partition(":")
    program, space, arguments = source.partition(" ")
    looks_like_path = kind in {"python", "adapter"} and ("/" in source or ".py" in source)
    if colon and (looks_like_path or (kind == "exec" and "/" in program)):
        path = relative(folder, program)
        # A command without a slash would be searched for on PATH.
        backend = f"{kind}:{path if '/' in path else f'./{path}'}{space}{arguments}"
    options = {
        f"{ENVIRONMENT}{name}": value for name, value in _table(written, "environment").items()
    }
    options |= _table(written, "options")
    if "python" in written:
        options["python"] = relative(folder, str(written["python"]))
    if "math" in written:
        options["math"] = written["math"]
    for key, value in options.items():
        if fault := _option_fault(kind, key, value):
            raise ValueError(f"has an option {fault}: {printable(key)}")
        backend += f",{key}={str(value).lower() if isinstance(value, bool) else value}"
    if "unsupported" in written:
        backend += f",unsupported={written['unsupported']}"
    if "\0" in backend:
        raise ValueError("contains a null character")
    return backend


def _option_fault(kind: str, key: str, value: object) -> str:
    """Return why an option is invalid, without its value, which may be a secret; empty if valid."""
    if "=" in key:
        return "with = in its name"
    if not isinstance(value, (str, int, float)):
        return "that is neither text nor a number"
    if kind == "exec" and re.search(r"[\s\"']", str(value)):
        return "with a space or quote in its value (write exec:env 'NAME=VALUE' COMMAND instead)"
    return "with a comma in its value" if "," in str(value) else ""


def _table(written: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = written.get(name, {})
    if not isinstance(table, dict):
        raise ValueError(f"has {name} that is not a table")  # noqa: TRY004 - every error of the file is a ValueError
    return dict(table)


def place_of_key(path: Path, text: str, *keys: str) -> str:
    """Return ``file:line`` of a key; the line of a table is that of its header."""
    dotted_key = [*(("tool", "onnxopt") if path.name == "pyproject.toml" else ()), *keys]
    table: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.fullmatch(r"\s*\[([^\[\]]+)\]\s*(?:#.*)?", line):
            table = [part.strip().strip("\"'") for part in header[1].split(".")]
            if table == dotted_key:
                return f"{path}:{number}"
        written = re.match(r"\s*[\"']?([\w.-]+)[\"']?\s*=", line)
        if written and [*table, *written[1].split(".")] == dotted_key:
            return f"{path}:{number}"
    return str(path)


def relative(folder: Path, path: str) -> str:
    """Convert a path relative to ``folder`` to a path relative to the current folder."""
    return path if Path(path).is_absolute() else os.path.relpath(folder / path)
