"""Systems that lack what Linux has: everything runs as far as it can, and says what is lacking."""

from __future__ import annotations

import ast
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

# What is not on every system that Python runs on.
NOT_EVERYWHERE = {"fcntl", "grp", "msvcrt", "pty", "pwd", "readline", "resource", "termios", "tty"}
ROUGH = """
import numpy as np
from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.interpret.single_node import sole_call

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
    "macOS": "this system lets processes leave their parents",
    "Windows": "on this system backends run in this process",
}


@pytest.fixture
def demo(tmp_path):
    write_cases(tmp_path, {"first": 0.25, "second": 0.125})
    return tmp_path


def said(run):
    return " ".join(run.stderr.split())


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_backend_in_this_process_conforms_on_any_system(system, demo):
    options = ("--isolation", "none", "--log", "log.jsonl", "--report", "json=report.json")
    run = run_elsewhere(system, demo, "run", "demo.yaml", "-b", f"python:{HOSTILE}:Well", *options)
    assert (run.returncode, run.stderr) == (0, "")
    header = json.loads((demo / "log.jsonl").read_text().splitlines()[0])
    assert WEAKER.get(system, "") in json.dumps(header)


@pytest.mark.slow
@pytest.mark.parametrize("system", ["no modules", "macOS"])
def test_without_what_linux_has_a_bad_case_still_costs_no_other(system, tmp_path, monkeypatch):
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
    found = {it["case"].removeprefix("demo/demo/"): it["outcome"] for it in results}
    assert found == {name: ways.get(name, "pass") for name in rates}
    assert said(run).count(f"isolation is weaker: {WEAKER[system]}") == 1


@pytest.mark.slow
def test_where_backends_have_no_processes_that_is_said_or_refused(demo):
    backend = f"python:{HOSTILE}:Well"
    run = run_elsewhere("Windows", demo, "run", "demo.yaml", "-b", backend)
    assert run.returncode == 0
    assert f"isolation is weaker: {WEAKER['Windows']}" in said(run)
    run = run_elsewhere("Windows", demo, "run", "demo.yaml", "-b", backend, "--isolation=process")
    assert run.returncode == 2
    assert "cannot have processes of their own" in said(run)
    run = run_elsewhere("Windows", demo, "run", "demo.yaml", "-b", "exec:/bin/cat")
    assert run.returncode == 4
    assert "work on POSIX systems only" in said(run)


@pytest.mark.slow
def test_suites_conform_where_nothing_is_wider_than_double(tmp_path):
    run = run_elsewhere("ARM", tmp_path, "run", "spec", "conformance", "pruning", "-q")
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.slow
def test_verdicts_are_the_same_where_nothing_is_wider_than_double(onnxopt, workplace):
    """Of outputs that are off by some ulps each, so that some are within their limits."""
    Path("rough.py").write_text(ROUGH)
    command = ["run", "conformance", "-k", "double", "-b", "python:rough.py:Backend"]
    command += ["--isolation", "none", "--no-explain", "--report"]
    assert onnxopt(*command, "json=here.json").code == 1
    run = run_elsewhere("ARM", workplace, *command, "json=there.json")
    assert (run.returncode, run.stderr) == (1, "")
    here, there = (
        json.loads(Path(f"{it}.json").read_text())["results"] for it in ("here", "there")
    )
    assert [it["outcome"] for it in here] == [it["outcome"] for it in there]
    assert {it["outcome"] for it in here} == {"pass", "fail"}
    for mine, theirs in zip(here, there, strict=True):
        for one, other in zip(mine["outputs"], theirs["outputs"], strict=True):
            assert one["mismatches"] == other["mismatches"]
            used = [float(it["tolerance_used"]) for it in (one, other)]
            assert used[0] == pytest.approx(used[1], rel=0.1, nan_ok=True)


@pytest.mark.slow
def test_where_nothing_is_wider_than_double_it_is_said_what_to_install(tmp_path):
    run = run_elsewhere("ARM without quads", tmp_path, "run", "spec")
    assert run.returncode == 2
    assert "pip install numpy-quaddtype" in run.stderr


def test_nothing_that_a_system_may_lack_is_imported_where_it_is_not_looked_for():
    unguarded = []
    for path in (REPOSITORY / "onnxopt_cli").rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [getattr(node, "module", None), *(alias.name for alias in node.names)]
                unguarded += [(path.name, name) for name in names if name in NOT_EVERYWHERE]
    assert unguarded == []


CALLS = (
    "pidfd_open prlimit64 sched_getaffinity flock prctl memfd_create linkat fsync unshare waitid "
    "setpgid"
)
LESS_ISOLATION = {
    "prlimit64": "the system limits no memory",
    "prctl": "the system lets backends inspect this process",
}


def under(folder, error, call):
    words = ("run", "demo.yaml", "-b", f"python:{HOSTILE}:Well", "-j", "1")
    return subprocess.run(
        [sys.executable, other_systems.__file__, error, call, sys.executable, "-m", "onnxopt_cli",
         *words, "--log", "log.jsonl", "--report", "html=report.html"],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(not other_systems.AVAILABLE, reason="needs x86-64's numbers of system calls")
@pytest.mark.parametrize("call", CALLS.split())
@pytest.mark.parametrize("error", ["ENOSYS", "EPERM"])
def test_a_call_that_exists_and_fails_is_done_without_and_said(demo, call, error):
    run = under(demo, error, call)
    assert run.returncode == 0, run.stderr
    assert LESS_ISOLATION.get(call, "") in said(run)
    assert "Traceback" not in run.stderr
    assert "2 pass" in run.stdout
    assert (demo / "report.html").stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.skipif(not other_systems.AVAILABLE, reason="needs x86-64's numbers of system calls")
@pytest.mark.parametrize(
    ("call", "code", "words"),
    [
        ("setsid", 2, "the system says: Function not implemented"),
        ("socketpair", 2, "the system says: Function not implemented"),
        ("rt_sigtimedwait", 4, "the system lets no signal be waited for"),
        ("rename", 2, "cannot write report.html"),
    ],
)
def test_a_call_that_cannot_be_done_without_ends_in_words(demo, call, code, words):
    run = under(demo, "ENOSYS", call)
    assert run.returncode == code, run.stderr
    assert words in said(run)
    assert "Traceback" not in run.stderr


@pytest.mark.slow
@pytest.mark.skipif(not other_systems.AVAILABLE, reason="needs x86-64's numbers of system calls")
def test_few_processes_end_in_words(demo):
    run = under(demo, "EAGAIN", "fork")
    assert run.returncode == 4
    assert "the system starts no more processes" in said(run)
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EPERM, errno.EACCES])
def test_what_fails_when_it_is_used_is_as_if_it_were_not_there(monkeypatch, error):
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
