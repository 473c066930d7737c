"""Where the command runs: closed pipes, full disks, narrow terminals, other encodings."""

from __future__ import annotations

import os
import pty
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY
from rich.cells import cell_len

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full and /proc")

COMMAND = [sys.executable, "-m", "onnxopt_cli"]
FULL = Path("/dev/full")

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
    kept = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "TERM"}}
    return {**kept, "PYTHONPATH": str(REPOSITORY), "TERM": "xterm", **settings}


def call(place, *arguments, **settings):
    done = subprocess.run(
        [*COMMAND, *arguments], cwd=place, env=environment(**settings), capture_output=True,
        stdin=subprocess.DEVNULL, timeout=60, check=False,
    )  # fmt: skip
    check(done.stdout + done.stderr)
    return done


def call_in_shell(place, script, **settings):
    done = subprocess.run(
        ["bash", "-c", script.replace("onnxopt", f"{sys.executable} -m onnxopt_cli")],  # noqa: S607 - the pipe is the point
        cwd=place, env=environment(**settings), capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    check(done.stdout + done.stderr)
    return done


def call_on_terminal(place, *arguments, **settings):
    """Run the command on a terminal of its own and return its exit code and what it printed."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *arguments], cwd=place, env=environment(**settings),
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    printed = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:
            # What Linux says when the last writer has closed it.
            break
        printed += data
    os.close(ours)
    check(printed)
    return process.wait(), printed.decode()


def check(printed):
    assert b"Traceback" not in printed, printed.decode()
    assert b"internal error" not in printed, printed.decode()
    assert b"Exception ignored" not in printed, printed.decode()


@pytest.mark.parametrize("arguments", ["run demo.yaml -v", "list conformance", "run --help"])
def test_a_closed_pipe_ends_the_command_with_141_in_silence(place, arguments):
    done = call_in_shell(place, f"onnxopt {arguments} | true; echo ${{PIPESTATUS[0]}}")
    assert (done.stdout, done.stderr) == (b"141\n", b"")


@pytest.mark.parametrize("arguments", ["run demo.yaml", "list conformance", "run --help"])
def test_a_full_disk_behind_standard_output_is_said(place, arguments):
    done = call_in_shell(place, f"onnxopt {arguments} > /dev/full")
    assert done.returncode == 2
    assert done.stderr == b"error: cannot write the output: No space left on device\n"


def test_a_full_disk_behind_a_report_costs_no_verdict_and_no_other_report(place):
    done = call(place, "run", "demo.yaml", "--report", "json=/dev/full", "--report", "junit=x.xml")
    assert done.returncode == 2
    assert b"1 invalid" in done.stdout
    assert b"cannot write /dev/full: No space left on device" in done.stderr
    assert (place / "x.xml").exists()
    assert stat.S_ISCHR(FULL.stat().st_mode)


def test_a_device_is_written_to_and_not_replaced(place):
    os.mkfifo(place / "pipe")
    done = call_in_shell(
        place, "cat pipe > copy & onnxopt run demo.yaml -q --report json=pipe; wait"
    )
    assert done.returncode == 0
    assert (place / "copy").read_bytes().startswith(b"{")
    assert (place / "pipe").is_fifo()


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (["--report", "json=/proc/x.json"], b"cannot write /proc/x.json"),
        (["--log", "/proc/x.jsonl"], b"cannot write the log /proc/x.jsonl"),
        (["--report", "json=demo.yaml/x"], b"--report cannot write demo.yaml/x"),
        (["--artifacts", "demo.yaml/x"], b"demo.yaml/x"),
    ],
)
def test_a_folder_that_takes_no_files_is_named(place, option, says):
    done = call(place, "run", "demo.yaml", *option)
    assert done.returncode == 2
    assert says in b" ".join(done.stderr.split())


@pytest.mark.parametrize("arguments", [("run", "-v"), ("list",)])
def test_nothing_is_wider_than_a_terminal_of_40_columns(place, arguments):
    code, printed = call_on_terminal(place, *arguments, "demo.yaml", COLUMNS="40")
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed)
    lines = [line for part in plain.split("\n") for line in part.split("\r")]
    assert max(map(cell_len, lines)) <= 40
    assert "demo/demo/right" in plain
    assert code == (2 if arguments[0] == "run" else 0)


def test_a_terminal_has_colour_unless_the_user_wants_none(place):
    colour = re.compile(r"\x1b\[[0-9;]*3[0-9]")
    assert colour.search(call_on_terminal(place, "run", "demo.yaml")[1])
    assert not colour.search(call_on_terminal(place, "run", "demo.yaml", NO_COLOR="1")[1])


def test_a_dumb_terminal_gets_no_escape_sequence(place):
    code, printed = call_on_terminal(place, "run", "demo.yaml", TERM="dumb")
    assert "\x1b" not in printed
    assert code == 2


@pytest.mark.parametrize(
    "settings",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
)
def test_names_beyond_the_encoding_are_escaped(place, settings):
    done = call(place, "run", "demo.yaml", "-v", **settings)
    assert done.returncode == 2
    assert b"\\xfcber \\u4e2d" in done.stdout
    assert done.stdout.isascii()
    (place / "\u00e9.yaml").write_text("no: case", encoding="utf-8")
    listed = call(place, "list", ".", **settings)
    assert re.search(rb"invalid (\\xe9|\\udcc3\\udca9)\.yaml:1: ", listed.stderr)
    assert listed.returncode == 2
