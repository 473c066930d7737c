"""Read a scoreboard file: backends, suites, and the folders of results and site.

::

    title = "Runtimes on our target"
    suites = ["onnx-node", "operators"]   # any targets of `onnxopt run`
    tier = "quick"                        # or "full", the default
    results = "results"                   # logs; relative to this file
    site = "site"
    older-opsets = true                   # the default: offer unsupported models in older opsets

    [backends]
    onnxruntime = "onnxruntime"           # the label, and a specification as for `onnxopt run -b`

    [backends.openvino]                   # or a table as in onnxopt.toml
    backend = "adapter:openvino"
    versions = ["2025.4", "2026.4.1"]     # of an adapter; the last one is shown first
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from onnxopt_cli.backends.configuration import (
    BACKEND_FIELDS,
    backend_of_table,
    place_of_key,
    relative,
)
from onnxopt_cli.backends.specification import ADAPTER, parse_specification
from onnxopt_cli.core.text import nearest, printable
from onnxopt_cli.core.untrusted_files import Malformed, read_regular_file
from onnxopt_cli.errors import UsageError

_MAX_FILE_BYTES = 1 << 20
_MAX_LABEL_CHARS = 60
_FIELDS = ("title", "suites", "tier", "results", "site", "older-opsets", "backends")
_VERSIONS = "versions"
_AT_LINE = re.compile(r" \(at line (\d+), column \d+\)$")
# Backends that support every opset.
_ALL_OPSETS = ("numpy", "onnx-reference")
_OLDER_OPSETS = "opset"
_DEFAULT_SUITES = ("onnx-node", "operators")


class Tier(StrEnum):
    """The part of the suites' cases that is run."""

    FULL = "full"
    QUICK = "quick"


@dataclass(frozen=True, slots=True)
class ScoredBackend:
    """A backend of a scoreboard.

    Attributes:
        label: the backend's name on the site.
        specifications: its specifications, one for each requested version; the last specification
            is that of the current version.
    """

    label: str
    specifications: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ScoreboardFile:
    """The content of a scoreboard file.

    Attributes:
        path: the file.
        title: the title of the site.
        suites: paths, suites and ids of cases.
        suites_place: the file and line that name the suites.
        tier: the part of the suites' cases that is run.
        results: the folder of the logs.
        site: the folder of the pages.
        backends: the backends in the order of the file.
    """

    path: Path
    title: str
    suites: tuple[str, ...]
    suites_place: str
    tier: Tier
    results: Path
    site: Path
    backends: tuple[ScoredBackend, ...]


def read_scoreboard_file(path: Path) -> ScoreboardFile:
    """Read a scoreboard file.

    Raises:
        UsageError: if the file has errors; the message lists all errors with their lines.
    """
    name = printable(str(path))
    try:
        text = read_regular_file(path, _MAX_FILE_BYTES).decode("utf-8-sig")
        document = tomllib.loads(text)
    except Malformed as error:
        raise UsageError(f"{name} {error}", hint="docs/scoreboard.md has an example") from None
    except (ValueError, RecursionError) as error:
        message = printable(str(error))
        line = _AT_LINE.search(message)
        place = f"{name}:{line[1]}" if line else name
        raise UsageError(f"{place}: not valid TOML: {_AT_LINE.sub('', message)}") from None
    reader = _Reader(path, text)
    scoreboard = reader.scoreboard(document)
    if reader.problems:
        hint = f"a scoreboard file has {', '.join(_FIELDS)}; docs/scoreboard.md has an example"
        raise UsageError("\n".join(reader.problems), hint=hint)
    return scoreboard


class _Reader:
    """Reads the fields of a scoreboard file, and collects their problems.

    Args:
        path: the file.
        text: its text.

    Attributes:
        problems: each problem with its line.
    """

    def __init__(self, path: Path, text: str) -> None:
        self._path, self._text = path, text
        self.problems: list[str] = []

    def scoreboard(self, document: Mapping[str, Any]) -> ScoreboardFile:
        """Return the content of the file; it is incomplete if :attr:`problems` is not empty."""
        for key in document:
            if key not in _FIELDS:
                hint = nearest(key, _FIELDS)
                problem = f"unknown field {printable(repr(key))}"
                self._report("; ".join(filter(None, (problem, hint))), key)
        written_tier = self._text_of(document, "tier", Tier.FULL.value)
        if written_tier not in list(Tier):
            listed = " or ".join(Tier)
            self._report(f"tier is {printable(repr(written_tier))}, expected {listed}", "tier")
            written_tier = Tier.FULL
        folder = self._path.parent
        older_opsets = document.get("older-opsets", True)
        if not isinstance(older_opsets, bool):
            problem = f"older-opsets is {printable(repr(older_opsets))}, expected true or false"
            self._report(problem, "older-opsets")
        backends = document.get("backends", {})
        if not isinstance(backends, dict) or not backends:
            self._report("the file names no backend: write [backends] and label = BACKEND")
            backends = {}
        return ScoreboardFile(
            path=self._path,
            title=self._text_of(document, "title", "ONNX conformance"),
            suites=self._suites(document),
            suites_place=self._place("suites"),
            tier=Tier(written_tier),
            results=folder / self._text_of(document, "results", "results"),
            site=folder / self._text_of(document, "site", "site"),
            backends=tuple(
                ScoredBackend(
                    label,
                    tuple(
                        _with_older_opsets(specification) if older_opsets else specification
                        for specification in self._specifications(label, written)
                    ),
                )
                for label, written in backends.items()
            ),
        )

    def _report(self, problem: str, *keys: str) -> None:
        self.problems.append(f"{self._place(*keys)}: {problem}")

    def _place(self, *keys: str) -> str:
        """Return the file and the line in which a key occurs."""
        return printable(place_of_key(self._path, self._text, *keys))

    def _text_of(self, table: Mapping[str, Any], key: str, default: str) -> str:
        value = table.get(key, default)
        if isinstance(value, str) and value.strip() and "\0" not in value:
            return value
        self._report(f"{key} is {printable(repr(value))}, expected a text", key)
        return default

    def _texts_of(self, table: Mapping[str, Any], *keys: str) -> tuple[str, ...]:
        """Return the texts of a list in the file; empty if the list is invalid."""
        values = table[keys[-1]]
        if not isinstance(values, list) or not values:
            self._report(f"{keys[-1]} is not a list of texts", *keys)
            return ()
        for value in values:
            if not isinstance(value, str) or not value.strip() or "\0" in value:
                problem = f"{keys[-1]} has {printable(repr(value))}, expected a text"
                self._report(problem, *keys)
                return ()
        if len(set(values)) < len(values):
            self._report(f"{keys[-1]} has an entry twice", *keys)
        return tuple(values)

    def _suites(self, document: Mapping[str, Any]) -> tuple[str, ...]:
        if "suites" not in document:
            return _DEFAULT_SUITES
        folder = self._path.parent
        return tuple(
            relative(folder, suite) if (folder / suite).exists() else suite
            for suite in self._texts_of(document, "suites")
        )

    def _specifications(self, label: str, written: object) -> tuple[str, ...]:
        """Return the specifications of a backend; empty if its entry in the file is invalid."""
        place = ("backends", label)
        if not label.strip() or len(label) > _MAX_LABEL_CHARS:
            problem = f"a label has 1 to {_MAX_LABEL_CHARS} characters, not {len(label)}"
            self._report(problem, "backends")
            return ()
        table = {"backend": written} if isinstance(written, str) else written
        if not isinstance(table, dict):
            problem = f"backends.{printable(label)} is neither a specification nor a table"
            self._report(problem, *place)
            return ()
        field_names = {*BACKEND_FIELDS, _VERSIONS}
        for key in table:
            if key not in field_names:
                hint = nearest(key, field_names)
                problem = f"unknown field backends.{printable(label)}.{printable(key)}"
                self._report("; ".join(filter(None, (problem, hint))), *place, key)
        versions: tuple[str, ...] = ()
        if _VERSIONS in table:
            versions = self._texts_of(table, *place, _VERSIONS)
            backend = str(table.get("backend"))
            if not backend.startswith(ADAPTER) or "@" in backend:
                problem = "versions need a backend of the form adapter:NAME, without @VERSION"
                self._report(problem, *place, _VERSIONS)
                return ()
        try:
            return tuple(self._specification(table, version) for version in versions or ("",))
        except ValueError as error:
            self._report(f"backends.{printable(label)} {error}", *place)
        except UsageError as error:
            self._report(f"backends.{printable(label)}: {error.message}", *place)
        return ()

    def _specification(self, table: Mapping[str, Any], version: str) -> str:
        """Return the specification of one version of a backend.

        Raises:
            ValueError: if the table has an error; the message describes the error.
            UsageError: if the specification is malformed.
        """
        named = dict(table)
        if version:
            adapter, comma, options = str(named["backend"]).partition(",")
            named["backend"] = f"{adapter}@{version}{comma}{options}"
        specification = backend_of_table("", named, self._path.parent)
        # A name, as in acme=python:..., is dropped, because the label names the backend.
        return parse_specification(specification.strip()).text


def _with_older_opsets(specification: str) -> str:
    """Add ``opset=auto`` to a specification without this option.

    The option is not added for backends that support all opsets.
    """
    parsed = parse_specification(specification)
    if parsed.name in _ALL_OPSETS or _OLDER_OPSETS in parsed.options:
        return specification
    # The option `unsupported` must remain the last option.
    before, pattern = specification, ""
    if "unsupported" in parsed.options:
        pattern = f",unsupported={parsed.options['unsupported']}"
        before = specification.removesuffix(pattern)
    return f"{before},{_OLDER_OPSETS}=auto{pattern}"
