"""Making an expectation file say what a run has shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from onnxopt_cli.cases.yaml.yaml_syntax import yaml_text
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
    """Write the entries that a run calls for into an expectation file, and say what was done.

    Entries that still hold stay as they are. Stale and repeated ones are removed, an expired one
    loses its date if it is still needed, one that no longer holds is removed or gets another
    outcome, and what no entry speaks of gets an entry of its own.

    Args:
        path: the file; where it exists it is the last layer of the expectations.
        expectations: what the run was judged by.
        record: the run.
        ids: of all cases that the run's targets hold.

    Raises:
        UsageError: if the file cannot be written, or its entries do not stand on lines of their
            own.
    """
    name = printable(str(path))
    unread = any(it.outcome is Outcome.INVALID and not it.conforms for it in record.results)
    if record.problems or unread or any(it.outcome is Outcome.NOT_RUN for it in record.results):
        return f"{name} is not written: not every case could be run"
    others = tuple(layer for layer in expectations.layers if layer.path != path)
    known = next((layer for layer in expectations.layers if layer.path == path), None)
    before = known.text if known else ""
    update = _Update(others, known or parse_layer(_EMPTY, path), expectations, record, ids)
    try:
        update.tidy()
        update.adjust()
        update.pin()
    except FlowStyle:
        raise UsageError(
            f"cannot update {name}: its entries must stand on lines of their own",
            hint="write each entry as a list item with one field a line",
        ) from None
    if update.own.text == before:
        return f"{name} already says so"
    # The folder, since the file is replaced; whoever holds it for long does something else with it.
    with locked(path.absolute().parent, _LOCK_SECONDS):
        now = yaml_text(path) if path.exists() else ""
        if now != before:
            raise UsageError(
                f"{name} is not written: it changed while the run went on",
                hint="run it again; it then starts from what the file says now",
            )
        write_atomically(path, update.own.text.encode())
    done = ", ".join(f"{count} {what}" for what, count in update.done.items() if count)
    return f"{name} written: {done or 'the versions of the suites'}"


@dataclass(slots=True)
class _Update:
    """An expectation file on its way to what the run has shown."""

    others: tuple[Layer, ...]
    own: Layer
    expectations: Expectations
    record: RunRecord
    ids: Sequence[str]
    done: Counter[str] = field(default_factory=lambda: Counter(added=0, changed=0, removed=0))

    def tidy(self) -> None:
        """Remove what is stale, repeated, or expired and not needed."""
        edit = Edit(self.own)
        seen: set[tuple[str, str, str]] = set()
        for index, entry in enumerate(self.own.entries):
            meant = any(map(entry.applies_to, self.record.backends))
            kept = []
            for pattern in entry.patterns:
                key = pattern.text, entry.backend, entry.version
                stale = meant and not any(map(pattern.matches, (*self.ids, *OUTSIDE_IDS)))
                if key not in seen and not stale:
                    kept.append(pattern.text)
                seen.add(key)
            expired = meant and entry.expired(self.expectations.today)
            if not kept or (expired and not self._needed(entry)):
                edit.remove(index)
                self.done["removed"] += 1
                continue
            if len(kept) < len(entry.patterns):
                edit.set_field(index, "case", kept)
            if expired:
                edit.set_field(index, "expires", [])
            self.done["changed"] += expired or len(kept) < len(entry.patterns)
        self._apply(edit)

    def adjust(self) -> None:
        """Let every result be expected that may be."""
        edit = Edit(self.own)
        asked = replace(self.expectations, layers=(*self.others, self.own))
        spoken: dict[int, list[Result]] = {}
        missing: list[Result] = []
        for result in self.record.results:
            entry = asked.entry(result.case, self._backend(result))
            place = next((n for n, it in enumerate(self.own.entries) if it is entry), None)
            if place is not None:
                spoken.setdefault(place, []).append(result)
            elif self._wrong(result, asked):
                missing.append(result)
        for place, results in spoken.items():
            wrong = [result for result in results if self._wrong(result, asked)]
            words = {_word(result) for result in results}
            if len(wrong) < len(results) or len(words) > 1:
                missing += wrong
            elif all(self._conforms_without(place, result) for result in results):
                edit.remove(place)
                self.done["removed"] += 1
            else:
                edit.set_field(place, "outcome", sorted(words))
                self.done["changed"] += 1
        if missing:
            edit.append(
                [{"case": it.case, "backend": it.backend, "outcome": _word(it)} for it in missing]
            )
            self.done["added"] += len(missing)
        self._apply(edit)

    def pin(self) -> None:
        """Say which versions of suites the file is now written for."""
        pins = dict(it.text.split("@", 1) for it in self.own.suites)
        now = pins | {
            name.removeprefix(SUITE): version
            for name, version in self.record.versions.items()
            if name.startswith(SUITE)
        }
        if now != pins:
            edit = Edit(self.own)
            edit.pin([f"{suite}@{version}" for suite, version in sorted(now.items())])
            self.done["changed"] += bool(pins)
            self._apply(edit)

    def _apply(self, edit: Edit) -> None:
        if edit.changes:
            self.own = parse_layer(edit.text(), self.own.path)
            if self.own.errors:
                raise FlowStyle

    def _needed(self, entry: Entry) -> bool:
        """Tell whether an expired entry would still make a result expected."""
        return any(
            entry.speaks_of(result.case)
            and entry.applies_to(self._backend(result))
            and entry.allows(result)
            and not result.conforms
            for result in self.record.results
        )

    def _wrong(self, result: Result, asked: Expectations) -> bool:
        """Tell whether a result does not conform, and an entry could change that."""
        if asked.must_pass(result.case):
            return False
        return not asked.review(result, self._backend(result)).conforms

    def _conforms_without(self, place: int, result: Result) -> bool:
        entries = tuple(it for index, it in enumerate(self.own.entries) if index != place)
        layers = (*self.others, replace(self.own, entries=entries))
        asked = replace(self.expectations, layers=layers)
        return asked.review(result, self._backend(result)).conforms

    def _backend(self, result: Result) -> BackendIdentity:
        return next(it for it in self.record.backends if it.name == result.backend)


def _word(result: Result) -> str:
    return FLAKY if result.flaky else result.outcome.value
