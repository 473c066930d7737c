"""Small cases are judged in several processes; the results are those of a single process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from commands import run_command
from isolated import Run
from places import REPOSITORY

from onnxopt_cli.run import runner

# If X is 7, the formula executes the inserted statement. The statement kills the process,
# interrupts the parent of the process, or makes each call return another result.
OPERATOR = """\
import os, signal
from pathlib import Path

import numpy as np
from onnxopt_cli.operators.operator import FLOATS, Operator, Scalar

odd = [0.0]


def scaled(R, X):
    if isinstance(X, np.ndarray) and (X == 7).any():
        {statement}
    return (R * X,)


SCALED = Operator(
    name="Scaled", domain="my.company", version=1, formula=scaled, scalars=(Scalar("R", FLOATS),),
    tensors=("X",), outputs={{"Y": "X"}}, attributes=(), about="R X.", source="none",
    reformulations=(), known_mistakes=(),
)
"""
ONCE = "Path('done').exists() or Path('done').touch() or "
KILLED = f"{ONCE}os.kill(os.getpid(), signal.SIGKILL)"
# Two evaluations have different results: one becomes the expected result, the other the output.
ALTERNATING = "X = X + odd[0]; odd[0] = 1 - odd[0]"
INTERRUPTS = f"{ONCE}os.kill(os.getppid(), signal.SIGINT)"
CASES = 60


@pytest.fixture
def write(workplace):
    def write(statement, *faulty_cases):
        (workplace / "scaled.py").write_text(OPERATOR.format(statement=statement))
        text = "onnxopt: 1\nsuite: demo\noperator: Scaled\ncases:\n"
        for number in range(CASES):
            first = 7.0 if number in faulty_cases else 1.25
            text += f"  - name: case_{number}\n    inputs: {{R: 0.3, X: [{first}, {number}.5]}}\n"
        text += "  - name: refused\n    rejects: true\n    inputs: {R: [0.3, 0.4], X: [1.0]}\n"
        text += "  - name: wrong\n    inputs: {R: 0.3, X: [1.0]}\n    outputs: {Y: [5.0]}\n"
        (workplace / "demo.yaml").write_text(text)

    return write


def words(*options, targets="demo.yaml"):
    report = "--report=json=report.json"
    return ("run", targets, "--operators", "scaled.py", "--no-explain", report, *options)


def results(*options):
    done = run_command(*words(*options))
    assert "Traceback" not in done.stderr
    reported = json.loads(Path("report.json").read_text())["results"]
    return done.returncode, [without_seconds(result) for result in reported]


def without_seconds(result):
    return {name: value for name, value in result.items() if name != "seconds"}


def test_results_are_the_same_with_one_process_and_with_several(write, onnxopt):
    write(ALTERNATING, 3, 31)
    code, of_one_process = results("-j", "1", "--log", "1.jsonl")
    outcomes = [result["outcome"] for result in of_one_process]
    assert [index for index, outcome in enumerate(outcomes) if outcome == "fail"] == [3, 31]
    assert outcomes[-2:] == ["pass", "invalid"]
    assert results("-j", "3", "--log", "3.jsonl") == (code, of_one_process)
    answer = onnxopt("report", "diff", "1.jsonl", "3.jsonl")
    assert answer.code == 0, answer.out


def test_long_files_are_read_alike_by_one_and_by_several_processes(write, workplace):
    write(ALTERNATING)
    text = (workplace / "demo.yaml").read_text() + "# long\n" * 200_000
    (workplace / "cases").mkdir()
    for name in "ab":
        (workplace / "cases" / f"{name}.yaml").write_text(text)
    random = "{random: {normal: {}, seed: 1}, shape: [2]}"
    (workplace / "cases" / "random.yaml").write_text(text.replace("[1.25, 3.5]", random))
    (workplace / "cases" / "wrong.yaml").write_text(text.replace("[1.25, 3.5]", "[1.25, much]"))
    runs = []
    for jobs in "12":
        run_command(*words("-j", jobs, "--log", f"{jobs}.jsonl", targets="cases/"))
        record = json.loads(Path("report.json").read_text())
        header = json.loads(Path(f"{jobs}.jsonl").read_text().split("\n")[0])
        reported = [without_seconds(result) for result in record["results"]]
        runs.append((record["problems"], reported, header["cases"], header["contents"]))
    problems, reported, *_ = runs[0]
    assert len(problems) == 1
    assert len(reported) == 4 * (CASES + 2) - 1
    assert runs[0] == runs[1]


@pytest.mark.parametrize("rows_from_forks", [True, False])
def test_number_of_submitted_cases_is_limited_while_a_worker_computes(
    write, onnxopt, monkeypatch, rows_from_forks
):
    write(ALTERNATING)
    started, started_before_wait = [], []

    def finished_rows(plan):
        for case in plan.cases:
            started.append(case.id)
            is_finished = rows_from_forks and len(started) > 1
            yield judge(plan, runner._submit(plan, case)) if is_finished else None

    def judged(plan, submitted):
        started_before_wait.append(len(started))
        return judge(plan, submitted)

    judge = runner._judged
    monkeypatch.setattr(runner, "_finished_rows", finished_rows)
    monkeypatch.setattr(runner, "_judged", judged)
    onnxopt(*words("-j", "2"))
    count = CASES + 2
    assert len(started) == count
    assert len(started_before_wait) == (1 if rows_from_forks else count)
    assert started_before_wait[0] == count if rows_from_forks else started_before_wait[0] < 10


def test_missing_file_in_a_folder_is_named_and_the_others_run(write, workplace):
    write(ALTERNATING)
    (workplace / "gone.yaml").symlink_to("nowhere")
    done = run_command(*words("-q", "-j", "2", targets="."))
    assert (done.returncode, "gone.yaml: the file is missing" in done.stderr) == (2, True)
    assert "pass" in done.stdout


def test_cases_of_a_killed_process_are_run_by_another(write, workplace):
    write(KILLED, 20)
    code, reported = results("-j", "2")
    assert code == 2
    assert (workplace / "done").exists()
    outcomes = [result["outcome"] for result in reported]
    assert outcomes == ["pass"] * (CASES + 1) + ["invalid"]


def test_option_x_stops_at_the_first_failure_in_the_order_of_the_cases(write):
    write(ALTERNATING, 11, 12)
    code, reported = results("-j", "2", "-x")
    assert code == 1
    outcomes = [result["outcome"] for result in reported]
    assert outcomes == ["pass"] * 11 + ["fail"] + ["not-run"] * (CASES - 10)


def test_ctrl_c_ends_the_run_in_order_and_leaves_no_process(write, workplace):
    write(INTERRUPTS, 40)
    mark = f"ONNXOPT_TEST_{uuid.uuid4().hex}"
    process = subprocess.Popen(
        [sys.executable, "-m", "onnxopt_cli", *words("-j", "2", "--log", "log.jsonl")],
        env={**os.environ, mark: "1", "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    run = Run(process, mark, workplace / "report.json").wait()
    assert run.code == 128 + signal.SIGINT
    assert run.survivors(0) == []
    outcomes = list(run.outcomes.values())
    passed = outcomes.count("pass")
    assert passed <= CASES
    assert outcomes == ["pass"] * passed + ["not-run"] * (CASES + 2 - passed)
    resumed = run_command(*words("-j", "2", "--resume", "log.jsonl"))
    assert resumed.returncode == 2
    assert run.read().outcomes == dict.fromkeys(run.outcomes, "pass") | {"wrong": "invalid"}
