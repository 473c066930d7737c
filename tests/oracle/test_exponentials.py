"""Sums of many exponentials: in two passes, in one, by logarithms, in order or by pairs."""

from __future__ import annotations

import numpy as np
import pytest
from test_fast_algorithms import model_of, shares

DATA = {
    "all alike": lambda z: np.full_like(z, 7.7),
    "near zero": lambda z: 1e-3 * z,
    "normal": lambda z: z,
    "ascending": lambda z: np.sort(z, axis=0),
    "ascending evenly": lambda z: np.linspace(-1, 1, len(z))[:, None] + 0 * z,
}


def in_order(x):
    largest, total = x.max(0), np.zeros_like(x[0])
    for term in x:
        total = total + np.exp(term - largest)
    return largest, total


def in_one_pass(x):
    largest, total = x[0], np.ones_like(x[0])
    for term in x[1:]:
        larger = np.maximum(largest, term)
        total = total * np.exp(largest - larger) + np.exp(term - larger)
        largest = larger
    return largest, total


def by_logarithms(x):
    found = x[0]
    for term in x[1:]:
        found = np.logaddexp(found, term)
    return found, np.ones_like(found)


def by_plain_logarithms(x):
    found = x[0]
    for term in x[1:]:
        larger = np.maximum(found, term)
        found = larger + np.log(np.float32(1) + np.exp(np.minimum(found, term) - larger))
    return found, np.ones_like(found)


def by_pairs(x):
    while len(x) > 1:
        half = len(x) // 2
        x = np.concatenate([np.logaddexp(x[:half], x[half : 2 * half]), x[2 * half :]])
    return x[0], np.ones_like(x[0])


WAYS = (in_order, in_one_pass, by_logarithms, by_plain_logarithms, by_pairs)


@pytest.mark.slow
@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("count", [40, 2000, 20000])
def test_no_way_to_add_up_exponentials_is_rejected(kind, count):
    z = np.random.default_rng(count).standard_normal((count, 4))
    x = DATA[kind](z).astype(np.float32)
    inputs, columns = {"x": x}, {"x": np.ascontiguousarray(x.T)}
    for way in WAYS:
        largest, total = way(x)
        model = model_of("ReduceLogSumExp", inputs, opset=13, axes=[0], keepdims=0)
        assert shares(model, inputs, largest + np.log(total)).max() <= 1, way
        assert shares(model, inputs, (largest + np.log(total)) * 1.01).min() > 1
        for opset in (11, 13) if way is not by_plain_logarithms else ():
            model = model_of("Softmax", columns, opset=opset, axis=1)
            assert shares(model, columns, (np.exp(x - largest) / total).T).max() <= 1, way
            model = model_of("LogSoftmax", columns, opset=opset, axis=1)
            assert shares(model, columns, (x - largest - np.log(total)).T).max() <= 1, way


def test_a_running_sum_over_a_long_ascent_is_right_and_ten_times_its_error_is_not():
    x = np.linspace(-1, 1, 300, dtype=np.float32)[:, None]
    inputs = {"x": np.ascontiguousarray(x.T)}
    model = model_of("Softmax", inputs, opset=13)
    largest, total = in_one_pass(x)
    value = (np.exp(x - largest) / total).T
    exact = np.exp(x.astype(float))
    exact = (exact / exact.sum()).T
    assert shares(model, inputs, value).max() <= 1
    off = 10 * np.abs(value / exact - 1).max()
    assert shares(model, inputs, exact * (1 + off)).min() > 1


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax", "SoftmaxCrossEntropyLoss"])
@pytest.mark.parametrize("opset", [12, 13])
@pytest.mark.parametrize("mean", [0, 100, 1e4])
def test_the_logarithm_of_a_sum_may_be_added_to_the_largest_operand(operator, opset, mean):
    random = np.random.default_rng(opset)
    x = (mean + 2 * random.standard_normal((500, 3))).astype(np.float32)
    inputs, attributes = {"x": x}, {"axis": 1}
    largest = x.max(1, keepdims=True)
    logarithm = largest + np.log(np.exp(x - largest).sum(1, keepdims=True))
    value = np.exp(x - logarithm) if operator == "Softmax" else x - logarithm
    wide = x.astype(np.float64) - x.max(1, keepdims=True)
    exact = wide - np.log(np.exp(wide).sum(1, keepdims=True))
    if operator == "SoftmaxCrossEntropyLoss":
        inputs["target"], attributes = random.integers(0, 3, 500), {"reduction": "none"}
        value, exact = (-it[np.arange(500), inputs["target"]] for it in (value, exact))
    elif operator == "Softmax":
        exact = np.exp(exact)
    model = model_of(operator, inputs, opset=opset, **attributes)
    assert shares(model, inputs, value).max() <= 1
    # exp(x) as a power of two rounds each scaled operand, which moves results by as much.
    off = 50 * np.abs(value - exact).max()
    assert (shares(model, inputs, exact + off) > 1).mean() >= 0.95
