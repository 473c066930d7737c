"""Backends cannot claim another identity. Invalid or excessive messages affect no other case."""

from __future__ import annotations

import json
import sys
from xml.etree import ElementTree as ET

import pytest
from isolated import require, run_in_turn, run_to_end, write_cases
from places import PLUGINS

from onnxopt_cli.cli import main
from onnxopt_cli.core.result import Outcome
from onnxopt_cli.report.saved_run import read_saved_run
from onnxopt_cli.run import session
from onnxopt_cli.run.runner import run

pytestmark = [
    pytest.mark.isolated,
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc"),
]

FORGERS = PLUGINS / "forgers.py"
RATES = {"first": 0.25, "bad": 0.5, "last": 0.125}
# Code before and after the code of a forging plugin. AFTER defines its backend.
BEFORE = f"import os, sys; sys.path.append({str(PLUGINS)!r}); from hostile import *\n"
AFTER = "\nBackend = Well\n"


@pytest.fixture
def demo(workplace):
    write_cases(workplace, RATES)
    return workplace


def forger(demo, source):
    """Write a plugin with the given code, and return its specification."""
    (demo / "evil.py").write_text(BEFORE + source + AFTER)
    return "python:evil.py:Backend"


def reports(demo):
    files = {
        "json": demo / "run.json",
        "junit": demo / "run.xml",
        "markdown": demo / "run.md",
        "badge": demo / "badge.json",
    }
    options = [f"--report={name}={path}" for name, path in files.items()]
    return files, [*options, "--log", str(demo / "run.jsonl")]


def of(rows, backend):
    return [row["outcome"] for row in rows if row["backend"] == backend]


NAMES_ITSELF = 'speak(frame({"id": hello_number(), "name": "numpy", "version": "numpy 2.0"}))'
READY = 'speak(frame({"id": hello_number(), "ready": "numpy 2.0"}))'
FORGED_RESPONSES = (
    "[speak(frame(forged_response(hello_number() + count))) for count in range(1, 20)]"
)


@pytest.mark.parametrize(
    "source",
    [
        f"{NAMES_ITSELF}; os._exit(0)",
        pytest.param(NAMES_ITSELF, marks=pytest.mark.slow),
        'speak(frame({"id": hello_number(), "name": "numpy", "ready": "numpy 2.0"})); os._exit(0)',
        pytest.param(
            'speak(frame({"id": hello_number(), "ready": ["numpy"]})); os._exit(0)',
            marks=pytest.mark.slow,
        ),
        'speak(frame({"ready": "numpy 2.0"})); os._exit(0)',
    ],
)
def test_backend_that_claims_a_name_does_not_start(demo, onnxopt, source):
    evil = forger(demo, source)
    report = ["--report", "json=run.json"]
    answer = onnxopt("run", "demo.yaml", "-b", evil, "-b", "numpy", *report)
    assert answer.code == 4
    assert f"{evil} is not tested" in answer.err
    rows = json.loads((demo / "run.json").read_text())["results"]
    assert of(rows, "numpy") == ["pass"] * 3
    assert of(rows, evil) == ["not-run"] * 3
    messages = {row["message"] for row in rows if row["backend"] == evil}
    assert all("the backend could not be started: the worker" in message for message in messages)


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(f"{READY}; os._exit(0)", marks=pytest.mark.slow),
        pytest.param(f"{READY}; time.sleep(0.3); os._exit(0)", marks=pytest.mark.slow),
        pytest.param(READY, marks=pytest.mark.slow),
        pytest.param(f"{READY}; {READY}", marks=pytest.mark.slow),
        f"{READY}; {FORGED_RESPONSES}; time.sleep(0.3)",
    ],
)
def test_backend_that_reports_ready_too_early_passes_nothing(demo, onnxopt, source):
    evil = forger(demo, source)
    files, options = reports(demo)
    assert onnxopt("run", "demo.yaml", "-b", evil, "-b", "numpy", *options).code == 1
    rows = json.loads((demo / "run.json").read_text())["results"]
    assert "pass" not in of(rows, evil)
    assert of(rows, "numpy") == ["pass"] * 3
    suite = ET.fromstring(files["junit"].read_text()).find(f"testsuite[@name='{evil}']")  # noqa: S314 - our own report
    assert all(len(case) for case in suite.findall("testcase"))
    evils = [line for line in files["markdown"].read_text().splitlines() if line.startswith("|")]
    assert any(evil in line and "does not conform" in line for line in evils)
    logged = read_saved_run(demo / "run.jsonl")
    assert logged.exit_code == 1
    outcomes = [result.outcome for result in logged.results if result.backend == evil]
    assert "pass" not in outcomes


def test_name_attribute_of_a_plugin_is_ignored(demo, onnxopt):
    evil = forger(demo, "Well.name = 'numpy'; Well.version = 'numpy 2'; exits = None")
    report = ["--report", "json=run.json"]
    assert onnxopt("run", "demo.yaml", "-b", evil, "-b", "numpy", *report).code == 0
    rows = json.loads((demo / "run.json").read_text())
    assert [entry["name"] for entry in rows["backends"]] == [evil, "numpy"]
    assert rows["backends"][0]["version"] == ""


def test_version_is_one_short_printable_line(demo, onnxopt):
    evil = forger(demo, "__version__ = 'a\\n\\x1b[31m' + 'b' * 100000")
    assert onnxopt("run", "demo.yaml", "-b", evil, "--report", "json=run.json").code == 0
    (backend,) = json.loads((demo / "run.json").read_text())["backends"]
    assert backend["version"].startswith(r"evil a\n\x1b[31mb")
    assert len(backend["version"]) < 500


def test_backend_that_changes_its_version_does_not_conform(demo):
    source = (
        "__version__ = str(os.getpid())\nWell = type(exits)\nWell.misbehave = lambda _: segfault()"
    )
    run = run_to_end(demo, forger(demo, source))
    between = run.results["worker/between-cases"]
    assert between["outcome"] == "protocol"
    assert "the first worker reported" in between["message"]
    assert run.outcomes["first"] == "pass"
    assert run.outcomes["bad"] == "crash"
    assert run.outcomes["last"] == "not-run"
    assert run.code == 1


@pytest.mark.parametrize(
    "again",
    ["numpy", " numpy ", "onnx-reference", "python:p.py:B,b=1,a=2", "exec:x   'y',timeout=3"],
)
def test_backend_specified_twice_is_a_usage_error(demo, onnxopt, again):
    backends = ["numpy", "onnx-reference", "python:p.py:B,a=2,b=1", "exec:x y,timeout=3"]
    options = [word for backend in [*backends, again] for word in ("-b", backend)]
    answer = onnxopt("run", "demo.yaml", *options)
    assert answer.code == 2
    assert "the same backend is given twice" in answer.err


BETWEEN = "worker/between-cases"


@pytest.mark.parametrize(
    "backend", ["SpeaksWhileIdle", pytest.param("SpeaksDuringALaterCase", marks=pytest.mark.slow)]
)
def test_unrequested_byte_is_reported_and_affects_no_later_case(demo, backend):
    slow = f"python:{PLUGINS / 'hostile.py'}:Waits"
    evil = f"python:{FORGERS}:{backend}"
    run = run_to_end(demo, evil, "-b", slow)
    rows = json.loads(run.report.read_text())["results"]
    assert of(rows, evil) == ["pass", "pass", "pass", "protocol"]
    assert of(rows, slow) == ["pass"] * 3
    assert run.outcomes[BETWEEN] == "protocol"
    assert run.code == 1


@pytest.mark.slow
def test_byte_sent_at_shutdown_is_reported(demo):
    run = run_to_end(demo, f"python:{FORGERS}:SpeaksAtTheEnd")
    assert run.outcomes == {**dict.fromkeys(RATES, "pass"), "worker/teardown": "protocol"}
    assert run.code == 1
    assert run.survivors() == []


EXCESSIVE = {
    "returns_many": ("fail", "are 99995 too many"),
    "returns_too_many": ("error", "300002 values; at most 250000"),
    "returns_too_much_text": ("error", "characters; at most"),
    "returns_long_text": ("fail", "is string[1] too many"),
    "claims_changes": ("fail", "inputs changed: X"),
    "claims_other_changes": ("protocol", "inputs that it did not receive"),
    "claims_dims": ("protocol", "whose shape is not valid"),
    "claims_values": ("protocol", "more than 250000 values"),
    "claims_nesting": ("protocol", "more than 250000 values"),
    "sends_many_parts": ("protocol", "parts; at most"),
    "sends_strings": ("protocol", "a line of more than 16777216 bytes"),
    "sends_many_strings": ("protocol", "parts; at most"),
}
IMPOSSIBLE = {
    "RespondsAhead": ("protocol", "responded to the request"),
    "claims_lowered": ("protocol", "reports a lowered model, although"),
}


@pytest.fixture(scope="module")
def forged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forged")
    run = run_in_turn(folder, [*EXCESSIVE, *IMPOSSIBLE], "--lower", "never", plugin=FORGERS)
    assert run.code == 1
    assert run.survivors() == []
    return run


@pytest.mark.slow
@pytest.mark.parametrize("way", EXCESSIVE)
def test_long_lists_are_shortened_to_a_count(forged, way):
    require(forged, way, *EXCESSIVE[way])


@pytest.mark.slow
def test_excessive_messages_do_not_make_long_reports(forged):
    assert len(forged.out) + forged.report.stat().st_size < 100_000


@pytest.mark.slow
@pytest.mark.parametrize("way", IMPOSSIBLE)
def test_impossible_claim_is_a_protocol_breach(forged, way):
    require(forged, way, *IMPOSSIBLE[way])


@pytest.mark.slow
def test_backend_that_never_starts_again_ends_the_run(tmp_path):
    write_cases(tmp_path, {f"case{i}": 0.5 for i in range(9)})
    source = (
        "if os.path.exists('started'): os._exit(3)\nopen('started', 'w').close()\n"
        "Well = Misbehaves; Well.misbehave = lambda _: segfault()"
    )
    run = run_to_end(tmp_path, forger(tmp_path, source))
    assert list(run.outcomes.values()) == ["crash", *["not-run"] * 8]
    assert "could not be started again" in run.results["case8"]["message"]
    assert run.code == 1


def test_fault_between_examples_fails_a_search(demo, onnxopt):
    answer = onnxopt("fuzz", "--examples", "3", "-b", f"python:{FORGERS}:SpeaksAtTheEnd")
    assert answer.code == 1, answer.err
    assert "protocol worker/teardown" in answer.out


def test_worker_is_not_a_valid_name_of_a_suite(demo, onnxopt):
    text = (demo / "demo.yaml").read_text()
    (demo / "demo.yaml").write_text(text.replace("suite: demo", "suite: worker"))
    answer = onnxopt("run", "demo.yaml")
    assert answer.code == 2
    assert "no suite may have the name worker" in answer.err


@pytest.fixture
def failed(demo, onnxopt):
    """Run cases, of which ``bad`` fails; return the records of the log and the report."""
    (demo / "off.py").write_text(OFF)
    arguments = ["-b", "python:off.py:Backend", "--isolation", "none", "--no-explain"]
    files = ["--log", "run.jsonl", "--report", "json=run.json"]
    assert onnxopt("run", "demo.yaml", *arguments, *files).code == 1
    records = [json.loads(line) for line in (demo / "run.jsonl").read_text().splitlines()]
    return records, json.loads((demo / "run.json").read_text())


OFF = """
import numpy as np
from onnxopt_cli.backends.resolve import resolve_backend
class Backend:
    def run(self, model, inputs):
        wrong = inputs["R"] == np.float32(0.5)
        return [x + wrong for x in resolve_backend("numpy").prepare(model).run(inputs)]
"""


def passed(record):
    result = {**record["result"], "outcome": Outcome.PASS, "outputs": [], "returned": []}
    result.pop("content")
    return {**record, "result": result}


@pytest.mark.parametrize("kind", ["end", "rerun"])
@pytest.mark.parametrize("resumed", [False, True])
def test_log_with_two_results_of_a_case_is_rejected(demo, onnxopt, failed, kind, resumed):
    ends = [record for record in failed[0] if record["record"] == "end"]
    (bad,) = [record for record in ends if record["result"]["outcome"] == "fail"]
    *records, footer = failed[0]
    again = [{**passed(bad), "record": kind}] * (1 + (kind == "rerun"))
    resume = [{"record": "resume", "at": "2026-01-31T00:00:00Z"}] * resumed
    lines = map(json.dumps, [*records, *resume, *again, footer])
    (demo / "run.jsonl").write_text("".join(f"{line}\n" for line in lines))
    answer = onnxopt("report", "render", "run.jsonl", "--report", "json=-")
    assert answer.code == 2
    message = "found a rerun of" if kind == "rerun" else "found a second result of"
    assert message in answer.err
    assert not answer.out


@pytest.mark.parametrize("what", ["results", "backends"])
def test_report_with_a_duplicate_key_is_rejected(demo, onnxopt, failed, what):
    document = failed[1]
    document[what].append(document[what][0])
    (demo / "run.json").write_text(json.dumps(document))
    answer = onnxopt("report", "render", "run.json", "--report", "markdown=-")
    assert answer.code == 2
    assert "twice" in answer.err
    assert not answer.out


def test_log_whose_header_names_a_backend_twice_is_rejected(demo, onnxopt, failed):
    header, *records = failed[0]
    header["backends"] *= 2
    lines = map(json.dumps, [header, *records])
    (demo / "run.jsonl").write_text("".join(f"{line}\n" for line in lines))
    answer = onnxopt("report", "render", "run.jsonl", "--report", "json=-")
    assert answer.code == 2
    assert "run.jsonl:1: found" in answer.err


def test_incident_before_a_kill_still_counts_after_resuming(demo, onnxopt):
    arguments = ["run", "demo.yaml", "-b", f"python:{FORGERS}:SpeaksAtTheEnd", "-j", "1"]
    assert onnxopt(*arguments, "--log", "run.jsonl").code == 1
    lines = (demo / "run.jsonl").read_text().splitlines(keepends=True)
    assert '"worker/teardown"' in lines[-2]
    (demo / "run.jsonl").write_text("".join(lines[:-1]))
    answer = onnxopt(*arguments, "--resume", "run.jsonl")
    assert answer.code == 1
    assert "worker/teardown" in answer.out


def test_two_results_of_a_case_in_a_run_are_an_internal_error(demo, capsys, monkeypatch):
    monkeypatch.setattr(session, "run", lambda plan: [row for row in run(plan) for _ in range(2)])
    with pytest.raises(SystemExit) as ended:
        main(["run", "demo.yaml", "--report", "json=run.json"])
    assert ended.value.code == 3
    assert "two results of demo/demo/first on numpy" in capsys.readouterr().err
    assert not (demo / "run.json").exists()
