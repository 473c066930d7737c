"""Expectation files: what they allow, and when they no longer hold."""

from __future__ import annotations

import json

import jsonschema_rs
import pytest
from demo import backend, records, run_arguments, write_demo

HEAD = "onnxopt-expect: 1\nexpect:\n"


@pytest.fixture
def demo(workplace):
    return write_demo(workplace)


@pytest.fixture
def run(demo, onnxopt):
    """Run the demo on a backend with expectation files of the given texts."""

    def call(name, *texts, more=()):
        paths = [demo / f"layer{number}.yaml" for number in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text)
        options = [word for path in paths for word in ("--expect", path.name)]
        return onnxopt(*run_arguments(name, *options, *more))

    return call


@pytest.mark.parametrize(
    "entry",
    [
        "{case: demo/demo/c, outcome: fail}",
        "{case: demo/*/c, outcome: fail}",
        "{case: '*[cx]', outcome: [error, fail], backend: 'python:*'}",
        "{case: [demo/demo/c], outcome: fail, version: '>=1.4,<2'}",
        "{case: demo/demo/c, outcome: fail, expires: 2999-12-31}",
    ],
)
def test_an_expected_failure_conforms(run, entry):
    answer = run("OffAtC", f"{HEAD}  - {entry}\n", more=["-v"])
    assert answer.code == 0, answer.text
    assert "fail (expected)" in answer.out
    assert "fails only as expected: 5 pass, 1 fail (1 expected)" in answer.out


@pytest.mark.parametrize(
    ("entry", "standing"),
    [
        ("{case: demo/demo/c, outcome: error}", "changed"),
        ("{case: demo/demo/c, outcome: flaky}", "changed"),
        ("{case: demo/demo/c, outcome: pass}", "unexpected-fail"),
        ("{case: demo/demo/a, outcome: fail}", "unexpected-pass"),
        ("{case: demo/demo/c, outcome: fail, backend: numpy}", "unexpected-fail"),
        ("{case: demo/demo/c, outcome: fail, version: '>=1.6'}", "unexpected-fail"),
        ("{case: demo/demo/c, outcome: fail, expires: 2020-01-01}", "unexpected-fail"),
        ("{case: demo/demo/C, outcome: fail}", "unexpected-fail"),
    ],
)
def test_what_is_not_as_expected_does_not_conform(run, demo, entry, standing):
    answer = run("OffAtC", f"{HEAD}  - {entry}\n", more=["--report", "json=out.json"])
    assert answer.code == 1
    assert f"1 {standing}" in answer.out
    report = json.loads((demo / "out.json").read_text())
    assert standing in {result["standing"] for result in report["results"]}


def test_the_entry_is_shown_with_its_reason_and_link(run):
    entry = "{case: demo/demo/a, outcome: fail, reason: 'known bug', issue: 'https://x.org/12'}"
    answer = run("OffAtC", f"{HEAD}  - {entry}\n")
    shown = " ".join(answer.out.replace("│", " ").split())
    assert "PASS (unexpected) demo/demo/a" in shown
    assert "expected fail (layer0.yaml:3): known bug, https://x.org/12" in shown


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("  - {case: demo/demo/gone, outcome: fail}\n", "layer0.yaml:3: stale: no case is"),
        ("  - {case: demo/demi/c, outcome: fail}\n", "did you mean demo/demo/c?"),
        ("  - {case: nowhere/*, outcome: fail}\n", "stale: nowhere/* matches no case"),
        ("  - {case: demo/demo/a, outcome: pass, expires: 2020-01-01}\n", "expired on 2020-01-01"),
        (
            "  - {case: demo/demo/a, outcome: pass}\n  - {case: demo/demo/a, outcome: fail}\n",
            "layer0.yaml:4: duplicate of line 3: demo/demo/a",
        ),
        (
            "  - {case: [demo/demo/a, demo/demo/b, demo/demo/a], outcome: pass}\n",
            "duplicate of line 3",
        ),
        ("must-pass: [nowhere/*]\n", "stale: nowhere/* matches no case"),
    ],
)
def test_an_entry_that_does_not_hold_makes_a_passing_run_red(run, text, says):
    answer = run("numpy", HEAD + text)
    assert says in answer.out
    assert answer.code == 1
    assert "layer0.yaml:" in answer.out


def test_an_entry_for_other_backends_or_versions_is_not_looked_at(run):
    entries = (
        "  - {case: gone, outcome: fail, backend: other, expires: 2020-01-01}\n"
        "  - {case: gone, outcome: fail, version: '>=9'}\n"
    )
    assert run("Right", HEAD + entries).code == 0


def test_a_range_of_versions_needs_a_version_to_be_judged(run, demo):
    text = (demo / "vendor.py").read_text().replace('__version__ = "1.5.0"', "")
    (demo / "vendor.py").write_text(text)
    answer = run("Right", HEAD + "  - {case: demo/demo/a, outcome: pass, version: '>=1'}\n")
    assert (answer.code, "does not say its version" in answer.out) == (1, True)


@pytest.mark.parametrize("filters", [["-k", "demo/demo/c"], ["--shard", "1/3"]])
def test_cases_left_out_of_a_run_make_no_entry_stale(run, filters):
    entries = "".join(f"  - {{case: demo/demo/{name}, outcome: pass}}\n" for name in "abcdef")
    assert run("numpy", HEAD + entries, more=filters).code == 0


def test_a_later_file_precedes_an_earlier_one(run):
    fails = f"{HEAD}  - {{case: demo/demo/c, outcome: fail}}\n"
    passes = f"{HEAD}  - {{case: '*', outcome: pass}}\n"
    assert run("OffAtC", passes, fails).code == 0
    assert run("OffAtC", fails, passes).code == 1


def test_in_one_file_an_id_alone_precedes_a_glob_and_then_the_last_counts(run):
    only = "  - {case: demo/demo/c, outcome: fail}\n"
    glob = "  - {case: '*', outcome: pass}\n"
    narrow = "  - {case: '*c', outcome: fail}\n"
    assert run("OffAtC", HEAD + only + glob).code == 0
    assert run("OffAtC", HEAD + glob + narrow).code == 0
    assert run("OffAtC", HEAD + narrow + glob).code == 1


def test_where_a_case_must_pass_nothing_else_is_allowed(run):
    allowed = f"{HEAD}  - {{case: demo/demo/b, outcome: unsupported}}\n"
    assert run("UnsupportedAtB", allowed).code == 0
    answer = run("UnsupportedAtB", f"{allowed}must-pass: [demo/demo/b]\n")
    assert answer.code == 1
    assert "1 unexpected-fail" in answer.out
    assert run("UnsupportedAtB", f"{allowed}must-pass: [demo/demo/a]\n").code == 0


def test_expected_failures_do_not_count_for_max_fail(run):
    text = f"{HEAD}  - {{case: demo/demo/c, outcome: fail}}\n"
    assert "5 pass, 1 fail" in run("OffAtC", text, more=["-x"]).out


def test_the_log_keeps_standings_and_findings(run, demo, onnxopt):
    text = HEAD + "  - {case: demo/demo/c, outcome: fail}\n  - {case: gone, outcome: fail}\n"
    run("OffAtC", text, more=["--log", "run.jsonl"])
    footer = records(demo / "run.jsonl")[-1]
    assert footer["findings"] == [{"where": "layer0.yaml:4", "what": "stale: no case is gone"}]
    onnxopt("report", "render", "run.jsonl", "--report", "json=out.json")
    report = json.loads((demo / "out.json").read_text())
    assert [it["standing"] for it in report["results"]].count("expected") == 6
    assert report["findings"] == footer["findings"]
    onnxopt("report", "render", "out.json", "--report", "json=again.json")
    assert json.loads((demo / "again.json").read_text()) == report


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "layer0.yaml:1: found nothing"),
        ("expect: []\n", "found no onnxopt-expect"),
        ("onnxopt-expect: 2\nexpect: 3\n", "layer0.yaml:1: onnxopt-expect: found 2, expected 1"),
        (f"{HEAD}  - {{case: x}}\n", "layer0.yaml:3: expect[0]: found no outcome"),
        (f"{HEAD}  - {{case: x, outcome: sad}}\n", 'expect[0].outcome: found "sad"'),
        (f"{HEAD}  - {{case: x, outcome: not-run}}\n", "expected one or several of pass, fail"),
        (f"{HEAD}  - {{case: '', outcome: fail}}\n", "expect[0].case: found"),
        (f"{HEAD}  - {{case: x, outcome: fail, resaon: y}}\n", "did you mean reason?"),
        (f"{HEAD}  - {{case: x, outcome: fail, version: new}}\n", "a range of versions"),
        (f"{HEAD}  - {{case: x, outcome: fail, expires: 2030-02-30}}\n", "a day of the calendar"),
        (f"{HEAD}  - {{case: x, outcome: fail, expires: soon}}\n", "a date, as in"),
        (f"{HEAD}  - {{case: x, outcome: fail, issue: 'javascript:x'}}\n", "a link that begins"),
        (f"{HEAD}  - &a {{case: x, outcome: fail}}\n  - *a\n", "the anchor &a"),
        (f"{HEAD}  - [\n", "invalid YAML"),
        ("onnxopt-expect: 1\nmust-pass: x\n", "must-pass: found"),
        ("onnxopt-expect: 1\nmust-pass: [3]\n", "must-pass[0]: found 3, expected an id or a glob"),
    ],
)
def test_a_malformed_file_is_refused_with_line_and_field(run, text, says):
    answer = run("numpy", text)
    assert answer.code == 2
    assert says in answer.err
    assert answer.out == ""


def test_everything_wrong_with_all_files_is_said_at_once(run):
    one = f"{HEAD}  - {{case: x}}\n  - {{outcome: fail}}\n"
    answer = run("numpy", one, f"{HEAD}  - 3\n")
    for where in ("layer0.yaml:3", "layer0.yaml:4", "layer1.yaml:3"):
        assert where in answer.err


def test_a_file_that_is_not_there_is_named(demo, onnxopt):
    answer = onnxopt(*run_arguments("numpy", "--expect", "nowhere.yaml"))
    assert (answer.code, "nowhere.yaml: the file is missing" in answer.err) == (2, True)


def test_the_published_schema_knows_a_file_from_another(onnxopt):
    validator = jsonschema_rs.validator_for(json.loads(onnxopt("schema", "expect").out))
    entry = {"case": ["a", "b*"], "outcome": ["fail", "flaky"], "expires": "2031-01-01"}
    assert validator.is_valid({"onnxopt-expect": 1, "expect": [entry], "must-pass": ["a"]})
    assert not validator.is_valid({"onnxopt-expect": 1, "expect": [{**entry, "outcome": "x"}]})
    assert not validator.is_valid({"expect": [entry]})


def test_names_in_a_file_cannot_harm_the_terminal(run):
    answer = run("numpy", HEAD + '  - {case: "\\e[31m[/x]", outcome: fail}\n')
    assert answer.code == 1
    assert r"stale: \x1b[31m[/x] matches no case" in answer.out


def test_without_expectations_nothing_has_a_standing(demo, onnxopt):
    onnxopt(*run_arguments("OffAtC", "--report", "json=out.json"))
    report = json.loads((demo / "out.json").read_text())
    assert {result["standing"] for result in report["results"]} == {None}


def test_a_backend_is_meant_by_its_whole_name(run):
    name = backend("OffAtC")
    text = f"{HEAD}  - {{case: demo/demo/c, outcome: fail, backend: '{name}'}}\n"
    assert run("OffAtC", text).code == 0
    assert run("OffAtC", text.replace(name, "OffAtC")).code == 1


NEAR_FILE = """\
onnxopt-expect: 1
expect:
  - {case: "*", backend: "BACKEND", outcome: [error, vacuous]}
"""


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("python:./refusing.py:Backend", "python:*refusing.py:Backend"),
        ("python:*refusing.py:Backend", ""),
        ("python:/somewhere/else.py:Backend", ""),
        ("exec:./refusing.py:Backend", ""),
    ],
)
def test_an_entry_for_a_backend_of_nearly_this_name_is_named(onnxopt, tmp_path, written, hint):
    plugin = tmp_path / "refusing.py"
    plugin.write_text(
        "class Backend:\n    def run(self, model, inputs):\n        raise ValueError\n"
    )
    expect = tmp_path / "expect.yaml"
    expect.write_text(NEAR_FILE.replace("BACKEND", written))
    name = f"python:{plugin}:Backend"
    answer = onnxopt(
        "run", "spec/adam/adam", "-b", name, "--expect", str(expect), "--no-explain", "-q",
        "--lower", "never",
    )  # fmt: skip
    said = "".join(answer.text.split())
    if hint:
        assert f"{expect}:3:{written}isnot{name};write{hint}" in said
    assert (";write" in said) == bool(hint)
    assert (answer.code == 0) == (written == "python:*refusing.py:Backend")
