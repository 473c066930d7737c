"""Hostile case files and models, run by the command in a process of its own."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_directories import identity, make_directory, tensor, tensor_type
from places import REPOSITORY

from onnxopt_cli.cases.tensors.declared import BYTES_PER_ELEMENT

PRLIMIT = shutil.which("prlimit") or ""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PRLIMIT, reason="needs limits on memory"),
]

ADAM = """\
onnxopt: 1
suite: s
cases:
- name: c
  operator: Adam
  attributes: {alpha: 0.9, beta: 0.99, epsilon: 1.0e-7}
  inputs: {R: {dtype: float64, data: 0.5}, T: 3, X: %s, G: %s, V: %s, H: %s}
"""
NORMAL = "{random: {normal: {}, seed: 1}, dtype: %s, shape: [%d]}"
PLAIN_TENSOR = "{dtype: %s, data: [1.5]}"


# On Linux, the peak memory of a command includes the memory of the process that started it. The
# process of the tests may use more than 1 GB, so a small process starts the command instead.
MEASURE = """
import json, os, subprocess, sys
place, *command = sys.argv[1:]
process = subprocess.Popen(command)
_, status, usage = os.wait4(process.pid, 0)
with open(place, "w") as file:
    json.dump([os.waitstatus_to_exitcode(status), usage.ru_maxrss], file)
"""


class Run:
    """The exit code, output, results and peak memory of a command that has ended."""

    def __init__(self, place: Path, *arguments: str, limit: int = 0) -> None:
        report = place / "report.json"
        report_options = ("--report", f"json={report}") if arguments[0] == "run" else ()
        with (place / "out").open("w+") as out, (place / "err").open("w+") as err:
            subprocess.run(
                [sys.executable, "-c", MEASURE, place / "usage.json",
                 PRLIMIT, f"--data={limit or 'unlimited'}", sys.executable, "-m", "onnxopt_cli",
                 *arguments, *report_options],
                cwd=place,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "200",
                     "OPENBLAS_NUM_THREADS": "1"},
                stdout=out,
                stderr=err,
                check=True,
            )  # fmt: skip
        self.code, kibibytes = json.loads((place / "usage.json").read_text())
        self.out, self.err = (place / "out").read_text(), (place / "err").read_text()
        self.memory = kibibytes * 1024
        assert "Traceback" not in self.out + self.err
        assert "internal error" not in self.out + self.err
        results = json.loads(report.read_text())["results"] if report.exists() else []
        self.results = [(result["outcome"], result["message"]) for result in results]


def shape_of_gigabytes():
    """Return a model of a few bytes whose output takes 4 GiB."""
    size = tensor(np.array([2**30], np.int64), "n")
    node = helper.make_node("ConstantOfShape", ["n"], ["y"])
    return model([node], [size], tensor_type(shape=[None]))


def endless_loop():
    """Return a model with a Loop whose condition is always true."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Identity", ["v"], ["w"])],
        "b",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, [1]),
        ],
        [
            helper.make_tensor_value_info("d", TensorProto.BOOL, []),
            helper.make_tensor_value_info("w", TensorProto.FLOAT, [1]),
        ],
    )
    true, start = tensor(np.array(True), "t"), tensor(np.ones(1, np.float32), "s")
    return model(
        [helper.make_node("Loop", ["", "t", "s"], ["y"], body=body)],
        [true, start],
        tensor_type(shape=[1]),
    )


def model(nodes, initializers, kind):
    result = helper.make_value_info("y", kind)
    graph = helper.make_graph(nodes, "g", [], [result], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


@pytest.mark.parametrize(
    ("backend", "hostile", "options", "outcome", "words"),
    [
        ("numpy", shape_of_gigabytes, ["--memory", "1GiB"], "oom", "Unable to allocate 4.00 GiB"),
        ("onnxruntime", shape_of_gigabytes, ["--memory", "1GiB"], "oom", ""),
        ("onnxruntime", endless_loop, ["--timeout", "3"], "timeout", "not respond within 3 s"),
    ],
)
def test_model_with_huge_demands_affects_only_its_case(
    tmp_path, hostile, options, outcome, words, backend
):
    expected = [tensor(np.ones(1, np.float32))]
    make_directory(tmp_path / "test_hostile", hostile(), (), expected)
    copy, start = helper.make_node("Identity", ["s"], ["y"]), tensor(np.ones(1, np.float32), "s")
    right = model([copy], [start], tensor_type(shape=[1]))
    make_directory(tmp_path / "test_right", right, (), expected)
    assert len((tmp_path / "test_hostile" / "model.onnx").read_bytes()) < 300
    run = Run(tmp_path, "run", ".", "-b", backend, *options)
    assert run.code == 1
    assert [result for result, _ in run.results] == [outcome, "pass"]
    assert words in run.results[0][1]
    assert run.memory < 1 << 30


@pytest.mark.slow
def test_case_with_the_maximum_of_elements_stays_within_the_memory_limit(tmp_path):
    memory = 1 << 30
    # This takes the most memory: only X is large, and the tensors have different element types.
    small_tensors = [PLAIN_TENSOR % dtype for dtype in ("float32", "float64", "float32")]
    text = ADAM % (NORMAL % ("float64", memory // BYTES_PER_ELEMENT - 5), *small_tensors)
    (tmp_path / "c.yaml").write_text(text)
    run = Run(tmp_path, "run", "c.yaml", "--memory", f"{memory >> 20}MiB")
    assert run.code == 0
    assert run.memory < memory


@pytest.mark.parametrize(
    ("arguments", "memory"),
    [(["list"], 4 << 30), (["run", "--memory", "1GiB"], 1 << 30)],
)
def test_total_number_of_elements_of_a_case_is_limited(tmp_path, arguments, memory):
    quarter = NORMAL % ("float32", memory // BYTES_PER_ELEMENT // 4)
    (tmp_path / "c.yaml").write_text(ADAM % ((quarter,) * 4))
    run = Run(tmp_path, *arguments, "c.yaml")
    assert run.code == 2
    message = (
        f"found {memory // BYTES_PER_ELEMENT + 2} elements in the case up to here, expected at most"
    )
    assert f"c.yaml:7: case c: inputs.H: {message}" in " ".join(run.err.split())


def test_case_that_exceeds_memory_is_the_only_one_reported(tmp_path):
    small = ADAM.replace("- name: c\n", "- name: d\n") % ((PLAIN_TENSOR % "float32",) * 4)
    large = NORMAL % ("float32", 150_000)
    (tmp_path / "c.yaml").write_text(ADAM % ((large,) * 4) + small.partition("cases:\n")[2])
    run = Run(tmp_path, "run", "c.yaml", limit=97 << 20)
    assert run.code == 1
    (large, words), small = run.results
    assert (large, small) == ("oom", ("pass", ""))
    assert "memory" in words.lower()


def test_file_that_exceeds_memory_is_reported(tmp_path):
    (tmp_path / "c.yaml").write_text(f"# {'x' * (15 << 20)}\n{ADAM % (('1',) * 4)}")
    run = Run(tmp_path, "list", "c.yaml", limit=80 << 20)
    assert run.code == 2
    assert "c.yaml:1: there is not enough memory to read it" in run.err


def test_at_most_a_hundred_faults_of_a_file_are_shown(workplace, onnxopt):
    (workplace / "c.yaml").write_text("onnxopt: 1\nsuite: s\ncases:\n" + "- x\n" * 1000)
    run = onnxopt("list", "c.yaml")
    assert run.code == 2
    assert run.err.count("expected a mapping") == 100
    assert "c.yaml:104: 900 more problems from here on" in run.err


class Bomb:
    """An object that creates a folder when it is unpickled."""

    def __reduce__(self):
        return (os.mkdir, ("unpickled",))


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_pickle_in_an_array_file_is_rejected_and_not_executed(workplace, onnxopt, suffix):
    file = io.BytesIO()
    save = np.save if suffix == "npy" else np.savez
    save(file, np.array([Bomb()], object), allow_pickle=True)
    (workplace / f"x.{suffix}").write_bytes(file.getvalue())
    (workplace / "c.yaml").write_text(ADAM % (f"{{file: x.{suffix}}}", "[1]", "[1]", "[1]"))
    run = onnxopt("run", "c.yaml")
    assert run.code == 2
    assert "c.yaml:7: case c: inputs.X" in run.err
    assert "object" in run.err
    assert not (workplace / "unpickled").exists()


def test_markup_in_names_is_shown_literally(workplace, onnxopt, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    given, wrong = tensor(np.ones(2, np.float32)), tensor(np.zeros(2, np.float32))
    names = identity({"[int64][/x]=cmd": tensor_type(shape=[2])})
    make_directory(workplace / "test_[int64][red]", names, [given], [wrong])
    folder = f"{workplace.name}/test_[int64][red]/0"
    assert folder in onnxopt("list", ".").out
    output = onnxopt("show", "test_[int64][red]").out
    assert "[int64][/x]=cmd" in output
    assert "test_[int64][red]" in output
    # The stored output of the node Identity differs from its input, so the case is invalid.
    run = onnxopt("run", ".")
    assert run.code == 2
    assert folder in run.out
    assert "out_[int64][/x]=cmd" in run.out
