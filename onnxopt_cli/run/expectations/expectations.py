"""What is expected of a run: how each result stands to it, and what the run exits with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path

from onnxopt_cli.cases.yaml.yaml_syntax import yaml_text
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
from onnxopt_cli.run.expectations.expectation_file import (
    Entry,
    Layer,
    Pattern,
    parse_layer,
    version_number,
)
from onnxopt_cli.suites.collect import require_version


@dataclass(frozen=True, slots=True)
class Expectations:
    """Expectation files, and the day on which they are asked.

    Of the entries that speak of a result, one of a later file precedes; in one file one that names
    the case alone by its id, then the last. An expired entry does not count.
    """

    layers: tuple[Layer, ...]
    today: date

    @classmethod
    def read(cls, paths: tuple[Path, ...]) -> Expectations:
        """Read files, later ones before earlier ones, as of today in UTC.

        Raises:
            UsageError: with everything that is wrong with the files.
        """
        layers: list[Layer] = []
        problems: list[Fault] = []
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
        return cls(tuple(layers), datetime.now(UTC).date())

    @property
    def hash(self) -> str:
        """A hash of the files' contents; empty if there are none."""
        if not self.layers:
            return ""
        from hashlib import blake2b

        texts = (layer.text.encode("utf-8", "surrogatepass") for layer in self.layers)
        digests = b"".join(blake2b(text).digest() for text in texts)
        return blake2b(digests, digest_size=16).hexdigest()

    def require_suites(self, suites: Mapping[str, str], beside: Path | None = None) -> None:
        """See that the files were written for these versions of suites.

        Args:
            suites: the versions of those that run.
            beside: a file that need not, as it is going to be updated.

        Raises:
            UsageError: naming the first that were not, and what to do.
        """
        for layer in self.layers:
            for pin in layer.suites if layer.path != beside else ():
                require_version(pin.text, suites, f"{layer.path}:{pin.line}")

    @property
    def without(self) -> dict[str, str]:
        """What the backends are not asked for, and why."""
        return {name: why for layer in self.layers for name, why in layer.without.items()}

    def near_misses(self, backends: Sequence[BackendIdentity]) -> Iterator[Fault]:
        """Yield entries that are for none of the backends, but for one that is called nearly so."""
        seen: set[tuple[Path, str]] = set()
        for layer in self.layers:
            for entry in layer.entries:
                if (layer.path, entry.backend) in seen or any(map(entry.names, backends)):
                    continue
                seen.add((layer.path, entry.backend))
                for backend in backends:
                    if pattern := _like(entry.backend, backend.name):
                        what = f"{entry.backend} is not {backend.name}; write {pattern}"
                        yield Fault(entry.where, printable(what))

    def review(self, result: Result, backend: BackendIdentity) -> Result:
        """Return the result with its standing, and with the entry that speaks of it.

        Without any file only what is flaky has a standing; what was not run never has.
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
        if entry is not None and entry.allows(result):
            standing = Standing.EXPECTED
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
        return replace(result, standing=standing, expectation=must_pass or str(entry or ""))

    def entry(self, case: str, backend: BackendIdentity) -> Entry | None:
        """Return the entry that speaks of a case on a backend, None if none does."""
        for layer in reversed(self.layers):
            found = [
                entry
                for entry in layer.entries
                if entry.speaks_of(case)
                and not entry.expired(self.today)
                and entry.applies_to(backend)
            ]
            if found:
                return next((entry for entry in reversed(found) if entry.sole), found[-1])
        return None

    def must_pass(self, case: str) -> str:
        """Say where it stands that a case must pass; empty if it may do something else."""
        for layer in self.layers:
            for pattern in layer.must_pass:
                if pattern.matches(case):
                    return f"must pass ({layer.path}:{pattern.line})"
        return ""

    def findings(
        self, cases: Sequence[str], backends: Sequence[BackendIdentity]
    ) -> tuple[Fault, ...]:
        """Return every entry that no longer holds, whatever the results are.

        Args:
            cases: ids of all cases that the run's targets hold, whether -k, --operator, --tag or
                --shard let them run or not. An entry of which none of them is meant is stale, so
                the targets have to be those that the files were written for.
            backends: what is under test; entries for other backends are not looked at.
        """
        found: list[Fault] = []
        known = (*cases, *OUTSIDE_IDS)
        for layer in self.layers:
            found += _repeated(layer)
            for entry in layer.entries:
                named = [backend for backend in backends if entry.names(backend)]
                found += _unknown_versions(entry, named)
                if any(entry.applies_to(backend) for backend in named):
                    if entry.expired(self.today):
                        found.append(Fault(entry.where, f"expired on {entry.expires}"))
                    found += _unmatched(layer.path, entry.patterns, known)
            found += _unmatched(layer.path, layer.must_pass, known)
        return tuple(found)


def _like(wanted: str, name: str) -> str:
    """Return what to write for a backend instead of a name that is nearly its own; empty if none.

    Where both are of one kind and end alike, as ``exec:./adapter`` and ``exec:/opt/x/adapter`` do,
    a glob for both.
    """
    kind, colon, place = name.partition(":")
    same_kind, _, other = wanted.partition(":")
    last, its_last = (_SEPARATORS.split(it)[-1] for it in (place, other))
    if colon and kind == same_kind and last and last == its_last.lstrip("*"):
        return f"{kind}:*{last}"
    return name if nearest(name, [wanted], cutoff=0.9) else ""


_SEPARATORS = re.compile(r"[/\\]")


def _repeated(layer: Layer) -> Iterator[Fault]:
    """Yield patterns that stand twice in a file, for the same backends and versions."""
    first: dict[tuple[str, str, str], int] = {}
    keyed = [
        ((pattern.text, entry.backend, entry.version), pattern)
        for entry in layer.entries
        for pattern in entry.patterns
    ]
    keyed += [((pattern.text, "must-pass", ""), pattern) for pattern in layer.must_pass]
    for key, pattern in keyed:
        if key in first:
            what = f"duplicate of line {first[key]}: {printable(pattern.text)}"
            yield Fault(f"{layer.path}:{pattern.line}", what)
        else:
            first[key] = pattern.line


def _unknown_versions(entry: Entry, backends: Sequence[BackendIdentity]) -> Iterator[Fault]:
    for backend in backends:
        if entry.version and not version_number(backend):
            what = f"limited to {entry.version}, but {backend.name} does not say its version"
            yield Fault(entry.where, printable(what))


def _unmatched(path: Path, patterns: Sequence[Pattern], cases: Sequence[str]) -> Iterator[Fault]:
    for pattern in patterns:
        if any(map(pattern.matches, cases)):
            continue
        what = f"stale: {pattern.text} matches no case"
        if pattern.exact:
            near = nearest(pattern.text, cases, cutoff=0.8)
            what = f"stale: no case is {pattern.text}{near and f'; {near}'}"
        yield Fault(f"{path}:{pattern.line}", printable(what))


def exit_code(
    results: Sequence[Result],
    problems: Sequence[Fault],
    findings: Sequence[Fault] = (),
    *,
    part: bool = False,
) -> int:
    """Return 0 only if every result conforms or is expected, and every expectation holds.

    Args:
        results: of all cases on all backends; what was not run does not conform.
        problems: what was wrong with case files that gave no case.
        findings: entries of expectation files that no longer hold.
        part: whether they are those of a shard, which may hold nothing that applies.

    Returns:
        4 if a backend could not be started, 2 if a case is invalid that is not expected to be, 1 if
        something else does not conform, 5 if no case applies to some backend, or there is none.
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
