"""Runs with worker processes: order, limits, interruption, and that no process is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from isolated import HOSTILE, run_to_end, start, write_cases

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


@pytest.fixture
def demo(tmp_path):
    write_cases(tmp_path, {"first": 0.25, "bad": 0.5, "last": 0.125})
    return tmp_path


@pytest.fixture
def many(tmp_path):
    write_cases(tmp_path, {f"case{i}": 0.5 if i in {3, 7} else 0.25 for i in range(12)})
    return tmp_path


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_results_come_in_the_order_of_the_cases_whatever_the_number_of_workers(many):
    run = run_to_end(many, "segfaults", "-j", "3")
    assert list(run.outcomes) == [f"case{i}" for i in range(12)]
    assert [name for name, it in run.outcomes.items() if it == "crash"] == ["case3", "case7"]


@pytest.mark.parametrize("jobs", ["1", "3"])
def test_max_fail_stops_after_the_same_case_whatever_the_number_of_workers(many, jobs):
    run = run_to_end(many, "segfaults", "-x", "-j", jobs)
    expected = ["pass"] * 3 + ["crash"] + ["not-run"] * 8
    assert list(run.outcomes.values()) == expected
    assert run.code == 1
    assert run.survivors() == []


def test_a_backend_that_dies_at_every_20th_case_loses_those_cases_alone(tmp_path):
    write_cases(tmp_path, {f"case{i}": 0.25 for i in range(1, 46)})
    run = run_to_end(tmp_path, "SegfaultsOften", "-j", "1")
    assert [name for name, it in run.outcomes.items() if it != "pass"] == ["case20", "case40"]
    assert len(run.outcomes) == 45


def test_a_worker_is_replaced_after_so_many_cases(workplace, onnxopt, monkeypatch):
    monkeypatch.setattr("onnxopt_cli.workers.pool._CASES_PER_WORKER", 10)
    write_cases(workplace, {f"case{i}": 0.25 for i in range(12)})
    onnxopt("run", "demo.yaml", "-b", f"python:{HOSTILE}:SaysWhoItIs", "--report", "json=r.json")
    said = [it["message"] for it in json.loads((workplace / "r.json").read_text())["results"]]
    assert [said.count(who) for who in dict.fromkeys(said)] == [10, 2]


def test_several_backends_have_workers_of_their_own(demo):
    run = run_to_end(demo, "segfaults", "-b", f"python:{HOSTILE}:Well", "-b", "numpy")
    rows = json.loads(run.report.read_text())["results"]
    assert [(row["case"].rsplit("/", 1)[1], row["outcome"]) for row in rows] == [
        ("first", "pass"), ("first", "pass"), ("first", "pass"),
        ("bad", "crash"), ("bad", "pass"), ("bad", "pass"),
        ("last", "pass"), ("last", "pass"), ("last", "pass"),
    ]  # fmt: skip


def test_the_first_ctrl_c_ends_with_a_report_of_what_was_done(many):
    log = many / "run.jsonl"
    run = start(many, "Waits", "-j", "1", "--log", str(log))
    wait_until(lambda: log.exists() and '"record":"end"' in log.read_text())
    run.process.send_signal(signal.SIGINT)
    run.wait()
    assert run.code == 130
    outcomes = list(run.outcomes.values())
    assert outcomes[0] == "pass"
    assert outcomes[-1] == "not-run"
    assert len(outcomes) == 12
    assert run.results["case11"]["message"] == "interrupted"
    assert run.survivors() == []


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_an_interrupted_case_is_killed_and_the_exit_code_says_by_what(demo, number, code):
    run = start(demo, "Hangs")
    wait_until(lambda: run.sleepers() == 1)
    run.process.send_signal(number)
    run.wait()
    assert run.code == code
    assert set(run.outcomes.values()) == {"not-run"}
    assert run.survivors() == []


def test_a_second_ctrl_c_ends_at_once(demo):
    run = start(demo, "Hangs", "--isolation", "none")
    wait_until(lambda: run.sleepers() == 1)
    run.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert run.process.poll() is None
    # A busy machine may have kept the first until now, and the second would be one with it.
    for _ in range(4):
        run.process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            run.process.wait(10)
            break
    assert run.code == 130
    # What an unwatched backend has started is for the user to end.
    for process in run.survivors(0):
        os.kill(process.number, signal.SIGKILL)
    run.process.communicate()


def test_when_the_runner_is_killed_nothing_of_the_backend_survives(demo):
    run = start(demo, "Hangs")
    # The runner, a supervisor, a worker and its sleeping daemon.
    wait_until(lambda: run.sleepers() == 1)
    run.process.kill()
    run.process.communicate()
    assert run.survivors() == []


def test_when_the_runner_is_killed_a_supervisor_that_was_stopped_leaves_nothing_either(demo):
    run = start(demo, "stops_all", "-j", "1")
    supervisor = Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children")

    def stopped():
        listed = supervisor.read_text().split()
        states = [
            Path(f"/proc/{it}/stat").read_text().rpartition(")")[2].split()[0] for it in listed
        ]
        return "T" in states

    wait_until(stopped)
    run.process.kill()
    run.process.communicate()
    left = run.survivors()
    for process in left:
        os.kill(process.number, signal.SIGKILL)
    assert left == []


def test_a_worker_that_does_not_read_a_large_request_is_a_timeout(tmp_path):
    write_cases(tmp_path, {"first": 0.25})
    text = (tmp_path / "demo.yaml").read_text()
    large = "{random: {normal: {}, seed: 1}, shape: [240000]}"
    text += text.split("cases:\n")[1].replace("name: first", "name: large")
    head, tail = text.rsplit("X: [1.0, 2.0], G: [0.5, -0.5], V: [0.25, 0.0]", 1)
    (tmp_path / "demo.yaml").write_text(f"{head}X: {large}, G: {large}, V: {large}{tail}")
    run = run_to_end(tmp_path, "NeverReads", "-j", "1", "--timeout", "5")
    assert run.outcomes == {"first": "pass", "large": "timeout"}, run.out + run.err
    assert run.survivors() == []


def test_without_isolation_the_backend_runs_in_the_runner(demo):
    run = run_to_end(demo, "exits", "--isolation", "none")
    assert run.code == 0
    assert not run.outcomes


def test_our_own_reference_runs_in_a_worker_if_asked(demo):
    run = run_to_end(demo, f"python:{HOSTILE}:Well", "-b", "numpy", "--isolation", "process")
    assert run.code == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--memory", "2 GB"], "write it as in 2GiB"),
        (["--memory", "1MiB"], "less than 64MiB"),
        (["-j", "0"], "neither auto nor a number"),
        (["--timeout", "0"], "not in the range"),
        (["--isolation", "vm"], "is not one of"),
    ],
)
def test_a_limit_that_is_none_is_wrong_usage(demo, onnxopt, monkeypatch, options, says):
    monkeypatch.chdir(demo)
    answer = onnxopt("run", "demo.yaml", *options)
    assert answer.code == 2
    assert says in " ".join(answer.err.split())


def test_a_backend_that_is_not_there_cannot_be_started(demo, onnxopt, monkeypatch):
    monkeypatch.chdir(demo)
    answer = onnxopt("run", "demo.yaml", "-b", "python:nowhere.py:Backend")
    assert answer.code == 4
    assert "does not exist" in answer.err


IN_PROCESS = """
import sys
from onnxopt_cli.cli import main
try:
    main(["run", "spec", "-b", "onnx-reference", "--isolation", "none", "-k", "adam"])
except SystemExit as end:
    assert end.code == 0
print(sorted(name for name in sys.modules if name.startswith("onnxopt_cli.workers.")))
"""


def test_run_in_process_imports_no_code_of_worker_processes(tmp_path):
    command = [sys.executable, "-c", IN_PROCESS]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    signals, limits, forked = (
        f"onnxopt_cli.workers.{name}" for name in ("interruption", "processes", "parallel")
    )
    assert run.stdout.splitlines()[-1] == str([signals, forked, limits])
