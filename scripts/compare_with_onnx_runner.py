"""Compare the verdicts of onnxopt and of onnx's test runner on all node cases of onnx.

Run this script in an environment with onnxopt[ort]:

    python scripts/compare_with_onnx_runner.py

onnxopt and the runner test the same backends. Therefore, only their judgements can differ. The
script prints a table for each backend, and a list of the cases whose verdicts differ. The script
exits with 1 if a difference is not listed in EXPLAINED.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep

from onnxopt_cli.backends.resolve import resolve_backend

#: Cases that onnx's runner judges wrongly, each with the reason.
EXPLAINED = {
    "test_loop16_seq_none": "the runner calls len() of a scalar in a sequence",
}


def runner_backend(name: str) -> type[Backend]:
    """Return a backend of onnxopt through the interface of onnx's runner."""
    wrapped = resolve_backend(name)

    class Adapter(Backend):
        @classmethod
        def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> BackendRep:  # noqa: ARG003
            prepared = wrapped.prepare(model)
            initialized = {tensor.name for tensor in model.graph.initializer}
            names = [value.name for value in model.graph.input if value.name not in initialized]

            class Prepared(BackendRep):
                def run(self, inputs: Any, **_: Any) -> Any:
                    pairs = zip(names, inputs, strict=True)
                    return prepared.run({name: _array(value) for name, value in pairs})

            return Prepared()

        @classmethod
        def supports_device(cls, device: str) -> bool:
            return device == "CPU"

    return Adapter


def _array(value: Any) -> Any:
    """Convert NumPy scalars in onnx's data to arrays, because backends expect arrays."""
    return np.asarray(value) if isinstance(value, np.generic) else value


class _Verdicts(unittest.TestResult):
    def __init__(self) -> None:
        super().__init__()
        self.passed: dict[str, bool] = {}

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        super().stopTest(test)
        name = test.id().rsplit(".", 1)[-1]
        failed = any(failure[0] is test for failure in self.failures + self.errors)
        skipped = any(skip[0] is test for skip in self.skipped)
        if not skipped:
            self.passed[name.removesuffix("_cpu")] = not failed


def runner_verdicts(backend: type[Backend]) -> dict[str, bool]:
    """Return whether each node case passes in onnx's runner."""
    from onnx.backend.test.runner import Runner

    verdicts = _Verdicts()
    silence = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stderr(silence):
        warnings.simplefilter("ignore")
        cases = Runner(backend, __name__).test_cases["OnnxBackendNodeModelTest"]
        unittest.defaultTestLoader.loadTestsFromTestCase(cases).run(verdicts)
    return verdicts.passed


def onnxopt_outcomes(backend: str) -> dict[str, str]:
    """Return the outcome of each node case in onnxopt."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        subprocess.run(
            [sys.executable, "-m", "onnxopt_cli", "run", "onnx-node", "-q", "-b", backend,
             "--lower", "never", "--tolerance", "onnx", "--report", f"json={report}"],
            check=False, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        results = json.loads(report.read_text())["results"]
    return {result["case"].split("/")[1]: result["outcome"] for result in results}


def main() -> int:
    """Compare the verdicts on both backends; return the exit code."""
    unexplained = 0
    for name in ("onnxruntime", "onnx-reference"):
        outcomes, runner_passes = onnxopt_outcomes(name), runner_verdicts(runner_backend(name))
        if outcomes.keys() != runner_passes.keys():
            unshared = sorted(outcomes.keys() ^ runner_passes.keys())
            sys.exit(f"{len(unshared)} cases judged by only one of the two: {unshared[:5]}")
        table = Counter((outcomes[case], runner_passes[case]) for case in outcomes)
        print(f"{name}: {len(outcomes)} node cases of onnx {onnx.__version__}")
        print(f"  {'onnxopt':<12} {'runner passes':>14} {'runner fails':>14}")
        for outcome in sorted(set(outcomes.values())):
            print(f"  {outcome:<12} {table[outcome, True]:>14} {table[outcome, False]:>14}")
        for case, outcome in sorted(outcomes.items()):
            if (outcome == "pass") != runner_passes[case]:
                reason = EXPLAINED.get(case)
                unexplained += reason is None
                verdict = "passes" if runner_passes[case] else "fails"
                print(f"  {case}: {outcome}, runner {verdict}: {reason or 'UNEXPLAINED'}")
    return int(unexplained > 0)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    sys.exit(main())
