"""Compare the verdicts on doubles by error bounds in long double and in quadruple precision.

    python scripts/wide_types.py

The script computes all nodes in ``cases/`` that have double outputs, and the error bounds of these
outputs in both types. Each output element is moved up and down by fractions of its error bound, and
to the doubles next to the bound. The script counts the expected values and the verdicts that differ
between the two types. The script exits with 1 if a verdict differs on an element that was moved by
a fraction of its bound.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy_quaddtype import QuadPrecDType

import onnxopt_cli as onnxopt
from onnxopt_cli.core.tolerance import Branch
from onnxopt_cli.core.values import Array
from onnxopt_cli.interpret.bound.error_bound import bound
from onnxopt_cli.operators.call import sole_call

SHARES = (0.5, 0.9, 1.1, 2.0)


def main() -> int:
    """Print the counts; return the exit code."""
    counts = Counter[str]()
    for case in onnxopt.load_cases(str(Path(__file__).parent.parent / "cases")):
        content = case.load()
        call = None if content.must_reject else sole_call(content.model, content.inputs)
        if content.trajectory is None and call is not None:
            outputs = zip(bound(call), bound(call, wide=QuadPrecDType()), strict=True)
            for long_double, quad in outputs:
                if long_double.expected.dtype == np.float64:
                    count_differences(counts, long_double.branch, quad.branch)
    for description, count in counts.items():
        print(f"{description:40}{count:10,}")
    differing = "verdicts that differ for values at {} of the bound"
    return int(any(counts[differing.format(share)] for share in SHARES))


def count_differences(counts: Counter[str], long_double: Branch, quad: Branch) -> None:
    """Compare the expected values, and the verdicts on moved elements."""
    expected, limit = long_double.expected, long_double.limit
    counts["elements"] += expected.size
    equal = (expected == quad.expected) | np.isnan(expected)
    counts["expected values differ"] += int(np.count_nonzero(~equal))
    with np.errstate(all="ignore"):
        for sign in (-1, 1):
            for share in SHARES:
                moved = expected + sign * share * limit
                differing = differing_verdicts(long_double, quad, moved)
                counts[f"verdicts that differ for values at {share} of the bound"] += differing
            last = expected + sign * limit
            counts["verdicts that differ for values within one ulp of the bound"] += sum(
                differing_verdicts(long_double, quad, last + step * np.spacing(last))
                for step in (-1, 0, 1)
            )


def differing_verdicts(first: Branch, second: Branch, values: Array) -> int:
    """Return the number of values that only one of two expected results accepts."""
    return int(np.count_nonzero(is_accepted(first, values) != is_accepted(second, values)))


def is_accepted(branch: Branch | None, values: Array) -> Any:
    """Return a mask of the values that an expected result or one of its alternatives accepts."""
    if branch is None:
        return False
    near = np.abs(values - branch.expected) <= branch.limit
    return near | (values == branch.expected) | is_accepted(branch.otherwise, values)


if __name__ == "__main__":
    sys.exit(main())
