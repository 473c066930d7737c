"""Perturbed runs reveal that terms of a sum cancel, wherever the terms are in the tensor."""

import numpy as np
import pytest
from onnx import helper

from onnxopt_cli.core.tolerance import Branch
from onnxopt_cli.oracle.estimate.condition_estimate import condition
from onnxopt_cli.oracle.rounding.perturbations import (
    DISTINCT_PLACES,
    LEVELS,
    RUNS,
    roundings,
)


def columns(first, count):
    return np.array([roundings(run, first, count) for run in range(RUNS)])


@pytest.mark.parametrize("first", [0, 40_000, 123_456_789])
def test_consecutive_places_have_different_perturbations(first):
    moves = columns(first, DISTINCT_PLACES)
    assert len(np.unique(moves, axis=1).T) == DISTINCT_PLACES
    # Perturbations of different size differ by at least a quarter of a rounding.
    assert np.diff(LEVELS) == pytest.approx(0.25)
    assert (np.abs(moves).max(axis=0) == 1).all()


def test_distant_places_have_equal_perturbations_with_probability_below_1e_6():
    # DISTINCT_PLACES is a prime. If two elements have equal perturbations in all runs, their
    # distance is a multiple of DISTINCT_PLACES.
    assert all(DISTINCT_PLACES % divisor for divisor in range(2, 250))
    first = columns(0, 10_000)
    shares = [
        (columns(times * DISTINCT_PLACES, 10_000) == first).all(axis=0).mean()
        for times in range(1, 200)
    ]
    assert np.mean(shares) / DISTINCT_PLACES < 1e-6


@pytest.mark.parametrize("terms", [2, 3, 4, 6, 8, 16])
def test_cancellation_is_visible_wherever_the_terms_are(terms):
    random = np.random.default_rng(terms)
    all_columns = columns(0, 500_000)
    places = random.integers(0, all_columns.shape[1], (20_000, terms))
    signs = np.where(np.arange(terms) < terms // 2, 1.0, -1.0)
    moved = np.abs(np.take(all_columns, places, axis=1) @ signs).max(axis=0)
    # With one rounding per term, the expected error is sqrt(terms). The tolerance is 16 times the
    # largest movement. All sums must have at least the tolerance sqrt(terms), and half of them at
    # least 16 sqrt(terms).
    assert moved.min() * 16 >= np.sqrt(terms)
    assert np.median(moved) >= np.sqrt(terms)


@pytest.mark.parametrize("ratio", [1, 10, 1000, 1e5])
@pytest.mark.parametrize("shape", [(8, 16, 7, 7), (2, 35, 11), (1, 70, 35), (4, 3, 1)])
def test_folded_batch_normalization_passes_in_every_element(shape, ratio):
    random = np.random.default_rng(int(ratio) + shape[1])
    draw = lambda *size: random.uniform(0.5, 2, size).astype(np.float32)  # noqa: E731
    channels = shape[1]
    inputs = {"x": (random.standard_normal(shape) + ratio).astype(np.float32)}
    inputs |= {"scale": draw(channels), "bias": draw(channels) - np.float32(1)}
    inputs |= {"mean": np.full(channels, ratio, np.float32), "var": draw(channels)}
    node = helper.make_node("BatchNormalization", list(inputs), ["y"], epsilon=1e-5)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(name, 1, v.shape) for name, v in inputs.items()],
        [helper.make_tensor_value_info("y", 1, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=10)
    right = Branch(*condition(model, inputs)[0].right[0])
    x, scale, bias, mean, variance = (
        array if array.ndim > 1 else array.reshape(-1, *[1] * (len(shape) - 2))
        for array in inputs.values()
    )
    factor = scale / np.sqrt(variance + np.float32(1e-5))
    assert not right.wrong(x * factor + (bias - mean * factor)).any()
    assert not right.wrong((x - mean) * factor + bias).any()
    # An error fails if it is ten times the larger error of the two normalizations.
    error = 20 * 2.0**-24 * np.abs(x * factor).max()
    assert np.mean(right.wrong(right.expected + np.float32(10 * error))) > 0.95


@pytest.mark.parametrize(
    ("operator", "transposed"), [("MatMul", False), ("Gemm", False), ("Gemm", True)]
)
def test_rows_of_a_factor_move_a_product_as_far_as_single_elements(operator, transposed):
    """Compare the tolerances with those that result if each element moves on its own."""
    random = np.random.default_rng(5)
    count = 60
    a, b = (random.standard_normal(shape).astype("f4") for shape in ((30, count), (count, 40)))
    if transposed:
        node = helper.make_node("Gemm", ["a", "b"], ["y"], transA=1, transB=1)
        inputs = {"a": np.ascontiguousarray(a.T), "b": np.ascontiguousarray(b.T)}
    else:
        node, inputs = helper.make_node(operator, ["a", "b"], ["y"]), {"a": a, "b": b}
    shapes = [(name, value.shape) for name, value in inputs.items()] + [("y", (30, 40))]
    infos = [helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes]
    graph = helper.make_graph([node], "g", infos[:2], infos[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    ((_, tolerance),) = condition(model, inputs)[0].right
    size = np.sqrt(count) / 4 * 2.0**-24
    moves = size * columns(0, a.size + b.size)
    moved = [
        (a * (1 + move[: a.size].reshape(a.shape)))
        @ (b.astype(float) * (1 + move[a.size :].reshape(b.shape)))
        for move in moves
    ]
    exact = a.astype(float) @ b
    errors = 2.0**-24 * np.abs(exact) * columns(a.size + b.size, exact.size).reshape(-1, 30, 40)
    movement = np.abs(moved - exact + errors).max(axis=0)
    assert np.mean(tolerance) / (16 * np.mean(movement)) == pytest.approx(1, abs=0.1)
