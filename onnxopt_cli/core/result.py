"""What came out of running cases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from onnxopt_cli.core.diff import Diff
from onnxopt_cli.core.location import Location
from onnxopt_cli.core.values import Value


class Outcome(StrEnum):
    """What happened to a case on a backend."""

    PASS = "pass"  # noqa: S105 - the word of conformance testing, no password
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


#: Outcomes that say nothing against the backend.
HARMLESS = frozenset({Outcome.PASS, Outcome.SKIP})
#: Outcomes that say something against the case file or the run.
NOT_ITS_FAULT = frozenset({Outcome.INVALID, Outcome.NOT_RUN})
#: Outcomes that running the case again cannot change, so that it is never tried.
SETTLED = frozenset({Outcome.UNSUPPORTED, Outcome.INVALID, Outcome.SKIP, Outcome.NOT_RUN})

#: What a note begins with where identities decide that keep no relative accuracy.
ABSOLUTE_ONLY = "absolute accuracy only"
#: How the message of a result begins whose backend never started; the reason follows.
NOT_STARTED = "the backend could not be started: "


class Standing(StrEnum):
    """An outcome beside what was expected of the case.

    Where no entry of an expectation file speaks of a case, it is expected to pass.
    """

    EXPECTED = "expected"
    UNEXPECTED_FAIL = "unexpected-fail"
    UNEXPECTED_PASS = "unexpected-pass"  # noqa: S105 - a word of conformance testing, no password
    CHANGED = "changed"
    FLAKY = "flaky"


#: The suite of results that are about a backend's worker and about no case.
OUTSIDE_CASES = "worker"
#: The ids of these results.
OUTSIDE_IDS = (f"{OUTSIDE_CASES}/teardown", f"{OUTSIDE_CASES}/between-cases")


@dataclass(frozen=True, slots=True)
class Result:
    """One case on one backend.

    Attributes:
        case: the case's id.
        location: where the case stands.
        operators: names of the operators in the model.
        backend: the backend's name as the user gave it.
        outcome: what happened.
        lowered: True if the backend was given primitive operators instead of the operator.
        message: why, in words, for everything but a plain pass; of wrong outputs it begins with
            what :func:`onnxopt_cli.core.diff.wrong_outputs` says.
        diffs: the outputs, judged; empty if the backend returned none.
        returned: what the backend returned, kept where it explains a failure.
        curve: of a trajectory, by recorded step, the largest share of its limit that an element
            uses; empty for a single step.
        seconds: wall time in the backend.
        printed: the end of what the backend wrote to stdout and stderr meanwhile, where that may
            explain a failure.
        flaky: why the outcome cannot be relied on, found by running the case again: ``2 of 5 runs
            passed``, ``fails only after CASE``; empty if nothing says so.
        standing: the outcome beside what was expected; None if nobody said what to expect.
        expectation: what the entry that speaks of the case says, and where it stands.
        capabilities: what the case needs beyond one node with float32 tensors.
        note: what the outcome rests on, if that is not plain: ``contested: reading 2 of 2 (...)``,
            or :data:`ABSOLUTE_ONLY` with the identity; or empty.
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

    @property
    def failing(self) -> bool:
        """True if the outcome says something against the backend, whatever was expected."""
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
        """True if the result is as expected; as long as nobody says else, that is a pass."""
        if self.standing is None:
            return self.outcome in HARMLESS
        return self.standing is Standing.EXPECTED


def with_shared(result: Result, **shared: object) -> Result:
    """Put what many results share in place of a new one's copies, which nobody else may hold.

    With many results ``dataclasses.replace`` would take longer than the rest.
    """
    for name, value in shared.items():
        object.__setattr__(result, name, value)
    return result


def worse(known: Result | None, other: Result) -> Result:
    """Return the one of two results that does not conform, of the same place outside of cases."""
    return other if known is None or (known.conforms and not other.conforms) else known
