"""Sums and norms whose terms leave the range of the type.

A sum passes if its subnormal terms are flushed to zero. An infinite result passes if the sum
overflows in another order of the terms. Larger errors fail.
"""

from __future__ import annotations

import numpy as np
import pytest
from test_fast_algorithms import error_shares, model_of

F, D = np.float32, np.float64
TINY, HUGE = F(2.0**-126), F(3e38)
COUNT = 300
ALONG = {"axes": np.array([1])}


def flushed(array):
    return np.where(np.abs(array) < TINY, F(0), array)


def flushed_sum(terms):
    """Add along the first axis; flush each subnormal term and partial sum to zero."""
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


def test_normal_terms_do_not_widen_the_tolerance():
    a, b = (small(4, COUNT, exponent=-10), small(COUNT, 5, exponent=-10))
    model, inputs = model_of("MatMul", {"a": a, "b": b}, opset=22), {"a": a, "b": b}
    exact = (a.astype(float) @ b).astype(F)
    assert (error_shares(model, inputs, exact * F(1 + 1e-4)) > 1).mean() > 0.9


def test_rounding_of_a_subnormal_sum_under_a_root_does_not_yield_nan():
    inputs = {"x": np.array([[3e-30, 4e-30]], F), "axes": np.array([1])}
    model = model_of("ReduceL2", inputs, opset=22, keepdims=0)
    assert error_shares(model, inputs, np.array([5e-30], F)).max() <= 1
    assert error_shares(model, inputs, np.array([np.nan], F)).max() > 1


def accepts(operator, inputs, attributes, values):
    """Return for each of ``values`` whether it is accepted as the first output."""
    model = model_of(operator, inputs, **attributes)
    dtype = next(iter(inputs.values())).dtype
    return [
        bool((error_shares(model, inputs, np.array(value, dtype)) <= 1).all()) for value in values
    ]


def row(*numbers, dtype=F):
    return np.array([numbers], dtype)


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes", "exact"),
    [
        ("ReduceSum", {"x": row(HUGE, -HUGE, HUGE), **ALONG}, {}, [[HUGE]]),
        ("ReduceMean", {"x": row(HUGE, -HUGE, HUGE), **ALONG}, {}, [[HUGE / 3]]),
        ("MatMul", {"a": row(HUGE, HUGE, HUGE), "b": row(1, -1, 1).T}, {}, [[HUGE]]),
        ("Mean", {"a": row(HUGE), "b": row(-HUGE), "c": row(HUGE)}, {}, [[HUGE / 3]]),
        ("GlobalAveragePool", {"x": row(HUGE, -HUGE, HUGE)[None]}, {}, [[[HUGE / 3]]]),
    ],
)
def test_sums_may_overflow_in_another_order(operator, inputs, attributes, exact):
    exact = np.array(exact, F)
    results = [exact, exact * np.inf, -exact * np.inf, exact * np.nan, -exact, exact * 0]
    accepted = accepts(operator, inputs, attributes, results)
    assert accepted == [True, True, False, False, False, False]


def test_terms_that_overflow_with_both_signs_may_become_nan():
    inputs = {"x": row(HUGE, -HUGE, HUGE, -HUGE, 1), **ALONG}
    results = [[[1]], [[np.inf]], [[-np.inf]], [[np.nan]]]
    assert accepts("ReduceSum", inputs, {}, results) == [True, True, True, True]


@pytest.mark.parametrize("factor", [3, 1])
def test_infinite_sum_may_be_nan_if_a_finite_product_overflows(factor):
    inputs = {"a": row(np.inf, HUGE), "b": row(-1, factor).T}
    results = [[[-np.inf]], [[np.nan]], [[np.inf]], [[0]]]
    assert accepts("MatMul", inputs, {}, results) == [True, factor == 3, False, False]


def test_spectra_and_tiles_may_overflow():
    """A transform adds all elements of an image. An overflow is accepted in that image only."""
    x = np.stack([row(HUGE, HUGE, -HUGE, -HUGE), row(1, 1, 1, 1)])
    inputs = {"x": x, "w": row(0.5, 0.25, 0.125)[None]}
    exact = np.array([[[0.625 * HUGE, 0.125 * HUGE]], [[0.875, 0.875]]])
    mixed = [exact.copy() for _ in range(3)]
    mixed[0][0], mixed[1][1], mixed[2][0] = np.nan, np.nan, -exact[0]
    model = model_of("Conv", inputs)
    accepted = [bool((error_shares(model, inputs, y.astype(F)) <= 1).all()) for y in mixed]
    assert accepted == [True, False, False]


@pytest.mark.parametrize("exponent", [-170, -155, 155, 170])
@pytest.mark.parametrize(
    ("operator", "attributes"),
    [("ReduceL2", {}), ("LpPool", {"kernel_shape": [2]}), ("GlobalLpPool", {})],
)
@np.errstate(over="ignore")
def test_norms_of_doubles_may_be_scaled(operator, attributes, exponent):
    x = row(3, 4, dtype=D) * 10.0**exponent
    inputs = {"x": x, **ALONG} if operator == "ReduceL2" else {"x": x[None]}
    norm = np.full((1, 1) if operator == "ReduceL2" else (1, 1, 1), 5.0) * 10.0**exponent
    naive = np.sqrt(np.sum(x * x)) * np.ones_like(norm)
    results = [norm, naive, norm * 1.41, norm * (1 + 1e-12), norm / 2, -norm, norm * np.nan]
    accepted = accepts(operator, inputs, attributes, results)
    assert accepted == [True, True, *[False] * 5]


@pytest.mark.parametrize("exponent", [-170, 170])
def test_quotients_by_norms_of_doubles_may_be_scaled(exponent):
    x = row(3, 4, dtype=D) * 10.0**exponent
    results = [[[0.6, 0.8]], [[0, 0]], [[0.3, 0.4]], [[np.nan, np.nan]]]
    assert accepts("LpNormalization", {"x": x}, {}, results) == [True, True, False, False]


def test_square_that_underflows_is_not_rounded_up():
    """Squares of about 1e-59 underflow to 0, and never to a larger number."""
    x = row(3e-30, 4e-30)
    results = [[[5e-30]], [[0]], [[7.07e-30]], [[1e-29]]]
    assert accepts("ReduceL2", {"x": x, **ALONG}, {}, results) == [True, True, False, False]


def test_norm_of_equal_terms_may_be_summed_sequentially():
    x = np.full((1, 1000), 3e6, F)
    sequential = x / np.cumsum(x)[-1]
    assert accepts("LpNormalization", {"x": x}, {"axis": 1, "p": 1}, [sequential]) == [True]


def test_norms_of_doubles_are_judged_as_doubles():
    """The published body converts to float32 before the root, because operands may be integers."""
    x = row(3, 4, dtype=D)
    results = [[[5]], [[5 * (1 + 1e-7)]]]
    assert accepts("ReduceL2", {"x": x, **ALONG}, {}, results) == [True, False]
    tiny = row(3e-30, 4e-30, dtype=D)
    results = [[[5e-30]], [[0]], [[7.07e-30]]]
    assert accepts("ReduceL2", {"x": tiny, **ALONG}, {}, results) == [True, False, False]


def test_double_is_inconclusive_if_a_perturbation_overflows():
    """If some runs overflow, the perturbations of two terms may be equal in all other runs."""
    largest = np.finfo(D).max
    inputs = {"x": row(0.5, -7, -0.5, dtype=D)[None], "w": row(largest, 1, largest, dtype=D)[None]}
    assert accepts("Conv", inputs, {}, [[[[-7]]], [[[0]]], [[[1e300]]]]) == [True, True, True]
    halved = inputs | {"w": row(largest / 2, 1, largest / 2, dtype=D)[None]}
    assert accepts("Conv", halved, {}, [[[[-7]]], [[[0]]], [[[1e300]]]]) == [True, True, False]


def test_an_infinite_scale_may_be_folded_with_the_mean():
    """The folded form x f + (b - m f) is NaN only in channels with an infinite factor f."""
    x = np.array([[[2, -2], [2, -2]]], F)
    parameters = {"scale": [np.inf, 1], "bias": [0, 0], "mean": [1, 1], "variance": [1, 1]}
    inputs = {"x": x} | {name: np.array(values, F) for name, values in parameters.items()}
    exact = np.stack([[np.inf, -np.inf], [1, -3] / np.sqrt(F(1 + 1e-5))])[None]
    folded, elsewhere, other_sign = exact.copy(), exact.copy(), exact.copy()
    folded[0, 0], elsewhere[0, 1], other_sign[0, 0] = np.nan, np.nan, -exact[0, 0]
    results = [exact, folded, elsewhere, other_sign]
    accepted = accepts("BatchNormalization", inputs, {}, results)
    assert accepted == [True, True, False, False]


@pytest.mark.parametrize(
    ("operator", "attributes", "scaled"),
    [
        ("InstanceNormalization", {}, np.s_[:, 0]),
        ("GroupNormalization", {"num_groups": 2}, np.s_[:, 0]),
        ("LayerNormalization", {"axis": 2}, np.s_[:, :, 0]),
    ],
)
def test_an_infinite_scale_may_be_folded_with_a_computed_mean(operator, attributes, scaled):
    x = np.array([[[3, -1], [3, -1]]], F)
    scale = np.array([np.inf, 1], F)
    inputs = {"x": x, "scale": scale, "bias": np.zeros(2, F)}
    signs = np.array([[[1, -1], [1, -1]]], F)
    factors = scale if operator == "LayerNormalization" else scale[:, None]
    exact = signs * factors * F(2 / np.sqrt(4 + 1e-5))
    folded, elsewhere, other_sign = exact.copy(), np.full_like(exact, np.nan), exact.copy()
    folded[scaled] = np.nan
    other_sign[scaled] = -exact[scaled]
    results = [exact, folded, elsewhere, other_sign]
    assert accepts(operator, inputs, attributes, results) == [True, True, False, False]


def test_batch_normalization_with_statistics_per_element_is_estimated():
    x = np.array([[[2, -2], [3, -5]]], F)
    names = ["scale", "bias", "mean", "variance"]
    inputs = {"x": x} | {name: np.ones((2, 2), F) for name in names}
    model = model_of("BatchNormalization", inputs, opset=7, spatial=0)
    exact = (x - 1) / np.sqrt(F(1 + 1e-5)) + 1
    assert error_shares(model, inputs, exact).max() <= 1
    assert error_shares(model, inputs, exact + F(1e-3)).min() > 1
