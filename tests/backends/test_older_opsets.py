"""With ``opset=auto``, a backend receives equivalent models in older opsets."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from onnxopt_cli.backends.older_opsets import older_models

# A backend that supports only opset 13.
BACKEND = """\
from onnx.reference import ReferenceEvaluator

class Backend:
    def run(self, model, inputs):
        (opset,) = model.opset_import
        if opset.version > 13 or model.ir_version > 7:
            raise NotImplementedError(f"opset {opset.version}, IR version {model.ir_version}")
        return ReferenceEvaluator(model).run(None, inputs)
"""
CASE = """\
onnxopt: 1
suite: demo
opset: 22
cases:
  - name: relu
    operator: Relu
    inputs: {X: [1.5, -2.0]}
    outputs: {Y: [1.5, 0.0]}
  - name: squeeze
    operator: Squeeze
    inputs: {data: [[1.5, -2.0]], axes: {dtype: int64, data: [0]}}
    outputs: {squeezed: [1.5, -2.0]}
  - name: gelu
    operator: Gelu
    inputs: {X: [0.0]}
    outputs: {Y: [0.0]}
"""


def single(operator, inputs, opset, element_type=TensorProto.FLOAT, **attributes):
    names = [name for name in inputs if name]
    node = helper.make_node(operator, inputs, ["y"], **attributes)
    values = [helper.make_tensor_value_info(name, element_type, [2, 2]) for name in names]
    output = helper.make_tensor_value_info("y", element_type, [2, 2])
    graph = helper.make_graph([node], "g", values, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def offered(*arguments, **options):
    return [version for version, _ in older_models(single(*arguments, **options))]


@pytest.mark.parametrize(
    ("versions", "arguments", "options"),
    [
        ([14, 13, 7], ("Relu", ["x"], 22), {}),
        # Opset 13 added bfloat16, and opset 14 added integers.
        ([14, 13], ("Relu", ["x"], 22), {"element_type": TensorProto.BFLOAT16}),
        ([14], ("Relu", ["x"], 22), {"element_type": TensorProto.INT32}),
        # Before opset 13, Softmax reshaped its input to a matrix.
        ([13], ("Softmax", ["x"], 22), {"axis": 1}),
        ([13], ("Softmax", ["x"], 22), {}),
        # Schemas before opset 10 lack ceil_mode. Nodes without ceil_mode use its default, 0.
        ([19, 11, 10, 7], ("AveragePool", ["x"], 22), {"kernel_shape": [2], "ceil_mode": 0}),
        ([19, 11, 10], ("AveragePool", ["x"], 22), {"kernel_shape": [2], "ceil_mode": 1}),
        # In opset 18, the attribute axes became an input.
        ([], ("ReduceMean", ["x", "axes"], 18), {}),
        ([13, 11], ("ReduceMean", ["x"], 18), {}),
        ([], ("Gelu", ["x"], 20), {}),
    ],
)
def test_models_are_offered_in_older_opsets_that_compute_the_same_outputs(
    versions, arguments, options
):
    assert offered(*arguments, **options) == versions


def test_older_model_is_valid_and_computes_the_same_outputs():
    x = np.array([[1.5, -2.0], [0.0, 3.0]], np.float32)
    model = single("Relu", ["x"], 22)
    expected = ReferenceEvaluator(model).run(None, {"x": x})
    for version, older in older_models(model):
        onnx.checker.check_model(older)
        assert older.opset_import[0].version == version
        assert older.ir_version <= 7
        np.testing.assert_array_equal(ReferenceEvaluator(older).run(None, {"x": x}), expected)


def results(log):
    records = map(json.loads, log.read_text().splitlines())
    return {
        record["result"]["case"].split("/")[-1]: record["result"]
        for record in records
        if record["record"] == "end"
    }


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_backend_of_an_older_opset_is_tested_and_the_log_names_the_opset(
    workplace, onnxopt, isolation
):
    (workplace / "demo.yaml").write_text(CASE)
    (workplace / "old.py").write_text(BACKEND)
    log = workplace / "run.jsonl"
    run = ("run", "demo.yaml", "--isolation", isolation, "--log", log)
    answer = onnxopt(*run, "-b", "python:old.py:Backend,opset=auto")
    outcomes = {case: (item["outcome"], item.get("opset")) for case, item in results(log).items()}
    assert outcomes == {
        "relu": ("pass", 13),
        "squeeze": ("pass", 13),
        "gelu": ("unsupported", None),
    }
    assert "2 of the cases in an older opset" in answer.out


def test_older_opsets_are_not_offered_unless_requested(workplace, onnxopt):
    (workplace / "demo.yaml").write_text(CASE)
    (workplace / "old.py").write_text(BACKEND)
    assert "3 unsupported" in onnxopt("run", "demo.yaml", "-b", "python:old.py:Backend").out
    assert onnxopt("run", "demo.yaml", "-b", "python:old.py:Backend,opset=13").code == 2
