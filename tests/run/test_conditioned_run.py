"""``onnxopt run`` on models that have no formula of ours."""

import json

import numpy as np
import pytest
from onnx import TensorProto, helper

from onnxopt_cli.cases.onnx.data_set import write_directory
from onnxopt_cli.core.case import Content

CONDITIONED = ("--tolerance", "conditioned")
BACKEND = """
import numpy as np
from onnx.reference import ReferenceEvaluator

class Right:
    def run(self, model, inputs):
        return ReferenceEvaluator(model).run(None, inputs)

class Off(Right):
    def run(self, model, inputs):
        return [it * np.float32(1 + 1e-5) for it in super().run(model, inputs)]

class Coin:
    def run(self, model, inputs):
        (p,) = inputs.values()
        return [(np.random.default_rng(1).uniform(size=p.shape) < p).astype(p.dtype)]

class Loaded(Coin):
    def run(self, model, inputs):
        return [np.ones_like(*inputs.values())]
"""


@pytest.fixture
def backend(tmp_path):
    (tmp_path / "backend.py").write_text(BACKEND)
    return lambda name: f"python:{tmp_path / 'backend.py'}:{name}"


def write(folder, model, inputs, **expected):
    write_directory(folder / "node" / "test_it", Content(model, inputs, expected))
    return str(folder / "node")


def value_info(name, array):
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
    )


def single(folder, operator, inputs, expected, **attributes):
    graph = helper.make_graph(
        [helper.make_node(operator, list(inputs), ["y"], **attributes)],
        "g",
        [value_info(name, it) for name, it in inputs.items()],
        [value_info("y", expected)],
    )
    opset = [helper.make_opsetid("", 22)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=10)
    return write(folder, model, inputs, y=expected)


def softmax(folder, change=0.0):
    x = np.array([[0.5, 1.5, -2.0]], np.float32)
    right = (np.exp(x) / np.exp(x).sum()).astype(np.float32)
    return single(folder, "Softmax", {"x": x}, right + np.float32(change))


def test_an_error_of_1e_5_fails_unless_the_tolerance_of_onnx_is_asked_for(
    onnxopt, tmp_path, backend
):
    folder = softmax(tmp_path)
    assert onnxopt("run", folder, *CONDITIONED, "-b", backend("Right")).code == 0
    result = onnxopt("run", folder, *CONDITIONED, "-b", backend("Off"), "--no-explain")
    assert result.code == 1
    assert "16 times what a rounding moves (conditioned)" in result.out
    for rule in ("onnx", "derived"):
        assert onnxopt("run", folder, "-b", backend("Off"), "--tolerance", rule).code == 0


def test_a_published_output_that_is_wrong_makes_the_case_invalid(onnxopt, tmp_path, backend):
    result = onnxopt(
        "run", softmax(tmp_path, 0.01), *CONDITIONED, "-b", backend("Right"), "--no-explain"
    )
    assert result.code == 2
    assert "contradict what onnx's reference computes" in result.out


def test_a_published_output_of_few_digits_is_replaced_by_the_exact_one(onnxopt, tmp_path, backend):
    folder = softmax(tmp_path, 1e-5)
    assert onnxopt("run", folder, *CONDITIONED, "-b", backend("Right")).code == 0


def test_a_random_output_is_judged_by_its_distribution(onnxopt, tmp_path, backend):
    x = np.full(2000, 0.5, np.float32)
    folder = single(tmp_path, "Bernoulli", {"x": x}, np.zeros_like(x))
    assert onnxopt("run", folder, *CONDITIONED, "-b", backend("Coin")).code == 0
    result = onnxopt("run", folder, *CONDITIONED, "-b", backend("Loaded"), "--no-explain")
    assert result.code == 1
    assert "has 2000 ones where 1000 are to be expected" in result.out


def test_what_cannot_be_asked_says_why(onnxopt, tmp_path, backend):
    x = np.array([1, 0], np.float32)
    log = tmp_path / "log.jsonl"
    folder = single(tmp_path, "Scatter", {"x": x}, x)
    result = onnxopt("run", folder, *CONDITIONED, "-b", backend("Right"), "-v", "--log", str(log))
    assert "Scatter" in result.out
    assert json.loads(log.read_text().splitlines()[0])["versions"].keys() >= {"onnx", "numpy"}


def endless():
    """A model whose loop never ends, beside one output that needs no loop."""
    false = TensorProto.BOOL
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Add", ["v", "v"], ["w"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", false, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, [1]),
        ],
        [
            helper.make_tensor_value_info("on", false, []),
            helper.make_tensor_value_info("w", TensorProto.FLOAT, [1]),
        ],
    )
    always = helper.make_tensor("always", false, [], [True])
    nodes = [
        helper.make_node("Constant", [], ["always"], value=always),
        helper.make_node("Loop", ["", "always", "x"], ["y"], body=body),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [info("x", TensorProto.FLOAT, [1])], [info("y", TensorProto.FLOAT, [1])]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


@pytest.mark.slow
def test_a_model_that_never_ends_holds_nobody_up(onnxopt, tmp_path):
    x = np.ones(1, np.float32)
    (tmp_path / "quick.py").write_text(
        "class Quick:\n    def run(self, model, inputs):\n        return list(inputs.values())\n"
    )
    folder = write(tmp_path, endless(), {"x": x}, y=x)
    quick = f"python:{tmp_path / 'quick.py'}:Quick"
    result = onnxopt("run", folder, *CONDITIONED, "-b", quick, "-v", "--timeout", "2")
    assert "runs more than 20000 nodes" in result.out or "takes more than" in result.out
