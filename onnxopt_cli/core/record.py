"""A whole run as data: what every report is rendered from, live or from a log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from onnxopt_cli.core.result import Result
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import Fault


@dataclass(frozen=True, slots=True)
class BackendIdentity:
    """A backend as the user asked for it, and the implementation that answered.

    Attributes:
        name: ``onnxruntime``, ``python:my.module:Backend``.
        version: ``onnxruntime 1.31.1``; empty if unknown.
    """

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class Cause:
    """What accounts for some failing cases of a backend in an operator.

    Attributes:
        found: it in words, without a count.
        cases: ids of the failing cases.
        known_mistakes: names of the known mistakes that together reproduce them; empty if the words
            only say what the cases have in common.
    """

    found: str
    cases: tuple[str, ...]
    known_mistakes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """What accounts for the failures of a backend in an operator, as far as that is known.

    Attributes:
        backend: the backend's name.
        operator: the operator's name.
        causes: each with the failing cases that no earlier one accounts for.
        others: how many other failing cases there are: by what became of them (``not explained``,
            ``not tried``), then by their kind (``trajectory``).
        note: what was looked for in vain, or where the search was stopped; may be empty.
        complete: False if the time was over before everything was tried.
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
        return tuple(dict.fromkeys(name for it in self.causes for name in it.known_mistakes))

    @property
    def cases(self) -> tuple[str, ...]:
        """Ids of the failing cases that known mistakes reproduce."""
        return tuple(case for it in self.causes if it.known_mistakes for case in it.cases)

    @property
    def text(self) -> str:
        """One sentence for a reader; its counts add up to the failing cases."""
        rest = {what: kinds for what, kinds in self.others.items() if kinds}
        counts = [(it.found + ":", len(it.cases)) for it in self.causes]
        if self.causes and self.causes[0].known_mistakes:
            counts[0] = (f"consistent with {counts[0][0]}", counts[0][1])
        total = sum(count for _, count in counts)
        total += sum(sum(kinds.values()) for kinds in rest.values())
        if not counts and (self.note or UNEXPLAINED in rest):
            counts = [(self.note, sum(rest.pop(UNEXPLAINED, {}).values()))]
        said = [f"{words} {count}" if count else words for words, count in counts]
        if counts and counts[0][1]:
            whole = f"{said[0]} of {total} failing cases"
            said[0] = whole if total > 1 else f"{counts[0][0]} the failing case"
        said += [f"{what}: {_listed(kinds)}" for what, kinds in rest.items()]
        if self.causes and self.note:
            said.append(self.note)
        return "; ".join(said)


#: What is said of failing cases that were tried in vain.
UNEXPLAINED = "not explained"


#: Kinds that are listed by name; more of them would not fit into a line.
_KINDS = 4


def _listed(kinds: Mapping[str, int]) -> str:
    """Return ``1 large, 6 trajectories``; the rarest kinds together, where there are many."""
    ordered = sorted(kinds.items(), key=lambda item: -item[1])
    whole = ordered if len(ordered) <= _KINDS else ordered[: _KINDS - 1]
    left = sum(count for _, count in ordered[len(whole) :])
    plurals = {"trajectory": "trajectories"}
    parts = [f"{n} {plurals.get(kind, kind) if n > 1 else kind}" for kind, n in whole]
    return ", ".join([*parts, f"{left} others"] if left else parts)


#: How the name of a suite begins among the versions of a run.
SUITE = "suite "


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run, finished or not.

    Attributes:
        versions: of onnxopt, Python, the packages that matter, the suites, and the machine.
        backends: what was under test.
        options: the settings of the run, as RunConfig.to_json writes them.
        results: in the order in which they came.
        problems: what was wrong with case files that gave no case.
        findings: entries of expectation files that no longer hold: stale, expired, duplicate.
        explanations: of failures, where one was looked for.
        exit_code: what the run exited with; None if it did not finish.
        started: when, in UTC: ``2026-01-31T23:59:59.012345Z``; empty if unknown.
        hostname: of the machine that ran it; empty if unknown.
        left_out: for each capability that is left out, how many cases need it, and why.

    Raises:
        ValueError: if two results are of one case on one backend, or two backends have one name:
            a report would show one of them in the other's place.
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
    hostname: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_once(it.name for it in self.backends)
        require_once((it.case, it.backend) for it in self.results)


def require_once(keys: Iterable[object]) -> None:
    """Make sure that no key comes twice.

    Raises:
        ValueError: naming the first that does.
    """
    known: set[object] = set()
    for key in keys:
        if key in known:
            raise ValueError(f"found {printable(str(key))} twice")
        known.add(key)
