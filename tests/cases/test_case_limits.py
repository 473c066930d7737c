"""Cases that are too large are skipped. A warning names the unused files of a data set."""

from __future__ import annotations

import os

import pytest
from onnx import TensorProto
from onnx_directories import FLOAT, ONE_TWO, identity, make_directory, make_plain, tensor

OVER_LIMIT = 2**31
CASE_FILE = """\
onnxopt: 1
suite: big
cases:
  - name: first
    model: model.onnx
    inputs: {x: [1.0, 2.0]}
    outputs: {out_x: [1.0, 2.0]}
"""


def external_model(size, location="weights"):
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[size // 4], data_location=1)
    weight.external_data.add(key="location", value=location)
    return identity({"x": FLOAT}, [weight])


def large_weights(folder):
    value = tensor(ONE_TWO)
    make_directory(folder, external_model(OVER_LIMIT), [value], [value])
    (folder / "weights").touch()
    os.truncate(folder / "weights", OVER_LIMIT)


def large_model(folder):
    make_plain(folder)
    os.truncate(folder / "model.onnx", OVER_LIMIT)


def large_input(folder):
    make_plain(folder)
    os.truncate(folder / "test_data_set_0" / "input_0.pb", OVER_LIMIT)


@pytest.mark.parametrize("make", [large_weights, large_model, large_input])
def test_case_over_a_limit_is_skipped_and_others_run(workplace, onnxopt, make):
    make(workplace / "all" / "test_large")
    make_plain(workplace / "all" / "test_plain")
    answer = onnxopt("run", "all", "-b", "onnx-reference", "--isolation", "none")
    assert answer.code == 0, answer.text
    assert "skip 1 on onnx-reference: limit of onnxopt: " in answer.out
    assert "1 pass, 1 skip" in answer.out
    assert onnxopt("run", "all/test_large", "--isolation", "none").code == 5


@pytest.mark.parametrize("make", [large_weights, large_model])
def test_bare_model_and_case_file_over_a_limit_are_skipped(workplace, onnxopt, make):
    make(workplace)
    (workplace / "case.yaml").write_text(CASE_FILE)
    (workplace / "test_data_set_0").rename(workplace / "unused")
    for target in ("model.onnx", "case.yaml"):
        answer = onnxopt("run", target, "-b", "onnx-reference", "--isolation", "none")
        assert (answer.code, "limit of onnxopt: " in answer.out) == (5, True), answer.text
    located = onnxopt("locate", "model.onnx", "-b", "onnx-reference", "--isolation", "none")
    assert (located.code, "limit of onnxopt: " in located.text) == (2, True), located.text


def test_case_with_missing_external_data_is_invalid(workplace, onnxopt):
    large_weights(workplace / "test_large")
    os.truncate(workplace / "test_large" / "weights", 8)
    answer = onnxopt("run", "test_large", "--isolation", "none")
    assert (answer.code, "need more" in answer.out) == (2, True), answer.text


def test_files_that_a_data_set_does_not_use_are_named_once(workplace, onnxopt, caplog):
    make_plain(workplace / "test_x")
    folder = workplace / "test_x" / "test_data_set_0"
    for name in ("input_1.npy", "weights.pb", ".hidden"):
        (folder / name).touch()
    assert onnxopt("run", "test_x", "-b", "onnx-reference", "--isolation", "none").code == 0
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["test_x/test_data_set_0: not read: input_1.npy, weights.pb"]
