"""Written ONNX test directories: their layout, their bytes, and the cases read from them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from onnx import TensorProto, helper, load
from onnx_directories import (
    FLOAT,
    ONE_TWO,
    arrays,
    element_number_of,
    identity,
    same,
    tensor,
    tensor_type,
)

from onnxopt_cli.cases.case import Problem
from onnxopt_cli.cases.onnx.data_set import (
    data_set_files,
    directory_files,
    read_case,
    write_directory,
)
from onnxopt_cli.core.tolerance import (
    ONNX_DEFAULT,
    Provenance,
    Relative,
    Ulps,
)
from onnxopt_cli.errors import UsageError

SEQUENCE = helper.make_sequence_type_proto(tensor_type())
OPTIONAL = helper.make_optional_type_proto(SEQUENCE)
MAP = helper.make_map_type_proto(TensorProto.STRING, tensor_type())


def content(values, types, **others):
    expected = {f"out_{name}": value for name, value in values.items()}
    return Problem(identity(types), values, expected, **others)


def read(folder):
    return read_case(data_set_files(folder, 0))


def test_layout_of_files_is_that_of_onnx(tmp_path):
    write_directory(tmp_path / "node" / "test_x", content({"x": ONE_TWO}, {"x": FLOAT}))
    files = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*"))
    assert files == [
        "node/test_x/model.onnx",
        "node/test_x/test_data_set_0/input_0.pb",
        "node/test_x/test_data_set_0/output_0.pb",
    ]
    data = (tmp_path / "node/test_x/test_data_set_0/output_0.pb").read_bytes()
    assert TensorProto.FromString(data) == tensor(ONE_TWO, "out_x")
    assert load(tmp_path / "node/test_x/model.onnx") == identity({"x": FLOAT})


def test_tolerance_in_data_json_reads_back(tmp_path):
    tolerance = Relative(0.125, 1e-7, Provenance.CASE)
    write_directory(tmp_path / "a", content({"x": ONE_TWO}, {"x": FLOAT}, tolerance=tolerance))
    assert json.loads((tmp_path / "a" / "data.json").read_text()) == {"rtol": 0.125, "atol": 1e-7}
    assert read(tmp_path / "a").tolerance == Relative(0.125, 1e-7, Provenance.DIRECTORY)


@given(arrays())
def test_written_arrays_read_back_bit_for_bit(tmp_path_factory, array):
    folder = tmp_path_factory.mktemp("case")
    case = content({"x": array}, {"x": tensor_type(element_number_of(array), array.shape)})
    write_directory(folder, case)
    back = read(folder)
    assert back.model == case.model
    assert same(dict(back.inputs), {"x": array})
    assert same(dict(back.stored), {"out_x": array})


def test_sequences_optionals_and_maps_read_back(tmp_path):
    values = {"s": [ONE_TWO, ONE_TWO[:0]], "o": None, "p": [ONE_TWO], "m": {"k": ONE_TWO}}
    types = {"s": SEQUENCE, "o": OPTIONAL, "p": OPTIONAL, "m": MAP}
    write_directory(tmp_path / "a", content(values, types))
    assert same(dict(read(tmp_path / "a").inputs), values)


def test_an_input_with_an_initializer_is_not_written(tmp_path):
    model = identity({"w": FLOAT, "x": FLOAT}, [tensor(ONE_TWO, "w")])
    write_directory(tmp_path / "a", Problem(model, {"x": ONE_TWO}, {"out_x": ONE_TWO}))
    assert list(read(tmp_path / "a").inputs) == ["x"]


def test_equal_cases_have_equal_files():
    case = content({"x": ONE_TWO, "m": {"b": ONE_TWO, "a": ONE_TWO}}, {"x": FLOAT, "m": MAP})
    assert directory_files(case) == directory_files(case)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Problem(identity({"x": FLOAT}), {"x": ONE_TWO}, None), "needs the expected outputs"),
        (
            content({"x": ONE_TWO}, {"x": FLOAT}, must_reject=True),
            "cannot state that the model must be ",
        ),
        (
            content({"x": ONE_TWO}, {"x": FLOAT}, tolerance=Ulps(3, Provenance.CASE)),
            "has one rtol and atol for all outputs",
        ),
        (
            content({"x": ONE_TWO}, {"x": FLOAT}, output_tolerances={"out_x": ONNX_DEFAULT}),
            "has one rtol and atol for all outputs",
        ),
        (
            Problem(identity({"x": FLOAT}), {"y": ONE_TWO}, {"out_x": ONE_TWO}),
            "the model's inputs are x, but the case has y",
        ),
        (
            content({"x": np.zeros(2)}, {"x": FLOAT}),
            r"input x is float64\[2\], but declared as float32\[2\]",
        ),
        (
            content({"x": ONE_TWO}, {"x": helper.make_sparse_tensor_type_proto(1, [2])}),
            r"input x is float32\[2\], but declared as sparse tensor",
        ),
    ],
)
def test_case_that_a_directory_cannot_represent_is_not_written(tmp_path, case, message):
    with pytest.raises(UsageError, match=message):
        write_directory(tmp_path / "a", case)
    assert not (tmp_path / "a").exists()


def test_existing_files_are_not_overwritten(tmp_path):
    (tmp_path / "test_data_set_1").mkdir()
    with pytest.raises(UsageError, match="is not empty"):
        write_directory(tmp_path, content({"x": ONE_TWO}, {"x": FLOAT}))


def test_folder_that_cannot_be_created_is_a_usage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot write .*file/a: Not a directory"):
        write_directory(tmp_path / "file" / "a", content({"x": ONE_TWO}, {"x": FLOAT}))
