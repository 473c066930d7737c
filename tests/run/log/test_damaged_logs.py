"""Logs and reports that were truncated, mixed or changed by another program are rejected."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from demo import records, run_arguments, write_demo
from isolated import run_to_end, write_cases
from onnx import helper
from onnx_directories import make_directory, tensor

ONE_ERROR = ("-k", "demo/demo/[abd]")
ARGUMENTS = run_arguments("RaisesAtB", *ONE_ERROR, "--shard", "1/1", "--rerun", "1")
PASS = {"outcome": "pass", "message": "", "returned": [], "printed": "", "standing": None}


@pytest.fixture
def demo(workplace):
    return write_demo(workplace)


@pytest.fixture
def shard(demo, onnxopt):
    """Write the log of a single shard, whose run has one error; return the records of the log."""
    assert onnxopt(*ARGUMENTS, "--log", "run.jsonl").code == 1
    return records(demo / "run.jsonl")


def write(path, lines):
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def verdicts(onnxopt, demo):
    """Return (exit code of merging, colour of the badge, exit code of resuming) for the log."""
    (demo / "all.jsonl").unlink(missing_ok=True)
    (demo / "b.json").unlink(missing_ok=True)
    merged = onnxopt("report", "merge", "run.jsonl", "-o", "all.jsonl").code
    rendered = onnxopt("report", "render", "run.jsonl", "--report", "badge=b.json").code
    badge = json.loads((demo / "b.json").read_text())["color"] if rendered == 0 else "none"
    return merged, badge, onnxopt(*ARGUMENTS, "--resume", "run.jsonl").code


def passing(record):
    """Return a copy of the record of a result, changed so that the case passes."""
    record = copy.deepcopy(record)
    record["result"] |= PASS | {"flaky": ""}
    record["result"].pop("content", None)
    return record


def failing(lines):
    return next(
        line for line in lines if line["record"] == "end" and line["result"]["outcome"] == "error"
    )


def rerun(lines):
    return {**passing(failing(lines)), "record": "rerun"}


def with_rerun(lines, **changes):
    """Return a log whose reruns have other fields."""
    return [
        {**line, "result": {**line["result"], **changes}} if line["record"] == "rerun" else line
        for line in lines
    ]


def other_footer(lines):
    return {**lines[-1], "exit_code": 0, "counts": {"pass": 3}}


DAMAGED_LOGS = {
    "a rerun after the footer": lambda log: [*log, rerun(log)],
    "a rerun that changes the outcome": lambda log: [
        *(rerun(log) if line["record"] == "rerun" else line for line in log[:-1]),
        other_footer(log),
    ],
    "a rerun with other operators": lambda log: with_rerun(log, operators=["Adam", "Neg"]),
    "a rerun at another place": lambda log: with_rerun(log, path="elsewhere.yaml"),
    "a rerun without the option": lambda log: [
        {**log[0], "options": {**log[0]["options"], "rerun": None}},
        *log[1:],
    ],
    "a second footer": lambda log: [*log, other_footer(log)],
    "another footer": lambda log: [*log[:-1], other_footer(log)],
    "a second result": lambda log: [*log[:-1], passing(failing(log)), log[-1]],
    "a resume after the end": lambda log: [*log, {"record": "resume", "at": log[0]["started"]}],
    "a resume with results": lambda log: [
        *log[:-1],
        {"record": "resume", "at": log[0]["started"]},
        passing(failing(log)),
        other_footer(log),
    ],
    "a result of an unknown case": lambda log: [
        *log[:-1],
        {"record": "start", "case": "demo/demo/z", "backend": failing(log)["result"]["backend"]},
        {"record": "end", "result": {**passing(failing(log))["result"], "case": "demo/demo/z"}},
        log[-1],
    ],
    "a result outside of cases that passes": lambda log: [
        *log[:-1],
        {"record": "end", "result": {**passing(failing(log))["result"], "case": "worker/teardown"}},
        log[-1],
    ],
    "a result without a start": lambda log: [line for line in log if line["record"] != "start"],
    "a failure removed": lambda log: [line for line in log if line is not failing(log)],
    "an invalid date": lambda log: [{**log[0], "started": "2026-13-45T00:00:00Z"}, *log[1:]],
    "an invalid time": lambda log: [{**log[0], "started": "2026-01-31T99:99:99Z"}, *log[1:]],
    "an invalid year": lambda log: [{**log[0], "started": "0000-01-31T00:00:00Z"}, *log[1:]],
    "an invalid date of a resume": lambda log: [
        *log[:-1],
        {"record": "resume", "at": "2026-02-30T00:00:00Z"},
        log[-1],
    ],
    "no backend": lambda log: [{**log[0], "backends": []}, *log[1:]],
    "a duplicate backend": lambda log: [{**log[0], "backends": log[0]["backends"] * 2}, *log[1:]],
}


@pytest.mark.parametrize("name", DAMAGED_LOGS)
def test_damaged_log_is_rejected(demo, onnxopt, shard, name):
    write(demo / "run.jsonl", DAMAGED_LOGS[name](shard))
    before = (demo / "run.jsonl").read_bytes()
    assert verdicts(onnxopt, demo) == (2, "none", 2)
    assert (demo / "run.jsonl").read_bytes() == before
    assert not (demo / "all.jsonl").exists()


# For each contradiction: the path to a field of a failing result, and another value of the field.
CONTRADICTIONS: dict[str, tuple[list[str | int], object]] = {
    "a wrong output passes": (["outcome"], "pass"),
    "a wrong output of an unsupported operator": (["outcome"], "unsupported"),
    "a standing without an expectation file": (["standing"], "expected"),
    "a wrong output agrees": (["outputs", 0, "agrees"], True),
    "more mismatches than elements": (["outputs", 0, "mismatches"], 9),
    "more inconclusive elements than elements": (["outputs", 0, "inconclusive"], 9),
    "more distances than elements": (["outputs", 0, "ulp_counts"], [1, 9]),
    "more elements than the shape": (["outputs", 0, "elements"], 9),
    "an element outside of the shape": (["outputs", 0, "worst", 0, "index"], [9]),
    "an element of another rank": (["outputs", 0, "worst", 0, "index"], [0, 0]),
    "a negative error": (["outputs", 0, "max_absolute"], -1),
    "a negative limit": (["outputs", 0, "worst", 0, "limit"], -1),
    "a negative tolerance": (["outputs", 0, "tolerance", "factor"], -1),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_result_that_contradicts_itself_is_rejected(demo, onnxopt, name):
    onnxopt(*run_arguments("OffAtC", "--log", "run.jsonl", "--no-explain"))
    log = records(demo / "run.jsonl")
    result = next(line["result"] for line in log if line.get("result", {}).get("outcome") == "fail")
    path, value = CONTRADICTIONS[name]
    part: Any = result
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    outcomes = [line["result"]["outcome"] for line in log if line["record"] == "end"]
    log[-1]["counts"] = {outcome: outcomes.count(outcome) for outcome in outcomes}
    write(demo / "run.jsonl", log)
    answer = onnxopt("report", "render", "run.jsonl", "--report", "badge=-")
    assert (answer.code, answer.out) == (2, "")


def test_error_does_not_become_a_pass(demo, onnxopt, shard):
    for line in shard:
        if line.get("result", {}).get("outcome") == "error":
            line["result"] |= {"outcome": "pass", "flaky": "", "standing": None}
    write(demo / "run.jsonl", [*shard[:-1], other_footer(shard)])
    assert verdicts(onnxopt, demo) == (2, "none", 2)


@pytest.mark.parametrize("code", [0, 2, 3, 5, 77])
def test_exit_code_follows_from_the_results(demo, onnxopt, shard, code):
    write(demo / "run.jsonl", [*shard[:-1], {**shard[-1], "exit_code": code}])
    assert verdicts(onnxopt, demo) == (2, "none", 2)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({}, 0),
        ({"others": {"not explained": {"fail": 2}}}, 2),
        ({"cases": ["demo/demo/a"]}, 2),
        ({"causes": [{"found": "x", "cases": ["demo/demo/a"], "known_mistakes": []}]}, 2),
    ],
)
def test_explanations_refer_to_failing_cases_only(demo, onnxopt, change, code):
    onnxopt(*run_arguments("OffAtC", "--log", "run.jsonl"))
    *log, footer = records(demo / "run.jsonl")
    texts = {"backend": log[0]["backends"][0]["name"], "operator": "Adam", "note": "", "text": ""}
    empty = {"causes": [], "others": {}, "known_mistakes": [], "cases": [], "complete": True}
    explanations = [{**texts, **empty, "others": {"not explained": {"fail": 1}}, **change}]
    write(demo / "run.jsonl", [*log, {**footer, "explanations": explanations}])
    assert onnxopt("report", "render", "run.jsonl", "--report", "badge=-").code == code


@pytest.mark.parametrize("text", ["2026-13-45", "2026-02-30"])
def test_expiry_date_must_exist(demo, onnxopt, text):
    entry = f"{{case: demo/demo/c, outcome: fail, expires: {text}}}"
    (demo / "e.yaml").write_text(f"onnxopt-expect: 1\nexpect: [{entry}]\n")
    answer = onnxopt(*run_arguments("OffAtC", "--expect", "e.yaml"))
    assert (answer.code, "a day of the calendar" in answer.err) == (2, True)


def test_number_beyond_every_type_is_rejected(demo, onnxopt):
    arguments = run_arguments("OffAtC", "--shard", "1/1")
    onnxopt(*arguments, "--log", "run.jsonl", "--report", "json=run.json")
    for name in ("run.jsonl", "run.json"):
        text = (demo / name).read_text()
        number = re.search(r'"max_ulp": ?(\d+)', text)
        huge = f"{text[: number.start(1)]}{10**400}{text[number.end(1) :]}"
        (demo / name).write_text(huge)
        for command in (("render", name, "--report", "html=out.html"), ("diff", name, name)):
            answer = onnxopt("report", *command)
            assert (answer.code, "an integer of 401 digits" in answer.err) == (2, True), answer.err


FORGER = """\
import json, os, re
from pathlib import Path
from onnxopt_cli.backends.resolve import resolve_backend

NUMPY = resolve_backend("numpy")
LOG = Path("run.jsonl")

class Appends:
    def run(self, model, inputs):
        if inputs["R"] == 0.5:
            end = {"record": "footer", "exit_code": 0, "counts": {"pass": 2}}
            end |= {"problems": [], "findings": [], "explanations": []}
            LOG.open("a").write(json.dumps(end) + "\\n")
            return [0, 0]
        return NUMPY.prepare(model).run(inputs)

class Rewrites(Appends):
    def run(self, model, inputs):
        if inputs["R"] != 0.5:
            return super().run(model, inputs)
        with LOG.open("r+b") as file:
            text = file.read()
            file.seek(text.rindex(b'"quiet"'))
            file.write(b'"QUIET"')
        return NUMPY.prepare(model).run(inputs)

class Replaces(Appends):
    def run(self, model, inputs):
        if inputs["R"] == 0.5:
            text = LOG.read_bytes()
            LOG.unlink()
            LOG.write_bytes(text)
        return NUMPY.prepare(model).run(inputs)

class Truncates(Appends):
    def run(self, model, inputs):
        if inputs["R"] == 0.5:
            os.truncate(LOG, 100)
        return NUMPY.prepare(model).run(inputs)

class ReadsDescriptors(Appends):
    def run(self, model, inputs):
        if inputs["R"] == 0.5:
            parent = Path(f"/proc/{os.getppid()}/stat").read_text()
            runner = parent.rpartition(")")[2].split()[1]
            for link in Path(f"/proc/{runner}/fd").iterdir():
                if "jsonl" in os.readlink(link):
                    os.open(link, os.O_RDONLY)
            return [0, 0]
        return NUMPY.prepare(model).run(inputs)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Appends", "Rewrites", "Replaces", "Truncates"])
def test_backend_that_writes_to_the_log_is_detected(tmp_path, onnxopt, monkeypatch, name):
    write_cases(tmp_path, {"a": 0.25, "bad": 0.5, "c": 0.25})
    (tmp_path / "forger.py").write_text(FORGER)
    run = run_to_end(tmp_path, f"python:forger.py:{name}", "-j", "1", "--log", "run.jsonl")
    assert run.code == 2
    assert "another program wrote to it" in run.err
    monkeypatch.chdir(tmp_path)
    if name == "Replaces":
        # onnxopt writes nothing to the file that replaced the log, not even that the log is
        # unreliable.
        return
    for arguments in (
        ("report", "render", "run.jsonl", "--report", "badge=-"),
        ("report", "merge", "run.jsonl", "-o", "all.jsonl"),
        ("explain", "run.jsonl"),
        ("run", "demo.yaml", "-b", f"python:forger.py:{name}", "--resume", "run.jsonl"),
    ):
        answer = onnxopt(*arguments)
        assert (answer.code, "is unreliable" in answer.err) == (2, True), arguments


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_backend_cannot_open_files_of_the_runner(tmp_path):
    write_cases(tmp_path, {"a": 0.25, "bad": 0.5})
    (tmp_path / "forger.py").write_text(FORGER)
    # If the user is root, drop the capability to inspect all processes.
    drop = "import ctypes, os, sys; ctypes.CDLL(None).prctl(24, 19, 0, 0, 0); "
    command = [sys.executable, "-m", "onnxopt_cli", "run", "demo.yaml", "--no-explain"]
    command += [
        "-b",
        "python:forger.py:ReadsDescriptors",
        "--log",
        "run.jsonl",
        "--report",
        "json=r.json",
    ]
    execute = f"{drop}os.execv(sys.argv[1], sys.argv[1:])"
    subprocess.run([sys.executable, "-c", execute, *command], cwd=tmp_path, check=False,
                   capture_output=True)  # fmt: skip
    results = json.loads((tmp_path / "r.json").read_text())["results"]
    (error,) = [result for result in results if result["outcome"] == "error"]
    assert error["case"] == "demo/demo/bad"
    assert "PermissionError" in error["message"]


MEMORY_READER = """\
import os, time
from pathlib import Path

def stat(process):
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()

def children(process):
    return Path(f"/proc/{process}/task/{process}/children").read_text().split()

class Backend:
    def run(self, model, inputs):
        supervisor = os.getppid()
        runner = stat(supervisor)[1]
        siblings = []
        while not siblings:
            siblings = [child for child in children(runner) if child != str(supervisor)]
        # Memory may be readable until the process has executed its program.
        for _ in range(50):
            time.sleep(0.02)
            try:
                os.open(f"/proc/{siblings[0]}/mem", os.O_RDWR)
                break
            except PermissionError as error:
                permission_error = error
        else:
            raise permission_error
        return []
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_backend_cannot_read_the_memory_of_the_reference_worker(tmp_path):
    node = helper.make_node("Sigmoid", ["x"], ["y"])
    values = {name: helper.make_tensor_value_info(name, 1, [2]) for name in "xy"}
    model = helper.make_model(helper.make_graph([node], "g", [values["x"]], [values["y"]]))
    x = np.array([0.5, 2], np.float32)
    make_directory(tmp_path / "test_it", model, [tensor(x)], [tensor(1 / (1 + np.exp(-x)))])
    (tmp_path / "looker.py").write_text(MEMORY_READER)
    # If the user is root, drop the capability to inspect all processes.
    drop = "import ctypes, os, sys; ctypes.CDLL(None).prctl(24, 19, 0, 0, 0); "
    command = [sys.executable, "-m", "onnxopt_cli", "run", "test_it", "--no-explain", "-j", "1"]
    command += ["-b", "python:looker.py:Backend", "--report", "json=r.json"]
    subprocess.run(
        [sys.executable, "-c", f"{drop}os.execv(sys.argv[1], sys.argv[1:])", *command],
        cwd=tmp_path, env=os.environ | {"ONNXOPT_CACHE_DIR": str(tmp_path / "cache")},
        check=False, capture_output=True,
    )  # fmt: skip
    (result,) = json.loads((tmp_path / "r.json").read_text())["results"]
    assert result["outcome"] == "error"
    assert re.search("PermissionError|Read-only file system", result["message"])


def test_log_is_not_writable_by_other_users(demo, onnxopt):
    onnxopt(*run_arguments("numpy", "--log", "run.jsonl"))
    assert (demo / "run.jsonl").stat().st_mode & 0o022 == 0


def put(document, path, value):
    for key in path[:-1]:
        document = document[key]
    document[path[-1]] = value


RESULT = ("results", 0)
OUTPUT = (*RESULT, "outputs", 0)
INVALID_REPORTS = {
    "results removed": (("results",), []),
    "another summary": (("summary",), {"pass": 99}),
    "a case that is a number": ((*RESULT, "case"), 5),
    "infinite seconds": ((*RESULT, "seconds"), float("inf")),
    "a negative number of elements": ((*OUTPUT, "elements"), -1),
    "a share that is a string": ((*OUTPUT, "tolerance_used"), "much"),
    "an infinite count": ((*OUTPUT, "ulp_counts"), [float("inf")]),
    "an error of a step that is a string": ((*RESULT, "curve"), [[1, "much"]]),
    "versions that are a number": (("versions",), 5),
    "options that are a list": (("options",), []),
    "excluded capabilities as a list": (("left_out",), ["double"]),
    "an exit code that is a string": (("exit_code",), "0"),
}


@pytest.fixture
def report(demo, onnxopt):
    assert onnxopt(*run_arguments("numpy", "--report", "json=run.json", "-k", "a")).code == 0
    return json.loads((demo / "run.json").read_text())


def rendered(onnxopt):
    """Return (exit code of rendering, whether the badge is green, exit code of comparing)."""
    answer = onnxopt("report", "render", "run.json", "--report", "badge=-", "--report", "html=h")
    assert "is not a report of onnxopt" in answer.err
    compared = onnxopt("report", "diff", "run.json", "run.json")
    return answer.code, "brightgreen" in answer.out, compared.code


@pytest.mark.parametrize("name", INVALID_REPORTS)
def test_invalid_report_is_rejected(name, report, demo, onnxopt):
    put(report, *INVALID_REPORTS[name])
    (demo / "run.json").write_text(json.dumps(report))
    assert rendered(onnxopt) == (2, False, 2)


def test_report_with_a_duplicate_field_is_rejected(report, demo, onnxopt):
    text = json.dumps(report)
    (demo / "run.json").write_text(text.replace('"results": [', '"results": [], "results": [', 1))
    assert rendered(onnxopt) == (2, False, 2)


def test_shard_without_cases_has_no_green_badge(demo, onnxopt):
    arguments = run_arguments("numpy", "--shard", "7/1000000", "--report", "badge=-", "-q")
    answer = onnxopt(*arguments)
    assert (answer.code, "brightgreen" in answer.out) == (0, False)
