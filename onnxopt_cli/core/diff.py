"""How an output differs from what was expected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnxopt_cli.core import numbers
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.tolerance import Tolerance

# Outputs that a sentence has room for, and characters of an element or a name in it.
_MAX_NAMED_OUTPUTS = 3
_MAX_NAME_CHARS = 60


@dataclass(frozen=True, slots=True)
class Element:
    """One element of an output beside what was expected of it.

    Attributes:
        index: its position, empty for a scalar.
        expected: a Python number, bool or string.
        actual: likewise.
        absolute: ``|actual - expected|``; inf or nan where no number says it.
        relative: ``absolute / |expected|``; inf where expected is zero and absolute is not.
        ulp: representable values of the dtype between the two, None for what is no float.
        limit: the largest allowed absolute error, None where the tolerance has none.
        wrong: True if the tolerance rejects it.
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
    """One tensor (or one place of a sequence, optional or map) of an output, judged.

    Attributes:
        name: the output, with the way into it: ``X_new``, ``list_out[2]``.
        kind: what was expected: ``float32[2,3]``.
        structure: why the values were not compared, or None if they were.
        tolerance: what the values were judged by, None where they must be equal.
        elements: number of elements.
        mismatches: number of elements that the tolerance rejects.
        max_absolute: largest ``|actual - expected|``; inf where one side is not finite.
        max_relative: largest ``|actual - expected| / |expected|``.
        max_ulp: largest distance in representable values; None for what is no float.
        needed_rtol: the smallest rtol that passes beside the tolerance's atol; None if none does.
        needed_atol: the smallest atol that passes beside the tolerance's rtol; None if none does.
        tolerance_used: largest share of its limit that an element uses, 1.0 being the limit.
        tolerance_used_median: the share that the median element uses; of a large tensor it may be
            the most that this can be, if most elements are off: few have their limits derived.
        inconclusive: number of the elements examined that the case cannot judge, as their limit
            reaches zero from the value; what is equal to the bit, and most of what is near in a
            large tensor, is examined only where that is asked for.
        ulp_counts: at place ``b`` the number of elements whose distance in representable values
            has ``b`` bits: 0, 1, 2 to 3, 4 to 7, ...; elements of which one side alone is finite
            are in none; empty for what is no float.
        worst: the elements that are furthest off, worst first.
        accepted: how many elements are right by another result than the first, by what is said of
            it. A result's note has it in words, so that logs need not.
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
    """Say where an element is; the outputs of a trajectory are stacked by recorded step."""
    stacked = index and index[0] < len(steps)
    step, index = (f"step {steps[index[0]]} ", index[1:]) if stacked else ("", index)
    return f"{step}[{', '.join(map(str, index))}]"


def wrong_outputs(diffs: Sequence[Diff], steps: Sequence[int] = ()) -> str:
    """Say in a line which outputs are wrong, in how many elements, and in which one most.

    Args:
        diffs: the outputs, judged.
        steps: the recorded steps of a trajectory; empty for a single step.

    Returns:
        ``X_new: 2 of 4 elements are off, most at [1]: 2.5 instead of 2.0``; empty if none is wrong.
    """
    wrong = [diff for diff in diffs if not diff.agrees]
    said = [_wrong_output(diff, steps) for diff in wrong[:_MAX_NAMED_OUTPUTS]]
    more = len(wrong) - len(said)
    return "; ".join(said + ([f"and {more} more output{'s' * (more > 1)}"] if more else []))


def accepted_results(diffs: Sequence[Diff]) -> str:
    """Say which elements are right by another result than the first; empty if none is."""
    said = [
        f"{printable(diff.name)[:_MAX_NAME_CHARS]}: {count} of {diff.elements} by {label}"
        for diff in diffs
        for label, count in diff.accepted
    ]
    more = [f"and {len(said) - _MAX_NAMED_OUTPUTS} more"] if len(said) > _MAX_NAMED_OUTPUTS else []
    listed = "; ".join(said[:_MAX_NAMED_OUTPUTS] + more)
    return f"accepted: another right result ({listed})" if said else ""


def _wrong_output(diff: Diff, steps: Sequence[int]) -> str:
    name = printable(diff.name)[:_MAX_NAME_CHARS]
    if diff.structure is not None:
        return printable(f"{name} {diff.structure}, expected {diff.kind}")
    one = diff.mismatches == 1
    verbs = ("differ", "differs") if diff.tolerance is None else ("are off", "is off")
    many = f"{diff.mismatches} of {diff.elements} element{'s' * (diff.elements != 1)} {verbs[one]}"
    if not diff.worst:
        return f"{name}: {many}"
    worst = diff.worst[0]
    actual, expected = (
        printable(numbers.element(side, diff.kind))[:_MAX_NAME_CHARS]
        for side in (worst.actual, worst.expected)
    )
    at = f"{'' if one else ', most'} at {place(worst.index, steps)}" if worst.index else ""
    return f"{name}: {many}{at}: {actual} instead of {expected}"
