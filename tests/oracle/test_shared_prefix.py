"""Reformulations of a model that begin behind the nodes that they share with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxopt_cli.oracle.condition_estimate import all_readings
from onnxopt_cli.oracle.evaluator import ReferenceModel, compute_only
from onnxopt_cli.oracle.shared_prefix import SharedPrefix

_HEADER = '<ir_version: 8, opset_import: ["": 17]>'
_MODELS = {
    "chain": """
        agraph (float[8,300] x, float[300,8] w) => (float[8,8] y, float[8,1] mean) {
            product = MatMul(x, w)
            mean = ReduceMean <axes = [1]> (product)
            centred = Sub(product, mean)
            hard = HardSigmoid(centred)
            scaled = Mul(hard, product)
            y = Sigmoid(scaled)
        }""",
    "optional operand": """
        agraph (float[8,300] x, float[300,8] w) => (float[8,300] y) {
            square = Mul(x, x)
            same = Dropout(square)
            hard = HardSigmoid(same)
            y = LayerNormalization <axis = 0> (hard, x, square)
        }""",
    "branch": """
        agraph (float[8,300] x, float[300,8] w) => (float[8,8] y) {
            product = MatMul(x, w)
            total = ReduceSum <keepdims = 0> (product)
            zero = Constant <value = float {0}> ()
            positive = Greater(total, zero)
            chosen = If (positive) <
                then_branch = positive_total () => (float[8,8] a) { a = Tanh(product) },
                else_branch = other_total () => (float[8,8] b) {
                    square = Mul(product, product)
                    b = HardSigmoid(square)
                }
            >
            kept = Identity(chosen)
            sum = Add(kept, product)
            y = Sigmoid(sum)
        }""",
    "sequence": """
        agraph (float[8,300] x, float[300,8] w) => (float[8,8] y, float[8,4] first) {
            product = MatMul(x, w)
            parts = SplitToSequence <axis = 1> (product, four)
            joined = ConcatFromSequence <axis = 1> (parts)
            place = Constant <value = int64 {0}> ()
            first = SequenceAt(parts, place)
            y = Sigmoid(joined)
        }""",
}


def _model(name: str) -> onnx.ModelProto:
    model = parser.parse_model(_HEADER + _MODELS[name])
    if name == "sequence":
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(4), "four"))
    return model


def _inputs(seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        "x": random.standard_normal((8, 300)).astype("f4"),
        "w": random.standard_normal((300, 8)).astype("f4"),
    }


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", _MODELS)
def test_shared_nodes_do_not_change_an_estimate(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = _model(name), _inputs(seed)
    shared = all_readings(model, inputs)
    monkeypatch.setattr(SharedPrefix, "of", lambda *_: SharedPrefix({}))
    separate = all_readings(model, inputs)
    assert len(shared) == len(separate)
    for reading, other in zip(shared, separate, strict=True):
        for output, expected in zip(
            reading.conditioned_outputs, other.conditioned_outputs, strict=True
        ):
            assert output.reason == expected.reason == ""
            for pairs, expected_pairs in (
                (output.right, expected.right),
                (output.reformulated, expected.reformulated),
            ):
                for pair, expected_pair in zip(pairs, expected_pairs, strict=True):
                    np.testing.assert_array_equal(pair, expected_pair)


def test_nodes_before_a_reformulated_one_run_once_for_all_reformulations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = _computed_products(monkeypatch)
    monkeypatch.setattr(SharedPrefix, "of", lambda *_: SharedPrefix({}))
    assert shared <= _computed_products(monkeypatch) / 2


def _computed_products(monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how often an estimate of the chain computes its matrix product."""
    run, products = ReferenceModel.run, 0

    def counted(model: ReferenceModel, inputs: Any, visitor: Any = compute_only) -> Any:
        def visit(node: Any, compute: Any, operands: Any, index: int) -> Any:
            def computed(*values: Any) -> Any:
                nonlocal products
                products += node.op_type == "MatMul"
                return compute(*values)

            return visitor(node, computed, operands, index)

        return run(model, inputs, visit)

    with monkeypatch.context() as patch:
        patch.setattr(ReferenceModel, "run", counted)
        all_readings(_model("chain"), _inputs(0))
    return products
