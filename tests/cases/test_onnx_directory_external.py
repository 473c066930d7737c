"""External data of models in test directories: valid and rejected locations."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, external_data_helper, helper, numpy_helper
from onnx_directories import FLOAT, ONE_TWO, identity, make_directory, tensor

from onnxopt_cli.cases.onnx import model_file
from onnxopt_cli.cases.onnx.data_set import data_set_files, read_case
from onnxopt_cli.cases.onnx.directory import find_directories
from onnxopt_cli.core.untrusted_files import recorded
from onnxopt_cli.errors import InvalidCase

DATA = b"head" + ONE_TWO.tobytes() + b"tail"


def external(name="w", data_type=TensorProto.FLOAT, dims=(2,), **entries):
    weight = TensorProto(name=name, data_type=data_type, dims=dims, data_location=1)
    for key, value in entries.items():
        weight.external_data.add(key=key, value=value)
    return weight


def read(tmp_path, *tensors, extra=()):
    model = identity({"x": FLOAT}, tensors)
    model.graph.node.extend(extra)
    value = tensor(ONE_TWO)
    directory = make_directory(tmp_path / "test_x", model, [value], [value])
    if not (directory / "weights").exists():
        (directory / "weights").write_bytes(DATA)
    return read_case(data_set_files(directory, 0))


def complaint(tmp_path, *tensors):
    with pytest.raises(InvalidCase) as caught:
        read(tmp_path, *tensors)
    (problem,) = caught.value.problems
    return problem.what.removeprefix("the initializer 'w' ")


def test_external_data_are_read_into_the_model(tmp_path):
    content = read(tmp_path, external(location="weights", offset="4", length="8", checksum="0"))
    (weight,) = content.model.graph.initializer
    assert numpy_helper.to_array(weight).tolist() == [1, 2]
    assert weight.data_location == TensorProto.DEFAULT
    assert not weight.external_data


def test_a_model_saved_by_onnx_with_external_data_is_read(tmp_path):
    directory = tmp_path / "test_x"
    large = np.arange(5000, dtype=np.float32)
    value = tensor(ONE_TWO)
    model = identity({"x": FLOAT}, [tensor(large, "w")])
    make_directory(directory, None, [value], [value])
    onnx.save(model, directory / "model.onnx", save_as_external_data=True, location="d")
    assert external_data_helper.uses_external_data(
        onnx.load(directory / "model.onnx", load_external_data=False).graph.initializer[0]
    )
    ((case,), _) = find_directories(directory)
    assert np.array_equal(numpy_helper.to_array(case.load().model.graph.initializer[0]), large)


def test_files_of_a_case_have_the_paths_at_which_they_are_opened(tmp_path, monkeypatch):
    read(tmp_path, external(location="weights", offset="4"))
    (tmp_path / "link").symlink_to("test_x")
    monkeypatch.chdir(tmp_path)
    for folder in ("test_x", "link"):
        ((case,), _) = find_directories(Path(folder))
        with recorded() as opened:
            case.load()
        assert str(tmp_path.resolve() / "test_x" / "weights") in opened
        assert opened.keys() <= case.files().keys()


def test_external_data_in_subgraphs_and_attributes_are_read(tmp_path):
    weight = external(location="weights", offset="4")
    constant = helper.make_node("Constant", [], ["c"], value=weight)
    inner = helper.make_graph([constant], "inner", [], [], [weight])
    content = read(tmp_path, extra=[helper.make_node("If", ["x"], ["y"], then_branch=inner)])
    graph = content.model.graph.node[1].attribute[0].g
    assert numpy_helper.to_array(graph.initializer[0]).tolist() == [1, 2]
    assert numpy_helper.to_array(graph.node[0].attribute[0].t).tolist() == [1, 2]


def test_external_data_in_a_subfolder_are_read(tmp_path):
    below = tmp_path / "test_x" / "below"
    below.mkdir(parents=True)
    (below / "w").write_bytes(ONE_TWO.tobytes())
    content = read(tmp_path, external(location="./below/w"))
    assert numpy_helper.to_array(content.model.graph.initializer[0]).tolist() == [1, 2]


@pytest.mark.parametrize(
    "location",
    ["../weights", "below/../../weights", "/etc/passwd", "C:/weights", "..\\weights", "a\0b", "."],
)
def test_location_outside_the_folder_is_rejected(tmp_path, location):
    (tmp_path / "weights").write_bytes(DATA)
    assert complaint(tmp_path, external(location=location)) == (
        f"has external data in {location!r}, which is not a path inside the model's folder"
    )


def test_symbolic_link_to_external_data_is_rejected(tmp_path):
    (tmp_path / "secret").write_bytes(DATA)
    (tmp_path / "test_x").mkdir()
    (tmp_path / "test_x" / "weights").symlink_to(tmp_path / "secret")
    assert complaint(tmp_path, external(location="weights")) == (
        "has external data in 'weights', which leads through a symbolic link"
    )


def test_linked_folder_of_external_data_is_rejected(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "w").write_bytes(DATA)
    (tmp_path / "test_x").mkdir()
    (tmp_path / "test_x" / "below").symlink_to(tmp_path / "outside")
    assert complaint(tmp_path, external(location="below/w")) == (
        "has external data in 'below/w', which leads through a symbolic link"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="needs paths relative to an open folder")
def test_link_that_replaces_the_folder_of_external_data_is_not_followed(tmp_path, monkeypatch):
    below = tmp_path / "test_x" / "below"
    for folder in (below, tmp_path / "outside"):
        folder.mkdir(parents=True)
        (folder / "w").write_bytes(DATA)

    def exchange_after_check(path):
        if path.name == "w":
            below.rename(tmp_path / "gone")
            below.symlink_to(tmp_path / "outside")
        return False

    monkeypatch.setattr(model_file, "_is_link", exchange_after_check)
    assert complaint(tmp_path, external(location="below/w")) == (
        "has external data in 'below/w', which has become a symbolic link since it was checked"
    )


def test_hard_link_to_external_data_is_rejected(tmp_path):
    (tmp_path / "secret").write_bytes(DATA)
    (tmp_path / "test_x").mkdir()
    os.link(tmp_path / "secret", tmp_path / "test_x" / "weights")
    assert complaint(tmp_path, external(location="weights")) == (
        "has external data in 'weights', which is a hard link: the file has another name elsewhere"
    )


def test_named_pipe_is_rejected_without_blocking(tmp_path):
    (tmp_path / "test_x").mkdir()
    os.mkfifo(tmp_path / "test_x" / "pipe")
    assert complaint(tmp_path, external(location="pipe")) == (
        "has external data in 'pipe', which is not a regular file"
    )


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (external(location="none"), "has external data in 'none', which is missing"),
        (external(), "has external data without a location"),
        (external(location=""), "has external data without a location"),
        (
            external(location="weights", length="9"),
            "has external data of length 9; type and dims need 8",
        ),
        (
            external(location="weights", offset="9"),
            "has external data in 'weights', which has 16 bytes; offset 9 and length 8 need more",
        ),
        (
            external(location="weights", offset="9" * 19),
            (
                "has external data in 'weights', which has 16 bytes; "
                f"offset {'9' * 19} and length 8 need more"
            ),
        ),
        (
            external(location="weights", dims=[2**40]),
            (
                "has external data in 'weights', which has 16 bytes; "
                f"offset 0 and length {2**42} need more"
            ),
        ),
        (
            external(location="weights", offset="-1"),
            "has external data with the offset '-1'; a number was expected",
        ),
        (
            external(location="weights", length="٣"),
            "has external data with the length '٣'; a number was expected",
        ),
        (external(location="weights", dims=[-1]), "has a negative dimension: [-1]"),
        (
            external(location="weights", data_type=TensorProto.STRING),
            "has strings, which have no raw form",
        ),
    ],
)
def test_inconsistent_external_data_are_rejected(tmp_path, weight, message):
    assert complaint(tmp_path, weight) == message


def test_duplicate_location_is_rejected(tmp_path):
    weight = external(location="weights")
    weight.external_data.add(key="location", value="other")
    assert complaint(tmp_path, weight) == "names its external data twice"


def test_total_size_of_tensors_that_share_bytes_is_limited(tmp_path, monkeypatch):
    weights = [external(f"w{index}", location="weights") for index in range(3)]
    read(tmp_path, *weights)
    # The limit leaves room for two tensors in addition to the model.
    most = (tmp_path / "test_x" / "model.onnx").stat().st_size + 20
    monkeypatch.setattr(model_file, "PROTOBUF_LIMIT", most)
    with pytest.raises(InvalidCase) as caught:
        model_file.read_model(tmp_path / "test_x" / "model.onnx")
    (problem,) = caught.value.problems
    assert problem.what.startswith(
        f"the initializer 'w2' brings the model to more than {most} bytes, the limit of a protobuf"
    )


def test_external_data_together_with_raw_data_are_rejected(tmp_path):
    weight = tensor(ONE_TWO, "w")
    weight.external_data.add(key="location", value="/etc/passwd")
    assert complaint(tmp_path, weight) == "stores its elements in another file"
