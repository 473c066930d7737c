"""Compare onnxopt's verdict on every node case of the installed onnx with onnx's own runner.

Run it in an environment with onnxopt[ort]:

    python scripts/compare_with_onnx_runner.py

Both drive the backend in the same way, so that only the judging differs. It prints a table a
backend and every case on which the two disagree, and exits with 1 if a disagreement is not one of
those explained in EXPLAINED.
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

#: Cases that onnx's runner judges wrongly, and why.
EXPLAINED = {
    "test_loop16_seq_none": "the runner takes the length of a scalar in a sequence",
}


def runner_backend(name: str) -> type[Backend]:
    """Return one of our backends as onnx's runner takes them."""
    ours = resolve_backend(name)

    class Adapted(Backend):  # type: ignore[misc]
        @classmethod
        def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> BackendRep:  # noqa: ARG003
            prepared = ours.prepare(model)
            initialized = {tensor.name for tensor in model.graph.initializer}
            names = [it.name for it in model.graph.input if it.name not in initialized]
            rep = BackendRep()
            rep.run = lambda inputs, **_: prepared.run(
                {name: _array(value) for name, value in zip(names, inputs, strict=True)}
            )
            return rep

        @classmethod
        def supports_device(cls, device: str) -> bool:
            return device == "CPU"

    return Adapted


def _array(value: Any) -> Any:
    """Return NumPy's scalars among onnx's data as the arrays that backends are given."""
    return np.asarray(value) if isinstance(value, np.generic) else value


class _Verdicts(unittest.TestResult):
    def __init__(self) -> None:
        super().__init__()
        self.passed: dict[str, bool] = {}

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        super().stopTest(test)
        name = test.id().rsplit(".", 1)[-1]
        bad = [it for it, _ in self.failures + self.errors if it is test]
        skipped = any(it is test for it, _ in self.skipped)
        if not skipped:
            self.passed[name.removesuffix("_cpu")] = not bad


def runner_verdicts(backend: type[Backend]) -> dict[str, bool]:
    """Return for each node case whether it passes in onnx's own runner."""
    from onnx.backend.test.runner import Runner

    verdicts = _Verdicts()
    silence = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stderr(silence):
        warnings.simplefilter("ignore")
        cases = Runner(backend, __name__).test_cases["OnnxBackendNodeModelTest"]
        unittest.defaultTestLoader.loadTestsFromTestCase(cases).run(verdicts)
    return verdicts.passed


def our_verdicts(backend: str) -> dict[str, str]:
    """Return onnxopt's outcome of each node case."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        subprocess.run(
            [sys.executable, "-m", "onnxopt_cli", "run", "onnx-node", "-q", "-b", backend,
             "--lower", "never", "--tolerance", "onnx", "--report", f"json={report}"],
            check=False, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        results = json.loads(report.read_text())["results"]
    return {it["case"].split("/")[1]: it["outcome"] for it in results}


def main() -> int:
    """Compare both backends; return the exit code."""
    unexplained = 0
    for name in ("onnxruntime", "onnx-reference"):
        ours, theirs = our_verdicts(name), runner_verdicts(runner_backend(name))
        if ours.keys() != theirs.keys():
            sys.exit(f"judged by one of them only: {sorted(ours.keys() ^ theirs.keys())[:5]}")
        table = Counter((ours[case], theirs[case]) for case in ours)
        print(f"{name}: {len(ours)} node cases of onnx {onnx.__version__}")
        print(f"  {'onnxopt':<12} {'runner passes':>14} {'runner fails':>14}")
        for outcome in sorted(set(ours.values())):
            print(f"  {outcome:<12} {table[outcome, True]:>14} {table[outcome, False]:>14}")
        for case in sorted(ours):
            agree = (ours[case] == "pass") == theirs[case]
            if not agree:
                reason = EXPLAINED.get(case)
                unexplained += reason is None
                verdict = "passes" if theirs[case] else "fails"
                print(f"  {case}: {ours[case]}, runner {verdict}: {reason or 'UNEXPLAINED'}")
    return int(unexplained > 0)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    sys.exit(main())
