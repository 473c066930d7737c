"""Compare onnxopt's verdict on every node case of the installed onnx with onnx's own runner.

Run it in an environment with onnxopt[ort]:

    python scripts/compare_with_onnx_runner.py

It prints a table a backend and every case on which the two disagree, and exits with 1 if a
disagreement is not one of those explained in EXPLAINED.
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

import onnx
from onnx.backend.base import Backend
from plain_backends import OnnxRuntimeBackend, ReferenceBackend

#: Cases that onnx's runner judges wrongly, and why.
EXPLAINED = {
    "test_identity_opt": "the runner cannot compare optionals",
    "test_optional_get_element_optional_sequence": "the runner cannot compare optionals",
    "test_loop16_seq_none": "the runner's data hold None in a sequence",
}


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
    for name, backend in (
        ("onnxruntime", OnnxRuntimeBackend),
        ("onnx-reference", ReferenceBackend),
    ):
        ours, theirs = our_verdicts(name), runner_verdicts(backend)
        assert ours.keys() == theirs.keys(), sorted(ours.keys() ^ theirs.keys())[:5]
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
