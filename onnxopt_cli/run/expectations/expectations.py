"""Parses expectation files, compares results with them, and derives the exit code of a run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from fnmatch import fnmatchcase
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

from onnxopt_cli.cases.case import Case
from onnxopt_cli.cases.yaml.yaml_syntax import (
    FormatError,
    Node,
    located_fault,
    read_document,
    read_source,
    unexpected,
)
from onnxopt_cli.config.run_config import Judging
from onnxopt_cli.core.record import BackendIdentity
from onnxopt_cli.core.result import (
    HARMLESS,
    OUTSIDE_IDS,
    Outcome,
    Result,
    Standing,
)
from onnxopt_cli.core.text import nearest, printable
from onnxopt_cli.errors import (
    BackendUnavailable,
    Fault,
    InvalidCase,
    UsageError,
)
from onnxopt_cli.run.judge import other_defect
from onnxopt_cli.suites.collect import require_version

T = TypeVar("T")

#: The word by which an entry allows unstable outcomes.
FLAKY = "flaky"

_GLOB = frozenset("*?[")
_PATH_SEPARATORS = re.compile(r"[/\\]")


@dataclass(frozen=True, slots=True)
class Pattern:
    """An id or a glob that matches ids, with its line in the file."""

    text: str
    line: int

    @property
    def exact(self) -> bool:
        """Whether the text is an id rather than a glob."""
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
        outcomes: the allowed words: outcomes, and :data:`FLAKY`.
        mistakes: the names of known mistakes that together reproduce the failure; empty for any
            failure.
        outputs: the names of the outputs that are wrong in the failure; empty for any outputs.
        reason: why the author of the file expects these outcomes.
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
        """Whether the entry names a single id, and therefore takes precedence within its file."""
        return len(self.patterns) == 1 and self.patterns[0].exact

    def matches(self, case: str) -> bool:
        """Return whether an id matches one of the entry's patterns."""
        return any(pattern.matches(case) for pattern in self.patterns)

    def applies_to(self, backend: BackendIdentity) -> bool:
        """Return whether the entry applies to a backend.

        An entry with a version range does not apply to a backend that reports no version.
        """
        if not self.names(backend):
            return False
        if not self.version:
            return True
        from packaging.specifiers import SpecifierSet

        number = _version_number(backend)
        return bool(number) and SpecifierSet(self.version).contains(number, prereleases=True)

    def names(self, backend: BackendIdentity) -> bool:
        """Return whether the entry's glob matches the name of a backend."""
        return backend.name == self.backend or fnmatchcase(backend.name, self.backend)

    def expired(self, today: date) -> bool:
        """Return whether the entry has expired."""
        return self.expires is not None and today >= self.expires

    def allows(self, result: Result) -> bool:
        """Return whether the entry allows a result; with ``flaky``, an entry also allows a pass."""
        outcome = result.outcome.value
        if result.flaky:
            return FLAKY in self.outcomes or {Outcome.PASS.value, outcome} <= self.outcomes
        return outcome in self.outcomes or (outcome == Outcome.PASS and FLAKY in self.outcomes)

    def __str__(self) -> str:
        why = ", ".join(filter(None, (self.reason, self.issue)))
        parts = [" or ".join(sorted(self.outcomes))]
        parts += [f"of {', '.join(sorted(self.outputs))}"] if self.outputs else []
        parts += [f"by {' and '.join(map(repr, self.mistakes))}"] if self.mistakes else []
        return f"expected {' '.join(parts)} ({self.where}){why and f': {why}'}"


def _version_number(backend: BackendIdentity) -> str:
    """Return the number in a backend's version, such as ``onnxruntime 1.31.1``; else ""."""
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
        without: for each excluded capability, the reason for its exclusion.
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
    """Return the entry at a node of the file; the node must conform to the schema.

    Raises:
        FormatError: if the version range or the date of the entry is invalid, or if the entry
            describes a failure but does not allow failures.
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
    """Return the parsed text of a node; None if the node is None.

    Raises:
        FormatError: if the text is invalid. The message names the expected form.
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


@dataclass(frozen=True, slots=True)
class Expectations:
    """The entries of all expectation files of a run.

    If several entries apply to a result, an entry of a later file takes precedence. Within a file,
    an entry that names a single case by its id takes precedence over all others. Among other
    entries, the last one that applies takes precedence. Expired entries are ignored.

    Attributes:
        layers: the files, in order of increasing precedence.
        today: the day that decides which entries have expired.
        judging: how outputs are judged.
    """

    layers: tuple[Layer, ...]
    today: date
    judging: Judging = field(default_factory=Judging)

    @classmethod
    def read(cls, paths: tuple[Path, ...], judging: Judging | None = None) -> Expectations:
        """Read expectation files, given in order of increasing precedence.

        The current date in UTC decides which entries have expired.

        Raises:
            UsageError: if the files have errors. The message lists all of them.
        """
        layers: list[Layer] = []
        problems: list[Fault] = []
        for path in paths:
            try:
                layers.append(parse_layer(read_source(path), path))
                problems += layers[-1].errors
            except InvalidCase as error:
                problems += error.problems
        if problems:
            raise UsageError(
                printable("\n".join(map(str, problems)), lines=True),
                hint="onnxopt schema expect describes the format; --update-expect writes a file",
            )
        return cls(tuple(layers), datetime.now(UTC).date(), judging or Judging())

    @property
    def hash(self) -> str:
        """A hash of the files' contents; empty without files."""
        if not self.layers:
            return ""

        texts = (layer.text.encode("utf-8", "surrogatepass") for layer in self.layers)
        digests = b"".join(blake2b(text).digest() for text in texts)
        return blake2b(digests, digest_size=16).hexdigest()

    def require_suites(self, suites: Mapping[str, str], beside: Path | None = None) -> None:
        """Require that the expectation files were written for the given versions of suites.

        Args:
            suites: the versions of the suites that run.
            beside: a file that is not checked, because it is going to be updated; None to check all
                files.

        Raises:
            UsageError: if a suite has another version. The message names the first such suite.
        """
        for layer in self.layers:
            for pin in layer.suites if layer.path != beside else ():
                require_version(pin.text, suites, f"{layer.path}:{pin.line}")

    @property
    def without(self) -> dict[str, str]:
        """The excluded capabilities, with the reason for each."""
        return {name: reason for layer in self.layers for name, reason in layer.without.items()}

    def near_misses(self, backends: Sequence[BackendIdentity]) -> Iterator[Fault]:
        """Yield a fault for each entry whose backend resembles the name of a tested backend."""
        seen: set[tuple[Path, str]] = set()
        for layer in self.layers:
            for entry in layer.entries:
                if (layer.path, entry.backend) in seen or any(map(entry.names, backends)):
                    continue
                seen.add((layer.path, entry.backend))
                for backend in backends:
                    if pattern := _like(entry.backend, backend.name):
                        message = f"{entry.backend} is not {backend.name}; write {pattern}"
                        yield Fault(entry.where, printable(message))

    def review(self, result: Result, backend: BackendIdentity, case: Case | None) -> Result:
        """Return a result with its standing, and with the entry that applies to it.

        The standing is None if the case was not run. Without expectation files, the standing is
        None for every result except a flaky one.

        Args:
            result: the result.
            backend: its backend.
            case: its case; None for a result that concerns no case.
        """
        if result.outcome is Outcome.NOT_RUN:
            return result
        if not self.layers:
            standing = Standing.FLAKY if result.flaky else None
            if result.standing is standing and not result.expectation:
                return result
            return replace(result, standing=standing, expectation="")
        must_pass = self.must_pass(result.case)
        entry = None if must_pass else self.entry(result.case, backend)
        difference = ""
        if entry is not None and entry.allows(result):
            difference = self._difference(entry, result, case)
            standing = Standing.CHANGED if difference else Standing.EXPECTED
        elif result.flaky:
            standing = Standing.FLAKY
        elif entry is None:
            allowed = result.outcome in ({Outcome.PASS} if must_pass else HARMLESS)
            standing = Standing.EXPECTED if allowed else Standing.UNEXPECTED_FAIL
        elif result.outcome is Outcome.PASS:
            standing = Standing.UNEXPECTED_PASS
        else:
            harmless = entry.outcomes <= {outcome.value for outcome in HARMLESS}
            standing = Standing.UNEXPECTED_FAIL if harmless else Standing.CHANGED
        expectation = "; but ".join(filter(None, (must_pass or str(entry or ""), difference)))
        return replace(result, standing=standing, expectation=expectation)

    def _difference(self, entry: Entry, result: Result, case: Case | None) -> str:
        """Return how a result that an entry allows differs from the failure described in the entry.

        The text is empty if the failures are equal, or if the entry describes no failure.
        """
        if result.outcome is not Outcome.FAIL or not (entry.mistakes or entry.outputs):
            return ""
        if defect := other_defect(result):
            return defect
        wrong = [diff.name for diff in result.wrong]
        if entry.outputs and {*wrong} != entry.outputs:
            return f"wrong outputs: {', '.join(wrong) or 'none'}"
        return self.unlike_mistakes(case, result, entry.mistakes) if entry.mistakes else ""

    def unlike_mistakes(self, case: Case | None, result: Result, names: Sequence[str]) -> str:
        """Return how a failure differs from the failure that known mistakes cause.

        The text is empty if the failures are equal.
        """
        # Imported late, because few runs have an entry with known mistakes.
        from onnxopt_cli.run.reproduce import unlike_mistakes

        return unlike_mistakes(result, case, self.judging, names)

    def entry(self, case: str, backend: BackendIdentity) -> Entry | None:
        """Return the entry that applies to a case on a backend, or None."""
        for layer in reversed(self.layers):
            applicable = [
                entry
                for entry in layer.entries
                if entry.matches(case)
                and not entry.expired(self.today)
                and entry.applies_to(backend)
            ]
            if applicable:
                return next((entry for entry in reversed(applicable) if entry.sole), applicable[-1])
        return None

    def must_pass(self, case: str) -> str:
        """Return the file and line that require a case to pass; empty if it need not pass."""
        for layer in self.layers:
            for pattern in layer.must_pass:
                if pattern.matches(case):
                    return f"must pass ({layer.path}:{pattern.line})"
        return ""

    def findings(
        self, cases: Sequence[str], backends: Sequence[BackendIdentity]
    ) -> tuple[Fault, ...]:
        """Return a fault for each entry that is duplicate, stale or expired.

        Args:
            cases: the ids of all cases of the run's targets, selected or not. An entry that matches
                none of these ids is stale, so the expectation files must be meant for these
                targets.
            backends: the tested backends. Entries for other backends are not checked.
        """
        faults: list[Fault] = []
        ids = (*cases, *OUTSIDE_IDS)
        for layer in self.layers:
            faults += _duplicates(layer)
            for entry in layer.entries:
                named = [backend for backend in backends if entry.names(backend)]
                faults += _unknown_versions(entry, named)
                if any(entry.applies_to(backend) for backend in named):
                    if entry.expired(self.today):
                        faults.append(Fault(entry.where, f"expired on {entry.expires}"))
                    faults += _unmatched(layer.path, entry.patterns, ids)
            faults += _unmatched(layer.path, layer.must_pass, ids)
        return tuple(faults)


def _like(written: str, name: str) -> str:
    """Return the pattern that a misspelt name of a backend should be; "" if it is not misspelt.

    If both names are paths with the same last component, such as ``exec:./adapter`` and
    ``exec:/opt/x/adapter``, the pattern is a glob that matches both.

    Args:
        written: the name in an expectation file.
        name: the name of the backend.
    """
    kind, colon, place = name.partition(":")
    written_kind, _, written_place = written.partition(":")
    last = _PATH_SEPARATORS.split(place)[-1]
    written_last = _PATH_SEPARATORS.split(written_place)[-1]
    if colon and kind == written_kind and last and last == written_last.lstrip("*"):
        return f"{kind}:*{last}"
    return name if nearest(name, [written], cutoff=0.9) else ""


def _duplicates(layer: Layer) -> Iterator[Fault]:
    """Yield a fault for each pattern that is repeated for the same backends and versions."""
    first: dict[tuple[str, str, str], int] = {}
    keyed = [
        ((pattern.text, entry.backend, entry.version), pattern)
        for entry in layer.entries
        for pattern in entry.patterns
    ]
    keyed += [((pattern.text, "must-pass", ""), pattern) for pattern in layer.must_pass]
    for key, pattern in keyed:
        if key in first:
            message = f"duplicate of line {first[key]}: {printable(pattern.text)}"
            yield Fault(f"{layer.path}:{pattern.line}", message)
        else:
            first[key] = pattern.line


def _unknown_versions(entry: Entry, backends: Sequence[BackendIdentity]) -> Iterator[Fault]:
    for backend in backends:
        if entry.version and not _version_number(backend):
            message = f"limited to {entry.version}, but {backend.name} does not report its version"
            yield Fault(entry.where, printable(message))


def _unmatched(path: Path, patterns: Sequence[Pattern], cases: Sequence[str]) -> Iterator[Fault]:
    for pattern in patterns:
        if any(map(pattern.matches, cases)):
            continue
        message = f"stale: {pattern.text} matches no case"
        if pattern.exact:
            suggestion = nearest(pattern.text, cases, cutoff=0.8)
            message = f"stale: no case is {pattern.text}{suggestion and f'; {suggestion}'}"
        yield Fault(f"{path}:{pattern.line}", printable(message))


def exit_code(
    results: Sequence[Result],
    problems: Sequence[Fault],
    findings: Sequence[Fault] = (),
    *,
    part: bool = False,
) -> int:
    """Return the exit code of a run: 0 if all results conform and all expectations hold.

    Args:
        results: the results of all cases on all backends. A case that was not run does not conform.
        problems: the faults of case files that contain no valid case.
        findings: the faults of entries of expectation files, from :meth:`Expectations.findings`.
        part: whether the results come from a shard. A shard may contain no applicable case.

    Returns:
        4 if a backend could not be started; 2 if a case is unexpectedly invalid; 1 if any other
        result does not conform; 5 if the run has no results, or if no case applies to some backend.
    """
    if any(result.not_started for result in results):
        return BackendUnavailable.exit_code
    unexpected = [result for result in results if not result.conforms]
    if problems or any(result.outcome is Outcome.INVALID for result in unexpected):
        return 2
    if unexpected or findings:
        return 1
    names = {result.backend for result in results}
    tried = {result.backend for result in results if result.outcome is not Outcome.SKIP}
    return 0 if part or (names and names == tried) else 5
