"""Updating an expectation file from the results of a run."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path
from typing import TypeAlias

from onnxopt_cli.cases.case import Case
from onnxopt_cli.cases.yaml.case_writer import text_token
from onnxopt_cli.cases.yaml.yaml_syntax import read_source
from onnxopt_cli.core.files import write_atomically
from onnxopt_cli.core.locks import locked
from onnxopt_cli.core.record import (
    SUITE,
    BackendIdentity,
    RunRecord,
)
from onnxopt_cli.core.result import (
    HARMLESS,
    OUTSIDE_IDS,
    Outcome,
    Result,
)
from onnxopt_cli.core.text import clipped, printable
from onnxopt_cli.errors import UsageError
from onnxopt_cli.run.expectations.expectations import (
    FLAKY,
    Entry,
    Expectations,
    Layer,
    Pattern,
    parse_layer,
)
from onnxopt_cli.run.judge import other_defect

_LOCK_SECONDS = 5.0
# If the failures of a cause have more combinations of wrong outputs than this, the entries do not
# list the wrong outputs.
_MAX_OUTPUT_SETS = 4
_MAX_REASON_CHARS = 200
# The fields of an entry that describe a failure: pairs of a name and a list of words.
_Described: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
_EMPTY = "onnxopt-expect: 1\nexpect:\n"
_COMMENT = re.compile(r"\s+#.*$")
_LIST = "expect"
# The largest number of characters of a list on a single line. A longer list has one item per line.
_MAX_LIST_CHARS = 60
# A top-level field of the file.
_TOP = re.compile(r"[A-Za-z-]+\s*:")
#: A glob must match at least this number of ids. For fewer ids, a list of ids is clearer.
MIN_MATCHES = 3
_SEPARATOR = re.compile(r"[/_.\-]")
# No globs are derived from an id with more separators than this, because the number of globs grows
# quadratically.
_MAX_SEPARATORS = 24


def update_expectations(
    path: Path,
    expectations: Expectations,
    record: RunRecord,
    ids: Sequence[str],
    cases: Mapping[str, Case],
    causes: Mapping[tuple[str, str], str],
) -> str:
    """Update the entries of an expectation file to match a run, and return a summary.

    - An entry that agrees with the results is kept.
    - A stale or duplicate entry is removed.
    - An expired entry loses its date if it is still needed, and is removed otherwise.
    - An entry that contradicts the results is removed, or gets another outcome.
    - Unexpected results without an entry get one new entry for each cause. Its globs match the
      cases with this cause, and no other case of the run's targets.

    Args:
        path: the file to update. If it exists, it is the last file from which ``expectations`` was
            read.
        expectations: the expectations of the run.
        record: the run.
        ids: ids of all cases of the run's targets.
        cases: the cases of the run by id.
        causes: by backend and case, descriptions of the causes of failures.

    Raises:
        UsageError: if the file cannot be written, or if several entries or fields share a line.
    """
    name = printable(str(path))
    invalid = any(
        result.outcome is Outcome.INVALID and not result.conforms for result in record.results
    )
    not_run = any(result.outcome is Outcome.NOT_RUN for result in record.results)
    if record.problems or invalid or not_run:
        return f"{name} is not written: not every case could be run"
    other_layers = tuple(layer for layer in expectations.layers if layer.path != path)
    existing = next((layer for layer in expectations.layers if layer.path == path), None)
    before = existing.text if existing else ""
    layer = existing or parse_layer(_EMPTY, path)
    update = _Update(other_layers, layer, expectations, record, ids, cases, causes)
    try:
        update.tidy()
        update.adjust()
        update.pin()
    except _FlowStyle:
        raise UsageError(
            f"cannot update {name}: several entries or fields share a line",
            hint="write each entry as a list item with one field a line",
        ) from None
    if update.layer.text == before:
        return f"{name} is up to date"
    # Lock the folder, because the file itself is replaced.
    with locked(path.absolute().parent, _LOCK_SECONDS):
        now = read_source(path) if path.exists() else ""
        if now != before:
            raise UsageError(
                f"{name} is not written: it changed during the run",
                hint="run again to update the new content",
            )
        write_atomically(path, update.layer.text.encode())
    counts = ", ".join(f"{count} {change}" for change, count in update.done.items() if count)
    return f"{name} written: {counts or 'the versions of the suites'}"


@dataclass(slots=True)
class _Update:
    """The update of one expectation file."""

    other_layers: tuple[Layer, ...]
    layer: Layer
    expectations: Expectations
    record: RunRecord
    ids: Sequence[str]
    cases: Mapping[str, Case]
    causes: Mapping[tuple[str, str], str]
    mistakes: dict[tuple[str, str], tuple[str, ...]] = field(init=False)
    done: Counter[str] = field(default_factory=lambda: Counter(added=0, changed=0, removed=0))

    def __post_init__(self) -> None:
        self.mistakes = {
            (explanation.backend, case): cause.known_mistakes
            for explanation in self.record.explanations
            for cause in explanation.causes
            for case in cause.cases
        }

    def tidy(self) -> None:
        """Remove stale and duplicate entries, and expired entries that are no longer needed."""
        edit = _Edit(self.layer)
        seen: set[tuple[str, str, str]] = set()
        for index, entry in enumerate(self.layer.entries):
            applies = any(map(entry.applies_to, self.record.backends))
            cases = []
            for pattern in entry.patterns:
                key = pattern.text, entry.backend, entry.version
                stale = applies and not any(map(pattern.matches, (*self.ids, *OUTSIDE_IDS)))
                if key not in seen and not stale:
                    cases.append(pattern.text)
                seen.add(key)
            expired = applies and entry.expired(self.expectations.today)
            if not cases or (expired and not self._needed(entry)):
                edit.remove(index)
                self.done["removed"] += 1
                continue
            if len(cases) < len(entry.patterns):
                edit.set_field(index, "case", cases)
            if expired:
                edit.set_field(index, "expires", [])
            self.done["changed"] += expired or len(cases) < len(entry.patterns)
        self._apply(edit)

    def adjust(self) -> None:
        """Change and add entries so that as many results as possible are expected."""
        edit = _Edit(self.layer)
        current = self._current()
        places = {id(entry): place for place, entry in enumerate(self.layer.entries)}
        by_place: dict[int, list[Result]] = {}
        missing: list[Result] = []
        for result in self.record.results:
            entry = current.entry(result.case, self._backend(result))
            place = places.get(id(entry))
            if place is not None:
                by_place.setdefault(place, []).append(result)
            elif self._is_unexpected(result, current):
                missing.append(result)
        for place, results in by_place.items():
            missing += self._adjust_entry(edit, place, results, current)
        self._add(edit, missing)
        self._apply(edit)
        # An existing entry that names a case by its id takes precedence over a new glob. If a
        # result is therefore still unexpected, it gets a new entry that names only its id.
        edit, current = _Edit(self.layer), self._current()
        still_missing = [
            result for result in self.record.results if self._is_unexpected(result, current)
        ]
        self._add(edit, still_missing, grouped=False)
        self._apply(edit)

    def _adjust_entry(
        self, edit: _Edit, place: int, results: Sequence[Result], current: Expectations
    ) -> list[Result]:
        """Change or remove an entry, and return the results that need an entry of their own.

        Args:
            edit: collects the changes of the file.
            place: the number of the entry.
            results: the results to which the entry applies.
            current: the expectations before the changes.
        """
        entry = self.layer.entries[place]
        unexpected = [result for result in results if self._is_unexpected(result, current)]
        if not unexpected:
            return []
        needed = [result for result in unexpected if not self._conforms_without(place, result)]
        words = {_word(result) for result in results}
        if len(unexpected) == len(results):
            if not needed or entry.mistakes or entry.outputs:
                # The entry describes another failure, or it is not needed.
                edit.remove(place)
                self.done["removed"] += 1
                return needed
            if len(words) == 1:
                edit.set_field(place, "outcome", sorted(words))
                self.done["changed"] += 1
                return []
        expected = {result.case for result in results} - {result.case for result in unexpected}
        kept: list[Pattern] = []
        dropped: list[Pattern] = []
        for pattern in entry.patterns:
            holds = any(map(pattern.matches, expected))
            unused = not any(pattern.matches(result.case) for result in results)
            (kept if holds or unused else dropped).append(pattern)
        if not kept or not dropped:
            return unexpected
        edit.set_field(place, "case", [pattern.text for pattern in kept])
        self.done["changed"] += 1
        needed_ids = {result.case for result in needed}
        return [
            result
            for result in unexpected
            if result.case in needed_ids or any(pattern.matches(result.case) for pattern in kept)
        ]

    def _add(self, edit: _Edit, results: Sequence[Result], *, grouped: bool = True) -> None:
        """Add entries for results: one entry per cause or, if not ``grouped``, one per result."""
        entries = [*self._grouped(results)] if grouped else [*map(self._plain_entry, results)]
        if entries:
            edit.append(entries)
            self.done["added"] += len(entries)

    def _plain_entry(self, result: Result) -> dict[str, list[str]]:
        return {
            "case": [escape(result.case)],
            "backend": [result.backend],
            "outcome": [_word(result)],
        }

    def _grouped(self, results: Sequence[Result]) -> Iterator[dict[str, list[str]]]:
        """Yield an entry for each group of results with the same backend, cause and outcome."""
        groups: dict[tuple[str, str, str], list[Result]] = {}
        for result in results:
            cause = "" if result.outcome in HARMLESS else self._cause(result)
            groups.setdefault((result.backend, _word(result), cause), []).append(result)
        ids = (*self.ids, *OUTSIDE_IDS)
        for (backend, word, cause), group in groups.items():
            for described, members in self._described(group).items():
                cases = covering_globs([result.case for result in members], ids)
                entry = {"case": cases, "backend": [backend], "outcome": [word]}
                entry |= {name: [*words] for name, words in described}
                yield entry | ({"reason": [cause]} if cause else {})

    def _described(self, results: Sequence[Result]) -> dict[_Described, list[Result]]:
        """Group results by the entry fields that describe their failures.

        The fields name the known mistakes that reproduce the failure. Without such mistakes, the
        fields name the wrong outputs; if all outputs are wrong, they name none. If a cause has many
        combinations of wrong outputs, the outputs are not listed.
        """
        groups: dict[_Described, list[Result]] = {}
        for result in results:
            groups.setdefault(self._description(result), []).append(result)
        if sum(any(name == "outputs" for name, _ in key) for key in groups) <= _MAX_OUTPUT_SETS:
            return groups
        merged: dict[_Described, list[Result]] = {}
        for described, members in groups.items():
            key = tuple(field for field in described if field[0] != "outputs")
            merged.setdefault(key, []).extend(members)
        return merged

    def _description(self, result: Result) -> _Described:
        if result.outcome is not Outcome.FAIL or result.flaky or other_defect(result):
            return ()
        names = self.mistakes.get((result.backend, result.case), ())
        if names and not self._current().unlike_mistakes(
            self.cases.get(result.case), result, names
        ):
            return (("mistake", names),)
        wrong = tuple(diff.name for diff in result.wrong)
        return (("outputs", wrong),) if 0 < len(wrong) < len(result.diffs) else ()

    def _cause(self, result: Result) -> str:
        cause = " ".join(self.causes.get((result.backend, result.case), "").split())
        return clipped(cause, _MAX_REASON_CHARS)

    def pin(self) -> None:
        """Write the versions of the suites that the run used into the file."""
        pins = dict(pattern.text.split("@", 1) for pattern in self.layer.suites)
        now = pins | {
            name.removeprefix(SUITE): version
            for name, version in self.record.versions.items()
            if name.startswith(SUITE)
        }
        if now != pins:
            edit = _Edit(self.layer)
            edit.pin([f"{suite}@{version}" for suite, version in sorted(now.items())])
            self.done["changed"] += bool(pins)
            self._apply(edit)

    def _apply(self, edit: _Edit) -> None:
        if edit.changes:
            self.layer = parse_layer(edit.text(), self.layer.path)
            if self.layer.errors:
                raise _FlowStyle

    def _needed(self, entry: Entry) -> bool:
        """Return whether an expired entry would still make a result expected."""
        return any(
            entry.matches(result.case)
            and entry.applies_to(self._backend(result))
            and entry.allows(result)
            and not result.conforms
            for result in self.record.results
        )

    def _current(self) -> Expectations:
        return replace(self.expectations, layers=(*self.other_layers, self.layer))

    def _is_unexpected(self, result: Result, current: Expectations) -> bool:
        """Return whether a result does not conform, but would do so with a suitable entry."""
        if current.must_pass(result.case):
            return False
        return not self._review(current, result).conforms

    def _conforms_without(self, place: int, result: Result) -> bool:
        entries = tuple(entry for index, entry in enumerate(self.layer.entries) if index != place)
        layers = (*self.other_layers, replace(self.layer, entries=entries))
        return self._review(replace(self.expectations, layers=layers), result).conforms

    def _review(self, expectations: Expectations, result: Result) -> Result:
        case = self.cases.get(result.case)
        return expectations.review(result, self._backend(result), case)

    def _backend(self, result: Result) -> BackendIdentity:
        backends = self.record.backends
        return next(backend for backend in backends if backend.name == result.backend)


def _word(result: Result) -> str:
    return FLAKY if result.flaky else result.outcome.value


class _FlowStyle(Exception):
    """Several entries or fields share a line, so they cannot be edited separately."""


class _Edit:
    """Collects changes to one file, and applies all of them together.

    All unchanged text keeps its order, comments and formatting. A YAML library would write the
    whole document and lose comments and formatting.

    Attributes:
        changes: for each change, its first line (counted from 0), the line after its last line, and
            the new lines.
    """

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self._lines = layer.text.splitlines()
        self.changes: list[tuple[int, int, list[str]]] = []

    def remove(self, index: int) -> None:
        """Remove an entry.

        The comment above the entry is removed as well, unless another entry follows directly.

        Raises:
            _FlowStyle: if the entry shares a line with another.
        """
        start, end = self._span(index)
        if end == len(self._lines) or not self._has_content(end):
            while start and self._is_comment(start - 1):
                start -= 1
            blank = start and not self._lines[start - 1].strip()
            if blank and (end == len(self._lines) or not self._lines[end].strip()):
                start -= 1
        self.changes.append((start, end, []))

    def set_field(self, index: int, name: str, words: Sequence[str]) -> None:
        """Replace the value of an existing field by one word or a list of words.

        Without words, the field is removed.

        Raises:
            _FlowStyle: if the field shares a line with another.
        """
        start, end = self._field_span(index, name)
        head = re.match(r"(\s*)(- +)?" + re.escape(name) + r"\s*:", self._lines[start])
        if head is None or (head[2] and not words):
            raise _FlowStyle
        comment = _COMMENT.search(self._lines[start][head.end() :])
        tail = comment.group() if comment else ""
        value, *items = _value(words, head[1] + " " * len(head[2] or "")) if words else [""]
        line = f"{head.group()}{value}{tail}"
        self.changes.append((start, end, [line, *items] if words else []))

    def append(self, entries: Sequence[Mapping[str, Sequence[str]]]) -> None:
        """Add entries after the last entry; an entry maps the names of its fields to their words.

        Raises:
            _FlowStyle: if entries share a line.
        """
        indent = "  "
        head: list[str] = []
        if self._layer.entries:
            start, place = self._span(-1)
            indent = _indent(self._lines[start])
        else:
            place, head = self._empty_list()
        block = []
        for entry in entries:
            for number, (name, words) in enumerate(entry.items()):
                value, *items = _value(words, f"{indent}  ")
                block.append(f"{indent}{'- ' if number == 0 else '  '}{name}:{value}")
                block += items
        self.changes.append((place, place, head + block))

    def pin(self, suites: Sequence[str]) -> None:
        """Set the versions of suites to which the file applies."""
        new_line = f"suites: [{', '.join(map(json.dumps, suites))}]"
        count = len(self._lines)
        keys = [number for number, line in enumerate(self._lines) if _TOP.match(line)]
        start = next((key for key in keys if self._lines[key].startswith("suites")), count)
        end = next((key for key in keys if key > start), count)
        if start == end:
            # The first key states the version of the format. Insert the new line after this key.
            start = end = (keys[0] if keys else -1) + 1
        self.changes.append((start, end, [new_line]))

    def text(self) -> str:
        """Return the changed text."""
        lines = list(self._lines)
        # Apply the changes from the last line to the first, so that the numbers of earlier lines
        # remain valid.
        for start, end, new in sorted(self.changes, key=lambda change: change[:2], reverse=True):
            lines[start:end] = new
        line_end = "\r\n" if "\r\n" in self._layer.text else "\n"
        return "".join(f"{line}{line_end}" for line in lines)

    def _empty_list(self) -> tuple[int, list[str]]:
        """Return where to insert the first entries, and the lines to insert before them."""
        for number, line in enumerate(self._lines):
            if head := re.match(rf"{_LIST}\s*:", line):
                if line[head.end() :].strip().startswith("["):
                    self._lines[number] = head.group()
                return number + 1, []
        return len(self._lines), [f"{_LIST}:"]

    def _span(self, index: int) -> tuple[int, int]:
        """Return the first line of an entry (counted from 0) and the line after its last line."""
        starts = [entry.node.line - 1 for entry in self._layer.entries]
        start = starts[index]
        if not self._lines[start].lstrip().startswith("- ") or starts.count(start) > 1:
            raise _FlowStyle
        indent = len(_indent(self._lines[start]))
        end = start + 1
        while end < len(self._lines) and (
            not self._has_content(end) or len(_indent(self._lines[end])) > indent
        ):
            end += 1
        return start, self._end(start, end)

    def _field_span(self, index: int, name: str) -> tuple[int, int]:
        _, end = self._span(index)
        entry = self._layer.entries[index].node
        node = entry.field(name)
        lines = sorted(field.line - 1 for field in (entry.fields or {}).values())
        if node is None or lines.count(node.line - 1) != 1:
            raise _FlowStyle
        start = node.line - 1
        return start, self._end(start, next((line for line in lines if line > start), end))

    def _end(self, start: int, following: int) -> int:
        """Return the line after the last content line of a range."""
        while following > start + 1 and not self._has_content(following - 1):
            following -= 1
        return following

    def _has_content(self, line: int) -> bool:
        """Return whether a line is neither blank nor a comment."""
        return bool(self._lines[line].strip()) and not self._is_comment(line)

    def _is_comment(self, line: int) -> bool:
        return self._lines[line].lstrip().startswith("#")


def _value(words: Sequence[str], indent: str) -> list[str]:
    """Return the text after the name of a field; for a long list, also the lines of its items."""
    tokens = list(map(text_token, words))
    if len(tokens) == 1:
        return [f" {tokens[0]}"]
    listed = f" [{', '.join(tokens)}]"
    if len(listed) <= _MAX_LIST_CHARS:
        return [listed]
    return ["", *(f"{indent}  - {token}" for token in tokens)]


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" "))]


def covering_globs(ids: Sequence[str], others: Collection[str]) -> list[str]:
    """Return globs and ids that together match the given ids and no other ids.

    A glob consists of a prefix, one ``*`` and possibly a suffix, as in ``suite/adam/*_double``. The
    prefix ends with a separator of words, and the suffix begins with one. Listing all globs that
    match an id is faster than comparing every glob with every id.

    Args:
        ids: the ids to match.
        others: ids that no pattern may match, except those that are also among ``ids``.

    Returns:
        The patterns, ordered by the first id that each of them matches. Special characters of ids
        are escaped.
    """
    places = {case: place for place, case in enumerate(ids)}
    matched: dict[str, set[str]] = defaultdict(set)
    for case in places:
        for glob in _globs(case):
            matched[glob].add(case)
    matched = {glob: cases for glob, cases in matched.items() if len(cases) >= MIN_MATCHES}
    for case in others:
        if case not in places:
            # For an id with too many separators, _globs() is empty, so try every glob.
            for glob in _globs(case) or [glob for glob in matched if fnmatchcase(case, glob)]:
                matched.pop(glob, None)
    patterns: dict[str, int] = {}
    uncovered = set(places)
    while matched:
        # If several globs match the same number of ids, the longest is the most specific.
        glob = max(matched, key=lambda glob: (len(matched[glob]), len(glob), glob))
        patterns[glob] = min(map(places.__getitem__, matched[glob]))
        uncovered -= matched[glob]
        unmatched = {glob: cases & uncovered for glob, cases in matched.items()}
        matched = {glob: cases for glob, cases in unmatched.items() if len(cases) >= MIN_MATCHES}
    patterns |= {escape(case): places[case] for case in uncovered}
    return sorted(patterns, key=patterns.__getitem__)


def _globs(case: str) -> list[str]:
    """Return all globs with one ``*`` that match an id; empty if the id has too many separators."""
    places = [match.start() for match in _SEPARATOR.finditer(case)]
    return [*_at(case, places)] if len(places) <= _MAX_SEPARATORS else []


def _at(case: str, places: Sequence[int]) -> Iterator[str]:
    """Yield the globs that match an id, given the positions of its separators."""
    for number, start in enumerate(places):
        prefix = f"{escape(case[: start + 1])}*"
        yield prefix
        for end in places[number + 1 :]:
            yield prefix + escape(case[end:])
