"""Differences between the actual and the expected value of an output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnxopt_cli.core import numbers
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.tolerance import Tolerance

# Maximum number of outputs in a message.
_MAX_NAMED_OUTPUTS = 3
# Maximum number of characters of a name or an element in a message.
_MAX_NAME_CHARS = 60


@dataclass(frozen=True, slots=True)
class Element:
    """One element of an output with its expected value.

    Attributes:
        index: its position, empty for a scalar.
        expected: a Python number, bool or string.
        actual: a Python number, bool or string.
        absolute: ``|actual - expected|``; inf or nan if it is not a finite number.
        relative: ``absolute / |expected|``; inf where expected is zero and absolute is not.
        ulp: distance in representable values of the dtype; None unless the dtype is a float.
        limit: the largest allowed absolute error; None if the tolerance defines none.
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
    """The comparison of one tensor of an output, or of one part of a sequence, optional or map.

    Attributes:
        name: the output, with the path into it: ``X_new``, ``list_out[2]``.
        kind: expected type and shape: ``float32[2,3]``.
        structure: the reason why the values were not compared; None if they were.
        tolerance: the tolerance of the values; None if they must be equal.
        elements: number of elements.
        mismatches: number of elements that the tolerance rejects.
        max_absolute: largest ``|actual - expected|``; inf if only one of them is finite.
        max_relative: largest ``|actual - expected| / |expected|``.
        max_ulp: largest distance in representable values; None unless the dtype is a float.
        needed_rtol: smallest rtol that passes with the tolerance's atol; None without one.
        needed_atol: smallest atol that passes with the tolerance's rtol; None without one.
        tolerance_used: largest error / tolerance; 1.0 is the limit.
        tolerance_used_median: median error / tolerance. For a large tensor with errors in most
            elements it may be an upper bound, since few limits are derived.
        inconclusive: number of examined elements that the case cannot judge, since their limit is
            infinite or at least half the expected value. Elements that are bitwise equal, and most
            elements of a large tensor with small errors, are examined only on request.
        ulp_counts: at index ``b`` the number of elements whose distance in representable values
            has ``b`` bits: 0, 1, 2 to 3, 4 to 7, ...; elements of which only one value is finite
            are not counted. Empty unless the dtype is a float.
        worst: the elements with the largest errors, worst first.
        accepted: number of elements that agree with an alternative accepted result, by its label.
            Logs omit it, since the note of a result contains the text of
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
    """Return the position of an element in words.

    Args:
        index: its index.
        steps: numbers of the recorded steps of a trajectory, whose outputs are stacked along a
            leading axis; empty for a single step.
    """
    stacked = index and index[0] < len(steps)
    step, index = (f"step {steps[index[0]]} ", index[1:]) if stacked else ("", index)
    return f"{step}[{', '.join(map(str, index))}]"


def wrong_outputs(diffs: Sequence[Diff], steps: Sequence[int] = ()) -> str:
    """Return a line with the wrong outputs, the number of wrong elements, and the worst of them.

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

    The line is empty if no element does.
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
        printable(numbers.element(value, diff.kind))[:_MAX_NAME_CHARS]
        for value in (worst.actual, worst.expected)
    )
    at = f"{'' if single else ', most'} at {place(worst.index, steps)}" if worst.index else ""
    return f"{name}: {count}{at}: {actual} instead of {expected}"
