"""Failing cases in which several backends agree with each other.

Agreement is a reason to check the case. It does not change the verdict, because several backends
may have the same mistake.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from math import isfinite
from typing import Any

import numpy as np

from onnxopt_cli.core.record import RunRecord
from onnxopt_cli.core.result import Outcome, Result
from onnxopt_cli.core.text import printable, some_of
from onnxopt_cli.core.values import (
    Array,
    NumberKind,
    describe,
    kind_of,
)

# Two backends agree if the distance between their outputs is at most this fraction of their
# distance to the expected result.
_MAX_DISTANCE_RATIO = 1 / 16
# If the distance to the expected result is not finite, two backends agree if the distance between
# their outputs is at most this fraction of their magnitude.
_MAX_RELATIVE_DISTANCE = 1e-3
_MAX_NAMED_CASES = 5
_FLOATS = {NumberKind.FLOAT, NumberKind.COMPLEX}


def agreements(record: RunRecord) -> list[str]:
    """Return a line for each set of backends that agree with each other in failing cases."""
    by_case: defaultdict[str, list[Result]] = defaultdict(list)
    for result in record.results:
        if result.outcome is Outcome.FAIL and result.returned:
            by_case[result.case].append(result)
    cases_by_backends: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for case, results in by_case.items():
        for backends in agreeing_backends(results):
            cases_by_backends[backends].append(case)
    return [_line(backends, cases) for backends, cases in cases_by_backends.items()]


def agreeing_backends(results: Iterable[Result]) -> list[tuple[str, ...]]:
    """Return each set of backends that agree with each other in a failing case.

    Args:
        results: the failing results of one case, with the outputs that the backends returned.
    """
    return [tuple(result.backend for result in agreeing) for agreeing in _agreeing_sets(results)]


def _line(backends: Sequence[str], cases: Sequence[str]) -> str:
    *first, last = map(printable, backends)
    names = f"{', '.join(first)} and {last}"
    count = f"{len(cases)} case{'s' * (len(cases) > 1)}"
    named = some_of(cases, _MAX_NAMED_CASES)
    return f"{names} agree with each other against the expected result in {count}: {named}"


def _agreeing_sets(results: Iterable[Result]) -> list[list[Result]]:
    """Return sets of at least two results; all results agree with the first result of their set."""
    sets: list[list[Result]] = []
    for result in results:
        for agreeing in sets:
            if _agree(agreeing[0], result):
                agreeing.append(result)
                break
        else:
            sets.append([result])
    return [agreeing for agreeing in sets if len(agreeing) > 1]


def _agree(left: Result, right: Result) -> bool:
    wrong = [place for place, diff in enumerate(left.diffs) if not diff.agrees]
    if wrong != [place for place, diff in enumerate(right.diffs) if not diff.agrees]:
        return False
    for left_value, right_value in zip_longest(left.returned, right.returned):
        if not isinstance(left_value, np.ndarray) or not isinstance(right_value, np.ndarray):
            return False
    # A sequence has one diff per tensor, so its diffs do not correspond to the returned values.
    if any(place >= len(left.returned) for place in wrong) or not wrong:
        return False
    return all(
        _are_close(
            left.returned[place],  # type: ignore[arg-type] # an array by the check above
            right.returned[place],  # type: ignore[arg-type]
            min(left.diffs[place].max_absolute, right.diffs[place].max_absolute),
        )
        for place in wrong
    )


def _are_close(left: Array, right: Array, error: float) -> bool:
    """Return whether the distance between two outputs is small compared with their errors."""
    if describe(left) != describe(right):
        return False
    if kind_of(left.dtype) not in _FLOATS:
        return bool(np.array_equal(left, right))
    wide_left, wide_right = (array.astype(np.complex128) for array in (left, right))
    with np.errstate(all="ignore"):
        # An output with a wrong shape has no error.
        if isfinite(error) and error:
            limit: Any = error * _MAX_DISTANCE_RATIO
        else:
            limit = _MAX_RELATIVE_DISTANCE * np.abs(wide_left)
        close = (np.abs(wide_left - wide_right) <= limit) | (wide_left == wide_right)
        close |= np.isnan(wide_left) & np.isnan(wide_right)
    return bool(close.all())
