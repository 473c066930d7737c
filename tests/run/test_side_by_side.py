"""Two commands that write to the same file or folder at the same time overwrite nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from demo import backend, run_arguments, write_demo
from places import REPOSITORY

WAITING = """\


class Waits(OffAtC):
    def answer(self, first, outputs):
        import pathlib, time

        folder = pathlib.Path(__file__).parent
        (folder / "begun").touch()
        while not (folder / "go").exists():
            time.sleep(0.01)
        return super().answer(first, outputs)
"""


@pytest.fixture
def demo(workplace):
    folder = write_demo(workplace)
    with (folder / "vendor.py").open("a") as file:
        file.write(WAITING)
    return folder


@pytest.fixture
def beside(demo, onnxopt):
    """Return a function that runs a command while a run of the backend ``Waits`` waits for it.

    The function returns the exit code and output of the command, and the exit code and errors of
    the waiting run.
    """

    def call(name, *options):
        waiting = subprocess.Popen(
            [sys.executable, "-m", "onnxopt_cli", *run_arguments("Waits", *options)],
            cwd=demo, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            while not (demo / "begun").exists():
                assert waiting.poll() is None, waiting.communicate()
            answer = onnxopt(*run_arguments(name, *options))
            (demo / "go").touch()
            _, err = waiting.communicate(timeout=60)
        finally:
            waiting.kill()
        assert "Traceback" not in err
        return answer, waiting.returncode, " ".join(err.split())

    return call


@pytest.mark.parametrize("exists", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_expectation_file_updated_by_another_run_is_not_overwritten(demo, beside, exists):
    if exists:
        Path("e.yaml").write_text("onnxopt-expect: 1\nexpect:\n")
    answer, code, err = beside("RaisesAtB", "--update-expect", "e.yaml")
    assert answer.code in {0, 1}
    assert code == 2
    assert "e.yaml is not written: it changed during the run" in err
    assert f'backend: "{backend("RaisesAtB")}"' in Path("e.yaml").read_text()


def test_artifacts_of_two_runs_do_not_mix(demo, beside):
    answer, code, err = beside("OffAtC", "--artifacts", "failing")
    assert answer.code == 1
    assert code == 2
    assert "failing is not empty" in err
    assert len(list(Path("failing").glob("*/*/README.txt"))) == 1


def test_backend_that_does_not_start_does_not_stop_the_others(demo, onnxopt):
    (demo / "broken.py").write_text("raise RuntimeError('no device')\n")
    run = ("run", "demo.yaml", "-b", "numpy", "-b", "python:broken.py:Backend", "-x")
    for isolation in ("process", "none"):
        answer = onnxopt(*run, "--isolation", isolation, "--log", f"{isolation}.jsonl")
        assert answer.code == 4
        assert "numpy conforms: 6 pass" in answer.out
        assert "python:broken.py:Backend could not be started: 6 not-run" in answer.out
        reason = (
            "python:broken.py:Backend: the backend could not be started: RuntimeError: no device"
        )
        assert f"not-run 6 on {reason}" in " ".join(answer.out.split())
        report = onnxopt("report", "render", f"{isolation}.jsonl", "--report", "badge=-")
        assert '"color": "red"' in report.out
    answer = onnxopt("run", "demo.yaml", "-b", "python:broken.py:Backend")
    assert (answer.code, "no device" in answer.err) == (4, True)
