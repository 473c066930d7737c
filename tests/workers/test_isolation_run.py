"""Runs with worker processes: order of results, limits, interruption, leftover processes."""

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

pytestmark = [
    pytest.mark.isolated,
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc"),
]


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


@pytest.mark.slow
def test_results_keep_the_order_of_cases_with_several_workers(many):
    run = run_to_end(many, "segfaults", "-j", "3")
    assert list(run.outcomes) == [f"case{i}" for i in range(12)]
    crashes = [name for name, outcome in run.outcomes.items() if outcome == "crash"]
    assert crashes == ["case3", "case7"]


@pytest.mark.parametrize("jobs", [pytest.param("1", marks=pytest.mark.slow), "3"])
def test_max_fail_stops_after_the_same_case_with_several_workers(many, jobs):
    run = run_to_end(many, "segfaults", "-x", "-j", jobs)
    expected = ["pass"] * 3 + ["crash"] + ["not-run"] * 8
    assert list(run.outcomes.values()) == expected
    assert run.code == 1
    assert run.survivors() == []


@pytest.mark.slow
def test_other_worker_continues_during_a_slow_case(many):
    (many / "slow.py").write_text(
        "import time\n"
        "from pathlib import Path\n"
        "class Slow:\n"
        "    def run(self, model, inputs):\n"
        "        folder = Path(__file__).parent\n"
        "        (folder / f'ran{time.monotonic_ns()}').touch()\n"
        "        end = time.monotonic() + 40\n"
        "        while inputs['R'] > 0.4 and len([*folder.glob('ran*')]) < 11:\n"
        "            assert time.monotonic() < end\n"
        "            time.sleep(0.01)\n"
        "        return [inputs['X'] - inputs['R'] * inputs['V'], inputs['V']]\n"
    )
    write_cases(many, {"slow": 0.5} | {f"case{i}": 0.25 for i in range(10)})
    run = run_to_end(many, f"python:{many / 'slow.py'}:Slow", "-j", "2")
    assert "error" not in run.outcomes.values()


@pytest.mark.slow
def test_backend_that_dies_at_every_20th_case_fails_only_those_cases(tmp_path):
    write_cases(tmp_path, {f"case{i}": 0.25 for i in range(1, 46)})
    run = run_to_end(tmp_path, "SegfaultsOften", "-j", "1")
    failures = [name for name, outcome in run.outcomes.items() if outcome != "pass"]
    assert failures == ["case20", "case40"]
    assert len(run.outcomes) == 45


def test_worker_is_replaced_after_a_number_of_cases(workplace, onnxopt, monkeypatch):
    monkeypatch.setattr("onnxopt_cli.workers.pool._CASES_PER_WORKER", 10)
    write_cases(workplace, {f"case{i}": 0.25 for i in range(12)})
    onnxopt("run", "demo.yaml", "-b", f"python:{HOSTILE}:SaysWhoItIs", "--report", "json=r.json")
    results = json.loads((workplace / "r.json").read_text())["results"]
    # Each message is the process id of the worker.
    messages = [result["message"] for result in results]
    assert [messages.count(message) for message in dict.fromkeys(messages)] == [10, 2]


@pytest.mark.slow
def test_each_backend_has_its_own_workers(demo):
    run = run_to_end(demo, "segfaults", "-b", f"python:{HOSTILE}:Well", "-b", "numpy")
    rows = json.loads(run.report.read_text())["results"]
    assert [(row["case"].rsplit("/", 1)[1], row["outcome"]) for row in rows] == [
        ("first", "pass"), ("first", "pass"), ("first", "pass"),
        ("bad", "crash"), ("bad", "pass"), ("bad", "pass"),
        ("last", "pass"), ("last", "pass"), ("last", "pass"),
    ]  # fmt: skip


def test_first_ctrl_c_ends_with_a_report_of_finished_cases(many):
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
    ("number", "code"),
    [
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow),
    ],
)
def test_interrupted_case_is_killed_and_exit_code_names_the_signal(demo, number, code):
    run = start(demo, "Hangs")
    wait_until(lambda: run.sleepers() == 1)
    run.process.send_signal(number)
    run.wait()
    assert run.code == code
    assert set(run.outcomes.values()) == {"not-run"}
    assert run.survivors() == []


def test_second_ctrl_c_ends_at_once(demo):
    run = start(demo, "Hangs", "--isolation", "none")
    wait_until(lambda: run.sleepers() == 1)
    run.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert run.process.poll() is None
    # On a busy machine, the first signal may still be pending, and a second one is merged with it.
    # The signal is therefore sent repeatedly.
    for _ in range(4):
        run.process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            run.process.wait(10)
            break
    assert run.code == 130
    # Without isolation, nothing kills the processes that the backend has started.
    for process in run.survivors(0):
        os.kill(process.number, signal.SIGKILL)
    run.process.communicate()


def test_killing_the_runner_ends_all_processes_of_the_backend(demo):
    run = start(demo, "Hangs")
    # The runner, a supervisor, a worker and the worker's sleeping daemon run now.
    wait_until(lambda: run.sleepers() == 1)
    run.process.kill()
    run.process.communicate()
    assert run.survivors() == []


@pytest.mark.slow
def test_killing_the_runner_ends_a_stopped_supervisor(demo):
    run = start(demo, "stops_all", "-j", "1")
    supervisor = Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children")

    def stopped():
        stats = [
            Path(f"/proc/{number}/stat").read_text() for number in supervisor.read_text().split()
        ]
        return "T" in [stat.rpartition(")")[2].split()[0] for stat in stats]

    wait_until(stopped)
    run.process.kill()
    run.process.communicate()
    survivors = run.survivors()
    for process in survivors:
        os.kill(process.number, signal.SIGKILL)
    assert survivors == []


@pytest.mark.slow
def test_worker_that_does_not_read_a_large_request_is_a_timeout(tmp_path):
    write_cases(tmp_path, {"first": 0.25})
    text = (tmp_path / "demo.yaml").read_text()
    large = "{random: {normal: {}, seed: 1}, shape: [240000]}"
    text += text.split("cases:\n")[1].replace("name: first", "name: large")
    head, tail = text.rsplit("X: [1.0, 2.0], G: [0.5, -0.5], V: [0.25, 0.0]", 1)
    (tmp_path / "demo.yaml").write_text(f"{head}X: {large}, G: {large}, V: {large}{tail}")
    run = run_to_end(tmp_path, "NeverReads", "-j", "1", "--timeout", "5")
    assert run.outcomes == {"first": "pass", "large": "timeout"}, run.out + run.err
    assert run.survivors() == []


def test_backend_runs_in_the_runner_without_isolation(demo):
    run = run_to_end(demo, "exits", "--isolation", "none")
    assert run.code == 0
    assert not run.outcomes


@pytest.mark.slow
def test_numpy_runs_in_a_worker_on_request(demo):
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
def test_invalid_limit_is_a_usage_error(demo, onnxopt, monkeypatch, options, says):
    monkeypatch.chdir(demo)
    answer = onnxopt("run", "demo.yaml", *options)
    assert answer.code == 2
    assert says in " ".join(answer.err.split())


def test_missing_backend_cannot_be_started(demo, onnxopt, monkeypatch):
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


@pytest.mark.slow
def test_run_in_process_imports_no_code_of_worker_processes(tmp_path):
    command = [sys.executable, "-c", IN_PROCESS]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    modules = [
        f"onnxopt_cli.workers.{name}"
        for name in ("forked_processes", "interruption", "private_folder", "processes")
    ]
    assert run.stdout.splitlines()[-1] == str(modules)
