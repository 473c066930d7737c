"""A whole run as data: what every report is rendered from, live or from a log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from onnxopt_cli.core.result import Result
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import Problem


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
class Explanation:
    """What reproduces all failures of a backend in an operator.

    Attributes:
        backend: the backend's name.
        operator: the operator's name.
        text: one sentence for a reader.
        deviations: names of the deviations that together do it; empty if none does.
        cases: ids of the failing cases that were looked at.
    """

    backend: str
    operator: str
    text: str
    deviations: tuple[str, ...]
    cases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run, finished or not.

    Attributes:
        versions: of onnxopt, Python, the packages that matter, and the machine.
        backends: what was under test.
        options: the command's options by their long names, targets included.
        results: in the order in which they came.
        problems: what was wrong with case files that gave no case.
        findings: entries of expectation files that no longer hold: stale, expired, duplicate.
        explanations: of failures, where one was looked for.
        exit_code: what the run exited with; None if it did not finish.
        started: when, in UTC: ``2026-01-31T23:59:59.012345Z``; empty if unknown.
        hostname: of the machine that ran it; empty if unknown.

    Raises:
        ValueError: if two results are of one case on one backend, or two backends have one name:
            a report would show one of them in the other's place.
    """

    versions: Mapping[str, str]
    backends: tuple[BackendIdentity, ...]
    options: Mapping[str, Any]
    results: tuple[Result, ...]
    problems: tuple[Problem, ...] = ()
    findings: tuple[Problem, ...] = ()
    explanations: tuple[Explanation, ...] = ()
    exit_code: int | None = None
    started: str = ""
    hostname: str = ""

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
