"""Updating an expectation file from the results of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from glob import escape
from pathlib import Path
from typing import TypeAlias

from onnxopt_cli.cases.case import Case
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
from onnxopt_cli.run.expectations.covering_globs import covering_globs
from onnxopt_cli.run.expectations.expectation_edit import Edit, FlowStyle
from onnxopt_cli.run.expectations.expectation_file import (
    FLAKY,
    Entry,
    Layer,
    Pattern,
    parse_layer,
)
from onnxopt_cli.run.expectations.expectations import Expectations
from onnxopt_cli.run.judge import other_defect

_LOCK_SECONDS = 5.0
# If one cause has more combinations of wrong outputs, entries do not list wrong outputs.
_MAX_OUTPUT_SETS = 4
_MAX_REASON_CHARS = 200
# Fields of an entry that describe a failure, as pairs of the field's name and its words.
_Described: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
_EMPTY = "onnxopt-expect: 1\nexpect:\n"


def update_expectations(
    path: Path,
    expectations: Expectations,
    record: RunRecord,
    ids: Sequence[str],
    cases: Mapping[str, Case],
    causes: Mapping[tuple[str, str], str],
) -> str:
    """Update the entries of an expectation file to match a run, and return a summary.

    Valid entries are kept. Stale and duplicate entries are removed. An expired entry is removed, or
    loses its date if it is still needed. An entry that contradicts the results is removed or gets
    another outcome. For unexpected results without an entry, one entry per cause is added, with
    globs that match no other case of the run's targets.

    Args:
        path: the file to update; if it exists, it is the last file of the expectations.
        expectations: the expectations of the run.
        record: the run.
        ids: ids of all cases of the run's targets.
        cases: the cases of the run by id.
        causes: descriptions of the causes of failures, by backend and case.

    Raises:
        UsageError: if the file cannot be written, or several entries or fields share a line.
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
    except FlowStyle:
        raise UsageError(
            f"cannot update {name}: several entries or fields share a line",
            hint="write each entry as a list item with one field a line",
        ) from None
    if update.layer.text == before:
        return f"{name} is up to date"
    # Lock the folder: the file itself is replaced.
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
        """Remove stale and duplicate entries, and expired entries that are not needed."""
        edit = Edit(self.layer)
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
        """Change and add entries so that all results are expected, as far as possible."""
        edit = Edit(self.layer)
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
        # An existing entry that names a case by its id takes precedence over a new glob. Such a
        # case gets an entry of its own.
        edit, current = Edit(self.layer), self._current()
        still_missing = [
            result for result in self.record.results if self._is_unexpected(result, current)
        ]
        self._add(edit, still_missing, grouped=False)
        self._apply(edit)

    def _adjust_entry(
        self, edit: Edit, place: int, results: Sequence[Result], current: Expectations
    ) -> list[Result]:
        """Change or remove an entry, and return the results that need an entry of their own.

        Args:
            edit: collects the changes of the file.
            place: number of the entry.
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

    def _add(self, edit: Edit, results: Sequence[Result], *, grouped: bool = True) -> None:
        """Add entries for results: one for each cause or, if not grouped, one for each result."""
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
        """Yield an entry for the results of each backend with the same cause and outcome."""
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
        """Group results by the fields that describe their failure.

        The fields are the known mistakes that reproduce the failure, or the wrong outputs if other
        outputs are correct. If a cause has many combinations of wrong outputs, they are not listed.
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
        """Set the versions of suites for which the file is now written."""
        pins = dict(pattern.text.split("@", 1) for pattern in self.layer.suites)
        now = pins | {
            name.removeprefix(SUITE): version
            for name, version in self.record.versions.items()
            if name.startswith(SUITE)
        }
        if now != pins:
            edit = Edit(self.layer)
            edit.pin([f"{suite}@{version}" for suite, version in sorted(now.items())])
            self.done["changed"] += bool(pins)
            self._apply(edit)

    def _apply(self, edit: Edit) -> None:
        if edit.changes:
            self.layer = parse_layer(edit.text(), self.layer.path)
            if self.layer.errors:
                raise FlowStyle

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
        """Return whether a result does not conform, and an entry could change that."""
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
