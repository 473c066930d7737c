"""Compare the reference outputs of onnx's node cases with those of their older models.

    python scripts/check_older_opsets.py

Every model that ``opset=auto`` would offer to a backend is computed with onnx's reference and, if
installed, with ONNX Runtime, in its own opset and in the older ones. Kernels of different versions
may round differently. The script prints the number of cases that have an older model and each
larger difference, and exits with 1 if it finds one.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from onnxopt_cli import load_cases
from onnxopt_cli.backends.host import same_bits
from onnxopt_cli.backends.older_opsets import older_models
from onnxopt_cli.backends.resolve import resolve_backend
from onnxopt_cli.errors import OnnxoptError

FLOAT16_BYTES = 2
# Operators whose outputs are drawn anew at each run.
RANDOM = {"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomUniform"}


def computed_by(backend: str) -> Callable[[onnx.ModelProto, Any], list[Any] | None]:
    """Return a function that computes a model; it returns None if the backend cannot."""
    wrapped = resolve_backend(backend)

    def compute(model: onnx.ModelProto, inputs: Any) -> list[Any] | None:
        try:
            copies = {
                name: np.array(value) if isinstance(value, np.ndarray) else value
                for name, value in inputs.items()
            }
            return [*wrapped.prepare(model).run(copies)]
        except Exception:  # noqa: BLE001 - the backend does not support the model
            return None

    return compute


def agree(first: Any, second: Any) -> bool:
    """Return whether two values agree in type and shape, and up to rounding."""
    if isinstance(first, list):
        return len(first) == len(second) and all(map(agree, first, second))
    if not isinstance(first, np.ndarray):
        return bool(first == second)
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return False
    if first.dtype.kind not in "fc":
        return same_bits(first, second)
    tolerance = 1e-2 if first.itemsize == FLOAT16_BYTES else 1e-5
    return np.allclose(first, second, rtol=tolerance, atol=tolerance, equal_nan=True)


def main() -> int:
    """Print the differences and return the exit code."""
    warnings.simplefilter("ignore")
    backends = {}
    for name in ("onnx-reference", "onnxruntime"):
        try:
            backends[name] = computed_by(name)
        except OnnxoptError as error:
            print(error.message)
    cases = offered = compared = 0
    differences = []
    for case in load_cases("onnx-node"):
        problem = case.load()
        if not problem.inputs or RANDOM & {*(case.operators or ())}:
            continue
        cases += 1
        models = [*older_models(problem.model)]
        offered += bool(models)
        for name, compute in backends.items() if models else ():
            outputs = compute(problem.model, problem.inputs)
            for version, model in models if outputs is not None else ():
                older_outputs = compute(model, problem.inputs)
                if older_outputs is None:
                    continue
                compared += 1
                if not all(map(agree, outputs or (), older_outputs)):
                    differences.append(f"{case.id} in opset {version} on {name}")
    print(f"{offered} of {cases} cases have an older model; {compared} comparisons")
    print("\n".join([*differences, f"{len(differences)} differences"]))
    return int(bool(differences))


if __name__ == "__main__":
    sys.exit(main())
