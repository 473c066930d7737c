"""Limits on the work that files can cause: an error names the file or folder."""

from __future__ import annotations

import time

import numpy as np
import pytest
from onnx_directories import identity, make_directory, tensor, tensor_type

from onnxopt_cli.backends.backend_code import snapshot_files
from onnxopt_cli.cases.onnx import data_set, directory
from onnxopt_cli.cases.onnx.directory import find_directories
from onnxopt_cli.run.log import log_header
from onnxopt_cli.suites import collect as collecting

ONES = tensor(np.float32([1, 1]))


def plain(folder):
    make_directory(folder, identity({"x": tensor_type()}), [ONES], [ONES])


def sparse(path, size):
    with path.open("wb") as file:
        file.truncate(size)


def problems(folder):
    cases, faults = find_directories(folder)
    return [case.id for case in cases], [str(fault) for fault in faults]


@pytest.mark.parametrize("target", ["/", "..", "../.."])
def test_link_to_a_parent_folder_is_named_and_not_followed(tmp_path, target):
    root = tmp_path / "a" / "b"
    plain(root / "right")
    (root / "up").symlink_to(target)
    began = time.monotonic()
    ids, faults = problems(root)
    assert ids == ["b/right/0"]
    assert faults == [f"{root}/up: links to a folder that contains it; not searched"]
    assert time.monotonic() - began < 5


def test_number_of_linked_files_is_limited(tmp_path, monkeypatch):
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    plain(root / "right")
    for number in range(30):
        (elsewhere / f"{number:02}").mkdir(parents=True)
    (root / "far").symlink_to(elsewhere)
    assert problems(root) == (["root/right/0"], [])
    monkeypatch.setattr(directory, "MAX_LINKED_ENTRIES", 20)
    ids, (fault,) = problems(root)
    assert ids == ["root/right/0"]
    assert "far: is not searched: the limit is 20 files and folders reached through links" in fault


def test_folder_with_too_many_files_is_named(monkeypatch, workplace, onnxopt):
    plain(workplace / "a" / "right")
    for number in range(30):
        (workplace / "b" / f"{number:02}").mkdir(parents=True)
    monkeypatch.setattr(directory, "MAX_ENTRIES", 20)
    monkeypatch.setattr(collecting, "MAX_ENTRIES", 20)
    answer = onnxopt("list", ".")
    assert answer.code == 2
    assert "right/0" in answer.out
    assert "b: is not searched: the limit is 20 files and folders" in answer.err


def test_case_with_too_many_bytes_in_its_files_is_skipped(workplace, onnxopt, monkeypatch):
    plain(workplace / "some" / "right")
    model = identity({name: tensor_type() for name in "xyz"})
    make_directory(workplace / "some" / "large", model, [ONES] * 3, [ONES] * 3)
    for number in range(3):
        sparse(workplace / "some" / "large" / "test_data_set_0" / f"input_{number}.pb", 1 << 20)
    monkeypatch.setattr(data_set, "MAX_CASE_BYTES", 2 << 20)
    answer = onnxopt("run", "some", "-b", "onnx-reference", "--isolation", "none")
    assert answer.code == 0
    text = " ".join(answer.text.replace("│", " ").split())
    assert "large/test_data_set_0" in text
    assert "more than 2097152 bytes" in text
    assert "limit of onnxopt" in text
    assert "1 pass" in text


def test_log_does_not_read_oversized_files(workplace, onnxopt, caplog):
    plain(workplace / "some" / "right")
    plain(workplace / "some" / "large")
    sparse(workplace / "some" / "large" / "test_data_set_0" / "input_1.pb", 40 << 30)
    began = time.monotonic()
    answer = onnxopt("run", "some", "-b", "onnx-reference", "--isolation", "none", "--log", "l")
    assert answer.code == 2
    assert "input_1.pb has 42949672960 bytes" in caplog.text
    assert "1 pass" in answer.out
    assert time.monotonic() - began < 20
    # If a file is too large to be read, the log identifies the file by its size.
    snapshot = log_header.FileSnapshot()
    path = str(workplace / "some" / "large" / "test_data_set_0" / "input_1.pb")
    snapshot.digest(path)
    assert not list(snapshot.changed())
    sparse(workplace / "some" / "large" / "test_data_set_0" / "input_1.pb", 41 << 30)
    assert len(list(snapshot.changed())) == 1


def test_files_beyond_the_hashing_limit_are_identified_by_size_and_time(tmp_path, monkeypatch):
    monkeypatch.setattr(log_header, "MAX_HASHED_BYTES", 1000)
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"\0" * 600)
    snapshot = log_header.FileSnapshot()
    first, second = (snapshot.digest(str(tmp_path / name)) for name in ("a", "b"))
    assert first != second
    (tmp_path / "b").write_bytes(b"\1" * 600)
    assert [fault.where for fault in snapshot.changed()] == [str(tmp_path / "b")]


@pytest.mark.slow
def test_search_for_the_code_of_a_plugin_is_limited(tmp_path):
    (tmp_path / "vendor.py").write_text("import everything\n")
    (tmp_path / "everything").symlink_to("/")
    began = time.monotonic()
    assert "vendor.py" in snapshot_files(f"python:{tmp_path}/vendor.py:Backend")
    assert time.monotonic() - began < 30
