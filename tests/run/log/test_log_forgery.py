"""A log is evidence: what no run writes is refused, and never makes a failure pass."""

from __future__ import annotations

import copy
import json
import os
import random
import re
import subprocess
import sys

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
    """Write the log of a run with one error, as the only shard; return its records."""
    assert onnxopt(*ARGUMENTS, "--log", "run.jsonl").code == 1
    return records(demo / "run.jsonl")


def write(path, lines):
    path.write_text("".join(f"{json.dumps(it)}\n" for it in lines))


def verdicts(onnxopt, demo):
    """Return what each reader makes of the log: exit codes, the badge's colour."""
    (demo / "all.jsonl").unlink(missing_ok=True)
    (demo / "b.json").unlink(missing_ok=True)
    merged = onnxopt("report", "merge", "run.jsonl", "-o", "all.jsonl").code
    rendered = onnxopt("report", "render", "run.jsonl", "--report", "badge=b.json").code
    badge = json.loads((demo / "b.json").read_text())["color"] if rendered == 0 else "none"
    return merged, badge, onnxopt(*ARGUMENTS, "--resume", "run.jsonl").code


def passing(record):
    """Return a result's record as one that passes."""
    record = copy.deepcopy(record)
    record["result"] |= PASS | {"flaky": ""}
    return record


def failing(lines):
    return next(it for it in lines if it["record"] == "end" and it["result"]["outcome"] == "error")


def rerun(lines):
    return {**passing(failing(lines)), "record": "rerun"}


def forged_footer(lines):
    return {**lines[-1], "exit_code": 0, "counts": {"pass": 3}}


FORGERIES = {
    "a rerun that passes": lambda it: [*it[:-1], rerun(it), forged_footer(it)],
    "a rerun after the footer": lambda it: [*it, rerun(it)],
    "a second footer": lambda it: [*it, forged_footer(it)],
    "another footer": lambda it: [*it[:-1], forged_footer(it)],
    "another exit code": lambda it: [*it[:-1], {**it[-1], "exit_code": 0}],
    "an exit code of no run": lambda it: [*it[:-1], {**it[-1], "exit_code": 3}],
    "a second result": lambda it: [*it[:-1], passing(failing(it)), it[-1]],
    "a resume after the end": lambda it: [*it, {"record": "resume", "at": it[0]["started"]}],
    "a resume with results": lambda it: [
        *it[:-1],
        {"record": "resume", "at": it[0]["started"]},
        passing(failing(it)),
        forged_footer(it),
    ],
    "a result of a case that is none": lambda it: [
        *it[:-1],
        {"record": "start", "case": "demo/demo/z", "backend": failing(it)["result"]["backend"]},
        {"record": "end", "result": {**passing(failing(it))["result"], "case": "demo/demo/z"}},
        it[-1],
    ],
    "a result outside of cases that passes": lambda it: [
        *it[:-1],
        {"record": "end", "result": {**passing(failing(it))["result"], "case": "worker/teardown"}},
        it[-1],
    ],
    "a result without a start": lambda it: [line for line in it if line["record"] != "start"],
    "a failure left out": lambda it: [line for line in it if line is not failing(it)],
    "no such day": lambda it: [{**it[0], "started": "2026-13-45T00:00:00Z"}, *it[1:]],
    "no such time": lambda it: [{**it[0], "started": "2026-01-31T99:99:99Z"}, *it[1:]],
    "no such year": lambda it: [{**it[0], "started": "0000-01-31T00:00:00Z"}, *it[1:]],
    "no such day of a resume": lambda it: [
        *it[:-1],
        {"record": "resume", "at": "2026-02-30T00:00:00Z"},
        it[-1],
    ],
    "no backend": lambda it: [{**it[0], "backends": []}, *it[1:]],
    "a backend twice": lambda it: [{**it[0], "backends": it[0]["backends"] * 2}, *it[1:]],
}


@pytest.mark.parametrize("how", FORGERIES)
def test_a_log_that_no_run_writes_is_refused(demo, onnxopt, shard, how):
    write(demo / "run.jsonl", FORGERIES[how](shard))
    before = (demo / "run.jsonl").read_bytes()
    assert verdicts(onnxopt, demo) == (2, "none", 2)
    assert (demo / "run.jsonl").read_bytes() == before
    assert not (demo / "all.jsonl").exists()


def test_without_rerun_no_rerun_is_taken(demo, onnxopt):
    onnxopt(*run_arguments("NowAndThen", "--rerun", "1", "--shard", "1/1", "--log", "run.jsonl"))
    header, *rest = records(demo / "run.jsonl")
    assert any(it["record"] == "rerun" for it in rest)
    header["options"]["rerun"] = None
    write(demo / "run.jsonl", [header, *rest])
    answer = onnxopt("report", "merge", "run.jsonl", "-o", "all.jsonl")
    assert (answer.code, "the run had no --rerun" in answer.err) == (2, True)


@pytest.mark.parametrize("standing", ["expected", "unexpected-pass"])
def test_no_standing_comes_from_nowhere(demo, onnxopt, shard, standing):
    failing(shard)["result"]["standing"] = standing
    write(demo / "run.jsonl", shard)
    assert verdicts(onnxopt, demo) == (2, "none", 2)


def test_an_expected_failure_names_what_expects_it(demo, onnxopt):
    (demo / "e.yaml").write_text(
        "onnxopt-expect: 1\nexpect: [{case: demo/demo/c, outcome: fail}]\n"
    )
    arguments = run_arguments("RaisesAtB", "--expect", "e.yaml", "--shard", "1/1")
    assert onnxopt(*arguments, "--log", "run.jsonl").code == 1
    lines = records(demo / "run.jsonl")
    failing(lines)["result"] |= {"standing": "expected", "expectation": "expected fail (e.yaml:2)"}
    lines[-1]["exit_code"] = 0
    write(demo / "run.jsonl", lines)
    answer = onnxopt("report", "merge", "run.jsonl", "-o", "all.jsonl")
    assert (answer.code, "is expected, but not by the entry" in answer.err) == (2, True)


@pytest.mark.parametrize("text", ["2026-13-45", "2026-02-30"])
def test_an_entry_expires_on_a_day_of_the_calendar(demo, onnxopt, text):
    entry = f"{{case: demo/demo/c, outcome: fail, expires: {text}}}"
    (demo / "e.yaml").write_text(f"onnxopt-expect: 1\nexpect: [{entry}]\n")
    answer = onnxopt(*run_arguments("OffAtC", "--expect", "e.yaml"))
    assert (answer.code, "a day of the calendar" in answer.err) == (2, True)


def test_a_number_that_no_type_holds_is_refused(demo, onnxopt):
    arguments = run_arguments("OffAtC", "--shard", "1/1")
    onnxopt(*arguments, "--log", "run.jsonl", "--report", "json=run.json")
    for name in ("run.jsonl", "run.json"):
        text = (demo / name).read_text()
        number = re.search(r'"max_ulp": ?(\d+)', text)
        huge = f"{text[: number.start(1)]}{10**400}{text[number.end(1) :]}"
        (demo / name).write_text(huge)
        for asked in (("render", name, "--report", "html=out.html"), ("diff", name, name)):
            answer = onnxopt("report", *asked)
            assert (answer.code, "an integer of 401 digits" in answer.err) == (2, True), answer.err


def test_a_json_report_that_contradicts_itself_is_refused(demo, onnxopt):
    onnxopt(*run_arguments("OffAtC", "--report", "json=run.json"))
    report = json.loads((demo / "run.json").read_text())
    (demo / "run.json").write_text(json.dumps({**report, "exit_code": 0}))
    answer = onnxopt("report", "render", "run.json", "--report", "badge=-")
    assert (answer.code, "brightgreen" in answer.text) == (2, False)
    next(it for it in report["results"] if it["outcome"] == "fail")["outcome"] = "pass"
    (demo / "run.json").write_text(json.dumps({**report, "exit_code": 0}))
    answer = onnxopt("report", "render", "run.json", "--report", "badge=-")
    assert (answer.code, "brightgreen" in answer.text) == (2, False)


def damage(lines, pick):
    """Return the log with one thing in it done to it; a value is another that it could have."""
    lines = copy.deepcopy(lines)
    place = pick.randrange(len(lines))
    way = pick.choice(("remove", "repeat", "swap", "cut", "insert", "value", "value", "value"))
    if way == "remove":
        del lines[place]
    elif way == "repeat":
        lines.insert(pick.randrange(len(lines) + 1), lines[place])
    elif way == "swap":
        other = pick.randrange(len(lines))
        lines[place], lines[other] = lines[other], lines[place]
    elif way == "cut":
        del lines[place:]
    elif way == "insert":
        at = pick.randrange(1, len(lines) + 1)
        lines.insert(
            at, pick.choice((rerun, forged_footer, lambda it: passing(failing(it))))(lines)
        )
    else:
        results = [it["result"] for it in lines if "result" in it]
        chosen = pick.choice(results)
        chosen |= pick.choice(
            (
                {"outcome": pick.choice(["pass", "skip", "not-run", "unsupported", "invalid"])},
                {"standing": pick.choice(["expected", "flaky", "changed", None])},
                {"backend": "numpy"},
                {"case": pick.choice(["demo/demo/a", "worker/x", "demo/demo/z"])},
                {"flaky": "1 of 2 passed"},
                {"standing": "expected", "expectation": "expected error (x.yaml:1)"},
            )
        )
    return lines


@pytest.mark.slow
def test_no_damage_makes_a_failing_run_pass(demo, onnxopt, shard):
    for seed in range(150):
        pick = random.Random(seed)  # noqa: S311 - to be the same each time
        try:
            damaged = damage(shard, pick)
            damaged = damage(damaged, pick) if seed % 2 else damaged
        except (StopIteration, IndexError):
            continue
        write(demo / "run.jsonl", damaged)
        merged, badge, resumed = verdicts(onnxopt, demo)
        assert merged != 0, seed
        assert badge != "brightgreen", seed
        assert resumed != 0, seed


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

class Spies(Appends):
    def run(self, model, inputs):
        if inputs["R"] == 0.5:
            parent = Path(f"/proc/{os.getppid()}/stat").read_text()
            runner = parent.rpartition(")")[2].split()[1]
            reached = [os.open(it, os.O_RDONLY) for it in Path(f"/proc/{runner}/fd").iterdir()
                       if "jsonl" in os.readlink(it)]
            return [0, 0]
        return NUMPY.prepare(model).run(inputs)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Appends", "Rewrites", "Replaces", "Truncates"])
def test_a_backend_that_writes_to_the_log_is_found_out(tmp_path, onnxopt, monkeypatch, name):
    write_cases(tmp_path, {"a": 0.25, "bad": 0.5, "c": 0.25})
    (tmp_path / "forger.py").write_text(FORGER)
    run = run_to_end(
        tmp_path, f"python:forger.py:{name}", "-j", "1", "--log", "run.jsonl", "--no-explain"
    )
    assert run.code == 2
    assert "another program wrote to it" in run.err
    monkeypatch.chdir(tmp_path)
    if name == "Replaces":
        # What stands there now is not ours to change.
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
def test_a_backend_cannot_open_what_the_runner_has_open(tmp_path):
    write_cases(tmp_path, {"a": 0.25, "bad": 0.5})
    (tmp_path / "forger.py").write_text(FORGER)
    # Root may look into every process; without that right it is as any user.
    drop = "import ctypes, os, sys; ctypes.CDLL(None).prctl(24, 19, 0, 0, 0); "
    command = [sys.executable, "-m", "onnxopt_cli", "run", "demo.yaml", "--no-explain"]
    command += ["-b", "python:forger.py:Spies", "--log", "run.jsonl", "--report", "json=r.json"]
    execute = f"{drop}os.execv(sys.argv[1], sys.argv[1:])"
    subprocess.run([sys.executable, "-c", execute, *command], cwd=tmp_path, check=False,
                   capture_output=True)  # fmt: skip
    results = json.loads((tmp_path / "r.json").read_text())["results"]
    assert {it["case"]: it["outcome"] for it in results}["demo/demo/bad"] == "error"
    assert "PermissionError" in next(it["message"] for it in results if it["outcome"] == "error")


LOOKER = """\
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
        others = []
        while not others:
            others = [it for it in children(runner) if it != str(supervisor)]
        # It may execute something yet.
        for _ in range(50):
            time.sleep(0.02)
            try:
                os.open(f"/proc/{others[0]}/mem", os.O_RDWR)
                break
            except PermissionError as error:
                refused = error
        else:
            raise refused
        return []
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_backend_cannot_look_into_the_process_that_says_what_is_right(tmp_path):
    node = helper.make_node("Sigmoid", ["x"], ["y"])
    values = {name: helper.make_tensor_value_info(name, 1, [2]) for name in "xy"}
    model = helper.make_model(helper.make_graph([node], "g", [values["x"]], [values["y"]]))
    x = np.array([0.5, 2], np.float32)
    make_directory(tmp_path / "test_it", model, [tensor(x)], [tensor(1 / (1 + np.exp(-x)))])
    (tmp_path / "looker.py").write_text(LOOKER)
    # Root may look into every process; without that right it is as any user.
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
    assert "PermissionError" in result["message"]


def test_what_others_may_write_is_no_log(demo, onnxopt):
    onnxopt(*run_arguments("numpy", "--log", "run.jsonl"))
    assert (demo / "run.jsonl").stat().st_mode & 0o022 == 0


def put(document, place, value):
    for step in place[:-1]:
        document = document[step]
    document[place[-1]] = value


RESULT = ("results", 0)
OUTPUT = (*RESULT, "outputs", 0)
FALSE_REPORTS = {
    "results left out": (("results",), []),
    "another summary": (("summary",), {"pass": 99}),
    "a pass outside of cases": ((*RESULT, "case"), "worker/teardown"),
    "a case that is a number": ((*RESULT, "case"), 5),
    "a standing without expectations": ((*RESULT, "standing"), "expected"),
    "time that never ends": ((*RESULT, "seconds"), float("inf")),
    "less than no elements": ((*OUTPUT, "elements"), -1),
    "a share that is a text": ((*OUTPUT, "tolerance_used"), "much"),
    "an infinite count": ((*OUTPUT, "ulp_counts"), [float("inf")]),
    "a step that is a text": ((*RESULT, "curve"), [[1, "much"]]),
    "no versions": (("versions",), 5),
    "no options": (("options",), []),
    "what was left out as a list": (("left_out",), ["double"]),
    "an exit code that is a text": (("exit_code",), "0"),
}


@pytest.fixture
def report(demo, onnxopt):
    assert onnxopt(*run_arguments("numpy", "--report", "json=run.json", "-k", "a")).code == 0
    return json.loads((demo / "run.json").read_text())


def rendered(onnxopt):
    """Return what reading the report comes to, whether there is a green badge, and a comparison."""
    answer = onnxopt("report", "render", "run.json", "--report", "badge=-", "--report", "html=h")
    assert "is not a report of onnxopt" in answer.err
    compared = onnxopt("report", "diff", "run.json", "run.json")
    return answer.code, "brightgreen" in answer.out, compared.code


@pytest.mark.parametrize("name", FALSE_REPORTS)
def test_a_report_that_no_run_writes_is_refused(name, report, demo, onnxopt):
    put(report, *FALSE_REPORTS[name])
    (demo / "run.json").write_text(json.dumps(report))
    assert rendered(onnxopt) == (2, False, 2)


def test_a_report_with_a_field_twice_is_refused(report, demo, onnxopt):
    text = json.dumps(report)
    (demo / "run.json").write_text(text.replace('"results": [', '"results": [], "results": [', 1))
    assert rendered(onnxopt) == (2, False, 2)


def test_no_results_are_no_green_badge(report, demo, onnxopt):
    (demo / "run.json").write_text(json.dumps(report | {"results": [], "summary": {}}))
    assert rendered(onnxopt) == (2, False, 2)
    arguments = run_arguments("numpy", "--shard", "7/1000000", "--report", "badge=-", "-q")
    answer = onnxopt(*arguments)
    assert (answer.code, "brightgreen" in answer.out) == (0, False)
