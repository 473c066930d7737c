"""``onnxopt locate`` names the wrong nodes of models."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from commands import unbroken
from onnx import helper, numpy_helper

from onnxopt_cli.analysis import locate as locate_module
from onnxopt_cli.analysis import model_walk
from onnxopt_cli.analysis.model_walk import ModelWalk, ValueStore
from onnxopt_cli.errors import UsageError
from onnxopt_cli.oracle.estimate.reference_values import (
    NoReferenceError,
    reference_values,
    values_of_nodes,
)

# Backends that compute models with onnx's reference; each backend has a fault in some nodes.
BACKEND = """
import time

import numpy as np
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

def _run(model, inputs):
    return ReferenceEvaluator(model).run(None, inputs)

def _each_node(model):
    nodes = [*model.graph.node]
    for node in nodes:
        yield node
        for item in node.attribute:
            nodes.extend(item.g.node)

class Right:
    def run(self, model, inputs):
        return _run(model, inputs)

class Leaky:
    def run(self, model, inputs):
        for node in _each_node(model):
            if node.op_type == "LeakyRelu":
                node.attribute.append(helper.make_attribute("alpha", 0.02))
        return _run(model, inputs)

class TakesLists(Leaky):
    def run(self, model, inputs):
        for info in model.graph.input:
            if info.type.HasField("sequence_type") and not isinstance(inputs[info.name], list):
                raise TypeError("expected a list")
        return super().run(model, inputs)

class HangsAtSub(Leaky):
    def run(self, model, inputs):
        if [node.op_type for node in model.graph.node] == ["Sub"]:
            open("hangs", "w").close()
            time.sleep(300)
        return super().run(model, inputs)

class Fusing:
    def run(self, model, inputs):
        readers = {name: node for node in model.graph.node for name in node.input}
        for node in model.graph.node:
            after = readers.get(node.output[0])
            if (node.op_type, after and after.op_type) == ("MatMul", "Add"):
                after.op_type = "Sub"
        return _run(model, inputs)

class NearlyRight:
    def run(self, model, inputs):
        return [np.nextafter(y, np.float32(9)) for y in _run(model, inputs)]

class InexactSigmoid:
    def run(self, model, inputs):
        operators = [node.op_type for node in model.graph.node]
        factor = np.float32(1 + 5e-7 * (operators == ["Sigmoid"]))
        return [y * factor for y in _run(model, inputs)]

class OneNodeOnly:
    def run(self, model, inputs):
        if len(model.graph.node) > 1:
            raise RuntimeError("too many nodes")
        return _run(model, inputs)

class WrongInOtherGraphs:
    def run(self, model, inputs):
        return [y + np.float32(model.graph.name != "nodes") for y in _run(model, inputs)]

class Shifted:
    def run(self, model, inputs):
        return [y + np.float32(1) for y in _run(model, inputs)]

class Overflowing:
    def run(self, model, inputs):
        return [np.full_like(y, 3e38) for y in _run(model, inputs)]

class Flat:
    def run(self, model, inputs):
        return [y.ravel() for y in _run(model, inputs)]

class TorchAdam:
    def run(self, model, inputs):
        def adam(r, t, x, g, v, h, a):
            v = a["alpha"] * v + (1 - a["alpha"]) * g
            h = a["beta"] * h + (1 - a["beta"]) * g * g
            root = np.sqrt(h / (1 - a["beta"] ** t)) + a["epsilon"]
            return [x - r * (v / (1 - a["alpha"] ** t)) / root, v, h]

        values = dict(inputs)
        values |= {it.name: numpy_helper.to_array(it) for it in model.graph.initializer}
        for node in model.graph.node:
            operands = [values[name] for name in node.input]
            if node.op_type == "Adam":
                outputs = adam(*operands, {it.name: it.f for it in node.attribute})
            else:
                outputs = [{"Mul": np.multiply, "Add": np.add}[node.op_type](*operands)]
            values |= dict(zip(node.output, (np.float32(y) for y in outputs)))
        return [values[info.name] for info in model.graph.output]

class Vendor:
    def run(self, model, inputs):
        class Triple(OpRun):
            op_domain = "vendor"

            def _run(self, x):
                return (3 * x,)

        for node in _each_node(model):
            if node.op_type == "LeakyRelu":
                node.attribute.append(helper.make_attribute("alpha", 0.02))
        return ReferenceEvaluator(model, new_ops=[Triple]).run(None, inputs)

class Unable:
    def run(self, model, inputs):
        from onnxopt_cli.errors import Unsupported

        raise Unsupported("no such operator")

class WrongBranch:
    def run(self, model, inputs):
        for node in model.graph.node:
            if node.op_type == "If":
                with open("judged", "a") as file:
                    file.write(f"{len(model.graph.node)} ")
                first, second = node.attribute
                first.name, second.name = second.name, first.name
        return _run(model, inputs)

class RightBranch:
    def run(self, model, inputs):
        if any(node.op_type == "If" for node in model.graph.node):
            with open("judged", "a") as file:
                file.write(f"{len(model.graph.node)} ")
        return _run(model, inputs)

class Stateful:
    def __init__(self):
        self.calls = 0

    def run(self, model, inputs):
        outputs = _run(model, inputs)
        if any(node.op_type == "Tanh" for node in model.graph.node):
            self.calls += 1
            return [y + np.float32(self.calls > 1) for y in outputs]
        return outputs

class FusingInSomeModels:
    # Not in models of three nodes.
    def run(self, model, inputs):
        operators = [node.op_type for node in model.graph.node]
        if operators == ["MatMul", "Add"] or len(operators) == 4:
            return Fusing().run(model, inputs)
        return _run(model, inputs)

class Refusing:
    def run(self, model, inputs):
        if any(node.op_type == "Sigmoid" for node in model.graph.node):
            raise RuntimeError("no sigmoid")
        return _run(model, inputs)
"""


@pytest.fixture
def locate(tmp_path, monkeypatch, onnxopt):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "backend.py").write_text(BACKEND)

    def located(model, backend, *arguments):
        onnx.save(model, "model.onnx")
        name = f"python:backend.py:{backend}"
        options = ("-b", name, "--isolation", "none", "--json", "l.json")
        ran = onnxopt("locate", "model.onnx", *options, *arguments)
        assert "Traceback" not in ran.text
        assert (tmp_path / "l.json").exists(), ran.text
        return ran, json.loads((tmp_path / "l.json").read_text())

    return located


def model_of(nodes, inputs=("x",), outputs=("y",), shape=(4, 4), functions=(), **constants):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, 1, shape) for name in inputs],
        [helper.make_tensor_value_info(name, 1, shape) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    imports = [helper.make_opsetid("", 17)]
    imports += [helper.make_opsetid(function.domain, 1) for function in functions]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, functions=[*functions])


def node(operator, inputs, output, **attributes):
    name = attributes.pop("name", f"the_{output}")
    return helper.make_node(operator, inputs.split(), [output], name=name, **attributes)


def nodes_of(text):
    """Return the nodes of a text such as ``a = Exp(x); y = Add(a, x)``."""
    assignments = re.findall(r"(\w+) = (\w+)\((.*?)\)", text)
    return [
        node(operator, inputs.replace(",", ""), output) for output, operator, inputs in assignments
    ]


W = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
CHAIN = [
    node("MatMul", "x w", "a"),
    node("LeakyRelu", "a", "b"),
    node("Exp", "b", "c"),
    node("LeakyRelu", "c", "d"),
    node("Sub", "c d", "y"),
]


SHORT_CHAIN = [*CHAIN[:2], node("Exp", "b", "y")]


@pytest.mark.slow
def test_every_wrong_node_is_named_alone_and_reproduced(locate, onnxopt):
    # The fault changes the slope of LeakyRelu. The second LeakyRelu is right, because its operands
    # are positive.
    ran, found = locate(model_of(CHAIN, w=W), "Leaky")
    assert ran.code == 1
    (wrong,) = found["wrong"]
    assert (wrong["node"], wrong["operator"], wrong["output"]) == ("the_b", "LeakyRelu", "b")
    assert wrong["error_over_tolerance"] > 1
    assert (found["subgraph"], found["not_judged"]) == ([], [])
    again = ["run", wrong["case"], "--isolation", "none", "-b"]
    assert onnxopt(*again, "python:backend.py:Leaky").code == 1
    assert onnxopt(*again, "python:backend.py:Right").code == 0


def test_page_draws_the_nodes_around_a_wrong_node(locate, tmp_path):
    hostile = "<script>x"
    chain = [*CHAIN[:3], node("LeakyRelu", "c", "d", name=hostile), *CHAIN[4:]]
    locate(model_of(chain, w=W), "Leaky", "--html", "l.html")
    text = (tmp_path / "l.html").read_text(encoding="utf-8")
    drawn = re.findall(r">([^<]+)</text><text[^>]*>([^<]+)</text>", text)
    assert drawn == [("MatMul", "the_a"), ("LeakyRelu", "the_b"), ("Exp", "the_c")]
    assert re.search(r"onnxopt run located/test_the_b\S* -b python:backend.py:Leaky", text)
    assert "<script" not in text
    assert "1 of 5 nodes wrong" in text


def test_run_names_the_first_wrong_node_of_a_failing_model(tmp_path, monkeypatch, onnxopt):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "backend.py").write_text(BACKEND)
    nodes = [node("MatMul", "x w", "a"), node("LeakyRelu", "a", "b"), node("Exp", "b", "y")]
    onnx.save(model_of(nodes, w=W), "model.onnx")
    backend = ("-b", "python:backend.py:Leaky", "--isolation", "none")
    ran = onnxopt("run", "model.onnx", *backend)
    assert ran.code == 1
    assert "the_b (LeakyRelu): b:" in ran.out
    lines = unbroken(ran.out).splitlines()
    (command,) = (line for line in lines if "onnxopt locate" in line)
    words = command.partition("onnxopt ")[2].split()
    assert onnxopt(*words).code == 1
    assert "the_b" not in onnxopt("run", "model.onnx", *backend, "--no-explain").out


def test_failing_case_of_a_log_is_examined_as_it_ran(tmp_path, monkeypatch, onnxopt):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "backend.py").write_text(BACKEND)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        onnx.save(model_of(SHORT_CHAIN, w=W, shape=("rows", 4)), f"{name}/model.onnx")
    name = "python:backend.py:Leaky"
    options = ("--dim", "rows=3", "--seed", "7", "--isolation", "none", "--no-explain")
    onnxopt(
        "run",
        "one/model.onnx",
        "two/model.onnx",
        "-b",
        f"acme={name}",
        *options,
        "--log",
        "run.jsonl",
    )
    locate = (
        "locate",
        "--log",
        "run.jsonl",
        "two/model",
        "--json",
        "l.json",
        "--isolation",
        "none",
    )
    refused = onnxopt(*locate)
    assert refused.code == 2
    assert "a log must not select code to run" in " ".join(refused.err.split())
    locate = (*locate, "-b", f"acme={name}")
    answer = onnxopt(*locate)
    assert answer.code == 1, answer.err
    located = json.loads((tmp_path / "l.json").read_text())
    assert {finding["node"] for finding in located["wrong"]} == {"the_b"}
    assert {finding["backend"] for finding in located["wrong"]} == {"acme"}
    # The inputs of the node have the dimensions that the options of the run set.
    case = tmp_path / located["wrong"][0]["case"] / "test_data_set_0" / "input_0.pb"
    assert [*onnx.load_tensor(case).dims] == [3, 4]
    # Options on the command line take precedence over the options of the run.
    onnxopt(*locate, "--dim", "rows=2")
    located = json.loads((tmp_path / "l.json").read_text())
    case = tmp_path / located["wrong"][0]["case"] / "test_data_set_0" / "input_0.pb"
    assert [*onnx.load_tensor(case).dims] == [2, 4]


def test_case_that_does_not_fail_in_a_log_is_rejected(tmp_path, monkeypatch, onnxopt):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "backend.py").write_text(BACKEND)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        onnx.save(model_of(SHORT_CHAIN, w=W), f"{name}/model.onnx")
    run = ("run", "one/model.onnx", "two/model.onnx", "--isolation", "none", "--no-explain")
    onnxopt(*run, "-b", "python:backend.py:Leaky", "--log", "wrong.jsonl")
    onnxopt(*run, "-b", "python:backend.py:Right", "--log", "right.jsonl")
    for words, message in (
        (("--log", "wrong.jsonl"), "has 2 failing cases; name one"),
        (("--log", "wrong.jsonl", "one/modle"), "did you mean one/model?"),
        (("--log", "right.jsonl"), "has no failing case"),
        ((), "no model to examine"),
    ):
        answer = onnxopt("locate", *words)
        assert (answer.code, message in answer.err) == (2, True), answer.err
    (tmp_path / "two" / "model.onnx").unlink()
    backend = ("-b", "python:backend.py:Leaky")
    answer = onnxopt("locate", "--log", "wrong.jsonl", "two/model", *backend)
    assert (answer.code, "two/model is no longer at two/model.onnx" in answer.err) == (2, True)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
def test_interrupted_search_prints_and_writes_what_is_known(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "backend.py").write_text(BACKEND)
    onnx.save(model_of(CHAIN, w=W), "model.onnx")
    words = ["-b", "python:backend.py:HangsAtSub", "--timeout", "60", "--json", "l.json"]
    command = [sys.executable, "-m", "onnxopt_cli", "locate", "model.onnx", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while not (tmp_path / "hangs").exists():
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "wrong the_b (LeakyRelu)" in out
    assert "interrupted; 5 nodes: " in out
    assert "not judged " not in out.splitlines()[-2]
    located = json.loads((tmp_path / "l.json").read_text())
    assert located["interrupted"] is True
    assert "the_b" in {finding["node"] for finding in located["wrong"]}
    assert all((tmp_path / finding["case"]).is_dir() for finding in located["wrong"])


def test_right_backend_conforms(locate):
    ran, found = locate(model_of(CHAIN, w=W), "Right")
    assert ran.code == 0
    assert (found["wrong"], found["subgraph"], found["not_judged"]) == ([], [], [])
    assert found["whole"] == {"python:backend.py:Right": "pass"}


def test_fault_that_needs_two_nodes_is_reduced_to_these_nodes(locate, onnxopt):
    nodes = nodes_of("a = Exp(x); b = MatMul(a, w); c = Add(b, a); d = Tanh(c); y = Mul(d, x)")
    ran, found = locate(model_of(nodes, w=W), "Fusing")
    assert ran.code == 1
    assert found["wrong"] == []
    assert found["subgraph"] == ["the_b", "the_c"]
    again = ["run", "located/test_subgraph", "--isolation", "none", "-b"]
    assert onnxopt(*again, "python:backend.py:Fusing").code == 1
    assert onnxopt(*again, "python:backend.py:Right").code == 0


def test_smaller_part_is_found_although_larger_parts_are_right(locate):
    nodes = nodes_of("a = Exp(x); b = MatMul(a, w); c = Add(b, a); y = Tanh(c)")
    _, found = locate(model_of(nodes, w=W), "FusingInSomeModels")
    assert found["subgraph"] == ["the_b", "the_c"]


def test_only_the_node_that_is_wrong_when_run_again_is_named(locate):
    nodes = [node("Exp", "x", "a"), node("Tanh", "a", "b"), node("Exp", "b", "y")]
    ran, found = locate(model_of(nodes), "Stateful")
    assert ran.code == 1
    assert [item["node"] for item in found["wrong"]] == ["the_b"]
    assert found["wrong"][0]["cause"].startswith("right when it ran first")
    assert found["subgraph"] == []


def test_nodes_with_the_same_name_are_named_by_their_outputs(locate):
    nodes = [
        node("LeakyRelu", "x", "a", name="act"),
        node("MatMul", "a w", "b", name="b"),
        node("LeakyRelu", "b", "y", name="act"),
    ]
    _, found = locate(model_of(nodes, w=W), "Leaky")
    assert [item["node"] for item in found["wrong"]] == ["a", "y"]
    _, found = locate(model_of(nodes, w=W), "Right")
    assert {entry["node"] for entry in found["contributions"]} <= {"a", "b", "y"}


def test_iterations_of_a_body_contribute_as_one_node(locate):
    infos = [helper.make_tensor_value_info(name, 1, (4,)) for name in ("s", "r")]
    results = [helper.make_tensor_value_info(name, 1, (4,)) for name in ("t", "q")]
    body = [node("Sigmoid", "s", "t"), node("Add", "t r", "q")]
    graph = helper.make_graph(body, "body", infos, results)
    scan = helper.make_node(
        "Scan", ["zero", "x"], ["last", "y"], "l", body=graph, num_scan_inputs=1
    )
    _, found = locate(model_of([scan], zero=np.zeros(4, np.float32)), "Right")
    nodes = [(entry["node"], entry["operator"]) for entry in found["contributions"]]
    assert sorted(nodes) == [("the_q", "Add"), ("the_t", "Sigmoid")]


def test_nodes_that_read_sequences_and_optionals_are_judged(locate):
    nodes = nodes_of(
        "s = SplitToSequence(x, four); a = SequenceAt(s, zero); "
        "o = Optional(a); b = OptionalGetElement(o); y = LeakyRelu(b)"
    )
    model = model_of(nodes, four=np.array(4), zero=np.array(0))
    model.opset_import[0].version = 18
    _, found = locate(model, "TakesLists")
    assert [entry["node"] for entry in found["not_judged"]] == ["the_s", "the_o"]
    assert [item["node"] for item in found["wrong"]] == ["the_y"]
    assert re.search(r"at \[\d, \d\]", found["wrong"][0]["cause"])


def branch(operator, output):
    info = helper.make_tensor_value_info(output, 1, None)
    return helper.make_graph([node(operator, "x", output)], output, [], [info])


def test_branches_that_are_taken_are_searched(locate):
    choice = node(
        "If",
        "flag",
        "a",
        then_branch=branch("LeakyRelu", "t"),
        else_branch=branch("Exp", "e"),
    )
    model = model_of([choice, node("Exp", "a", "y")], flag=np.array(True))
    _, found = locate(model, "Leaky")
    assert [(item["operator"], item["node"].rpartition("/")[2]) for item in found["wrong"]] == [
        ("LeakyRelu", "the_t")
    ]


@pytest.mark.parametrize(
    ("backend", "judged", "wrong"), [("RightBranch", "2 ", []), ("WrongBranch", "2 1 ", ["If"])]
)
def test_searched_if_nodes_are_judged_only_if_the_model_is_wrong(locate, backend, judged, wrong):
    branches = {"then_branch": branch("Sqrt", "t"), "else_branch": branch("Exp", "e")}
    nodes = [node("If", "flag", "a", **branches), node("Exp", "a", "y")]
    _, found = locate(model_of(nodes, flag=np.array(True)), backend)
    assert [item["operator"] for item in found["wrong"]] == wrong
    assert found["not_judged"] == []
    assert Path("judged").read_text() == judged


def test_bodies_of_loops_are_searched(locate):
    infos = [
        helper.make_tensor_value_info(name, element, shape)
        for name, element, shape in (("i", 7, []), ("go", 9, []), ("v", 1, [4, 4]))
    ]
    out = [infos[1], helper.make_tensor_value_info("v2", 1, [4, 4])]
    body = helper.make_graph([node("LeakyRelu", "v", "v2")], "body", infos, out)
    loop = node("Loop", "count go_on x", "a", body=body)
    constants = {"count": np.array(3), "go_on": np.array(True)}
    _, found = locate(model_of([loop, node("Exp", "a", "y")], **constants), "Leaky")
    assert {item["operator"] for item in found["wrong"]} == {"LeakyRelu"}


def test_bodies_are_searched_up_to_a_number_of_nodes(locate, monkeypatch):
    monkeypatch.setattr(model_walk, "_MAX_ENTERED_RUNS", 2)
    graph, value = node("Neg", "v0", "w0"), helper.make_tensor_value_info
    for level in range(3):
        infos = [value(f"i{level}", 7, []), value(f"go{level}", 9, [])]
        state = value(f"v{level}", 1, [4, 4])
        out = [value(f"go{level}", 9, []), value(f"w{level}", 1, [4, 4])]
        body = helper.make_graph([graph], "body", [*infos, state], out)
        output = f"w{level + 1}" if level < 2 else "y"
        operand = f"v{level + 1}" if level < 2 else "x"
        graph = node("Loop", f"two yes {operand}", output, body=body)
    ran, found = locate(model_of([graph], two=np.array(2), yes=np.array(True)), "Right")
    assert (ran.code, found["not_judged"]) == (0, [])
    # Without a limit, 15 nodes would be searched.
    assert found["nodes"] < 8


DOUBLING = {
    "tensors": [
        *(helper.make_node("Concat", [a, a], [b], axis=0) for a, b in ("xa", "ab", "bc")),
        node("Exp", "c", "y"),
    ],
    "sequence": [
        helper.make_node("SequenceConstruct", ["x"] * 4, ["b"]),
        helper.make_node("ConcatFromSequence", ["b"], ["c"], axis=0),
        node("Exp", "c", "y"),
    ],
    "strings": [
        helper.make_node("Cast", ["x"], ["a"], to=onnx.TensorProto.STRING),
        helper.make_node("StringConcat", ["a", "a"], ["b"]),
        node("Cast", "b", "y", to=1),
    ],
}


@pytest.mark.parametrize("kind", DOUBLING)
def test_values_beyond_the_limit_of_memory_are_not_judged(locate, monkeypatch, kind):
    monkeypatch.setattr(locate_module, "_MEMORY_DIVISOR", (4 << 30) // 500)
    model = model_of(DOUBLING[kind])
    model.opset_import[0].version = 20
    model.graph.output[0].type.tensor_type.ClearField("shape")
    _, found = locate(model, "Right")
    reasons = [entry["reason"] for entry in found["not_judged"]]
    assert re.fullmatch(r"its values have \d+ bytes, but the limit is 500 bytes", reasons[0])
    assert set(reasons[1:]) == {model_walk.NO_OPERAND}


def test_values_of_all_nodes_together_are_limited(locate, monkeypatch):
    monkeypatch.setattr(model_walk, "_MAX_STORED_BYTES", 200)
    _, found = locate(model_of(nodes_of("a = Neg(x); b = Neg(a); c = Neg(b); y = Neg(c)")), "Right")
    reasons = [entry["reason"] for entry in found["not_judged"]]
    assert reasons == ["the values of the model have more than 200 bytes", model_walk.NO_OPERAND]


def test_nodes_beyond_the_limit_of_time_are_not_judged(locate, monkeypatch):
    monkeypatch.setattr(locate_module, "_TIMEOUTS_OF_PHASE", 0)
    ran, found = locate(model_of(nodes_of("a = Neg(x); b = Exp(a); y = Neg(b)")), "Right")
    assert [entry["node"] for entry in found["not_judged"]] == ["the_b", "the_y"]
    assert {entry["reason"].partition(":")[0] for entry in found["not_judged"]} == {"limit of time"}
    assert ran.code == 0


def test_wrong_nodes_beyond_a_number_are_named_but_not_written(locate, monkeypatch):
    monkeypatch.setattr(locate_module, "_MAX_REPRODUCTIONS", 1)
    nodes = nodes_of("a = MatMul(x, w); b = LeakyRelu(a); c = Neg(a); d = LeakyRelu(c)")
    model = model_of([*nodes, node("Add", "b d", "y")], w=W)
    ran, found = locate(model, "Leaky", "--html", "l.html")
    assert [entry["node"] for entry in found["wrong"]] == ["the_b", "the_d"]
    assert [bool(entry["case"]) for entry in found["wrong"]] == [True, False]
    assert (ran.code, ran.out.count("wrong the_"), ran.out.count("again:")) == (1, 2, 1)
    assert "2 of 5 nodes wrong" in Path("l.html").read_text(encoding="utf-8")
    assert len([*Path("located").iterdir()]) == 1


def test_search_for_a_wrong_subgraph_tries_a_limited_number_of_subgraphs(locate, monkeypatch):
    monkeypatch.setattr(locate_module, "_MAX_SUBGRAPHS", 2)
    nodes = nodes_of("a = Exp(x); b = MatMul(a, w); c = Add(b, a); d = Tanh(c); y = Mul(d, x)")
    ran, found = locate(model_of(nodes, w=W), "Fusing")
    assert ran.code == 1
    assert {"the_b", "the_c"} < {*found["subgraph"]}


def test_names_of_unknown_operators_are_shown_as_text(locate):
    domain = "vendor\x1b[31m\u202e"
    model = model_of([helper.make_node("Bad\x1b[2J", ["x"], ["y"], "::error::", domain=domain)])
    model.opset_import.append(helper.make_opsetid(domain, 1))
    ran, _ = locate(model, "Right", "--html", "l.html")
    assert not {"\x1b", "\u202e"} & {*ran.text, *Path("l.html").read_text(encoding="utf-8")}


def test_full_disk_is_named(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "missing")
    with ValueStore(0) as store, pytest.raises(UsageError, match="cannot keep the value a of 8"):
        store["a"] = np.zeros(1)


def test_functions_are_searched(locate):
    function = helper.make_function(
        "mine",
        "Twice",
        ["u"],
        ["v"],
        [node("LeakyRelu", "u", "h"), node("Add", "h h", "v")],
        [helper.make_opsetid("", 17)],
    )
    call = helper.make_node("Twice", ["x"], ["a"], domain="mine", name="call")
    model = model_of([call, node("Exp", "a", "y")], functions=[function])
    _, found = locate(model, "Leaky")
    assert [item["operator"] for item in found["wrong"]] == ["LeakyRelu"]


def test_node_that_cannot_be_judged_is_listed_and_not_counted_as_right(locate):
    nodes = [node("RandomNormalLike", "x", "a"), node("LeakyRelu", "a", "y")]
    ran, found = locate(model_of(nodes), "Right")
    assert [entry["node"] for entry in found["not_judged"]] == ["the_a"]
    assert ran.code == 2
    _, found = locate(model_of(nodes), "Leaky")
    assert [item["node"] for item in found["wrong"]] == ["the_y"]


def test_lines_are_wrapped(locate):
    nodes = [node("RandomNormalLike", "x", "a"), node("LeakyRelu", "a", "y")]
    Path("findings/" + "of-a-long-name/" * 4).mkdir(parents=True)
    folder = "findings/" + "of-a-long-name/" * 5
    ran, _ = locate(model_of(nodes), "Leaky", "-o", folder)
    lines = unbroken(ran.out).splitlines()
    (command,) = (line for line in lines if line.startswith("  again: "))
    assert command.endswith("-b python:backend.py:Leaky")
    assert max(len(line) for line in ran.out.splitlines() if folder not in line) <= 80
    assert not [line for line in ran.out.splitlines() if line.endswith(" ")]


@pytest.mark.parametrize("target", ["same", "nowhere"])
def test_link_in_place_of_a_test_directory_is_not_followed(locate, target):
    model = model_of([node("LeakyRelu", "x", "y")])
    locate(model, "Leaky", "-o", "findings")
    Path("findings/test_the_y").rename("findings/same")
    Path("findings/test_the_y").symlink_to(target)
    _, found = locate(model, "Leaky", "-o", "findings")
    assert [item["case"] for item in found["wrong"]] == ["findings/test_the_y-2"]
    assert Path("findings/test_the_y").is_symlink()


def test_node_that_returns_no_output_is_wrong_if_the_model_returns_none_either(locate):
    nodes = [node("Exp", "x", "a"), node("Sigmoid", "a", "y")]
    ran, found = locate(model_of(nodes), "Refusing")
    assert ran.code == 1
    assert [item["node"] for item in found["wrong"]] == ["the_y"]
    assert found["wrong"][0]["error_over_tolerance"] is None


def test_training_operator_in_a_model_is_judged_by_its_formula(locate):
    training = "ai.onnx.preview.training"
    attributes = {"alpha": 0.9, "beta": 0.99, "epsilon": 0.1}
    step = helper.make_node(
        "Adam", ["r", "t", "x", "g", "v", "h"], ["x2", "v2", "h2"], "step", domain=training,
        **attributes,
    )  # fmt: skip
    nodes = [node("Mul", "v v", "h"), step, node("Add", "x2 v2", "y")]
    constants = {"r": np.array(0.1, np.float32), "t": np.array(3)}
    model = model_of(nodes, inputs=("x", "g", "v"), **constants)
    model.opset_import.append(helper.make_opsetid(training, 1))
    ran, found = locate(model, "TorchAdam")
    assert ran.code == 1
    assert [item["node"] for item in found["wrong"]] == ["step"]
    assert "epsilon added after bias correction" in found["wrong"][0]["cause"]


STEP = """
onnxopt: 1
suite: mine
operator: Adam
cases:
  - name: third_step
    attributes: {alpha: 0.9, beta: 0.99, epsilon: 0.1}
    inputs: {R: 0.1, T: 3, X: [1.2, 2.8], G: [-0.94, -2.5], V: [1.7, 3.6], H: [0.1, 0.1]}
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="starts workers")
def test_command_judges_a_case_of_a_training_operator(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "backend.py").write_text(BACKEND)
    (tmp_path / "step.yaml").write_text(STEP)
    command = [sys.executable, "-m", "onnxopt_cli", "locate", "step.yaml", "-b"]
    # The command runs as a process, because its workers are forked from it.
    ran = {
        backend: subprocess.run([*command, backend], capture_output=True, text=True, check=False)
        for backend in ("numpy", "python:backend.py:TorchAdam")
    }
    right, wrong = ran.values()
    assert (right.returncode, right.stdout) == (
        0,
        "1 node: 0 wrong, 0 not judged; the whole model on numpy: pass\n",
    )
    assert wrong.returncode == 1
    assert "wrong X_new (ai.onnx.preview.training.Adam): error / tolerance" in wrong.stdout
    assert "epsilon added after bias correction" in wrong.stdout
    assert "1 node: 1 wrong, 0 not judged" in wrong.stdout


def test_reason_is_stated_if_a_wrong_model_is_not_reduced(locate):
    ran, found = locate(
        model_of([node("Abs", "x", "a"), node("Exp", "a", "y")]), "WrongInOtherGraphs"
    )
    assert (ran.code, found["wrong"], found["subgraph"]) == (1, [], [])
    assert found["error_contributions"] == []
    reason = "  no subgraph was searched: the nodes are right in a model of their own"
    assert reason in ran.out.splitlines()
    assert [*found["unreduced"].values()] == [reason.partition(": ")[2]]


def test_model_without_outputs_fails_although_its_nodes_are_right(locate):
    model = model_of([node("Abs", "x", "a"), node("Exp", "a", "y")])
    ran, found = locate(model, "OneNodeOnly", "--html", "l.html")
    assert '"verdict bad">0 of 2 nodes wrong' in Path("l.html").read_text(encoding="utf-8")
    assert (ran.code, found["wrong"], found["not_judged"]) == (1, [], [])
    assert found["whole"] == {"python:backend.py:OneNodeOnly": "error"}
    assert "RuntimeError: too many" in ran.out
    assert found["contributions"] == []


def test_model_that_a_backend_does_not_support_is_not_judged(locate):
    ran, found = locate(model_of([node("Abs", "x", "a"), node("Exp", "a", "y")]), "Unable")
    assert (ran.code, found["wrong"], len(found["not_judged"])) == (2, [], 2)
    assert found["whole"] == {"python:backend.py:Unable": "unsupported"}


def test_nodes_after_a_node_without_values_are_counted_in_one_line(locate):
    nodes = [
        helper.make_node("Triple", ["x"], ["a"], "triple", domain="vendor"),
        node("Exp", "a", "b"),
        node("Abs", "b", "y"),
    ]
    model = model_of(nodes)
    model.opset_import.append(helper.make_opsetid("vendor", 1))
    ran, found = locate(model, "Right")
    assert len(found["not_judged"]) == 3
    assert "not judged 2 nodes that read a value that is missing" in ran.out
    assert "NoReferenceError" not in ran.out


def test_error_of_an_exact_output_is_distinct_from_a_missing_output(locate):
    ran, found = locate(model_of([node("Abs", "x", "y")]), "Shifted")
    assert ran.code == 1
    assert [item["error_over_tolerance"] for item in found["wrong"]] == ["inf"]
    assert "wrong the_y (Abs): error where none is allowed" in ran.out
    ran, found = locate(model_of([node("Abs", "x", "y")]), "Flat")
    assert ran.code == 1
    assert [item["error_over_tolerance"] for item in found["wrong"]] == [None]
    assert "wrong the_y (Abs): no output of the expected type and shape" in ran.out


def test_nodes_around_an_unknown_operator_are_judged_with_values_of_the_backend(locate):
    triple = helper.make_node("Triple", ["x"], ["a"], "triple", domain="vendor")
    model = model_of([triple, node("LeakyRelu", "a", "b"), node("Exp", "b", "y")])
    model.opset_import.append(helper.make_opsetid("vendor", 1))
    ran, found = locate(model, "Vendor")
    assert ran.code == 1
    (entry,) = found["not_judged"]
    assert entry["node"] == "triple"
    assert entry["reason"].startswith("onnx's reference does not implement ")
    assert [item["node"] for item in found["wrong"]] == ["the_b"]


def test_rounding_magnified_by_a_subtraction_contributes_most_to_the_tolerance(locate):
    nodes = nodes_of("a = Exp(x); b = Add(a, big); c = Sub(b, big); y = Tanh(c)")
    ran, found = locate(model_of(nodes, big=np.array(1e4, np.float32)), "Right")
    assert ran.code == 0
    first = found["contributions"][0]
    assert (first["output"], first["node"]) == ("y", "the_b")
    assert first["share"] > 0.9


def test_contributions_show_why_a_model_is_inconclusive(locate):
    nodes = nodes_of("a = Exp(x); b = Add(a, big); y = Sub(b, big)")
    ran, found = locate(model_of(nodes, big=np.array(1e9, np.float32)), "Right")
    assert (ran.code, found["wrong"], found["not_judged"]) == (0, [], [])
    assert found["whole"] == {"python:backend.py:Right": "skip"}
    assert "skip the whole model on python:backend.py:Right: inconclusive" in ran.out
    assert found["contributions"][0]["node"] == "the_b"


def test_case_of_a_wrong_node_is_not_written_twice(locate, tmp_path):
    model = model_of([*CHAIN[:2], node("Exp", "b", "y")], w=W)
    cases = [locate(model, "Leaky")[1]["wrong"][0]["case"] for _ in range(2)]
    assert cases[0] == cases[1]
    (tmp_path / cases[0] / "test_data_set_0" / "input_0.pb").write_bytes(b"changed")
    assert locate(model, "Leaky")[1]["wrong"][0]["case"] != cases[0]


def test_huge_error_is_stated_in_words(locate):
    ran, found = locate(model_of([node("Exp", "x", "y")]), "Overflowing")
    assert "wrong the_y (Exp): the error is over 10 million times the tolerance" in ran.out
    assert found["wrong"][0]["error_over_tolerance"] > 1e30


def test_shares_of_a_tolerance_add_up_to_at_most_1(locate):
    nodes = [
        node("HardSigmoid", "x", "a"),
        node("Add", "a x", "b"),
        node("Softmax", "b", "c"),
        node("Softmax", "c", "y"),
    ]
    _, found = locate(model_of(nodes), "Right")
    shares = [entry["share"] for entry in found["contributions"]]
    assert len(shares) > 1
    assert sum(shares) <= 1 + 1e-9


def test_node_with_the_largest_error_contributes_most_to_the_error_of_the_model(locate):
    nodes = [node("Exp", "x", "a"), node("Sigmoid", "a", "b"), node("Tanh", "b", "y")]
    ran, found = locate(model_of(nodes), "InexactSigmoid")
    assert ran.code == 0
    first = found["error_contributions"][0]
    assert (first["output"], first["node"], first["operator"]) == ("y", "the_b", "Sigmoid")
    assert first["backend"] == "python:backend.py:InexactSigmoid"
    assert first["share"] > 0.9
    assert "of the error of y on" in ran.out
    assert found["contributions"][0]["node"] != "the_b"


def test_backends_that_differ_within_the_tolerance_are_shown(locate):
    backends = ("-b", "python:backend.py:NearlyRight")
    ran, found = locate(model_of([node("Exp", "x", "y")]), "Right", *backends)
    assert ran.code == 0
    assert [entry["node"] for entry in found["disagreements"]] == ["the_y"]


def test_nodes_have_the_same_values_together_and_alone():
    branch = helper.make_graph(
        nodes_of("i = Exp(f); j = Tanh(i); k = Add(j, w)"),
        "branch",
        [],
        [helper.make_tensor_value_info("k", 1, None)],
    )
    nodes = [
        helper.make_node("Constant", [], ["c"], value_float=0.3),
        *nodes_of("a = MatMul(x, w); b = Mul(a, c); d = Softplus(b)"),
        helper.make_node("Triple", ["d"], ["e"], domain="vendor"),
        *nodes_of("f = Div(d, b); g = Greater(f, c)"),
        helper.make_node("SequenceConstruct", ["f", "f"], ["s"]),
        helper.make_node("ConcatFromSequence", ["s"], ["h"], axis=0),
        helper.make_node("ReduceMax", ["g"], ["m"], keepdims=0),
        helper.make_node("Cast", ["d"], ["u"], to=onnx.TensorProto.FLOAT16),
        helper.make_node("ReduceMin", ["u"], ["v"], keepdims=0),
        helper.make_node("Greater", ["v", "v"], ["n"]),
        helper.make_node("If", ["n"], ["y"], then_branch=branch, else_branch=branch),
        *nodes_of("z = Sqrt(y); q = Add(z, e)"),
    ]
    model = model_of(nodes, w=W)
    model.opset_import.append(helper.make_opsetid("vendor", 1))
    inputs = {"x": W - np.float32(0.1)}
    together: list[int] = []

    def counted(*request):
        values = values_of_nodes(*request)
        together.append(sum(value is not None for value in values))
        return values

    def alone(model, inputs):
        try:
            return reference_values(model, inputs)
        except NoReferenceError as error:
            return str(error)

    walks = []
    with ValueStore(1 << 20) as first, ValueStore(1 << 20) as second:
        for store, of_nodes in ((first, counted), (second, lambda *_: "one by one")):
            walk = ModelWalk(model, store, alone, of_nodes, lambda *_: "no backend", {})
            walks.append([(run.name, run.missing) for run in walk.walk(inputs)])
        assert walks[0] == walks[1]
        assert first.keys() == second.keys()
        for key in first:
            values = [store[key] for store in (first, second)]
            assert type(values[0]) is type(values[1])
            arrays = [np.asarray(value) for value in values]
            assert arrays[0].dtype == arrays[1].dtype
            assert arrays[0].tobytes() == arrays[1].tobytes()
    assert max(together) > 3


def test_values_beyond_the_limit_are_spilled():
    arrays = {name: np.arange(100.0) + number for number, name in enumerate("abc")}
    arrays["e"] = np.zeros((3, 0), np.float32)
    with ValueStore(1000) as store:
        store.update(arrays)
        for name, array in arrays.items():
            assert np.array_equal(store[name], array)
            assert store.bytes_of(name) == array.nbytes
        assert sorted(store) == sorted(arrays)
