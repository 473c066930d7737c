"""Sums of many exponentials: the results of all common algorithms are accepted."""

from __future__ import annotations

import numpy as np
import pytest
from test_fast_algorithms import error_shares, model_of

DATA = {
    "equal": lambda z: np.full_like(z, 7.7),
    "near zero": lambda z: 1e-3 * z,
    "normal": lambda z: z,
    "ascending": lambda z: np.sort(z, axis=0),
    "ascending evenly": lambda z: np.linspace(-1, 1, len(z))[:, None] + 0 * z,
}


def sequential(x):
    largest, total = x.max(0), np.zeros_like(x[0])
    for term in x:
        total = total + np.exp(term - largest)
    return largest, total


def one_pass(x):
    largest, total = x[0], np.ones_like(x[0])
    for term in x[1:]:
        larger = np.maximum(largest, term)
        total = total * np.exp(largest - larger) + np.exp(term - larger)
        largest = larger
    return largest, total


def by_logarithms(x):
    logarithm_of_sum = x[0]
    for term in x[1:]:
        logarithm_of_sum = np.logaddexp(logarithm_of_sum, term)
    return logarithm_of_sum, np.ones_like(logarithm_of_sum)


def by_logarithms_without_log1p(x):
    logarithm_of_sum = x[0]
    for term in x[1:]:
        larger = np.maximum(logarithm_of_sum, term)
        logarithm_of_sum = larger + np.log(
            np.float32(1) + np.exp(np.minimum(logarithm_of_sum, term) - larger)
        )
    return logarithm_of_sum, np.ones_like(logarithm_of_sum)


def pairwise(x):
    while len(x) > 1:
        half = len(x) // 2
        x = np.concatenate([np.logaddexp(x[:half], x[half : 2 * half]), x[2 * half :]])
    return x[0], np.ones_like(x[0])


ALGORITHMS = (sequential, one_pass, by_logarithms, by_logarithms_without_log1p, pairwise)


@pytest.mark.slow
@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("count", [40, 6000])
def test_all_algorithms_for_sums_of_exponentials_pass(kind, count):
    z = np.random.default_rng(count).standard_normal((count, 4))
    x = DATA[kind](z).astype(np.float32)
    inputs, columns = {"x": x}, {"x": np.ascontiguousarray(x.T)}
    for algorithm in ALGORITHMS:
        largest, total = algorithm(x)
        model = model_of("ReduceLogSumExp", inputs, opset=13, axes=[0], keepdims=0)
        assert error_shares(model, inputs, largest + np.log(total)).max() <= 1, algorithm
        assert error_shares(model, inputs, (largest + np.log(total)) * 1.01).min() > 1
        for opset in (11, 13) if algorithm is not by_logarithms_without_log1p else ():
            model = model_of("Softmax", columns, opset=opset, axis=1)
            assert error_shares(model, columns, (np.exp(x - largest) / total).T).max() <= 1, (
                algorithm
            )
            model = model_of("LogSoftmax", columns, opset=opset, axis=1)
            assert error_shares(model, columns, (x - largest - np.log(total)).T).max() <= 1, (
                algorithm
            )


def test_running_sum_over_ascending_terms_passes_and_ten_times_its_error_fails():
    x = np.linspace(-1, 1, 300, dtype=np.float32)[:, None]
    inputs = {"x": np.ascontiguousarray(x.T)}
    model = model_of("Softmax", inputs, opset=13)
    largest, total = one_pass(x)
    value = (np.exp(x - largest) / total).T
    exact = np.exp(x.astype(float))
    exact = (exact / exact.sum()).T
    assert error_shares(model, inputs, value).max() <= 1
    error = 10 * np.abs(value / exact - 1).max()
    assert error_shares(model, inputs, exact * (1 + error)).min() > 1


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax", "SoftmaxCrossEntropyLoss"])
@pytest.mark.parametrize("opset", [12, 13])
@pytest.mark.parametrize("mean", [0, 100, 1e4])
def test_logarithm_of_a_sum_may_be_added_to_the_largest_operand(operator, opset, mean):
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
        rows = np.arange(500), inputs["target"]
        value, exact = -value[rows], -exact[rows]
    elif operator == "Softmax":
        exact = np.exp(exact)
    model = model_of(operator, inputs, opset=opset, **attributes)
    assert error_shares(model, inputs, value).max() <= 1
    # The factor is 50, because some correct algorithms have larger errors than this one. For
    # example, exp(x) as a power of two rounds each scaled operand.
    error = 50 * np.abs(value - exact).max()
    assert (error_shares(model, inputs, exact + error) > 1).mean() >= 0.95
