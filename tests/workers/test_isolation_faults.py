"""Runs with worker processes: faults of backends are reported."""

from __future__ import annotations

import os
import sys
import tracemalloc

import numpy as np
import pytest
from isolated import require, run_in_turn, run_to_end, write_cases
from onnx import TensorProto
from onnx_directories import identity, make_directory, tensor, tensor_type

from onnxopt_cli.workers.worker import Printed

pytestmark = [
    pytest.mark.isolated,
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc"),
]


@pytest.fixture
def demo(tmp_path):
    """Write three cases; backends misbehave in the second case, which is named ``bad``."""
    write_cases(tmp_path, {"first": 0.25, "bad": 0.5, "last": 0.125})
    return tmp_path


def check(demo, backend, outcome, says, *options, code=1):
    """Run a backend; check that it affects only the bad case and leaves no process behind."""
    run = run_to_end(demo, backend, *options)
    assert run.outcomes == {"first": "pass", "bad": outcome, "last": "pass"}, run.out + run.err
    assert says in run.results["bad"]["message"], run.results["bad"]["message"]
    assert run.code == code
    assert run.survivors() == []
    return run


CRASHES = {
    "exits": "ended with exit code 0",
    "segfaults": "was killed by SIGSEGV",
    "aborts": "was killed by SIGABRT",
    "kills_itself": "was killed by SIGKILL",
    "kills_its_supervisor": "was killed by SIGKILL",
    "closes_channel": "closed its channel",
    "breaks_numpy": "code of onnxopt in the worker failed; the backend may have changed Python",
}
ERRORS = {
    "sys_exits": "SystemExit: 0",
    "interrupts": "KeyboardInterrupt",
    "raises_base": r"BaseException: odd\x1b[31m",
    "raises_bad_text": "its message raises SystemExit",
}
LEAKS = {
    "grows": "MiB of memory behind each time",
    "leaks_threads": "1 threads behind each time",
    "leaks_descriptors": "1 file descriptors behind each time",
    "leaves_child": "1 child processes behind each time",
    "leaves_daemon": "leaves processes behind: sleep",
}
NO_LEAKS = ("starts_a_helper_once", "keeps_much_once")
BREACHES = {
    "sends_garbage": "no line of JSON",
    "sends_huge": "whose number of bytes is 1152921504606846976, expected",
    "sends_bad_json": "too much nesting",
    "responds_to_another": "responded to the request 9999 instead of",
    "announces_too_much": "were announced",
    "responds_to_the_last": "",
    # The message contains "was not requested" or, on a slow machine, "responded to the request".
    "responds_again_later": "request",
}
TIMEOUTS = ("spins", "stops", "stops_all", "ignores_sigterm")
HUNGRY = ("allocates", "allocates_shared", "allocates_in_cpp", "reserves_too_much")


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    ways = [*CRASHES, *ERRORS, *LEAKS, *NO_LEAKS, *BREACHES, "floods"]
    run = run_in_turn(tmp_path_factory.mktemp("faults"), ways, "-v")
    assert run.code == 1
    return run


@pytest.mark.slow
def test_misbehaving_backends_leave_no_process(faults):
    assert faults.survivors() == []


@pytest.mark.slow
@pytest.mark.parametrize(("way", "says"), CRASHES.items())
def test_dying_backend_fails_one_case_as_crash(faults, way, says):
    require(faults, way, "crash", says)


def test_backend_that_dies_after_its_response_is_one_crash(demo):
    run = run_to_end(demo, "DiesAfterTheResponse")
    # The case runs again, to find out whether it leaks a thread in each run. On a slow machine, the
    # backend dies between two cases or in the next case.
    (failure,) = [result for result in run.results.values() if result["outcome"] != "pass"]
    assert failure["outcome"] == "crash"
    assert "ended with exit code 3" in failure["message"]
    assert run.outcomes["first"] == "pass"
    assert run.code == 1
    assert run.survivors() == []


def test_output_of_dying_backend_is_shown_with_the_failure(tmp_path):
    run = run_in_turn(tmp_path, ["segfaults"], "-v")
    assert "about to fall" in run.results["segfaults"]["printed"]
    assert "Fatal Python error" in run.results["segfaults"]["printed"]
    assert "about to fall" in run.out


@pytest.mark.slow
@pytest.mark.parametrize(("way", "says"), ERRORS.items())
def test_any_exception_of_a_backend_is_an_error(faults, way, says):
    require(faults, way, "error", says)


@pytest.mark.slow
@pytest.mark.parametrize(("way", "says"), LEAKS.items())
def test_leak_is_reported_on_its_case(faults, way, says):
    require(faults, way, "leak", says)


@pytest.mark.slow
@pytest.mark.parametrize("way", NO_LEAKS)
def test_single_growth_is_not_a_leak(faults, way):
    require(faults, way, "pass")


@pytest.mark.slow
@pytest.mark.parametrize(("way", "says"), BREACHES.items())
def test_protocol_breach_affects_only_its_case(faults, way, says):
    require(faults, way, "protocol", says)


@pytest.mark.slow
def test_output_flood_is_truncated_and_changes_no_verdict(faults):
    require(faults, "floods", "pass")
    assert len(faults.results["floods"]["printed"]) < 10_000
    assert len(faults.out) < 40_000


@pytest.mark.slow
def test_backend_that_does_not_respond_is_killed_as_timeout(tmp_path):
    run = run_in_turn(tmp_path, TIMEOUTS, "--timeout", "2")
    for way in TIMEOUTS:
        require(run, way, "timeout", "not respond within 2 s")
    assert run.survivors() == []


@pytest.mark.slow
def test_backend_that_exceeds_the_memory_limit_is_oom(tmp_path):
    run = run_in_turn(tmp_path, HUNGRY, "--memory", "512MiB")
    for way in HUNGRY:
        require(run, way, "oom")
    assert run.survivors() == []


@pytest.mark.slow
def test_late_duplicate_response_is_not_assigned_to_a_later_case(tmp_path):
    rates = {"first": 0.25, "bad": 0.5, "second": 0.125, "third": 0.0625, "last": 0.375}
    write_cases(tmp_path, rates)
    run = run_to_end(tmp_path, "RespondsAgainMuchLater")
    assert run.outcomes == {**dict.fromkeys(rates, "pass"), "worker/between-cases": "protocol"}
    assert run.code == 1


@pytest.mark.slow
def test_next_case_is_not_blamed_for_a_changed_function_of_numpy(demo):
    run = run_to_end(demo, "BreaksNumpyLate")
    assert run.outcomes.pop("worker/between-cases") == "crash"
    assert set(run.outcomes.values()) == {"pass"}
    assert run.code == 1


def test_only_the_end_of_a_flood_of_output_is_kept():
    read_end, write_end = os.pipe()
    printed = Printed(read_end)
    tracemalloc.start()
    for number in range(400):
        os.write(write_end, b"y" * 20_000 + b"%d\n" % number)
        printed.read()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    text = printed.text()
    os.close(write_end)
    os.close(read_end)
    assert peak < 500_000
    assert text.startswith("... the end of 80")
    assert text.endswith("y399")


def test_backend_may_return_the_same_buffer_again(demo):
    check(demo, "ReusesItsBuffer", "pass", "", code=0)


def test_backend_that_dies_at_teardown_keeps_its_passes_but_does_not_conform(demo):
    run = run_to_end(demo, "DiesAtTeardown", "-j", "2")
    teardown = run.results.pop("worker/teardown")
    assert teardown["outcome"] == "crash"
    assert "SIGABRT" in teardown["message"]
    assert {result["outcome"] for result in run.results.values()} == {"pass"}
    assert run.code == 1
    assert run.survivors() == []


@pytest.mark.slow
def test_backend_that_hangs_at_teardown_is_killed(demo):
    run = run_to_end(demo, "HangsAtTeardown", "--timeout", "3")
    assert run.outcomes.pop("worker/teardown") == "timeout"
    assert set(run.outcomes.values()) == {"pass"}
    assert run.survivors() == []


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import os; os._exit(0)", "ended with exit code 0"),
        pytest.param(
            "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
            "was killed by SIGSEGV",
            marks=pytest.mark.slow,
        ),
        pytest.param("raise SystemExit(0)", "SystemExit: 0", marks=pytest.mark.slow),
        ("import time; time.sleep(300)", "not respond within 1 s"),
        pytest.param(
            "import subprocess; subprocess.Popen(['sleep', '300']); import nowhere",
            "nowhere",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_backend_whose_import_fails_is_unavailable(demo, source, says):
    (demo / "bad_import.py").write_text(source)
    seconds = "1" if "sleep(300)" in source else "60"
    run = run_to_end(demo, "python:bad_import.py:Backend", "--startup-timeout", seconds)
    assert run.code == 4
    assert says in run.err
    assert ("--startup-timeout" in run.err) == ("sleep(300)" in source)
    assert not run.outcomes
    assert run.survivors() == []


def test_case_that_cannot_be_sent_is_not_run(workplace, onnxopt):
    text = tensor(np.array(["a" * 17_000_000], object))
    model = identity({"x": tensor_type(TensorProto.STRING, [1])})
    make_directory(workplace / "test_large", model, [text], [text])
    answer = onnxopt("run", "test_large", "-b", "onnx-reference")
    assert answer.code == 1
    assert "not-run 1 on onnx-reference: the case cannot be sent to a worker" in answer.out
    assert "17000000 characters" in answer.out.replace("\n", " ")
