"""Count how many cases of a corpus are judged by conditioning, by their element types.

    python scripts/judged_by_conditioning.py [CORPUS]

Lists the rest, each with the reason. A case counts as of a type if it has outputs of that type; of
float32, if it has inputs of it too. It counts as judged if all those outputs are.
"""

from __future__ import annotations

import sys
from collections import defaultdict

import numpy as np

from onnxopt_cli.cases.onnx.corpora import corpus
from onnxopt_cli.config.run_config import (
    Judging,
    LoweringMode,
    ToleranceRule,
)
from onnxopt_cli.core.tolerance import Provenance, Relative
from onnxopt_cli.core.values import dtype_name
from onnxopt_cli.oracle.expected import expected_result
from onnxopt_cli.oracle.reference_oracle import REFERENCE_WORKER, ReferenceOracle
from onnxopt_cli.run.executors import InProcess
from onnxopt_cli.workers.interruption import Interruption

TYPES = ("float32", "float16", "bfloat16", "float64", "complex64", "complex128")


def main(name: str = "onnx-node") -> None:
    """Print the numbers and the reasons."""
    judging = Judging(tolerance=ToleranceRule.CONDITIONED)
    reference_oracle = ReferenceOracle(judging)
    here = InProcess(REFERENCE_WORKER, LoweringMode.NEVER, Interruption(), None)
    reference_oracle.workers = lambda: here.submit
    count: defaultdict[str, int] = defaultdict(int)
    rest: defaultdict[str, list[str]] = defaultdict(list)
    for case in corpus(name)[0]:
        content = case.load()
        key = expected_result(content, case.location, judging)
        answer = reference_oracle.ask(content, key)
        complete = key if answer is None else answer()
        given = {_type(it) for it in content.inputs.values()}
        for kind in TYPES:
            outputs = [it for it, value in key.outputs.items() if _type(value) == kind]
            if not outputs or (kind == "float32" and kind not in given):
                continue
            count[kind] += 1
            reasons = [_reason(complete.tolerances[it]) for it in outputs]
            if any(reasons):
                rest[kind].append(f"{case.id}: {next(filter(None, reasons))}")
    for kind in TYPES:
        if count[kind]:
            judged = count[kind] - len(rest[kind])
            print(f"{kind}: {judged} of {count[kind]} ({judged / count[kind]:.1%})")
            print("".join(f"    {line}\n" for line in rest[kind]), end="")


def _type(value: object) -> str:
    return dtype_name(value.dtype) if isinstance(value, np.ndarray) else ""


def _reason(tolerance: object) -> str:
    if isinstance(tolerance, Relative):
        return tolerance.reason or "nobody asked"
    own = getattr(tolerance, "provenance", None)
    return "" if own in {Provenance.CONDITIONED, Provenance.DERIVED} else str(tolerance)


if __name__ == "__main__":
    main(*sys.argv[1:])
