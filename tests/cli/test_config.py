"""The configuration file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from commands import run_command
from places import PLUGINS

FILE = f"""\
timeout = 30
targets = ["spec"]

[backends.mine]
backend = "python:{PLUGINS}/mistaken.py:Right"

[backends.custom]
backend = "python:custom.py:Backend"
environment = {{GREETING = "hello"}}
unsupported = "hello, there"

[profiles.ci]
backend = ["mine", "numpy"]
operator = ["Adam"]
report = ["json=out.json"]
"""
CUSTOM_PLUGIN = """\
import json
import os

class Backend:
    def run(self, model, inputs):
        raise ValueError(os.environ["GREETING"] + ", there")
"""


@pytest.fixture
def place(workplace):
    (workplace / "onnxopt.toml").write_text(FILE)
    (workplace / "custom.py").write_text(CUSTOM_PLUGIN)
    return workplace


def test_backend_in_the_file_declares_its_math(place, onnxopt):
    text = FILE.replace('mistaken.py:Right"\n', 'mistaken.py:Right"\nmath = "tf32"\n')
    (place / "onnxopt.toml").write_text(text)
    assert "judged as math=tf32" in onnxopt("run", "-b", "mine").out.replace("\n", " ")


def test_command_line_overrides_the_file(place, onnxopt):
    assert "numpy conforms: 7 pass" in onnxopt("run", "-q").out
    assert "numpy conforms: 1 pass" in onnxopt("run", "-q", "spec/adam/adam").out
    assert onnxopt("list", "-k", "adam/").out.count("spec/") == 2


def test_file_defines_backends_and_profiles(place, onnxopt):
    answer = onnxopt("run", "-q", "--profile", "ci")
    assert answer.code == 0
    assert "mine conforms: 2 pass" in answer.out
    assert "numpy conforms: 2 pass" in answer.out
    assert (place / "out.json").exists()
    answer = onnxopt("run", "-q", "--profile", "ci", "-b", "numpy", "--operator", "Momentum")
    assert "numpy conforms: 3 pass" in answer.out
    assert "mistaken" not in answer.out


def test_environment_is_set_before_the_backend_is_imported(place, onnxopt):
    assert "7 unsupported" in onnxopt("run", "-q", "-b", "custom").out


def test_path_of_a_command_is_relative_to_the_file(place, onnxopt):
    (place / "onnxopt.toml").write_text('[backends.acme]\nbackend = "exec:./adapter --fast"\n')
    assert "exec:./adapter --fast" in onnxopt("config").out
    assert "the command ./adapter does not exist" in onnxopt("run", "spec", "-b", "acme").err


def test_every_command_accepts_backends_of_the_file(place, onnxopt):
    answer = onnxopt("backends", "check", "mine")
    assert answer.code == 0, answer.text
    for words in (("run", "spec", "-b", "mime"), ("backends", "check", "mime")):
        answer = onnxopt(*words)
        assert answer.code == 2
        assert "did you mean mine?" in answer.err
    assert onnxopt("run", "spec", "-q", "-b", "numpy").code == 0


def test_backends_of_the_file_are_listed_and_completed(place, onnxopt, monkeypatch):
    rows = [line.split()[0] for line in onnxopt("backends").out.splitlines()]
    assert {"numpy", "mine", "custom"} <= set(rows)
    monkeypatch.setenv("_ONNXOPT_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "onnxopt run -b m")
    monkeypatch.setenv("COMP_CWORD", "3")
    assert onnxopt().out == "plain,mine\n"


def test_file_applies_to_subfolders_with_paths_relative_to_it(place, onnxopt, monkeypatch):
    below = place / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert "unknown backend" in onnxopt("run", "-q", "spec", "-b", "custom").err
    (place / ".git").mkdir()
    answer = onnxopt("run", "-q", "-b", "custom", "--report", "json=here.json")
    assert "custom does not conform: 7 unsupported" in answer.out
    report = json.loads((below / "here.json").read_text())
    assert report["backends"][0]["specification"].startswith("python:../../custom.py:")
    assert onnxopt("run", "-q", "--profile", "ci").code == 0
    assert (place / "out.json").exists()
    (place / "a" / ".git").mkdir()
    assert "unknown backend" in onnxopt("run", "-q", "spec", "-b", "custom").err


def test_ids_of_cases_are_not_paths(place, onnxopt, monkeypatch):
    (place / "onnxopt.toml").write_text("targets = ['spec/adam', 'conformance@99/adam']\n")
    (place / "below").mkdir()
    (place / ".git").write_text("gitdir: elsewhere\n")
    monkeypatch.chdir(place / "below")
    answer = onnxopt("run", "-q")
    assert (answer.code, "conformance@99 is required" in answer.err) == (2, True)


def test_option_with_three_values_can_be_in_the_file(place, onnxopt):
    (place / "onnxopt.toml").write_text("tls = ['ca', 'cert', 'key']\n")
    answer = onnxopt("run", "spec", "-q")
    assert (answer.code, "onnxopt.toml:1: File 'ca' does not exist" in answer.err) == (2, True)
    for name in ("ca", "cert", "key"):
        (place / name).touch()
    answer = onnxopt("run", "spec", "-q")
    assert (answer.code, "require --cluster" in answer.err) == (2, True)


def test_settings_may_be_in_pyproject_or_in_a_file_named_by_a_variable(place, onnxopt, monkeypatch):
    (place / "onnxopt.toml").rename(place / "other.toml")
    (place / "pyproject.toml").write_text("[tool.ruff]\n[tool.onnxopt]\ntargets = ['pruning']\n")
    assert "Adam" not in onnxopt("list").out
    monkeypatch.setenv("ONNXOPT_CONFIG", str(place / "other.toml"))
    assert onnxopt("list").out.count("spec/") == 7
    monkeypatch.setenv("ONNXOPT_CONFIG", "")
    assert len(onnxopt("list").out.splitlines()) > 100


def test_config_shows_values_and_their_lines(place, onnxopt):
    out = onnxopt("config", "--profile", "ci").out
    lines = {line.split()[0]: line for line in out.splitlines()[2:] if line.strip()}
    assert lines["timeout"].rstrip().endswith("onnxopt.toml:1")
    assert "30" in lines["timeout"]
    assert lines["operator"].rstrip().endswith("onnxopt.toml:14")
    assert "other profiles: ci" in onnxopt("config").out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("timeot = 3", "onnxopt.toml:1: unknown key timeot; did you mean timeout?"),
        ("timeout = -3", "onnxopt.toml:1: -3.0 is not in the range"),
        ("timeout = ", "onnxopt.toml: Invalid value"),
        ("x = [" * 2000, "onnxopt.toml: "),
        ("[backends]\nmine = 1", "onnxopt.toml:2: backends.mine is not a table"),
        ("[backends.mine]\npython = '1'", "onnxopt.toml:1: backends.mine names no backend"),
        ("[backends.mine]\nbackend = 'a'\ndevice = 'b'", ":3: unknown key backends.mine.device"),
        ("[backends.mine]\nbackend = 'a'\noptions = {a = 'b,c'}", "with a comma in its value: a"),
        ("[backends.mine]\nbackend = 'exec:a'\nenvironment = {A = 'b c'}", "with a space or quote"),
        ("[backends.mine]\nbackend = 'a'\nenvironment = {'A=B' = 'c'}", "in its name: env.A=B"),
        ("[backends.mine]\nbackend = 'a'\noptions = {a = ['b']}", "neither text nor a number"),
        ("[backends.mine]\nbackend = 'a'\nenvironment = {A = \"\\u0000\"}", "mine contains a null"),
        ("[profiles.ci]\nrerum = 1", "onnxopt.toml:2: unknown key profiles.ci.rerum; did you mean"),
        ("\ntimeout = true", "onnxopt.toml:2: found true or false, expected text or a number"),
        ("tag = [['a']]", "onnxopt.toml:1: found ['a'], expected text or a number"),
        ("tag = [{a = 1}]", "onnxopt.toml:1: found {'a': 1}, expected text or a number"),
        ("rtol = 1979-05-27", "onnxopt.toml:1: found 1979-05-27, expected text or a number"),
        (
            "[backends.'a,b']\nbackend = 'numpy'",
            "onnxopt.toml:1: backends.a,b is not a valid backend name",
        ),
        ("operators = [1]", "onnxopt.toml:1: operators is neither a path nor a list of paths"),
        ('report = ["json=a\\u0000"]', "onnxopt.toml:1: report contains a null character"),
        ('[profiles.ci]\nexpect = ["\\u0000"]', "profiles contains a null character"),
        ("quiet = true", "7 pass"),
        ("rerun = [1, 2]", "7 pass"),
    ],
)
def test_error_in_the_file_is_reported_with_its_line(workplace, onnxopt, text, message):
    (workplace / "onnxopt.toml").write_text(text)
    answer = onnxopt("run", "spec", "-q")
    assert message in " ".join(answer.text.split())
    assert answer.code == (0 if "pass" in message else 2)


@pytest.mark.slow
def test_operators_of_the_file_are_loaded(workplace, monkeypatch):
    """Each command runs in a new process, because loaded operators remain registered."""
    monkeypatch.delenv("ONNXOPT_OPERATORS", raising=False)
    shutil.copy(PLUGINS / "operators" / "lamb.py", workplace)
    below = workplace / "below"
    below.mkdir()
    (workplace / ".git").mkdir()
    (workplace / "onnxopt.toml").write_text('[profiles.mine]\noperators = ["lamb.py"]\n')

    def run(*words):
        done = run_command(*words, cwd=below)
        return done.returncode, done.stdout + done.stderr

    listing = ("list", "optimizers", "--profile", "mine")
    code, text = run(*listing)
    assert code == 0, text
    assert [line for line in text.splitlines() if not line.startswith("optimizers/lamb/")] == []
    assert run("list", "optimizers")[0] == 2
    code, text = run("show", "Lamb", "--profile", "mine")
    assert (code, text.splitlines()[0]) == (0, "Lamb  my.optimizers version 1")
    (workplace / "onnxopt.toml").write_text('operators = "lamb.py"\noutput = "elsewhere"\n')
    code, text = run("generate", "optimizers")
    assert (code, text.partition(",")[0]) == (0, "optimizers: wrote 1 file")
    assert (below / "cases" / "optimizers" / "lamb.yaml").exists()
    script = """if True:
        import onnxopt_cli as onnxopt
        onnxopt.add_operators(*onnxopt.load_configuration().operators)
        print(onnxopt.load_cases("optimizers")[0])
    """
    command = [sys.executable, "-c", script]
    assert b"optimizers/lamb/" in subprocess.run(command, cwd=below, stdout=-1, check=True).stdout
    (workplace / "onnxopt.toml").write_text('[profiles.mine]\noperators = ["lamb.py"]\n')
    (workplace / "lamb.py").write_text("x = 1 +\n")
    code, text = run(*listing)
    assert code == 2
    assert "onnxopt.toml:2: " in " ".join(text.split())
    assert "lamb.py:1" in text
    assert run("config", "--profile", "mine")[0] == 0


def test_unknown_profile_is_reported(place, onnxopt):
    assert "did you mean ci?" in onnxopt("run", "--profile", "cii").err
    (place / "onnxopt.toml").unlink()
    assert "no configuration file found" in onnxopt("run", "--profile", "ci").err


def test_file_may_begin_with_a_byte_order_mark(workplace, onnxopt):
    (workplace / "onnxopt.toml").write_text("timeout = 30\n", encoding="utf-8-sig")
    assert "timeout" in onnxopt("config").out


def test_help_does_not_need_a_valid_file(workplace, onnxopt):
    (workplace / "onnxopt.toml").write_text("wrong")
    assert onnxopt("run", "--help").code == 0


@pytest.mark.parametrize("make", ["folder", "pipe", "broken link"])
def test_unreadable_file_is_an_error(workplace, onnxopt, make):
    path = workplace / "onnxopt.toml"
    if make == "folder":
        path.mkdir()
    elif make == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("nowhere")
    answer = onnxopt("run", "spec", "-q")
    assert answer.code == 2
    assert "onnxopt.toml" in answer.err


def test_log_is_resumed_although_the_file_has_targets(place, onnxopt):
    run = ("run", "conformance", "-k", "conformance/adam/T_0", "--isolation", "none")
    assert onnxopt(*run, "--log", "run.jsonl").code == 0
    resumed = onnxopt("run", "--isolation", "none", "--resume", "run.jsonl")
    assert resumed.code == 0
    assert "numpy conforms: 1 pass" in resumed.out
