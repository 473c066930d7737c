"""Record where the conditioned tolerance and ONNX's say otherwise of backends, and what came.

    python scripts/record_verdicts.py "ONNX Runtime 1.31.1=onnxruntime" ... > scripts/verdicts.json

Each case of onnx-node is judged by both. Of those that one passes and the other fails, the elements
that are furthest off are kept. scripts/exact_by_mpmath.py says who is right.
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from typing import Any

import numpy as np
import onnx

from onnxopt_cli import api
from onnxopt_cli.core.result import Outcome, Result

_ELEMENTS = 3


def main(*backends: str) -> None:
    """Print what is to be kept, a line for each output of a case on a backend."""
    cases = api.load("onnx-node")
    rows = []
    for name, backend in (it.split("=", 1) for it in backends):
        by_onnx = api.JudgeOptions(rule=api.ToleranceRule.ONNX)
        pairs = zip(api.run(cases, backend, judging=by_onnx), api.run(cases, backend), strict=True)
        for theirs, ours in pairs:
            outcomes = {theirs.outcome, ours.outcome}
            if outcomes == {Outcome.PASS, Outcome.FAIL}:
                rows += _rows(name, ours if ours.outcome is Outcome.FAIL else theirs, ours.outcome)
    lines = ",\n".join(json.dumps(row) for row in rows)
    print(f'{{"onnx": "{onnx.__version__}", "rows": [\n{lines}\n]}}')


def _rows(backend: str, failing: Result, ours: Outcome) -> list[dict[str, Any]]:
    return [
        {
            "backend": backend,
            "case": failing.case,
            "ours": ours.value,
            "output": diff.name,
            "came": [[list(it.index), _number(it.actual)] for it in islice(diff.worst, _ELEMENTS)],
        }
        for diff in failing.diffs
        if not diff.agrees
    ]


def _number(value: Any) -> int | str:
    return float(value).hex() if isinstance(value, float | np.floating) else int(value)


if __name__ == "__main__":
    main(*sys.argv[1:])
