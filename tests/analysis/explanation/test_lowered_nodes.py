"""Failures of lowered models name the primitive node that is wrong."""

from __future__ import annotations

import pytest

BACKEND = """
import numpy as np
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnxopt_cli.errors import Unsupported

class Where(OpRun):
    op_domain = ""
    def _run(self, condition, x, y):
        chosen = condition.astype(x.dtype)
        return ((chosen * x + (1 - chosen) * y).astype(x.dtype),)

class Sqrt(OpRun):
    op_domain = ""
    def _run(self, x):
        return (np.sqrt(x.astype(np.float32)).astype(x.dtype),)

class Primitive:
    wrong = []
    def run(self, model, inputs):
        (node, *_) = model.graph.node
        if node.domain:
            raise Unsupported("not here", operator=f"{node.domain}:{node.op_type}")
        with np.errstate(all="ignore"):
            return ReferenceEvaluator(model, new_ops=self.wrong).run(None, inputs)

class Blending(Primitive):
    wrong = [Where]

class Coarse(Primitive):
    wrong = [Sqrt]
"""

CASES = """
onnxopt: 1
suite: lowered
operator: Adam
cases:
"""
CASE = """
  - name: {name}
    about: One step.
    attributes: {{alpha: 0.5, beta: 0.75, epsilon: 0.25}}
    inputs:
      R: {{dtype: {kind}, data: 0.5}}
      T: {step}
      X: {{dtype: {kind}, data: [1, 2]}}
      G: {{dtype: {kind}, data: [1, 3]}}
      V: {{dtype: {kind}, data: [0, 1]}}
      H: {{dtype: {kind}, data: [0, 2]}}
"""
CASES += CASE.format(name="first", step=0, kind="float32")
CASES += CASE.format(name="third", step=3, kind="float32")
CASES += CASE.format(name="double", step=3, kind="float64")


@pytest.mark.parametrize(
    ("backend", "count", "cause"),
    [
        ("Blending", 1, "Adam: the lowered model's node Where is wrong: Where(False, "),
        ("Coarse", 1, "Adam: the lowered model's node Sqrt is wrong: Sqrt("),
    ],
)
def test_wrong_primitive_node_is_named(onnxopt, tmp_path, backend, count, cause):
    (tmp_path / "backend.py").write_text(BACKEND)
    (tmp_path / "lowered.yaml").write_text(CASES)
    plugin = f"python:{tmp_path / 'backend.py'}:{backend}"
    limit = ("--explain-time", "600")
    answer = onnxopt("run", str(tmp_path / "lowered.yaml"), "-b", plugin, *limit)
    output = " ".join(answer.out.split())
    assert answer.code == 1
    assert f"1. {count} {cause}" in output
    assert "consistent with" not in output


def test_backend_with_right_nodes_conforms(onnxopt, tmp_path):
    (tmp_path / "backend.py").write_text(BACKEND)
    (tmp_path / "lowered.yaml").write_text(CASES)
    plugin = f"python:{tmp_path / 'backend.py'}:Primitive"
    assert onnxopt("run", str(tmp_path / "lowered.yaml"), "-b", plugin).code == 0
