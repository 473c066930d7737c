"""Sums pass whose subnormal terms are flushed to zero one by one; larger errors fail."""

from __future__ import annotations

import numpy as np
import pytest
from test_fast_algorithms import error_shares, model_of

F = np.float32
TINY = F(2.0**-126)
COUNT = 300


def flushed(array):
    return np.where(np.abs(array) < TINY, F(0), array)


def flushed_sum(terms):
    """Add along the first axis, with each term and each partial sum flushed."""
    total = np.zeros(terms.shape[1:], F)
    for term in flushed(terms):
        total = flushed(total + term)
    return total


def small(*shape, exponent=-19.0):
    random = np.random.default_rng(COUNT)
    size = 10 ** random.uniform(exponent - 1, exponent + 1, shape)
    return (random.choice([-1, 1], shape) * size).astype(F)


def product():
    a, b = small(4, COUNT), small(COUNT, 5)[::-1].copy()
    return "MatMul", {"a": a, "b": b}, {}, flushed_sum(a.T[:, :, None] * b[:, None, :])


def convolution():
    x, w = small(1, 3, 40), small(2, 3, 7)[..., ::-1].copy()
    terms = [x[:, c, None, k : k + 34] * w[:, c, k, None] for c in range(3) for k in range(7)]
    return "Conv", {"x": x, "w": w}, {}, flushed_sum(np.array(terms))


def squares():
    x = small(COUNT, 3)
    axes = {"x": x, "axes": np.array([0])}
    return "ReduceSumSquare", axes, {"keepdims": 0}, flushed_sum(x * x)


def norm():
    x = small(COUNT, 3)
    axes = {"x": x, "axes": np.array([0])}
    return "ReduceL2", axes, {"keepdims": 0}, np.sqrt(flushed_sum(x * x))


def quotient():
    x = small(COUNT, 3)
    return "LpNormalization", {"x": x}, {"axis": 0}, x / np.sqrt(flushed_sum(x * x))


def plain_sum():
    x = small(COUNT, 3, exponent=-38.0)
    return "ReduceSum", {"x": x, "axes": np.array([0])}, {"keepdims": 0}, flushed_sum(x)


CASES = [product, convolution, squares, norm, quotient, plain_sum]


@pytest.mark.parametrize("case", CASES)
def test_sums_of_flushed_terms_pass(case):
    operator, inputs, attributes, value = case()
    model = model_of(operator, inputs, opset=22, **attributes)
    assert error_shares(model, inputs, value).max() <= 1


@pytest.mark.parametrize("case", [product, convolution, squares, plain_sum])
def test_errors_beyond_those_of_flushed_terms_fail(case):
    operator, inputs, attributes, value = case()
    model = model_of(operator, inputs, opset=22, **attributes)
    wrong = value + 3 * COUNT * TINY
    assert error_shares(model, inputs, wrong).min() > 1


def test_norm_of_doubles_is_flushed_only_if_its_terms_are_subnormal_doubles():
    inputs = {"x": np.array([[[3e-30, 4e-30, 3e-160, 4e-160]]])}
    model = model_of("LpPool", inputs, opset=22, kernel_shape=[2], strides=[2])
    assert error_shares(model, inputs, np.array([[[5e-30, 0.0]]])).max() <= 1
    assert error_shares(model, inputs, np.array([[[0.0, 0.0]]])).max() > 1


def test_normal_terms_widen_nothing():
    a, b = (small(4, COUNT, exponent=-10), small(COUNT, 5, exponent=-10))
    model, inputs = model_of("MatMul", {"a": a, "b": b}, opset=22), {"a": a, "b": b}
    exact = (a.astype(float) @ b).astype(F)
    assert (error_shares(model, inputs, exact * F(1 + 1e-4)) > 1).mean() > 0.9


def test_rounding_of_a_subnormal_sum_under_a_root_does_not_yield_nan():
    # The published body of ReduceL2 takes the root of the sum in float32.
    inputs = {"x": np.array([[3e-30, 4e-30]]), "axes": np.array([1])}
    model = model_of("ReduceL2", inputs, opset=22, keepdims=0)
    assert error_shares(model, inputs, np.array([5e-30])).max() <= 1
    assert error_shares(model, inputs, np.array([np.nan])).max() > 1
