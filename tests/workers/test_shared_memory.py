"""The runner and a worker exchange large values through files in memory."""

from __future__ import annotations

import errno
import json
import os
import runpy
import sys

import numpy as np
import pytest
from onnx import helper
from onnx_directories import identity, make_directory, tensor, tensor_type

from onnxopt_cli.workers import worker, worker_messages

pytestmark = [
    pytest.mark.isolated,
    pytest.mark.skipif(sys.platform != "linux", reason="needs files in memory"),
]

COUNT = worker_messages.MIN_SHARED_BYTES // 4 + 5
LARGE_VALUES = np.arange(COUNT, dtype=np.float32)
PLUGIN = """\
import os
import signal
from onnxopt_cli.workers import worker_messages as messages

original = messages.write_buffers
CHANGES = {
    "cut short": lambda file, size: os.ftruncate(file, 100) or size,
    "longer": lambda file, size: os.ftruncate(file, size + 4096) or size + 4096,
    "announced": lambda file, size: size + 4096,
    "enormous": lambda file, size: 1 << 60,
    "negative": lambda file, size: -size,
    "no number": lambda file, size: [size],
}

class Backend:
    def run(self, model, inputs):
        way = str(inputs["way"].item())
        messages.write_buffers = original
        if way in CHANGES:
            messages.write_buffers = lambda file, *rest: CHANGES[way](file, original(file, *rest))
        if way == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        outputs = [inputs["x"].copy(), inputs["way"].copy()]
        if way == "written":
            inputs["x"][-1] += 1
        if way == "wrong":
            outputs[0][-1] += 1
        if way == "another type":
            outputs[0] = outputs[0].astype("float64")
        return outputs
"""
OUTCOMES = {
    "cut short": "protocol",
    "longer": "protocol",
    "announced": "protocol",
    "enormous": "protocol",
    "negative": "protocol",
    "no number": "protocol",
    "killed": "crash",
    "written": "fail",
    "wrong": "fail",
    "another type": "fail",
    "right": "pass",
}


def outcomes(onnxopt, workplace, ways):
    (workplace / "plugin.py").write_text(PLUGIN)
    types = {"x": tensor_type(shape=[COUNT]), "way": tensor_type(8, [])}
    large = tensor(LARGE_VALUES)
    for way in ways:
        values = [large, tensor(np.array(way, object))]
        make_directory(workplace / "cases" / f"test_{way}", identity(types), values, values)
    onnxopt(
        *("run", "cases", "-b", "python:plugin.py:Backend", "--rtol", "0", "--atol", "0"),
        *("--no-explain", "--report", "json=report.json"),
    )
    results = json.loads((workplace / "report.json").read_text())["results"]
    return {result["case"].split("/")[1].removeprefix("test_"): result for result in results}


@pytest.mark.slow
def test_each_response_gets_its_own_verdict(workplace, onnxopt):
    results = outcomes(onnxopt, workplace, OUTCOMES)
    assert {way: result["outcome"] for way, result in results.items()} == OUTCOMES
    assert results["written"]["message"] == "inputs changed: x"
    assert "shared less than" in results["cut short"]["message"]
    assert "belong to no value" in results["longer"]["message"]
    assert "announced shared memory of a size" in results["enormous"]["message"]


def no_room(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("module", "name", "instead"),
    [
        (worker, "create_memory_file", lambda: -1),
        pytest.param(worker_messages.os, "pwrite", no_room, marks=pytest.mark.slow),
    ],
)
def test_values_pass_through_the_channel_without_shared_memory(
    workplace, onnxopt, monkeypatch, module, name, instead
):
    monkeypatch.setattr(module, name, instead)
    results = outcomes(onnxopt, workplace, ["right", "wrong", "written"])
    assert {way: result["outcome"] for way, result in results.items()} == {
        "right": "pass",
        "wrong": "fail",
        "written": "fail",
    }


ADAGRAD = """\
import numpy as np

def adagrad(R, T, X, G, H):
    H = H + G * G
    return [X - R * G / (np.sqrt(H) + np.float32(0.5)), H]

class Backend:
    def run(self, model, inputs):
        with open(RUNS, "a") as file:
            file.write("run\\n")
        return adagrad(**inputs)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("stored", "outcome"), [(1, "pass"), (1.001, "invalid")])
def test_large_case_runs_once(workplace, onnxopt, stored, outcome):
    """The case runs only once, even if its stored outputs make it invalid."""
    (workplace / "plugin.py").write_text(ADAGRAD.replace("RUNS", repr(str(workplace / "runs"))))
    count, names = 9 << 20, ["R", "T", "X", "G", "H"]
    large = np.random.default_rng(1).random(count, np.float32)
    values = [np.float32(0.1), np.int64(3), large, large, large]
    outputs = runpy.run_path(str(workplace / "plugin.py"))["adagrad"](*values)
    outputs[0][-1] *= stored
    operator = {"domain": "ai.onnx.preview.training", "epsilon": 0.5}
    types = [tensor_type(1, []), tensor_type(7, []), *[tensor_type(1, [count])] * 5]
    node = helper.make_node("Adagrad", names, ["X_new", "H_new"], **operator)
    info = [
        helper.make_value_info(name, declared)
        for name, declared in zip([*names, *node.output], types, strict=True)
    ]
    model = helper.make_model(
        helper.make_graph([node], "large", info[:5], info[5:]),
        opset_imports=[helper.make_opsetid(operator["domain"], 1)],
    )
    make_directory(workplace / "test_large", model, map(tensor, values), map(tensor, outputs))
    answer = onnxopt("run", "test_large", "-b", "python:plugin.py:Backend", "--no-explain")
    assert outcome in answer.out
    assert (workplace / "runs").read_text() == "run\n"
