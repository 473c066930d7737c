"""The command ``onnxopt run``."""

from __future__ import annotations

import json
import re
import shutil
from collections import defaultdict
from importlib.util import find_spec

import numpy as np
import onnx
import pytest
from commands import run_command
from onnx import TensorProto
from onnx_directories import identity, make_directory, tensor, tensor_type
from places import REPOSITORY
from two_cases import BACKEND, CASE

from onnxopt_cli.cases.onnx.node_model import formula_model, tensor_info
from onnxopt_cli.operators.registry import registry


@pytest.fixture
def onnxopt(onnxopt):
    """Return a function that calls a command; runs are in this process and without explanations."""

    def call(command, *arguments):
        options = ("--isolation", "none", "--no-explain") * (command == "run")
        return onnxopt(command, *options, *arguments)

    return call


@pytest.fixture
def demo(workplace):
    (workplace / "demo.yaml").write_text(CASE)
    (workplace / "vendor.py").write_text(BACKEND)
    return workplace


def test_correct_backend_conforms(demo, onnxopt):
    answer = onnxopt("run", "demo.yaml", "-b", "python:vendor.py:Right")
    assert answer.code == 0
    assert "demo/demo/plain" not in answer.out
    assert "conforms: 2 pass" in answer.out
    assert answer.err == ""
    assert "demo/demo/plain" in onnxopt("run", "demo.yaml", "-v").out


def test_wrong_value_is_shown_with_its_index_and_error(demo, onnxopt):
    answer = onnxopt("run", "demo.yaml", "-k", "plain", "-b", "python:vendor.py:Off")
    assert answer.code == 1
    assert "2 of 2 off" in answer.out
    assert "[0]" in answer.out
    assert "does not conform: 1 fail" in answer.out
    assert "onnxopt run demo.yaml -k demo/demo/plain -b python:vendor.py:Off" in " ".join(
        answer.out.replace("│", " ").split()
    )


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ("Double", "is float64[2]"),
        ("Short", "is missing"),
        ("Scribbler", "inputs changed: X"),
        ("Raises", r"ValueError: no \x1b[31m luck [/x]"),
        ("Exits", "SystemExit: 0"),
    ],
)
def test_fault_of_a_backend_is_named(demo, onnxopt, backend, message):
    answer = onnxopt("run", "demo.yaml", "-k", "plain", "-b", f"python:vendor.py:{backend}")
    assert answer.code == 1
    assert message in answer.out


def test_backend_without_the_operator_runs_primitive_operators(demo, onnxopt):
    pytest.importorskip("onnxruntime")
    lowered = onnxopt("run", "demo.yaml", "-b", "onnxruntime", "-v")
    assert lowered.code == 0
    assert "pass (lowered)" in lowered.out
    assert "2 of the cases lowered" in lowered.out
    never = onnxopt("run", "demo.yaml", "-b", "onnxruntime", "--lower", "never")
    assert never.code == 1
    assert "2 unsupported" in never.out
    assert "is not a registered function/op" in " ".join(never.out.split())


def test_backend_without_primitive_operators_is_unsupported(demo, onnxopt):
    answer = onnxopt("run", "demo.yaml", "-b", "python:vendor.py:Unable")
    assert answer.code == 1
    assert "2 unsupported" in answer.out
    assert "Momentum is not known here" in " ".join(answer.out.split())


def test_each_backend_has_a_column(demo, onnxopt):
    answer = onnxopt("run", "demo.yaml", "-b", "numpy", "-b", "python:vendor.py:Off", "-v")
    heading, first = answer.out.splitlines()[1:3]
    assert heading.split() == ["case", "numpy", "python:vendor.py:Off"]
    assert first.split() == ["demo/demo/plain", "pass", "FAIL"]
    assert answer.code == 1


def test_rejection_case_with_a_valid_node_is_invalid(demo, onnxopt):
    text = (demo / "demo.yaml").read_text()
    (demo / "demo.yaml").write_text(
        text.replace("  - name: plain\n", "  - name: plain\n    rejects: true\n")
    )
    answer = onnxopt("run", "demo.yaml", "--no-explain")
    assert answer.code == 2
    assert "the case is wrong, not the backend" in answer.out.replace("\n", " ")


@pytest.mark.parametrize(
    ("shape", "dtype", "outcome"),
    [((2,), np.float32, "invalid"), ((3,), np.float32, "pass"), ((2,), np.float64, "pass")],
)
def test_rejection_of_wrong_declared_types_is_correct(workplace, onnxopt, shape, dtype, outcome):
    """The node is valid, but ONNX Runtime rejects the types that the graph declares."""
    pytest.importorskip("onnxruntime")
    momentum = registry().named("Momentum")
    inputs = [np.float32(0.1), np.int64(1), *np.ones((3, 2), np.float32)]
    attributes = {"alpha": 0.9, "beta": 1.0, "mode": "standard", "norm_coefficient": 0.0}
    model = formula_model(momentum, attributes, list(map(np.asarray, inputs)), graph_name="one")
    for declared in model.graph.input[2:]:
        declared.CopyFrom(tensor_info(declared.name, inputs[2].dtype, shape))
    for output in model.graph.output:
        output.CopyFrom(tensor_info(output.name, np.dtype(dtype), None))
    onnx.save(model, "one.onnx")
    text = "onnxopt: 1\nsuite: one\ncases:\n  - name: one\n    model: one.onnx\n    rejects: true\n"
    values = "R: 0.1, T: 1, X: [1.0, 1.0], G: [1.0, 1.0], V: [1.0, 1.0]"
    (workplace / "one.yaml").write_text(f"{text}    inputs: {{{values}}}\n")
    onnxopt("run", "one.yaml", "-b", "onnxruntime", "--report", "json=out.json")
    (result,) = json.loads((workplace / "out.json").read_text())["results"]
    assert result["outcome"] == outcome, result["message"]


def test_case_whose_stored_outputs_contradict_the_formula_is_invalid(demo, onnxopt):
    wrong = "    outputs: {X_new: [0.9, 2.0], V_new: [0.725, -0.5]}\n"
    (demo / "wrong.yaml").write_text(CASE.split("  - name: nesterov", maxsplit=1)[0] + wrong)
    answer = onnxopt("run", "wrong.yaml", "-b", "python:vendor.py:Right")
    assert answer.code == 2
    assert "the case is wrong, not" in answer.out
    assert "1 invalid" in answer.out


RAISES = "class Raises:\n    def run(self, model, inputs):\n        raise KeyError('x')\n"


def test_error_on_an_invalid_model_makes_the_case_invalid(workplace, onnxopt):
    value = tensor(np.float32([1, 2]))
    model = identity({"x": tensor_type()})
    for name, input_name in (("right", "x"), ("lost", "nowhere")):
        model.graph.node[0].input[0] = input_name
        make_directory(workplace / "some" / name, model, [value], [value])
    (workplace / "vendor.py").write_text(RAISES)
    answer = onnxopt("run", "some", "-b", "python:vendor.py:Raises")
    assert answer.code == 2
    text = " ".join(answer.out.replace("│", " ").split())
    assert "does not pass onnx's check: Nodes in a graph must be topologically sorted" in text
    assert "does not conform: 1 error, 1 invalid" in text


def test_case_with_types_outside_the_operators_schema_is_invalid(workplace, onnxopt):
    model = identity({"x": tensor_type(TensorProto.INT32)})
    model.graph.node[0].op_type, model.opset_import[0].version = "Relu", 13
    value = tensor(np.int32([1, 2]))
    make_directory(workplace / "some" / "integers", model, [value], [value])
    (workplace / "vendor.py").write_text(RAISES)
    answer = onnxopt("run", "some", "-b", "python:vendor.py:Raises")
    assert answer.code == 2
    text = " ".join(answer.out.split())
    assert "X typestr: T, has unsupported type: tensor(int32)" in text
    assert "was not judged in all cases: 1 invalid" in text


def test_invalid_case_does_not_stop_the_other_cases(demo, onnxopt):
    broken = CASE.replace("name: nesterov", "nmae: nesterov")
    (demo / "demo.yaml").write_text(broken)
    answer = onnxopt("run", "demo.yaml")
    assert answer.code == 2
    assert "demo.yaml:10" in answer.err
    assert "conforms: 1 pass" in answer.out


@pytest.mark.parametrize(
    ("arguments", "selected"),
    [
        (["-k", "plain"], ["plain"]),
        (["-k", "demo/*/nest*"], ["nesterov"]),
        (["-k", "demo/*/nest*", "-k", "plain"], ["plain", "nesterov"]),
        (["-k", "demo/demo/plain", "-k", "plain"], ["plain"]),
        (["-k", "nothing", "-k", "NEST"], ["nesterov"]),
        (["-k", "nest", "-k", "plain", "--tag", "ordinary"], ["plain"]),
        (["--operator", "momentum", "--operator", "Momentum"], ["plain", "nesterov"]),
        (["--tag", "ordinary"], ["plain"]),
        (["--operator", "momentum"], ["plain", "nesterov"]),
    ],
)
def test_cases_are_selected_by_id_tag_and_operator(demo, onnxopt, arguments, selected):
    answer = onnxopt("run", "demo.yaml", *arguments, "-v")
    assert answer.code == 0
    names = re.findall(r"^demo/demo/(\w+)", answer.out, re.MULTILINE)
    assert names == selected


def test_cases_of_any_of_the_operators_are_selected(onnxopt):
    options = ["--operator", "adagrad", "--operator", "Adam"]
    names = onnxopt("list", "spec", *options).out.splitlines()
    assert [name.split("/")[1] for name in names] == ["adagrad"] * 2 + ["adam"] * 2
    # Another filter may exclude all cases of one of the operators.
    assert onnxopt("list", "spec", "-k", "adam", *options).out.splitlines() == names[2:]


def test_warning_names_a_pattern_that_matches_no_case(demo, onnxopt):
    for command in ("run", "list"):
        answer = onnxopt(command, "demo.yaml", "-k", "plain", "-k", "nesterow")
        assert answer.code == 0
        assert ("1 of 2 cases" if command == "run" else "demo/demo/plain") in answer.out
        assert "no case's id matches -k nesterow" in answer.err
        assert "plain" not in answer.err


def test_error_without_selected_cases_names_the_pattern_that_matches_no_case(demo, onnxopt):
    for command in ("run", "list"):
        answer = onnxopt(command, "demo.yaml", "-k", "nesterow")
        assert answer.code == 5
        assert (
            "error: no case is selected, of 2 found\n  no case's id matches -k nest" in answer.err
        )
        assert answer.err.count("nesterow") == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "demo.yaml", "-k", "nothing"], 5, "no case is selected, of 2 found"),
        (["run", "demo.yml"], 2, "demo.yml"),
        (["run", "onnx-nod"], 2, "did you mean onnx-node?"),
        (["run", "demo.yaml", "--tag", "ordinal"], 2, "did you mean ordinary?"),
        (["run", "demo.yaml", "-b", "onnxruntme"], 2, "onnxruntime"),
        (["run", "demo.yaml", "-b", "python:nowhere.py:X"], 4, "nowhere.py"),
        (["run", "demo.yaml", "--rtol", "-1"], 2, "not in the range x>=0"),
        (["run", "demo.yaml", "--rtol", "nan"], 2, "finite"),
        (["run", "demo.yaml", "--ulp", "3", "--rtol", "1"], 2, "exclude each other"),
        (["run", "demo.yaml", "--report", "pdf=x"], 2, "FORMAT is json"),
        (["run", "vendor.py"], 2, "is not a case file"),
        (["rnu"], 2, "Did you mean run?"),
        (["run", "--quite"], 2, "--quiet"),
    ],
)
def test_wrong_usage_is_explained(demo, onnxopt, arguments, code, message):
    answer = onnxopt(*arguments)
    assert (answer.code, message in answer.err) == (code, True), answer.err


def test_json_report_contains_every_verdict_and_number(demo, onnxopt):
    answer = onnxopt(
        "run", "demo.yaml", "-b", "python:vendor.py:Off", "--report", "json=out.json", "-q"
    )
    report = json.loads((demo / "out.json").read_text())
    assert report["schema"] == "onnxopt.report/1"
    assert report["exit_code"] == answer.code == 1
    assert report["summary"] == {"fail": 2}
    output = report["results"][0]["outputs"][0]
    assert (output["name"], output["mismatches"]) == ("X_new", 2)
    assert output["tolerance"]["from"] == "derived"
    assert output["worst"][0]["absolute"] == pytest.approx(0.25, rel=1e-6)


def test_command_line_tolerance_overrides_all_others(demo, onnxopt):
    wide = ["run", "demo.yaml", "-b", "python:vendor.py:Off", "--atol", "0.3"]
    assert onnxopt(*wide).code == 0
    assert onnxopt(*wide[:-1], "0.2").code == 1
    assert "command line" in onnxopt(*wide[:-1], "0.2").out


def test_max_fail_stops_the_run_and_counts_cases_not_run(demo, onnxopt):
    answer = onnxopt("run", "demo.yaml", "-b", "python:vendor.py:Off", "-x")
    assert answer.code == 1
    assert "1 fail, 1 not-run" in answer.out


def test_run_stops_at_an_unsupported_case_as_the_help_states(demo, onnxopt):
    unable = ("-b", "python:vendor.py:Unable", "--lower", "never")
    assert "1 unsupported, 1 not-run" in onnxopt("run", "demo.yaml", *unable, "-x").out
    text = " ".join(onnxopt("run", "--help").out.split())
    assert "-x Stop after the first case that does not conform." in text
    assert "Stop after this number of cases that do not conform." in text


def test_verbose_shows_every_output(demo, onnxopt):
    answer = onnxopt("run", "demo.yaml", "-v")
    assert answer.out.count("  X_new  float32[2]") == answer.out.count("  V_new  float32[2]") == 2
    assert "error / tolerance" in answer.out


def test_quiet_shows_only_failures_and_the_summary(demo, onnxopt):
    answer = onnxopt("run", "demo.yaml", "-q")
    assert "demo/demo/plain" not in answer.out
    assert "conforms" in answer.out
    answer = onnxopt("run", "demo.yaml", "-q", "-b", "python:vendor.py:Off")
    assert answer.out.splitlines()[:3] == ["FAIL demo/demo/plain", "FAIL demo/demo/nesterov", ""]
    assert "X_new" not in answer.out


def test_quiet_names_the_backend_if_there_are_several(demo, onnxopt):
    backends = ["-b", "numpy", "-b", "python:vendor.py:Unable", "-b", "python:vendor.py:Off"]
    answer = onnxopt("run", "demo.yaml", "-k", "plain", "-q", *backends, "--lower", "never")
    assert answer.out.splitlines()[:3] == [
        "unsupported demo/demo/plain on python:vendor.py:Unable",
        "FAIL demo/demo/plain on python:vendor.py:Off",
        "",
    ]


def test_simplest_failure_of_a_cause_is_shown_and_verbose_shows_all(demo, onnxopt):
    head, case = CASE.split("  - name: nesterov", maxsplit=1)[0].split("  - name: plain")
    cases = "".join(f"  - name: plain{number}{case}" for number in range(25))
    (demo / "demo.yaml").write_text(head + cases)
    failing = ["run", "demo.yaml", "-b", "python:vendor.py:Off"]
    brief, verbose = onnxopt(*failing).out, onnxopt(*failing, "-v").out
    assert (brief.count("─ FAIL "), verbose.count("─ FAIL ")) == (1, 25)
    assert "25 failures on python:vendor.py:Off, by cause:" in brief
    assert "the simplest of 25" in brief
    assert "-v shows all failures, -q names them" in brief
    assert "-v shows" not in verbose
    assert onnxopt(*failing, "-q").out.count("FAIL ") == 25


def test_first_and_last_line_of_a_stack_trace_are_shown(demo, onnxopt):
    failing = ["run", "demo.yaml", "-k", "plain", "-b", "python:vendor.py:Traces"]
    answer = onnxopt(*failing, "--report", "json=out.json")
    lines = [line.strip("│ ") for line in answer.out.splitlines()]
    start = lines.index("RuntimeError: cannot compile")
    assert lines[start + 1 : start + 3] == [
        "... 900 lines left out; -v shows them ...",
        "InternalError: the cause",
    ]
    assert "frame 899" in onnxopt(*failing, "-v").out
    message = json.loads((demo / "out.json").read_text())["results"][0]["message"]
    assert message.splitlines()[500] == "  at frame 499"
    assert message.endswith("\nInternalError: the cause")


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ("Off", "X_new: 2 of 2 elements are off, most at [{}]: {} instead of {}"),
        ("Double", "X_new is float64[2], expected float32[2]; V_new is float64[2], expected"),
        ("Short", "V_new is missing, expected float32[2]"),
        ("Scribbler", "inputs changed: X"),
    ],
)
def test_json_report_describes_a_failure_in_a_sentence(demo, onnxopt, backend, message):
    name = f"python:vendor.py:{backend}"
    failing = ["run", "demo.yaml", "-k", "plain", "-b", name]
    answer = onnxopt(*failing, "--report", "json=out.json", "--log", "run.jsonl")
    (result,) = json.loads((demo / "out.json").read_text())["results"]
    if result["outputs"][0]["worst"]:
        worst = result["outputs"][0]["worst"][0]
        numbers = (str(np.float32(worst[side])) for side in ("actual", "expected"))
        message = message.format(*worst["index"], *numbers)
    assert result["message"].startswith(message)
    # A panel shows wrong values as rows, so it omits messages about wrong values.
    assert (message in answer.out) == (backend == "Scribbler")
    assert onnxopt("report", "render", "run.jsonl", "--report", "markdown=log.md").code == 0
    assert onnxopt("report", "render", "out.json", "--report", "markdown=json.md").code == 0
    text = (demo / "log.md").read_text()
    assert text == (demo / "json.md").read_text()
    # The headline contains the message. The list of causes and the details repeat every message,
    # except messages about wrong values.
    assert text.count(message[:40]) == (3 if backend == "Scribbler" else 1)


def test_id_of_a_case_does_not_depend_on_the_spelling_of_its_path(demo, onnxopt, monkeypatch):
    (demo / "inner").mkdir()
    monkeypatch.chdir(demo / "inner")
    for path in ("../demo.yaml", str(demo / "demo.yaml"), "../inner/../demo.yaml"):
        assert onnxopt("list", path).out.split()[0] == "demo/demo/plain"


@pytest.fixture(scope="module")
def committed(tmp_path_factory):
    """Return the results of the committed cases by backend."""
    report = tmp_path_factory.mktemp("committed") / "report.json"
    results = defaultdict(list)
    names = ["numpy", *(["onnxruntime"] if find_spec("onnxruntime") else [])]
    runs = [(0, "cases/", *(word for name in names for word in ("-b", name)))]
    # A quarter of Adam's cases suffices to show the defects of onnx's reference.
    runs.append((1, "cases/conformance/adam.yaml", "--shard", "1/4", "-b", "onnx-reference"))
    for code, *arguments in runs:
        options = ("-q", "--no-explain", "--isolation", "none", "--report", f"json={report}")
        done = run_command("run", *arguments, *options, cwd=REPOSITORY)
        assert done.returncode == code, done.stderr
        for result in json.loads(report.read_text())["results"]:
            results[result["backend"]].append(result)
    return results


@pytest.mark.slow
def test_committed_cases_pass_on_numpy_and_no_trajectory_is_inconclusive(committed):
    results = committed["numpy"]
    assert {result["outcome"] for result in results} == {"pass"}
    inconclusive = {
        result["case"] for result in results for diff in result["outputs"] if diff["inconclusive"]
    }
    assert not any(case.startswith("trajectories") for case in inconclusive)


def test_folder_of_cases_is_the_default_target(workplace, onnxopt):
    shutil.copytree(REPOSITORY / "cases" / "spec", workplace / "cases")
    answer = onnxopt("run")
    assert answer.code == 0
    assert re.match(r"\d+ cases from cases/ on numpy\n", answer.out)


@pytest.mark.slow
def test_committed_cases_conform_on_onnx_runtime(committed):
    if "onnxruntime" not in committed:
        pytest.skip("needs ONNX Runtime")
    outcomes = {result["outcome"] for result in committed["onnxruntime"]}
    assert outcomes == {"pass", "skip"}


@pytest.mark.slow
def test_committed_cases_detect_the_defects_of_the_reference_of_onnx(committed):
    messages = " ".join(result["message"] for result in committed["onnx-reference"])
    assert "is float64[" in messages  # a float32 X is returned as double for T > 0
    assert "is float32[" in messages  # several double tensors are returned as float32


PAIR = """\
onnxopt: 1
suite: pair
operator: Momentum
cases:
  - name: second
    attributes: {alpha: 0.9, beta: 1.0, mode: standard, norm_coefficient: 0.0}
    inputs: {R: 0.1, T: 1, X1: [1.0], G1: [0.5], V1: [0.25], X2: [1.0], G2: [[1.0]], V2: [0.25]}
    rejects: true
"""
CHECKS_ORDER = """\
class Backend:
    def run(self, model, inputs):
        assert [*inputs] == "R T X1 X2 G1 G2 V1 V2".split()
        if inputs["G2"].ndim > 1:
            raise ValueError("G2")
        return [inputs[name] * 2 for name in ("X1", "X2", "V1", "V2")]
"""


def test_inputs_of_a_rejection_case_are_in_the_order_of_the_node(workplace, onnxopt):
    (workplace / "pair.yaml").write_text(PAIR)
    (workplace / "vendor.py").write_text(CHECKS_ORDER)
    answer = onnxopt("run", "pair.yaml", "-b", "python:vendor.py:Backend", "-b", "numpy")
    assert answer.code == 0, answer.text


def test_error_names_the_line_of_the_backend_that_raised_it(demo, onnxopt):
    (demo / "vendor.py").write_text(RAISES.replace("KeyError('x')", "np.zeros('x')"))
    (demo / "vendor.py").write_text("import numpy as np\n" + (demo / "vendor.py").read_text())
    onnxopt("run", "demo.yaml", "-b", "python:vendor.py:Raises", "--report", "json=out.json")
    results = json.loads((demo / "out.json").read_text())["results"]
    # NumPy raised the error. The line shown is the line of the backend that called NumPy.
    assert {result["printed"] for result in results} == {f"raised at {demo}/vendor.py:4"}


NO_TRACEBACK = """\
class NoTraceback(Exception):
    __traceback__ = property(lambda self: 1 / 0, lambda self, value: None)


class Backend:
    def run(self, model, inputs):
        raise NoTraceback("no")
"""


def test_error_without_a_readable_traceback_is_an_error(demo, onnxopt):
    (demo / "vendor.py").write_text(NO_TRACEBACK)
    onnxopt("run", "demo.yaml", "-b", "python:vendor.py:Backend", "--report", "json=out.json")
    results = json.loads((demo / "out.json").read_text())["results"]
    assert {(result["outcome"], result["printed"]) for result in results} == {
        ("error", f"raised at {demo}/vendor.py:7")
    }
