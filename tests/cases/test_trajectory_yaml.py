"""Faults of trajectories in case files are reported with their lines."""

from __future__ import annotations

import numpy as np
import pytest
from trajectory_files import contents, trajectory_text
from yaml_files import problems_of

HEAD = "onnxopt: 1\noperator: Adam\nsuite: s\ncases:\n- name: c\n"
INPUTS = "R: 0.1, T: 1, X: [1, 2], V: [0, 0], H: [0, 0]"
GOOD = "{quadratic: {}}"


def case(steps, inputs=INPUTS, more=""):
    return f"{HEAD}  inputs: {{{inputs}}}\n  steps: {steps}\n{more}"


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        (case("{inputs: {G: [[1, 1]]}}"), ["7: case c: steps: found no count"]),
        (
            case("{count: 0, inputs: {G: [[1, 1]]}}"),
            ["7: case c: steps.count: found 0, expected at least 1"],
        ),
        (
            case("{count: 10001, inputs: {G: [[1, 1]]}}"),
            ["7: case c: steps.count: found 10001, expected at most 10000"],
        ),
        (
            case("{count: 3, inputs: {G: [[1, 1], [2, 2]]}}"),
            ["7: case c: steps.inputs.G: found 2 values, expected 3, one for each step"],
        ),
        (
            case("{count: 3, inputs: {G: {cycle: 1}}}"),
            ["7: case c: steps.inputs.G.cycle: found a single value, expected a list of values"],
        ),
        (case("{count: 3}"), ["6: case c: inputs: found no input G, expected R, T, X, G, V, H"]),
        (
            case(
                f"{{count: 3, inputs: {{X: [[1, 1]], G: {GOOD}}}}}",
                INPUTS.replace("X: [1, 2], ", ""),
            ),
            ["7: case c: steps.inputs.X: found X, expected it in the inputs of the case, because"],
        ),
        (
            case(f"{{count: 2, inputs: {{T: [1, 2], G: {GOOD}}}}}"),
            ["7: case c: steps.inputs.T: found T, expected it in the inputs of the case, because"],
        ),
        (
            case(f"{{count: 2, inputs: {{R: [1, 2], G: {GOOD}}}}}"),
            ["7: case c: steps.inputs.R: found R, expected it either here or in the inputs"],
        ),
        (
            case(f"{{count: 2, inputs: {{Q: [1, 2], G: {GOOD}}}}}"),
            ["7: case c: steps.inputs.Q: found an unknown input, expected one of R, T, X, G, V, H"],
        ),
        (
            case(
                "{count: 2, inputs: {R: {quadratic: {}}, G: [[1, 1], [1, 1]]}}",
                INPUTS.replace("R: 0.1, ", ""),
            ),
            ["7: case c: steps.inputs.R: found a gradient, expected values for R"],
        ),
        (
            case(
                "{count: 1, inputs: {W: [[1, 2]], Z: {quadratic: {}}}}",
                "loss: 1.0, U: [0, 0]",
                "  attributes: {rho: 0.5}\n",
            ).replace("Adam", "AdmmPenalty"),
            ["7: case c: steps.inputs.Z: found a gradient, expected W in the inputs of the case"],
        ),
        (
            case(
                "{count: 1, inputs: {W: {quadratic: {}}}}",
                "loss: 1.0, Z: [0, 0], U: [0, 0]",
                "  attributes: {rho: 0.5}\n",
            ).replace("Adam", "AdmmPenalty"),
            ["7: case c: steps.inputs.W: found a gradient, expected W in the inputs of the case"],
        ),
        (
            case("{count: 2, inputs: {G: {quadratic: {curvature: [1, 2, 3]}}}}"),
            ["7: case c: steps.inputs.G.quadratic: found curvature of shape [3], expected one"],
        ),
        (
            case("{count: 2, inputs: {G: {quadratic: {center: {dtype: double, data: [1, 2]}}}}}"),
            ["7: case c: steps.inputs.G.quadratic.center: found float64, expected float32"],
        ),
        (
            case(
                "{count: 2, inputs: {G: {rosenbrock: {}}}}",
                INPUTS.replace("[1, 2]", "1").replace("[0, 0]", "0"),
            ),
            ["7: case c: steps.inputs.G.rosenbrock: found an X of shape [], expected a vector of"],
        ),
        (
            case("{count: 2, inputs: {G: {logistic: {features: [[1, 2, 3]], labels: [1]}}}}"),
            ["7: case c: steps.inputs.G.logistic: found features of shape [1, 3], expected [1, 2]"],
        ),
        (
            case("{count: 2, inputs: {G: {logistic: {labels: [1]}}}}"),
            ["7: case c: steps.inputs.G.logistic: found no features, expected this field"],
        ),
        (
            case("{count: 2, inputs: {G: {quadratic: {}, cycle: [1]}}}"),
            ["7: case c: steps.inputs.G: found a mapping with quadratic, cycle, expected"],
        ),
        (
            case(f"{{count: 9, record: [3, 2], inputs: {{G: {GOOD}}}}}"),
            ["7: case c: steps.record[1]: found 2, expected a later step than 3"],
        ),
        (
            case(f"{{count: 9, record: [10], inputs: {{G: {GOOD}}}}}"),
            ["7: case c: steps.record[0]: found 10, expected a step up to 9"],
        ),
        (
            case(f"{{count: 9, inputs: {{G: {GOOD}}}}}", INPUTS.replace("V: [0, 0]", "V: 0")),
            ["6: case c: inputs.V: found float32[], expected the shape [2] of V_new"],
        ),
        (
            case(
                f"{{count: 9, inputs: {{G: {GOOD}}}}}",
                INPUTS.replace("T: 1", "T: 9223372036854775806"),
            ),
            ["6: case c: inputs.T: found a T that exceeds int64 within 9 steps"],
        ),
        (
            case(f"{{count: 2, inputs: {{G: {GOOD}}}}}", more="  outputs: {X_new: [1, 2]}\n"),
            ["8: case c: outputs: found outputs, expected none in a case with steps"],
        ),
        (
            case(f"{{count: 2, inputs: {{G: {GOOD}}}}}", more="  rejects: true\n"),
            ["8: case c: rejects: found rejects, expected none in a case with steps"],
        ),
        (
            "onnxopt: 1\nsuite: s\ncases:\n- name: c\n  operator: Relu\n  steps: {count: 2}\n",
            ["6: case c: steps: found steps, expected only with an operator that has a formula"],
        ),
        (
            case("{count: 2, inputs: {G: {file: none.npy}}, record: [9]}"),
            ["7: case c: steps.inputs.G.file: ", "7: case c: steps.record[0]: found 9"],
        ),
    ],
)
def test_faults_of_steps_are_reported_with_line_and_field(tmp_path, text, problems):
    actual = problems_of(tmp_path, text)
    assert len(actual) == len(problems)
    for beginning, problem in zip(sorted(problems), sorted(actual), strict=True):
        assert problem.startswith(beginning)


def test_gradients_of_all_steps_are_read_from_a_file(tmp_path):
    gradients = np.arange(12, dtype=np.float32).reshape(6, 2)
    np.save(tmp_path / "gradients.npy", gradients)
    steps, loop = contents(tmp_path, trajectory_text("Adam", "{file: gradients.npy}", 6))
    np.testing.assert_array_equal(steps.inputs["G"], gradients[0])
    np.testing.assert_array_equal(loop.inputs["G"], gradients)


def test_size_of_a_trajectory_is_limited(tmp_path):
    inputs = "R: 0.1, T: 1, " + ", ".join(
        f"{name}: {{random: {{uniform: {{}}, seed: 1}}, shape: [100000]}}" for name in "XVH"
    )
    (problem,) = problems_of(tmp_path, case(f"{{count: 100, inputs: {{G: {GOOD}}}}}", inputs))
    assert "found 100 recorded steps of 300000 elements, and 0 elements of inputs" in problem
    assert "inputs that change, expected at most" in problem


LOGISTIC = (
    "{logistic: {features: {random: {normal: {}, seed: 1}, shape: [9999, 10]}, "
    "labels: {random: {normal: {}, seed: 1}, shape: [9999]}}}"
)


@pytest.mark.parametrize(
    ("count", "size", "gradient", "computed"),
    [
        (10_000, 1_000_000, "{quadratic: {center: 1.0}}", 4_000_001),
        (10_000, 1_000, "{rosenbrock: {}}", 1_004_000),
        (
            10_000,
            10,
            LOGISTIC,
            110_029,
        ),
    ],
    ids=["large", "square", "data"],
)
def test_number_of_computed_elements_is_limited(tmp_path, count, size, gradient, computed):
    inputs = "R: 0.1, T: 1, " + ", ".join(
        f"{name}: {{random: {{uniform: {{}}, seed: 1}}, shape: [{size}]}}" for name in "XVH"
    )
    steps = f"{{count: {count}, record: [{count}], inputs: {{G: {gradient}}}}}"
    (problem,) = problems_of(tmp_path, case(steps, inputs))
    assert f"found {count} steps that compute {computed} elements each" in problem
