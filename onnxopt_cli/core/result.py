"""Results of cases on backends, and the locations of cases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from onnxopt_cli.core.diff import Diff
from onnxopt_cli.core.values import Value


@dataclass(frozen=True, slots=True)
class Location:
    """A file, and a line if the file is text."""

    path: Path
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" if self.line else str(self.path)

    @classmethod
    def parse(cls, text: str) -> Location:
        """Return the location that ``str`` converts to this text."""
        path, colon, line = text.rpartition(":")
        if path and colon and line.isascii() and line.isdigit():
            return cls(Path(path), int(line[:9]))
        return cls(Path(text))


class Outcome(StrEnum):
    """The outcome of a case on a backend."""

    PASS = "pass"  # noqa: S105 - an outcome, not a password
    FAIL = "fail"
    VACUOUS = "vacuous"
    UNSUPPORTED = "unsupported"
    ERROR = "error"
    CRASH = "crash"
    TIMEOUT = "timeout"
    OOM = "oom"
    PROTOCOL = "protocol"
    LEAK = "leak"
    INVALID = "invalid"
    SKIP = "skip"
    NOT_RUN = "not-run"


#: Outcomes that do not count against the backend.
HARMLESS = frozenset({Outcome.PASS, Outcome.SKIP})
#: Outcomes caused by the case file or the run, not by the backend.
NOT_ITS_FAULT = frozenset({Outcome.INVALID, Outcome.NOT_RUN})
#: Outcomes that a rerun cannot change.
SETTLED = frozenset({Outcome.UNSUPPORTED, Outcome.INVALID, Outcome.SKIP, Outcome.NOT_RUN})

#: Begins the line that names the file and line of the backend's code that raised an error.
RAISED_AT = "raised at "
#: Beginning of the note of a pass by absolute accuracy alone: a common implementation of the
#: operator, such as the sigmoid by way of tanh, has no relative accuracy for these inputs.
ABSOLUTE_ONLY = "absolute accuracy only"
#: Beginning of the note of a pass with inconclusive elements, and of the message of a case whose
#: elements are all inconclusive.
INCONCLUSIVE = "inconclusive: "
#: Beginning of the message of results whose backend never started; the reason follows.
NOT_STARTED = "the backend could not be started: "
#: Beginning of the message of a case that no worker can receive; the reason follows.
NOT_SENT = "the case cannot be sent to a worker: "


class Standing(StrEnum):
    """An outcome compared with the expectation; a case without an entry is expected to pass."""

    EXPECTED = "expected"
    UNEXPECTED_FAIL = "unexpected-fail"
    UNEXPECTED_PASS = "unexpected-pass"  # noqa: S105 - a standing, not a password
    CHANGED = "changed"
    FLAKY = "flaky"


#: Name that replaces the suite in the id of a result of a backend's worker, not of a case.
OUTSIDE_CASES = "worker"
#: Ids of the results of a worker: its end, and events between cases.
OUTSIDE_IDS = (f"{OUTSIDE_CASES}/teardown", f"{OUTSIDE_CASES}/between-cases")


@dataclass(frozen=True, slots=True)
class CaseContent:
    """The content of a case, as text for a reader.

    Attributes:
        about: what the case tests; may be empty.
        nodes: the operator and the attributes of each node.
        inputs: name, type with shape, and elements of each input; long texts are shortened.
    """

    about: str
    nodes: tuple[tuple[str, str], ...]
    inputs: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class Result:
    """One case on one backend.

    Attributes:
        case: the case's id.
        location: the case's location.
        operators: names of the operators in the model.
        backend: the backend's specification.
        outcome: what happened.
        lowered: True if the backend ran primitive operators instead of the operator.
        message: the reason for any outcome but a plain pass. For wrong outputs, it begins with the
            text of :func:`onnxopt_cli.core.diff.wrong_outputs`.
        diffs: comparisons of the outputs; empty if the backend returned none.
        returned: the backend's outputs, kept for the explanation of a failure.
        curve: for a trajectory, the largest error / tolerance by recorded step; otherwise empty.
        seconds: wall time in the backend.
        printed: the end of the backend's output to stdout and stderr, if it may explain a failure.
        flaky: why the outcome is not reliable, from reruns: ``2 of 5 runs passed``, ``fails only
            after CASE``; may be empty.
        standing: the outcome compared with the expectation; None without expectation files.
        expectation: text and location of the expectation that applies to the case.
        capabilities: capabilities that the case needs beyond one node with float32 tensors.
        note: qualification of the outcome: ``contested: reading 2 of 2 (...)``, or
            :data:`ABSOLUTE_ONLY` with the identity, or :data:`INCONCLUSIVE` with a number of
            elements; may be empty.
        content: the content of the case; None for a pass, and if it is unknown.
        opset: the older opset to which the model was converted for the backend; 0 if the model ran
            in its own opset.
        batch: the number of cases whose models ran as one model; 0 for a case that ran alone.
    """

    case: str
    location: Location
    operators: tuple[str, ...]
    backend: str
    outcome: Outcome
    lowered: bool = False
    message: str = ""
    diffs: tuple[Diff, ...] = ()
    curve: Mapping[int, float] = field(default_factory=dict)
    seconds: float = 0.0
    returned: tuple[Value, ...] = ()
    printed: str = ""
    flaky: str = ""
    standing: Standing | None = None
    expectation: str = ""
    capabilities: tuple[str, ...] = ()
    note: str = ""
    content: CaseContent | None = None
    opset: int = 0
    batch: int = 0

    @property
    def failing(self) -> bool:
        """True if the outcome counts against the backend, regardless of expectations."""
        return self.outcome not in HARMLESS and self.outcome not in NOT_ITS_FAULT

    @property
    def not_started(self) -> bool:
        """True if the case did not run because its backend never started."""
        return self.outcome is Outcome.NOT_RUN and self.message.startswith(NOT_STARTED)

    @property
    def wrong(self) -> list[Diff]:
        """The outputs that are not as expected."""
        return [diff for diff in self.diffs if not diff.agrees]

    @property
    def conforms(self) -> bool:
        """True if the result is as expected; without expectations, if it is a pass or a skip."""
        if self.standing is None:
            return self.outcome in HARMLESS
        return self.standing is Standing.EXPECTED


def with_shared(result: Result, **shared: object) -> Result:
    """Set fields of a result in place, and return it; no other code may hold the result yet.

    Readers of logs use it to let many results share equal objects. ``dataclasses.replace`` would
    take most of the time of reading a large log.
    """
    for name, value in shared.items():
        object.__setattr__(result, name, value)
    return result


def worse(earlier: Result | None, later: Result) -> Result:
    """Return which of two results with the same id of OUTSIDE_IDS to keep.

    That is the earlier result if it does not conform or both conform, otherwise the later one.
    """
    if earlier is None or (earlier.conforms and not later.conforms):
        return later
    return earlier
