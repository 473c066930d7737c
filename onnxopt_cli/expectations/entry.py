"""One entry of an expectation file: of which results it speaks, and what it allows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase

from onnxopt_cli.core.outcome import Outcome
from onnxopt_cli.core.record import BackendIdentity
from onnxopt_cli.core.result import Result

#: The word for an outcome that cannot be relied on.
FLAKY = "flaky"

_GLOB = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class Pattern:
    """An id, or a glob over ids, and the line where it stands."""

    text: str
    line: int

    @property
    def exact(self) -> bool:
        """True if this is no glob."""
        return not _GLOB & set(self.text)

    def matches(self, case: str) -> bool:
        """Tell whether an id is meant; letter case matters."""
        return case == self.text or (not self.exact and fnmatchcase(case, self.text))


@dataclass(frozen=True, slots=True)
class Entry:
    """What is expected of some cases on some backends.

    Attributes:
        where: the file and line.
        patterns: the cases.
        backend: a glob over names of backends.
        version: a range of versions of the backend, as ``packaging`` has it; empty for all.
        outcomes: words that are allowed: outcomes, and :data:`FLAKY`.
        reason: why, in words.
        issue: where it is dealt with.
        expires: the first day on which the entry does not count.
    """

    where: str
    patterns: tuple[Pattern, ...]
    backend: str
    version: str
    outcomes: frozenset[str]
    reason: str = ""
    issue: str = ""
    expires: date | None = None

    @property
    def sole(self) -> bool:
        """True if this speaks of one case by its id; such an entry precedes others of its file."""
        return len(self.patterns) == 1 and self.patterns[0].exact

    def speaks_of(self, case: str) -> bool:
        """Tell whether an id is one of the cases."""
        return any(pattern.matches(case) for pattern in self.patterns)

    def applies_to(self, backend: BackendIdentity) -> bool:
        """Tell whether a backend is meant; one whose version is unknown is in no range."""
        if not self.names(backend):
            return False
        if not self.version:
            return True
        from packaging.specifiers import SpecifierSet

        known = version_number(backend)
        return bool(known) and SpecifierSet(self.version).contains(known, prereleases=True)

    def names(self, backend: BackendIdentity) -> bool:
        """Tell whether a backend is meant by name."""
        return backend.name == self.backend or fnmatchcase(backend.name, self.backend)

    def expired(self, today: date) -> bool:
        """Tell whether the entry no longer counts."""
        return self.expires is not None and today >= self.expires

    def allows(self, result: Result) -> bool:
        """Tell whether a result is one of those expected; what may be flaky may also pass."""
        outcome = result.outcome.value
        if result.flaky:
            return FLAKY in self.outcomes or {Outcome.PASS.value, outcome} <= self.outcomes
        if outcome in self.outcomes:
            return True
        return result.outcome is Outcome.PASS and FLAKY in self.outcomes

    def __str__(self) -> str:
        parts = [f"expected {' or '.join(sorted(self.outcomes))} ({self.where})"]
        parts += [part for part in (self.reason, self.issue) if part]
        return ": ".join(parts[:2]) + "".join(f", {part}" for part in parts[2:])


def version_number(backend: BackendIdentity) -> str:
    """Return the number in a backend's version, as in ``onnxruntime 1.31.1``; empty if unknown."""
    from packaging.version import InvalidVersion, Version

    number = backend.version.rpartition(" ")[2]
    try:
        return str(Version(number))
    except InvalidVersion:
        return ""
