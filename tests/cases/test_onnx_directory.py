"""Finding ONNX test directories: their cases, ids and faults."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from onnx_directories import FLOAT, ONE_TWO, identity, make_directory, make_plain, tensor

from onnxopt_cli import load_cases
from onnxopt_cli.cases.onnx.directory import find_directories


def ids(root):
    cases, problems = find_directories(root)
    assert problems == []
    return [case.id for case in cases]


def problem(root, *, cases=0):
    found, (only,) = find_directories(root)
    assert len(found) == cases
    return only


@pytest.mark.parametrize(
    "kind", ["node", "simple", "pytorch-operator", "pytorch-converted", "real", "model"]
)
def test_folder_with_the_name_of_an_onnx_kind_belongs_to_that_suite(tmp_path, kind):
    make_plain(tmp_path / kind / "test_x")
    assert ids(tmp_path / kind) == [f"onnx-{kind}/test_x/0"]


def test_suite_of_another_folder_has_its_name(tmp_path):
    make_plain(tmp_path / "mine" / "test_x")
    assert ids(tmp_path) == ["mine/test_x/0"]


def test_id_does_not_depend_on_the_spelling_of_the_path(tmp_path, monkeypatch):
    directory = make_plain(tmp_path / "tree" / "mine" / "test_x")
    (tmp_path / "link").symlink_to(directory)
    data_set = directory / "test_data_set_0"
    roots = [tmp_path, directory.parent, directory, data_set, tmp_path / "link"]
    roots += [directory / ".." / "test_x", tmp_path / "link" / "test_data_set_0"]
    assert {tuple(ids(root)) for root in roots} == {("mine/test_x/0",)}
    for inside in (data_set, directory, directory.parent):
        monkeypatch.chdir(inside)
        assert ids(Path()) == ["mine/test_x/0"]


def test_location_is_the_path_as_typed(tmp_path, monkeypatch):
    make_plain(tmp_path / "mine" / "test_x")
    monkeypatch.chdir(tmp_path)
    ((case,), _) = find_directories(Path("mine"))
    assert str(case.location) == str(Path("mine/test_x/test_data_set_0"))


def test_data_sets_are_sorted_as_numbers(tmp_path):
    for number in range(11):
        make_directory(tmp_path / "s" / "test_x", identity({"x": FLOAT}), number=number)
    assert ids(tmp_path) == [f"s/test_x/{number}" for number in range(11)]


def test_directories_are_sorted_by_name(tmp_path):
    for name in ("test_b", "test_a", "test_c"):
        make_plain(tmp_path / "s" / name)
    assert ids(tmp_path) == ["s/test_a/0", "s/test_b/0", "s/test_c/0"]


def test_path_of_a_data_set_selects_only_that_data_set(tmp_path):
    for number in range(3):
        make_directory(tmp_path / "s" / "test_x", identity({"x": FLOAT}), number=number)
    assert ids(tmp_path / "s" / "test_x" / "test_data_set_1") == ["s/test_x/1"]


def test_light_models_are_cases_without_a_directory(tmp_path):
    folder = tmp_path / "light"
    folder.mkdir()
    (folder / "light_a.onnx").write_bytes(identity({"x": FLOAT}).SerializeToString())
    (folder / "other.onnx").write_bytes(b"")
    (folder / "light_a_output_0.pb").write_bytes(tensor(ONE_TWO).SerializeToString())
    assert ids(folder) == ids(tmp_path) == ["onnx-light/light_a/0"]


def test_path_of_a_model_file_selects_only_its_cases(tmp_path):
    for number in range(2):
        make_directory(tmp_path / "test_x", identity({"x": FLOAT}), number=number)
    make_plain(tmp_path / "test_y")
    for name in ("light_a", "light_b"):
        (tmp_path / f"{name}.onnx").write_bytes(identity({"x": FLOAT}).SerializeToString())
        (tmp_path / f"{name}_output_0.pb").write_bytes(tensor(ONE_TWO).SerializeToString())
    suite = tmp_path.name
    of_directory = [case.id for case in load_cases(tmp_path / "test_x" / "model.onnx")]
    assert of_directory == [f"{suite}/test_x/0", f"{suite}/test_x/1"]
    assert [case.id for case in load_cases(tmp_path / "light_b.onnx")] == [f"{suite}/light_b/0"]


@pytest.mark.parametrize("name", ["model.onnx", "other.onnx"])
def test_model_file_without_test_data_is_one_case(tmp_path, name):
    make_plain(tmp_path / "test_y")
    (tmp_path / name).write_bytes(identity({"x": FLOAT}).SerializeToString())
    (case,) = load_cases(tmp_path / name)
    assert case.id == f"{tmp_path.name}/{name.removesuffix('.onnx')}"
    assert case.load().stored is None


def test_gap_in_the_data_sets_is_reported(tmp_path):
    for number in (0, 2):
        make_directory(tmp_path / "s" / "test_x", identity({"x": FLOAT}), number=number)
    assert str(problem(tmp_path, cases=2)) == (
        f"{tmp_path / 's' / 'test_x'}: has test_data_set_2, but no test_data_set_1"
    )


def test_data_sets_that_begin_with_one_are_reported(tmp_path):
    make_directory(tmp_path / "test_x", identity({"x": FLOAT}), number=1)
    assert problem(tmp_path, cases=1).what == "has test_data_set_1, but no test_data_set_0"


@pytest.mark.parametrize("name", ["test_data_set_00", "test_data_set_x", "test_data_set_-1"])
def test_data_set_without_a_valid_number_is_reported(tmp_path, name):
    make_plain(tmp_path / "test_x")
    (tmp_path / "test_x" / name).mkdir()
    assert problem(tmp_path, cases=1).what == f"has {name!r}; test_data_set_<number> was expected"


def test_directory_without_data_sets_is_reported(tmp_path):
    (tmp_path / "test_x").mkdir()
    (tmp_path / "test_x" / "model.onnx").write_bytes(b"")
    assert problem(tmp_path).what == "has no data sets: no folder test_data_set_0"


def test_data_sets_without_a_model_are_reported(tmp_path):
    make_directory(tmp_path / "anything")
    assert problem(tmp_path).what == "has data sets, but no model.onnx"


@pytest.mark.parametrize("file", [None, "input_0.pb", "data.json"])
def test_test_directory_without_a_model_is_reported(tmp_path, file):
    (tmp_path / "test_x").mkdir()
    if file:
        (tmp_path / "test_x" / file).write_bytes(b"{}")
    assert problem(tmp_path).what == "has no model.onnx"


def test_remote_model_is_reported_and_not_downloaded(tmp_path):
    (tmp_path / "test_x").mkdir()
    data = '{"url": "https://example.org/m.tar.gz", "model_name": "m", "rtol": 0.1}'
    (tmp_path / "test_x" / "data.json").write_text(data)
    assert problem(tmp_path).what == (
        "has no model.onnx: it is at 'https://example.org/m.tar.gz', but onnxopt downloads no files"
    )


def test_remote_model_with_a_local_copy_is_read(tmp_path):
    make_plain(tmp_path / "s" / "test_x")
    data = '{"url": "https://example.org/m.tar.gz", "model_name": "m"}'
    (tmp_path / "s" / "test_x" / "data.json").write_text(data)
    assert ids(tmp_path) == ["s/test_x/0"]


def test_other_folders_are_ignored(tmp_path):
    (tmp_path / "test_code").mkdir()
    (tmp_path / "test_code" / "test_it.py").write_text("")
    (tmp_path / "yaml").mkdir()
    (tmp_path / "yaml" / "model.onnx").write_bytes(b"")
    (tmp_path / "yaml" / "cases.yaml").write_text("")
    make_plain(tmp_path / ".hidden" / "test_x")
    assert ids(tmp_path) == []


def test_search_ends_with_cyclic_links(tmp_path):
    make_plain(tmp_path / "s" / "test_x")
    (tmp_path / "s" / "again").symlink_to(tmp_path / "s")
    (tmp_path / "s" / "up").symlink_to(tmp_path)
    (tmp_path / "s" / "self").symlink_to(tmp_path / "s" / "self")
    assert ids(tmp_path) == ["s/test_x/0"]


def test_directory_found_twice_is_one_case(tmp_path):
    make_plain(tmp_path / "z" / "test_x")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "alias").symlink_to(tmp_path / "z" / "test_x")
    assert ids(tmp_path) == ["z/test_x/0"]


def test_depth_of_the_search_is_limited(tmp_path):
    deep = tmp_path.joinpath(*"abcdefghijklmnopqrst")
    make_plain(deep / "test_x")
    assert problem(tmp_path).what == "is more than 16 folders deep; not searched"


def test_unprintable_name_is_reported(tmp_path):
    make_plain(tmp_path / "s" / "test_\x1b[31m")
    assert problem(tmp_path).what == r"has a name that is not printable: 's/test_\x1b[31m/0'"


def test_name_that_is_not_unicode_is_reported(tmp_path):
    try:
        make_plain(tmp_path / "s" / os.fsdecode(b"test_\xff"))
    except OSError:
        pytest.skip("this file system has Unicode names only")
    assert problem(tmp_path).what == r"has a name that is not printable: 's/test_\udcff/0'"


def test_missing_folder_is_reported(tmp_path):
    assert problem(tmp_path / "no").what == "cannot be read: No such file or directory"


def test_finding_cases_does_not_parse_models(tmp_path):
    make_directory(tmp_path / "s" / "test_x", b"not a model", [b"not a tensor"])
    assert ids(tmp_path) == ["s/test_x/0"]
