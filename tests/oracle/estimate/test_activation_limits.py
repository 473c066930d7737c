"""At an infinity, an activation function may return NaN or its limit."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from onnxopt_cli.oracle.estimate.condition_estimate import condition

INF, NAN = np.inf, np.nan
ACTIVATIONS = {
    "Gelu": {},
    "Gelu by tanh": {"approximate": "tanh"},
    "HardSwish": {},
    "Mish": {},
    "Softsign": {},
    "Swish": {},
}


def accepts(operator, operands, value, **attributes):
    """Return which elements of a value are accepted as the first output of a node."""
    names = [f"x{place}" for place in range(len(operands))]
    node = helper.make_node(operator, names, ["y"], **attributes)
    kind = helper.np_dtype_to_tensor_dtype(operands[0].dtype)
    infos = [
        helper.make_tensor_value_info(name, kind, operand.shape)
        for name, operand in zip(names, operands, strict=True)
    ]
    y = helper.make_tensor_value_info("y", kind, None)
    opset = {"SwiGLU": 28, "CausalConvWithState": 27}.get(operator, 24)
    graph = helper.make_graph([node], "g", infos, [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    (output,) = condition(model, dict(zip(names, operands, strict=True)))
    value = np.asarray(value, np.float64)
    is_right = np.zeros(value.shape, bool)
    for right, tolerance in output.right:
        wide = right.astype(np.float64)
        is_right |= (value == wide) | (np.isnan(value) & np.isnan(wide))
        with np.errstate(invalid="ignore"):
            is_right |= np.abs(value - wide) <= tolerance
    return is_right


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_limit_or_nan_at_minus_infinity(name, dtype):
    operator = name.split()[0]
    limit = -1 if operator == "Softsign" else 0
    x = np.array([-INF, NAN, 0], dtype)
    for at_infinity in (limit, NAN):
        value = [at_infinity, NAN, 0]
        assert accepts(operator, [x], value, **ACTIVATIONS[name]).all()
    wrong = [0.5, limit, 0]
    assert accepts(operator, [x], wrong, **ACTIVATIONS[name]).tolist() == [False, False, True]


def test_softsign_of_infinity_may_be_one():
    assert accepts("Softsign", [np.array([INF], np.float32)], [1]).all()


def test_limit_of_a_gate_is_multiplied_by_the_other_operand():
    gate = np.array([-INF, -INF], np.float32)
    factor = np.array([2, INF], np.float32)
    assert accepts("SwiGLU", [gate, factor], [0, NAN]).all()
    assert not accepts("SwiGLU", [gate, factor], [2, 0]).any()


def test_infinity_without_a_limit_remains_nan():
    gate, zero = np.array([INF], np.float32), np.array([0], np.float32)
    assert accepts("SwiGLU", [gate, zero], [NAN]).all()
    assert not accepts("SwiGLU", [gate, zero], [0]).any()
    largest = np.finfo(np.float32).max
    assert not accepts("Swish", [gate], [largest / 2], alpha=0.0).any()


def test_convolution_of_minus_infinity_with_activation_may_be_zero():
    x = np.array([[[2, 1, -1]]], np.float32)
    weight = np.array([[[1, -INF]]], np.float32)
    # The sums are -inf, -inf and +inf.
    for value in ([0, 0, INF], [NAN, NAN, INF]):
        accepted = accepts("CausalConvWithState", [x, weight], [[value]], activation="silu")
        assert accepted.all()
    opposite = np.array([[[2, INF, -1]]], np.float32)
    # The second sum is -inf, and the third is NaN.
    value = [[[0, 0, 0]]]
    accepted = accepts("CausalConvWithState", [opposite, weight], value, activation="silu")
    assert accepted.ravel().tolist() == [True, True, False]
