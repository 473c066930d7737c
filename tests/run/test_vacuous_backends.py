"""A backend that computes nothing passes nothing, whatever it returns or refuses."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict

import numpy as np
import pytest
from onnx import helper
from onnx_directories import make_directory, tensor
from places import PLUGINS

from onnxopt_cli.backends.host import Response
from onnxopt_cli.cases.case_template import Author
from onnxopt_cli.cases.onnx.node_model import (
    formula_model,
    tensor_info,
    whole_model,
)
from onnxopt_cli.core.result import Outcome
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.run.vacuity import ProbeNotRunError, VacuityCheck
from onnxopt_cli.suites.collect import collect
from onnxopt_cli.suites.plain_node import (
    computes,
    is_trivial,
    plain_pair,
)

VACUOUS = PLUGINS / "vacuous.py"
SILENT = ("RaisesAtEverything", "Nothing")
CONSTANT = ("Echo", "Zeros", "NaNs", "Ones")
# What is right in a case of many steps, of zeros and masks, or of moved data, some of these return.
LIKELY = ("RaisesAtEverything", "Echo", "Zeros", "Ones")


def backend(name):
    return f"python:{VACUOUS}:{name}"


def run(onnxopt, folder, *arguments):
    """Return the results of a run by backend, as JSON has them, and its exit code."""
    path = folder / "run.json"
    if "--isolation" not in arguments:
        arguments = ("--isolation", "none", *arguments)
    answer = onnxopt("run", *arguments, "--no-explain", "-q", "--report", f"json={path}")
    found = defaultdict(list)
    for result in json.loads(path.read_text())["results"]:
        found[result["backend"].rpartition(":")[2]].append(result)
    return found, answer


def outcomes(results):
    return Counter(result["outcome"] for result in results)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ("spec", (*SILENT, *CONSTANT)),
        ("conformance", (*SILENT, *CONSTANT)),
        ("conformance/momentum --lower always", (*SILENT, *CONSTANT)),
        ("pruning", LIKELY),
        ("pruning/magnitudeprune --lower always", ("RaisesAtEverything", "Echo", "Zeros")),
        ("trajectories", LIKELY),
        # A fifth of them: all take long.
        ("onnx-node -k onnx-node/test_[efst]*", (*SILENT, *CONSTANT)),
    ],
)
def test_who_computes_nothing_passes_nothing(onnxopt, tmp_path, asked, names):
    backends = [word for name in names for word in ("-b", backend(name))]
    found, answer = run(onnxopt, tmp_path, *asked.split(), *backends)
    assert answer.code == 1
    for name in names:
        counts = outcomes(found[name])
        allowed = 0 if name in SILENT else counts.total() / 100
        assert counts["pass"] <= allowed, [
            it["case"] for it in found[name] if it["outcome"] == "pass"
        ]


def test_a_refusal_is_not_proven_by_who_refuses_everything(onnxopt, tmp_path):
    found, answer = run(
        onnxopt, tmp_path, "conformance", "-k", "refuses", "-b", backend("RaisesAtEverything")
    )
    assert answer.code == 1
    results = found["RaisesAtEverything"]
    assert outcomes(results) == {"vacuous": len(results)}
    assert all("without what is wrong" in result["message"] for result in results)
    assert "vacuous" in answer.out


def test_wrong_numbers_do_not_spoil_a_refusal(onnxopt, tmp_path):
    found, _ = run(onnxopt, tmp_path, "conformance/adam", "-b", backend("WrongAdam"))
    refusals = [it for it in found["WrongAdam"] if "/refuses_" in it["case"]]
    assert outcomes(refusals) == {"pass": len(refusals)}
    assert outcomes(found["WrongAdam"])["fail"] > 20
    # Nothing in it depends on the numbers, either.
    empty = [it for it in found["WrongAdam"] if it["case"].endswith("/empty")]
    assert outcomes(empty) == {"pass": 1}


REFUSED = """\
onnxopt: 1
suite: mine
operator: Adam
cases:
  - name: short
    rejects: true
    inputs: {R: 0.1, T: 1, X: %s, G: %s, V: %s}
"""


def test_a_refusal_is_compared_with_the_same_types(onnxopt, workplace):
    double = "{dtype: float64, data: [1.0, 2.0]}"
    for name, values, outcome in (("single", "[1.0, 2.0]", "pass"), ("double", double, "vacuous")):
        (workplace / f"{name}.yaml").write_text(REFUSED % (values, values, values))
        found, _ = run(onnxopt, workplace, f"{name}.yaml", "-b", backend("RefusesDoubles"))
        assert outcomes(found["RefusesDoubles"]) == {outcome: 1}


def test_a_refusal_of_a_tensor_without_dimensions_is_proven_too(onnxopt, workplace):
    (workplace / "cases.yaml").write_text(REFUSED % ("1.5", "0.5", "0.25"))
    names = ("WrongAdam", "RaisesAtEverything")
    backends = [word for name in names for word in ("-b", backend(name))]
    found, _ = run(onnxopt, workplace, "cases.yaml", *backends)
    assert outcomes(found["WrongAdam"]) == {"pass": 1}
    assert outcomes(found["RaisesAtEverything"]) == {"vacuous": 1}


def test_what_our_lowering_refuses_is_skipped_with_that_reason(onnxopt, tmp_path):
    found, answer = run(
        onnxopt, tmp_path, "conformance/momentum", "--lower", "always", "-b", backend("Nothing"),
        "-b", "numpy",
    )  # fmt: skip
    for name in ("Nothing", "numpy"):
        refusals = [it for it in found[name] if "/refuses_" in it["case"]]
        assert outcomes(refusals) == {"skip": len(refusals)}
        assert {it["message"] for it in refusals} == {
            "our own lowering refuses the node before the backend is asked"
        }
    assert answer.code == 1


def test_a_run_in_which_no_case_applies_has_tested_nothing(onnxopt, workplace):
    answer = onnxopt("run", "conformance", "-k", "refuses", "--lower", "always")
    assert answer.code == 5
    (count,) = set(re.findall(r"numpy was not tested: (\d+) skip", answer.out))
    assert f"skip {count} on numpy: our own lowering refuses the node" in answer.out


@pytest.mark.parametrize("isolation", ["process", "none"])
def test_a_backend_cannot_skip_a_case_itself(onnxopt, tmp_path, isolation):
    found, answer = run(
        onnxopt, tmp_path, "spec", "-b", backend("SaysSkip"), "--isolation", isolation
    )
    assert outcomes(found["SaysSkip"]) == {"protocol": 7}
    assert answer.code == 1


RELU = """\
onnxopt: 1
suite: mine
operator: Relu
cases:
  - name: text
    rejects: true
    inputs: {X: {dtype: string, data: [a]}}
"""
RIGHT_RELU = """\
  - name: plain
    inputs: {X: [-1.0, 2.0, 3.0]}
    outputs: {Y: [0.0, 2.0, 3.0]}
"""


@pytest.mark.parametrize(("name", "outcome"), [("Relu", "pass"), ("RaisesAtEverything", "vacuous")])
def test_an_operator_without_a_formula_is_shown_by_the_cases_beside(
    onnxopt, workplace, name, outcome
):
    (workplace / "relu.yaml").write_text(RELU + RIGHT_RELU)
    found, _ = run(onnxopt, workplace, "relu.yaml", "-k", "text", "-b", backend(name))
    assert outcomes(found[name]) == {outcome: 1}


def test_a_single_number_that_nobody_guesses_is_earned(onnxopt, workplace):
    """Of a runtime that reduces whole tensors alone no other case tells anything."""
    (workplace / "whole.py").write_text(
        "import numpy as np\n"
        "def total(model, inputs):\n"
        "    x, *axes = inputs.values()\n"
        "    if axes[0].size:\n"
        "        raise ValueError('axes')\n"
        "    return [np.reshape(np.abs(x).sum(dtype=np.float32), [1] * x.ndim)]\n"
        "def first(model, inputs):\n"
        "    return [next(iter(inputs.values())).reshape(-1)[:1]]\n"
    )
    (workplace / "reduce.yaml").write_text(REDUCED)
    backends = [word for name in ("total", "first") for word in ("-b", f"python:whole.py:{name}")]
    found, _ = run(onnxopt, workplace, "reduce.yaml", *backends)
    said = {name: [it["outcome"] for it in results] for name, results in found.items()}
    # One that picks an element computes nothing.
    assert said == {"total": ["pass", "error", "pass"], "first": ["fail", "fail", "vacuous"]}


REDUCED = """\
onnxopt: 1
suite: mine
operator: ReduceL1
cases:
  - name: whole
    inputs: {data: [-1.5, 2.25], axes: {dtype: int64, data: []}}
    outputs: {reduced: [3.75]}
  - name: by_axis
    inputs: {data: [[-1.5, 2.25], [3, 4]], axes: {dtype: int64, data: [0]}}
    outputs: {reduced: [[4.5, 6.25]]}
  - name: of_one
    inputs: {data: [2.25], axes: {dtype: int64, data: []}}
    outputs: {reduced: [2.25]}
"""
TRIVIAL_RELU = """\
onnxopt: 1
suite: mine
operator: Relu
cases:
  - name: negative
    inputs: {X: [-1.0, -2.0]}
    outputs: {Y: [0.0, 0.0]}
"""


def test_zeros_that_are_right_count_for_who_computes_the_cases_beside(onnxopt, workplace):
    names = ("Relu", "Zeros")
    backends = [word for name in names for word in ("-b", backend(name))]
    (workplace / "relu.yaml").write_text(TRIVIAL_RELU + RIGHT_RELU)
    found, _ = run(onnxopt, workplace, "relu.yaml", *backends)
    assert outcomes(found["Relu"]) == {"pass": 2}
    assert outcomes(found["Zeros"]) == {"vacuous": 1, "fail": 1}
    assert "it computes none of 1 other cases" in found["Zeros"][0]["message"]
    # Where nothing tells, what is right is right.
    (workplace / "relu.yaml").write_text(TRIVIAL_RELU)
    found, _ = run(onnxopt, workplace, "relu.yaml", *backends)
    assert outcomes(found["Zeros"]) == {"pass": 1}


@pytest.mark.parametrize(
    ("folder", "outcome"),
    [
        ("test_relu_example", "vacuous"),
        ("test_basic_relu", "vacuous"),
        ("test_re_example", "vacuous"),
        ("test_other", "pass"),
    ],
)
def test_a_directory_beside_is_known_by_its_name(onnxopt, workplace, folder, outcome):
    (workplace / "relu.yaml").write_text(TRIVIAL_RELU)
    X = np.array([-1, 2, 3], np.float32)
    x, y = (tensor_info(name, X.dtype, X.shape) for name in ("X", "Y"))
    graph = helper.make_graph([helper.make_node("Relu", ["X"], ["Y"])], "relu", [x], [y])
    model = whole_model(graph, [("", 13)])
    make_directory(workplace / folder, model, [tensor(X, "X")], [tensor(np.maximum(X, 0), "Y")])
    found, _ = run(onnxopt, workplace, ".", "-b", backend("Zeros"))
    assert outcomes(found["Zeros"]) == {outcome: 1, "fail": 1}


FLOAT32_ALONE = """\
import numpy as np


class Backend:
    def run(self, model, inputs):
        (x,) = inputs.values()
        if x.dtype != np.float32:
            raise ValueError("no such type")
        return [np.maximum(x, np.float32(0))]
"""


def test_what_raises_at_other_types_is_not_asked_for_them(onnxopt, workplace):
    (workplace / "plugin.py").write_text(FLOAT32_ALONE)
    doubles = RIGHT_RELU.replace("[", "{dtype: float64, data: [").replace("]", "]}")
    (workplace / "relu.yaml").write_text(TRIVIAL_RELU + doubles)
    found, _ = run(onnxopt, workplace, "relu.yaml", "-b", "python:plugin.py:Backend")
    assert outcomes(found["Backend"]) == {"pass": 1, "error": 1}


@pytest.mark.slow
def test_without_a_case_beside_it_onnx_has_one(onnxopt, workplace):
    (workplace / "relu.yaml").write_text(RELU)
    found, _ = run(
        onnxopt, workplace, "relu.yaml", "-b", backend("Relu"), "-b", backend("RaisesAtEverything")
    )
    assert outcomes(found["Relu"]) == {"pass": 1}
    assert outcomes(found["RaisesAtEverything"]) == {"vacuous": 1}


def test_a_vacuous_refusal_can_be_expected(onnxopt, workplace):
    (workplace / "known.yaml").write_text(
        "onnxopt-expect: 1\nexpect:\n"
        "  - {case: 'conformance/*/refuses_*', outcome: vacuous, reason: it refuses everything}\n"
    )
    answer = onnxopt(
        "run", "conformance", "-k", "refuses", "-b", backend("RaisesAtEverything"),
        "--expect", "known.yaml",
    )  # fmt: skip
    assert answer.code == 0, answer.text


@pytest.mark.parametrize("operator", registry().operators, ids=lambda it: it.name)
def test_every_operator_has_a_node_that_tells(operator):
    ordinary = Author(operator).template("", "", shapes=[(0,), (2,)])
    model = formula_model(
        operator, ordinary.attributes, list(ordinary.inputs.values()), graph_name="empty"
    )
    pair = plain_pair(operator, model.graph.node[0], ordinary.inputs)
    assert pair
    assert computes(pair, [node.expected for node in pair])
    assert not computes(pair, [list(node.inputs.values()) for node in pair])
    assert not computes(pair, [pair[0].expected, pair[0].expected])
    for node in pair:
        assert not is_trivial(node.expected, node.inputs)


LOST_IN_U = """\
onnxopt: 1
suite: mine
operator: AdmmUpdate
cases:
  - name: lost
    attributes: {percent: 90}
    inputs: {W: [1.0e-3, 1.0e-7], Z: [1.0, 1.0], U: [1.0e+6, 1.0e+6]}
"""

FLOAT32_UPDATE = """\
import numpy as np


class Backend:
    def run(self, model, inputs):
        W, Z, U = inputs.values()
        V, (percent,) = W + U, model.graph.node[0].attribute[0].floats
        Z = np.where(np.abs(V) < np.percentile(np.abs(V), percent), np.float32(0), V)
        return [Z, V - Z]
"""


def test_small_numbers_that_are_lost_in_large_ones_are_no_evidence(onnxopt, workplace):
    (workplace / "plugin.py").write_text(FLOAT32_UPDATE)
    (workplace / "lost.yaml").write_text(LOST_IN_U)
    found, _ = run(onnxopt, workplace, "lost.yaml", "-b", "python:plugin.py:Backend")
    assert outcomes(found["Backend"]) == {"pass": 1}


class _Ended:
    """An executor that takes no question any more."""

    name, version, ahead = "ended", "", 1

    def submit(self, _order):
        return lambda: "interrupted"


def test_what_cannot_be_asked_any_more_is_not_held_against_the_backend():
    (case,) = [it for it in collect(["conformance"]).cases if it.id.endswith("adam/refuses_short")]
    refusal = Response(failure=Outcome.ERROR, message="no")
    with pytest.raises(ProbeNotRunError, match="interrupted"):
        VacuityCheck().reason(_Ended(), case.load(), refusal)
