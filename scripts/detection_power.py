"""Count the outputs in which the conditioned tolerance detects a relative error of 1e-5.

    python scripts/detection_power.py [CORPUS] [OPERATOR ...]

The cases are those of a corpus that are a single node with float32 outputs, which have moderate
inputs. An element counts if it is finite and not zero, and the error is detected if it exceeds the
tolerance of the element. The second share is that of the elements that are at least a tenth of the
largest element of their output: others may be small because terms cancel.
"""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np

import onnxopt_cli as onnxopt
from onnxopt_cli.oracle.condition_estimate import NoReferenceError, condition

RELATIVE_ERROR = 1e-5
LEAST_SHARE = 0.95


def main(corpus: str = "onnx-node", *operators: str) -> None:
    """Print the shares of each operator, the smallest first, and the number at the goal."""
    elements: Counter[str] = Counter()
    detected: Counter[str] = Counter()
    large: Counter[str] = Counter()
    detected_large: Counter[str] = Counter()
    for case in onnxopt.load_cases(corpus):
        problem = case.load()
        nodes = problem.model.graph.node
        if len(nodes) != 1 or (operators and nodes[0].op_type not in operators):
            continue
        try:
            conditioned_outputs = condition(problem.model, problem.inputs)
        except NoReferenceError:
            continue
        for conditioned_output in conditioned_outputs:
            if not conditioned_output.right:
                continue
            expected, limit = conditioned_output.right[0]
            if expected.dtype != np.float32:
                continue
            size = np.abs(expected.astype(np.float64))
            counts = np.isfinite(size) & (size > 0)
            is_detected = counts & (RELATIVE_ERROR * size > limit)
            is_large = counts & (size >= size[counts].max(initial=0.0) / 10)
            name = nodes[0].op_type
            elements[name] += int(counts.sum())
            detected[name] += int(is_detected.sum())
            large[name] += int(is_large.sum())
            detected_large[name] += int((is_detected & is_large).sum())
    names = [name for name in elements if elements[name]]
    shares = {name: detected[name] / elements[name] for name in names}
    large_shares = {name: detected_large[name] / large[name] for name in names}
    for name in sorted(names, key=shares.__getitem__):
        print(
            f"{name:24} {elements[name]:7} elements {shares[name]:6.1%}, "
            f"{large[name]:7} large {large_shares[name]:6.1%}"
        )
    reached, reached_large = (
        sum(share >= LEAST_SHARE for share in column.values()) for column in (shares, large_shares)
    )
    print(
        f"{LEAST_SHARE:.0%} are reached by {reached} of {len(names)} operators, "
        f"and by {reached_large} for large elements"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
