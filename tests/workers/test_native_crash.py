"""If a model crashes the C++ code of onnx, its case is invalid, and other cases run."""

from __future__ import annotations

import os
import re
import resource
import signal
from pathlib import Path

import numpy as np
import onnx
import pytest
from commands import run_command
from onnx import helper
from onnx_directories import make_directory, tensor

from onnxopt_cli.core import process_control
from onnxopt_cli.operators import native_onnx
from onnxopt_cli.operators.native_onnx import (
    OnnxRefusal,
    check_model,
    infer_shapes,
)

pytestmark = pytest.mark.isolated
# Reading outside of an array either crashes the process or results in an error.
CRASHED = re.compile(r"crashed with signal|\[ShapeInferenceError\]")
RAISES = "def run(model, inputs):\n    raise ValueError('no')\n"
RIGHT = "def run(model, inputs):\n    return [inputs['x']]\n"
YAML = """\
onnxopt: 1
suite: crashing
cases:
  - name: gather
    operator: GatherND
    opset: 13
    attributes: {batch_dims: -3}
    inputs:
      data: {data: [[[1.0, 2.0], [1.0, 2.0]], [[1.0, 2.0], [1.0, 2.0]]], dtype: float32}
      indices: {data: [[[0, 0]], [[0, 0]]], dtype: int64}
    outputs: {output: [[[1.0, 2.0]], [[1.0, 2.0]]]}
  - name: right
    operator: Abs
    inputs: {X: [-1.0, 2.0]}
    outputs: {Y: [1.0, 2.0]}
  - name: split
    operator: Split
    opset: 18
    attributes: {num_outputs: 2}
    inputs: {input: [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]}
    outputs: {outputs_1: [1.0, 2.0], outputs_2: [3.0, 4.0], outputs_3: [5.0, 6.0]}
"""


def one_node_model(op_type, opset, inputs, outputs, **attributes):
    """Return a model of one node; ``inputs`` and ``outputs`` are arrays by name."""
    values = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for arrays in (inputs, outputs)
        for name, array in arrays.items()
    ]
    node = helper.make_node(op_type, [*inputs], [*outputs], **attributes)
    graph = helper.make_graph([node], "g", values[: len(inputs)], values[len(inputs) :])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def gather():
    """Return a model for which shape inference reads outside of an array."""
    x, indices = np.ones((2, 2, 2), np.float32), np.zeros((2, 1, 2), np.int64)
    y = np.ones((2, 1, 2), np.float32)
    return one_node_model("GatherND", 13, {"x": x, "i": indices}, {"y": y}, batch_dims=-3)


def split():
    """Return a model for which shape inference calls abort()."""
    parts = {f"y{place}": np.ones(2, np.float32) for place in range(3)}
    return one_node_model("Split", 18, {"x": np.ones(6, np.float32)}, parts, axis=0, num_outputs=2)


def plain():
    x = np.ones(2, np.float32)
    return one_node_model("Identity", 13, {"x": x}, {"y": x})


def write(folder, model):
    """Write a test directory for a model; all elements of inputs and outputs are 1."""
    arrays = [
        tensor(
            np.ones(
                [size.dim_value for size in value.type.tensor_type.shape.dim],
                helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type),
            ),
            value.name,
        )
        for value in (*model.graph.input, *model.graph.output)
    ]
    count = len(model.graph.input)
    make_directory(folder, model, arrays[:count], arrays[count:])


@pytest.fixture(params=["forked", pytest.param("a program", marks=pytest.mark.slow)])
def helper_kind(request, monkeypatch):
    """Run the test with a new helper process, which is either a fork or another program."""
    if request.param == "forked":
        monkeypatch.setattr(process_control, "_is_command", True)
    native_onnx.renew()
    yield request.param
    native_onnx.renew()


def test_helper_restarts_after_a_model_crashes_it(helper_kind):
    check_model(plain(), full=True)
    first = native_onnx._HELPER._process
    assert first > 0
    infer_shapes(plain())
    assert native_onnx._HELPER._process == first
    with pytest.raises(OnnxRefusal, match=r"checker crashed with signal 6 \(SIGABRT\)"):
        check_model(split(), full=True)
    # Here, shape inference reads before the beginning of an array, which does not always crash.
    with pytest.raises(OnnxRefusal, match=r"crashed with signal|\[ShapeInferenceError\]"):
        check_model(gather(), full=True)
    with pytest.raises(OnnxRefusal, match=r"shape inference crashed with signal 6 \(SIGABRT\)"):
        infer_shapes(split())
    inferred = infer_shapes(plain())
    assert inferred.graph.node == plain().graph.node
    assert native_onnx._HELPER._process != first


def test_errors_of_onnx_are_quoted(helper_kind):
    lost = plain()
    lost.graph.node[0].input[0] = "nowhere"
    for _ in range(2):
        with pytest.raises(OnnxRefusal, match="topologically sorted"):
            check_model(lost)


def test_helper_killed_from_outside_affects_no_model(helper_kind):
    check_model(plain())
    os.kill(native_onnx._HELPER._process, signal.SIGKILL)
    assert infer_shapes(plain()).graph.output == plain().graph.output


def without_end(*_given, **_options):
    while True:
        pass


def without_measure(*_given, **_options):
    held = []
    while True:
        held.append(bytearray(16 << 20))


@pytest.mark.parametrize(
    ("seconds", "does", "words"),
    [(0.2, without_end, "took more than"), (60, without_measure, "more than 64 MiB of memory")],
)
def test_model_that_exceeds_limits_in_onnx_is_rejected(monkeypatch, seconds, does, words):
    monkeypatch.setattr(process_control, "_is_command", True)
    monkeypatch.setattr(native_onnx, "TIME_SECONDS", seconds)
    monkeypatch.setattr(native_onnx, "MEMORY_BYTES", 64 << 20)
    native_onnx.renew()
    # The helper is forked from this process, so the patch applies to it, too.
    with monkeypatch.context() as patched:
        patched.setattr(onnx.checker, "check_model", does)
        with pytest.raises(OnnxRefusal, match=words):
            check_model(plain())
    native_onnx.renew()


@pytest.mark.parametrize(
    "model", [pytest.param(gather, marks=pytest.mark.slow), split], ids=lambda model: model.__name__
)
def test_model_that_crashes_onnx_is_invalid_and_other_cases_run(workplace, onnxopt, model):
    write(workplace / "some" / "crashing", model())
    write(workplace / "some" / "right", plain())
    (workplace / "vendor.py").write_text(RAISES + RIGHT.replace("run", "right"))
    answer = onnxopt("run", "some", "-b", "python:vendor.py:run", "--no-explain")
    assert answer.code == 2
    output = " ".join(answer.out.replace("│", " ").split())
    assert CRASHED.search(output)
    assert "1 error, 1 invalid" in output


@pytest.mark.slow
def test_case_file_whose_model_crashes_onnx_is_invalid_and_others_run(workplace, onnxopt):
    (workplace / "crashing.yaml").write_text(YAML)
    answer = onnxopt("run", "crashing.yaml", "-b", "onnx-reference")
    assert answer.code == 2
    assert len(CRASHED.findall(" ".join(answer.err.split()))) == 2
    assert "conforms: 1 pass" in answer.out
    listed = onnxopt("list", "crashing.yaml")
    assert listed.code == 2
    assert "crashing/crashing/right" in listed.out


@pytest.mark.parametrize("model", [gather, split], ids=lambda model: model.__name__)
def test_model_that_crashes_onnx_is_not_lowered(workplace, onnxopt, model):
    onnx.save(model(), workplace / "crashing.onnx")
    answer = onnxopt("lower", "crashing.onnx", "-o", "lowered.onnx")
    assert answer.code == 2
    assert CRASHED.search(" ".join(answer.err.split()))
    assert not Path("lowered.onnx").exists()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["list", "audit", "run"])
def test_no_command_crashes_on_a_model_that_crashes_onnx(workplace, command):
    write(workplace / "some" / "crashing", split())
    (workplace / "crashing.yaml").write_text(YAML)
    done = run_command(command, "crashing.yaml", "some", cwd=workplace)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_helper_that_cannot_start_is_not_a_fault_of_the_model():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Neg(x) }'
    )
    native_onnx.renew()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            check_model(model)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    check_model(model)
