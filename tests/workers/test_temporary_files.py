"""However a worker ends, the temporary files of its backend are removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from isolated import require, run_in_turn, run_to_end, start, write_cases
from places import PLUGINS

from onnxopt_cli.workers.private_folder import sweep_folders, temporary_folder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

LITTER = f"python:{PLUGINS / 'litter.py'}:Backend"


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Return an empty folder, which is used for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    # Make tempfile read TMPDIR again.
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def wait_until_empty(folder, seconds=30):
    """Wait until a folder is empty; return the paths that remain after ``seconds`` seconds."""
    end = time.monotonic() + seconds
    while (paths := list(folder.iterdir())) and time.monotonic() < end:
        time.sleep(0.05)
    return paths


@pytest.mark.slow
def test_no_temporary_file_outlives_its_worker(tmp_path, temporary):
    write_cases(tmp_path, {"falls": 0.5, "hangs": 0.25, "exits": 0.125, "answers": 0.0625})
    run = run_to_end(tmp_path, LITTER, "--timeout", "3")
    assert list(run.outcomes.values()) == ["crash", "timeout", "crash", "pass"]
    assert list(temporary.iterdir()) == []


def test_no_temporary_file_outlives_a_killed_runner(tmp_path, temporary):
    write_cases(tmp_path, {"bad": 0.25})
    run = start(tmp_path, LITTER, "-j", "1")
    end = time.monotonic() + 20
    while not list(temporary.glob("*/*")) and time.monotonic() < end:
        time.sleep(0.02)
    run.process.kill()
    run.process.communicate()
    assert run.survivors() == []
    assert wait_until_empty(temporary) == []


def test_run_succeeds_if_the_temporary_folder_cannot_be_created(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", "/proc")
    write_cases(tmp_path, {"good": 0.0625})
    assert run_to_end(tmp_path, LITTER, "-j", "1").outcomes == {"good": "pass"}


@pytest.mark.parametrize(
    "wait",
    [
        pytest.param(0.0, marks=pytest.mark.slow),
        pytest.param(0.01, marks=pytest.mark.slow),
        0.03,
        pytest.param(0.1, marks=pytest.mark.slow),
    ],
)
def test_runner_killed_while_a_worker_starts_leaves_no_folder(tmp_path, temporary, wait):
    write_cases(tmp_path, {"bad": 0.25})
    run = start(tmp_path, LITTER, "-j", "2")
    listed = Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children")
    while not listed.read_text():
        time.sleep(0.001)
    time.sleep(wait)
    run.process.kill()
    run.process.communicate()
    assert run.survivors() == []
    assert wait_until_empty(temporary) == []


def kill_all(run):
    """Kill all processes of a run together, so that none of them can remove files."""
    processes = [process.number for process in run.survivors(0)]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in processes:
            os.kill(process, number)
    run.process.communicate()
    assert run.survivors() == []


def wait_for_litter(temporary, known=()):
    """Wait until a worker creates a file in a folder that is not known, and return the folder."""
    end = time.monotonic() + 20
    while not (folders := {path.parent for path in temporary.glob("*/*")} - set(known)):
        assert time.monotonic() < end
        time.sleep(0.02)
    (folder,) = folders
    return folder


@pytest.mark.slow
def test_next_run_removes_folders_of_killed_runs_only(tmp_path, temporary):
    write_cases(tmp_path, {"bad": 0.25})
    run = start(tmp_path, LITTER, "-j", "1")
    stale = wait_for_litter(temporary)
    kill_all(run)
    assert list(temporary.iterdir()) == [stale]
    living = start(tmp_path, LITTER, "-j", "1")
    held = wait_for_litter(temporary, [stale])
    write_cases(tmp_path, {"good": 0.0625})
    assert run_to_end(tmp_path, LITTER, "-j", "1").code == 0
    folders = list(temporary.iterdir())
    living.process.kill()
    living.process.communicate()
    assert folders == [held]


def test_folder_of_a_command_is_removed_after_the_command_was_killed(temporary):
    with temporary_folder() as held_folder:
        if (child := os.fork()) == 0:
            with temporary_folder() as folder:
                Path(folder, "values").touch()
                os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        assert len(list(temporary.iterdir())) == 2
        sweep_folders()
        assert list(temporary.iterdir()) == [Path(held_folder)]
    assert list(temporary.iterdir()) == []


def test_folders_of_other_programs_are_not_removed(tmp_path, temporary):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    (temporary / "onnxopt-worker-0123456789abcdef").symlink_to(precious)
    (temporary / "onnxopt-worker-file").touch()
    (temporary / "onnxopt-worker-0123456789abcdee.new").mkdir()
    # Other programs may have folders with similar names.
    for name in ("onnxopt-worker-results", "onnxopt-worker-0123456789abcded", "onnxopt-worker-"):
        (temporary / name).mkdir(0o700)
        (temporary / name / "thesis").touch()
    (temporary / "onnxopt-other").mkdir()
    (temporary / "other").mkdir()
    if os.geteuid() == 0:
        (temporary / "onnxopt-worker-0123456789abcdea").mkdir()
        os.chown(temporary / "onnxopt-worker-0123456789abcdea", 12345, 12345)
    before = sorted(temporary.rglob("*"))
    sweep_folders()
    assert sorted(temporary.rglob("*")) == before
    assert (precious / "file").exists()


@pytest.mark.slow
def test_worker_folder_is_removed_with_any_content_and_links_are_not_followed(tmp_path, temporary):
    precious = tmp_path / "precious"
    precious.mkdir(mode=0o700)
    (precious / "file").touch(0o600)
    ways = ("digs", "locks_up", "links", "replaces")
    run = run_in_turn(tmp_path, ways, plugin=PLUGINS / "survivors.py")
    remaining = list(temporary.iterdir())
    # Remove remaining folders with rm, because pytest cannot remove such deeply nested folders.
    subprocess.run(["/bin/rm", "-rf", *remaining], check=True)
    for way in ways:
        require(run, way, "crash")
    assert remaining == []
    assert (precious / "file").stat().st_mode & 0o777 == 0o600
