"""What a backend may do to the runner, and what is reported: the real command, in processes."""

from __future__ import annotations

import os
import sys
import tracemalloc

import pytest
from isolated import start, write_cases

from onnxopt_cli.isolation.worker_process import Printed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


@pytest.fixture
def demo(tmp_path):
    """Three cases, of which the second is the one to misbehave at."""
    write_cases(tmp_path, {"first": 0.25, "bad": 0.5, "last": 0.125})
    return tmp_path


def check(demo, backend, outcome, says, *options, code=1, others="pass"):
    """Run the backend; only the bad case may suffer, and nothing may be left."""
    run = start(demo, backend, "-j", "1", *options).wait()
    assert run.outcomes == {"first": others, "bad": outcome, "last": others}, run.out + run.err
    assert says in run.results["bad"]["message"], run.results["bad"]["message"]
    assert run.code == code
    assert run.survivors() == []
    return run


@pytest.mark.parametrize(
    ("backend", "says"),
    [
        ("exits", "ended with exit code 0"),
        ("segfaults", "was killed by SIGSEGV"),
        ("aborts", "was killed by SIGABRT"),
        ("kills_itself", "was killed by SIGKILL"),
        ("kills_its_keeper", "was killed by SIGKILL"),
        ("closes_channel", "closed its channel"),
    ],
)
def test_a_backend_that_dies_costs_one_case_and_is_a_crash(demo, backend, says):
    check(demo, backend, "crash", says)


def test_what_a_dying_backend_printed_is_shown_with_the_failure(demo):
    run = check(demo, "segfaults", "crash", "SIGSEGV")
    assert "about to fall" in run.results["bad"]["printed"]
    assert "Fatal Python error" in run.results["bad"]["printed"]
    assert "about to fall" in run.out


@pytest.mark.parametrize(
    ("backend", "says"),
    [
        ("sys_exits", "SystemExit: 0"),
        ("interrupts", "KeyboardInterrupt"),
        ("raises_base", r"BaseException: odd\x1b[31m"),
        ("raises_bad_text", "its message raises SystemExit"),
    ],
)
def test_a_backend_that_raises_anything_is_an_error(demo, backend, says):
    check(demo, backend, "error", says)


@pytest.mark.parametrize("backend", ["spins", "stops", "stops_all", "ignores_sigterm"])
def test_a_backend_that_does_not_answer_is_a_timeout_and_is_killed(demo, backend):
    check(demo, backend, "timeout", "no answer within 0.5 s", "--timeout", "0.5")


@pytest.mark.parametrize(
    "backend", ["allocates", "allocates_shared", "allocates_in_cpp", "asks_for_too_much"]
)
def test_a_backend_that_wants_all_memory_is_out_of_memory(demo, backend):
    check(demo, backend, "oom", "", "--memory", "512MiB")


@pytest.mark.parametrize(
    ("backend", "says"),
    [
        ("grows", "MiB of memory behind each time"),
        ("leaks_threads", "1 threads behind each time"),
        ("leaks_descriptors", "1 file descriptors behind each time"),
        ("leaves_child", "1 child processes behind each time"),
        ("leaves_daemon", "leaves processes behind: sleep"),
    ],
)
def test_what_a_case_leaves_behind_is_a_leak_on_that_case(demo, backend, says):
    check(demo, backend, "leak", says)


@pytest.mark.parametrize("backend", ["starts_a_helper_once", "keeps_much_once"])
def test_what_is_taken_once_and_kept_is_no_leak(demo, backend):
    check(demo, backend, "pass", "", code=0)


@pytest.mark.parametrize(
    ("backend", "says"),
    [
        ("sends_garbage", "begins no frame"),
        ("sends_huge", "are accepted"),
        ("sends_bad_json", "is no JSON"),
        ("answers_another", "answered another case"),
        ("answers_too_much", "were announced"),
    ],
)
def test_a_backend_that_breaks_the_protocol_spoils_no_other_case(demo, backend, says):
    check(demo, backend, "protocol", says)


def test_a_case_that_is_answered_twice_is_a_breach_of_the_protocol(demo):
    check(demo, "answers_twice_later", "protocol", "answered a case twice")


def test_an_answer_that_comes_again_much_later_is_not_taken_for_that_of_a_later_case(tmp_path):
    rates = {"first": 0.25, "bad": 0.5, "second": 0.125, "third": 0.0625, "last": 0.75}
    write_cases(tmp_path, rates)
    run = start(tmp_path, "AnswersAgainMuchLater", "-j", "1").wait()
    assert run.outcomes == {**dict.fromkeys(rates, "pass"), "worker/between-cases": "protocol"}
    assert run.code == 1


def test_an_earlier_cases_number_is_no_answer_and_spoils_no_other_case(demo):
    run = start(demo, "answers_the_last", "-j", "1").wait()
    assert run.outcomes["bad"] == "protocol"
    assert run.outcomes["first"] == run.outcomes["last"] == "pass"


def test_a_flood_of_output_is_kept_to_a_cap_and_changes_no_verdict(demo):
    run = check(demo, "floods", "pass", "", code=0)
    assert len(run.out) < 10_000


def test_of_a_flood_only_the_end_is_held():
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
    printed.close()
    assert peak < 500_000
    assert text.startswith("... the end of 80")
    assert text.endswith("y399")


def test_a_backend_that_returns_the_same_buffer_again_changes_nothing(demo):
    check(demo, "ReusesItsBuffer", "pass", "", code=0)


def test_a_backend_that_dies_at_teardown_keeps_its_passes_and_does_not_conform(demo):
    run = start(demo, "DiesAtTeardown", "-j", "2").wait()
    teardown = run.results.pop("worker/teardown")
    assert teardown["outcome"] == "crash"
    assert "SIGABRT" in teardown["message"]
    assert {result["outcome"] for result in run.results.values()} == {"pass"}
    assert run.code == 1
    assert run.survivors() == []


def test_a_backend_that_dies_after_its_answer_is_a_crash_of_that_case(demo):
    check(demo, "DiesAfterTheAnswer", "crash", "ended with exit code 3")


def test_a_backend_that_hangs_at_teardown_is_killed(demo):
    run = start(demo, "HangsAtTeardown", "-j", "1", "--timeout", "1").wait()
    assert run.outcomes.pop("worker/teardown") == "timeout"
    assert set(run.outcomes.values()) == {"pass"}
    assert run.survivors() == []


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import os; os._exit(0)", "ended with exit code 0"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV"),
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("import time; time.sleep(300)", "no answer within 3 s"),
        ("import subprocess; subprocess.Popen(['sleep', '300']); import nowhere", "nowhere"),
    ],
)
def test_a_backend_that_does_not_survive_its_import_is_unavailable(demo, source, says):
    (demo / "bad_import.py").write_text(source)
    run = start(demo, "python:bad_import.py:Backend", "--startup-timeout", "3").wait()
    assert run.code == 4
    assert says in run.err
    assert not run.outcomes
    assert run.survivors() == []
