"""Large tensors are computed and judged in blocks, with the verdict that they would have whole."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from onnxopt_cli.core import blocks
from onnxopt_cli.operators import OPERATORS
from onnxopt_cli.readings.evaluate import is_elementwise

COUNT = blocks.LARGE + 11
CASE = """\
onnxopt: 1
suite: large
operator: Adam
cases:
- name: two
  attributes: {alpha: 0.9, beta: 0.99, epsilon: 0.01, norm_coefficient: 0.1}
  inputs:
    {R: 0.1, T: 3, X1: {file: X1.npy}, X2: {file: X2.npy}, G1: {file: G1.npy}, G2: {file: G2.npy},
     V1: {file: V1.npy}, V2: {file: V2.npy}, H1: {file: H1.npy}, H2: {file: H2.npy}}
"""
PLUGIN = """\
import numpy as np
from onnxopt_cli.readings.evaluate import evaluate
from onnxopt_cli.readings.single_node import sole_call

def narrow(model, inputs):
    with np.errstate(all="ignore"):
        outputs = evaluate(sole_call(model, inputs), np.dtype(np.float32))
    outputs[WHERE].reshape(-1)[PLACE] *= WRONG
    return outputs

class Backend:
    def run(self, model, inputs):
        return narrow(model, inputs)
"""


@pytest.fixture
def large(workplace):
    """A case of two tensors, with operands that broadcast, and NaN, Inf and the like among them."""
    random = np.random.default_rng(5)
    special = np.float32([np.nan, np.inf, -np.inf, 0, 1e-42, 3e38])
    shapes = {"1": (COUNT,), "2": (8, COUNT // 7)}
    for name in "XGVH":
        for group, shape in shapes.items():
            values = random.standard_normal(shape).astype(np.float32)
            values.reshape(-1)[random.integers(0, COUNT, 60)] = np.resize(special, 60)
            if name == "G" and group == "2":
                values = values[:, :1]
            np.save(workplace / f"{name}{group}.npy", np.abs(values) if name == "H" else values)
    (workplace / "large.yaml").write_text(CASE)
    return workplace


def judged(onnxopt, *backend):
    command = ["run", "large.yaml", *backend, "--isolation", "none", "--no-explain"]
    code = onnxopt(*command, "--report", "json=found.json").code
    (result,) = json.loads(Path("found.json").read_text())["results"]
    return code, result["outputs"]


@pytest.mark.slow
@pytest.mark.parametrize(("where", "place", "wrong"), [(0, 0, 1), (3, -1, 1.001), (1, 30_000, 2)])
def test_blocks_have_the_verdict_of_the_whole(large, onnxopt, monkeypatch, where, place, wrong):
    text = PLUGIN.replace("WHERE", str(where)).replace("PLACE", str(place))
    (large / "plugin.py").write_text(text.replace("WRONG", str(wrong)))
    backend = ["-b", f"python:{large / 'plugin.py'}:Backend"]
    monkeypatch.setattr(blocks, "available_jobs", lambda: 2)
    code, parts = judged(onnxopt, *backend)
    assert code == (wrong != 1)
    monkeypatch.setattr("onnxopt_cli.readings.evaluate.LARGE", 10**9)
    assert judged(onnxopt, *backend)[0] == code
    _, whole = judged(onnxopt, *backend)
    for part, one in zip(parts, whole, strict=True):
        for name in ("budget_used", "budget_median"):
            assert part.pop(name) == pytest.approx(one.pop(name), rel=1e-6)
        for mine, theirs in zip(part["worst"], one["worst"], strict=True):
            assert mine.pop("limit") == pytest.approx(theirs.pop("limit"), rel=1e-6)
        assert part == one
    assert sum(it["mismatches"] for it in parts) == (wrong != 1)


def test_the_reference_computes_the_same_in_blocks(large, onnxopt):
    code, outputs = judged(onnxopt)
    assert code == 0
    assert {it["max_ulp"] for it in outputs} == {0}


def test_what_works_element_by_element_is_known_from_the_vocabulary():
    found = {operator.name for operator in OPERATORS if is_elementwise(operator)}
    assert {"Adam", "Adagrad", "Momentum"} <= found
    assert not found & {"AdmmUpdate", "AdmmPenalty"}
