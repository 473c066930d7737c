"""Print the derivation of one tolerance step by step. It is the example of docs/tolerance.md.

    python scripts/tolerance_example.py

The script calls Adagrad's formula with operands that have error bounds, and prints the intermediate
values of the formula.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import numpy as np

from onnxopt_cli.interpret.bound.error_bound import bound
from onnxopt_cli.operators.builtin.adagrad import ADAGRAD
from onnxopt_cli.operators.call import bind, complete_attributes

INPUTS = {"R": 0.1, "T": 2, "X": 1.0, "G": -0.5, "H": 2.0}
ATTRIBUTES = {"norm_coefficient": 0.001, "epsilon": 1e-5, "decay_factor": 0.1}
U = 2.0**-24


def main() -> None:
    """Print the intermediate values, then the allowed error of each output."""
    arrays = [np.array(value, np.int64 if name == "T" else np.float32)
              for name, value in INPUTS.items()]  # fmt: skip
    call = bind(ADAGRAD, arrays, complete_attributes(ADAGRAD, ATTRIBUTES))
    assigned: dict[str, Any] = {}

    def record_locals(frame: FrameType, event: str, _: Any) -> None:
        if event == "return" and frame.f_code is ADAGRAD.formula.__code__:
            assigned.update(frame.f_locals)

    sys.setprofile(record_locals)
    derived_outputs = bound(call)
    sys.setprofile(None)
    print(f"u = 2^-24 = {U:.3g}")
    print(f"{'':<15} {'value':>14} {'e / u':>10}")
    for name in ("r", "G_regularized", "H_new", "H_adaptive", "X_new"):
        operand = assigned[name]
        print(f"{name:<15} {float(operand.value):14.9f} {float(operand.error) / U:10.3f}")
    for name, derived_output in zip(ADAGRAD.outputs, derived_outputs, strict=True):
        limit = float(derived_output.limit)
        ulps = limit / float(np.spacing(derived_output.expected))
        print(
            f"{name}: expected {derived_output.expected!s}, allowed error {limit:.3g} "
            f"({ulps:.1f} ulp)"
        )


if __name__ == "__main__":
    main()
