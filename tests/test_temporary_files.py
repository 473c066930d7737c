"""What a backend leaves in temporary files goes with its worker, however that ends."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from isolated import start, write_cases

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

LITTER = f"python:{Path(__file__).parent / 'plugins' / 'litter.py'}:Backend"


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def left_in(folder, patience=5):
    """Return what is still in a folder after a moment."""
    end = time.monotonic() + patience
    while (left := list(folder.iterdir())) and time.monotonic() < end:
        time.sleep(0.05)
    return left


@pytest.mark.parametrize(
    ("rate", "outcome"), [(0.5, "crash"), (0.25, "timeout"), (0.125, "crash"), (0.0625, "pass")]
)
def test_no_temporary_file_outlives_its_worker(tmp_path, temporary, rate, outcome):
    write_cases(tmp_path, {"bad": rate})
    run = start(tmp_path, LITTER, "-j", "1", "--timeout", "1").wait()
    assert run.outcomes == {"bad": outcome}
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
    assert start(tmp_path, LITTER, "-j", "1").wait().outcomes == {"good": "pass"}
