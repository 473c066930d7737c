"""Signals leave no process or file behind, and the logs of interrupted runs can be resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid

import pytest
from isolated import Run, start, write_cases
from places import REPOSITORY

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


@pytest.mark.slow
def test_signals_at_random_moments_leave_no_process_and_logs_resume():
    count = os.environ.get("ONNXOPT_SIGNALS", "2")
    script = REPOSITORY / "scripts" / "signal_runs.py"
    done = subprocess.run(
        [sys.executable, script, "--count", count], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


COLLECTED = """\
import os, signal, time, weakref
from onnxopt_cli.workers.interruption import Stop, stop_by_raising

class Thing:
    pass

def send(_):
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(100_000):
        pass

stop_by_raising()
thing = Thing()
reference = weakref.ref(thing, send)
try:
    del thing
    time.sleep(20)
except Stop as stop:
    print("stopped", stop.exit_code)
"""


def test_signal_during_a_weak_reference_callback_is_not_lost():
    done = subprocess.run(
        [sys.executable, "-c", COLLECTED], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout + done.stderr == "stopped 143\n"


SIGNALLED = """\
import atexit, os, sys
number, where = int(sys.argv[1]), sys.argv[2]

class Finder:
    def find_spec(name, *_):
        if name == where:
            sys.meta_path.remove(Finder)
            os.kill(os.getpid(), number)

sys.meta_path.insert(0, Finder)
if where == "the end":
    atexit.register(os.kill, os.getpid(), number)
sys.argv = ["onnxopt", "list", "spec"]
from onnxopt_cli.__main__ import main
main()
"""
BEGINNINGS = ("onnxopt_cli.cli", "click", "onnxopt_cli.workers.processes", "numpy", "the end")


@pytest.mark.parametrize(
    ("number", "where"),
    [
        *((signal.SIGINT, where) for where in BEGINNINGS),
        *((number, where) for number in (signal.SIGTERM, signal.SIGHUP)
          for where in (BEGINNINGS[0], "the end")),
    ],
)  # fmt: skip
def test_signal_during_startup_or_exit_shows_no_traceback(number, where):
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED, str(number.value), where],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (128 + number, b"interrupted\n")


def test_handlers_of_signals_are_installed_before_slow_imports():
    script = "import sys; import onnxopt_cli; print({'re', 'typing'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", script], cwd=REPOSITORY, capture_output=True, check=True
    )
    assert done.stdout == b"set()\n"


PARSING = """\
import os, signal, sys
import click
from onnxopt_cli.cli import main

parse = click.Group.parse_args

def parse_and_stop(*arguments):
    os.kill(os.getpid(), signal.SIGTERM)
    return parse(*arguments)

click.Group.parse_args = parse_and_stop
sys.argv = ["onnxopt", "list", "spec"]
main()
"""


def test_signal_while_the_command_line_is_parsed_has_its_own_exit_code():
    done = subprocess.run(
        [sys.executable, "-c", PARSING],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (143, b"interrupted\n")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_terminated_audit_leaves_no_process_and_shows_no_traceback(tmp_path, number):
    mark = f"ONNXOPT_TEST_{uuid.uuid4().hex}"
    process = subprocess.Popen(
        [sys.executable, "-m", "onnxopt_cli", "audit", "pruning", "--operator", "AdmmGradient",
         "-j", "2"],
        cwd=tmp_path, env={**os.environ, mark: "1", "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    run = Run(process, mark, tmp_path / "none")
    end = time.monotonic() + 120
    while len(run.survivors(0)) < 3:
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(number)
    process.wait(60)
    survivors = run.survivors()
    for survivor in survivors:
        os.kill(survivor.number, signal.SIGKILL)
    run.wait()
    assert run.code == (130 if number == signal.SIGINT else -number)
    assert survivors == []


FORKED = """\
import os, signal
from onnxopt_cli.core import process_control
from onnxopt_cli.workers.forked_processes import parallel
from onnxopt_cli.workers.interruption import stop_by_raising

begin = process_control.begin_helper

def ended(parent):
    os.kill(os.getpid(), signal.SIGTERM)
    begin(parent)

process_control.begin_helper = ended
stop_by_raising()
print(list(parallel(abs, [1, -2, 3], 2, 1)))
"""


def test_forked_process_killed_during_startup_prints_nothing_and_loses_no_result():
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout + done.stderr == "[1, 2, 3]\n"


def test_signal_during_an_import_takes_effect_after_the_import(tmp_path):
    # Python must not raise the exception earlier: it could crash an extension module.
    (tmp_path / "loaded.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(0.05)\n"
        "print('whole', flush=True)\n"
    )
    script = (
        "import time\nfrom onnxopt_cli.workers import interruption\n"
        "interruption.stop_by_raising()\ntry:\n    import loaded\n    time.sleep(5)\n"
        "except interruption.Stop as stop:\n    print(stop.exit_code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{REPOSITORY}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["whole", "130"]


def test_parent_that_ignores_sigchld_changes_no_verdict(tmp_path):
    write_cases(tmp_path, {"a": 0.25})
    ignore = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
    ignoring = (sys.executable, "-c", f"{ignore}os.execv(sys.argv[1], sys.argv[1:])")
    run = start(tmp_path, "Well", prefix=ignoring).wait()
    assert (run.outcomes, run.code) == ({"a": "pass"}, 0)


DROPPED = """\
import os, signal, time
from onnxopt_cli.cases.yaml import yaml_syntax as syntax
from onnxopt_cli.workers.interruption import Stop, stop_by_raising

class Drops:
    def iter_errors(self, _):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            for _ in range(100_000):
                pass
        except Stop:
            pass
        return iter(())

syntax._validator = lambda _: Drops()
stop_by_raising()
try:
    syntax.read_document("onnxopt: 1", "onnxopt_cli.cases.yaml", "onnxopt")
    time.sleep(30)
except Stop as stop:
    print(stop.exit_code)
"""


def test_signal_during_schema_validation_is_not_lost():
    done = subprocess.run([sys.executable, "-c", DROPPED], capture_output=True, check=False)
    assert (done.stdout, done.stderr) == (b"143\n", b"")
