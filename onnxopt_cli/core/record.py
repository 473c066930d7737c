"""A run as data, from which all reports are rendered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from onnxopt_cli.core.result import Result
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import Fault


@dataclass(frozen=True, slots=True)
class BackendIdentity:
    """A backend under test.

    Attributes:
        name: the user's name for it, or its specification: ``onnxruntime``,
            ``python:my.module:Backend``.
        version: the version that it reported: ``onnxruntime 1.31.1``; empty if unknown.
        specification: its specification; empty if that is the name.
    """

    name: str
    version: str
    specification: str = ""

    @property
    def text(self) -> str:
        """The backend as it is given to ``-b``."""
        return f"{self.name}={self.specification}" if self.specification else self.name


@dataclass(frozen=True, slots=True)
class Cause:
    """The cause of some failing cases of a backend in an operator.

    Attributes:
        found: description of the cause, without a count.
        cases: ids of the failing cases.
        known_mistakes: names of the known mistakes that together reproduce the failures; empty for
            a failure condition.
    """

    found: str
    cases: tuple[str, ...]
    known_mistakes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of a backend's failures in an operator.

    Attributes:
        backend: the backend's name.
        operator: the operator's name.
        causes: causes; each lists the failing cases that no earlier cause explains.
        others: number of failing cases without a cause, by state (``not explained``, ``not
            tried``), then by kind of case (``trajectory``).
        note: remark on an unsuccessful or interrupted search; may be empty.
        complete: False if the time ran out before the end of the search.
    """

    backend: str
    operator: str
    causes: tuple[Cause, ...] = ()
    others: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    note: str = ""
    complete: bool = True

    @property
    def known_mistakes(self) -> tuple[str, ...]:
        """The names of all known mistakes."""
        names = (name for cause in self.causes for name in cause.known_mistakes)
        return tuple(dict.fromkeys(names))

    @property
    def cases(self) -> tuple[str, ...]:
        """Ids of the failing cases that known mistakes reproduce."""
        return tuple(case for cause in self.causes if cause.known_mistakes for case in cause.cases)

    @property
    def is_unexamined(self) -> bool:
        """Whether the search ended before any known mistake was tried."""
        return not self.causes and not self.complete and self.others.keys() == {NOT_TRIED}

    @property
    def text(self) -> str:
        """One sentence for a reader; its counts add up to the number of failing cases."""
        others = {state: kinds for state, kinds in self.others.items() if kinds}
        total = sum(len(cause.cases) for cause in self.causes)
        total += sum(sum(kinds.values()) for kinds in others.values())
        counts = [(f"{cause.found}:", len(cause.cases)) for cause in self.causes]
        if self.causes and self.causes[0].known_mistakes:
            counts[0] = (f"consistent with {counts[0][0]}", counts[0][1])
        if not self.causes and (self.note or UNEXPLAINED in others):
            # The note takes the place of a cause.
            counts = [(self.note, sum(others.pop(UNEXPLAINED, {}).values()))]
        parts: list[str] = []
        for words, count in counts:
            if not count:
                parts.append(words)
            elif parts:
                parts.append(f"{words} {count}")
            elif total > 1:
                parts.append(f"{words} {count} of {total} failing cases")
            else:
                parts.append(f"{words} the failing case")
        parts += [f"{state}: {_listed(kinds)}" for state, kinds in others.items()]
        if self.causes and self.note:
            parts.append(self.note)
        return "; ".join(parts)


#: State of failing cases that no known mistake reproduces.
UNEXPLAINED = "not explained"
#: State of failing cases on which no known mistake was tried.
NOT_TRIED = "not tried"


#: Maximum number of kinds of cases that a sentence lists.
_MAX_KINDS = 4


def _listed(kinds: Mapping[str, int]) -> str:
    """Return ``1 large, 6 trajectories``; if there are many kinds, the rarest are summed up."""
    ordered = sorted(kinds.items(), key=lambda item: -item[1])
    named = ordered if len(ordered) <= _MAX_KINDS else ordered[: _MAX_KINDS - 1]
    remaining = sum(count for _, count in ordered[len(named) :])
    plurals = {"trajectory": "trajectories"}
    parts = [f"{count} {plurals.get(kind, kind) if count > 1 else kind}" for kind, count in named]
    return ", ".join([*parts, f"{remaining} others"] if remaining else parts)


#: In ``RunRecord.versions``, the prefix of keys that name suites.
SUITE = "suite "
#: In ``RunRecord.versions``, the key of the processor's model.
PROCESSOR = "processor"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run, finished or not.

    Attributes:
        versions: versions of onnxopt, Python, relevant packages and suites, and the machine.
        backends: the backends under test.
        options: settings of the run, from ``RunConfig.to_json``.
        results: results in the order of their arrival.
        problems: faults of case files from which no case could be loaded.
        findings: entries of expectation files that no longer apply: stale, expired, duplicate.
        explanations: explanations of failures.
        exit_code: the exit code; None for an unfinished run.
        started: start in UTC: ``2026-01-31T23:59:59.012345Z``; empty if unknown.
        ended: end in UTC, in the same form; empty for an unfinished run and if unknown.
        hostname: name of the machine; empty if unknown.
        origin: commit, branch and job of a run on a CI server; may be empty.
        left_out: for each excluded capability, the number of cases that need it and the reason.

    Raises:
        ValueError: if two results have the same case and backend, or two backends the same name,
            since a report could not distinguish them.
    """

    versions: Mapping[str, str]
    backends: tuple[BackendIdentity, ...]
    options: Mapping[str, Any]
    results: tuple[Result, ...]
    problems: tuple[Fault, ...] = ()
    findings: tuple[Fault, ...] = ()
    explanations: tuple[Explanation, ...] = ()
    exit_code: int | None = None
    started: str = ""
    ended: str = ""
    hostname: str = ""
    origin: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_once(backend.name for backend in self.backends)
        require_once((result.case, result.backend) for result in self.results)


def require_once(keys: Iterable[object]) -> None:
    """Make sure that keys are unique.

    Raises:
        ValueError: naming the first duplicate.
    """
    unique: set[object] = set()
    for key in keys:
        if key in unique:
            raise ValueError(f"found {printable(str(key))} twice")
        unique.add(key)
