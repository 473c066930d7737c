"""A run is resumed from its log, for example after the runner was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from demo import NAMES, backend, records, run_arguments, write_demo
from places import REPOSITORY


@pytest.fixture
def demo(workplace):
    return write_demo(workplace)


def kill_when(path, texts, arguments):
    """Run the command in a process, and kill it once its log contains all texts."""
    process = subprocess.Popen(
        [sys.executable, "-m", "onnxopt_cli", *arguments],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(600):
            if path.exists() and all(text in path.read_text() for text in texts):
                break
            assert process.poll() is None
            time.sleep(0.05)
        else:
            pytest.fail(f"the log lacks {texts}")
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL


def write_log(path, log_records):
    path.write_text("".join(f"{json.dumps(record)}\n" for record in log_records))


@pytest.mark.slow
def test_resume_after_a_kill_runs_only_cases_without_a_result(demo, onnxopt):
    path = demo / "run.jsonl"
    arguments = ["run", "demo.yaml", "-b", backend("SlowAtD"), "-j", "1"]
    # Case c is judged while the worker runs case d, so the test waits for both records.
    texts = ['"result":{"case":"demo/demo/c"', '"start","case":"demo/demo/d"']
    kill_when(path, texts, [*arguments, "--log", str(path)])
    before = path.read_text()
    ended = [record["result"]["case"] for record in records(path) if record["record"] == "end"]
    assert ended == ["demo/demo/a", "demo/demo/b", "demo/demo/c"]
    (demo / "go").touch()
    answer = onnxopt(*arguments, "--resume", path)
    assert answer.code == 0
    assert "conforms: 6 pass" in answer.out
    assert (demo / "ran").read_text() == "abcdef"
    assert path.read_text().startswith(before)
    assert [record["record"] for record in records(path)].count("resume") == 1


def test_finished_log_is_resumed_without_running_a_case(demo, onnxopt):
    path = demo / "run.jsonl"
    (demo / "go").touch()
    arguments = run_arguments("SlowAtD")
    onnxopt(*arguments, "--log", path)
    before = path.read_bytes()
    answer = onnxopt(*arguments, "--resume", path)
    assert (answer.code, "conforms: 6 pass" in answer.out) == (0, True)
    assert (demo / "ran").read_text() == "abcdef"
    assert path.read_bytes() == before


def test_resumed_run_still_stops_at_max_fail(demo, onnxopt):
    arguments = run_arguments("Off", "-x")
    onnxopt(*arguments, "--log", "run.jsonl")
    lines = (demo / "run.jsonl").read_text().splitlines(keepends=True)
    ends = [number for number, line in enumerate(lines) if line.startswith('{"record":"end"')]
    (demo / "run.jsonl").write_text("".join(lines[: ends[0] + 1]))
    answer = onnxopt(*arguments, "--resume", "run.jsonl")
    assert answer.code == 1
    assert "1 fail, 5 not-run" in answer.out


def test_cases_that_an_interrupted_run_skipped_are_run(demo, onnxopt):
    (demo / "go").touch()
    onnxopt(*run_arguments("SlowAtD", "--log", "run.jsonl"))
    *all_records, footer = records(demo / "run.jsonl")
    all_records[-1]["result"] |= {"outcome": "not-run", "outputs": []}
    interrupted = {**footer, "exit_code": 130, "counts": {"not-run": 1, "pass": 5}}
    write_log(demo / "run.jsonl", [*all_records, interrupted])
    answer = onnxopt(*run_arguments("SlowAtD", "--resume", "run.jsonl"))
    assert (answer.code, "conforms: 6 pass" in answer.out) == (0, True)
    assert (demo / "ran").read_text() == "abcdeff"
    assert onnxopt("report", "diff", "run.jsonl", "run.jsonl").code == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["-k", "demo/demo/[a-c]"], "the cases (6 with hash"),
        (["--rtol", "0.5"], "the option --rtol (None, now 0.5)"),
        (["--lower", "always"], "the option --lower (auto, now always)"),
        (["-b", "onnx-reference"], "the backends (python:vendor.py:OffAtC [vendor 1.5.0], now"),
        (["--shard", "1/2"], "the shard (all, now 1/2)"),
        (["--expect", "e.yaml"], "the content of the expectation files"),
        (["--rerun", "2"], "the option --rerun (None, now 2)"),
    ],
)
def test_log_of_another_run_is_rejected_with_the_difference(demo, onnxopt, change, message):
    (demo / "e.yaml").write_text("onnxopt-expect: 1\n")
    onnxopt(*run_arguments("OffAtC", "--log", "run.jsonl"))
    before = (demo / "run.jsonl").read_bytes()
    answer = onnxopt(*run_arguments("OffAtC", "--resume", "run.jsonl", *change))
    assert answer.code == 2
    assert "cannot resume run.jsonl" in answer.err
    assert message in answer.err
    assert (demo / "run.jsonl").read_bytes() == before


def test_log_with_a_changed_case_is_rejected(demo, onnxopt):
    onnxopt(*run_arguments("OffAtC", "--log", "run.jsonl"))
    text = (demo / "demo.yaml").read_text()
    (demo / "demo.yaml").write_text(text.replace("V: [0.25", "V: [0.5"))
    answer = onnxopt(*run_arguments("OffAtC", "--resume", "run.jsonl"))
    assert (answer.code, "the cases (6 with hash" in answer.err) == (2, True)


def test_log_of_another_version_of_the_backend_is_rejected(demo, onnxopt):
    onnxopt(*run_arguments("OffAtC", "--log", "run.jsonl"))
    log = (demo / "run.jsonl").read_text()
    (demo / "run.jsonl").write_text(log.replace("vendor 1.5.0", "vendor 1.4.0", 1))
    answer = onnxopt(*run_arguments("OffAtC", "--resume", "run.jsonl"))
    assert (answer.code, "[vendor 1.4.0], now" in answer.err) == (2, True)


@pytest.mark.parametrize("package", ["onnxopt", "python", "machine", "numpy", "onnx", "ml_dtypes"])
@pytest.mark.parametrize("finished", [True, False])
def test_log_of_other_versions_or_another_machine_is_rejected(demo, onnxopt, package, finished):
    onnxopt(*run_arguments("OffAtC", "--log", "run.jsonl"))
    header, *body = records(demo / "run.jsonl")
    version, header["versions"][package] = header["versions"][package], "0.0.1"
    write_log(demo / "run.jsonl", [header, *(body if finished else body[:2])])
    answer = onnxopt(*run_arguments("OffAtC", "--resume", "run.jsonl"))
    assert (answer.code, f"{package} (0.0.1, now {version})" in answer.err) == (2, True)


def test_log_of_another_host_is_resumed(demo, onnxopt):
    onnxopt(*run_arguments("numpy", "--log", "run.jsonl"))
    header, *body = records(demo / "run.jsonl")
    write_log(demo / "run.jsonl", [{**header, "hostname": "elsewhere"}, *body[:2]])
    assert onnxopt(*run_arguments("numpy", "--resume", "run.jsonl")).code == 0


def test_patterns_that_select_the_same_cases_are_equivalent(demo, onnxopt):
    first = onnxopt(*run_arguments("numpy", "-k", "*/[ab]", "--log", "run.jsonl"))
    resumed = onnxopt(
        *run_arguments("numpy", "-k", "demo/a", "-k", "demo/b", "--resume", "run.jsonl")
    )
    assert (first.code, resumed.code) == (0, 0)
    answer = onnxopt(*run_arguments("numpy", "-k", "demo/a", "-k", "/c", "--resume", "run.jsonl"))
    assert (answer.code, "the cases (2 with hash" in answer.err) == (2, True)


def test_options_that_affect_only_the_output_may_differ(demo, onnxopt):
    onnxopt(*run_arguments("OffAtC", "--log", "run.jsonl"))
    answer = onnxopt(*run_arguments("OffAtC", "--resume", "run.jsonl", "-v", "--report", "json=x"))
    assert answer.code == 1
    assert answer.out.count("demo/demo/") >= len(NAMES)


def test_missing_log_cannot_be_resumed(demo, onnxopt):
    answer = onnxopt(*run_arguments("numpy", "--resume", "run.jsonl"))
    assert (answer.code, "the log run.jsonl is missing" in answer.err) == (2, True)


def test_resume_and_another_log_exclude_each_other(demo, onnxopt):
    answer = onnxopt(*run_arguments("numpy", "--resume", "a.jsonl", "--log", "b.jsonl"))
    assert (answer.code, "--log names another file" in answer.err) == (2, True)
