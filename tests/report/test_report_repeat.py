"""The printed command that repeats a case runs no other case, and has the run's options."""

from __future__ import annotations

import json
import shlex
import shutil

import pytest
from places import REPOSITORY
from two_cases import CASE

from onnxopt_cli.core.record import result_from_json
from onnxopt_cli.report.view.result_view import repeat_command


@pytest.fixture
def run(onnxopt, workplace):
    """Return a function that runs a command, and returns results and options from its report."""

    def call(*arguments):
        answer = onnxopt(*arguments, "-q", "--report", "json=report.json")
        assert answer.code in (0, 1), answer.text
        report = json.loads((workplace / "report.json").read_text())
        return [result_from_json(result) for result in report["results"]], report["options"]

    return call


def repeated(run, result, *options):
    program, *arguments = shlex.split(repeat_command(result, {}))
    assert program == "onnxopt"
    return run(*arguments, *options)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "target",
    [
        str(REPOSITORY / "cases" / "spec"),
        "spec",
        "onnx-simple",
        str(REPOSITORY / "cases" / "onnx"),
    ],
)
def test_command_runs_the_same_case_alone(run, target):
    options = ("--isolation", "none")
    results, _ = run("run", target, *options)
    for result in results[:8]:
        (repeated_result,) = repeated(run, result, *options)
        assert (repeated_result.case, repeated_result.outcome) == (result.case, result.outcome)


def test_ids_that_contain_others_or_resemble_patterns_select_one_case(run, workplace):
    (source,) = (REPOSITORY / "cases" / "onnx").rglob("test_adam")
    for name in ("a", "a_2", "a[_]2", "a*"):
        shutil.copytree(source, workplace / "-mine" / f"test_{name}")
    results, _ = run("run", ".")
    assert len(results) == 4
    for result in results:
        assert [repeated_result.case for repeated_result in repeated(run, result)] == [result.case]


def test_directory_with_the_name_of_a_suite_is_run_again(run, workplace):
    (source,) = (REPOSITORY / "cases" / "onnx").rglob("test_adam")
    shutil.copytree(source, workplace / "spec")
    (result,), _ = run("run", "./spec")
    (repeated_result,) = repeated(run, result)
    assert (repeated_result.case, repeated_result.outcome) == (result.case, result.outcome)


def test_node_case_of_onnx_is_named_by_its_id(run):
    (result,), _ = run("run", "onnx-node", "-k", "onnx-node/test_acos/0")
    command = shlex.split(repeat_command(result, {}))
    assert command == ["onnxopt", "run", "onnx-node/test_acos/0", "-b", "numpy"]
    assert [repeated_result.case for repeated_result in repeated(run, result)] == [
        "onnx-node/test_acos/0"
    ]


def test_command_has_the_options_of_the_run(run, workplace):
    (workplace / "demo.yaml").write_text(CASE)
    arguments = ["--atol", "0.25", "--rtol", "1e-05", "--signed-zeros", "--lower", "always"]
    (result,), options = run("run", "demo.yaml", "-k", "plain", *arguments)
    command = shlex.split(repeat_command(result, options))
    assert command[2:4] == ["demo.yaml", "-k"]
    assert {*arguments} <= {*command}
    plain = shlex.split(repeat_command(result, run("run", "demo.yaml")[1]))
    assert plain == ["onnxopt", "run", "demo.yaml", "-k", "demo/demo/plain", "-b", "numpy"]
