"""Recurrent operators: reformulations pass on long sequences, and larger errors fail."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from test_fast_algorithms import error_shares, model_of

from onnxopt_cli.oracle.estimate.condition_estimate import condition
from onnxopt_cli.oracle.reference_outputs import reference_outputs

HIDDEN, INPUTS = 8, 5


def by_exponential(x):
    return 1 / (1 + np.exp(-x))


def by_tanh(x):
    return x.dtype.type(0.5) + x.dtype.type(0.5) * np.tanh(x.dtype.type(0.5) * x)


def by_clamped_exponential(x):
    """Return a sigmoid of clamped arguments; errors beyond the limits are up to 8 roundings."""
    return by_exponential(np.clip(x, -14.5, 14.5))


def clamped_tanh(x):
    """Return a tanh of clamped arguments; errors beyond the limits are up to 10 roundings."""
    return np.tanh(np.clip(x, -7.5, 7.5))


def sequential_product(a, b):
    return sum(a[:, at, None] * b[at] for at in range(a.shape[1]))


def blas_product(a, b):
    return a @ b


def lstm(x, weights, bias, sigmoid, multiplied):
    input_weights, recurrent = weights
    state = cell = np.zeros((x.shape[1], HIDDEN), x.dtype)
    outputs = []
    for step in x:
        gates = multiplied(step, input_weights.T) + multiplied(state, recurrent.T) + bias
        enter, leave, forget, new = np.split(gates, 4, axis=1)
        cell = sigmoid(forget) * cell + sigmoid(enter) * np.tanh(new)
        state = sigmoid(leave) * np.tanh(cell)
        outputs.append(state)
    return np.array(outputs)[:, None]


def gru(x, weights, bias, sigmoid, multiplied, blended=False, tanh=np.tanh):
    input_weights, recurrent = (np.split(matrix, 3) for matrix in weights)
    state = np.zeros((x.shape[1], HIDDEN), x.dtype)
    outputs = []
    for step in x:
        update, reset, new = (
            multiplied(step, matrix.T) + part
            for matrix, part in zip(input_weights, np.split(bias, 3), strict=True)
        )
        update = sigmoid(update + multiplied(state, recurrent[0].T))
        reset = sigmoid(reset + multiplied(state, recurrent[1].T))
        new = tanh(new + multiplied(reset * state, recurrent[2].T))
        if blended:
            state = new + update * (state - new)
        else:
            state = (1 - update) * new + update * state
        outputs.append(state)
    return np.array(outputs)[:, None]


@pytest.mark.parametrize("operator", ["LSTM", "GRU"])
@pytest.mark.parametrize("steps", [2, 60])
@pytest.mark.parametrize("bias", [0, 3])
@pytest.mark.parametrize("size", [1, 5])
def test_reformulations_pass_and_forty_times_their_errors_fail(operator, steps, bias, size):
    random = np.random.default_rng(steps)
    gates, compute = (4, lstm) if operator == "LSTM" else (3, gru)
    x = (size * random.standard_normal((steps, 2, INPUTS))).astype(np.float32)
    input_weights = (random.standard_normal((gates * HIDDEN, INPUTS)) / 2).astype(np.float32)
    recurrent = (random.standard_normal((gates * HIDDEN, HIDDEN)) / 3).astype(np.float32)
    biases = np.full(gates * HIDDEN, bias, np.float32)
    inputs = {"x": x, "w": input_weights[None], "r": recurrent[None]}
    inputs["b"] = np.concatenate([biases, np.zeros_like(biases)])[None]
    model = model_of(operator, inputs, hidden_size=HIDDEN)
    wide = (
        x.astype(float),
        [input_weights.astype(float), recurrent.astype(float)],
        biases.astype(float),
    )
    exact = compute(*wide, by_exponential, blas_product)
    largest = 0.0
    for sigmoid in (by_exponential, by_tanh):
        for multiplied in (blas_product, sequential_product):
            variants = [{}] if operator == "LSTM" else [{"blended": False}, {"blended": True}]
            for variant in variants:
                value = compute(
                    x, [input_weights, recurrent], biases, sigmoid, multiplied, **variant
                )
                assert value.dtype == np.float32
                assert error_shares(model, inputs, value).max() <= 1
                largest = max(largest, np.abs(value - exact).max())
    factor = 40
    for sign in (1, -1):
        assert (error_shares(model, inputs, exact + sign * factor * largest) > 1).mean() >= 0.9


@pytest.mark.parametrize(("operator", "roundings"), [("LSTM", 10), ("GRU", 10)])
def test_tolerance_of_small_outputs_is_a_few_roundings_of_an_activation(operator, roundings):
    random = np.random.default_rng(7)
    gates = 4 if operator == "LSTM" else 3
    inputs = {"x": (1e-2 * random.standard_normal((3, 2, INPUTS))).astype(np.float32)}
    for name, columns in (("w", INPUTS), ("r", HIDDEN)):
        inputs[name] = random.standard_normal((1, gates * HIDDEN, columns)).astype(np.float32)
    model = model_of(operator, inputs, hidden_size=HIDDEN)
    weights = [inputs[name][0].astype(float) for name in ("w", "r")]
    compute = lstm if operator == "LSTM" else gru
    exact = compute(
        inputs["x"].astype(float), weights, np.zeros(gates * HIDDEN), by_exponential, blas_product
    )
    assert error_shares(model, inputs, exact + 2.0**-24).max() <= 1
    assert error_shares(model, inputs, exact + roundings * 2.0**-24).min() > 1


@pytest.mark.parametrize("activation", ["Affine", "LeakyRelu", "Relu"])
def test_tolerance_of_piecewise_linear_activations_is_relative(activation):
    random = np.random.default_rng(7)
    inputs = {"x": (1e-4 * random.standard_normal((2, 1, INPUTS))).astype(np.float32)}
    for name, columns in (("w", INPUTS), ("r", HIDDEN)):
        inputs[name] = random.standard_normal((1, 3 * HIDDEN, columns)).astype(np.float32)
    model = model_of("GRU", inputs, hidden_size=HIDDEN, activations=["Sigmoid", activation])
    exact = np.asarray(condition(model, inputs)[0].right[0][0])
    shares = error_shares(model, inputs, exact * np.float32(1.001))
    assert shares[exact != 0].min() > 1


# The second attributes are the defaults, but onnx's reference does not compute such nodes.
@pytest.mark.parametrize("attributes", [{}, {"activations": ["Sigmoid", "Tanh"]}])
@pytest.mark.parametrize("blended", [False, True])
def test_clamped_activations_of_saturated_gates_pass(blended, attributes):
    random = np.random.default_rng(2)
    x = (8 * random.standard_normal((3, 2, INPUTS))).astype(np.float32)
    weights = [
        random.standard_normal((3 * HIDDEN, columns)).astype(np.float32)
        for columns in (INPUTS, HIDDEN)
    ]
    inputs = {"x": x, "w": weights[0][None], "r": weights[1][None]}
    model = model_of("GRU", inputs, hidden_size=HIDDEN, **attributes)
    value = gru(
        x,
        weights,
        np.zeros(3 * HIDDEN, np.float32),
        by_clamped_exponential,
        blas_product,
        blended,
        clamped_tanh,
    )
    assert value.dtype == np.float32
    # Some results are zero, because gates are exactly 0 or 1.
    exact = condition(model, inputs)[0].right[0][0]
    assert (np.abs(exact) < 1e-8).any()
    assert error_shares(model, inputs, value).max() <= 1


def test_small_relative_errors_of_large_gru_outputs_fail():
    random = np.random.default_rng(3)
    inputs = {"x": random.standard_normal((3, 3, INPUTS)).astype(np.float32)}
    for name, columns in (("w", INPUTS), ("r", HIDDEN)):
        weights = random.standard_normal((1, 3 * HIDDEN, columns)) / 3
        inputs[name] = weights.astype(np.float32)
    model = model_of("GRU", inputs, hidden_size=HIDDEN)
    exact = condition(model, inputs)[0].right[0][0]
    shares = error_shares(model, inputs, exact * np.float32(1 + 1e-5))
    assert (shares > 1)[np.abs(exact) > 0.2].mean() > 0.95


def scalar_cell(operator, *, clip=np.inf, coupled=False, f=by_exponential, g=np.tanh):
    """Return the states of three steps of a cell with one unit, weights of 1 and no biases."""

    def clipped(x):
        return np.clip(x, -clip, clip)

    h = c = 0.0
    states = []
    for x in (0.5, -1.0, 2.0):
        gate = f(clipped(x + h))
        if operator == "RNN":
            h = g(clipped(x + h))
        elif operator == "GRU":
            h = (1 - gate) * g(clipped(x + gate * h)) + gate * h
        else:
            forget = 1 - gate if coupled else gate
            c = forget * c + gate * g(clipped(x + h))
            h = gate * np.tanh(clipped(c))
        states.append(h)
    return np.reshape(states, (3, 1, 1, 1))


def hard_sigmoid(x):
    return np.clip(0.25 * x + 0.625, 0, 1)


def leaky(x):
    return np.where(x >= 0, x, 0.125 * x)


@pytest.mark.parametrize(
    ("operator", "attributes", "settings"),
    [
        ("RNN", {"clip": 0.5}, {"clip": 0.5}),
        ("RNN", {"activations": ["LeakyRelu"], "activation_alpha": [0.125]}, {"g": leaky}),
        ("GRU", {"clip": 0.75}, {"clip": 0.75}),
        (
            "GRU",
            {
                "activations": ["HardSigmoid", "LeakyRelu"],
                "activation_alpha": [0.25, 0.125],
                "activation_beta": [0.625],
            },
            {"f": hard_sigmoid, "g": leaky},
        ),
        ("LSTM", {"clip": 0.5}, {"clip": 0.5}),
        ("LSTM", {"input_forget": 1}, {"coupled": True}),
    ],
)
def test_attributes_that_the_reference_ignores_are_applied(operator, attributes, settings):
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[operator]
    inputs = {"x": np.array([0.5, -1.0, 2.0], np.float32).reshape(3, 1, 1)}
    inputs |= {name: np.ones((1, gates, 1), np.float32) for name in ("w", "r")}
    model = model_of(operator, inputs, hidden_size=1, **attributes)
    right, wrong = scalar_cell(operator, **settings), scalar_cell(operator)
    assert error_shares(model, inputs, right.astype("f")).max() < 1
    assert error_shares(model, inputs, wrong.astype("f")).max() > 1


@pytest.mark.parametrize(("operator", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_last_state_of_a_sequence_without_steps_is_the_initial_state(operator, gates):
    inputs = {
        "x": np.ones((0, 2, 3), np.float32),
        "w": np.ones((1, gates * 4, 3), np.float32),
        "r": np.ones((1, gates * 4, 4), np.float32),
        "initial": np.arange(8, dtype=np.float32).reshape(1, 2, 4),
    }
    operands = ["x", "w", "r", "", "", "initial"]
    node = helper.make_node(operator, operands, ["y", "h"], hidden_size=4)
    values = [helper.make_tensor_value_info(name, 1, v.shape) for name, v in inputs.items()]
    outputs = [helper.make_tensor_value_info(name, 1, None) for name in ("y", "h")]
    graph = helper.make_graph([node], "g", values, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    y, h = (output.right[0][0] for output in condition(model, inputs))
    assert y.shape == (0, 1, 2, 4)
    np.testing.assert_array_equal(h, inputs["initial"])


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_last_state_of_a_sequence_ignores_its_padding(direction):
    """Each sequence has the same states as without its padding."""
    x = np.array([[0.5, 2.0], [-1.0, 0.75], [1.0, -3.0]], np.float32)[..., None]
    weights = {name: np.full((1, 1, 1), 0.5, np.float32) for name in ("w", "r")}
    attributes = {"hidden_size": 1, "direction": direction}
    lengths = [2, 3]
    bias = np.zeros((1, 2), np.float32)
    inputs = {"x": x, **weights, "b": bias, "lengths": np.array(lengths, np.int32)}
    (states,) = reference_outputs(model_of("RNN", inputs, **attributes), inputs)
    for place, length in enumerate(lengths):
        sequence = {"x": x[:length, place : place + 1], **weights}
        (expected,) = reference_outputs(model_of("RNN", sequence, **attributes), sequence)
        np.testing.assert_allclose(states[:length, 0, place], expected[:, 0, 0], rtol=1e-6)
