"""The command ``onnxopt run`` with backends that are commands."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from exec_commands import spec
from isolated import start
from places import PLUGINS

from onnxopt_cli.backends.exec import exec_backend
from onnxopt_cli.cli import console

CASE = """\
onnxopt: 1
suite: demo
operator: {operator}
opset: 18
cases:
  - name: first
    inputs: {inputs}
    outputs: {outputs}
  - name: second
    inputs: {inputs}
    outputs: {outputs}
"""
MOMENTUM = """\
onnxopt: 1
suite: demo
operator: Momentum
cases:
  - name: plain
    attributes: {alpha: 0.9, beta: 1.0, mode: standard, norm_coefficient: 0.0}
    inputs: {R: 0.1, T: 1, X: [1.0, 2.0], G: [0.5, -0.5], V: [0.25, 0.0]}
"""


@pytest.fixture
def identity(workplace):
    """Write two cases of Identity, and return their folder."""
    tensor = "[1.5, -2.0]"
    text = CASE.format(
        operator="Identity",
        inputs=f"{{input: {tensor}}}",
        outputs=f"{{output: {tensor}}}",
    )
    (workplace / "demo.yaml").write_text(text)
    return workplace


def outcomes(onnxopt, backend, *more, code):
    run = ("run", "demo.yaml", "-b", backend, "--no-explain", "--report", "json=report.json")
    answer = onnxopt(*run, *more)
    assert answer.code == code, answer.text
    return {
        result["case"].rpartition("/")[2]: result
        for result in json.loads(Path("report.json").read_text())["results"]
    }


def test_correct_command_conforms(identity, onnxopt):
    results = outcomes(onnxopt, spec(), code=0)
    assert {result["outcome"] for result in results.values()} == {"pass"}


@pytest.mark.parametrize(
    ("mode", "outcome", "words", "isolation"),
    [
        ("dies", "crash", "ended with exit code 7", "process"),
        ("dies", "crash", "ended with exit code 7", "none"),
        ("segfaults", "crash", "killed by SIGSEGV", "none"),
        pytest.param(
            "hangs", "timeout", "not respond within 2 s", "process", marks=pytest.mark.slow
        ),
        ("hangs", "timeout", "not respond within 2 s", "none"),
        ("breaks-once", "protocol", "responded to the request -1", "none"),
    ],
)
def test_failing_command_fails_one_case(mode, outcome, words, isolation, identity, onnxopt):
    backend = spec(mode, identity / "marker", timeout=2)
    results = outcomes(onnxopt, backend, "--isolation", isolation, code=1)
    assert results["first"]["outcome"] == outcome
    assert words in results["first"]["message"]
    assert results["second"]["outcome"] == "pass"


def test_timeout_of_the_run_limits_commands(identity, onnxopt):
    results = outcomes(onnxopt, spec("hangs", identity / "marker"), "--timeout", "0.5", code=1)
    assert "the command did not respond within 0.5 s" in results["first"]["message"]
    assert results["second"]["outcome"] == "pass"


@pytest.mark.isolated
def test_timeout_of_a_command_raises_the_limits_of_the_run(identity, onnxopt):
    # Without the option of the command, 0.01 s is too short for a worker to import NumPy.
    limits = ("-j", "1", "--startup-timeout", "0.01", "--timeout", "0.01")
    assert onnxopt("run", "demo.yaml", "-b", spec(), *limits).code == 4
    outcomes(onnxopt, spec(timeout=20), *limits, code=0)


@pytest.mark.isolated
def test_late_second_response_fails_no_other_case(identity, onnxopt):
    backend = spec("repeats-earlier-response", identity / "marker")
    results = outcomes(onnxopt, backend, "-j", "1", code=1)
    late = results.pop("between-cases")
    assert late["outcome"] == "protocol"
    assert "responded to the request" in late["message"]
    assert {result["outcome"] for result in results.values()} == {"pass"}


@pytest.mark.isolated
@pytest.mark.parametrize(
    "mode", ["responds-and-dies", pytest.param("responds-and-dies-slowly", marks=pytest.mark.slow)]
)
def test_death_between_cases_fails_no_case(mode, identity, onnxopt):
    results = outcomes(onnxopt, spec(mode), "-j", "1", code=1)
    death = results.pop("between-cases")
    assert death["outcome"] == "crash"
    assert "ended with exit code 0" in death["message"]
    assert {name: result["outcome"] for name, result in results.items()} == {
        "first": "pass",
        "second": "pass",
    }


@pytest.mark.parametrize("isolation", [pytest.param("process", marks=pytest.mark.slow), "none"])
@pytest.mark.parametrize(
    ("mode", "outcome", "words"),
    [
        ("ends-badly", "crash", "ended with exit code 9 after shutdown"),
        ("never-ends", "timeout", "1 s"),
    ],
)
def test_improper_shutdown_keeps_passes_but_does_not_conform(
    mode, outcome, words, isolation, identity, onnxopt, monkeypatch
):
    monkeypatch.setattr(exec_backend, "_SHUTDOWN_SECONDS", 1.0)
    results = outcomes(onnxopt, spec(mode), "--isolation", isolation, "--timeout", "1", code=1)
    teardown = results.pop("teardown")
    assert teardown["case"] == "worker/teardown"
    assert teardown["outcome"] == outcome
    assert words in teardown["message"]
    assert {result["outcome"] for result in results.values()} == {"pass"}


def test_fault_at_shutdown_is_not_counted_as_a_case(identity, onnxopt, monkeypatch):
    monkeypatch.setattr(console, "TELL_SECONDS", 0.0)
    answer = onnxopt("run", "demo.yaml", "-b", spec("ends-badly"), "--isolation", "none")
    assert answer.code == 1
    last_line = answer.err.splitlines()[-1]
    assert last_line.startswith("running: 2 of 2,")
    assert last_line.endswith(", 0 s left, 1 not conforming")


@pytest.mark.slow
@pytest.mark.parametrize(("isolation", "first"), [("process", "not-run"), ("none", "timeout")])
def test_ctrl_c_ends_the_run_and_does_not_reach_the_command(isolation, first, identity):
    run = start(identity, hanging(identity, timeout=2), "--isolation", isolation, "-j", "1")
    wait_for(identity / "marker")
    for process in run.survivors(0):
        os.kill(process.number, signal.SIGINT)
    run.wait(20)
    assert run.code == 130
    assert run.outcomes == {"first": first, "second": "not-run"}
    assert run.survivors() == []


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["process", "none"])
def test_command_does_not_survive_killed_runner(isolation, identity):
    run = start(identity, hanging(identity), "--isolation", isolation, "-j", "1")
    wait_for(identity / "marker")
    assert any("exec/command.py" in process.command for process in run.survivors(0))
    run.process.kill()
    run.process.communicate()
    assert run.survivors() == []


def hanging(folder, **options):
    """Return a command that creates the file ``marker`` at its first case and then hangs."""
    return spec("hangs", folder / "marker", **options)


def wait_for(path, seconds=20):
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "outcome"),
    [
        ("error", "error"),
        ("unsupported", "unsupported"),
        ("double", "fail"),
        ("too-few-bytes", "protocol"),
    ],
)
def test_each_response_has_its_outcome(mode, outcome, identity, onnxopt):
    results = outcomes(onnxopt, spec(mode), "--isolation", "none", code=1)
    assert {result["outcome"] for result in results.values()} == {outcome}


def test_command_that_does_not_start_exits_with_4(identity, onnxopt):
    for backend in ("exec:./not-here", spec("hello-dies")):
        answer = onnxopt("run", "demo.yaml", "-b", backend)
        assert answer.code == 4
        assert "does not start" in answer.err
    slow = onnxopt("run", "demo.yaml", "-b", spec("hello-hangs", timeout=0.3))
    hint = slow.err.splitlines()[-1]
    assert hint == "  if the backend is slow, allow more time with its option timeout=SECONDS"


@pytest.mark.isolated
def test_last_output_of_command_is_shown(identity, onnxopt, workplace):
    script = workplace / "adapter.sh"
    script.write_text("#!/bin/sh\necho libmine.so: no such file >&2\nexit 127\n")
    script.chmod(0o755)
    answer = onnxopt("run", "demo.yaml", "-b", "exec:./adapter.sh")
    assert " ".join(answer.err.split()) == (
        "error: backend exec:./adapter.sh does not start: the command ended with exit code 127 "
        "libmine.so: no such file onnxopt backends protocol shows the requests"
    )


def test_command_without_training_domain_runs_primitive_operators(workplace, onnxopt):
    (workplace / "demo.yaml").write_text(MOMENTUM)
    script = PLUGINS / "exec" / "reference.py"
    results = outcomes(onnxopt, spec(command=script), code=0)
    assert results["plain"]["lowered"] is True
    never = ("--lower", "never", "--isolation", "none")
    results = outcomes(onnxopt, spec(command=script), *never, code=1)
    assert results["plain"]["outcome"] == "unsupported"
    assert "Momentum belongs to ai.onnx.preview.training version 1" in results["plain"]["message"]


LEAKY = """\
onnxopt: 1
suite: demo
operator: LeakyRelu
opset: 18
cases:
  - name: slope
    attributes: {alpha: 0.5}
    inputs: {X: [1.0, -2.0]}
    outputs: {Y: [1.0, -1.0]}
  - name: other_slope
    inputs: {X: [1.0, -200.0]}
    outputs: {Y: [1.0, -2.0]}
"""


def test_command_can_run_single_nodes_without_protobuf(workplace, onnxopt):
    nodes = spec(command=PLUGINS / "exec" / "nodes.py")
    (workplace / "demo.yaml").write_text(LEAKY)
    assert {outcome["outcome"] for outcome in outcomes(onnxopt, nodes, code=0).values()} == {"pass"}
    # Momentum cannot be lowered for this command: the lowered model has several nodes.
    (workplace / "demo.yaml").write_text(MOMENTUM)
    results = outcomes(onnxopt, nodes, code=1)["plain"]
    assert results["outcome"] == "unsupported"
    assert "no Momentum; of the lowered model: " in results["message"]
