"""Results of cases on backends, and the differences between actual and expected outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import numpy as np

from onnxopt_cli.core.text import printable
from onnxopt_cli.core.tolerance import Tolerance
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
        """Return the location from which ``str`` made a text."""
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


# Each outcome belongs to exactly one of the following five kinds.
#: Outcomes that do not count as failures of the backend.
HARMLESS = frozenset({Outcome.PASS, Outcome.SKIP})
#: Outcomes of a backend whose outputs are not accepted.
WRONG_RESULTS = frozenset({Outcome.FAIL, Outcome.VACUOUS})
#: Outcomes of a backend that rejected the model or raised an exception.
RAISED = frozenset({Outcome.UNSUPPORTED, Outcome.ERROR})
#: Outcomes of a backend whose process ended, exceeded a limit or violated the protocol.
PROCESS_FAILURES = frozenset(
    {Outcome.CRASH, Outcome.TIMEOUT, Outcome.OOM, Outcome.PROTOCOL, Outcome.LEAK}
)
#: Outcomes caused by the case file or the run, not by the backend.
NOT_ITS_FAULT = frozenset({Outcome.INVALID, Outcome.NOT_RUN})
#: The kinds of outcomes in the order of reports. Wrong values come first, because they are most
#: informative. Errors, such as a missing operator, come last.
KINDS_OF_OUTCOMES = (WRONG_RESULTS, HARMLESS, NOT_ITS_FAULT, PROCESS_FAILURES, RAISED)

#: Outcomes whose causes are sought, in the order of the search.
EXPLAINED = (Outcome.FAIL, Outcome.ERROR)
#: Outcomes that a rerun cannot change.
SETTLED = NOT_ITS_FAULT | {Outcome.UNSUPPORTED, Outcome.SKIP}

#: The line that states where the code of a backend raised an error begins with this text.
RAISED_AT = "raised at "
#: The note of a pass begins with this text if the outputs have only absolute accuracy. Such outputs
#: are accepted because a common implementation, such as the sigmoid computed by tanh, has no
#: relative accuracy for the inputs.
ABSOLUTE_ONLY = "absolute accuracy only"
#: The note of a pass begins with this text if some elements are inconclusive. The message of a case
#: begins with this text if all elements are inconclusive.
INCONCLUSIVE = "inconclusive: "
#: Beginning of the message of a result whose backend did not start; the reason follows.
NOT_STARTED = "the backend could not be started: "
#: Beginning of the message of a case that no worker can receive; the reason follows.
NOT_SENT = "the case cannot be sent to a worker: "


class Standing(StrEnum):
    """The relation of an outcome to the expected outcome; by default, a pass is expected."""

    EXPECTED = "expected"
    UNEXPECTED_FAIL = "unexpected-fail"
    UNEXPECTED_PASS = "unexpected-pass"  # noqa: S105 - a standing, not a password
    CHANGED = "changed"
    FLAKY = "flaky"


#: If a result concerns the worker of a backend instead of a case, its id begins with this part.
OUTSIDE_CASES = "worker"
#: Ids of the results that concern a worker: its end, and events between cases.
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
    """The result of one case on one backend.

    Attributes:
        case: the case's id.
        location: the case's location.
        operators: names of the operators in the model.
        backend: the backend's specification.
        outcome: what happened.
        lowered: True if the backend ran primitive operators instead of the operator.
        message: the reason for the outcome; empty for a plain pass. If outputs are wrong, the
            message begins with the text of :func:`wrong_outputs`.
        diffs: comparisons of the outputs; empty if the backend returned none.
        returned: the backend's outputs, which the explanation of a failure needs.
        curve: for a trajectory, the largest error / tolerance of each recorded step; otherwise
            empty.
        seconds: wall time in the backend.
        printed: the end of the text that the backend printed to stdout and stderr, if the text may
            explain a failure.
        flaky: why the outcome is not reliable, according to reruns: ``2 of 5 runs passed``, ``fails
            only after CASE``; may be empty.
        standing: the outcome compared with the expectation; None without expectation files.
        expectation: text and location of the expectation that applies to the case.
        capabilities: capabilities that the case needs beyond one node with float32 tensors.
        note: a qualification of the outcome; may be empty. A qualification is ``contested: reading
            2 of 2 (...)``, :data:`ABSOLUTE_ONLY` followed by an identity, or :data:`INCONCLUSIVE`
            followed by a number of elements.
        content: the content of the case; None for a pass, or if the content is unknown.
        opset: the older opset to which the model was converted for the backend; 0 if the model ran
            in its own opset.
        batch: the number of cases whose models ran together as one model; 0 for a case that ran
            alone.
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
        """True if the outcome counts as a failure of the backend, regardless of expectations."""
        return self.outcome not in HARMLESS and self.outcome not in NOT_ITS_FAULT

    @property
    def not_started(self) -> bool:
        """True if the case did not run because its backend never started."""
        return self.outcome is Outcome.NOT_RUN and self.message.startswith(NOT_STARTED)

    @property
    def wrong(self) -> list[Diff]:
        """The comparisons of the outputs that are not as expected."""
        return [diff for diff in self.diffs if not diff.agrees]

    @property
    def conforms(self) -> bool:
        """True if the result is as expected or, without expectations, is a pass or a skip."""
        if self.standing is None:
            return self.outcome in HARMLESS
        return self.standing is Standing.EXPECTED


def with_shared(result: Result, **shared: object) -> Result:
    """Set fields of a frozen result in place, and return the result.

    No other code may hold the result yet. Readers of logs use this function to let results share
    equal objects. Without it, ``dataclasses.replace`` would take most of the time that reading a
    large log takes.
    """
    for name, value in shared.items():
        object.__setattr__(result, name, value)
    return result


def worse(earlier: Result | None, later: Result) -> Result:
    """Return which of two results is kept, if both have the same id from OUTSIDE_IDS.

    If the earlier result conforms and the later result does not, the later result is kept.
    Otherwise, the earlier result is kept.
    """
    if earlier is None or (earlier.conforms and not later.conforms):
        return later
    return earlier


# Maximum number of outputs in a message.
_MAX_NAMED_OUTPUTS = 3
# Maximum number of characters of a name or an element in a message.
_MAX_NAME_CHARS = 60


@dataclass(frozen=True, slots=True)
class Element:
    """One element of an output with its expected value.

    Attributes:
        index: the position of the element; empty for a scalar.
        expected: a Python number, bool or string.
        actual: a Python number, bool or string.
        absolute: ``|actual - expected|``; may be inf or nan.
        relative: ``absolute / |expected|``; inf if ``expected`` is zero and ``absolute`` is not.
        ulp: distance in representable values of the dtype; None if the dtype is not a float.
        limit: the largest allowed absolute error; None if the tolerance has no absolute limit.
        wrong: True if the tolerance rejects the element.
    """

    index: tuple[int, ...]
    expected: object
    actual: object
    absolute: float
    relative: float
    ulp: int | None
    limit: float | None
    wrong: bool


@dataclass(frozen=True, slots=True)
class Diff:
    """The comparison of one output or, if the output is not a tensor, of one of its parts.

    Attributes:
        name: the name of the output, with the path of the part: ``X_new``, ``list_out[2]``.
        kind: expected type and shape: ``float32[2,3]``.
        structure: the reason why the values were not compared; None if they were compared.
        tolerance: the tolerance of the values; None if they must be equal.
        elements: number of elements.
        mismatches: number of elements that the tolerance rejects.
        max_absolute: largest ``|actual - expected|``; inf if only one of the two values is finite.
        max_relative: largest ``|actual - expected| / |expected|``.
        max_ulp: largest distance in representable values; None if the dtype is not a float.
        needed_rtol: smallest rtol that passes with the tolerance's atol; None if no finite rtol
            passes.
        needed_atol: smallest atol that passes with the tolerance's rtol; None if no finite atol
            passes.
        tolerance_used: largest error / tolerance; 1.0 is the limit.
        tolerance_used_median: median error / tolerance. For a large tensor with errors in most
            elements, this may be an upper bound, because few limits are derived.
        inconclusive: number of examined elements that the case cannot judge, because their limit is
            infinite or is at least half the expected value. By default, elements are not examined
            if they are bitwise equal, and most elements of a large tensor are not examined if their
            errors are small.
        ulp_counts: a histogram of the distances in representable values. Item ``b`` is the number
            of elements whose distance has ``b`` bits: 0, 1, 2 to 3, 4 to 7, ... An element is not
            counted if only one of its values is finite. Empty if the dtype is not a float.
        worst: the elements with the largest errors, worst first.
        accepted: number of elements that agree with an alternative accepted result, by its label.
            Logs omit the field ``accepted``, because the note of a result contains the text of
            :func:`accepted_results`.
    """

    name: str
    kind: str
    structure: str | None = None
    tolerance: Tolerance | None = None
    elements: int = 0
    mismatches: int = 0
    max_absolute: float = 0.0
    max_relative: float = 0.0
    max_ulp: int | None = None
    needed_rtol: float | None = None
    needed_atol: float | None = None
    tolerance_used: float = 0.0
    tolerance_used_median: float = 0.0
    inconclusive: int = 0
    ulp_counts: tuple[int, ...] = ()
    worst: tuple[Element, ...] = ()
    accepted: tuple[tuple[str, int], ...] = ()

    @property
    def agrees(self) -> bool:
        """True if structure and values are as expected."""
        return self.structure is None and self.mismatches == 0


def place(index: Sequence[int], steps: Sequence[int] = ()) -> str:
    """Return a description of the position of an element.

    Args:
        index: its index.
        steps: numbers of the recorded steps of a trajectory, whose outputs are stacked along a
            leading axis; empty for a single step.
    """
    stacked = index and index[0] < len(steps)
    step, index = (f"step {steps[index[0]]} ", index[1:]) if stacked else ("", index)
    return f"{step}[{', '.join(map(str, index))}]"


def wrong_outputs(diffs: Sequence[Diff], steps: Sequence[int] = ()) -> str:
    """Return a line with the number of wrong elements and the worst element of each wrong output.

    Args:
        diffs: comparisons of the outputs.
        steps: recorded steps of a trajectory; empty for a single step.

    Returns:
        ``X_new: 2 of 4 elements are off, most at [1]: 2.5 instead of 2.0``; empty if all agree.
    """
    wrong = [diff for diff in diffs if not diff.agrees]
    parts = [_wrong_output(diff, steps) for diff in wrong[:_MAX_NAMED_OUTPUTS]]
    more = len(wrong) - len(parts)
    return "; ".join(parts + ([f"and {more} more output{'s' * (more > 1)}"] if more else []))


def accepted_results(diffs: Sequence[Diff]) -> str:
    """Return a line with the number of elements that agree with each alternative accepted result.

    The line is empty if no element agrees with an alternative.
    """
    parts = [
        f"{printable(diff.name)[:_MAX_NAME_CHARS]}: {count} of {diff.elements} by {label}"
        for diff in diffs
        for label, count in diff.accepted
    ]
    hidden = len(parts) - _MAX_NAMED_OUTPUTS
    more = [f"and {hidden} more"] if hidden > 0 else []
    listed = "; ".join(parts[:_MAX_NAMED_OUTPUTS] + more)
    return f"accepted: another right result ({listed})" if parts else ""


def _wrong_output(diff: Diff, steps: Sequence[int]) -> str:
    name = printable(diff.name)[:_MAX_NAME_CHARS]
    if diff.structure is not None:
        return printable(f"{name} {diff.structure}, expected {diff.kind}")
    single = diff.mismatches == 1
    verbs = ("differ", "differs") if diff.tolerance is None else ("are off", "is off")
    elements = f"{diff.elements} element{'s' * (diff.elements != 1)}"
    count = f"{diff.mismatches} of {elements} {verbs[single]}"
    if not diff.worst:
        return f"{name}: {count}"
    worst = diff.worst[0]
    actual, expected = (
        printable(short_element(value, diff.kind))[:_MAX_NAME_CHARS]
        for value in (worst.actual, worst.expected)
    )
    at = f"{'' if single else ', most'} at {place(worst.index, steps)}" if worst.index else ""
    return f"{name}: {count}{at}: {actual} instead of {expected}"


def short_error(number: float | None) -> str:
    """Return an error as text with three digits; a dash for None."""
    if number is None:
        return "-"
    if number == 0:
        return "0"
    return f"{number:.3g}" if math.isfinite(number) else str(number)


def short_count(number: int | None) -> str:
    """Return a whole number as text, from 10 million on in scientific notation; a dash for None."""
    if number is None:
        return "-"
    return str(number) if number < 10**7 else f"{number:.1e}"


def short_element(value: object, kind: str) -> str:
    """Return a tensor's element with only as many digits as its dtype can represent.

    Args:
        value: a Python number, bool or string.
        kind: the dtype and shape of the tensor, as in ``float32[2,3]``.
    """
    if isinstance(value, float):
        if kind.startswith("float64"):
            return repr(value)
        # The numbers in a saved report are not validated, and may be beyond the range of float32.
        with np.errstate(over="ignore"):
            return str(np.float32(value)) if kind.startswith("float32") else f"{value:g}"
    return repr(value) if isinstance(value, str) else str(value)
