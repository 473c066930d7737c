"""Backends that compute nothing do not pass by returning constants or rejecting models."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from operator import attrgetter

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
from onnxopt_cli.run.vacuity import (
    ProbeNotRunError,
    VacuityCheck,
    computes,
    is_trivial,
    plain_pair,
)
from onnxopt_cli.suites.collect import collect

VACUOUS = PLUGINS / "vacuous.py"
SILENT = ("RaisesAtEverything", "Nothing")
CONSTANT = ("Echo", "Zeros", "NaNs", "Ones")
# These backends are right in a few cases: some trajectories, zeros, masks, and moved data.
SOMETIMES_RIGHT = ("RaisesAtEverything", "Echo", "Zeros", "Ones")


def backend(name):
    return f"python:{VACUOUS}:{name}"


def run(onnxopt, folder, *arguments):
    """Run cases; return the results by backend, and the command's exit code and output."""
    path = folder / "run.json"
    if "--isolation" not in arguments:
        arguments = ("--isolation", "none", *arguments)
    answer = onnxopt("run", *arguments, "--no-explain", "-q", "--report", f"json={path}")
    results = defaultdict(list)
    for result in json.loads(path.read_text())["results"]:
        results[result["backend"].rpartition(":")[2]].append(result)
    return results, answer


def outcomes(results):
    return Counter(result["outcome"] for result in results)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "names"),
    [
        ("conformance --shard 1/20", (*SILENT, *CONSTANT)),
        ("conformance/momentum --lower always --shard 1/8", (*SILENT, *CONSTANT)),
        ("pruning --shard 1/10", SOMETIMES_RIGHT),
        (
            "pruning/magnitudeprune --lower always --shard 1/4",
            ("RaisesAtEverything", "Echo", "Zeros"),
        ),
        ("trajectories", SOMETIMES_RIGHT),
        ("onnx-node --shard 1/20", (*SILENT, *CONSTANT)),
    ],
)
def test_backend_that_computes_nothing_passes_hardly_any_case(onnxopt, tmp_path, options, names):
    backends = [word for name in names for word in ("-b", backend(name))]
    results, answer = run(onnxopt, tmp_path, *options.split(), *backends)
    assert answer.code == 1
    for name in names:
        counts = outcomes(results[name])
        allowed = 0 if name in SILENT else counts.total() / 100
        assert counts["pass"] <= allowed, [
            result["case"] for result in results[name] if result["outcome"] == "pass"
        ]


def test_rejections_of_a_backend_that_rejects_every_model_are_vacuous(onnxopt, tmp_path):
    by_backend, answer = run(
        onnxopt, tmp_path, "conformance", "-k", "refuses", "-b", backend("RaisesAtEverything")
    )
    assert answer.code == 1
    results = by_backend["RaisesAtEverything"]
    assert outcomes(results) == {"vacuous": len(results)}
    assert all("with the fault removed" in result["message"] for result in results)
    assert "vacuous" in answer.out


@pytest.mark.slow
def test_rejections_of_a_backend_with_wrong_numbers_are_not_vacuous(onnxopt, tmp_path):
    by_backend, _ = run(onnxopt, tmp_path, "conformance/adam", "-b", backend("WrongAdam"))
    results = by_backend["WrongAdam"]
    rejections = [result for result in results if "/refuses_" in result["case"]]
    assert outcomes(rejections) == {"pass": len(rejections)}
    assert outcomes(results)["fail"] > 20
    # This pass is not vacuous, because an output without elements cannot be wrong.
    empty = [result for result in results if result["case"].endswith("/empty")]
    assert outcomes(empty) == {"pass": 1}


REJECTED = """\
onnxopt: 1
suite: mine
operator: Adam
cases:
  - name: short
    rejects: true
    inputs: {R: 0.1, T: 1, X: %s, G: %s, V: %s}
"""


def test_probe_of_a_rejection_has_the_same_element_types(onnxopt, workplace):
    double = "{dtype: float64, data: [1.0, 2.0]}"
    for name, values, outcome in (("single", "[1.0, 2.0]", "pass"), ("double", double, "vacuous")):
        (workplace / f"{name}.yaml").write_text(REJECTED % (values, values, values))
        results, _ = run(onnxopt, workplace, f"{name}.yaml", "-b", backend("RefusesDoubles"))
        assert outcomes(results["RefusesDoubles"]) == {outcome: 1}


def test_rejection_of_a_scalar_tensor_is_probed(onnxopt, workplace):
    (workplace / "cases.yaml").write_text(REJECTED % ("1.5", "0.5", "0.25"))
    names = ("WrongAdam", "RaisesAtEverything")
    backends = [word for name in names for word in ("-b", backend(name))]
    results, _ = run(onnxopt, workplace, "cases.yaml", *backends)
    assert outcomes(results["WrongAdam"]) == {"pass": 1}
    assert outcomes(results["RaisesAtEverything"]) == {"vacuous": 1}


@pytest.mark.slow
def test_case_that_the_lowering_rejects_is_skipped(onnxopt, tmp_path):
    results, answer = run(
        onnxopt, tmp_path, "conformance/momentum", "--lower", "always", "-b", backend("Nothing"),
        "-b", "numpy",
    )  # fmt: skip
    for name in ("Nothing", "numpy"):
        rejections = [result for result in results[name] if "/refuses_" in result["case"]]
        assert outcomes(rejections) == {"skip": len(rejections)}
        assert {result["message"] for result in rejections} == {
            "onnxopt's lowering rejects the node, so the backend did not run it"
        }
    assert answer.code == 1


def test_run_in_which_no_case_applies_exits_with_5(onnxopt, workplace):
    answer = onnxopt("run", "conformance", "-k", "refuses", "--lower", "always")
    assert answer.code == 5
    (count,) = set(re.findall(r"numpy was not tested: (\d+) skip", answer.out))
    assert f"skip {count} on numpy: onnxopt's lowering rejects the node" in answer.out


@pytest.mark.parametrize("isolation", ["process", "none"])
def test_backend_cannot_skip_a_case_itself(onnxopt, tmp_path, isolation):
    results, answer = run(
        onnxopt, tmp_path, "spec", "-b", backend("SaysSkip"), "--isolation", isolation
    )
    assert outcomes(results["SaysSkip"]) == {"protocol": 7}
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
def test_other_cases_are_probes_of_an_operator_without_a_formula(onnxopt, workplace, name, outcome):
    (workplace / "relu.yaml").write_text(RELU + RIGHT_RELU)
    results, _ = run(onnxopt, workplace, "relu.yaml", "-k", "text", "-b", backend(name))
    assert outcomes(results[name]) == {outcome: 1}


def test_nontrivial_scalar_output_is_not_vacuous(onnxopt, workplace):
    """The backend ``total`` supports only reductions over all axes, so it fails other cases."""
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
    by_backend, _ = run(onnxopt, workplace, "reduce.yaml", *backends)
    actual = {
        name: [result["outcome"] for result in results] for name, results in by_backend.items()
    }
    # The pass of the backend ``first`` is vacuous: it only returns an element of its input.
    assert actual == {"total": ["pass", "error", "pass"], "first": ["fail", "fail", "vacuous"]}


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


def test_correct_zeros_are_not_vacuous_if_the_backend_computes_another_case(onnxopt, workplace):
    names = ("Relu", "Zeros")
    backends = [word for name in names for word in ("-b", backend(name))]
    (workplace / "relu.yaml").write_text(TRIVIAL_RELU + RIGHT_RELU)
    results, _ = run(onnxopt, workplace, "relu.yaml", *backends)
    assert outcomes(results["Relu"]) == {"pass": 2}
    assert outcomes(results["Zeros"]) == {"vacuous": 1, "fail": 1}
    assert "it does not compute another case" in results["Zeros"][0]["message"]
    # If no other case can serve as a probe, a correct output is a pass.
    (workplace / "relu.yaml").write_text(TRIVIAL_RELU)
    results, _ = run(onnxopt, workplace, "relu.yaml", *backends)
    assert outcomes(results["Zeros"]) == {"pass": 1}


@pytest.mark.parametrize(
    ("folder", "outcome"),
    [
        ("test_relu_example", "vacuous"),
        ("test_basic_relu", "vacuous"),
        ("test_re_example", "vacuous"),
        ("test_other", "pass"),
    ],
)
def test_name_of_a_test_directory_selects_it_as_a_probe(onnxopt, workplace, folder, outcome):
    (workplace / "relu.yaml").write_text(TRIVIAL_RELU)
    X = np.array([-1, 2, 3], np.float32)
    x, y = (tensor_info(name, X.dtype, X.shape) for name in ("X", "Y"))
    graph = helper.make_graph([helper.make_node("Relu", ["X"], ["Y"])], "relu", [x], [y])
    model = whole_model(graph, [("", 13)])
    make_directory(workplace / folder, model, [tensor(X, "X")], [tensor(np.maximum(X, 0), "Y")])
    results, _ = run(onnxopt, workplace, ".", "-b", backend("Zeros"))
    assert outcomes(results["Zeros"]) == {outcome: 1, "fail": 1}


FLOAT32_ONLY = """\
import numpy as np


class Backend:
    def run(self, model, inputs):
        (x,) = inputs.values()
        if x.dtype != np.float32:
            raise ValueError("no such type")
        return [np.maximum(x, np.float32(0))]
"""


def test_probe_with_an_unsupported_type_is_ignored(onnxopt, workplace):
    (workplace / "plugin.py").write_text(FLOAT32_ONLY)
    doubles = RIGHT_RELU.replace("[", "{dtype: float64, data: [").replace("]", "]}")
    (workplace / "relu.yaml").write_text(TRIVIAL_RELU + doubles)
    results, _ = run(onnxopt, workplace, "relu.yaml", "-b", "python:plugin.py:Backend")
    assert outcomes(results["Backend"]) == {"pass": 1, "error": 1}


@pytest.mark.slow
def test_cases_of_onnx_are_probes_of_a_rejection_without_other_cases(onnxopt, workplace):
    (workplace / "relu.yaml").write_text(RELU)
    results, _ = run(
        onnxopt, workplace, "relu.yaml", "-b", backend("Relu"), "-b", backend("RaisesAtEverything")
    )
    assert outcomes(results["Relu"]) == {"pass": 1}
    assert outcomes(results["RaisesAtEverything"]) == {"vacuous": 1}


def test_vacuous_rejection_can_be_expected(onnxopt, workplace):
    (workplace / "known.yaml").write_text(
        "onnxopt-expect: 1\nexpect:\n"
        "  - {case: 'conformance/*/refuses_*', outcome: vacuous, reason: it rejects every model}\n"
    )
    answer = onnxopt(
        "run", "conformance", "-k", "refuses", "-b", backend("RaisesAtEverything"),
        "--expect", "known.yaml",
    )  # fmt: skip
    assert answer.code == 0, answer.text


@pytest.mark.parametrize("operator", registry().operators, ids=attrgetter("name"))
def test_every_operator_has_a_probe(operator):
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


ABSORBED_BY_U = """\
onnxopt: 1
suite: mine
operator: AdmmUpdate
cases:
  - name: absorbed
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


def test_pass_is_not_vacuous_if_large_numbers_absorb_small_ones(onnxopt, workplace):
    (workplace / "plugin.py").write_text(FLOAT32_UPDATE)
    (workplace / "absorbed.yaml").write_text(ABSORBED_BY_U)
    results, _ = run(onnxopt, workplace, "absorbed.yaml", "-b", "python:plugin.py:Backend")
    assert outcomes(results["Backend"]) == {"pass": 1}


NEARLY_ZERO_PERCENT = """\
onnxopt: 1
suite: mine
operator: AdmmUpdate
cases:
  - name: nearly_zero_percent
    attributes: {percent: 1.0e-30}
    inputs: {W: [1.0e-36, 3.0, -1.0, 2.0, 5.0], Z: [0, 0, 0, 0, 0], U: [0, 0, 0, 0, 0]}
"""

INTERPOLATED_FROM_ABOVE = """\
import numpy as np


class Backend:
    def run(self, model, inputs):
        W, Z, U = inputs.values()
        V, (percent,) = W + U, model.graph.node[0].attribute[0].floats
        place = percent / 100 * (V.size - 1)
        low = min(int(place), V.size - 2)
        below, above = np.sort(np.abs(V).ravel()).astype(np.float64)[low : low + 2]
        threshold = np.float32(above - (above - below) * (1 - (place - low)))
        Z = np.where(np.abs(V) < threshold, np.float32(0), V)
        return [Z, V - Z]
"""


def test_pass_is_not_vacuous_if_rounding_decides_that_no_element_is_pruned(onnxopt, workplace):
    (workplace / "plugin.py").write_text(INTERPOLATED_FROM_ABOVE)
    (workplace / "percent.yaml").write_text(NEARLY_ZERO_PERCENT)
    results, _ = run(onnxopt, workplace, "percent.yaml", "-b", "python:plugin.py:Backend")
    assert outcomes(results["Backend"]) == {"pass": 1}


class EndedExecutor:
    """An executor whose run has been interrupted."""

    name, version, ahead = "ended", "", 1

    def submit(self, _request):
        return lambda: "interrupted"


def test_interrupted_probe_is_not_a_verdict():
    (case,) = [
        case for case in collect(["conformance"]).cases if case.id.endswith("adam/refuses_short")
    ]
    rejection = Response(failure=Outcome.ERROR, message="no")
    with pytest.raises(ProbeNotRunError, match="interrupted"):
        VacuityCheck().reason(EndedExecutor(), case.load(), rejection)
