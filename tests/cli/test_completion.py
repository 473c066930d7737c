"""Shell completion, tested by calling the command, and by calling bash."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest
from places import REPOSITORY

# The script calls the completion function as bash does when the user presses the tab key. It
# replaces compopt, which can be called only at that time.
SCRIPT = """\
compopt() { shift; echo "<$1>"; }
eval "$SOURCE"
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_onnxopt_completion onnxopt
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def completions(workplace, onnxopt, monkeypatch):
    """Return a function that completes the last word by calling the command as bash would."""

    def completions(*words):
        monkeypatch.setenv("COMP_WORDS", " ".join(("onnxopt", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        monkeypatch.setenv("_ONNXOPT_COMPLETE", "bash_complete")
        answer = onnxopt()
        assert answer.err == ""
        lines = [line.partition(",") for line in answer.out.split()]
        return [value if kind == "plain" else f"<{kind}>" for kind, _, value in lines]

    return completions


@pytest.fixture(scope="module")
def source():
    """Return the script that a user's .bashrc evaluates."""
    command = [sys.executable, "-m", "onnxopt_cli"]
    environment = {**os.environ, "_ONNXOPT_COMPLETE": "bash_source", "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout


@pytest.fixture
def completions_in_bash(tmp_path, source):
    """Return a function that completes the last word by running bash."""
    program = tmp_path / "bin" / "onnxopt"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m onnxopt_cli "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"

    def completions(*words):
        done = subprocess.run(
            ["bash", "-c", SCRIPT, "bash", "onnxopt", *words],  # noqa: S607
            cwd=tmp_path,
            env={**os.environ, "SOURCE": source, "PATH": path, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        assert done.stderr == ""
        return done.stdout.split()

    return completions


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["re"], ["report"]),
        (["backends", "n"], ["new"]),
        (["run", "--rep"], ["--report"]),
        (["run", "--lower", "a"], ["auto", "always"]),
        (["run", "conf"], ["conformance"]),
        (["list", "onnx-l"], ["onnx-light"]),
        (["audit", "spec"], ["spec"]),
        (["run", "spec/adam/adam_m"], ["spec/adam/adam_multiple"]),
        (["run", "spec", "-k", "spec/adam/adam_m"], ["spec/adam/adam_multiple"]),
        (["run", "nosuch", "-k", "x"], []),
        (["generate", "onnx"], ["onnx-node"]),
        (["show", "ada"], ["Adagrad", "Adam"]),
        (["show", "prun"], ["pruning"]),
        (["audit", "--operator", "Mom"], ["Momentum"]),
        (["run", "--operator", "Identi"], ["Identity"]),
        (["run", "-b", "onnx"], ["onnxruntime", "onnx-reference"]),
        (["run", "-b", "ex"], ["exec:"]),
        (["backends", "check", "num"], ["numpy"]),
        (["fuzz", "-b", "num"], ["numpy"]),
        (["fuzz", "--operator", "Mom"], ["Momentum"]),
        (["fuzz", "--exclude-operator", "Mom"], ["Momentum"]),
        (["run", "--report", "ju"], ["junit="]),
        (["schema", "e"], ["expect"]),
        (["run", "my-own"], ["<file>"]),
        (["run", "--resume", "r"], ["<file>"]),
        (["explain", "r"], ["<file>"]),
        (["lower", "m"], ["<file>"]),
    ],
)
def test_completion_offers_matching_words(completions, words, expected):
    assert completions(*words) == expected


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [(["run", "--lower", "a"], ["auto", "always"]), (["run", "my-own"], ["<default>"])],
)
def test_completion_works_in_bash(completions_in_bash, words, expected):
    assert completions_in_bash(*words) == expected


def test_variable_for_completion_does_not_replace_a_command(onnxopt, monkeypatch):
    for value in ("bash_source", "garbage"):
        monkeypatch.setenv("_ONNXOPT_COMPLETE", value)
        assert onnxopt("--version").out.startswith("onnxopt")


def test_completion_offers_suites_and_paths(completions, workplace):
    (workplace / "spec_of_mine").mkdir()
    (workplace / "special.yaml").touch()
    assert completions("run", "spec") == ["spec", "spec_of_mine/", "special.yaml"]
    assert {"spec", "pruning", "special.yaml"} <= set(completions("run", ""))


def test_completion_offers_every_command_and_no_other_word(completions, onnxopt):
    section = onnxopt("--help").out.partition("\nCommands:\n")[2]
    assert completions("") == re.findall(r"^  (\w+)  ", section, re.MULTILINE)
    assert completions("nosuch") == []


HELP = """\
import sys
from onnxopt_cli.cli import _COMMANDS, main
for command in _COMMANDS:
    try:
        main([command, "--help"])
    except SystemExit as end:
        assert end.code == 0, command
    assert "numpy" not in sys.modules, command
"""


def test_help_does_not_import_numpy(workplace):
    done = subprocess.run(
        [sys.executable, "-c", HELP], cwd=workplace, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: ") > 10
