"""What a shell offers while a command is typed; in the end bash calls its own function."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest
from forked import run_command
from places import REPOSITORY

# As bash does when the user presses the tabulator key; compopt works only then.
SCRIPT = """\
compopt() { shift; echo "<$1>"; }
eval "$SOURCE"
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_onnxopt_completion onnxopt
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def offered(workplace):
    """Ask, as the function of bash does, what fits words of which the last is being typed."""

    def offered(*words):
        asked = {"COMP_WORDS": " ".join(("onnxopt", *words)), "COMP_CWORD": str(len(words))}
        env = {**os.environ, **asked, "_ONNXOPT_COMPLETE": "bash_complete"}
        done = run_command(cwd=workplace, env=env)
        assert done.stderr == ""
        lines = [line.partition(",") for line in done.stdout.split()]
        return [value if kind == "plain" else f"<{kind}>" for kind, _, value in lines]

    return offered


@pytest.fixture(scope="module")
def source():
    """What a user's .bashrc evaluates."""
    command = [sys.executable, "-m", "onnxopt_cli"]
    environment = {**os.environ, "_ONNXOPT_COMPLETE": "bash_source", "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout


@pytest.fixture
def offered_by_bash(tmp_path, source):
    """Call the completion of bash with words, the last of which is being typed."""
    program = tmp_path / "bin" / "onnxopt"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m onnxopt_cli "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"

    def offered(*words):
        done = subprocess.run(
            ["bash", "-c", SCRIPT, "bash", "onnxopt", *words],  # noqa: S607
            cwd=tmp_path,
            env={**os.environ, "SOURCE": source, "PATH": path, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        assert done.stderr == ""
        return done.stdout.split()

    return offered


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
def test_the_shell_offers_what_fits(offered, words, expected):
    assert offered(*words) == expected


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [(["run", "--lower", "a"], ["auto", "always"]), (["run", "my-own"], ["<default>"])],
)
def test_bash_offers_it(offered_by_bash, words, expected):
    assert offered_by_bash(*words) == expected


def test_suites_and_paths_are_offered_side_by_side(offered, workplace):
    (workplace / "spec_of_mine").mkdir()
    (workplace / "special.yaml").touch()
    assert offered("run", "spec") == ["spec", "spec_of_mine/", "special.yaml"]
    assert {"spec", "pruning", "special.yaml"} <= set(offered("run", ""))


def test_every_command_and_no_other_word_is_offered(offered, onnxopt):
    section = onnxopt("--help").out.partition("\nCommands:\n")[2]
    assert offered("") == re.findall(r"^  (\w+)  ", section, re.MULTILINE)
    assert offered("nosuch") == []
