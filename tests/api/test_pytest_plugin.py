"""The pytest plugin, which makes each case a test."""

from __future__ import annotations

import fnmatch
import re

import pytest
from onnx_directories import FLOAT, ONE_TWO, identity, make_directory, tensor
from places import PLUGINS, REPOSITORY

# Imported here, because pytester removes the modules that a test imports, and some of these modules
# cannot be imported twice.
import onnxopt_cli.analysis.explanation.explain  # noqa: F401

pytest_plugins = "pytester"

WRONG = f"python:{PLUGINS / 'mistaken.py'}:InsideTheRoot"
CASE = "spec/adam/adam_multiple"
ADAM = ("--onnxopt", CASE, "-m", "onnxopt")


@pytest.fixture(autouse=True)
def user_test(pytester):
    """Write a test file of a user, whose test runs in addition to the cases."""
    pytester.makepyfile(
        "import sys\ndef test_mine():\n    assert 'onnxopt_cli._api' not in sys.modules"
    )


def test_plugin_is_inactive_without_its_option(pytester):
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_example_of_the_document_checks_each_case(pytester):
    text = (REPOSITORY / "docs" / "python.md").read_text()
    example = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[1]
    assert example.count("\n") <= 10
    pytester.makepyfile(test_mine=example.replace("onnxruntime", "numpy"))
    pytester.runpytest("test_mine.py").assert_outcomes(passed=7)


def test_each_case_is_a_test_that_pytest_can_select(pytester):
    result = pytester.runpytest("--onnxopt", "spec", "-m", "onnxopt", "-v")
    result.assert_outcomes(passed=7, deselected=1)
    result.stdout.fnmatch_lines(["onnxopt::spec/adam/adam PASSED*"])
    pytester.runpytest("--onnxopt", "spec", "-k", "Adam").assert_outcomes(passed=2, deselected=6)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_failures_show_differences_and_share_an_explanation(pytester, processes):
    run = pytester.runpytest
    if processes:
        pytest.importorskip("xdist")
        run = pytester.runpytest_subprocess
    ids = ["conformance/adam/two_tensors", "conformance/adam/T_1"]
    targets = [word for name in ids for word in ("--onnxopt", name)]
    arguments = (*targets, "--onnxopt-backend", WRONG, "-m", "onnxopt", *processes)
    result = run(*arguments)
    result.assert_outcomes(failed=2, deselected=0 if processes else 1)
    result.stdout.fnmatch_lines_random([f"{name} on {WRONG}: *" for name in ids])
    result.stdout.fnmatch_lines(
        [
            "X*_new*off*",
            "*expected*actual*",
            "*causes of onnxopt failures*",
            "*inside the square root*2 of 2 failing*",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*raise NotConforming*")


def test_name_of_a_case_contains_no_command_to_a_ci_server(pytester):
    folder = pytester.path / "##vso[task.complete]x"
    make_directory(folder, identity({"x": FLOAT}), [tensor(ONE_TWO)], [tensor(-ONE_TWO)])
    result = pytester.runpytest("--onnxopt", str(folder), "-m", "onnxopt", "-v", "-rA")
    result.assert_outcomes(failed=1, deselected=1)
    result.stdout.fnmatch_lines(["*task.complete*on numpy: *"])
    result.stdout.no_fnmatch_line("*##vso*")


def test_ini_file_may_name_the_backend(pytester):
    pytester.makeini(f"[pytest]\nonnxopt_backend = {WRONG}\n")
    pytester.runpytest(*ADAM).assert_outcomes(failed=1, deselected=1)
    numpy_only = pytester.runpytest(*ADAM, "--onnxopt-backend", "numpy")
    numpy_only.assert_outcomes(passed=1, deselected=1)


def test_each_backend_has_separate_tests(pytester):
    backends = ("--onnxopt-backend", "numpy", "--onnxopt-backend", WRONG)
    result = pytester.runpytest(*ADAM, *backends)
    result.assert_outcomes(passed=1, failed=1, deselected=1)
    # A backend is tested once, even if both addopts and the command line name it.
    pytester.runpytest(*ADAM, *backends[:2] * 2).assert_outcomes(passed=1, deselected=1)


def test_backend_may_be_a_name_from_the_configuration_file(pytester):
    (pytester.path / "onnxopt.toml").write_text(f'[backends.mine]\nbackend = "{WRONG}"\n')
    result = pytester.runpytest(*ADAM, "--onnxopt-backend", "mine")
    result.assert_outcomes(failed=1, deselected=1)
    result.stdout.fnmatch_lines([f"{CASE} on mine: *"])
    result = pytester.runpytest(*ADAM, "--onnxopt-backend", "mime")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*unknown backend 'mime'; did you mean mine?"])


def test_expected_failure_is_xfailed_and_may_not_pass(pytester):
    pytester.maketxtfile(
        expected="onnxopt-expect: 1\nexpect:\n"
        "  - {case: spec/adam/adam_multiple, outcome: fail, reason: known since May}\n"
    )
    expect = ("--onnxopt-expect", "expected.txt", "-rx")
    result = pytester.runpytest(*ADAM, *expect, "--onnxopt-backend", WRONG)
    result.assert_outcomes(xfailed=1, deselected=1)
    result.stdout.fnmatch_lines(["*known since May*"])
    pytester.runpytest(*ADAM, *expect).assert_outcomes(failed=1, deselected=1)


def test_case_of_an_excluded_capability_is_skipped(pytester):
    text = "onnxopt-expect: 1\nwithout:\n  double: none here\n"
    pytester.maketxtfile(without=text)
    words = ("--onnxopt", "conformance/adam/double", "--onnxopt", CASE, "-m", "onnxopt", "-rs")
    result = pytester.runpytest(*words, "--onnxopt-expect", "without.txt")
    result.assert_outcomes(passed=1, skipped=1, deselected=1)
    result.stdout.fnmatch_lines(["*without double: none here*"])


@pytest.mark.slow
@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_capabilities_are_markers_with_and_without_xdist(pytester, processes):
    run = pytester.runpytest
    if processes:
        pytest.importorskip("xdist")
        run = pytester.runpytest_subprocess
    ids = [f"conformance/adam/{name}" for name in ("two_tensors", "double", "T_0")]
    targets = [word for name in ids for word in ("--onnxopt", name)]
    arguments = (*targets, "--strict-markers", "-v", *processes)
    result = run(*arguments, "-m", "many-tensors or double")
    result.assert_outcomes(passed=2, deselected=0 if processes else 2)
    text = result.stdout.str()
    assert [name in text for name in ids] == [True, True, False]


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (["--onnxopt", "nowhere"], "*no such path, suite or case*"),
        (
            ["--onnxopt", "spec", "--onnxopt-backend", "unknown"],
            "*unknown backend*the backends are*",
        ),
        (
            ["--onnxopt", CASE, "--onnxopt-backend", "a=numpy", "--onnxopt-backend", f"a={WRONG}"],
            "*two backends have the name a; give each a different name*",
        ),
        (["--onnxopt", "spec", "--onnxopt-expect", "none.yaml"], "*none.yaml*"),
        (["--onnxopt", "spec", "--onnxopt-expect", "pin.txt"], "*spec@99 is required*"),
    ],
)
def test_misspelt_option_ends_the_session(pytester, arguments, pattern):
    pytester.maketxtfile(pin="onnxopt-expect: 1\nsuites: [spec@99]\n")
    result = pytester.runpytest(*arguments, "-m", "onnxopt")
    assert result.ret not in {0, 1}
    text = [*result.outlines, *result.errlines]
    assert fnmatch.filter(text, pattern), text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        # The xdist controller finds wrong targets; only a worker finds that the file is missing.
        (("--onnxopt", "nowhere"), "*no such path, suite or case*"),
        (("--onnxopt", CASE, "--onnxopt-backend", "python:no.py:B"), "*no.py*"),
    ],
)
def test_misspelt_option_is_reported_by_xdist(pytester, arguments, pattern):
    pytest.importorskip("xdist")
    result = pytester.runpytest_subprocess(*arguments, "-n", "1")
    assert result.ret in {1, 4}
    text = [*result.outlines, *result.errlines]
    assert fnmatch.filter(text, pattern), text
    assert not fnmatch.filter(text, "*INTERNALERROR*")
