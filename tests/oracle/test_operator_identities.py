"""Identities without relative accuracy: results pass with a note if their errors are roundings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from onnxopt_cli.oracle.estimate.condition_estimate import condition
from onnxopt_cli.oracle.rounding.operator_identities import IDENTITIES, identities

DOCS = Path(__file__).parents[2] / "docs" / "conditioned.md"
ABSOLUTE = "absolute accuracy only"


def by_tanh(x):
    half = x.dtype.type(0.5)
    return np.tanh(x * half) * half + half


def by_tanh_of_float32(x):
    return by_tanh(x.astype(np.float32)).astype(x.dtype)


def exact(x):
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x.astype(np.float64)))


def model_of(*nodes, dtype=np.float32, opset=24):
    """Return a model that computes y from x; nodes are (operator, inputs, output, attributes)."""
    protos = [
        helper.make_node(op, operands, [name], **attributes)
        for op, operands, name, attributes in nodes
    ]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x, y = (helper.make_tensor_value_info(name, kind, ["N"]) for name in "xy")
    graph = helper.make_graph(protos, "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def passes(right, value):
    """Return a mask of the elements within the tolerance of a right value."""
    matches = np.zeros(np.shape(value), bool)
    for expected, limit in right:
        wide = expected.astype(np.float64)
        matches |= (np.abs(np.asarray(value, np.float64) - wide) <= limit) | (value == expected)
    return matches


SIGMOID = ("Sigmoid", ["x"], "y", {})
# Models that contain a sigmoid, and their formulas.
MODELS = {
    "alone": ([SIGMOID], lambda x, sigma: sigma(x)),
    "Swish": ([("Swish", ["x"], "y", {"alpha": 1.0})], lambda x, sigma: x * sigma(x)),
    "in two nodes": (
        [("Sigmoid", ["x"], "s", {}), ("Mul", ["x", "s"], "y", {})],
        lambda x, sigma: x * sigma(x),
    ),
    "times its complement": (
        [
            ("Sigmoid", ["x"], "s", {}),
            ("Neg", ["x"], "n", {}),
            ("Sigmoid", ["n"], "o", {}),
            ("Mul", ["s", "o"], "y", {}),
        ],
        lambda x, sigma: sigma(x) * sigma(-x),
    ),
}


@pytest.mark.parametrize("name", MODELS)
@given(
    scale=st.sampled_from([0.01, 1, 8, 30, 200]),
    seed=st.integers(0, 2**32),
    count=st.integers(1, 99),
)
def test_sigmoid_by_tanh_passes_at_all_magnitudes(name, scale, seed, count):
    nodes, function = MODELS[name]
    x = np.random.default_rng(seed).uniform(-scale, scale, count).astype(np.float32)
    (conditioned_output,) = condition(model_of(*nodes), {"x": x})
    right = conditioned_output.reformulated or conditioned_output.right
    assert passes(right, function(x, by_tanh)).all()
    # Without the identity, the tolerance is relative to the exact value, even if the value is tiny.
    assert passes(
        conditioned_output.right, function(x.astype(float), exact).astype(np.float32)
    ).all()
    wrong = function(x.astype(float), exact) * (1 + 1e-5)
    assert not passes(right, wrong.astype(np.float32))[(np.abs(x) < 1.5) & (np.abs(x) > 1e-3)].any()


def test_error_beyond_the_roundings_of_an_identity_fails():
    x = np.float32([-20, -9, -6])
    (conditioned_output,) = condition(model_of(SIGMOID), {"x": x})
    assert not passes(conditioned_output.right, by_tanh(x)).any()
    assert passes(conditioned_output.reformulated, by_tanh(x)).all()
    # An error of 1.5e-6 fails. Some approximations by polynomials have such an error.
    assert not passes(conditioned_output.reformulated, exact(x) + 1.5e-6).any()


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_identity_is_computed_in_the_type_of_the_model_or_in_float32(dtype):
    x = np.linspace(-20, 12, 65).astype(dtype)
    model = model_of(SIGMOID, dtype=dtype)
    (conditioned_output,) = condition(model, {"x": x})
    right = conditioned_output.reformulated
    if dtype is np.float64:
        assert passes(right, by_tanh(x)).all()
        assert not passes(right, by_tanh_of_float32(x)).all()
    else:
        assert passes(right, by_tanh_of_float32(x)).all()
        # In 16 bits, small values of a sigmoid would have no correct digit.
        assert not passes(right, by_tanh(x)).all()


def test_operators_without_identity_have_one_tolerance():
    x = np.linspace(-4, 4, 33, dtype=np.float32)
    for name in ("Tanh", "Erf", "HardSigmoid", "Softplus", "Exp"):
        (conditioned_output,) = condition(model_of((name, ["x"], "y", {})), {"x": x})
        assert conditioned_output.reformulated == ()
    # An error of 2e-6 in Erf fails. Some approximations by polynomials have such an error.
    (conditioned_output,) = condition(model_of(("Erf", ["x"], "y", {})), {"x": x})
    assert not passes(
        conditioned_output.right, np.float32(conditioned_output.right[0][0] + 2e-6)
    ).any()


def test_each_entry_is_documented():
    text = DOCS.read_text()
    for entry in IDENTITIES:
        assert entry.reason
        assert entry.sources
        for text_part in (entry.formula, *(source.partition(": ")[0] for source in entry.sources)):
            assert text_part in text
        assert all(f"`{name}`" in text for name in (entry.operator, *entry.within))
        function = identities()[entry.operator]
        assert {node.op_type for node in function.node}.isdisjoint(identities())


@pytest.fixture
def stored(workplace):
    """Return a function that writes a model and its data as a test directory."""

    def write(nodes, function):
        x = np.linspace(-8, 8, 33, dtype=np.float32)
        y = function(x.astype(float), exact).astype(np.float32)
        folder = workplace / "test_logistic"
        data = folder / "test_data_set_0"
        data.mkdir(parents=True)
        onnx.save(model_of(*nodes), folder / "model.onnx")
        for name, array in (("input", x), ("output", y)):
            tensor = numpy_helper.from_array(array, "x" if name == "input" else "y")
            (data / f"{name}_0.pb").write_bytes(tensor.SerializeToString())
        return folder

    return write


BACKEND = """
import numpy as np

class ByTanh:
    off = 0.0

    def run(self, model, inputs):
        x, half = inputs["x"], np.float32(0.5)
        s = np.tanh(x * half) * half + half
        y = s if len(model.graph.node) == 1 and model.graph.node[0].op_type == "Sigmoid" else x * s
        return [(y * np.float32(1 + self.off)).astype(np.float32)]

class Inaccurate(ByTanh):
    off = 1e-5
"""


@pytest.mark.parametrize("name", ["alone", "in two nodes"])
def test_run_marks_results_with_absolute_accuracy_only(name, stored, workplace, onnxopt):
    (workplace / "backend.py").write_text(BACKEND)
    folder, backend = stored(*MODELS[name]).name, "python:backend.py"
    result = onnxopt("run", folder, "-b", f"{backend}:ByTanh", "--report", "markdown=out.md")
    assert result.code == 0
    assert f"passes 1 case with {ABSOLUTE}" in result.out
    accuracy = (workplace / "out.md").read_text().partition("Accuracy")[2]
    assert f"y, {ABSOLUTE}" in accuracy
    assert onnxopt("run", folder, "-b", f"{backend}:Inaccurate", "--no-explain").code == 1
    assert ABSOLUTE not in onnxopt("run", folder, "-b", "onnx-reference").out
