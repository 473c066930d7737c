"""Recurrent operators: reformulations pass over long sequences, and larger errors fail."""

from __future__ import annotations

import numpy as np
import pytest
from test_fast_algorithms import error_shares, model_of

HIDDEN, INPUTS = 8, 5


def by_exponential(x):
    return 1 / (1 + np.exp(-x))


def by_tanh(x):
    return x.dtype.type(0.5) + x.dtype.type(0.5) * np.tanh(x.dtype.type(0.5) * x)


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


def gru(x, weights, bias, sigmoid, multiplied, blended=False):
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
        new = np.tanh(new + multiplied(reset * state, recurrent[2].T))
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
    factor = 40 if operator == "LSTM" else 160
    for sign in (1, -1):
        assert (error_shares(model, inputs, exact + sign * factor * largest) > 1).mean() >= 0.9


@pytest.mark.parametrize(("operator", "roundings"), [("LSTM", 10), ("GRU", 40)])
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
