"""``onnxopt generate`` and the suites that come with onnxopt."""

from __future__ import annotations

import contextlib
import io
import re
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
def onnx_s_own():
    """The published cases as the installed onnx has them."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        return {case.name: case for case in collect_testcases()}


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_directories_equal_onnx_s_own(workplace, onnxopt, onnx_s_own, name):
    assert onnxopt("generate", "spec", "--format", "onnx", "-o", "out").code == 0
    cases, problems = find_directories(workplace / "out" / "spec" / f"test_{name}")
    content = cases[0].load()
    theirs = onnx_s_own[f"test_{name}"]
    assert not problems
    assert content.model == theirs.model
    inputs, outputs = theirs.data_sets[0]
    for mine, other in zip(content.inputs.values(), inputs, strict=True):
        assert mine.dtype == other.dtype
        assert mine.tobytes() == np.asarray(other).tobytes()
    for mine, other in zip(content.stored.values(), outputs, strict=True):
        assert mine.dtype == other.dtype
        # onnx computes in float32 from attributes in double; that is all that may differ.
        np.testing.assert_allclose(mine, other, rtol=4 * 2.0**-24, atol=0)


def test_the_committed_files_are_what_is_generated(onnxopt, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    assert onnxopt("generate", "--check", *(set(suites()) - set(NAMED_ONLY))).code == 0
    answer = onnxopt("generate", "--check", "spec", "--format", "onnx", "-o", "cases/onnx")
    assert answer.code == 0


def test_check_names_what_is_missing_and_what_differs(workplace, onnxopt):
    assert onnxopt("generate", "spec").code == 0
    assert onnxopt("generate", "spec", "--check").code == 0
    (workplace / "cases/spec/adam.yaml").write_text("onnxopt: 1\n")
    (workplace / "cases/spec/adagrad.yaml").unlink()
    answer = onnxopt("generate", "spec", "--check")
    assert answer.code == 1
    assert "different: cases/spec/adam.yaml" in answer.out
    assert "missing: cases/spec/adagrad.yaml" in answer.out


def test_a_file_that_differs_is_never_overwritten_unasked(workplace, onnxopt):
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
    "name", ["spec", "conformance", "pruning", pytest.param("pairwise", marks=pytest.mark.slow)]
)
def test_directories_are_as_many_as_the_cases_of_a_suite(name):
    cases, made = suite_cases(name), suite_files(name, "onnx")
    directories = {path.split("/")[1] for path in made.files if path.endswith("model.onnx")}
    assert len(directories) == made.cases == len(cases) - sum(made.left_out.values())
    assert len({it.casefold() for it in directories}) == len(directories)


def test_what_is_written_as_directories_runs_as_many_cases_as_the_suite(workplace, onnxopt):
    answer = onnxopt("generate", "pruning", "trajectories", "--format", "onnx", "-o", "out")
    assert answer.code == 0
    assert " refusals, which" in answer.out
    written = sum(map(int, re.findall(r"; (\d+) cases", answer.out)))
    left_out = sum(map(int, re.findall(r"left out: (\d+)", answer.out)))
    assert written + left_out == len(suite_cases("pruning")) + len(suite_cases("trajectories"))
    assert f"{written} pass" in onnxopt("run", "out").out


@pytest.mark.parametrize("other", ["a/one.yaml", "A/One.yaml", "a/one.yaml".upper()])
def test_two_files_of_one_path_are_an_error_and_nothing_is_lost(other):
    with pytest.raises(UsageError, match="two files have the path"):
        distinct_files([("a/one.yaml", b"1"), (other, b"2")])


@pytest.mark.parametrize("name", list(suites()))
def test_a_suite_by_name_is_the_same_as_from_its_files(workplace, onnxopt, monkeypatch, name):
    if name == "pairwise":
        # A tenth of each operator's: to write and read all of it takes half a minute.
        whole, name = suites()["pairwise"], "some_pairwise"
        some = whole._replace(templates=lambda operator: whole.templates(operator)[::10])
        known = {**suites(), name: some}
        monkeypatch.setattr("onnxopt_cli.suites.catalogue.suites", lambda: known)
    assert onnxopt("generate", name).code == 0
    named = suite_cases(name)
    from_files = [
        case
        for path in sorted((workplace / "cases" / name).glob("*.yaml"))
        for case in read_yaml_file(path)[0]
    ]
    assert sorted(case.id for case in named) == sorted(case.id for case in from_files)
    for mine, other in zip(
        sorted(named, key=lambda case: case.id),
        sorted(from_files, key=lambda case: case.id),
        strict=True,
    ):
        one, two = mine.load(), other.load()
        assert one.model == two.model
        for left, right in zip(one.inputs.values(), two.inputs.values(), strict=True):
            assert left.tobytes() == right.tobytes()


@pytest.mark.parametrize(
    ("suite", "domain"),
    [("conformance", "ai.onnx.preview.training"), ("pruning", "onnxopt.pruning")],
)
def test_a_conformance_suite_is_small_and_says_what_each_case_catches(suite, domain):
    cases = suite_cases(suite)
    # Running a suite takes seconds. Adam, with the most attributes and states, has 380 cases.
    assert max(Counter(case.operators for case in cases).values()) <= 450
    operators = {(operator.name,) for operator in registry().operators if operator.domain == domain}
    assert {case.operators for case in cases} == operators
    assert all(re.search("detects|must|may|step", case.about) for case in cases)
    size = sum(path.stat().st_size for path in (REPOSITORY / "cases" / suite).iterdir())
    assert size <= 2**21


@pytest.mark.slow
def test_all_node_cases_are_written_in_the_standard_layout(workplace, onnxopt, onnx_s_own):
    assert onnxopt("generate", "onnx-node", "-o", "out").code == 0
    folders = sorted(path.name for path in (workplace / "out/node").iterdir())
    assert folders == sorted(onnx_s_own)
    model = onnx.load(workplace / "out/node/test_abs/model.onnx")
    assert model == onnx_s_own["test_abs"].model
    assert (workplace / "out/node/test_abs/test_data_set_0/input_0.pb").is_file()
    assert onnxopt("generate", "onnx-node", "-o", "out", "--check").code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["generate", "spce"], "cannot generate 'spce'"),
        (["generate", "onnx-node", "--format", "yaml"], "ONNX directories only"),
        (["generate", "--format", "xml"], "'xml'"),
    ],
)
def test_wrong_usage_is_told(workplace, onnxopt, arguments, says):
    answer = onnxopt(*arguments)
    assert answer.code == 2
    assert says in answer.err


def test_for_cases_of_one_operator_nothing_is_asked_about_others(onnxopt, workplace, monkeypatch):
    whole = suites()["pairwise"]
    asked = []
    some = whole._replace(templates=lambda it: asked.append(it.name) or whole.templates(it))
    known = {**suites(), "pairwise": some}
    monkeypatch.setattr("onnxopt_cli.suites.catalogue.suites", lambda: known)
    assert "pair_3" in onnxopt("show", "pairwise/momentum/pair_3").out
    pinned = f"pairwise@{whole.version}/momentum"
    assert "pairwise/momentum/pair_7" in onnxopt("list", pinned).out
    assert set(asked) == {"Momentum"}
