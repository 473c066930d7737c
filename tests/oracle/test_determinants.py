"""Determinants by elimination, reflections or cofactors pass at any rank. Wrong values fail."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from onnxopt_cli.core.tolerance import Branch
from onnxopt_cli.oracle.estimate.condition_estimate import condition

F = np.float32


def eliminated(matrix, complete=False):
    """Return the determinant by an LU decomposition with partial or complete pivoting."""
    a, count, determinant = matrix.copy(), len(matrix), matrix.dtype.type(1)
    for place in range(count):
        remaining = np.abs(a[place:, place:])
        if complete:
            row, column = np.unravel_index(np.argmax(remaining), remaining.shape)
        else:
            row, column = int(np.argmax(remaining[:, 0])), 0
        for axis, pivot in ((0, place + row), (1, place + column)):
            if pivot != place:
                view = a if axis == 0 else a.T
                view[[place, pivot]] = view[[pivot, place]]
                determinant = -determinant
        determinant = determinant * a[place, place]
        if determinant == 0:
            return determinant
        factors = a[place + 1 :, place] / a[place, place]
        a[place + 1 :, place:] -= np.outer(factors, a[place, place:])
    return determinant


def reflected(matrix):
    """Return the determinant by a QR decomposition with Householder reflections."""
    a, sign = matrix.copy(), F(1)
    for place in range(len(a) - 1):
        mirror = a[place:, place].copy()
        mirror[0] += np.copysign(np.sqrt((mirror * mirror).sum(dtype=F)), mirror[0])
        length = (mirror * mirror).sum(dtype=F)
        if length:
            shares = (F(2) / length) * (mirror @ a[place:, place:])
            a[place:, place:] -= np.outer(mirror, shares)
            sign = -sign
    return sign * np.multiply.reduce(np.diag(a))


def expanded(matrix):
    """Return the determinant by Laplace's expansion along the first row."""
    if len(matrix) == 1:
        return matrix[0, 0]
    total = F(0)
    for place, factor in enumerate(matrix[0]):
        term = factor * expanded(np.delete(matrix[1:], place, 1))
        total = total - term if place % 2 else total + term
    return total


def without_fractions(matrix):
    """Return the determinant by Bareiss' fraction-free elimination, with pivots."""
    a, before, sign = matrix.copy(), F(1), F(1)
    for place in range(len(a) - 1):
        row = place + int(np.argmax(np.abs(a[place:, place])))
        if not a[row, place]:
            return F(0)
        if row != place:
            a[[place, row]], sign = a[[row, place]], -sign
        crossed = np.outer(a[place + 1 :, place], a[place, place + 1 :])
        a[place + 1 :, place + 1 :] *= a[place, place]
        a[place + 1 :, place + 1 :] -= crossed
        a[place + 1 :, place + 1 :] /= before
        before = a[place, place]
    return sign * a[-1, -1]


REFORMULATIONS = {
    "partial pivots": eliminated,
    "complete pivots": lambda matrix: eliminated(matrix, complete=True),
    "by columns": lambda matrix: eliminated(matrix.T.copy()),
    "in double": lambda matrix: F(eliminated(matrix.astype(np.float64))),
    "LAPACK": np.linalg.det,
    "reflections": reflected,
    "cofactors": expanded,
    "without fractions": without_fractions,
}


def matrix_of_rank(count, deficit, seed, integers=False):
    random = np.random.default_rng(seed)
    if integers:
        rows = random.integers(-4, 5, (count - deficit, count))
        return np.concatenate([rows, random.integers(-2, 3, (deficit, count - deficit)) @ rows])
    factor = random.standard_normal((count, count - deficit))
    return factor @ random.standard_normal((count - deficit, count)) if deficit else factor


def expected_branch(x):
    element = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [helper.make_node("Det", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", element, x.shape)],
        [helper.make_tensor_value_info("y", element, x.shape[:-2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    branch = None
    for expected, limit in reversed(condition(model, {"x": x})[0].right):
        branch = Branch(expected, limit, branch)
    return branch


def check_reformulations(x, names=REFORMULATIONS):
    right = expected_branch(x)
    for name in names:
        determinants = np.array([REFORMULATIONS[name](matrix.astype(F)) for matrix in x])
        assert not right.wrong(determinants.astype(x.dtype)).any(), name


@pytest.mark.parametrize("integers", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_reformulations_pass_at_any_rank(count, integers):
    for deficit in range(count):
        check_reformulations(
            np.array([matrix_of_rank(count, deficit, seed, integers) for seed in range(8)], F)
        )


@pytest.mark.parametrize("count", [7, 20])
@pytest.mark.parametrize("deficit", [0, 1, 3, 5])
def test_larger_matrices_pass_by_factorization(count, deficit):
    x = np.array([matrix_of_rank(count, deficit, seed) for seed in range(4)], F)
    check_reformulations(x, REFORMULATIONS.keys() - {"cofactors", "without fractions"})


def test_products_of_pivots_may_overflow_if_the_determinant_is_zero():
    x = np.array([1e4 * matrix_of_rank(16, 3, seed) for seed in range(4)], F)
    with np.errstate(over="ignore"):
        infinite = np.array([eliminated(matrix) for matrix in x])
        assert np.isinf(infinite).all()
        check_reformulations(x, ["partial pivots", "complete pivots", "reflections", "in double"])
    small = np.array([1e-2 * matrix_of_rank(16, 3, seed) for seed in range(4)], F)
    assert expected_branch(small).wrong(infinite).all()


@given(st.integers(2, 4), st.integers(0, 3), st.integers(0, 2**31), st.floats(-3, 3))
def test_scaled_matrices_pass(count, deficit, seed, power):
    x = matrix_of_rank(count, min(deficit, count - 1), seed)
    scales = 10.0 ** (power * np.linspace(-1, 1, count))
    check_reformulations(
        (scales[:, None] * x)[None].astype(F), {"partial pivots", "cofactors", "in double"}
    )


def test_scaling_a_matrix_of_full_rank_does_not_widen_the_tolerance():
    scales = np.array([1e-4, 1, 1e4])[:, None]
    x = np.array([scales * matrix_of_rank(3, 0, seed) * scales.T for seed in range(30)], F)
    exact = np.linalg.det(x.astype(np.float64))
    assert expected_branch(x).wrong((exact * (1 + 1e-3)).astype(F)).mean() > 0.9


@pytest.mark.parametrize("count", [2, 3, 5, 7])
def test_wrong_determinants_of_full_rank_fail(count):
    x = np.array([matrix_of_rank(count, 0, seed) for seed in range(30)], F)
    right = expected_branch(x)
    exact = np.linalg.det(x.astype(np.float64))
    scale = np.sqrt(np.mean(exact**2))
    for wrong in (-exact, 0 * exact, exact * (1 + 1e-4), exact + 1e-4 * scale):
        assert right.wrong(wrong.astype(F)).mean() > 0.9


def test_determinant_of_low_rank_is_zero_relative_to_its_scale():
    x = np.array([matrix_of_rank(7, 3, seed) for seed in range(30)], F)
    assert expected_branch(x).wrong(np.full(30, F(0.1))).mean() > 0.8
    zeros = np.ones((1, 3, 3), F)
    zeros[0, 1] = 0
    assert not expected_branch(zeros).wrong(F([1e-8])).any()
    assert expected_branch(zeros).wrong(F([1e-4])).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_tolerance_follows_the_roundoff_of_the_type(dtype):
    x = np.array([matrix_of_rank(3, seed % 3, seed) for seed in range(9)], dtype)
    exact = np.linalg.det(x.astype(np.float64))
    right = expected_branch(x)
    assert not right.wrong(exact.astype(dtype)).any()
    error = 100 * np.finfo(dtype).eps
    assert right.wrong((exact * (1 + error)).astype(dtype))[::3].all()
