"""Unusual environments, such as closed pipes, full disks, narrow terminals, and low limits."""

from __future__ import annotations

import errno
import os
import pty
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import run_command
from places import REPOSITORY
from rich.cells import cell_len

from onnxopt_cli.cli.environment import columns_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full and /proc")

COMMAND = [sys.executable, "-m", "onnxopt_cli"]
FULL = Path("/dev/full")

# Creates a folder that no user can enter. If the user is root, setpriv runs the command without the
# capabilities that would permit root to enter the folder.
CLOSED_FOLDER = """
mkdir -m 0 closed; test $UID = 0 && bound="setpriv --bounding-set -dac_override,-dac_read_search"
$bound"""

CASES = """\
onnxopt: 1
suite: demo
operator: Momentum
cases:
  - name: right
    attributes: {alpha: 0.9, beta: 1.0, mode: standard, norm_coefficient: 0.0}
    inputs: {R: 0.5, T: 1, X: [1.0, 2.0], G: [0.5, -0.5], V: [0.25, 0.0]}
  - name: wrong_with_quite_a_long_name_that_no_narrow_terminal_has_room_for
    about: "\u00fcber \u4e2d"
    attributes: {alpha: 0.9, beta: 1.0, mode: standard, norm_coefficient: 0.0}
    inputs: {R: 0.5, T: 1, X: [1.0, 2.0], G: [0.5, -0.5], V: [0.25, 0.0]}
    outputs: {X_new: [7.0, 8.0], V_new: [9.0, 10.0]}
"""


@pytest.fixture
def place(tmp_path):
    (tmp_path / "demo.yaml").write_text(CASES, encoding="utf-8")
    return tmp_path


def environment(**settings):
    inherited = {
        name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "TERM"}
    }
    return {**inherited, "PYTHONPATH": str(REPOSITORY), "TERM": "xterm", **settings}


def call(place, *arguments, **settings):
    done = run_command(*arguments, cwd=place, env=environment(**settings), text=False)
    check(done.stdout + done.stderr)
    return done


def call_in_shell(place, script, **settings):
    done = subprocess.run(
        ["bash", "-c", script.replace("onnxopt", f"{sys.executable} -m onnxopt_cli")],  # noqa: S607 - to test pipes
        cwd=place, env=environment(**settings), capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    check(done.stdout + done.stderr)
    return done


def call_on_terminal(place, *arguments, **settings):
    """Run the command on a new terminal, and return its exit code and output."""
    reader, terminal = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *arguments], cwd=place, env=environment(**settings),
        stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
    )  # fmt: skip
    os.close(terminal)
    printed = b""
    while True:
        try:
            data = os.read(reader, 65536)
        except OSError:
            # Linux raises this error when no program has the terminal open for writing any more.
            break
        printed += data
    os.close(reader)
    check(printed)
    return process.wait(), printed.decode()


def check(printed):
    assert b"Traceback" not in printed, printed.decode()
    assert b"internal error" not in printed, printed.decode()
    assert b"Exception ignored" not in printed, printed.decode()


@pytest.mark.parametrize("arguments", ["run demo.yaml -v", "schema", "run --help"])
def test_closed_pipe_ends_the_command_with_141_and_no_message(place, arguments):
    done = call_in_shell(place, f"onnxopt {arguments} | true; echo ${{PIPESTATUS[0]}}")
    assert (done.stdout, done.stderr) == (b"141\n", b"")


@pytest.mark.parametrize("arguments", ["run demo.yaml", "schema", "run --help"])
def test_full_disk_for_standard_output_is_reported(place, arguments):
    done = call_in_shell(place, f"onnxopt {arguments} > /dev/full")
    assert done.returncode == 2
    assert done.stderr == b"error: cannot write the standard output: No space left on device\n"


def test_full_disk_for_one_report_loses_no_verdict_and_no_other_report(place):
    done = call(place, "run", "demo.yaml", "--report", "json=/dev/full", "--report", "junit=x.xml")
    assert done.returncode == 2
    assert b"1 invalid" in done.stdout
    assert b"cannot write /dev/full: No space left on device" in done.stderr
    assert (place / "x.xml").exists()
    assert stat.S_ISCHR(FULL.stat().st_mode)


def test_device_is_written_to_and_not_replaced(place):
    os.mkfifo(place / "pipe")
    done = call_in_shell(
        place, "cat pipe > copy & onnxopt run demo.yaml -q --report json=pipe; wait"
    )
    assert done.returncode == 0
    assert (place / "copy").read_bytes().startswith(b"{")
    assert (place / "pipe").is_fifo()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--report", "json=/proc/x.json"], "--report cannot write /proc/x.json"),
        (["--update-expect", "/proc/x.yaml"], "--update-expect cannot write /proc/x.yaml"),
        (["--log", "/proc/x.jsonl"], "--log cannot write /proc/x.jsonl"),
        (["--report", "json=demo.yaml/x"], "--report cannot write demo.yaml/x"),
        (["--artifacts", "demo.yaml/x"], "demo.yaml/x"),
    ],
)
def test_folder_that_is_not_writable_is_named(place, onnxopt, monkeypatch, option, message):
    monkeypatch.chdir(place)
    answer = onnxopt("run", "demo.yaml", *option)
    assert answer.code == 2
    assert message in answer.err
    assert answer.out == "", "a case has run"


@pytest.mark.parametrize(
    "arguments", [("run", "-v"), pytest.param(("list",), marks=pytest.mark.slow)]
)
def test_output_fits_a_terminal_of_40_columns(place, arguments):
    code, printed = call_on_terminal(place, *arguments, "demo.yaml", COLUMNS="40")
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed)
    lines = [line for part in plain.split("\n") for line in part.split("\r")]
    assert max(map(cell_len, lines)) <= 40
    assert "demo/demo/right" in plain
    assert code == (2 if arguments[0] == "run" else 0)


def test_terminal_that_states_no_width_has_80_columns(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    first, second = pty.openpty()
    with os.fdopen(first, "wb", 0), os.fdopen(second, "wb", 0) as terminal:
        assert os.get_terminal_size(terminal.fileno()).columns == 0
        assert columns_of(terminal) == 80


def test_tables_of_a_case_are_not_truncated_in_40_columns(place):
    code, printed = call_on_terminal(place, "show", "demo.yaml", COLUMNS="40")
    assert code == 0
    assert "…" not in printed


def test_terminal_output_has_colour_unless_disabled(place):
    colour = re.compile(r"\x1b\[[0-9;]*3[0-9]")
    assert colour.search(call_on_terminal(place, "run", "demo.yaml")[1])
    assert not colour.search(call_on_terminal(place, "run", "demo.yaml", NO_COLOR="1")[1])


def test_dumb_terminal_gets_no_escape_sequence(place):
    code, printed = call_on_terminal(place, "run", "demo.yaml", TERM="dumb")
    assert "\x1b" not in printed
    assert code == 2


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"PYTHONIOENCODING": "ascii"}, marks=pytest.mark.slow),
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
)
def test_characters_beyond_the_encoding_are_escaped(place, settings):
    done = call(place, "run", "demo.yaml", "-v", **settings)
    assert done.returncode == 2
    assert b"\\xfcber \\u4e2d" in done.stdout
    assert done.stdout.isascii()
    (place / "\u00e9.yaml").write_text("no: case", encoding="utf-8")
    listed = call(place, "list", ".", **settings)
    assert re.search(rb"invalid (\\xe9|\\udcc3\\udca9)\.yaml:1: ", listed.stderr)
    assert listed.returncode == 2


# If a signal arrives just before a sleep, it is handled only after the sleep. Therefore, the sleeps
# are short.
NEVER_STARTS = """\
import pathlib, time
pathlib.Path("started").touch()
while True:
    time.sleep(0.02)
"""


@pytest.mark.parametrize(
    ("script", "code", "message"),
    [
        (
            "mkdir d; cd d; rmdir ../d; onnxopt run -q --report json=x",
            2,
            b"folder no longer exists",
        ),
        pytest.param(
            "mkdir d; cd d; rmdir ../d; onnxopt run -q . -b python:x:y",
            2,
            b"folder no longer exists",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "mkdir d; cd d; rmdir ../d; onnxopt run ../demo.yaml -q", 2, b"", marks=pytest.mark.slow
        ),
        ("mkdir d; cd d; rmdir ../d; onnxopt run $OLDPWD/demo.yaml -k right -q", 0, b""),
        ("ulimit -n 10; onnxopt run demo.yaml -b onnx-reference -q", 2, b"ulimit -n 256"),
        pytest.param(
            "ulimit -n 5; onnxopt run demo.yaml -b onnx-reference -q",
            2,
            b"ulimit -n 256",
            marks=pytest.mark.slow,
        ),
        ("ulimit -n 5; onnxopt run -k right demo.yaml -q", 0, b""),
        pytest.param(
            "ulimit -d 60000; onnxopt run demo.yaml -q",
            2,
            b"ulimit -d and -v",
            marks=pytest.mark.slow,
        ),
        ("ulimit -v 90000; onnxopt run demo.yaml -q", 2, b"ulimit -d and -v"),
        ("ulimit -f 0; onnxopt run demo.yaml -q -b exec:cat", 4, b"does not start"),
        pytest.param(
            "ulimit -d 1500000; onnxopt run -k right demo.yaml -b onnxruntime -q",
            0,
            b"",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "ulimit -f 0; onnxopt run -k right demo.yaml -b onnx-reference -q",
            0,
            b"",
            marks=pytest.mark.slow,
        ),
        ("ulimit -f 0; onnxopt run -k right demo.yaml -q --log x", 2, b"the log x is not complete"),
        ("ulimit -f 0; echo x | onnxopt explain -", 2, b"set TMPDIR"),
        ("mkfifo p; onnxopt run -k right demo.yaml -q --log p", 2, b"p is not a regular file"),
        (
            "mkdir d; echo 'from google import x' > d/onnx.py; PYTHONPATH=d onnxopt list spec",
            2,
            b"that onnxopt needs cannot be loaded: cannot import name 'x' from 'google'",
        ),
        ("unset HOME; onnxopt run -k right demo.yaml -q", 0, b""),
        pytest.param("cd /; env -i onnxopt list $OLDPWD/demo.yaml", 0, b"", marks=pytest.mark.slow),
        ("onnxopt list $(printf x%.0s {1..5000})", 2, b"File name too long"),
        pytest.param(
            "onnxopt run --report json=$(printf x%.0s {1..5000})",
            2,
            b"choose a shorter name",
            marks=pytest.mark.slow,
        ),
        (f"{CLOSED_FOLDER} onnxopt list closed/x/demo.yaml", 2, b"change the permissions of"),
        pytest.param(
            f"{CLOSED_FOLDER} onnxopt run demo.yaml --operators closed/x.py",
            2,
            b"Permission denied",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_limits_of_the_system_are_reported_as_usage_errors(place, script, code, message):
    done = call_in_shell(place, script)
    assert done.returncode == code, done.stderr
    assert message in b" ".join(done.stderr.split())


@pytest.mark.isolated
def test_error_states_that_python_cannot_be_started(place, onnxopt, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "executable", str(place / "demo.yaml"))
    for arguments in (["-b", "onnx-reference"], ["--cluster", "local:1"]):
        answer = onnxopt("run", "demo.yaml", "-k", "right", *arguments)
        assert (answer.code, "Python cannot be started" in answer.err) == (2, True)


@pytest.mark.isolated
def test_error_states_that_the_null_device_is_missing(place, onnxopt, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setattr(os, "devnull", "/none/null")
    answer = onnxopt("run", "demo.yaml", "-k", "right", "-b", "onnx-reference")
    assert answer.code == 2
    assert "/none/null cannot be opened: No such file or directory" in answer.err


@pytest.mark.isolated
@pytest.mark.parametrize("number", [errno.ENOTTY, errno.EOPNOTSUPP, errno.ENOTCONN, errno.ESTALE])
def test_failing_system_call_is_an_error_of_the_environment(place, onnxopt, monkeypatch, number):
    def fails(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.chdir(place)
    monkeypatch.setattr(socket, "socketpair", fails)
    answer = onnxopt("run", "demo.yaml", "-k", "right", "-b", "onnx-reference")
    assert (answer.code, os.strerror(number) in answer.err) == (2, True)


@pytest.mark.slow
def test_fewer_workers_run_all_cases_if_few_files_may_be_open(place):
    head, case = CASES.split("  - name: wrong", maxsplit=1)[0].split("  - name: right")
    cases = "".join(f"  - name: right{number}{case}" for number in range(30))
    (place / "many.yaml").write_text(head + cases)
    done = call_in_shell(
        place, "ulimit -n 14; onnxopt run many.yaml -j 8 -b onnx-reference --lower always -q"
    )
    assert done.returncode == 0, done.stderr
    assert b"30 pass" in done.stdout


@pytest.mark.slow
def test_memory_of_a_worker_is_limited_to_that_of_the_system(place):
    (place / "large.py").write_text(
        "import resource\n"
        "class Backend:\n"
        "    def run(self, model, inputs):\n"
        "        raise ValueError(f'limits {resource.getrlimit(resource.RLIMIT_DATA)}')\n"
    )
    done = call_in_shell(
        place, "ulimit -d 1500000; onnxopt run -k right demo.yaml -b python:large.py:Backend"
    )
    assert b"limits (1536000000, 1536000000)" in b" ".join(done.stdout.split())


def interrupt(place, name, number, *arguments, **settings):
    """Send a signal to the command once the file ``name`` exists; return exit code and output."""
    with subprocess.Popen(
        [*COMMAND, *arguments], cwd=place, env=environment(**settings),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    ) as process:  # fmt: skip
        end = time.monotonic() + 30
        while not (place / name).exists() and time.monotonic() < end:
            time.sleep(0.02)
        process.send_signal(number)
        try:
            printed = process.communicate(timeout=30)
        finally:
            process.kill()
    return process.returncode, *printed


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize(
    "module",
    [
        "click",
        pytest.param("numpy", marks=pytest.mark.slow),
        "onnx",
        pytest.param("rich", marks=pytest.mark.slow),
    ],
)
def test_signal_during_imports_ends_the_command_with_one_line(place, module, number, code):
    (place / "modules").mkdir()
    (place / "modules" / f"{module}.py").write_text(NEVER_STARTS)
    paths = f"{place / 'modules'}:{REPOSITORY}"
    code_and_output = interrupt(place, "started", number, "run", "demo.yaml", PYTHONPATH=paths)
    assert code_and_output == (code, b"", b"interrupted\n")


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("command", [("run", "demo.yaml"), ("fuzz",)])
def test_signal_while_a_backend_starts_ends_the_command(place, command, number, code):
    (place / "slow.py").write_text(NEVER_STARTS)
    temporary = place / "temporary"
    temporary.mkdir()
    code_and_output = interrupt(
        place, "started", number, *command, "-b", "python:slow.py:Backend", TMPDIR=str(temporary)
    )
    assert (code_and_output[0], code_and_output[2]) == (code, b"interrupted\n")
    assert list(temporary.iterdir()) == []


# onnx makes its cases too fast for a signal to arrive in time. Therefore, an endless sequence of
# cases replaces the corpus.
NEVER_ENDING_CORPUS = """\
from itertools import count
from pathlib import Path
import numpy as np
from onnx.backend.test.case import node
from onnx.backend.test.case.test_case import TestCase
from onnx.parser import parse_model
from onnxopt_cli.__main__ import main
from onnxopt_cli.cases.onnx import corpora

TEXT = '<ir_version: 8, opset_import: ["": 17]> g (float x) => (float y) { y = Abs(x) }'
model = parse_model(TEXT)
data = [([np.float32(1)], [np.float32(1)])]

def collect():
    for number in count():
        Path("collecting").touch()
        yield TestCase(f"test_{number}", "abs", None, None, model, data, "node", 1e-3, 1e-7)

node.collect_testcases = collect
corpora._make = lambda tick: None
main()
"""


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)],
)
def test_signal_while_node_cases_are_made_leaves_no_files(place, number, code):
    process = subprocess.Popen(
        [sys.executable, "-c", NEVER_ENDING_CORPUS, "run", "onnx-node", "-q"], cwd=place,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment(ONNXOPT_CACHE_DIR=str(place / "cache")),
    )  # fmt: skip
    end = time.monotonic() + 60
    while not (place / "collecting").exists() and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(number)
    assert process.communicate(timeout=30) == (b"", b"interrupted\n")
    assert process.returncode == code
    assert not (place / "cache").exists()


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs another mount table")
def test_run_without_proc_has_the_same_verdict(place):
    script = "unshare -m bash -c 'umount -l /proc && onnxopt run demo.yaml -q -b onnx-reference'"
    if call_in_shell(place, "unshare -m umount -l /proc").returncode:
        pytest.skip("no permission to unmount")
    done = call_in_shell(place, script)
    assert done.returncode == 2
    assert b"1 invalid" in done.stdout
