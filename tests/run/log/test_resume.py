"""Going on with a log after the runner was killed."""

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


def kill_when(path, has, arguments):
    """Run the real command, and kill the runner once its log has all that is looked for."""
    process = subprocess.Popen(
        [sys.executable, "-m", "onnxopt_cli", *arguments],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(600):
            if path.exists() and all(it in path.read_text() for it in has):
                break
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL


@pytest.mark.slow
def test_after_a_kill_only_what_has_no_end_runs_again(demo, onnxopt):
    path = demo / "run.jsonl"
    arguments = ["run", "demo.yaml", "-b", backend("SlowAtD"), "-j", "1"]
    # Results are judged beside the worker: d may have begun before c's end is in the log.
    has = ['"case":"demo/demo/c","outcome"', '"start","case":"demo/demo/d"']
    kill_when(path, has, [*arguments, "--log", str(path)])
    before = path.read_text()
    ended = [it["result"]["case"] for it in records(path) if it["record"] == "end"]
    assert ended == ["demo/demo/a", "demo/demo/b", "demo/demo/c"]
    (demo / "go").touch()
    answer = onnxopt(*arguments, "--resume", path)
    assert answer.code == 0
    assert "conforms: 6 pass" in answer.out
    assert (demo / "ran").read_text() == "abcdef"
    assert path.read_text().startswith(before)
    assert [it["record"] for it in records(path)].count("resume") == 1


def test_a_finished_log_gives_its_verdict_without_running(demo, onnxopt):
    path = demo / "run.jsonl"
    (demo / "go").touch()
    arguments = run_arguments("SlowAtD")
    onnxopt(*arguments, "--log", path)
    before = path.read_bytes()
    answer = onnxopt(*arguments, "--resume", path)
    assert (answer.code, "conforms: 6 pass" in answer.out) == (0, True)
    assert (demo / "ran").read_text() == "abcdef"
    assert path.read_bytes() == before


def test_a_run_stopped_by_max_fail_stays_stopped(demo, onnxopt):
    arguments = run_arguments("Off", "-x")
    onnxopt(*arguments, "--log", "run.jsonl")
    cut = (demo / "run.jsonl").read_text().splitlines(keepends=True)
    ends = [number for number, line in enumerate(cut) if line.startswith('{"record":"end"')]
    (demo / "run.jsonl").write_text("".join(cut[: ends[0] + 1]))
    answer = onnxopt(*arguments, "--resume", "run.jsonl")
    assert answer.code == 1
    assert "1 fail, 5 not-run" in answer.out


def test_what_an_interrupted_run_left_out_runs(demo, onnxopt):
    (demo / "go").touch()
    onnxopt(*run_arguments("SlowAtD", "--log", "run.jsonl"))
    *all_records, footer = records(demo / "run.jsonl")
    all_records[-1]["result"]["outcome"] = "not-run"
    lines = [*all_records, {**footer, "exit_code": 130, "counts": {"not-run": 1, "pass": 5}}]
    (demo / "run.jsonl").write_text("".join(f"{json.dumps(it)}\n" for it in lines))
    answer = onnxopt(*run_arguments("SlowAtD", "--resume", "run.jsonl"))
    assert (answer.code, "conforms: 6 pass" in answer.out) == (0, True)
    assert (demo / "ran").read_text() == "abcdeff"
    assert onnxopt("report", "diff", "run.jsonl", "run.jsonl").code == 0


@pytest.mark.parametrize(
    ("change", "says"),
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
def test_another_run_is_refused_with_what_differs(demo, onnxopt, change, says):
    (demo / "e.yaml").write_text("onnxopt-expect: 1\n")
    onnxopt(*run_arguments("OffAtC", "--log", "run.jsonl"))
    before = (demo / "run.jsonl").read_bytes()
    answer = onnxopt(*run_arguments("OffAtC", "--resume", "run.jsonl", *change))
    assert answer.code == 2
    assert "cannot resume run.jsonl" in answer.err
    assert says in answer.err
    assert (demo / "run.jsonl").read_bytes() == before


def test_a_case_that_changed_is_refused(demo, onnxopt):
    onnxopt(*run_arguments("OffAtC", "--log", "run.jsonl"))
    text = (demo / "demo.yaml").read_text()
    (demo / "demo.yaml").write_text(text.replace("V: [0.25", "V: [0.5"))
    answer = onnxopt(*run_arguments("OffAtC", "--resume", "run.jsonl"))
    assert (answer.code, "the cases (6 with hash" in answer.err) == (2, True)


def test_another_version_of_the_backend_is_refused(demo, onnxopt):
    onnxopt(*run_arguments("OffAtC", "--log", "run.jsonl"))
    log = (demo / "run.jsonl").read_text()
    (demo / "run.jsonl").write_text(log.replace("vendor 1.5.0", "vendor 1.4.0", 1))
    answer = onnxopt(*run_arguments("OffAtC", "--resume", "run.jsonl"))
    assert (answer.code, "[vendor 1.4.0], now" in answer.err) == (2, True)


@pytest.mark.parametrize("what", ["onnxopt", "python", "machine", "numpy", "onnx", "ml_dtypes"])
@pytest.mark.parametrize("finished", [True, False])
def test_other_versions_and_machines_are_refused(demo, onnxopt, what, finished):
    onnxopt(*run_arguments("OffAtC", "--log", "run.jsonl"))
    header, *rest = records(demo / "run.jsonl")
    mine, header["versions"][what] = header["versions"][what], "0.0.1"
    kept = [header, *(rest if finished else rest[:2])]
    (demo / "run.jsonl").write_text("".join(f"{json.dumps(it)}\n" for it in kept))
    answer = onnxopt(*run_arguments("OffAtC", "--resume", "run.jsonl"))
    assert (answer.code, f"{what} (0.0.1, now {mine})" in answer.err) == (2, True)


def test_a_log_of_another_host_alone_is_resumed(demo, onnxopt):
    onnxopt(*run_arguments("numpy", "--log", "run.jsonl"))
    header, *rest = records(demo / "run.jsonl")
    kept = [{**header, "hostname": "elsewhere"}, *rest[:2]]
    (demo / "run.jsonl").write_text("".join(f"{json.dumps(it)}\n" for it in kept))
    assert onnxopt(*run_arguments("numpy", "--resume", "run.jsonl")).code == 0


def test_other_patterns_that_select_the_same_cases_are_the_same_run(demo, onnxopt):
    first = onnxopt(*run_arguments("numpy", "-k", "*/[ab]", "--log", "run.jsonl"))
    again = onnxopt(
        *run_arguments("numpy", "-k", "demo/a", "-k", "demo/b", "--resume", "run.jsonl")
    )
    assert (first.code, again.code) == (0, 0)
    other = onnxopt(*run_arguments("numpy", "-k", "demo/a", "-k", "/c", "--resume", "run.jsonl"))
    assert (other.code, "the cases (2 with hash" in other.err) == (2, True)


def test_what_is_only_shown_differently_is_the_same_run(demo, onnxopt):
    onnxopt(*run_arguments("OffAtC", "--log", "run.jsonl"))
    answer = onnxopt(*run_arguments("OffAtC", "--resume", "run.jsonl", "-v", "--report", "json=x"))
    assert answer.code == 1
    assert answer.out.count("demo/demo/") >= len(NAMES)


def test_a_log_that_is_not_there_cannot_be_resumed(demo, onnxopt):
    answer = onnxopt(*run_arguments("numpy", "--resume", "run.jsonl"))
    assert (answer.code, "the log run.jsonl is missing" in answer.err) == (2, True)


def test_resume_writes_no_other_log(demo, onnxopt):
    answer = onnxopt(*run_arguments("numpy", "--resume", "a.jsonl", "--log", "b.jsonl"))
    assert (answer.code, "--log names another one" in answer.err) == (2, True)
