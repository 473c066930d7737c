"""On systems without features of Linux, commands work, and report that isolation is weaker."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import other_systems
import pytest
from isolated import HOSTILE, write_cases
from other_systems import SYSTEMS, run_elsewhere
from places import REPOSITORY

from onnxopt_cli.core.blocks import available_jobs
from onnxopt_cli.workers import processes
from onnxopt_cli.workers.worker_messages import create_memory_file

pytestmark = pytest.mark.isolated
ROUGH = """
import numpy as np
from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.operators.call import sole_call

class Backend:
    def run(self, model, inputs):
        with np.errstate(all="ignore"):
            outputs = evaluate(sole_call(model, inputs), np.dtype(np.float64))
            for output in outputs:
                ulps = np.arange(output.size).reshape(output.shape) * 5 % 32
                output += (ulps * np.spacing(output)).astype(output.dtype)
        return outputs
"""
WEAKER = {
    "no modules": "this Python cannot limit memory",
    "macOS": "on this system processes can leave their parents",
    "Windows": "on this system backends run in this process",
}


@pytest.fixture
def demo(tmp_path):
    write_cases(tmp_path, {"first": 0.25, "second": 0.125})
    return tmp_path


def error_text(run):
    return " ".join(run.stderr.split())


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_backend_in_process_conforms_on_every_system(system, demo):
    options = ("--isolation", "none", "--log", "log.jsonl", "--report", "json=report.json")
    run = run_elsewhere(system, demo, "run", "demo.yaml", "-b", f"python:{HOSTILE}:Well", *options)
    assert (run.returncode, run.stderr) == (0, "")
    header = json.loads((demo / "log.jsonl").read_text().splitlines()[0])
    assert WEAKER.get(system, "") in json.dumps(header)


@pytest.mark.slow
@pytest.mark.parametrize("system", ["no modules", "macOS"])
def test_bad_case_does_not_affect_other_cases_on_other_systems(system, tmp_path, monkeypatch):
    ways = {"segfaults": "crash", "stops": "timeout", "allocates": "oom", "leaves_child": "leak"}
    monkeypatch.setenv("WAYS", " ".join(ways))
    rates = {"first": 0.25}
    for number, way in enumerate(ways, start=1):
        rates |= {way: number, f"after_{way}": 0.25}
    write_cases(tmp_path, rates)
    options = ("--timeout", "8", "--memory", "1GiB", "-j", "1", "--report", "json=report.json")
    backend = f"python:{HOSTILE}:InTurn"
    run = run_elsewhere(system, tmp_path, "run", "demo.yaml", "-b", backend, *options)
    results = json.loads((tmp_path / "report.json").read_text())["results"]
    outcomes = {result["case"].removeprefix("demo/demo/"): result["outcome"] for result in results}
    assert outcomes == {name: ways.get(name, "pass") for name in rates}
    assert error_text(run).count(f"isolation is weaker: {WEAKER[system]}") == 1


@pytest.mark.slow
def test_missing_isolation_is_reported_or_a_usage_error(demo):
    backend = f"python:{HOSTILE}:Well"
    run = run_elsewhere("Windows", demo, "run", "demo.yaml", "-b", backend)
    assert run.returncode == 0
    assert f"isolation is weaker: {WEAKER['Windows']}" in error_text(run)
    run = run_elsewhere("Windows", demo, "run", "demo.yaml", "-b", backend, "--isolation=process")
    assert run.returncode == 2
    assert "cannot have processes of their own" in error_text(run)
    run = run_elsewhere("Windows", demo, "run", "demo.yaml", "-b", "exec:/bin/cat")
    assert run.returncode == 4
    assert "work on POSIX systems only" in error_text(run)


@pytest.mark.slow
def test_suites_conform_without_a_type_wider_than_double(tmp_path):
    suites = ("spec", "conformance", "pruning")
    run = run_elsewhere("ARM", tmp_path, "run", *suites, "--shard", "1/12", "-q")
    assert run.returncode == 0, run.stderr


@pytest.mark.slow
def test_verdicts_are_equal_without_a_type_wider_than_double(onnxopt, workplace):
    """All outputs have errors of a few ulps. Only some of the errors are within the tolerance."""
    Path("rough.py").write_text(ROUGH)
    command = ["run", "conformance", "-k", "double", "-b", "python:rough.py:Backend"]
    command += ["--shard", "1/9", "--isolation", "none", "--no-explain", "--report"]
    assert onnxopt(*command, "json=here.json").code == 1
    run = run_elsewhere("ARM", workplace, *command, "json=there.json")
    assert run.returncode == 1, run.stderr
    local_results, arm_results = (
        json.loads(Path(f"{name}.json").read_text())["results"] for name in ("here", "there")
    )
    outcomes = [result["outcome"] for result in local_results]
    assert outcomes == [result["outcome"] for result in arm_results]
    assert set(outcomes) == {"pass", "fail"}
    for local_result, arm_result in zip(local_results, arm_results, strict=True):
        pairs = zip(local_result["outputs"], arm_result["outputs"], strict=True)
        for local_output, arm_output in pairs:
            # Bounds are rounded as well, so an element next to its bound may be inside or outside.
            mismatches = [output["mismatches"] for output in (local_output, arm_output)]
            assert mismatches[0] == pytest.approx(mismatches[1], rel=1e-4)
            ratios = [float(output["tolerance_used"]) for output in (local_output, arm_output)]
            assert ratios[0] == pytest.approx(ratios[1], rel=0.1, nan_ok=True)


@pytest.mark.slow
def test_missing_wide_type_is_reported_with_the_package_to_install(tmp_path):
    run = run_elsewhere("ARM without quads", tmp_path, "run", "spec")
    assert run.returncode == 2
    assert "pip install numpy-quaddtype" in run.stderr


# The calls of a group fail together, so no call may be replaced by another call of its group.
OPTIONAL_CALLS = {
    "ENOSYS": "pidfd_open,sched_getaffinity,prctl,linkat,unshare,setpgid,setitimer,sigaltstack,"
    "getsockopt",
    "EPERM": "prlimit64,flock,memfd_create,fsync,waitid",
}
LESS_ISOLATION = {
    "ENOSYS": "the system lets backends inspect this process",
    "EPERM": "the system limits no memory",
}


def run_with_failing_call(folder, error, call):
    words = ("run", "demo.yaml", "-b", f"python:{HOSTILE}:Well", "-j", "1")
    return subprocess.run(
        [sys.executable, other_systems.__file__, error, call, sys.executable, "-m", "onnxopt_cli",
         *words, "--log", "log.jsonl", "--report", "html=report.html"],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(not other_systems.AVAILABLE, reason="needs x86-64's numbers of system calls")
@pytest.mark.parametrize(("error", "calls"), OPTIONAL_CALLS.items())
def test_run_succeeds_without_optional_system_calls(demo, error, calls):
    run = run_with_failing_call(demo, error, calls)
    assert run.returncode == 0, run.stderr
    assert LESS_ISOLATION[error] in error_text(run)
    assert "Traceback" not in run.stderr
    assert "2 pass" in run.stdout
    assert (demo / "report.html").stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.skipif(not other_systems.AVAILABLE, reason="needs x86-64's numbers of system calls")
@pytest.mark.parametrize(
    ("call", "code", "words"),
    [
        ("setsid", 2, "system error: Function not implemented"),
        ("socketpair", 2, "system error: Function not implemented"),
        ("recvfrom", 4, "OSError: [Errno 38] Function not implemented"),
        ("rt_sigtimedwait", 4, "the system does not allow sigwait"),
        ("rename", 2, "cannot write report.html"),
    ],
)
def test_failing_required_system_call_ends_with_a_message(demo, call, code, words):
    run = run_with_failing_call(demo, "ENOSYS", call)
    assert run.returncode == code, run.stderr
    assert words in error_text(run)
    assert "Traceback" not in run.stderr


@pytest.mark.slow
@pytest.mark.skipif(not other_systems.AVAILABLE, reason="needs x86-64's numbers of system calls")
def test_process_limit_ends_with_a_message(demo):
    run = run_with_failing_call(demo, "EAGAIN", "fork")
    assert run.returncode == 4
    assert "the system allows no more processes" in error_text(run)
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EPERM, errno.EACCES])
def test_failing_function_is_treated_as_missing(monkeypatch, error):
    def fails(*_):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "sched_getaffinity", fails)
    monkeypatch.setattr(resource, "getrlimit", fails)
    monkeypatch.setattr(resource, "setrlimit", fails)
    monkeypatch.setattr(os, "memfd_create", fails)
    assert available_jobs() == os.cpu_count()
    assert processes.allowed_memory(5) == 5
    processes.limit_memory(5)
    assert create_memory_file() == -1
    assert "the system limits no memory" in processes.weakness()
