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

The file is that of the current folder or, in a repository, of the nearest folder above it that has
one. It names code that runs, so it and the code must belong to this user or to root; naming the
file in ``ONNXOPT_CONFIG`` is consent to any. Its paths are relative to its folder. What the command
line says precedes what a profile says, and that the rest of the file.
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

from onnxopt_cli.cases.tensors.regular_file import Malformed, read_regular_file
from onnxopt_cli.core.ownership import foreign, user_name
from onnxopt_cli.core.text import nearest, printable
from onnxopt_cli.errors import UsageError

# Names the file to use, whatever folder this is; empty for none.
_VARIABLE = "ONNXOPT_CONFIG"
_PARTS = {"backends", "profiles"}
# Options of a backend that have fields of their own; others stand in its table `options`.
_FIELDS = {"backend", "options", "python", "unsupported", "environment", "math"}
_MAX_FILE_BYTES = 1 << 20


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
        return [
            Path(relative(self.path.parent, it)) for it in _listed(self.options.get("operators"))
        ]

    def code(self) -> Iterator[Path]:
        """Yield the files with code that it names: of operators, backends and interpreters.

        With them come folders in which code is looked for.
        """
        from onnxopt_cli.backends.named_code import named_code, with_bytecode

        yield from with_bytecode(self._named(named_code))

    def _named(self, of_backend: Callable[[str], Iterator[Path]]) -> Iterator[Path]:
        asked = [*self.backends.values()]
        for chosen in (self.options, *self.profiles.values()):
            operators = _listed(chosen.get("operators"))
            yield from (Path(relative(self.path.parent, operator)) for operator in operators)
            asked += _listed(chosen.get("backend"))
        for text in dict.fromkeys(asked):
            with suppress(UsageError):
                yield from of_backend(text.strip())

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
    """Return the file that holds in the current folder; None if there is none.

    Raises:
        UsageError: if another user than this one and root may have written it.
    """
    if _VARIABLE in os.environ:
        named = os.environ[_VARIABLE]
        return Path(named) if named else None
    try:
        here = Path.cwd()
    except OSError:
        # It is gone, and no file is there.
        return None
    for folder in _searched(here):
        own, shared = folder / "onnxopt.toml", folder / "pyproject.toml"
        # One that cannot be read is said to be so, not passed over.
        found = own if os.path.lexists(own) else shared if _is_ours(shared) else None
        if found is not None:
            _require_own(found, found)
            return found
    return None


def _searched(here: Path) -> Iterator[Path]:
    """Yield the current folder and, within a repository, those above it up to its root."""
    above = [here, *here.parents]
    # Where everybody can write, everybody can make a repository of it.
    roots = (it for it in above if os.path.lexists(it / ".git") and not _is_open_to_all(it))
    root = next(roots, here)
    for folder in above:
        yield folder
        if folder == root:
            break


def _is_open_to_all(folder: Path) -> bool:
    return os.name == "posix" and bool(folder.stat().st_mode & stat.S_IWOTH)


def _is_ours(path: Path) -> bool:
    """Tell whether a ``pyproject.toml`` says something of onnxopt.

    Raises:
        UsageError: if it is too large to tell.
    """
    if not path.is_file():
        return False
    try:
        return b"tool.onnxopt" in read_regular_file(path, _MAX_FILE_BYTES)
    except Malformed as error:
        hint = f"{_VARIABLE}=FILE names another file, or none if it is empty"
        raise UsageError(f"{printable(str(path))} {error}", hint=hint) from None


def _require_own(file: Path, configuration: Path) -> None:
    """Refuse a file with code, or that names code, that another user may have written.

    Raises:
        UsageError: naming the file and its owner.
    """
    if whose := foreign(file):
        name = printable(str(configuration.absolute()))
        what = f"{'holds' if file.is_dir() else 'is'} code that {name} names"
        if file == configuration:
            what = "names code"
        raise UsageError(
            f"{printable(str(file))} {what}, and {whose}: not run as {user_name(os.geteuid())}",
            hint=f"{_VARIABLE}={name} takes it all the same; {_VARIABLE}= goes without the file",
        )


def known_configuration(known: Collection[str] = ()) -> Configuration | None:
    """Return what the file says that holds in the current folder; None if there is none.

    Args:
        known: names of the options that it may set; none if any.

    Raises:
        UsageError: with everything that is wrong with it; or if another user than this one and root
            may have written it or code that it names, and nobody has named it.
    """
    path = find_configuration()
    if path is None:
        return None
    found = read_configuration(path, known)
    if _VARIABLE not in os.environ:
        for code in found.code():
            _require_own(code, path)
    return found


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
    if not isinstance(files, (str, list)) or not all(isinstance(file, str) for file in files):
        report("operators is neither a path nor a list of paths", "operators")
    if problems:
        hint = "it may set operators, [backends], [profiles.NAME] and options of onnxopt run"
        raise UsageError("\n".join(problems), hint=hint)
    options = {name: value for name, value in whole.items() if name not in _PARTS}
    return Configuration(path, text, options, backends, profiles)


def _listed(value: Any) -> list[str]:
    """Return the texts of an option that may be one or a list; what else there is, is refused."""
    found = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return [it for it in found if isinstance(it, str)]


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
