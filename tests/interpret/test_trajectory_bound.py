"""Reformulations stay within the error bound that is propagated along a trajectory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trajectory_files import GRADIENTS, START, contents, trajectory_text

from onnxopt_cli.interpret.bound.bounded_value import given as exactly
from onnxopt_cli.interpret.bound.chained_nodes import bound_trajectory, derived_array
from onnxopt_cli.interpret.reformulations import reformulations
from onnxopt_cli.interpret.vocabulary import precision_of
from onnxopt_cli.operators.call import sole_call
from onnxopt_cli.operators.registry import registry

FOREIGN = ("lowered, on ONNX Runtime", "on PyTorch's tensors")


def step_outputs(trajectory, implementation):
    """Yield the outputs of each step; later steps begin with the implementation's own outputs."""
    names = [value.name for value in trajectory.model.graph.output]
    state = trajectory.state
    for step in range(1, trajectory.count + 1):
        fed = trajectory.inputs(step, state, lambda array: array, derived_array)
        outputs = dict(
            zip(names, implementation.run(sole_call(trajectory.model, fed)), strict=True)
        )
        state = {taken: outputs[name] for name, taken in trajectory.feedback.items()}
        yield outputs


def largest_share(derived_outputs, outputs_by_step):
    share = 0.0
    for row, outputs in enumerate(outputs_by_step):
        for name, value in outputs.items():
            distance = np.abs(np.float64(value - derived_outputs[name].value[row]))
            error = derived_outputs[name].error[row]
            with np.errstate(all="ignore"):
                shares = np.where(distance == 0, 0, distance / error)
            share = max(share, float(np.max(shares)))
    return share


@pytest.mark.parametrize(
    "gradient",
    [
        "quadratic",
        *(pytest.param(name, marks=pytest.mark.slow) for name in GRADIENTS if name != "quadratic"),
    ],
)
@pytest.mark.parametrize("operator", START)
def test_no_reformulation_exceeds_the_propagated_bound(tmp_path, operator, gradient):
    steps, _ = contents(tmp_path, trajectory_text(operator, GRADIENTS[gradient], 30))
    derived_outputs = bound_trajectory(steps.trajectory)
    for reformulation in reformulations(registry().named(operator)):
        if reformulation.name not in FOREIGN:
            outputs_by_step = step_outputs(steps.trajectory, reformulation)
            assert largest_share(derived_outputs, outputs_by_step) <= 1, reformulation.name


@pytest.mark.slow
@given(
    operator=st.sampled_from(sorted(START)),
    gradient=st.sampled_from(sorted(GRADIENTS)),
    start=st.lists(st.floats(-3, 3, width=32, allow_subnormal=False), min_size=2, max_size=2),
    rate=st.sampled_from([1e-4, 0.01, 0.3]),
    count=st.sampled_from([0, 1, 5, 10**6]),
    index=st.integers(0, 1000),
)
def test_no_reformulation_exceeds_the_propagated_bound_from_any_start(
    tmp_path_factory, operator, gradient, start, rate, count, index
):
    inputs = START[operator].replace("X: [1.5, -0.7]", f"X: [{start[0]!r}, {start[1]!r}]")
    _, _, rest = inputs.split(", ", 2)
    text = trajectory_text(
        operator, GRADIENTS[gradient], 24, start=f"R: {rate!r}, T: {count}, {rest}"
    )
    steps, _ = contents(tmp_path_factory.mktemp("walk"), text)
    reformulations_here = [
        reformulation
        for reformulation in reformulations(registry().named(operator))
        if reformulation.name not in FOREIGN
    ]
    reformulation = reformulations_here[index % len(reformulations_here)]
    outputs_by_step = step_outputs(steps.trajectory, reformulation)
    derived_outputs = bound_trajectory(steps.trajectory)
    assert largest_share(derived_outputs, outputs_by_step) <= 1, reformulation.name


def test_error_multiplied_by_a_gradient_grows_until_it_is_inconclusive(tmp_path):
    gradient = "{quadratic: {curvature: 30, center: 1}}"
    start = "R: 0.05, T: 0, X: [1.5, -0.7], V: [0, 0]"
    steps, _ = contents(tmp_path, trajectory_text("Momentum", gradient, 60, start=start))
    derived_output = bound_trajectory(steps.trajectory)["X_new"]
    inconclusive = derived_output.branch.inconclusive.any(axis=1)
    assert not inconclusive[0]
    assert inconclusive[-1]
    without_feedback, _ = contents(
        tmp_path, trajectory_text("Momentum", GRADIENTS["list"], 60, start=start)
    )
    assert not bound_trajectory(without_feedback.trajectory)["X_new"].inconclusive


def test_error_without_feedback_grows_by_a_few_roundings_per_step(tmp_path):
    steps, _ = contents(tmp_path, trajectory_text("Adagrad", GRADIENTS["list"], 60))
    derived_output = bound_trajectory(steps.trajectory)["H_new"]
    steps_taken = np.arange(1, 61)[:, np.newaxis]
    assert np.all(derived_output.error <= 6 * steps_taken * 2.0**-24 * derived_output.value + 1e-37)


@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 6),
    inner=st.integers(1, 40),
    exponent=st.integers(-12, 12),
)
def test_products_of_matrices_and_exponentials_stay_within_their_bound(seed, rows, inner, exponent):
    random = np.random.default_rng(seed)
    precision = precision_of(np.dtype(np.float32))
    matrix = random.normal(size=(rows, inner)).astype(np.float32)
    vector = (random.normal(size=inner) * 10.0**exponent).astype(np.float32)
    product = matrix @ exactly(vector, precision)
    orders = [matrix @ vector, (matrix * vector).cumsum(axis=1, dtype=np.float32)[:, -1]]
    orders.append((matrix * vector)[:, ::-1].cumsum(axis=1, dtype=np.float32)[:, -1])
    for computed in orders:
        assert np.all(np.abs(np.float64(computed - product.value)) <= product.error)
    assert np.all(product.error <= 4 * inner * 2.0**-24 * (np.abs(matrix) @ np.abs(vector)) + 1e-36)
    with np.errstate(all="ignore"):
        power = np.exp(replace(product, factors=(), reach=None))
        for computed in orders:
            distance = np.abs(np.float64(np.exp(computed) - power.value))
            assert np.all((distance <= power.error) | ~np.isfinite(power.error))


def test_intermediate_overflow_has_an_infinite_bound():
    precision = precision_of(np.dtype(np.float32))
    large = exactly(np.array([3e38, 3e38, -3e38], np.float32), precision)
    assert np.isinf((np.ones((1, 3), np.float32) @ large).error).all()
    with np.errstate(all="ignore"):
        assert np.isinf(np.exp(exactly(np.array([100.0], np.float32), precision)).error).all()
