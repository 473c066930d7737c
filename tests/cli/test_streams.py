"""Closed and full standard streams do not affect the files that a run writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from places import REPOSITORY

from onnxopt_cli.run.log.log_reader import read_log

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full and bash")

CASES = """\
onnxopt: 1
suite: demo
operator: Momentum
cases:
  - name: right
    attributes: {alpha: 0.9, beta: 1.0, mode: standard, norm_coefficient: 0.0}
    inputs: {R: 0.5, T: 1, X: [1.0, 2.0], G: [0.5, -0.5], V: [0.25, 0.0]}
  - name: wrong
    attributes: {alpha: 0.9, beta: 1.0, mode: standard, norm_coefficient: 0.0}
    inputs: {R: 0.5, T: 1, X: [1.0, 2.0], G: [0.5, -0.5], V: [0.25, 0.0]}
    outputs: {X_new: [7.0, 8.0], V_new: [9.0, 10.0]}
"""
LARGE_CASE = """\
onnxopt: 1
suite: demo
operator: Adam
cases:
  - name: large
    inputs: {R: 0.5, T: 1, X: &, G: &, V: &, H: &}
"""
OFF = """\
from onnxopt_cli.backends.resolve import resolve_backend


class Backend:
    \"\"\"Its errors are too large for any known mistake.\"\"\"

    def run(self, model, inputs):
        outputs = resolve_backend("numpy").prepare(model).run(inputs)
        return [output + 1000 for output in outputs]
"""
FILES = (
    "--no-explain --log run.jsonl --report json=run.json --report junit=run.xml --artifacts failing"
)


@pytest.fixture
def place(tmp_path):
    (tmp_path / "demo.yaml").write_text(CASES)
    (tmp_path / "off.py").write_text(OFF)
    return tmp_path


def environment():
    return {**os.environ, "PYTHONPATH": str(REPOSITORY)}


def call(place, script):
    """Run a bash script in which ``onnxopt`` calls the command, and return the ended process."""
    done = subprocess.run(
        ["bash", "-c", f'onnxopt() {{ "{sys.executable}" -m onnxopt_cli "$@"; }}; {script}'],  # noqa: S607
        cwd=place, env=environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stdout + done.stderr
    assert "internal error" not in done.stdout + done.stderr
    assert "Exception ignored" not in done.stdout + done.stderr
    return done


def require_everything_written(place, exit_code):
    results = json.loads((place / "run.json").read_text())["results"]
    ids = [result["case"] for result in results]
    assert ids == ["demo/demo/right", "demo/demo/wrong"]
    log = read_log(place / "run.jsonl")
    assert log is not None
    assert log.footer["exit_code"] == exit_code
    assert [result.case for result in log.results.values()] == ids
    assert (place / "run.xml").read_text().startswith("<?xml")


def test_full_disk_for_standard_output_loses_no_report_and_no_log(place):
    done = call(place, f"onnxopt run demo.yaml {FILES} > /dev/full")
    assert done.returncode == 2
    assert done.stderr == "error: cannot write the standard output: No space left on device\n"
    require_everything_written(place, exit_code=2)


def test_closed_pipe_loses_no_report_and_no_log(place):
    done = call(
        place, "onnxopt run demo.yaml -b python:off.py:Backend --isolation none "
        f"{FILES} | head -1; echo ${{PIPESTATUS[0]}}",
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "141"
    assert done.stderr == ""
    require_everything_written(place, exit_code=2)
    assert any((place / "failing").iterdir())


def test_report_that_cannot_be_printed_loses_no_other_report(place):
    done = call(place, "onnxopt run demo.yaml --report junit=- --report json=run.json > /dev/full")
    assert done.returncode == 2
    assert json.loads((place / "run.json").read_text())["exit_code"] == 2


@pytest.mark.parametrize(
    ("arguments", "code", "stream"),
    [
        pytest.param("run demo.yaml", 2, "2>/dev/full", marks=pytest.mark.slow),
        pytest.param("run demo.yaml", 2, "2>&-", marks=pytest.mark.slow),
        (
            "run demo.yaml -b python:off.py:Backend --isolation none -k right --no-explain",
            1,
            "2>/dev/full",
        ),
        ("run demo.yaml -k right", 0, "2>&-"),
        ("rnu", 2, "2>/dev/full"),
        ("run --repotr", 2, "2>&-"),
        ("run nowhere", 2, "2>/dev/full"),
        pytest.param("run nowhere", 2, "2>&-", marks=pytest.mark.slow),
        pytest.param("run demo.yaml -b exec:./nowhere", 4, "2>/dev/full", marks=pytest.mark.slow),
        pytest.param("run demo.yaml -k nothing", 5, "2>&-", marks=pytest.mark.slow),
    ],
)
def test_full_or_closed_standard_error_changes_no_exit_code(place, arguments, code, stream):
    done = call(place, f"onnxopt {arguments} {stream}")
    assert done.returncode == code
    assert done.stderr == ""


@pytest.mark.parametrize(
    "closed",
    [
        pytest.param("<&-", marks=pytest.mark.slow),
        pytest.param(">&-", marks=pytest.mark.slow),
        "<&- >&- 2>&-",
    ],
)
def test_run_without_standard_streams_has_the_same_verdict(place, closed):
    done = call(place, f"onnxopt run demo.yaml -b python:off.py:Backend {FILES} {closed}")
    assert done.returncode == 2
    require_everything_written(place, exit_code=2)


@pytest.mark.parametrize("words", ["run demo.yaml -k right", "list spec", "--version"])
def test_closed_standard_output_is_an_error(place, words):
    done = call(place, f"onnxopt {words} >&-")
    assert done.returncode == 2
    assert done.stderr == "error: cannot write the standard output: it is closed\n"


def test_unwritable_files_are_named_and_all_others_are_written(place):
    done = call(
        place, "ln -s /dev/full badge; "
        "onnxopt run demo.yaml --log run.jsonl --report json=run.json "
        "--report markdown=/dev/full --report junit=run.xml --report badge=badge",
    )  # fmt: skip
    assert done.returncode == 2
    assert "cannot write /dev/full: No space left on device" in done.stderr
    assert "cannot write badge: No space left on device" in done.stderr
    require_everything_written(place, exit_code=2)


@pytest.mark.slow
def test_ctrl_c_during_explanations_loses_no_verdict(place):
    tensor = "{random: {normal: {}, seed: 1}, shape: [20000]}"
    (place / "demo.yaml").write_text(LARGE_CASE.replace("&", tensor))
    process = subprocess.Popen(
        [sys.executable, "-m", "onnxopt_cli", "run", "demo.yaml", "-b", "python:off.py:Backend",
         "-v", "--log", "run.jsonl", "--report", "json=run.json"],
        cwd=place, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    lines = iter(process.stdout)
    assert any("FAIL" in line for line in lines)
    # The case has been printed. The search for an explanation has begun, and takes longer than the
    # sleep.
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    printed, messages = process.communicate(timeout=30)
    assert process.returncode == 130
    assert messages == "interrupted while looking for known mistakes: failures are not explained\n"
    assert "does not conform: 1 fail" in printed
    report = json.loads((place / "run.json").read_text())
    assert report["exit_code"] == 130
    assert [result["outcome"] for result in report["results"]] == ["fail"]
    assert read_log(place / "run.jsonl").footer["exit_code"] == 130


def test_operator_file_that_closes_standard_output_is_rejected(tmp_path):
    (tmp_path / "mine.py").write_text("import sys\nsys.stdout.close()\n")
    command = [sys.executable, "-m", "onnxopt_cli", "list", "spec", "--operators", "mine.py"]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "mine.py closes the standard output" in done.stderr
    assert "Traceback" not in done.stderr
