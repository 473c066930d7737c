"""Count the cases of a corpus that have a conditioned or derived tolerance, by element type.

    python scripts/conditioned_coverage.py [CORPUS]

A case is counted once for each floating-point or complex type of its outputs. For float32, a case
counts only if it also has float32 inputs. The script lists the cases without a conditioned or
derived tolerance, with the reason.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict

import numpy as np

import onnxopt_cli as onnxopt
from onnxopt_cli.core.tolerance import Provenance, Relative, Tolerance
from onnxopt_cli.core.values import dtype_name

TYPES = ("float32", "float16", "bfloat16", "float64", "complex64", "complex128")


def main(corpus: str = "onnx-node") -> None:
    """Print the numbers of cases, and the reasons why cases are not counted."""
    cases = onnxopt.load_cases(corpus)
    judging = onnxopt.Judging(tolerance=onnxopt.ToleranceRule.CONDITIONED)
    totals: defaultdict[str, int] = defaultdict(int)
    uncovered: defaultdict[str, list[str]] = defaultdict(list)
    for case, result in zip(cases, onnxopt.run(cases, "numpy", judging=judging), strict=True):
        inputs = [value for value in case.load().inputs.values() if isinstance(value, np.ndarray)]
        input_types = {dtype_name(value.dtype) for value in inputs}
        tolerances: defaultdict[str, list[Tolerance | None]] = defaultdict(list)
        for diff in result.diffs:
            tolerances[re.split(r"\W", diff.kind)[0]].append(diff.tolerance)
        for element_type in TYPES:
            if element_type not in tolerances:
                continue
            if element_type == "float32" and element_type not in input_types:
                continue
            totals[element_type] += 1
            reasons = list(filter(None, map(missing_reason, tolerances[element_type])))
            if reasons:
                uncovered[element_type].append(f"{case.id}: {reasons[0]}")
    for element_type in TYPES:
        if total := totals[element_type]:
            covered = total - len(uncovered[element_type])
            print(f"{element_type}: {covered} of {total} ({covered / total:.1%})")
            for line in uncovered[element_type]:
                print(f"    {line}")


def missing_reason(tolerance: Tolerance | None) -> str:
    """Return why a tolerance is neither conditioned nor derived; otherwise an empty text."""
    if isinstance(tolerance, Relative):
        return tolerance.reason or "fixed tolerance"
    provenance = getattr(tolerance, "provenance", None)
    return "" if provenance in {Provenance.CONDITIONED, Provenance.DERIVED} else str(tolerance)


if __name__ == "__main__":
    main(*sys.argv[1:])
