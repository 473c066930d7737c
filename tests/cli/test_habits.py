"""What users of other test runners look for: choosing cases, failures first, going on, hints."""

from __future__ import annotations

import json
import re
from contextlib import redirect_stderr
from io import StringIO
from time import sleep

import pytest
import yaml
from places import PLUGINS
from two_cases import BACKEND, CASE

from onnxopt_cli.cli import console

OFF_BACKEND = ("-b", "python:vendor.py:Off")
IN_PROCESS = ("--isolation", "none", "--no-explain")


@pytest.fixture
def demo(workplace, monkeypatch):
    monkeypatch.setenv("ONNXOPT_CACHE_DIR", str(workplace / "cache"))
    more = CASE.partition("  - name: nesterov")[2]
    head = CASE + "".join(f"  - name: {name}{more}" for name in ("plain_not", "and", "a b (c)"))
    (workplace / "demo.yaml").write_text(head.replace("a b (c)", "other"))
    (workplace / "vendor.py").write_text(BACKEND)
    return workplace


def chosen(onnxopt, *words):
    return [name.rpartition("/")[2] for name in onnxopt("list", "demo.yaml", *words).out.split()]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("plain and not nesterov", "plain plain_not"),
        ("plain and not plain_not", "plain"),
        ("not plain", "nesterov and other"),
        ("*nest* or OTHER", "nesterov other"),
        ("plain or nesterov and other", "plain plain_not"),
        ("(plain or nesterov) and other", ""),
        ("not (plain or nesterov)", "and other"),
        ("not not other", "other"),
        ("and", "and"),
        ("not", "plain_not"),
        ("demo/demo/plain or demo/demo/and", "plain and"),
        ("(other)", "other"),
    ],
)
def test_a_pattern_may_be_an_expression_and_a_word_is_a_word(demo, onnxopt, pattern, names):
    assert chosen(onnxopt, "-k", pattern) == names.split()


@pytest.mark.parametrize(
    ("pattern", "says", "place"),
    [
        ("plain and", "found the end at character 10, expected a word", 9),
        ("plain or or x", 'found "or" at character 10, expected a word', 9),
        ("(plain or x", 'found the end at character 12, expected ")"', 11),
        ("plain x", 'found "x" at character 7, expected "and" or "or"', 6),
        ("plain )", 'found ")" at character 7, expected "and" or "or"', 6),
        ("not", "", 0),
        ("x " + "not " * 2, 'found "not" at character 3', 2),
        ("not " * 300 + "x", "expected fewer parentheses", None),
        ("a and \x1b[31m )", 'found ")"', None),
    ],
)
def test_an_expression_that_cannot_be_read_says_where(demo, onnxopt, pattern, says, place):
    answer = onnxopt("run", "demo.yaml", *IN_PROCESS, "-k", pattern)
    assert answer.code == (2 if says else 0)
    assert says in answer.err
    assert "\x1b[31m" not in answer.err
    if says and place is not None:
        shown, caret = answer.err.splitlines()[-2:]
        assert shown.strip() == pattern.strip()
        assert caret.index("^") - 2 == place


def test_only_what_failed_last_runs_or_runs_first(demo, onnxopt):
    run = ("run", "demo.yaml", *IN_PROCESS, *OFF_BACKEND)
    assert onnxopt(*run, "-k", "plain", "-q").code == 1
    again = onnxopt(*run, "--lf", "-q").out
    assert re.findall(r"^FAIL (\S+)", again, re.MULTILINE) == [
        "demo/demo/plain",
        "demo/demo/plain_not",
    ]
    onnxopt(*run, "-k", "other", "-q")
    # What did not run is remembered as it was.
    assert onnxopt(*run, "--lf", "-q").out.count("FAIL ") == 3
    first = re.findall(r"^FAIL (\S+)", onnxopt(*run, "--ff", "-q").out, re.MULTILINE)
    assert [name.rpartition("/")[2] for name in first] == [
        "plain", "plain_not", "other", "nesterov", "and",
    ]  # fmt: skip


def test_what_passes_again_is_forgotten(demo, onnxopt):
    assert onnxopt("run", "demo.yaml", *IN_PROCESS, *OFF_BACKEND, "-q").code == 1
    assert (
        onnxopt("run", "demo.yaml", *IN_PROCESS, *OFF_BACKEND, "--atol", "1", "-k", "plain").code
        == 0
    )
    answer = onnxopt("run", "demo.yaml", *IN_PROCESS, *OFF_BACKEND, "--lf")
    assert "3 of 5 cases from demo.yaml" in answer.out


def test_failures_are_those_of_the_backend_and_of_the_folder(demo, onnxopt, monkeypatch):
    onnxopt("run", "demo.yaml", *IN_PROCESS, *OFF_BACKEND, "-k", "plain")
    other = onnxopt("run", "demo.yaml", *IN_PROCESS, "--lf")
    assert "no earlier run on numpy is known here: all cases run" in other.err
    assert "5 pass" in other.out
    both = onnxopt("run", "demo.yaml", *IN_PROCESS, *OFF_BACKEND, "-b", "numpy", "--lf")
    assert "2 of 5 cases" in both.out
    (demo / "else").mkdir()
    monkeypatch.chdir(demo / "else")
    assert "5 cases" in onnxopt("run", "../demo.yaml", "--lf", *IN_PROCESS).out


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"a": 1}', '{"a": {"b": [1]}}', "\x00" * 99])
def test_a_damaged_memory_is_as_none(demo, onnxopt, content):
    onnxopt("run", "demo.yaml", *IN_PROCESS, *OFF_BACKEND)
    memory = demo / "cache" / "last-failures.json"
    assert memory.exists()
    memory.write_text(content)
    answer = onnxopt("run", "demo.yaml", *IN_PROCESS, *OFF_BACKEND, "--lf")
    assert answer.code == 1
    assert "no earlier run" in answer.err
    assert "5 fail" in answer.out


def test_a_cache_that_takes_nothing_is_in_no_run_s_way(demo, onnxopt):
    (demo / "cache").write_text("a file where a folder should be")
    answer = onnxopt("run", "demo.yaml", *IN_PROCESS, *OFF_BACKEND, "--ff")
    assert (answer.code, "5 fail" in answer.out) == (1, True)
    assert (demo / "cache").read_text().startswith("a file")


def cut(path, lines):
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:lines]))


def test_a_log_says_what_to_go_on_with(demo, onnxopt):
    begun = ("run", "demo.yaml", "-k", "plain", "--rtol", "0.5", "--memory", "none")
    onnxopt(*begun, "--log", "run.jsonl")
    cut(demo / "run.jsonl", 3)
    answer = onnxopt("run", "--resume", "run.jsonl")
    assert answer.code == 0, answer.text
    assert "2 of 5 cases from demo.yaml on numpy" in answer.out
    assert {"-k plain", "--rtol 0.5", "--memory none"} <= set(
        re.findall(r"--?[a-z]+ [\w.]+", answer.err.partition("options from the log: ")[2])
    )
    assert json.loads((demo / "run.jsonl").read_text().splitlines()[-1])["exit_code"] == 0


def test_a_log_of_which_nothing_is_written_does_not_say_what_to_run(demo, onnxopt):
    (demo / "run.jsonl").touch()
    answer = onnxopt("run", "--resume", "run.jsonl")
    assert (answer.code, "run.jsonl is empty" in answer.err) == (2, True), answer.text
    assert onnxopt("run", "demo.yaml", "--resume", "run.jsonl").code == 0


@pytest.mark.parametrize("option", ["--lf", "--ff"])
def test_a_log_of_what_failed_last_is_gone_on_with_whatever_failed_since(demo, onnxopt, option):
    run = ("run", "demo.yaml", *IN_PROCESS, *OFF_BACKEND)
    onnxopt(*run, "-k", "nesterov", "-k", "other")
    before = onnxopt(*run, option, "--log", "run.jsonl")
    cut(demo / "run.jsonl", 3)
    onnxopt(*run, "-k", "nesterov", "--atol", "1")
    answer = onnxopt("run", "--resume", "run.jsonl", *IN_PROCESS, *OFF_BACKEND)
    assert before.code == answer.code == 1, answer.text
    assert ("2 fail" if option == "--lf" else "5 fail") in answer.out


def test_a_log_does_not_choose_code_that_runs(demo, onnxopt):
    onnxopt("run", "demo.yaml", *IN_PROCESS, *OFF_BACKEND, "--log", "run.jsonl")
    cut(demo / "run.jsonl", 3)
    (demo / "vendor.py").write_text("open('ran', 'w')\n" + BACKEND)
    refused = onnxopt("run", "--resume", "run.jsonl")
    assert refused.code == 2
    assert "the backend python:vendor.py:Off, which runs code that a log must not" in refused.err
    assert "-b BACKEND" in refused.err
    assert not (demo / "ran").exists()
    (demo / "vendor.py").write_text(BACKEND)
    answer = onnxopt("run", "--resume", "run.jsonl", *IN_PROCESS, *OFF_BACKEND)
    assert (answer.code, "5 fail" in answer.out) == (1, True), answer.text


@pytest.mark.parametrize(
    "change",
    [
        {"rtol": "--report=json=out.json"},
        {"patterns": True},
        {"lower": ["--operators", "vendor.py"]},
        {"targets": ["--operators", "vendor.py"]},
        {"memory": {"a": 1}},
        {"rerun": 10**9},
        {"targets": ["--help"]},
    ],
)
def test_what_no_option_can_be_is_refused(demo, onnxopt, change):
    onnxopt("run", "demo.yaml", *IN_PROCESS, "--log", "run.jsonl")
    header, *others = (demo / "run.jsonl").read_text().splitlines(keepends=True)
    header = json.loads(header)
    header["options"] |= change
    (demo / "run.jsonl").write_text(json.dumps(header, separators=(",", ":")) + "\n" + others[0])
    (demo / "vendor.py").write_text("open('ran', 'w')\n" + BACKEND)
    answer = onnxopt("run", "--resume", "run.jsonl")
    # As text a pattern may be anything, and selects nothing.
    assert answer.code == (5 if "patterns" in change else 2), answer.text
    assert not {"ran", "out.json"} & {path.name for path in demo.iterdir()}


def test_cases_may_be_json(demo, onnxopt):
    document = yaml.safe_load((demo / "demo.yaml").read_text())
    document["suite"] = "json"
    (demo / "tabs.json").write_text(json.dumps(document, indent="\t"))
    (demo / "tight.json").write_text(json.dumps(document, separators=(",", ":")))
    (demo / "report.json").write_text('{"versions": {"onnxopt": "1.2"}}')
    listed = onnxopt("list", ".").out.split()
    assert "json/tabs/plain" in listed
    assert len(listed) == 15
    assert onnxopt("run", "tabs.json", "tight.json", *IN_PROCESS).code == 0
    (demo / "tabs.json").write_text(json.dumps({**document, "cases": [{"name": 1}]}, indent="\t"))
    wrong = onnxopt("list", "tabs.json")
    assert (wrong.code, "tabs.json:" in wrong.err) == (2, True)
    assert onnxopt("list", "report.json").code == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "demo.yaml", "-k", "nestrov"], "did you mean nesterov?"),
        (["run", "demo.yaml", "-k", "plain and not nestrov"], "did you mean nesterov?"),
        (["run", "conformance/adam/T_99"], "did you mean conformance/adam/T_"),
        (["list", "conformance", "-k", "T_99"], "did you mean T_"),
        (["show", "Adan"], "did you mean Adam?"),
        (["audit", "spec", "--operator", "Adan"], "did you mean Adam"),
        (["fuzz", "-b", "numpy", "--operator", "Adan"], "did you mean Adam?"),
        (["run", "demo.yaml", "-b", "onnx-refrence"], "did you mean onnx-reference"),
        (["run", "demo.yaml", "-b", "onnxruntime,providr=x"], "did you mean provider?"),
        (["run", "conformanc"], "did you mean conformance?"),
        (["run", "demo.yaml", "--report", "htlm=x"], "did you mean html?"),
        (["run", "wrong.yaml"], "did you mean Adam?"),
        (["run", "type.yaml"], "did you mean float64?"),
        (["run", "attribute.yaml"], "did you mean norm_coefficient?"),
        (["run", "demo.yaml", "--tag", "ordinari"], "did you mean ordinary?"),
    ],
)
def test_a_misspelt_name_meets_the_right_one(demo, onnxopt, words, says):
    (demo / "wrong.yaml").write_text(CASE.replace("Momentum", "Adan"))
    (demo / "type.yaml").write_text(
        CASE.replace("X: [1.0, 2.0]", "X: {dtype: flaot64, shape: [2], data: [1, 2]}")
    )
    (demo / "attribute.yaml").write_text(CASE.replace("norm_coefficient", "norm_coeficient"))
    answer = onnxopt(*words)
    assert says in " ".join(answer.err.split())


# The operator of which there are the fewest implementations.
PENALTY = """\
onnxopt: 1
suite: penalty
operator: AdmmPenalty
cases:
  - name: one
    attributes: {rho: 0.5}
    inputs: {loss: 1.0, W: [1.0], Z: [0.5], U: [0.25]}
"""


def test_an_audit_says_how_far_it_is_where_there_is_no_terminal(demo, onnxopt, monkeypatch):
    monkeypatch.setattr(console, "TELL_SECONDS", 0.0)
    (demo / "penalty.yaml").write_text(PENALTY)
    answer = onnxopt("audit", "penalty.yaml", "-j", "1")
    lines = [line for line in answer.err.splitlines() if line.startswith("auditing")]
    said = r"auditing: 1 of \d+, [\d.e+-]+ steps/s, \d+ s left"
    assert re.fullmatch(said, lines[0])
    done, total = re.findall(r"(\d+) of (\d+)", lines[-1])[0]
    assert done == total


def test_a_search_says_how_far_it_is_where_there_is_no_terminal(demo, onnxopt, monkeypatch):
    pytest.importorskip("hypothesis")
    monkeypatch.setattr(console, "TELL_SECONDS", 0.0)
    options = ("--operator", "AdmmPenalty", "-b", "numpy", "--no-explain", "--isolation", "none")
    answer = onnxopt("fuzz", *options, "--examples", "20")
    said = r"searching: 20 of 20, [\d.e+-]+ examples/s, 0 s left, 0 failures"
    assert re.fullmatch(said, answer.err.splitlines()[-1])
    answer = onnxopt("fuzz", *options, "--time", "1")
    said = r"searching: \d+, [\d.e+-]+ examples/s, 0 failures"
    assert re.fullmatch(said, answer.err.splitlines()[-1])


def test_reading_many_files_says_how_far_it_is(demo, onnxopt, monkeypatch):
    monkeypatch.setattr(console, "TELL_SECONDS", 0.0)
    (demo / "more").mkdir()
    for name in ("one", "two"):
        (demo / f"more/{name}.yaml").write_text(f"{PENALTY}".replace("penalty", name))
    answer = onnxopt("run", "more", *IN_PROCESS)
    said = r"reading: 2 of 2, [\d.e+-]+ files/s, 0 s left"
    assert any(re.fullmatch(said, line) for line in answer.err.splitlines())


@pytest.mark.parametrize("command", ["list", "audit", "show", "run"])
def test_making_the_cases_of_a_suite_says_how_far_it_is(demo, onnxopt, monkeypatch, command):
    monkeypatch.setattr(console, "TELL_SECONDS", 0.0)
    answer = onnxopt(command, "trajectories/admmupdate")
    said = r"making cases: 0 of 1, 0 operators/s"
    assert any(re.fullmatch(said, line) for line in answer.err.splitlines()), answer.err


def test_a_terminal_shows_how_far_it_is_while_other_output_is_thrown_away(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    terminal = console._Console(stderr=True)
    monkeypatch.setattr(console, "stderr", lambda: terminal)
    with console.ticking("making", "files") as tick, redirect_stderr(StringIO()):
        tick(1, 2)
        sleep(0.5)
        tick(2, 2)
    assert "making: 1 of 2" in capsys.readouterr().err


def test_a_run_says_how_far_it_is_where_there_is_no_terminal(demo, onnxopt, monkeypatch):
    assert onnxopt("run", "demo.yaml", *IN_PROCESS, *OFF_BACKEND).err == ""
    monkeypatch.setattr(console, "TELL_SECONDS", 0.0)
    answer = onnxopt("run", "demo.yaml", *IN_PROCESS, *OFF_BACKEND)
    said = r"running: 5 of 5, [\d.e+]+ cases/s, 0 s left, 5 not conforming"
    assert re.fullmatch(said, answer.err.splitlines()[-1])


def test_the_help_of_run_lists_options_in_parts(onnxopt):
    shown = onnxopt("run", "--help").out
    parts = re.findall(r"^(\w[\w ]+):$", shown, re.MULTILINE)
    assert parts[:2] == ["Which cases", "Backends"]
    assert parts[-1] == "Others"
    rest = shown.partition("\nOthers:\n")[2]
    assert re.findall(r"^  (-[-\w]+)", rest, re.MULTILINE) == ["--profile", "--operators", "-h"]


def test_the_slowest_cases_are_shown_when_asked_for(workplace, onnxopt):
    (workplace / "slow.py").write_text(
        "import time\n"
        f"import sys; sys.path.insert(0, {str(PLUGINS)!r})\n"
        "from mistaken import Right\n"
        "class Backend(Right):\n"
        "    def run(self, model, inputs):\n"
        "        time.sleep(0.5 * (model.graph.node[0].op_type == 'Adagrad'))\n"
        "        return super().run(model, inputs)\n"
    )
    backend = "python:slow.py:Backend"
    out = onnxopt("run", "spec", "-b", backend, "--isolation", "none", "--durations", "2").out
    lines = out[out.index("slowest cases") :].splitlines()[1:3]
    assert all("adagrad" in line and " s" in line for line in lines)
    assert "slowest" not in onnxopt("run", "spec").out
