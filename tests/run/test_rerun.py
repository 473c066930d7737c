"""The option ``--rerun`` distinguishes flaky cases from cases that always fail."""

from __future__ import annotations

import json

import pytest
from demo import backend, records, run_arguments, write_demo


@pytest.fixture
def demo(workplace):
    return write_demo(workplace)


def flaky(path):
    """Return (outcome, description) of each flaky case in a JSON report, by id."""
    results = json.loads(path.read_text())["results"]
    return {
        result["case"]: (result["outcome"], result["flaky"])
        for result in results
        if result["flaky"]
    }


def test_case_that_fails_in_some_runs_is_flaky(demo, onnxopt):
    arguments = run_arguments("NowAndThen", "--rerun", "4", "--report", "json=out.json")
    answer = onnxopt(*arguments, "--log", "run.jsonl")
    assert answer.code == 1
    assert flaky(demo / "out.json") == {"demo/demo/c": ("fail", "2 of 5 passed")}
    assert "FAIL (flaky: 2 of 5 passed)" in answer.out
    assert "1 flaky" in answer.out
    rerun = next(record for record in records(demo / "run.jsonl") if record["record"] == "rerun")
    assert rerun["result"]["standing"] == "flaky"


def test_case_that_always_fails_is_not_flaky(demo, onnxopt):
    answer = onnxopt(*run_arguments("OffAtC", "--rerun", "3", "--report", "json=out.json"))
    assert answer.code == 1
    assert flaky(demo / "out.json") == {}
    assert "flaky" not in answer.out


@pytest.mark.parametrize(
    ("culprit", "isolation", "times"),
    [
        ("b", "none", "2"),
        ("d", "none", "2"),
        pytest.param("b", "process", "1", marks=pytest.mark.slow),
    ],
)
def test_case_that_fails_only_after_another_case_is_flaky(demo, onnxopt, culprit, isolation, times):
    arguments = [
        "run",
        "demo.yaml",
        "-b",
        backend(f"FailsAfter{culprit.upper()}"),
        "--isolation",
        isolation,
        "-j",
        "1",
    ]
    answer = onnxopt(*arguments, "--no-explain", "--rerun", times, "--report", "json=out.json")
    assert answer.code == 1
    assert flaky(demo / "out.json") == {
        "demo/demo/e": ("fail", f"fails only after demo/demo/{culprit}"),
    }


@pytest.mark.slow
@pytest.mark.isolated
def test_case_that_passes_only_after_another_case_is_flaky(demo, onnxopt):
    # Case d ends the worker, so e runs in a new worker, in which b has not run.
    arguments = ["run", "demo.yaml", "-b", backend("PassesAfterB"), "-j", "1"]
    answer = onnxopt(*arguments, "--no-explain", "--rerun", "1", "--report", "json=out.json")
    assert answer.code == 1
    assert flaky(demo / "out.json") == {
        "demo/demo/e": ("fail", "passes only after demo/demo/b"),
    }
    assert "1 crash" in answer.out


def test_expected_flaky_case_may_fail_in_some_runs_but_not_in_all(demo, onnxopt):
    (demo / "e.yaml").write_text(
        "onnxopt-expect: 1\nexpect: [{case: demo/demo/c, outcome: flaky}]\n"
    )
    options = ("--rerun", "4", "--expect", "e.yaml")
    answer = onnxopt(*run_arguments("NowAndThen", *options))
    assert (answer.code, "1 expected" in answer.out) == (0, True)
    assert onnxopt(*run_arguments("Right", *options)).code == 0
    assert onnxopt(*run_arguments("OffAtC", *options)).code == 1


def test_updated_expectations_contain_flaky_cases(demo, onnxopt):
    onnxopt(*run_arguments("NowAndThen", "--rerun", "4", "--update-expect", "e.yaml"))
    assert "case: demo/demo/c" in (demo / "e.yaml").read_text()
    assert "outcome: flaky" in (demo / "e.yaml").read_text()


def test_resumed_run_does_not_repeat_a_rerun(demo, onnxopt):
    arguments = run_arguments("NowAndThen", "--rerun", "4")
    onnxopt(*arguments, "--log", "run.jsonl")
    answers = (demo / "answers").stat().st_size
    lines = (demo / "run.jsonl").read_text().splitlines(keepends=True)
    (demo / "run.jsonl").write_text("".join(lines[:-1]))
    answer = onnxopt(*arguments, "--resume", "run.jsonl")
    assert (answer.code, "1 flaky" in answer.out) == (1, True)
    assert (demo / "answers").stat().st_size == answers


def test_resume_after_a_kill_between_run_and_reruns_completes_both(demo, onnxopt):
    arguments = run_arguments("NowAndThen", "--rerun", "4")
    onnxopt(*arguments, "--log", "run.jsonl")
    lines = (demo / "run.jsonl").read_text().splitlines(keepends=True)
    (demo / "run.jsonl").write_text("".join(lines[:-2]))
    answer = onnxopt(*arguments, "--resume", "run.jsonl")
    assert (answer.code, "1 flaky" in answer.out) == (1, True)


def test_conforming_and_unsupported_cases_do_not_run_again(demo, onnxopt):
    (demo / "go").touch()
    onnxopt(*run_arguments("SlowAtD", "--rerun", "5"))
    assert (demo / "ran").read_text() == "abcdef"
    answer = onnxopt(*run_arguments("UnsupportedAtB", "--rerun", "5", "--log", "run.jsonl"))
    assert answer.code == 1
    assert "rerun" not in {record["record"] for record in records(demo / "run.jsonl")}
