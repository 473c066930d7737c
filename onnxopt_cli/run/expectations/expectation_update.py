"""Updating an expectation file from the results of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from onnxopt_cli.cases.yaml.yaml_syntax import read_source
from onnxopt_cli.core.files import write_atomically
from onnxopt_cli.core.locks import locked
from onnxopt_cli.core.record import (
    SUITE,
    BackendIdentity,
    RunRecord,
)
from onnxopt_cli.core.result import (
    OUTSIDE_IDS,
    Outcome,
    Result,
)
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import UsageError
from onnxopt_cli.run.expectations.expectation_edit import Edit, FlowStyle
from onnxopt_cli.run.expectations.expectation_file import (
    FLAKY,
    Entry,
    Layer,
    parse_layer,
)
from onnxopt_cli.run.expectations.expectations import Expectations

_LOCK_SECONDS = 5.0
_EMPTY = "onnxopt-expect: 1\nexpect:\n"


def update_expectations(
    path: Path, expectations: Expectations, record: RunRecord, ids: Sequence[str]
) -> str:
    """Update the entries of an expectation file to match a run, and return a summary.

    Valid entries are kept. Stale and duplicate entries are removed; an expired entry loses its date
    if it is still needed; an entry that no longer holds is removed or gets another outcome; an
    unexpected result without an entry gets a new one.

    Args:
        path: the file; if it exists, it is the last layer of the expectations.
        expectations: the expectations of the run.
        record: the run.
        ids: ids of all cases of the run's targets.

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
    update = _Update(other_layers, existing or parse_layer(_EMPTY, path), expectations, record, ids)
    try:
        update.tidy()
        update.adjust()
        update.pin()
    except FlowStyle:
        raise UsageError(
            f"cannot update {name}: its entries must stand on lines of their own",
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
    done: Counter[str] = field(default_factory=lambda: Counter(added=0, changed=0, removed=0))

    def tidy(self) -> None:
        """Remove stale and duplicate entries, and expired ones that are not needed."""
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
        current = replace(self.expectations, layers=(*self.other_layers, self.layer))
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
            unexpected = [result for result in results if self._is_unexpected(result, current)]
            words = {_word(result) for result in results}
            if len(unexpected) < len(results) or len(words) > 1:
                missing += unexpected
            elif all(self._conforms_without(place, result) for result in results):
                edit.remove(place)
                self.done["removed"] += 1
            else:
                edit.set_field(place, "outcome", sorted(words))
                self.done["changed"] += 1
        if missing:
            edit.append(
                [
                    {"case": result.case, "backend": result.backend, "outcome": _word(result)}
                    for result in missing
                ]
            )
            self.done["added"] += len(missing)
        self._apply(edit)

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
            entry.speaks_of(result.case)
            and entry.applies_to(self._backend(result))
            and entry.allows(result)
            and not result.conforms
            for result in self.record.results
        )

    def _is_unexpected(self, result: Result, current: Expectations) -> bool:
        """Return whether a result does not conform, and an entry could change that."""
        if current.must_pass(result.case):
            return False
        return not current.review(result, self._backend(result)).conforms

    def _conforms_without(self, place: int, result: Result) -> bool:
        entries = tuple(entry for index, entry in enumerate(self.layer.entries) if index != place)
        layers = (*self.other_layers, replace(self.layer, entries=entries))
        expectations = replace(self.expectations, layers=layers)
        return expectations.review(result, self._backend(result)).conforms

    def _backend(self, result: Result) -> BackendIdentity:
        backends = self.record.backends
        return next(backend for backend in backends if backend.name == result.backend)


def _word(result: Result) -> str:
    return FLAKY if result.flaky else result.outcome.value
