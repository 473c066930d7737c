"""Compare the reference outputs of onnx's node cases in their own opsets and in older opsets.

    python scripts/check_older_opsets.py

With ``opset=auto``, a backend may get the model of a case in an older opset. The script computes
each such model in its own opset and in the older opsets. It uses onnx's reference and, if
installed, ONNX Runtime. Kernels of different versions may round differently. The script prints the
number of cases that have an older model, and each difference that exceeds rounding. The script
exits with 1 if a difference exceeds rounding.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import onnx

from onnxopt_cli import load_cases
from onnxopt_cli.backends.host import same_bits
from onnxopt_cli.backends.older_opsets import older_models
from onnxopt_cli.backends.resolve import resolve_backend
from onnxopt_cli.errors import OnnxoptError

FLOAT16_BYTES = 2
# Operators whose outputs are random.
RANDOM = {"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomUniform"}


def computed_by(backend: str) -> Callable[[onnx.ModelProto, Any], list[Any] | None]:
    """Return a function that computes a model on a backend, and returns None after an error."""
    wrapped = resolve_backend(backend)

    def compute(model: onnx.ModelProto, inputs: Any) -> list[Any] | None:
        try:
            return [*wrapped.prepare(model).run(deepcopy(inputs))]
        except Exception:  # noqa: BLE001 - the backend does not support the model
            return None

    return compute


def agree(first: Any, second: Any) -> bool:
    """Return whether two values have the same type and shape, and equal elements up to rounding."""
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


def compare(
    newest: onnx.ModelProto,
    older_forms: Sequence[tuple[int, onnx.ModelProto]],
    inputs: Any,
    compute: Callable[[onnx.ModelProto, Any], list[Any] | None],
) -> dict[int, bool]:
    """For each older opset, return whether the older model has the same outputs as the newest one.

    Models that the backend cannot compute are left out.
    """
    outputs = compute(newest, inputs) if older_forms else None
    if outputs is None:
        return {}
    agreements = {}
    for version, model in older_forms:
        older_outputs = compute(model, inputs)
        if older_outputs is not None:
            agreements[version] = agree(outputs, older_outputs)
    return agreements


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
        for name, compute in backends.items():
            agreements = compare(problem.model, models, problem.inputs, compute)
            compared += len(agreements)
            differences += [
                f"{case.id} in opset {version} on {name}"
                for version, agrees in agreements.items()
                if not agrees
            ]
    print(f"{offered} of {cases} cases have an older model; {compared} comparisons")
    print("\n".join([*differences, f"{len(differences)} differences"]))
    return int(bool(differences))


if __name__ == "__main__":
    sys.exit(main())
