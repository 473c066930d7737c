"""Backends that return the same where it is not what was expected: a reason to look at the case.

It is no verdict: many may be wrong alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from math import isfinite

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

# Two backends agree where they are so much nearer to each other than to what was expected.
_NEARER = 16
# Where that distance is not finite: so much nearer than their magnitude.
_SHARE = 1e-3
_MOST_NAMED = 5
_FLOATS = {NumberKind.FLOAT, NumberKind.COMPLEX}


def agreements(record: RunRecord) -> list[str]:
    """Return a line for each set of backends that agree with each other in some failing cases."""
    by_case: defaultdict[str, list[Result]] = defaultdict(list)
    for result in record.results:
        if result.outcome is Outcome.FAIL and result.returned:
            by_case[result.case].append(result)
    found: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for case, results in by_case.items():
        for alike in _alike(results):
            found[tuple(it.backend for it in alike)].append(case)
    return [_line(backends, cases) for backends, cases in found.items()]


def _line(backends: Sequence[str], cases: Sequence[str]) -> str:
    *first, last = map(printable, backends)
    names = f"{', '.join(first)} and {last}"
    count = f"{len(cases)} case{'s' * (len(cases) > 1)}"
    named = some_of(cases, _MOST_NAMED)
    return f"{names} agree with each other against the expected result in {count}: {named}"


def _alike(results: Iterable[Result]) -> list[list[Result]]:
    """Return sets of two and more results that agree with the first of their set."""
    sets: list[list[Result]] = []
    for result in results:
        known = next((it for it in sets if _agree(it[0], result)), None)
        if known is None:
            sets.append([result])
        else:
            known.append(result)
    return [it for it in sets if len(it) > 1]


def _agree(one: Result, other: Result) -> bool:
    wrong = [place for place, diff in enumerate(one.diffs) if not diff.agrees]
    if wrong != [place for place, diff in enumerate(other.diffs) if not diff.agrees]:
        return False
    for mine, theirs in zip_longest(one.returned, other.returned):
        if not isinstance(mine, np.ndarray) or not isinstance(theirs, np.ndarray):
            return False
    # A sequence has a difference for each of its tensors, so that their places mean nothing.
    if any(place >= len(one.returned) for place in wrong) or not wrong:
        return False
    return all(
        _near(
            one.returned[place],  # type: ignore[arg-type] # seen above
            other.returned[place],  # type: ignore[arg-type]
            min(one.diffs[place].max_absolute, other.diffs[place].max_absolute),
        )
        for place in wrong
    )


def _near(one: Array, other: Array, off: float) -> bool:
    """Tell whether two outputs are the same, but for little of how far both are off."""
    if describe(one) != describe(other):
        return False
    if kind_of(one.dtype) not in _FLOATS:
        return bool(np.array_equal(one, other))
    wide, others = (it.astype(np.complex128) for it in (one, other))
    with np.errstate(all="ignore"):
        # Outputs of another shape than the expected one have no distance to it.
        limit = off / _NEARER if isfinite(off) and off else _SHARE * np.abs(wide)
        near = (np.abs(wide - others) <= limit) | (wide == others)
        near |= np.isnan(wide) & np.isnan(others)
    return bool(near.all())
