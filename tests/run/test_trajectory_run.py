"""``onnxopt run`` on trajectories, which are computed in single steps and in a loop."""

from __future__ import annotations

import json
import re

import pytest
from places import PLUGINS
from trajectory_files import GRADIENTS, START, trajectory_text

from onnxopt_cli.backends.specification import parse_specification
from onnxopt_cli.config.run_config import Limits, LoweringMode
from onnxopt_cli.core.record import result_from_json, result_to_json
from onnxopt_cli.run.executors import InProcess
from onnxopt_cli.run.runner import Plan, run
from onnxopt_cli.suites.catalogue import suites
from onnxopt_cli.workers.interruption import Interruption

DRIFTING = PLUGINS / "drifting.py"
# A backend that adds Adam's epsilon inside the square root.
WRONG_EPSILON = f"python:{PLUGINS / 'mistaken.py'}:InsideTheRoot"


def backend(name):
    return f"python:{DRIFTING}:{name}"


@pytest.fixture
def walk(workplace, onnxopt):
    """Return a function that runs a trajectory as two cases: in single steps, and in a loop."""

    def call(name, text, *options, isolation="none"):
        (workplace / "walk.yaml").write_text(text)
        options = ("--report", "json=report.json", "--isolation", isolation, *options)
        answer = onnxopt("run", "walk.yaml", "-b", name, "--no-explain", *options)
        results = json.loads((workplace / "report.json").read_text())["results"]
        return answer, {result["case"].rpartition("/")[2]: result for result in results}

    return call


@pytest.mark.parametrize("name", ["numpy", "onnxruntime"])
@pytest.mark.parametrize("operator", START)
@pytest.mark.parametrize(
    "gradient",
    [
        name if name in {"quadratic", "list"} else pytest.param(name, marks=pytest.mark.slow)
        for name in GRADIENTS
    ],
)
def test_steps_and_loop_agree_with_the_reference(walk, name, operator, gradient):
    answer, results = walk(name, trajectory_text(operator, GRADIENTS[gradient], 30))
    assert answer.code == 0
    assert {kind: result["outcome"] for kind, result in results.items()} == {
        "steps": "pass",
        "loop": "pass",
    }
    for result in results.values():
        assert [step for step, _ in result["curve"]] == list(range(1, 31))
        assert all(0 <= share <= 1 for _, share in result["curve"])
        assert result["lowered"] is (name == "onnxruntime")


def test_scalars_and_doubles_pass_as_steps_and_as_a_loop(walk):
    start = "R: {dtype: double, data: [0.1]}, T: [1], X: 1.5, V: {dtype: double, data: 0}, H: 0"
    for name in ("numpy", "onnxruntime"):
        text = trajectory_text("Adam", "{quadratic: {}}", 6, start=start)
        answer, _ = walk(name, text + "    record: [2, 6]\n", isolation="process")
        assert answer.code == 0


def test_drift_is_detected_in_the_first_step(walk):
    answer, results = walk(backend("Drifting"), trajectory_text("Adam", GRADIENTS["list"], 50))
    assert answer.code == 1
    assert re.search(
        r"first exceeded the tolerance in step 1, X_new\[\d\]", results["steps"]["message"]
    )


def test_step_and_element_that_first_exceed_the_tolerance_are_named(walk):
    text = trajectory_text("Adam", GRADIENTS["list"], 50)
    answer, results = walk(backend("LateDrifting"), text)
    assert "first exceeded the tolerance in step 37, X_new[1]" in results["steps"]["message"]
    assert "first exceeded the tolerance in step 37, X_new[1]" in answer.out
    shares = dict(results["steps"]["curve"])
    assert max(share for step, share in shares.items() if step < 37) <= 1 < shares[37]


def test_recorded_step_has_its_number_in_the_trajectory(walk):
    text = trajectory_text("Adam", GRADIENTS["list"], 50) + "    record: {every: 20}\n"
    answer, results = walk(backend("LateDrifting"), text)
    assert "first exceeded the tolerance in step 40, X_new[1]" in results["steps"]["message"]
    assert re.search(r"│ +step 40 \[1\] ", answer.out)


def test_misplaced_epsilon_is_detected(walk):
    text = trajectory_text("Adam", GRADIENTS["quadratic"], 10)
    _, results = walk(WRONG_EPSILON, text)
    assert results["steps"]["outcome"] == "fail"
    assert "first exceeded the tolerance in step 1, X_new" in results["steps"]["message"]


def test_step_that_returns_another_type_ends_the_trajectory(walk):
    _, results = walk(backend("WideAfterTwo"), trajectory_text("Adam", GRADIENTS["list"], 50))
    result = results["steps"]
    assert result["outcome"] == "fail"
    assert result["message"] == "step 3: X_new is float64[2], expected float32[2]"


def test_backend_without_loop_operator_is_unsupported_in_the_loop_only(walk):
    text = trajectory_text("Adam", GRADIENTS["list"], 5)
    _, results = walk(backend("WithoutLoop"), text)
    assert {kind: result["outcome"] for kind, result in results.items()} == {
        "steps": "pass",
        "loop": "unsupported",
    }


def test_backend_may_return_the_same_memory_in_every_step(walk):
    text = trajectory_text("Adam", GRADIENTS["quadratic"], 20)
    _, results = walk(backend("SameBuffer"), text, "-k", "steps")
    assert results["steps"]["outcome"] == "pass"


def test_first_inconclusive_step_is_named(walk):
    start = "R: 0.05, T: 0, X: [1.5, -0.7], V: [0, 0]"
    text = trajectory_text("Momentum", "{quadratic: {curvature: 30, center: 1}}", 60, start=start)
    answer, results = walk("numpy", text, "-v")
    message = results["steps"]["message"]
    assert re.fullmatch(r"the case is partly inconclusive from step \d+ on", message)
    assert message in answer.out
    assert results["steps"]["outputs"][0]["inconclusive"] > 0


def test_model_is_prepared_once_for_all_steps(workplace):
    (workplace / "walk.yaml").write_text(trajectory_text("Adam", GRADIENTS["list"], 12))
    from onnxopt_cli.suites.collect import collect

    specification = parse_specification("onnxruntime")
    executor = InProcess(specification, LoweringMode.AUTO, Limits(), Interruption(), None)
    prepared = []
    prepare = executor._host._backend.prepare
    executor._host._backend.prepare = lambda model: prepared.append(model) or prepare(model)
    cases = [case for case in collect(["walk.yaml"]).cases if case.id.endswith("/steps")]
    ((result,),) = run(Plan(cases, [executor]))
    assert result.outcome.value == "pass"
    # Two models are prepared: ONNX Runtime rejects the first one, and runs the lowered model.
    assert len(prepared) == 2
    assert result_from_json(json.loads(json.dumps(result_to_json(result)))).curve == result.curve


@pytest.mark.slow
def test_suite_detects_wrong_backends(onnxopt, workplace):
    adam = "trajectories/adam/quadratic/steps"
    for name, pattern in ((backend("Drifting"), "*/quadratic/steps"), (WRONG_EPSILON, adam)):
        options = ("-b", name, "--isolation", "none", "--no-explain")
        answer = onnxopt("run", "trajectories", "-k", pattern, *options)
        assert answer.code == 1
        assert " pass" not in answer.out.partition("operator")[0]
        assert "first exceeded the tolerance in step 1, X_new" in answer.out


@pytest.mark.slow
def test_suite_of_trajectories_can_be_written_as_models_with_loops(onnxopt, workplace, monkeypatch):
    suite = suites()["trajectories"]
    small = suite._replace(
        templates=lambda operator: (
            [template for template in suite.templates(operator) if template.name == "quadratic"]
            * (operator.name == "Adagrad")
        )
    )
    by_name = {**suites(), "trajectories": small}
    monkeypatch.setattr("onnxopt_cli.suites.catalogue.suites", lambda: by_name)
    assert onnxopt("generate", "trajectories", "--format", "onnx", "-o", "out").code == 0
    assert onnxopt("run", "out", "-b", "onnxruntime").code == 0


def test_trajectory_can_be_listed_and_shown(onnxopt, workplace):
    listed = onnxopt("list", "trajectories").out
    assert "trajectories/adam/quadratic/steps" in listed
    assert "trajectories/adam/quadratic/loop" in listed
    description = onnxopt("show", "trajectories/adam/quadratic").out
    assert "200 steps" in description
    assert "X_new becomes X" in description


def test_html_report_plots_error_over_tolerance_by_step(walk, workplace):
    text = trajectory_text("Adam", GRADIENTS["list"], 50)
    walk(backend("LateDrifting"), text, "--report", "html=page.html")
    page = (workplace / "page.html").read_text()
    assert re.search(r"Error / tolerance over steps: at most [^,]+, by s/walk/walk/steps\.", page)
    charts = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    curve = next(chart for chart in charts if "largest error / tolerance" in chart)
    assert re.search(r">1</text>|>1e\+0\d</text>", curve)
    assert "$" not in curve
    walk(
        "numpy",
        text.partition("  steps:")[0].replace("X:", "G: [1, 1], X:"),
        "--report",
        "html=page.html",
    )
    assert "over steps" not in (workplace / "page.html").read_text()
