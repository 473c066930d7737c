"""Wrong outputs fail with a description of the error. Right outputs pass in any container."""

from __future__ import annotations

import json
import os

import pytest
from commands import run_command
from places import PLUGINS, REPOSITORY

FAULTY = PLUGINS / "faulty.py"
HEAD = "onnxopt: 1\nsuite: demo\noperator: Momentum\ncases:\n"
CASE = """\
  - name: %s_%s
    attributes: {alpha: 0.9, beta: 1.0, mode: standard, norm_coefficient: 0.0}
    inputs: {R: %d, T: 1, %s}
"""
TENSORS = {
    "plain": "X: [1.0, 2.0], G: [0.5, -0.5], V: [0.25, 0.0]",
    "scalar": "X: 1.0, G: 0.5, V: 0.25",
}
# For each faulty backend: the output with the wrong structure, and how the message describes it.
STRUCTURE = {
    "wrong_shape": ("X_new", "is float32[1,2]"),
    "broadcast": ("X_new", "is float32[3,2]"),
    "too_short": ("X_new", "is float32[1]"),
    "wrong_dtype": ("X_new", "is float64[2]"),
    "missing": ("V_new", "is missing"),
    "nothing": ("X_new", "is missing"),
    "none": ("X_new", "is an empty optional"),
    "extra": ("output 2", "is float32[2] too many"),
}
# For each faulty backend: the number of wrong elements in the first output.
VALUES = {"wrong_value": 2, "nan": 1, "infinity": 1, "all_nan": 2}
# Backends that return right values in unusual containers, each with the kind of tensors.
RIGHT = [
    ("lists", "plain"),
    ("lists", "scalar"),
    ("as_tuple", "plain"),
    ("views", "plain"),
    ("reversed_views", "plain"),
    ("strided_views", "plain"),
    ("read_only_arrays", "plain"),
]


@pytest.fixture(scope="module", params=["process", "none"])
def results(request, tmp_path_factory):
    """Run all backends once, and return the results by backend and kind of tensors."""
    place = tmp_path_factory.mktemp("faulty")
    pairs = [*((name, "plain") for name in (*STRUCTURE, *VALUES)), *RIGHT]
    ways = [name for name, _ in pairs]
    cases = [
        CASE % (name, shape, number, TENSORS[shape]) for number, (name, shape) in enumerate(pairs)
    ]
    (place / "demo.yaml").write_text(HEAD + "".join(cases))
    done = run_command(
        *("run", "demo.yaml", "--no-explain", "-j", "1", "--isolation", request.param),
        *("--report", "json=run.json", "-b", f"python:{FAULTY}:InTurn"),
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "WAYS": " ".join(ways)},
    )
    assert done.returncode == 1
    assert done.stderr == ""
    results = json.loads((place / "run.json").read_text())["results"]
    return {tuple(result["case"].rpartition("/")[2].rsplit("_", 1)): result for result in results}


@pytest.mark.parametrize("backend", STRUCTURE)
def test_output_of_another_structure_fails(results, backend):
    result = results[backend, "plain"]
    described = [(output["name"], output["structure"]) for output in result["outputs"]]
    assert result["outcome"] == "fail"
    assert STRUCTURE[backend] in described


@pytest.mark.parametrize("backend", VALUES)
def test_wrong_or_nonfinite_value_fails(results, backend):
    result = results[backend, "plain"]
    assert result["outcome"] == "fail"
    assert result["outputs"][0]["structure"] is None
    assert result["outputs"][0]["mismatches"] == VALUES[backend]


@pytest.mark.parametrize(("backend", "case"), RIGHT)
def test_right_values_pass_in_any_array(results, backend, case):
    assert results[backend, case]["outcome"] == "pass"
