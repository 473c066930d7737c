"""A run is resumed, and shards are merged, only if files, backends and suites are the same."""

from __future__ import annotations

import shutil
import sys

import numpy as np
import onnx
import pytest
from commands import run_command
from demo import records
from onnx import TensorProto, helper
from places import REPOSITORY

from onnxopt_cli.run.log import log_header

pytestmark = pytest.mark.slow

FIVE = np.array([5.0, 6.0], np.float32)
YAML = """\
onnxopt: 1
suite: named
cases:
  - name: {name}
    model: m{name}.onnx
    inputs: {{x: {{file: x.npy}}}}
    outputs: {{y: {{file: y.npy}}}}
"""
PLUGIN = """\
import helper
from package import part


class Backend:
    def run(self, model, inputs):
        return [inputs["x"] + helper.ONE * part.ONE]
"""
EXEC = "tests/plugins/exec/command.py"


def write_model(path, amount=None):
    """Write a model that adds to x either 1 or ``amount``, which is stored as external data."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    amount_tensor = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    if amount is not None:
        amount_tensor.ClearField("float_data")
        amount_tensor.data_location = TensorProto.EXTERNAL
        for key, value in {"location": "one.bin", "length": "4"}.items():
            amount_tensor.external_data.add(key=key, value=value)
        (path.parent / "one.bin").write_bytes(np.float32(amount).tobytes())
    node = helper.make_node("Add", ["x", "one"], ["y"])
    graph = helper.make_graph([node], "g", values[:1], values[1:], [amount_tensor])
    opset = [helper.make_opsetid("", 18)]
    path.write_bytes(helper.make_model(graph, opset_imports=opset).SerializeToString())


def write_place(folder):
    """Write cases that read all kinds of files, and a plugin that consists of three files."""
    for name in "ab":
        (folder / f"{name}.yaml").write_text(YAML.format(name=name))
        write_model(folder / f"m{name}.onnx", 1.0 if name == "b" else None)
    np.save(folder / "x.npy", FIVE)
    np.save(folder / "y.npy", FIVE + 1)
    data = folder / "node" / "test_add" / "test_data_set_0"
    data.mkdir(parents=True)
    write_model(data.parent / "model.onnx", 1.0)
    for name, value in (("input_0", FIVE), ("output_0", FIVE + 1)):
        (data / f"{name}.pb").write_bytes(onnx.numpy_helper.from_array(value).SerializeToString())
    (folder / "plugin.py").write_text(PLUGIN)
    (folder / "helper.py").write_text("ONE = 1\n")
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").touch()
    (folder / "package" / "part.py").write_text("ONE = 1\n")


@pytest.fixture
def place(workplace):
    write_place(workplace)
    return workplace


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """Return a folder with the logs of a complete run and of the first of two shards.

    Logs with the prefix ``light-`` are of runs without the plugin.
    """
    folder = tmp_path_factory.mktemp("finished_run")
    write_place(folder)
    for name, arguments in (("", ARGUMENTS), ("light-", WITHOUT_PLUGIN)):
        shard = ("--shard", "1/2", "--log", f"{name}1.jsonl")
        for options in (("--log", f"{name}run.jsonl"), shard):
            run_command(*arguments, "-j", "1", *options, cwd=folder).check_returncode()
    return folder


@pytest.fixture
def copy_of_run(finished_run, workplace):
    """Copy the logs to the current folder, and return this folder."""
    shutil.copytree(finished_run, workplace, dirs_exist_ok=True)
    return workplace


FILES = ("run", "a.yaml", "b.yaml", "node", "--no-explain", "--timeout", "30")
ARGUMENTS = (*FILES, "-b", "python:plugin.py:Backend")
# Arguments for tests that need no plugin. These runs start no process, so they are faster.
WITHOUT_PLUGIN = (*FILES, "-b", "onnx-reference", "--isolation", "none")


def interrupt(path):
    """Truncate a log as if the run had been killed before the last case."""
    lines = path.read_text().splitlines(keepends=True)
    ends = [number for number, line in enumerate(lines) if line.startswith('{"record":"end"')]
    path.write_text("".join(lines[: ends[-1]]))


def change(path):
    """Change the content of a file, but not its size."""
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


CHANGES = {
    "a case file": ("a.yaml", lambda path: path.write_text(f"{path.read_text()}# \n")),
    "an array": ("x.npy", change),
    "an expected array": ("y.npy", change),
    "a model": ("ma.onnx", lambda path: write_model(path, 2.0)),
    "external data": ("one.bin", change),
    "a directory's model": ("node/test_add/model.onnx", write_model),
    "a directory's external data": ("node/test_add/one.bin", change),
    "a directory's input": ("node/test_add/test_data_set_0/input_0.pb", change),
    "a directory's output": ("node/test_add/test_data_set_0/output_0.pb", change),
    "a directory's tolerance": (
        "node/test_add/data.json",
        lambda path: path.write_text('{"rtol": 1.0}'),
    ),
    "the plugin": ("plugin.py", lambda path: path.write_text(f"{PLUGIN}\n# 2")),
    "a module that it imports": ("helper.py", lambda path: path.write_text("ONE = 2\n")),
    "a package that it imports": ("package/part.py", lambda path: path.write_text("ONE = 2\n")),
}


def arguments_for(name):
    """Return the arguments of a run that reads the file, and the prefix of that run's logs."""
    return (ARGUMENTS, "") if name.endswith(".py") else (WITHOUT_PLUGIN, "light-")


@pytest.mark.parametrize("kind_of_file", CHANGES)
@pytest.mark.parametrize("finished", [True, False])
def test_log_of_other_files_is_not_resumed(copy_of_run, onnxopt, kind_of_file, finished):
    name, alter = CHANGES[kind_of_file]
    arguments, prefix = arguments_for(name)
    log = copy_of_run / f"{prefix}run.jsonl"
    if not finished:
        interrupt(log)
    before = log.read_bytes()
    alter(copy_of_run / name)
    answer = onnxopt(*arguments, "--resume", log)
    assert answer.code == 2
    assert f"the content of {name}" in answer.err
    assert log.read_bytes() == before


@pytest.mark.parametrize("kind_of_file", ["an array", "the plugin", "a directory's output"])
def test_shards_of_other_files_are_not_merged(copy_of_run, onnxopt, kind_of_file):
    name, alter = CHANGES[kind_of_file]
    arguments, prefix = arguments_for(name)
    alter(copy_of_run / name)
    onnxopt(*arguments, "--shard", "2/2", "--log", "2.jsonl")
    answer = onnxopt("report", "merge", f"{prefix}1.jsonl", "2.jsonl", "-o", "all.jsonl")
    assert answer.code == 2
    assert f"the content of {name}" in answer.err
    assert not (copy_of_run / "all.jsonl").exists()


def test_touched_and_moved_files_are_equal(finished_run, copy_of_run, onnxopt):
    for name, _ in CHANGES.values():
        if (copy_of_run / name).exists():
            (copy_of_run / name).touch()
    (copy_of_run / "notes.txt").write_text("no case\n")
    assert finished_run != copy_of_run
    assert onnxopt(*ARGUMENTS, "--resume", "run.jsonl").code == 0


def test_cases_that_are_not_selected_may_change(place, onnxopt):
    arguments = [*WITHOUT_PLUGIN, "-k", "named/a/a"]
    assert onnxopt(*arguments, "--log", "run.jsonl").code == 0
    change(place / "one.bin")
    assert onnxopt(*arguments, "--resume", "run.jsonl").code == 0


@pytest.mark.parametrize("name", ["program", "config.json"])
def test_command_is_identified_by_its_program_and_files(place, onnxopt, name):
    program = place / "program"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} {REPOSITORY / EXEC} well\n")
    program.chmod(0o755)
    (place / "config.json").write_text("{}")
    arguments = ["run", "a.yaml", "-b", "exec:./program --config=config.json", "--no-explain"]
    onnxopt(*arguments, "--log", "run.jsonl")
    (place / name).write_text((place / name).read_text() + "\n")
    answer = onnxopt(*arguments, "--resume", "run.jsonl")
    assert (answer.code, f"the content of {name}" in answer.err) == (2, True)


MEDDLER = """\
import numpy as np

class Backend:
    def run(self, model, inputs):
        {change}
        return [inputs["x"] + 1]
"""


@pytest.mark.isolated
@pytest.mark.parametrize(
    ("change", "name"),
    [
        # Each call of the backend changes the file again, so that the file also changes after the
        # runner has read it.
        ("np.save('y.npy', np.append(np.load('y.npy'), np.float32(9)))", "y.npy"),
        ("open('node/test_add/data.json', 'a').write(' ')", "data.json"),
        ("open('plugin.py', 'a').write('#')", "plugin.py"),
    ],
)
def test_file_that_changes_during_the_run_is_named(place, onnxopt, change, name):
    (place / "plugin.py").write_text(MEDDLER.format(change=change))
    (place / "node" / "test_add" / "data.json").write_text('{"rtol": 0.001}')
    answer = onnxopt(*ARGUMENTS, "-j", "1", "--log", "run.jsonl")
    assert answer.code == 2
    assert "changed during the run" in answer.out
    assert name in answer.out
    (place / "plugin.py").write_text(MEDDLER.format(change=change))
    assert onnxopt(*ARGUMENTS, "-j", "1", "--resume", "run.jsonl").code == 2


def test_file_that_a_plugin_changes_on_import_is_named(place, onnxopt):
    early = "np.save('y.npy', np.float32([9, 9]))\n\nclass"
    plugin = MEDDLER.format(change="").replace("class", early).replace("] + 1", "] * 0 + 9")
    (place / "plugin.py").write_text(plugin)
    answer = onnxopt(*ARGUMENTS, "-j", "1", "--log", "run.jsonl")
    assert (answer.code, "y.npy: changed during the run" in answer.out) == (2, True)


def test_log_lists_folders_instead_of_very_many_files(place, onnxopt, monkeypatch):
    monkeypatch.setattr(log_header, "_MAX_LISTED_FILES", 6)
    onnxopt(*WITHOUT_PLUGIN, "--log", "run.jsonl")
    files = records(place / "run.jsonl")[0]["contents"]["files"]
    assert "node/test_add/test_data_set_0" in files
    change(place / "node/test_add/test_data_set_0/output_0.pb")
    answer = onnxopt(*WITHOUT_PLUGIN, "--resume", "run.jsonl")
    assert (answer.code, "the content of node/test_add/test_data_set_0" in answer.err) == (2, True)


def test_run_without_a_log_does_not_hash_files(place, onnxopt, monkeypatch):
    monkeypatch.setattr(log_header, "_look", None)
    assert onnxopt(*WITHOUT_PLUGIN).code == 0
