"""Expected results of trajectories agree with explicit loops."""

from __future__ import annotations

import numpy as np
import pytest
from trajectory_files import ATTRIBUTES, GRADIENTS, contents, trajectory_text
from yaml_files import read_text

from onnxopt_cli.interpret.bound.chained_nodes import bound_trajectory, first_inputs

WIDE_TYPE = np.longdouble
COUNT = 40


def single(value):
    """Return a number rounded to float32, like an attribute or a float32 input."""
    return WIDE_TYPE(np.float32(value))


def adam(x, g, state, rate, count):
    alpha, beta = single(0.9), single(0.999)
    g = g + single(0.01) * x
    v = state.get("V", 0) * alpha + (1 - alpha) * g
    h = state.get("H", 0) * beta + (1 - beta) * g**2
    corrected = rate * np.sqrt(1 - beta**count) / (1 - alpha**count)
    return x - corrected * v / (np.sqrt(h) + single(1e-3)), {"V": v, "H": h}


def adagrad(x, g, state, rate, count):
    h = state.get("H", 0) + g**2
    return x - rate / (1 + count * single(0.01)) * g / (np.sqrt(h) + single(1e-3)), {"H": h}


def nesterov(x, g, state, rate, count):
    alpha, beta = single(0.9), single(0.95) if count > 0 else WIDE_TYPE(1)
    g = g + single(0.01) * x
    v = alpha * state.get("V", 0) + beta * g
    return x - rate * (g + alpha * v), {"V": v}


def quadratic(x, _step):
    return np.array([1, 0.5], WIDE_TYPE) * (x - np.array([0.5, -1.75], WIDE_TYPE))


def rosenbrock(x, _step):
    a, b = x
    return np.array([-8 * a * (b - a * a) - 2 * (1 - a), 4 * (b - a * a)])


def logistic(x, _step):
    rows = [([1, 2], 1), ([2, -1], 1), ([-1, 0.5], 0), ([0.5, -2], 0)]
    total = np.zeros(2, WIDE_TYPE)
    for features, label in rows:
        score = features[0] * x[0] + features[1] * x[1]
        total += (1 / (1 + np.exp(-score)) - label) * np.array(features, WIDE_TYPE)
    return total / 4


def listed(_x, step):
    return np.array([[1, -0.5], [0, 0], [0.25, 2]][step % 3], WIDE_TYPE)


OPERATORS = {
    "Adam": (adam, 0.01, 1),
    "Adagrad": (adagrad, 0.05, 0),
    "Momentum": (nesterov, 0.002, 0),
}
OWN_GRADIENTS = {
    "quadratic": quadratic,
    "rosenbrock": rosenbrock,
    "logistic": logistic,
    "list": listed,
}


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("operator", ATTRIBUTES)
def test_reference_agrees_with_an_explicit_loop(tmp_path, operator, gradient):
    steps, _ = contents(tmp_path, trajectory_text(operator, GRADIENTS[gradient], COUNT))
    derived_outputs = bound_trajectory(steps.trajectory)
    step, rate, count = OPERATORS[operator]
    x, state = np.array([single(1.5), single(-0.7)]), {}
    for index in range(COUNT):
        x, state = step(x, OWN_GRADIENTS[gradient](x, index), state, single(rate), count + index)
        for name, value in {"X": x, **state}.items():
            actual = derived_outputs[f"{name}_new"].value[index]
            np.testing.assert_allclose(actual, value, rtol=1e-15, atol=1e-17)


def test_groups_have_separate_gradients_and_share_rate_and_count(tmp_path):
    text = """\
        onnxopt: 1
        suite: s
        operator: Adagrad
        cases:
        - name: two
          inputs: {R: 0.5, T: 0, X1: [1], H1: [0], X2: [2, 3], H2: [0, 0]}
          steps:
            count: 3
            inputs: {G1: {quadratic: {}}, G2: [[1, 1], [2, 2], [3, 3]]}
        """
    cases, problems = read_text(tmp_path, text)
    assert problems == []
    derived_outputs = bound_trajectory(cases[0].load().trajectory)
    np.testing.assert_array_equal(derived_outputs["H2_new"].expected, [[1, 1], [5, 5], [14, 14]])
    assert derived_outputs["H1_new"].expected[0] == 1
    assert derived_outputs["X1_new"].expected.shape == (3, 1)


def test_linear_warm_up_ends_in_its_last_step(tmp_path):
    line = "R: {linear: {from: 0.1, to: 0.5, over: 5}}"
    text = trajectory_text(
        "Adam", GRADIENTS["list"], 8, start="T: 1, X: [1, 2], V: [0, 0], H: [0, 0]"
    )
    steps, _ = contents(tmp_path, text.replace("inputs: {G:", f"inputs: {{{line}, G:"))
    expected = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5, 0.5], np.float32)
    np.testing.assert_array_equal(steps.trajectory.series["R"], expected)
    assert first_inputs(steps.trajectory)["R"] == np.float32(0.1)


def test_recorded_steps_equal_those_of_the_full_trajectory(tmp_path):
    text = trajectory_text("Adam", GRADIENTS["quadratic"], COUNT)
    full, _ = contents(tmp_path, text)
    sparse, loop = contents(tmp_path, text + "    record: {every: 15}\n")
    assert sparse.trajectory.recorded == (15, 30, 40)
    rows = [step - 1 for step in sparse.trajectory.recorded]
    for name, derived_output in bound_trajectory(sparse.trajectory).items():
        all_steps = bound_trajectory(full.trajectory)[name]
        np.testing.assert_array_equal(derived_output.expected, all_steps.expected[rows])
        np.testing.assert_array_equal(derived_output.error, all_steps.error[rows])
    assert [
        output.type.tensor_type.shape.dim[0].dim_value for output in loop.model.graph.output
    ] == [3] * 3
