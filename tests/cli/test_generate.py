"""The command ``onnxopt generate``, and the built-in suites."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import warnings
from collections import Counter

import numpy as np
import onnx
import pytest
from places import REPOSITORY

from onnxopt_cli.cases.onnx.directory import find_directories
from onnxopt_cli.cases.yaml.case_file import read_yaml_file
from onnxopt_cli.errors import UsageError
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.suites import catalogue
from onnxopt_cli.suites.catalogue import (
    NAMED_ONLY,
    distinct_files,
    suite_cases,
    suite_files,
    suites,
)

PUBLISHED = [
    "adam", "adam_multiple", "adagrad", "adagrad_multiple", "momentum", "nesterov_momentum",
    "momentum_multiple",
]  # fmt: skip


@pytest.fixture(scope="module")
def node_cases():
    """Return the published cases of the installed onnx, by name."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        return {case.name: case for case in collect_testcases()}


@pytest.mark.slow
def test_published_directories_equal_those_of_onnx(workplace, onnxopt, node_cases):
    assert onnxopt("generate", "spec", "--format", "onnx", "-o", "out").code == 0
    for name in PUBLISHED:
        cases, problems = find_directories(workplace / "out" / "spec" / f"test_{name}")
        content = cases[0].load()
        node_case = node_cases[f"test_{name}"]
        assert not problems
        assert content.model == node_case.model
        inputs, outputs = node_case.data_sets[0]
        for actual, expected in zip(content.inputs.values(), inputs, strict=True):
            assert actual.dtype == expected.dtype
            assert actual.tobytes() == np.asarray(expected).tobytes()
        for actual, expected in zip(content.stored.values(), outputs, strict=True):
            assert actual.dtype == expected.dtype
            # Only roundings differ: onnx computes in float32, but with attributes in double.
            np.testing.assert_allclose(actual, expected, rtol=4 * 2.0**-24, atol=0)


@pytest.mark.slow
def test_committed_files_are_up_to_date(onnxopt, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    assert onnxopt("generate", "--check", *(set(suites()) - set(NAMED_ONLY))).code == 0
    answer = onnxopt("generate", "--check", "spec", "--format", "onnx", "-o", "cases/onnx")
    assert answer.code == 0


def test_check_names_missing_and_different_files(workplace, onnxopt):
    assert onnxopt("generate", "spec").code == 0
    assert onnxopt("generate", "spec", "--check").code == 0
    (workplace / "cases/spec/adam.yaml").write_text("onnxopt: 1\n")
    (workplace / "cases/spec/adagrad.yaml").unlink()
    with (workplace / "cases/spec/momentum.yaml").open("a") as file:
        file.write("# longer\n")
    answer = onnxopt("generate", "spec", "--check")
    assert answer.code == 1
    assert "different: cases/spec/adam.yaml" in answer.out
    assert "missing: cases/spec/adagrad.yaml" in answer.out
    assert "different: cases/spec/momentum.yaml" in answer.out


@pytest.mark.skipif(sys.platform == "win32", reason="needs devices")
@pytest.mark.parametrize("arguments", [["--check"], ["--force"]])
def test_device_in_place_of_a_file_is_not_read(workplace, onnxopt, arguments):
    path = workplace / "cases/spec/adam.yaml"
    path.parent.mkdir(parents=True)
    # Other devices, such as /dev/zero, never end.
    path.symlink_to("/dev/null")
    answer = onnxopt("generate", "spec", *arguments)
    assert answer.code == 2
    assert "cases/spec/adam.yaml is not a regular file" in " ".join(answer.err.split())


def test_different_file_is_overwritten_only_with_force(workplace, onnxopt):
    path = workplace / "cases/spec/adam.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("mine\n")
    refused = onnxopt("generate", "spec")
    assert refused.code == 2
    assert "--force" in refused.err
    assert path.read_text() == "mine\n"
    assert not (path.parent / "momentum.yaml").exists(), "nothing is written when one is refused"
    assert onnxopt("generate", "spec", "--force").code == 0
    assert path.read_text() != "mine\n"
    assert "0 files" in onnxopt("generate", "spec").out


@pytest.mark.parametrize(
    "name",
    [
        "spec",
        pytest.param("conformance", marks=pytest.mark.slow),
        pytest.param("pruning", marks=pytest.mark.slow),
    ],
)
def test_suite_is_written_as_one_directory_per_case(name):
    cases, written = suite_cases(name), suite_files(name, "onnx")
    directories = {path.split("/")[1] for path in written.files if path.endswith("model.onnx")}
    assert len(directories) == written.cases == len(cases) - sum(written.left_out.values())
    assert len({directory.casefold() for directory in directories}) == len(directories)


@pytest.fixture
def use_part(monkeypatch):
    """Return a function that adds a suite ``some_NAME`` with every ``step``-th case of NAME.

    Writing and reading all cases of the large suites would take half a minute. Creating the case
    templates of all operators takes up to 10 s, so a call may name a single operator.
    """

    def add(name, step, only=None):
        suites = dict(catalogue.suites())
        suite = suites[name]

        def templates(operator):
            return suite.templates(operator) if only in (None, operator.name) else ()

        part = suite._replace(templates=lambda operator: [*templates(operator)][::step])
        suites[f"some_{name}"] = part
        monkeypatch.setattr(catalogue, "suites", lambda: suites)
        return f"some_{name}"

    return add


@pytest.mark.slow
def test_written_directories_contain_every_case_of_the_suite(workplace, onnxopt, use_part):
    names = use_part("trajectories", 12), use_part("pruning", 40)
    answer = onnxopt("generate", *names, "--format", "onnx", "-o", "out")
    assert answer.code == 0
    assert " refusals, which" in answer.out
    written = sum(map(int, re.findall(r"; (\d+) cases", answer.out)))
    left_out = sum(map(int, re.findall(r"left out: (\d+)", answer.out)))
    assert written + left_out == sum(len(suite_cases(name)) for name in names)
    assert f"{written} pass" in onnxopt("run", "out").out


@pytest.mark.parametrize("path", ["a/one.yaml", "A/One.yaml", "a/one.yaml".upper()])
def test_two_files_with_one_path_are_an_error(path):
    with pytest.raises(UsageError, match="two files have the path"):
        distinct_files([("a/one.yaml", b"1"), (path, b"2")])


@pytest.mark.parametrize(
    ("suite", "step", "operator"),
    [("spec", 1, None), ("conformance", 12, None), ("pruning", 8, None), ("trajectories", 1, None),
     ("pairwise", 40, "Momentum"), ("large", 4, "Adagrad")],
)  # fmt: skip
def test_suite_by_name_equals_its_files(workplace, onnxopt, use_part, suite, step, operator):
    name = use_part(suite, step, operator)
    assert onnxopt("generate", name).code == 0
    named = suite_cases(name)
    from_files = [
        case
        for path in sorted((workplace / "cases" / name).glob("*.yaml"))
        for case in read_yaml_file(path)[0]
    ]
    assert sorted(case.id for case in named) == sorted(case.id for case in from_files)
    for case, case_from_file in zip(
        sorted(named, key=lambda case: case.id),
        sorted(from_files, key=lambda case: case.id),
        strict=True,
    ):
        problem, problem_from_file = case.load(), case_from_file.load()
        assert problem.model == problem_from_file.model
        for value, value_from_file in zip(
            problem.inputs.values(), problem_from_file.inputs.values(), strict=True
        ):
            assert value.tobytes() == value_from_file.tobytes()


@pytest.mark.parametrize(
    ("suite", "domain"),
    [("conformance", "ai.onnx.preview.training"), ("pruning", "onnxopt.pruning")],
)
def test_conformance_suite_is_small_and_describes_each_case(suite, domain):
    cases = suite_cases(suite)
    # A run of 450 cases takes seconds. Adam has the most cases, 380, because it has many attributes
    # and states.
    assert max(Counter(case.operators for case in cases).values()) <= 450
    operators = {(operator.name,) for operator in registry().operators if operator.domain == domain}
    assert {case.operators for case in cases} == operators
    assert all(re.search("detects|must|may|step", case.about) for case in cases)
    size = sum(path.stat().st_size for path in (REPOSITORY / "cases" / suite).iterdir())
    assert size <= 2**21


@pytest.mark.slow
def test_all_node_cases_are_written_in_the_standard_layout(workplace, onnxopt, node_cases):
    assert onnxopt("generate", "onnx-node", "-o", "out").code == 0
    folders = sorted(path.name for path in (workplace / "out/node").iterdir())
    assert folders == sorted(node_cases)
    model = onnx.load(workplace / "out/node/test_abs/model.onnx")
    assert model == node_cases["test_abs"].model
    assert (workplace / "out/node/test_abs/test_data_set_0/input_0.pb").is_file()
    assert onnxopt("generate", "onnx-node", "-o", "out", "--check").code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "spce"], "cannot generate 'spce'"),
        (["generate", "onnx-node", "--format", "yaml"], "only be written as ONNX test directories"),
        (["generate", "--format", "xml"], "'xml'"),
    ],
)
def test_wrong_usage_is_explained(workplace, onnxopt, arguments, message):
    answer = onnxopt(*arguments)
    assert answer.code == 2
    assert message in answer.err


def test_cases_of_one_operator_are_made_without_those_of_others(onnxopt, workplace, monkeypatch):
    pairwise = suites()["pairwise"]
    made = []

    def templates(operator):
        made.append(operator.name)
        return pairwise.templates(operator)

    by_name = {**suites(), "pairwise": pairwise._replace(templates=templates)}
    monkeypatch.setattr("onnxopt_cli.suites.catalogue.suites", lambda: by_name)
    assert "pair_3" in onnxopt("show", "pairwise/momentum/pair_3").out
    pinned = f"pairwise@{pairwise.version}/momentum"
    assert "pairwise/momentum/pair_7" in onnxopt("list", pinned).out
    assert set(made) == {"Momentum"}
