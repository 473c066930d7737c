"""Count where quads yield other expected doubles, or other verdicts, than long double does.

    python scripts/wide_types.py

Of all single nodes of the suites with double outputs, each element is moved up and down: by shares
of its limit, and to the double that long double says is the last within it and to the next. It
exits with 1 where a verdict on one that is moved by a share is another.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy_quaddtype import QuadPrecDType

from onnxopt_cli import api
from onnxopt_cli.core.tolerance import Branch
from onnxopt_cli.core.values import Array
from onnxopt_cli.interpret.bound.error_bound import bound
from onnxopt_cli.interpret.single_node import sole_call

_SHARES = (0.5, 0.9, 1.1, 2.0)


def main() -> int:
    """Print what was counted."""
    counted = Counter[str]()
    for case in api.load(str(Path(__file__).parent.parent / "cases")):
        content = case.load()
        call = None if content.must_reject else sole_call(content.model, content.inputs)
        if content.trajectory is None and call is not None:
            for own, quad in zip(bound(call), bound(call, wide=QuadPrecDType()), strict=True):
                if own.expected.dtype == np.float64:
                    _count(counted, own.branch, quad.branch)
    for what, count in counted.items():
        print(f"{what:40}{count:10,}")
    return int(any(counted[f"other verdicts at {share} of the limit"] for share in _SHARES))


def _count(counted: Counter[str], own: Branch, quad: Branch) -> None:
    counted["elements"] += own.expected.size
    same = (own.expected == quad.expected) | np.isnan(own.expected)
    counted["other expected values"] += np.count_nonzero(~same)
    with np.errstate(all="ignore"):
        for sign in (-1, 1):
            for share in _SHARES:
                moved = own.expected + sign * share * own.limit
                counted[f"other verdicts at {share} of the limit"] += _differ(own, quad, moved)
            last = own.expected + sign * own.limit
            counted["other verdicts one ulp around"] += sum(
                _differ(own, quad, last + step * np.spacing(last)) for step in (-1, 0, 1)
            )


def _differ(own: Branch, quad: Branch, moved: Array) -> int:
    return np.count_nonzero(_right(own, moved) != _right(quad, moved))


def _right(branch: Branch | None, moved: Array) -> Any:
    if branch is None:
        return False
    near = np.abs(moved - branch.expected) <= branch.limit
    return near | (moved == branch.expected) | _right(branch.otherwise, moved)


if __name__ == "__main__":
    sys.exit(main())
