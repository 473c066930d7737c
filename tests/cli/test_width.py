"""In a pipe, lines are wrapped to 80 columns or to COLUMNS, however long names and paths are."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from commands import unbroken
from two_cases import BACKEND, CASE

NAME = "_".join(["a_long_name"] * 6)
COMMANDS = """\
run {file} -b {backend} --no-explain
run {file} -b {backend} -v
run {file} --durations 3
run {file} -b {backend} --log {folder}/off.jsonl
run {folder}/none.yaml
run {file} -b python:{folder}/vendor.py:{name}
run {file} -b {name}
run {file} -k {name}{name}
run {file} --tag {name}
run {file} --timeout {name}
run {file} --{name}
run {file} --resume {folder}/off.jsonl
run {file} --resume {folder}/none.jsonl
run {file} --expect {folder}/none.yaml
run {file} --report {name}=x
run {file} --report json={folder}
run {file} --report json={folder}/none/none/none
run {file} -b {backend} --artifacts {folder}
run --resume {folder}/off.jsonl
run --operator {name}
{name}
list {file}
show {file}
show {name}
show Adam
show Conv
show Adam --mistake {name}
show Adam --mistake beta
explain {folder}/off.jsonl
explain {folder}/none.jsonl
report diff {folder}/right.jsonl {folder}/off.jsonl
report diff {folder}/off.jsonl {folder}/right.jsonl
report merge {folder}/off.jsonl -o {folder}/merged.jsonl
report render {folder}/none.jsonl --report html=x
audit {file}
audit {folder}/none.yaml
locate {file}
locate {file} -k {name}/{name}/plain -b {backend} -o {folder}/located
generate {name}
generate spec -o {folder}
generate spec -o {folder} --check
lower {folder}/none.onnx -o {folder}/x.onnx
backends
backends check {backend}
backends new {folder}
backends new {folder}/new_{name}
config
schema {name}
fuzz -b {backend} --operator Momentum --examples 20 -o {folder}/fuzz
fuzz -b {backend} --operator {name}
scoreboard {folder}/none.toml
init -b {backend} --name {name}
"""


@pytest.fixture
def words(workplace, onnxopt, monkeypatch):
    """Return a function that inserts long names into a command, and returns its words."""
    monkeypatch.setenv("COLUMNS", "80")
    folder = Path(NAME)
    folder.mkdir()
    file = folder / f"{NAME}.yaml"
    file.write_text(CASE.replace("suite: demo", f"suite: {NAME}"))
    (folder / "vendor.py").write_text(BACKEND)
    names = {
        "file": file,
        "folder": folder,
        "name": NAME,
        "backend": f"python:{folder}/vendor.py:Off",
    }
    for log, backend in (("off", names["backend"]), ("right", f"python:{folder}/vendor.py:Right")):
        run = ("run", file, "-b", f"acme={backend}", "--no-explain", "-q")
        onnxopt(*run, "--log", folder / f"{log}.jsonl")
    return lambda command: command.format(**names).split()


def is_too_wide(line: str) -> bool:
    """Return whether a line is too wide, although it could be wrapped.

    The id of a case may stay beside its outcome, so that other programs can search the line.
    """
    words = line.removesuffix(" \\").split()
    names = [word for word in words if NAME in word]
    return len(line) > 80 and (len(names) != 1 or len(words) > 2)


@pytest.mark.parametrize("command", COMMANDS.splitlines())
def test_lines_that_can_be_wrapped_fit_80_columns(words, onnxopt, command):
    answer = onnxopt(*words(command))
    assert [line for line in answer.text.splitlines() if is_too_wide(line)] == []


@pytest.mark.parametrize("option", ["-q", "-v"])
def test_id_and_outcome_are_in_one_line_of_a_pipe(words, onnxopt, option):
    lines = onnxopt(*words(f"run {{file}} -b {{backend}} --no-explain {option}")).out.splitlines()
    assert any({"FAIL", f"{NAME}/{NAME}/plain"} == set(line.split()) for line in lines)


def test_wrapped_command_can_be_copied(words, onnxopt):
    answer = onnxopt(*words("fuzz -b {backend} --operator Momentum --examples 20 -o {folder}/fuzz"))
    command = answer.out.partition("run them again: ")[2]
    assert " \\\n" in command
    print_words = ["bash", "-c", "printf '%s\\n' " + command]
    printed = subprocess.run(print_words, capture_output=True, text=True, check=True)
    assert printed.stdout.splitlines() == shlex.split(unbroken(command))


def test_message_that_begins_with_a_long_word_begins_beside_error(words, onnxopt):
    message = onnxopt(*words("run {folder}/vendor.py")).err
    assert message.startswith(f"error: {NAME}/vendor.py\n    is not a case file\n")


def test_variable_columns_sets_the_width(workplace, onnxopt, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    assert len(onnxopt("run", "nothing").err.splitlines()) == 2
    monkeypatch.delenv("COLUMNS")
    lines = onnxopt("run", "nothing").err.splitlines()
    assert max(map(len, lines)) <= 80
