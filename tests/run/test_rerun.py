"""``--rerun``: telling flaky from failing."""

from __future__ import annotations

import json

import pytest
from demo import backend, records, run_arguments, write_demo


@pytest.fixture
def demo(workplace):
    return write_demo(workplace)


def flaky(path):
    """Return what a JSON report says of flaky cases."""
    results = json.loads(path.read_text())["results"]
    return {it["case"]: (it["outcome"], it["flaky"]) for it in results if it["flaky"]}


def test_a_case_that_fails_now_and_then_is_flaky(demo, onnxopt):
    arguments = run_arguments("NowAndThen", "--rerun", "4", "--report", "json=out.json")
    answer = onnxopt(*arguments, "--log", "run.jsonl")
    assert answer.code == 1
    assert flaky(demo / "out.json") == {"demo/demo/c": ("fail", "2 of 5 passed")}
    assert "FAIL (flaky: 2 of 5 passed)" in answer.out
    assert "1 flaky" in answer.out
    last = next(it for it in records(demo / "run.jsonl") if it["record"] == "rerun")
    assert last["result"]["standing"] == "flaky"


def test_a_case_that_always_fails_is_not(demo, onnxopt):
    answer = onnxopt(*run_arguments("OffAtC", "--rerun", "3", "--report", "json=out.json"))
    assert answer.code == 1
    assert flaky(demo / "out.json") == {}
    assert "flaky" not in answer.out


@pytest.mark.parametrize(
    ("culprit", "isolation", "times"),
    [("b", "none", "2"), ("d", "none", "2"), ("b", "process", "1")],
)
def test_a_case_that_fails_only_after_another_names_it(demo, onnxopt, culprit, isolation, times):
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


def test_a_case_that_passes_only_after_another_names_it(demo, onnxopt):
    # Case d ends the worker, so that e meets one in which b has not run.
    arguments = ["run", "demo.yaml", "-b", backend("PassesAfterB"), "-j", "1"]
    answer = onnxopt(*arguments, "--no-explain", "--rerun", "1", "--report", "json=out.json")
    assert answer.code == 1
    assert flaky(demo / "out.json") == {
        "demo/demo/e": ("fail", "passes only after demo/demo/b"),
    }
    assert "1 crash" in answer.out


def test_an_expectation_can_allow_what_is_flaky_and_only_that(demo, onnxopt):
    (demo / "e.yaml").write_text(
        "onnxopt-expect: 1\nexpect: [{case: demo/demo/c, outcome: flaky}]\n"
    )
    options = ("--rerun", "4", "--expect", "e.yaml")
    answer = onnxopt(*run_arguments("NowAndThen", *options))
    assert (answer.code, "1 expected" in answer.out) == (0, True)
    assert onnxopt(*run_arguments("Right", *options)).code == 0
    assert onnxopt(*run_arguments("OffAtC", *options)).code == 1


def test_update_writes_that_a_case_is_flaky(demo, onnxopt):
    onnxopt(*run_arguments("NowAndThen", "--rerun", "4", "--update-expect", "e.yaml"))
    assert "case: demo/demo/c" in (demo / "e.yaml").read_text()
    assert "outcome: flaky" in (demo / "e.yaml").read_text()


def test_what_has_run_again_does_not_when_the_log_is_resumed(demo, onnxopt):
    arguments = run_arguments("NowAndThen", "--rerun", "4")
    onnxopt(*arguments, "--log", "run.jsonl")
    answers = (demo / "answers").stat().st_size
    lines = (demo / "run.jsonl").read_text().splitlines(keepends=True)
    (demo / "run.jsonl").write_text("".join(lines[:-1]))
    answer = onnxopt(*arguments, "--resume", "run.jsonl")
    assert (answer.code, "1 flaky" in answer.out) == (1, True)
    assert (demo / "answers").stat().st_size == answers


def test_a_kill_between_the_run_and_the_reruns_loses_neither(demo, onnxopt):
    arguments = run_arguments("NowAndThen", "--rerun", "4")
    onnxopt(*arguments, "--log", "run.jsonl")
    lines = (demo / "run.jsonl").read_text().splitlines(keepends=True)
    (demo / "run.jsonl").write_text("".join(lines[:-2]))
    answer = onnxopt(*arguments, "--resume", "run.jsonl")
    assert (answer.code, "1 flaky" in answer.out) == (1, True)


def test_what_conforms_or_is_unsupported_does_not_run_again(demo, onnxopt):
    (demo / "go").touch()
    onnxopt(*run_arguments("SlowAtD", "--rerun", "5"))
    assert (demo / "ran").read_text() == "abcdef"
    answer = onnxopt(*run_arguments("UnsupportedAtB", "--rerun", "5", "--log", "run.jsonl"))
    assert answer.code == 1
    assert "rerun" not in {it["record"] for it in records(demo / "run.jsonl")}
