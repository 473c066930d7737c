"""The entries of an expectation file, and a parser that reports all errors at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeAlias, TypeVar

from onnxopt_cli.cases.yaml.yaml_syntax import (
    FormatError,
    Node,
    located_fault,
    read_document,
    unexpected,
)
from onnxopt_cli.core.record import BackendIdentity
from onnxopt_cli.core.result import Outcome, Result
from onnxopt_cli.errors import Fault
from onnxopt_cli.run.judge import other_defect

T = TypeVar("T")

#: Returns how a failure differs from that of known mistakes; see
#: :func:`onnxopt_cli.run.reproduce.unlike_mistakes`.
UnlikeMistakes: TypeAlias = Callable[[Result, Sequence[str]], str]

#: The word for the expectation of an unstable outcome.
FLAKY = "flaky"

_GLOB = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class Pattern:
    """An id or a glob over ids, and its line in the file."""

    text: str
    line: int

    @property
    def exact(self) -> bool:
        """True if the text is an id, not a glob."""
        return not _GLOB & set(self.text)

    def matches(self, case: str) -> bool:
        """Return whether the pattern matches an id; letter case matters."""
        return case == self.text or (not self.exact and fnmatchcase(case, self.text))


@dataclass(frozen=True, slots=True)
class Entry:
    """The expected outcomes of some cases on some backends.

    Attributes:
        where: the file and line.
        node: node of the entry in the parsed file.
        patterns: the cases.
        backend: a glob over names of backends.
        version: a version specifier of ``packaging`` for the backend; empty for all versions.
        outcomes: allowed words: outcomes, and :data:`FLAKY`.
        mistakes: names of the known mistakes that reproduce a failure together; empty for any
            failure.
        outputs: names of the outputs that are wrong in a failure; empty for any outputs.
        reason: the reason, as text.
        issue: link to an issue.
        expires: the first day on which the entry is no longer valid.
    """

    where: str
    node: Node
    patterns: tuple[Pattern, ...]
    backend: str
    version: str
    outcomes: frozenset[str]
    mistakes: tuple[str, ...] = ()
    outputs: frozenset[str] = frozenset()
    reason: str = ""
    issue: str = ""
    expires: date | None = None

    @property
    def sole(self) -> bool:
        """Whether the entry names a single id and so takes precedence over others in its file."""
        return len(self.patterns) == 1 and self.patterns[0].exact

    def matches(self, case: str) -> bool:
        """Return whether an id matches one of the patterns."""
        return any(pattern.matches(case) for pattern in self.patterns)

    def applies_to(self, backend: BackendIdentity) -> bool:
        """Return whether the entry applies to a backend.

        A backend that does not report its version is in no range of versions.
        """
        if not self.names(backend):
            return False
        if not self.version:
            return True
        from packaging.specifiers import SpecifierSet

        number = version_number(backend)
        return bool(number) and SpecifierSet(self.version).contains(number, prereleases=True)

    def names(self, backend: BackendIdentity) -> bool:
        """Return whether the entry's glob matches the name of a backend."""
        return backend.name == self.backend or fnmatchcase(backend.name, self.backend)

    def expired(self, today: date) -> bool:
        """Return whether the entry has expired."""
        return self.expires is not None and today >= self.expires

    def allows(self, result: Result) -> bool:
        """Return whether a result is expected; an entry that allows flaky also allows a pass."""
        outcome = result.outcome.value
        if result.flaky:
            return FLAKY in self.outcomes or {Outcome.PASS.value, outcome} <= self.outcomes
        return outcome in self.outcomes or (outcome == Outcome.PASS and FLAKY in self.outcomes)

    def other_failure(self, result: Result, unlike_mistakes: UnlikeMistakes) -> str:
        """Return how an allowed result differs from the failure that the entry describes.

        Args:
            result: the result.
            unlike_mistakes: returns how a failure differs from that of known mistakes.

        Returns:
            The difference in words; empty if there is no difference, or if the entry does not
            describe a failure.
        """
        if result.outcome is not Outcome.FAIL or not (self.mistakes or self.outputs):
            return ""
        if defect := other_defect(result):
            return defect
        wrong = [diff.name for diff in result.wrong]
        if self.outputs and {*wrong} != self.outputs:
            return f"wrong outputs: {', '.join(wrong) or 'none'}"
        return unlike_mistakes(result, self.mistakes) if self.mistakes else ""

    def __str__(self) -> str:
        why = ", ".join(filter(None, (self.reason, self.issue)))
        parts = [" or ".join(sorted(self.outcomes))]
        parts += [f"of {', '.join(sorted(self.outputs))}"] if self.outputs else []
        parts += [f"by {' and '.join(map(repr, self.mistakes))}"] if self.mistakes else []
        return f"expected {' '.join(parts)} ({self.where}){why and f': {why}'}"


def version_number(backend: BackendIdentity) -> str:
    """Return the number in a backend's version, as in ``onnxruntime 1.31.1``; empty if unknown."""
    from packaging.version import InvalidVersion, Version

    number = backend.version.rpartition(" ")[2]
    try:
        return str(Version(number))
    except InvalidVersion:
        return ""


@dataclass(frozen=True, slots=True)
class Layer:
    """An expectation file.

    Attributes:
        path: the file.
        text: its content.
        entries: the entries in the order of the file; empty if the file has errors.
        must_pass: cases that must pass.
        errors: all errors of the file.
        suites: the versions of suites for which the file was written, as in ``conformance@2``.
        without: the reason of each excluded capability, by its name.
    """

    path: Path
    text: str
    entries: tuple[Entry, ...]
    must_pass: tuple[Pattern, ...]
    errors: tuple[Fault, ...] = ()
    suites: tuple[Pattern, ...] = ()
    without: Mapping[str, str] = field(default_factory=dict)


def parse_layer(text: str, path: Path) -> Layer:
    """Parse the text of an expectation file; the path is used in messages only."""
    root, errors = read_document(text, "onnxopt_cli.run.expectations", "onnxopt-expect")
    # A file with errors has no entries.
    valid_root = root if root and not errors else Node(1)
    entries: list[Entry] = []
    for node in _items(valid_root.field("expect")):
        try:
            entries.append(_entry(node, path))
        except FormatError as error:
            errors.append(error)
    left_out = valid_root.field("without") or Node(1)
    problems = [
        located_fault(path, error) for error in sorted(errors, key=lambda error: error.line)
    ]
    return Layer(
        path,
        text,
        tuple(entries),
        must_pass=_patterns(valid_root.field("must-pass")),
        errors=tuple(dict.fromkeys(problems)),
        suites=_patterns(valid_root.field("suites")),
        without={name: _text(left_out, name) for name in left_out.fields or ()},
    )


def _entry(node: Node, path: Path) -> Entry:
    """Return the entry at a node that the schema accepts.

    Raises:
        FormatError: if its version range or date is invalid, or it describes a failure without
            allowing one.
    """
    outcomes = frozenset(str(word.scalar) for word in _items(node.field("outcome")))
    for name in ("mistake", "outputs"):
        described = node.field(name)
        if described is not None and Outcome.FAIL.value not in outcomes:
            raise unexpected(described, "the outcome fail beside it")
    version = _read(node.field("version"), _range, 'a range of versions, as in ">=1.20,<1.32"')
    day = "a day of the calendar, as in 2031-12-31"
    return Entry(
        where=f"{path}:{node.line}",
        node=node,
        patterns=_patterns(node.field("case")),
        backend=_text(node, "backend") or "*",
        version=version or "",
        outcomes=outcomes,
        mistakes=tuple(str(name.scalar) for name in _items(node.field("mistake"))),
        outputs=frozenset(str(name.scalar) for name in _items(node.field("outputs"))),
        reason=_text(node, "reason"),
        issue=_text(node, "issue"),
        expires=_read(node.field("expires"), date.fromisoformat, day),
    )


def _patterns(node: Node | None) -> tuple[Pattern, ...]:
    return tuple(Pattern(str(item.scalar), item.line) for item in _items(node))


def _items(node: Node | None) -> Iterator[Node]:
    """Yield the items of a list, or a single value as one item."""
    if node is not None and node.items is not None:
        yield from node.items
    elif node is not None and node.scalar is not None:
        yield node


def _text(node: Node, name: str) -> str:
    field_node = node.field(name)
    return "" if field_node is None else " ".join(str(field_node.scalar).split())


def _read(node: Node | None, read: Callable[[str], T], expected: str) -> T | None:
    """Return the parsed text of a node; None without a node.

    Raises:
        FormatError: if the text is invalid, naming the expected form.
    """
    if node is None:
        return None
    try:
        return read(str(node.scalar))
    except ValueError:
        raise unexpected(node, expected) from None


def _range(text: str) -> str:
    from packaging.specifiers import SpecifierSet

    return str(SpecifierSet(text))
