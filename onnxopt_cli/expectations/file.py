"""Reading an expectation file, with everything that is wrong with it reported at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from onnxopt_cli.cases.yaml.schema import structure_errors
from onnxopt_cli.cases.yaml.syntax import (
    FormatError,
    Node,
    field_text,
    parse_yaml,
    unexpected,
    yaml_text,
)
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import InvalidCase, Problem, UsageError
from onnxopt_cli.expectations.entry import Entry, Pattern

_VERSION = "onnxopt-expect"


@dataclass(frozen=True, slots=True)
class Layer:
    """An expectation file.

    Attributes:
        path: the file.
        text: its content.
        entries: in the order of the file.
        nodes: where each of them stands in the file.
        must_pass: cases of which nothing else is allowed.
        errors: everything that is wrong; what is wrong is not among the entries.
    """

    path: Path
    text: str
    entries: tuple[Entry, ...]
    nodes: tuple[Node, ...]
    must_pass: tuple[Pattern, ...]
    errors: tuple[Problem, ...] = ()


def read_layers(paths: tuple[Path, ...]) -> tuple[Layer, ...]:
    """Read expectation files.

    Raises:
        UsageError: with everything that is wrong with any of them.
    """
    layers: list[Layer] = []
    problems: list[Problem] = []
    for path in paths:
        try:
            layers.append(parse_layer(yaml_text(path), path))
            problems += layers[-1].errors
        except InvalidCase as error:
            problems += error.problems
    if problems:
        raise UsageError(
            printable("\n".join(map(str, problems)), lines=True),
            hint="onnxopt schema expect describes the format",
        )
    return tuple(layers)


@cache
def expect_schema() -> dict[str, Any]:
    """Return the JSON Schema (Draft 2020-12) of expectation files; it is not to be changed."""
    schema: dict[str, Any] = json.loads(
        resources.files(__package__).joinpath("schema.json").read_text("utf-8")
    )
    return schema


def parse_layer(text: str, path: Path) -> Layer:
    """Read the text of an expectation file that stands, or would stand, at a path."""
    root, errors = parse_yaml(text)
    entries: list[tuple[Entry, Node]] = []
    must_pass: tuple[Pattern, ...] = ()
    if root is not None:
        seen = {id(error.node) for error in errors}
        errors += [it for it in structure_errors(root, expect_schema) if id(it.node) not in seen]
        version = root.field(_VERSION)
        if version is None or any(error.node is version for error in errors):
            # The rules of another version are not known here.
            errors = [error for error in errors if error.node in (root, version)]
        elif not errors:
            nodes = root.field("expect")
            for node in (nodes.items if nodes else None) or ():
                try:
                    entries.append((_entry(node, path), node))
                except FormatError as error:
                    errors.append(error)
            must_pass = _patterns(root.field("must-pass"))
    problems = [_problem(path, error) for error in sorted(errors, key=lambda error: error.line)]
    return Layer(
        path,
        text,
        tuple(entry for entry, _ in entries),
        tuple(node for _, node in entries),
        must_pass,
        tuple(dict.fromkeys(problems)),
    )


def _entry(node: Node, path: Path) -> Entry:
    """Return the entry at a node that the schema accepts.

    Raises:
        FormatError: if its versions or its date mean nothing.
    """
    words = _items(node.field("outcome"))
    return Entry(
        where=f"{path}:{node.line}",
        patterns=_patterns(node.field("case")),
        backend=_text(node, "backend") or "*",
        version=_version(node.field("version")),
        outcomes=frozenset(str(word.scalar) for word in words),
        reason=_text(node, "reason"),
        issue=_text(node, "issue"),
        expires=_date(node.field("expires")),
    )


def _patterns(node: Node | None) -> tuple[Pattern, ...]:
    return tuple(Pattern(str(item.scalar), item.line) for item in _items(node))


def _items(node: Node | None) -> Iterator[Node]:
    """Yield the items of a list, or the one value that stands there instead."""
    if node is not None and node.items is not None:
        yield from node.items
    elif node is not None and node.scalar is not None:
        yield node


def _text(node: Node, name: str) -> str:
    field = node.field(name)
    return "" if field is None else " ".join(str(field.scalar).split())


def _version(node: Node | None) -> str:
    if node is None:
        return ""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return str(SpecifierSet(str(node.scalar)))
    except InvalidSpecifier:
        raise unexpected(node, 'a range of versions, as in ">=1.20,<1.32"') from None


def _date(node: Node | None) -> date | None:
    if node is None:
        return None
    try:
        return date.fromisoformat(str(node.scalar))
    except ValueError:
        raise unexpected(node, "a day of the calendar, as in 2031-12-31") from None


def _problem(path: Path, error: FormatError) -> Problem:
    field = field_text(error.node.path)
    return Problem(f"{path}:{error.line}", f"{field}: {error.what}" if field else error.what)
