"""Cases whose graph differs from the schema in names, orders, shared values or initializers."""

from __future__ import annotations

import re
import runpy

import numpy as np
import pytest
from places import REPOSITORY
from yaml_files import only_case, problems_of

from onnxopt_cli.cases.case_template import Author, derived_outputs
from onnxopt_cli.cases.tensors.declared import RandomTensor
from onnxopt_cli.operators.registry import registry

WIRED = """\
onnxopt: 1
suite: mine
operator: Momentum
cases:
  - name: wired
    attributes: {alpha: 0.9, beta: 0.1, mode: standard, norm_coefficient: 0.0}
    inputs: {R: 0.5, T: 0, X: [1.0], G: [0.5], V: [1.0]}
    graph:
      names: {X: weights, V: weights, X_new: after}
      inputs: [G, T]
      outputs: [V_new]
      initializers: [R]
      attributes: [mode, beta]
"""
# A wrong backend that ignores names: it takes inputs in the order of the graph, and returns outputs
# in the order of the node.
BY_PLACE = """\
import onnx
from onnxopt_cli.backends.reference import NumpyBackend

def run(model, inputs):
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    (node,) = plain.graph.node
    if len(node.input) == len(model.graph.input):
        node.input[:] = [info.name for info in model.graph.input]
    outputs = {info.name: info for info in model.graph.output}
    del plain.graph.output[:]
    plain.graph.output.extend(outputs[name] for name in node.output)
    return NumpyBackend().prepare(plain).run(inputs)
"""


def test_case_defines_the_wiring_of_its_graph(tmp_path):
    content = only_case(tmp_path, WIRED)
    graph, (node,) = content.model.graph, content.model.graph.node
    assert [value.name for value in graph.input] == ["G", "T", "weights"] == list(content.inputs)
    assert [value.name for value in graph.output] == ["V_new", "after"]
    assert [tensor.name for tensor in graph.initializer] == ["R"]
    assert list(node.input) == ["R", "T", "weights", "G", "weights"]
    assert list(node.output) == ["after", "V_new"]
    assert [attribute.name for attribute in node.attribute] == [
        "mode",
        "beta",
        "alpha",
        "norm_coefficient",
    ]


def test_wired_case_is_judged_by_the_names_of_its_graph(onnxopt, workplace):
    (workplace / "mine.yaml").write_text(WIRED)
    (workplace / "by_place.py").write_text(BY_PLACE)
    assert onnxopt("run", "mine.yaml", "-b", "numpy", "-b", "onnxruntime").code == 0
    answer = onnxopt("run", "mine.yaml", "-b", "python:by_place.py:run", "--no-explain")
    assert answer.code == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("V: [1.0]", "V: [2.0, 1.0]", "expected equal inputs"),
        ("inputs: [G, T]", "inputs: [G, Q]", "Q"),
        ("X_new: after", "X_new: G", "expected another for the output"),
    ],
)
def test_wrong_wiring_is_reported(tmp_path, old, new, message):
    assert message in "".join(problems_of(tmp_path, WIRED.replace(old, new)))


def test_values_of_one_name_must_be_equal(onnxopt, workplace):
    (workplace / "mine.yaml").write_text(WIRED.replace("V: [1.0]", "V: [2.0]"))
    answer = onnxopt("run", "mine.yaml")
    assert answer.code == 2
    assert "found V unlike X" in " ".join(answer.text.split())


def test_suites_reject_a_backend_that_ignores_names(onnxopt, workplace):
    (workplace / "by_place.py").write_text(BY_PLACE)
    wired = ("run", "conformance/momentum", "-k", "*/wired*", "--no-explain")
    answer = onnxopt(*wired, "-b", "python:by_place.py:run")
    assert answer.code == 1
    assert "inputs_reversed" in answer.out
    assert onnxopt(*wired).code == 0


def test_random_data_may_end_with_given_elements():
    drawn = RandomTensor("normal", 7, (2, 3), np.dtype(np.float32))
    tail = RandomTensor("normal", 7, (2, 3), np.dtype(np.float32), tail=(5.0, -6.0))
    assert tail.make().reshape(-1)[-2:].tolist() == [5.0, -6.0]
    assert np.array_equal(tail.make().reshape(-1)[:-2], drawn.make().reshape(-1)[:-2])
    with pytest.raises(ValueError, match="a tail of 2 elements"):
        RandomTensor("normal", 7, (1,), np.dtype(np.float32), tail=(5.0, -6.0))


@pytest.mark.parametrize("count", [1, 4, 2**20])
def test_division_by_an_exact_zero_is_judged(count):
    author = Author(registry().named("Adagrad"))
    template = author.template("", "", count=count, changed={"decay_factor": -1 / count})
    new = derived_outputs(template)[0]
    assert np.isinf(new.value).all()
    assert not new.branch.inconclusive.any()
    # 1/3 is rounded, so the zero is inexact.
    template = author.template("", "", count=3, changed={"decay_factor": -1 / 3})
    assert derived_outputs(template)[0].branch.inconclusive.all()


@pytest.mark.slow
def test_every_documented_dimension_is_tested_for_every_operator():
    script = runpy.run_path(str(REPOSITORY / "scripts/count_dimensions.py"))
    table = script["table"]()
    assert table in (REPOSITORY / "docs/mutation-analysis.md").read_text()
    assert not re.search(r"\| 0 \+|\+ 0 \|.*large", table)
