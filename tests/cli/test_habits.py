"""The command follows conventions of other test runners, such as ``--lf`` and ``-k``."""

from __future__ import annotations

import json
import os
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
    fields = CASE.partition("  - name: nesterov")[2]
    names = ("plain_not", "and", "other")
    text = CASE + "".join(f"  - name: {name}{fields}" for name in names)
    (workplace / "demo.yaml").write_text(text)
    (workplace / "vendor.py").write_text(BACKEND)
    return workplace


def listed_names(onnxopt, *words):
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
def test_pattern_may_be_an_expression(demo, onnxopt, pattern, names):
    assert listed_names(onnxopt, "-k", pattern) == names.split()


@pytest.mark.parametrize(
    ("pattern", "message", "position"),
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
def test_error_shows_the_position_in_an_invalid_expression(
    demo, onnxopt, pattern, message, position
):
    answer = onnxopt("run", "demo.yaml", *IN_PROCESS, "-k", pattern)
    assert answer.code == (2 if message else 0)
    assert message in answer.err
    assert "\x1b[31m" not in answer.err
    if message and position is not None:
        expression, caret = answer.err.splitlines()[-2:]
        assert expression.strip() == pattern.strip()
        assert caret.index("^") - 2 == position


def test_last_failures_run_alone_or_first(demo, onnxopt):
    run = ("run", "demo.yaml", *IN_PROCESS, *OFF_BACKEND)
    assert onnxopt(*run, "-k", "plain", "-q").code == 1
    repeated = onnxopt(*run, "--lf", "-q").out
    assert re.findall(r"^FAIL (\S+)", repeated, re.MULTILINE) == [
        "demo/demo/plain",
        "demo/demo/plain_not",
    ]
    onnxopt(*run, "-k", "other", "-q")
    # The option --lf considers the last outcome of each case, including outcomes of earlier runs.
    assert onnxopt(*run, "--lf", "-q").out.count("FAIL ") == 3
    first = re.findall(r"^FAIL (\S+)", onnxopt(*run, "--ff", "-q").out, re.MULTILINE)
    assert [name.rpartition("/")[2] for name in first] == [
        "plain", "plain_not", "other", "nesterov", "and",
    ]  # fmt: skip


def test_case_that_passes_again_is_not_a_last_failure(demo, onnxopt):
    assert onnxopt("run", "demo.yaml", *IN_PROCESS, *OFF_BACKEND, "-q").code == 1
    assert (
        onnxopt("run", "demo.yaml", *IN_PROCESS, *OFF_BACKEND, "--atol", "1", "-k", "plain").code
        == 0
    )
    answer = onnxopt("run", "demo.yaml", *IN_PROCESS, *OFF_BACKEND, "--lf")
    assert "3 of 5 cases from demo.yaml" in answer.out


def test_last_failures_are_kept_by_backend_and_folder(demo, onnxopt, monkeypatch):
    onnxopt("run", "demo.yaml", *IN_PROCESS, *OFF_BACKEND, "-k", "plain")
    on_numpy = onnxopt("run", "demo.yaml", *IN_PROCESS, "--lf")
    assert "no earlier run on numpy in this folder is known: all cases run" in on_numpy.err
    assert "5 pass" in on_numpy.out
    on_both = onnxopt("run", "demo.yaml", *IN_PROCESS, *OFF_BACKEND, "-b", "numpy", "--lf")
    assert "2 of 5 cases" in on_both.out
    (demo / "else").mkdir()
    monkeypatch.chdir(demo / "else")
    assert "5 cases" in onnxopt("run", "../demo.yaml", "--lf", *IN_PROCESS).out


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"a": 1}', '{"a": {"b": [1]}}', "\x00" * 99])
def test_damaged_file_of_last_failures_is_ignored(demo, onnxopt, content):
    onnxopt("run", "demo.yaml", *IN_PROCESS, *OFF_BACKEND)
    memory = demo / "cache" / "last-failures.json"
    assert memory.exists()
    memory.write_text(content)
    answer = onnxopt("run", "demo.yaml", *IN_PROCESS, *OFF_BACKEND, "--lf")
    assert answer.code == 1
    assert "no earlier run" in answer.err
    assert "5 fail" in answer.out


def test_run_does_not_need_a_writable_cache(demo, onnxopt):
    (demo / "cache").write_text("a file where a folder should be")
    answer = onnxopt("run", "demo.yaml", *IN_PROCESS, *OFF_BACKEND, "--ff")
    assert (answer.code, "5 fail" in answer.out) == (1, True)
    assert (demo / "cache").read_text().startswith("a file")


def test_file_of_last_failures_replaces_a_pipe_of_the_same_name(demo, onnxopt):
    memory = demo / "cache" / "last-failures.json"
    memory.parent.mkdir()
    os.mkfifo(memory)
    onnxopt("run", "demo.yaml", *IN_PROCESS, *OFF_BACKEND)
    assert memory.is_file()


def test_run_does_not_need_a_cache_with_a_valid_path(demo, monkeypatch, onnxopt):
    monkeypatch.setenv("ONNXOPT_CACHE_DIR", "x" * 5_000)
    assert onnxopt("run", "demo.yaml", *IN_PROCESS).code == 0


def cut(path, lines):
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:lines]))


def test_options_of_a_resumed_run_come_from_its_log(demo, onnxopt):
    run = ("run", "demo.yaml", "-k", "plain", "--rtol", "0.5", "--memory", "none")
    onnxopt(*run, "--log", "run.jsonl")
    cut(demo / "run.jsonl", 3)
    answer = onnxopt("run", "--resume", "run.jsonl")
    assert answer.code == 0, answer.text
    assert "2 of 5 cases from demo.yaml on numpy" in answer.out
    assert {"-k plain", "--rtol 0.5", "--memory none"} <= set(
        re.findall(r"--?[a-z]+ [\w.]+", answer.err.partition("options from the log: ")[2])
    )
    assert json.loads((demo / "run.jsonl").read_text().splitlines()[-1])["exit_code"] == 0


def test_empty_log_does_not_contain_the_options_of_a_run(demo, onnxopt):
    (demo / "run.jsonl").touch()
    answer = onnxopt("run", "--resume", "run.jsonl")
    assert (answer.code, "run.jsonl is empty" in answer.err) == (2, True), answer.text
    assert onnxopt("run", "demo.yaml", "--resume", "run.jsonl").code == 0


@pytest.mark.parametrize("option", ["--lf", "--ff"])
def test_run_of_last_failures_is_resumed_with_the_same_cases(demo, onnxopt, option):
    run = ("run", "demo.yaml", *IN_PROCESS, *OFF_BACKEND)
    onnxopt(*run, "-k", "nesterov", "-k", "other")
    before = onnxopt(*run, option, "--log", "run.jsonl")
    cut(demo / "run.jsonl", 3)
    onnxopt(*run, "-k", "nesterov", "--atol", "1")
    answer = onnxopt("run", "--resume", "run.jsonl", *IN_PROCESS, *OFF_BACKEND)
    assert before.code == answer.code == 1, answer.text
    assert ("2 fail" if option == "--lf" else "5 fail") in answer.out


def test_log_does_not_select_code_to_run(demo, onnxopt):
    onnxopt("run", "demo.yaml", *IN_PROCESS, *OFF_BACKEND, "--log", "run.jsonl")
    cut(demo / "run.jsonl", 3)
    (demo / "vendor.py").write_text("open('ran', 'w')\n" + BACKEND)
    refused = onnxopt("run", "--resume", "run.jsonl")
    assert refused.code == 2
    assert "the backend python:vendor.py:Off, and a log must not select code to run" in refused.err
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
def test_invalid_options_in_a_log_are_rejected(demo, onnxopt, change):
    onnxopt("run", "demo.yaml", *IN_PROCESS, "--log", "run.jsonl")
    first_line, second_line, *_ = (demo / "run.jsonl").read_text().splitlines(keepends=True)
    header = json.loads(first_line)
    header["options"] |= change
    (demo / "run.jsonl").write_text(json.dumps(header, separators=(",", ":")) + "\n" + second_line)
    (demo / "vendor.py").write_text("open('ran', 'w')\n" + BACKEND)
    answer = onnxopt("run", "--resume", "run.jsonl")
    # Any text is a valid pattern, so the changed "patterns" are valid, but match no case.
    assert answer.code == (5 if "patterns" in change else 2), answer.text
    assert not {"ran", "out.json"} & {path.name for path in demo.iterdir()}


def test_case_files_may_be_json(demo, onnxopt):
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
    ("words", "suggestion"),
    [
        (["run", "demo.yaml", "-k", "nestrov"], "did you mean nesterov?"),
        (["run", "demo.yaml", "-k", "plain and not nestrov"], "did you mean nesterov?"),
        (["run", "conformance/adam/T_99"], "did you mean conformance/adam/T_"),
        pytest.param(
            ["list", "conformance", "-k", "T_99"], "did you mean T_", marks=pytest.mark.slow
        ),
        (["show", "Adamm"], "did you mean Adam?"),
        (["audit", "spec", "--operator", "Adan"], "did you mean Adam"),
        (["fuzz", "-b", "numpy", "--operator", "Adamm"], "did you mean Adam?"),
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
def test_misspelt_name_is_reported_with_a_suggestion(demo, onnxopt, words, suggestion):
    (demo / "wrong.yaml").write_text(CASE.replace("Momentum", "Adan"))
    (demo / "type.yaml").write_text(
        CASE.replace("X: [1.0, 2.0]", "X: {dtype: flaot64, shape: [2], data: [1, 2]}")
    )
    (demo / "attribute.yaml").write_text(CASE.replace("norm_coefficient", "norm_coeficient"))
    answer = onnxopt(*words)
    assert suggestion in " ".join(answer.err.split())


# A case of AdmmPenalty, the operator with the fewest mutants, to save time.
PENALTY = """\
onnxopt: 1
suite: penalty
operator: AdmmPenalty
cases:
  - name: one
    attributes: {rho: 0.5}
    inputs: {loss: 1.0, W: [1.0], Z: [0.5], U: [0.25]}
"""


@pytest.mark.slow
def test_audit_prints_progress_without_a_terminal(demo, onnxopt, monkeypatch):
    monkeypatch.setattr(console, "TELL_SECONDS", 0.0)
    (demo / "penalty.yaml").write_text(PENALTY)
    answer = onnxopt("audit", "penalty.yaml", "-j", "1")
    lines = [line for line in answer.err.splitlines() if line.startswith("auditing")]
    progress = r"auditing: 1 of \d+, [\d.e+-]+ steps/s, \d+ s left"
    assert re.fullmatch(progress, lines[0])
    done, total = re.findall(r"(\d+) of (\d+)", lines[-1])[0]
    assert done == total


def test_search_prints_progress_without_a_terminal(demo, onnxopt, monkeypatch):
    pytest.importorskip("hypothesis")
    monkeypatch.setattr(console, "TELL_SECONDS", 0.0)
    options = ("--operator", "AdmmPenalty", "-b", "numpy", "--no-explain", "--isolation", "none")
    answer = onnxopt("fuzz", *options, "--examples", "20")
    progress = r"searching: 20 of 20, [\d.e+-]+ examples/s, 0 s left, 0 failures"
    assert re.fullmatch(progress, answer.err.splitlines()[-1])
    answer = onnxopt("fuzz", *options, "--time", "1")
    progress = r"searching: \d+, [\d.e+-]+ examples/s, 0 failures"
    assert re.fullmatch(progress, answer.err.splitlines()[-1])
    answer = onnxopt("run", "demo.yaml", *IN_PROCESS, *OFF_BACKEND, "--max-fail", "2")
    assert answer.err.splitlines()[-1].endswith(", 2 not conforming")


def test_reading_many_files_prints_progress(demo, onnxopt, monkeypatch):
    monkeypatch.setattr(console, "TELL_SECONDS", 0.0)
    (demo / "more").mkdir()
    for name in ("one", "two"):
        (demo / f"more/{name}.yaml").write_text(f"{PENALTY}".replace("penalty", name))
    answer = onnxopt("run", "more", *IN_PROCESS)
    progress = r"reading: 2 of 2, [\d.e+-]+ files/s, 0 s left"
    assert any(re.fullmatch(progress, line) for line in answer.err.splitlines())


@pytest.mark.parametrize("command", ["list", "audit", "show", "run"])
def test_making_the_cases_of_a_suite_prints_progress(demo, onnxopt, monkeypatch, command):
    monkeypatch.setattr(console, "TELL_SECONDS", 0.0)
    answer = onnxopt(command, "trajectories/admmupdate")
    progress = r"making cases: 0 of 1, 0 operators/s"
    assert any(re.fullmatch(progress, line) for line in answer.err.splitlines()), answer.err


def test_terminal_shows_progress_while_other_output_is_discarded(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    terminal = console._Console(stderr=True)
    monkeypatch.setattr(console, "stderr", lambda: terminal)
    with console.show_progress("making", "files") as tick, redirect_stderr(StringIO()):
        tick(1, 2)
        sleep(0.5)
        tick(2, 2)
    assert "making: 1 of 2" in capsys.readouterr().err


def test_step_of_a_search_is_printed_without_a_terminal(monkeypatch, capsys):
    with console.show_step("looking for known mistakes") as tell:
        tell("explaining Abs")
        assert not capsys.readouterr().err
        monkeypatch.setattr(console, "TELL_SECONDS", 0.0)
        tell("explaining Add")
    assert capsys.readouterr().err == "explaining Add\n"


@pytest.mark.parametrize(
    "command", ["explain", "report render --report json=new.json", "report diff run.jsonl"]
)
def test_commands_on_saved_runs_show_progress_on_a_terminal(demo, onnxopt, monkeypatch, command):
    onnxopt("run", "demo.yaml", *IN_PROCESS, *OFF_BACKEND, "--log", "run.jsonl")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert "ing the saved run" in onnxopt(*command.split(), "run.jsonl").err


def test_run_prints_progress_without_a_terminal(demo, onnxopt, monkeypatch):
    assert onnxopt("run", "demo.yaml", *IN_PROCESS, *OFF_BACKEND).err == ""
    monkeypatch.setattr(console, "TELL_SECONDS", 0.0)
    answer = onnxopt("run", "demo.yaml", *IN_PROCESS, *OFF_BACKEND)
    progress = r"running: 5 of 5, [\d.e+]+ cases/s, 0 s left, 5 not conforming"
    assert re.fullmatch(progress, answer.err.splitlines()[-1])


def test_help_of_run_groups_its_options(onnxopt):
    help_text = onnxopt("run", "--help").out
    headings = re.findall(r"^(\w[\w ]+):$", help_text, re.MULTILINE)
    assert headings[:2] == ["Which cases", "Backends"]
    assert headings[-1] == "Others"
    options = help_text.partition("\nOthers:\n")[2]
    assert re.findall(r"^  (-[-\w]+)", options, re.MULTILINE) == ["--profile", "--operators", "-h"]


def test_option_durations_shows_the_slowest_cases(workplace, onnxopt):
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
