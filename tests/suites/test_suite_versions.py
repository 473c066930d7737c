"""Versions of suites are stated, recorded and pinned."""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path

import pytest

from onnxopt_cli.cases.yaml.yaml_syntax import parse_yaml
from onnxopt_cli.config.run_config import REPORT_FORMATS
from onnxopt_cli.suites.catalogue import suites

CASES = Path(__file__).parents[2] / "cases"
# The fields that define a case. Excluded are the description, and outputs, which follow from these
# fields.
FIELDS = ("name", "attributes", "inputs", "graph", "steps", "rejects")
DIGESTS = Path(__file__).parent / "suite_digests.json"

MINE = """\
onnxopt: 1
suite: mine{version}
operator: Momentum
cases:
  - name: first
    attributes: {{alpha: 0.9, beta: 0.1, mode: standard, norm_coefficient: 0.0}}
    inputs: {{R: 0.1, T: 0, X: [1.0], G: [0.5], V: [0.25]}}
"""
EXPECT = "onnxopt-expect: 1\nsuites: [mine@{version}]\n"


def suite_digests():
    """Return digests of the cases by suite (with its version) and operator."""
    digests = {}
    for path in sorted(CASES.glob("*/*.yaml")):
        root, errors = parse_yaml(path.read_text())
        suite = str(root.field("suite").scalar)
        if suite.partition("@")[0] not in suites():
            continue
        assert not errors
        cases = sorted(
            [(field, plain(case.field(field))) for field in FIELDS if case.field(field)]
            for case in root.field("cases").items
        )
        digest = blake2b(json.dumps(cases).encode(), digest_size=16).hexdigest()
        digests.setdefault(suite, {})[path.stem] = digest
    return digests


def plain(node):
    """Return the content of a YAML node as dictionaries, lists and texts."""
    if node.fields is not None:
        return {name: plain(value) for name, value in node.fields.items()}
    return list(map(plain, node.items)) if node.items is not None else repr(node.scalar)


def test_cases_change_only_with_the_version_of_their_suite():
    """After a new version, run this file as a script to record the digests."""
    recorded = json.loads(DIGESTS.read_text())
    assert suite_digests() == recorded, "increase the version of the suite that has changed"


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(version):
        Path("mine.yaml").write_text(MINE.format(version=version))

    return write


def test_suite_version_is_in_the_log_and_in_reports(onnxopt, mine):
    mine("@7")
    reports = [f"--report={name}={name}.out" for name in REPORT_FORMATS]
    answer = onnxopt("run", "mine.yaml", "--log", "run.jsonl", *reports)
    assert answer.code == 0
    assert "mine@7" in answer.out
    assert (
        json.loads(Path("run.jsonl").read_text().splitlines()[0])["versions"]["suite mine"] == "7"
    )
    assert json.loads(Path("json.out").read_text())["versions"]["suite mine"] == "7"
    # A badge and the annotations of GitHub do not name the cases that pass.
    for name in REPORT_FORMATS.keys() - {"json", "badge", "github"}:
        assert "mine@7" in Path(f"{name}.out").read_text(), name


def test_pinned_suite_of_another_version_is_rejected_with_a_hint(onnxopt, tmp_path):
    version = suites()["spec"].version
    assert onnxopt("run", f"spec@{version}/adam/adam").code == 0
    answer = onnxopt("run", f"spec@{version}9")
    assert answer.code == 2
    assert f"spec@{version}9 is required, spec@{version} is installed" in answer.err
    assert "install the version of onnxopt that contains it" in answer.err
    answer = onnxopt("run", "onnx-light@0.1")
    assert answer.code == 2
    assert "install the version of onnx that contains it" in answer.err


def test_expectation_file_for_another_version_is_rejected_until_updated(onnxopt, mine):
    mine("@2")
    Path("expect.yaml").write_text(EXPECT.format(version=1))
    answer = onnxopt("run", "mine.yaml", "--expect", "expect.yaml")
    assert answer.code == 2
    assert "expect.yaml:2: mine@1 is required, mine@2 is installed" in answer.err
    answer = onnxopt("run", "mine.yaml", "--update-expect", "expect.yaml")
    assert answer.code == 0
    assert Path("expect.yaml").read_text() == 'onnxopt-expect: 1\nsuites: ["mine@2"]\n'
    assert onnxopt("run", "mine.yaml", "--expect", "expect.yaml").code == 0


def test_new_expectation_file_states_the_suite_version(onnxopt, mine):
    mine("@3")
    onnxopt("run", "mine.yaml", "-b", "onnx-reference", "--update-expect", "e.yaml")
    assert 'suites: ["mine@3"]' in Path("e.yaml").read_text()


def test_log_of_another_suite_version_is_not_resumed(onnxopt, mine):
    mine("@1")
    assert onnxopt("run", "mine.yaml", "--log", "run.jsonl").code == 0
    mine("@2")
    answer = onnxopt("run", "mine.yaml", "--resume", "run.jsonl")
    assert answer.code == 2
    assert "suite mine (1, now 2)" in answer.err


def test_two_versions_of_a_suite_are_rejected_together(onnxopt, mine):
    mine("@1")
    Path("other.yaml").write_text(MINE.format(version="@2"))
    answer = onnxopt("run", "mine.yaml", "other.yaml")
    assert answer.code == 2
    assert "two versions of the suite mine" in answer.err


@pytest.mark.parametrize("version", ["@", "@ 2", "@-1", "@2@3", "@" + "1" * 40])
def test_invalid_suite_version_is_rejected_with_its_line(onnxopt, mine, version):
    mine(version)
    answer = onnxopt("run", "mine.yaml")
    assert answer.code == 2
    assert "mine.yaml:2" in answer.err


if __name__ == "__main__":
    recorded = json.loads(DIGESTS.read_text())
    current = suite_digests()
    for name, digests in current.items():
        assert recorded.get(name, digests) == digests, f"{name} has changed: increase its version"
    DIGESTS.write_text(json.dumps(current, indent=1) + "\n")
