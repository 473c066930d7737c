"""Capabilities: derived from the content of cases, counted in reports, and excluded by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from places import PLUGINS

from onnxopt_cli.cases.select import CAPABILITIES
from onnxopt_cli.cases.yaml.yaml_syntax import packaged_schema
from onnxopt_cli.config.run_config import REPORT_FORMATS

HEAD = "onnxopt: 1\nsuite: mine\noperator: Momentum\ncases:\n"
CASE = """\
  - {{name: {name}, attributes: {{alpha: {alpha}, beta: 0.1, mode: {mode}, norm_coefficient: 0.0}},
     inputs: {inputs}{more}}}
"""
PLAIN_INPUTS = "R: 0.1, T: 3, X: [1.0], G: [0.5], V: [0.25]"
CASES = {
    "plain": (f"{{{PLAIN_INPUTS}}}", ()),
    "double": (
        "{R: {data: 0.1, dtype: double}, T: 3, X: DOUBLE, G: DOUBLE, V: DOUBLE}",
        ("double",),
    ),
    "mixed": (
        "{R: 0.1, T: 3, X: [1.0], G: {data: [0.5], dtype: double}, V: [0.25]}",
        ("double", "mixed-types"),
    ),
    "many": (
        "{R: 0.1, T: 3, X1: [1.0], X2: [1.0], G1: [0.5], G2: [0.5], V1: [0.25], V2: [0.25]}",
        ("many-tensors",),
    ),
    "broadcast": ("{R: 0.1, T: 3, X: [1.0, 2.0], G: 0.5, V: [0.25]}", ("broadcasting",)),
    "infinite": ("{R: 0.1, T: 3, X: [1.0], G: [.inf], V: [0.25]}", ("not-finite",)),
    "count": ("{R: 0.1, T: 16777217, X: [1.0], G: [0.5], V: [0.25]}", ("large-counts",)),
    "empty": (
        "{R: 0.1, T: 3, X: EMPTY, G: EMPTY, V: EMPTY}",
        ("empty",),
    ),
    "large": (
        "{R: 0.1, T: 3, X: {random: {normal: {}, seed: 1}, shape: [10001]}, G: 0.5, V: 0.25}",
        ("broadcasting", "large"),
    ),
}


@pytest.fixture
def cases(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = HEAD
    for name, (inputs, _) in CASES.items():
        text += CASE.format(name=name, inputs=inputs, alpha=0.9, mode="standard", more="")
    text += CASE.format(
        name="refused",
        inputs=f"{{{PLAIN_INPUTS}}}",
        alpha=0.9,
        mode="bogus",
        more=", rejects: true",
    )
    text += CASE.format(
        name="nan", inputs=f"{{{PLAIN_INPUTS}}}", alpha=".nan", mode="standard", more=""
    )
    text = text.replace("DOUBLE", "{data: [0.5], dtype: double}")
    Path("mine.yaml").write_text(text.replace("EMPTY", "{data: [], shape: [0]}"))
    return {
        **{name: needs for name, (_, needs) in CASES.items()},
        "refused": ("refusals",),
        "nan": ("not-finite",),
    }


def test_capabilities_are_derived_from_the_content_of_a_case(onnxopt, cases):
    assert onnxopt("run", "mine.yaml", "--report", "json=run.json").code == 0
    results = json.loads(Path("run.json").read_text())["results"]
    actual = {
        result["case"].rpartition("/")[2]: tuple(result["capabilities"]) for result in results
    }
    assert actual == cases
    assert set(CAPABILITIES) == {name for needs in cases.values() for name in needs}


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_option_without_excludes_exactly_the_cases_that_need_it(onnxopt, cases, capability):
    listed = onnxopt("list", "mine.yaml", "--without", capability).out.split()
    remaining = [name for name, needs in cases.items() if capability not in needs]
    assert [case_id.rpartition("/")[2] for case_id in listed] == remaining


def test_every_report_names_excluded_capabilities_with_the_reason(onnxopt, cases):
    Path("expect.yaml").write_text(
        "onnxopt-expect: 1\nwithout: {double: the target has no such type}\n"
    )
    answer = onnxopt(
        "run", "mine.yaml", "--expect", "expect.yaml", "--without", "refusals",
        "--log", "run.jsonl", *(f"--report={name}={name}.out" for name in REPORT_FORMATS),
    )  # fmt: skip
    assert answer.code == 0
    assert "double" not in {word for line in answer.out.splitlines()[:-1] for word in line.split()}
    notes = "without double (2 cases: the target has no such type)", "without refusals (1 case)"
    for note in notes:
        assert note in answer.out
        for name in REPORT_FORMATS.keys() - {"json", "badge"}:
            assert note in Path(f"{name}.out").read_text(), name
    # A badge is too short for the reasons.
    assert "without refusals, without double" in Path("badge.out").read_text()
    options = json.loads(Path("json.out").read_text())["left_out"]
    assert options == {"refusals": "1 case", "double": "2 cases: the target has no such type"}
    rendered = onnxopt("report", "render", "run.jsonl", "--report", "markdown=-")
    assert notes[0] in rendered.out


def test_reports_count_outcomes_by_capability(onnxopt, cases):
    answer = onnxopt(
        "run", "mine.yaml", "-b", "onnx-reference", "--no-explain",
        "--report", "json=run.json", "--report", "markdown=run.md",
    )  # fmt: skip
    assert answer.code == 1
    counts = json.loads(Path("run.json").read_text())["capabilities"]
    assert sum(counts["double"].values()) == 2
    assert sum(counts["many-tensors"].values()) == 1
    assert "cases that need" in answer.out
    assert "| `many-tensors` |" in Path("run.md").read_text()


def test_unknown_capability_is_rejected_with_a_suggestion(onnxopt, cases):
    answer = onnxopt("run", "mine.yaml", "--without", "doubles")
    assert answer.code == 2
    assert "did you mean double?" in answer.err
    Path("expect.yaml").write_text("onnxopt-expect: 1\nwithout: {doubles: why}\n")
    answer = onnxopt("run", "mine.yaml", "--expect", "expect.yaml")
    assert answer.code == 2
    assert "did you mean double?" in answer.err


def test_expectation_file_needs_a_reason_to_exclude_a_capability(onnxopt, cases):
    for wrong in ("[double]", "{double: }", "{double: ''}"):
        Path("expect.yaml").write_text(f"onnxopt-expect: 1\nwithout: {wrong}\n")
        answer = onnxopt("run", "mine.yaml", "--expect", "expect.yaml")
        assert answer.code == 2, wrong
        assert "reason" in answer.err


def test_schema_of_expectation_files_lists_every_capability():
    schema = packaged_schema("onnxopt_cli.run.expectations")
    assert list(schema["properties"]["without"]["properties"]) == list(CAPABILITIES)


def test_cases_not_run_are_not_counted_by_capability(workplace, onnxopt):
    backend = f"python:{PLUGINS / 'mistaken.py'}:Refusing"
    options = ("--max-fail", "40", "--isolation", "none", "--no-explain")
    answer = onnxopt("run", "conformance/momentum", "-b", backend, *options)
    needs = answer.out.partition("cases that need")[2].partition("\n\n")[0]
    assert "not-run" in answer.out
    assert "double" in needs
    assert "not-run" not in needs
