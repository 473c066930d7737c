"""Runs with worker processes: no process of a backend survives its worker."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from exec_commands import COMMAND
from isolated import HOSTILE, require, run_in_turn, run_to_end, start, write_cases

from onnxopt_cli.workers import processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

SURVIVORS = HOSTILE.with_name("survivors.py")
SLEEP = shutil.which("sleep")


@pytest.fixture
def demo(tmp_path):
    write_cases(tmp_path, {"first": 0.25, "bad": 0.5, "last": 0.125})
    return tmp_path


def backend(name):
    return f"python:{SURVIVORS}:{name}"


WAYS = (
    "sleeps",
    "is_stopped",
    "hops",
    "multiplies",
    "revives",
    "loses_main_thread",
    "breeds_to_the_end",
    "stops_supervisor",
    "dies_with_supervisor",
    "runs_a_program",
    "is_well_kept",
)


@pytest.mark.slow
def test_no_daemon_survives_a_killed_supervisor(tmp_path):
    run = run_in_turn(tmp_path, WAYS, plugin=SURVIVORS)
    survivors = run.survivors(0.2)
    end(survivors)
    for way in WAYS:
        require(run, way, "crash")
    assert survivors == []
    assert not beats(tmp_path / "pulse")


@pytest.mark.slow
def test_daemon_of_a_backend_that_does_not_start_is_killed(demo):
    run = run_to_end(demo, backend("KillsSupervisorWhileItStarts"))
    survivors = run.survivors(0.2)
    end(survivors)
    assert run.code == 4
    assert survivors == []


def test_daemon_left_at_teardown_is_killed(demo):
    run = run_to_end(demo, backend("KillsSupervisorAtTeardown"), "-j", "1")
    survivors = run.survivors(0.2)
    end(survivors)
    assert run.outcomes["worker/teardown"] == "crash"
    assert survivors == []


@pytest.mark.slow
def test_interrupted_run_leaves_no_daemon(demo):
    run = start(demo, backend("sleeps"), "-j", "1", "-b", f"python:{HOSTILE}:Hangs")
    wait_until(lambda: run.sleepers() >= 1)
    run.process.send_signal(signal.SIGTERM)
    run.wait(20)
    survivors = run.survivors(0.2)
    end(survivors)
    assert run.code == 143
    assert survivors == []


HOST = """\
import ctypes, os, subprocess, sys
from onnxopt_cli.cli import main
own = subprocess.Popen([%r, "300"], start_new_session=True)
try:
    main(sys.argv[1:])
except SystemExit as ended:
    is_reaper = ctypes.c_int()
    ctypes.CDLL(None).prctl(37, ctypes.byref(is_reaper))
    print("code", ended.code, "child", own.poll(), "reaper", is_reaper.value)
own.kill()
"""


@pytest.mark.slow
def test_calling_program_keeps_its_children_and_adopts_no_others(demo):
    host = subprocess.run(
        [sys.executable, "-c", HOST % SLEEP, "run", "demo.yaml",
         "-b", f"python:{HOSTILE}:kills_its_supervisor"],
        cwd=demo, env={**os.environ, "PYTHONPATH": str(HOSTILE.parents[2])}, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert host.stdout.endswith("code 1 child None reaper 0\n"), host.stdout + host.stderr


# A shell script that starts children and then executes the command with ``exec``. The command then
# has children that it did not start. One of them starts further processes, which become orphans.
BORN_WITH = f"""
setsid {SLEEP} 299 >&- 2>&- & echo $!
setsid sh -c '
  for i in 0 1 2 3 4 5 6 7 8 9; do (setsid {SLEEP} 299 >&- 2>&- & echo $!); sleep 0.3; done
' 2>&- &
exec "$@"
"""


@pytest.mark.slow
def test_command_with_inherited_children_kills_only_daemons(tmp_path):
    """The command inherits the children of a shell that executes it with ``exec``."""
    run = run_in_turn(tmp_path, WAYS, plugin=SURVIVORS, prefix=["sh", "-c", BORN_WITH, "sh"])
    survivors = run.survivors(0.2)
    end(survivors)
    for way in WAYS:
        require(run, way, "crash")
    inherited = {int(line) for line in run.out.splitlines() if line.isdigit()}
    assert len(inherited) > 1
    assert inherited <= {process.number for process in survivors}
    assert [process for process in survivors if not born_with(process)] == []
    assert not beats(tmp_path / "pulse")


def born_with(process):
    return process.command.endswith("299 ") or "setsid" in process.command


@pytest.mark.slow
def test_daemon_of_an_exec_command_is_killed_after_its_supervisor(demo):
    script = f"{SLEEP} 300 & exec {sys.executable} {COMMAND} leaves-daemons {demo / 'marker'}"
    (demo / "adapter.sh").write_text(f"#!/bin/sh\n{script}\n")
    (demo / "adapter.sh").chmod(0o755)
    for prefix in ([], ["sh", "-c", BORN_WITH, "sh"]):
        (demo / "marker").unlink(missing_ok=True)
        run = start(demo, "exec:./adapter.sh", prefix=prefix).wait()
        survivors = run.survivors(0.2)
        end(survivors)
        assert run.outcomes["first"] == "crash"
        assert [process for process in survivors if not born_with(process)] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "prefix", [[], ["sh", "-c", BORN_WITH, "sh"], ["unshare", "-pf", "--mount-proc"]]
)
def test_daemon_ends_with_its_worker(demo, prefix):
    if prefix and subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no permission to create a namespace")
    rates = {"bad": 0.5, **{f"waits{i}": 0.25 for i in range(8)}}
    write_cases(demo, rates)
    backends = (backend("sleeps"), "-j", "1", "-b", f"python:{HOSTILE}:Waits", "-v")
    run = start(demo, *backends, prefix=prefix)
    for line in run.process.stdout:
        if "waits0" in line:
            break
    survivors = [process for process in run.survivors(0) if process.command.endswith("300 ")]
    run.wait()
    end(run.survivors(0))
    assert survivors == []


def without_proc():
    """Return a command prefix that unmounts /proc, or skip the test if this is not permitted."""
    hide = ["unshare", "-m", "sh", "-c", 'umount -l /proc && exec "$@"', "sh"]
    if not shutil.which("unshare") or subprocess.run([*hide, "true"], check=False).returncode:
        pytest.skip("no permission to unmount /proc")
    return hide


@pytest.mark.slow
@pytest.mark.parametrize("prefix", [without_proc, lambda: [*without_proc()[:1], "-pf", "--"]])
def test_no_process_survives_without_proc_and_weaker_isolation_is_reported(tmp_path, prefix):
    ways = ("sleeps", "is_well_kept")
    options = ("--timeout", "5", "--log", "log.jsonl")
    run = run_in_turn(tmp_path, ways, *options, plugin=SURVIVORS, prefix=prefix())
    survivors = run.survivors(0.2)
    end(survivors)
    for way in ways:
        assert run.outcomes[way] in {"crash", "timeout"}
        assert run.outcomes[f"after_{way}"] == "pass"
    assert survivors == []
    assert run.err.count("isolation is weaker: /proc shows no process") == 1
    assert '"isolation":"weaker' in (tmp_path / "log.jsonl").read_text().splitlines()[0]
    assert '"isolation": "weaker' in run.report.read_text()


def test_descendants_are_found_and_killed_through_psutil(monkeypatch):
    monkeypatch.setattr(processes, "sys", SimpleNamespace(platform="darwin"))
    monkeypatch.setattr(processes, "_lists_children", lambda: False)
    monkeypatch.setattr(processes, "read_proc", None)
    shell = subprocess.Popen(["/bin/sh", "-c", f"{SLEEP} 300 & {SLEEP} 300 & wait"])
    wait_until(lambda: len(processes.descendants(shell.pid)) == 2)
    child_processes = processes.children(shell.pid)
    assert {processes.name_of(child) for child in child_processes} == {"sleep"}
    assert processes.usage(shell.pid)["memory"] == processes.resident(shell.pid) > 0
    assert processes.end_descendants(shell.pid, 20)
    assert shell.wait(20) is not None
    assert not any(map(processes.resident, child_processes))


def test_message_about_isolation_is_absent_if_it_is_complete(demo):
    run = run_to_end(demo, f"python:{HOSTILE}:Well")
    assert "isolation" not in run.err
    assert '"isolation": "weaker' not in run.report.read_text()


def beats(pulse):
    """Return whether the process that updates a file is alive."""
    before = pulse.read_text() if pulse.exists() else ""
    time.sleep(0.3)
    return before != (pulse.read_text() if pulse.exists() else "")


def end(processes):
    """Kill processes, so that they do not disturb other tests if this test fails."""
    for process in processes:
        os.kill(process.number, signal.SIGKILL)


def wait_until(condition, seconds=60):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)
