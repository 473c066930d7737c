"""How an output differs from what was expected."""

from __future__ import annotations

from dataclasses import dataclass

from onnxopt_cli.core.tolerance import Tolerance


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
        budget_used: largest share of its limit that an element uses, 1.0 being the limit.
        budget_median: the share that the median element uses.
        ulp_counts: at place ``b`` the number of elements whose distance in representable values
            has ``b`` bits: 0, 1, 2 to 3, 4 to 7, ...; elements of which one side alone is finite
            are in none; empty for what is no float.
        worst: the elements that are furthest off, worst first.
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
    budget_used: float = 0.0
    budget_median: float = 0.0
    ulp_counts: tuple[int, ...] = ()
    worst: tuple[Element, ...] = ()

    @property
    def agrees(self) -> bool:
        """True if structure and values are as expected."""
        return self.structure is None and self.mismatches == 0
