"""What a backend leaves in temporary files goes with its worker, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from isolated import require, run_in_turn, run_to_end, start, write_cases
from places import PLUGINS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

LITTER = f"python:{PLUGINS / 'litter.py'}:Backend"


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def left_in(folder, patience=30):
    """Return what is still in a folder after a moment."""
    end = time.monotonic() + patience
    while (left := list(folder.iterdir())) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def test_no_temporary_file_outlives_its_worker(tmp_path, temporary):
    write_cases(tmp_path, {"falls": 0.5, "hangs": 0.25, "exits": 0.125, "answers": 0.0625})
    run = run_to_end(tmp_path, LITTER, "--timeout", "3")
    assert list(run.outcomes.values()) == ["crash", "timeout", "crash", "pass"]
    assert list(temporary.iterdir()) == []


def test_no_temporary_file_outlives_a_runner_that_is_killed(tmp_path, temporary):
    write_cases(tmp_path, {"bad": 0.25})
    run = start(tmp_path, LITTER, "-j", "1")
    end = time.monotonic() + 20
    while not list(temporary.glob("*/*")) and time.monotonic() < end:
        time.sleep(0.02)
    run.process.kill()
    run.process.communicate()
    assert run.survivors() == []
    assert left_in(temporary) == []


def test_a_folder_for_temporary_files_that_cannot_be_made_costs_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", "/proc")
    write_cases(tmp_path, {"good": 0.0625})
    assert run_to_end(tmp_path, LITTER, "-j", "1").outcomes == {"good": "pass"}


@pytest.mark.parametrize("wait", [0.0, 0.01, 0.03, 0.1])
def test_a_runner_that_is_killed_as_a_worker_starts_leaves_no_folder(tmp_path, temporary, wait):
    write_cases(tmp_path, {"bad": 0.25})
    run = start(tmp_path, LITTER, "-j", "2")
    listed = Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children")
    while not listed.read_text():
        time.sleep(0.001)
    time.sleep(wait)
    run.process.kill()
    run.process.communicate()
    assert run.survivors() == []
    assert left_in(temporary) == []


def kill_all(run):
    """Kill a run so that nobody can clean up."""
    processes = [process.number for process in run.survivors(0)]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in processes:
            os.kill(process, number)
    run.process.communicate()
    assert run.survivors() == []


def wait_for_litter(temporary, known=()):
    """Return the folder, not yet known, where a worker has left something."""
    end = time.monotonic() + 20
    while not (found := {path.parent for path in temporary.glob("*/*")} - set(known)):
        assert time.monotonic() < end
        time.sleep(0.02)
    (folder,) = found
    return folder


def test_the_next_run_removes_what_killed_ones_left_and_nothing_of_living_ones(tmp_path, temporary):
    write_cases(tmp_path, {"bad": 0.25})
    run = start(tmp_path, LITTER, "-j", "1")
    stale = wait_for_litter(temporary)
    kill_all(run)
    assert list(temporary.iterdir()) == [stale]
    living = start(tmp_path, LITTER, "-j", "1")
    held = wait_for_litter(temporary, [stale])
    write_cases(tmp_path, {"good": 0.0625})
    assert run_to_end(tmp_path, LITTER, "-j", "1").code == 0
    left = list(temporary.iterdir())
    living.process.kill()
    living.process.communicate()
    assert left == [held]


def test_what_is_not_surely_ours_is_left_alone(tmp_path, temporary):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    (temporary / "onnxopt-worker-0123456789abcdef").symlink_to(precious)
    (temporary / "onnxopt-worker-file").touch()
    (temporary / "onnxopt-worker-0123456789abcdee.new").mkdir()
    # Somebody's own folders that are named alike.
    for name in ("onnxopt-worker-results", "onnxopt-worker-0123456789abcded", "onnxopt-worker-"):
        (temporary / name).mkdir(0o700)
        (temporary / name / "thesis").touch()
    (temporary / "onnxopt-other").mkdir()
    (temporary / "other").mkdir()
    if os.geteuid() == 0:
        (temporary / "onnxopt-worker-0123456789abcdea").mkdir()
        os.chown(temporary / "onnxopt-worker-0123456789abcdea", 12345, 12345)
    before = sorted(temporary.rglob("*"))
    write_cases(tmp_path, {"good": 0.0625})
    assert run_to_end(tmp_path, LITTER, "-j", "1").code == 0
    assert sorted(temporary.rglob("*")) == before
    assert (precious / "file").exists()


def test_whatever_a_backend_makes_of_its_folder_it_is_removed_and_nothing_else(tmp_path, temporary):
    precious = tmp_path / "precious"
    precious.mkdir(mode=0o700)
    (precious / "file").touch(0o600)
    ways = ("digs", "locks_up", "links", "replaces")
    run = run_in_turn(tmp_path, ways, plugin=PLUGINS / "survivors.py")
    left = list(temporary.iterdir())
    # Not for pytest, which cannot remove folders that are so deep.
    subprocess.run(["/bin/rm", "-rf", *left], check=True)
    for way in ways:
        require(run, way, "crash")
    assert left == []
    assert (precious / "file").stat().st_mode & 0o777 == 0o600
