"""Expectation files: allowed outcomes, precedence, and stale, expired or duplicate entries."""

from __future__ import annotations

import json
import re

import jsonschema_rs
import pytest
from demo import backend, records, run_arguments, write_demo
from places import REPOSITORY

from onnxopt_cli import Execution, Isolation, NotConformingError, check, load_cases

DOCS = REPOSITORY / "docs"
HEAD = "onnxopt-expect: 1\nexpect:\n"


@pytest.fixture
def demo(workplace):
    return write_demo(workplace)


@pytest.fixture
def run(demo, onnxopt):
    """Return a function that runs the demo on a backend, given the texts of expectation files."""

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
def test_expected_failure_conforms(run, entry):
    answer = run("OffAtC", f"{HEAD}  - {entry}\n", more=["-v"])
    assert answer.code == 0, answer.text
    assert "fail (expected)" in answer.out
    assert "fails only as expected: 5 pass, 1 expected failure" in answer.out


@pytest.mark.parametrize(
    ("entry", "standing", "counts"),
    [
        ("{case: demo/demo/c, outcome: error}", "changed", "1 fail (1 changed)"),
        ("{case: demo/demo/c, outcome: flaky}", "changed", "1 fail (1 changed)"),
        ("{case: demo/demo/c, outcome: pass}", "unexpected-fail", "1 fail"),
        (
            "{case: demo/demo/a, outcome: fail}",
            "unexpected-pass",
            "4 pass, 1 unexpected pass, 1 fail",
        ),
        ("{case: demo/demo/c, outcome: fail, backend: numpy}", "unexpected-fail", "1 fail"),
        ("{case: demo/demo/c, outcome: fail, version: '>=1.6'}", "unexpected-fail", "1 fail"),
        ("{case: demo/demo/c, outcome: fail, expires: 2020-01-01}", "unexpected-fail", "1 fail"),
        ("{case: demo/demo/C, outcome: fail}", "unexpected-fail", "1 fail"),
    ],
)
def test_unexpected_result_does_not_conform(run, demo, entry, standing, counts):
    answer = run("OffAtC", f"{HEAD}  - {entry}\n", more=["--report", "json=out.json"])
    assert answer.code == 1
    assert f"{counts} in " in answer.out
    report = json.loads((demo / "out.json").read_text())
    assert standing in {result["standing"] for result in report["results"]}


def test_entry_is_shown_with_its_reason_and_link(run):
    entry = "{case: demo/demo/a, outcome: fail, reason: 'known bug', issue: 'https://x.org/12'}"
    answer = run("OffAtC", f"{HEAD}  - {entry}\n")
    text = " ".join(answer.out.replace("│", " ").split())
    assert "PASS (unexpected) demo/demo/a" in text
    assert "expected fail (layer0.yaml:3): known bug, https://x.org/12" in text


@pytest.mark.parametrize(
    ("text", "message"),
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
def test_stale_expired_or_duplicate_entry_fails_a_passing_run(run, text, message):
    answer = run("numpy", HEAD + text)
    assert message in answer.out
    assert answer.code == 1
    assert "layer0.yaml:" in answer.out


def test_entry_for_other_backends_or_versions_is_not_checked(run):
    entries = (
        "  - {case: gone, outcome: fail, backend: other, expires: 2020-01-01}\n"
        "  - {case: gone, outcome: fail, version: '>=9'}\n"
    )
    assert run("Right", HEAD + entries).code == 0


def test_entry_with_a_version_range_needs_a_known_version(run, demo):
    text = (demo / "vendor.py").read_text().replace('__version__ = "1.5.0"', "")
    (demo / "vendor.py").write_text(text)
    answer = run("Right", HEAD + "  - {case: demo/demo/a, outcome: pass, version: '>=1'}\n")
    assert (answer.code, "does not report its version" in answer.out) == (1, True)


@pytest.mark.parametrize("filters", [["-k", "demo/demo/c"], ["--shard", "1/3"]])
def test_entry_of_a_case_that_is_not_selected_is_not_stale(run, filters):
    entries = "".join(f"  - {{case: demo/demo/{name}, outcome: pass}}\n" for name in "abcdef")
    assert run("numpy", HEAD + entries, more=filters).code == 0


def test_later_file_takes_precedence(run):
    fails = f"{HEAD}  - {{case: demo/demo/c, outcome: fail}}\n"
    passes = f"{HEAD}  - {{case: '*', outcome: pass}}\n"
    assert run("OffAtC", passes, fails).code == 0
    assert run("OffAtC", fails, passes).code == 1


def test_exact_id_takes_precedence_over_globs_and_a_later_glob_over_earlier_ones(run):
    only = "  - {case: demo/demo/c, outcome: fail}\n"
    glob = "  - {case: '*', outcome: pass}\n"
    narrow = "  - {case: '*c', outcome: fail}\n"
    assert run("OffAtC", HEAD + only + glob).code == 0
    assert run("OffAtC", HEAD + glob + narrow).code == 0
    assert run("OffAtC", HEAD + narrow + glob).code == 1


def test_case_that_must_pass_has_no_other_allowed_outcome(run):
    allowed = f"{HEAD}  - {{case: demo/demo/b, outcome: unsupported}}\n"
    assert run("UnsupportedAtB", allowed).code == 0
    answer = run("UnsupportedAtB", f"{allowed}must-pass: [demo/demo/b]\n")
    assert answer.code == 1
    assert "does not conform: 5 pass, 1 unsupported" in answer.out
    assert run("UnsupportedAtB", f"{allowed}must-pass: [demo/demo/a]\n").code == 0


def test_expected_failures_do_not_count_for_max_fail(run):
    text = f"{HEAD}  - {{case: demo/demo/c, outcome: fail}}\n"
    assert "5 pass, 1 expected failure" in run("OffAtC", text, more=["-x"]).out


def test_log_contains_standings_and_findings(run, demo, onnxopt):
    text = HEAD + "  - {case: demo/demo/c, outcome: fail}\n  - {case: gone, outcome: fail}\n"
    run("OffAtC", text, more=["--log", "run.jsonl"])
    footer = records(demo / "run.jsonl")[-1]
    assert footer["findings"] == [{"where": "layer0.yaml:4", "what": "stale: no case is gone"}]
    onnxopt("report", "render", "run.jsonl", "--report", "json=out.json")
    report = json.loads((demo / "out.json").read_text())
    assert [result["standing"] for result in report["results"]].count("expected") == 6
    assert report["findings"] == footer["findings"]
    onnxopt("report", "render", "out.json", "--report", "json=again.json")
    assert json.loads((demo / "again.json").read_text()) == report


@pytest.mark.parametrize(
    ("text", "message"),
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
        (f"{HEAD}  - {{case: x, outcome: error, mistake: y}}\n", "expected the outcome fail"),
        (f"{HEAD}  - {{case: x, outcome: [pass], outputs: y}}\n", "expected the outcome fail"),
        (f"{HEAD}  - {{case: x, outcome: fail, outputs: []}}\n", "the name of an output"),
        (f"{HEAD}  - {{case: x, outcome: fail, mistake: 3}}\n", "the name of a known mistake"),
        (f"{HEAD}  - &a {{case: x, outcome: fail}}\n  - *a\n", "the anchor &a"),
        (f"{HEAD}  - [\n", "invalid YAML"),
        ("onnxopt-expect: 1\nmust-pass: x\n", "must-pass: found"),
        ("onnxopt-expect: 1\nmust-pass: [3]\n", "must-pass[0]: found 3, expected an id or a glob"),
    ],
)
def test_malformed_file_is_rejected_with_line_and_field(run, text, message):
    answer = run("numpy", text)
    assert answer.code == 2
    assert message in answer.err
    assert answer.out == ""


def test_all_errors_of_all_files_are_reported_together(run):
    two_errors = f"{HEAD}  - {{case: x}}\n  - {{outcome: fail}}\n"
    answer = run("numpy", two_errors, f"{HEAD}  - 3\n")
    for line in ("layer0.yaml:3", "layer0.yaml:4", "layer1.yaml:3"):
        assert line in answer.err


def test_missing_file_is_named(demo, onnxopt):
    answer = onnxopt(*run_arguments("numpy", "--expect", "nowhere.yaml"))
    assert (answer.code, "nowhere.yaml: the file is missing" in answer.err) == (2, True)


def test_published_schema_rejects_other_files(onnxopt):
    validator = jsonschema_rs.validator_for(json.loads(onnxopt("schema", "expect").out))
    entry = {"case": ["a", "b*"], "outcome": ["fail", "flaky"], "expires": "2031-01-01"}
    entry |= {"mistake": "step with the old V", "outputs": ["X_new"]}
    assert validator.is_valid({"onnxopt-expect": 1, "expect": [entry], "must-pass": ["a"]})
    assert not validator.is_valid({"onnxopt-expect": 1, "expect": [{**entry, "outcome": "x"}]})
    assert not validator.is_valid({"expect": [entry]})


def test_control_characters_in_a_file_are_escaped(run):
    answer = run("numpy", HEAD + '  - {case: "\\e[31m[/x]", outcome: fail}\n')
    assert answer.code == 1
    assert r"stale: \x1b[31m[/x] matches no case" in answer.out


def test_results_without_expectations_have_no_standing(demo, onnxopt):
    onnxopt(*run_arguments("OffAtC", "--report", "json=out.json"))
    report = json.loads((demo / "out.json").read_text())
    assert {result["standing"] for result in report["results"]} == {None}


def test_entry_must_contain_the_complete_name_of_the_backend(run):
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
def test_entry_for_a_similar_backend_name_is_reported_with_a_suggestion(
    onnxopt, tmp_path, written, hint
):
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
    text = "".join(answer.text.split())
    if hint:
        assert f"{expect}:3:{written}isnot{name};write{hint}" in text
    assert (";write" in text) == bool(hint)
    assert (answer.code == 0) == (written == "python:*refusing.py:Backend")


# Backends that compute X_new as X - R V instead of X - R V_new. All except the first backend have
# another defect in case c.
OLD_V = """
class OldV(Right):
    def answer(self, first, outputs):
        stale = np.float32([first, 2.0]) - np.float32(0.1) * np.float32([0.25, 0.0])
        return [stale, outputs[1]]


class AlsoOffAtC(OldV):
    def answer(self, first, outputs):
        stale, velocity = super().answer(first, outputs)
        return [stale, velocity + np.float32(first == 3)]


class OtherValueAtC(OldV):
    def answer(self, first, outputs):
        stale, velocity = super().answer(first, outputs)
        return [stale + np.float32(0.5 * (first == 3)), velocity]


class AlsoChangesInputsAtC(OldV):
    def run(self, model, inputs):
        outputs = super().run(model, inputs)
        inputs["G"][0] += float(inputs["X"][0] == 3)
        return outputs
"""
BY_MISTAKE = "{case: '*', outcome: fail, mistake: step with the old V}"
BY_OUTPUT = "{case: '*', outcome: fail, outputs: X_new}"


@pytest.fixture
def run_old_v(demo, run):
    with (demo / "vendor.py").open("a") as file:
        file.write(OLD_V)
    return run


@pytest.mark.parametrize("entry", [BY_MISTAKE, BY_OUTPUT])
def test_described_failure_conforms(run_old_v, entry):
    answer = run_old_v("OldV", f"{HEAD}  - {entry}\n")
    assert answer.code == 0, answer.text
    assert "6 expected failures" in answer.out


@pytest.mark.parametrize(
    ("name", "entry", "difference"),
    [
        ("AlsoOffAtC", BY_MISTAKE, "the known mistake would return other outputs"),
        ("AlsoOffAtC", BY_OUTPUT, "wrong outputs: X_new, V_new"),
        ("OtherValueAtC", BY_MISTAKE, "the known mistake would return other outputs"),
        ("AlsoChangesInputsAtC", BY_MISTAKE, "inputs changed: G"),
        ("AlsoChangesInputsAtC", BY_OUTPUT, "inputs changed: G"),
    ],
)
def test_second_defect_of_an_expected_failure_is_found(run_old_v, demo, name, entry, difference):
    answer = run_old_v(name, f"{HEAD}  - {entry}\n", more=["--report", "json=out.json"])
    assert answer.code == 1
    results = json.loads((demo / "out.json").read_text())["results"]
    changed = [result for result in results if result["standing"] != "expected"]
    assert [(result["case"], result["standing"]) for result in changed] == [
        ("demo/demo/c", "changed")
    ]
    assert changed[0]["expectation"].endswith(f"(layer0.yaml:3); but {difference}")


def test_unknown_mistake_is_named(run_old_v):
    answer = run_old_v("OldV", f"{HEAD}  - {BY_MISTAKE.replace('old V', 'odd V')}\n")
    text = " ".join(answer.out.replace("│", " ").split())
    assert answer.code == 1
    assert "Momentum has no known mistake 'step with the odd V'" in text
    assert "did you mean step with the old V?" in text


def test_described_failure_is_checked_again_on_resume_and_for_one_case(run_old_v, demo, onnxopt):
    for name, code in (("OldV", 0), ("AlsoOffAtC", 1)):
        log = f"{name}.jsonl"
        text = f"{HEAD}  - {BY_MISTAKE}\n"
        assert run_old_v(name, text, more=["--log", log]).code == code
        assert run_old_v(name, text, more=["--resume", log]).code == code
    case = next(case for case in load_cases("demo.yaml") if case.id == "demo/demo/c")
    inside = Execution(isolation=Isolation.NONE)
    assert check(case, backend("OldV"), expect="layer0.yaml", execution=inside).conforms
    with pytest.raises(NotConformingError):
        check(case, backend("AlsoOffAtC"), expect="layer0.yaml", execution=inside)


def test_expectation_files_of_the_documents_are_valid(run):
    blocks = re.findall(r"```yaml\n(onnxopt-expect.+?)```", (DOCS / "ci.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        # The run does not contain the suites that the file names, so the file's entries are stale.
        answer = run("numpy", re.sub("(?m)^suites:.*$", "", block))
        assert answer.code in {0, 1}, answer.text
