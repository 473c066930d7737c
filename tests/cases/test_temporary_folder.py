"""Temporary folders: only those of killed processes are removed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from places import REPOSITORY

from onnxopt_cli.cases.onnx.corpora import temporary_folder

pytest.importorskip("fcntl")

HOLDER = """\
import sys, time
from pathlib import Path
from onnxopt_cli.cases.onnx.corpora import temporary_folder
with temporary_folder(Path(sys.argv[1]), ".cache-") as folder:
    (folder / "half").write_text("a file")
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds a temporary folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    yield process
    process.kill()
    process.communicate()


def test_only_folders_of_killed_processes_are_removed(tmp_path, holder):
    held = holder.stdout.readline().strip()
    (tmp_path / "cache").mkdir()
    (tmp_path / ".cachet").mkdir()
    with temporary_folder(tmp_path, ".cache-") as folder:
        assert folder.is_dir()
        assert Path(held, "half").exists()
    assert not folder.exists()
    holder.kill()
    holder.wait()
    assert Path(held, "half").exists()
    with temporary_folder(tmp_path, ".cache-") as folder:
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
            ["cache", ".cachet", folder.name]
        )


def test_link_to_a_folder_is_not_followed(tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    (tmp_path / ".cache-link").symlink_to(tmp_path / "precious")
    with temporary_folder(tmp_path, ".cache-"):
        pass
    assert (tmp_path / "precious" / "file").exists()


def test_renamed_folder_is_kept(tmp_path):
    with temporary_folder(tmp_path, ".cache-") as folder:
        (folder / "whole").touch()
        folder.rename(tmp_path / "cache")
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
    assert (tmp_path / "cache" / "whole").exists()
