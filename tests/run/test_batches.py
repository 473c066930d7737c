"""The option ``batch=N`` runs several small cases as one model; outcomes stay the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from onnxopt_cli._api import load_cases
from onnxopt_cli.backends.host import Request, Response, same_bits
from onnxopt_cli.backends.joined_models import join_models, joined_name, joining_key
from onnxopt_cli.backends.specification import parse_specification
from onnxopt_cli.core.result import Outcome
from onnxopt_cli.run.batches import BatchExecutor

# Operators whose cases include subgraphs, sequences, optionals, strings and functions.
OPERATORS = ("Acos", "Asinh", "Tan", "Cosh", "Celu", "Det", "If", "StringConcat")
# Plugins: ``right`` is correct, ``faulty`` and ``wrong`` fail for some operators, and ``misjoins``
# fails for models that contain several cases.
PLUGINS = """\
import os
import onnx
from onnx.reference import ReferenceEvaluator

def run(model, inputs):
    return ReferenceEvaluator(model).run(None, inputs)

def operators(model):
    return {node.op_type for node in model.graph.node}

def right(model, inputs):
    with open("submitted", "a") as file:
        print(len(model.graph.output), file=file)
    return run(model, inputs)

def faulty(model, inputs):
    if "Tan" in operators(model):
        os._exit(3)
    if "Acos" in operators(model):
        raise NotImplementedError("no Acos here")
    if "Asinh" in operators(model):
        raise ValueError("bad Asinh")
    return run(model, inputs)

def wrong(model, inputs):
    outputs = run(model, inputs)
    return [output + 1 for output in outputs] if "Cosh" in operators(model) else outputs

def misjoins(model, inputs):
    return run(model, inputs)[::-1]
"""


def outcomes(log, backend):
    """Return (outcome, message, batch size) by case for a backend, from a log."""
    records = map(json.loads, Path(log).read_text().splitlines())
    results = [record["result"] for record in records if record["record"] == "end"]
    return {
        result["case"]: (result["outcome"], result["message"], result.get("batch", 0))
        for result in results
        if result["backend"] == backend
    }


@pytest.mark.isolated
@pytest.mark.slow
def test_outcomes_do_not_depend_on_batches(onnxopt, workplace):
    (workplace / "plugins.py").write_text(PLUGINS)
    backends = {"ort": "onnxruntime"}
    operators = [word for operator in OPERATORS for word in ("--operator", operator)]
    for plugin in ("right", "faulty", "wrong", "misjoins"):
        backends[plugin] = f"python:plugins.py:{plugin}"
    submitted_counts = []
    for batch in ("", ",batch=8"):
        words = [
            word for name, text in backends.items() for word in ("-b", f"{name}={text}{batch}")
        ]
        onnxopt("run", "onnx-node", *operators, *words, "--no-explain", "--log", f"log{batch}")
        submitted_counts.append(len(Path("submitted").read_text().split()) - sum(submitted_counts))
    # With batches, fewer than half as many models run, although the opsets of the cases differ.
    assert submitted_counts[1] < 0.5 * submitted_counts[0]
    for backend in backends:
        alone, in_batches = outcomes("log", backend), outcomes("log,batch=8", backend)
        assert len(alone) > 20
        assert all(row == (*alone[case][:2], row[2]) for case, row in in_batches.items()), backend
        assert not any(batch for *_, batch in alone.values())
        batched = [outcome for outcome, _, batch in in_batches.values() if batch]
        # A case that does not pass in a batch runs again as a model of its own.
        assert {*batched} <= {"pass", "vacuous"}
        if backend in {"ort", "right"}:
            assert len(batched) > len(alone) // 2


@pytest.mark.slow
def test_joined_models_compute_the_outputs_of_each_model():
    by_key = {}
    cases = [case for case in load_cases("onnx-node") if {*case.operators} & {*OPERATORS}]
    for case in cases:
        problem = case.load()
        if (key := joining_key(problem.model)) is not None:
            by_key.setdefault(key, []).append(problem)
    for problems in by_key.values():
        joined = join_models([problem.model for problem in problems])
        onnx.checker.check_model(joined)
        inputs = {
            joined_name(index, name): value
            for index, problem in enumerate(problems)
            for name, value in problem.inputs.items()
        }
        outputs = iter(ReferenceEvaluator(joined).run(None, inputs))
        for problem in problems:
            evaluator = ReferenceEvaluator(problem.model)
            for expected in evaluator.run(None, dict(problem.inputs)):
                assert same_bits(_plain(expected), _plain(next(outputs))), problem.model
        assert next(outputs, None) is None
    assert sum(map(len, by_key.values())) > len(cases) // 2


def _plain(value):
    if value is None or isinstance(value, list):
        return value and [*map(_plain, value)]
    return np.asarray(value)


@pytest.mark.parametrize("value", ["0", "x", "1000", "-2", "2.5", ""])
def test_wrong_size_of_batches_is_an_error(value, onnxopt):
    answer = onnxopt("run", "spec", "-b", f"onnxruntime,batch={value}")
    assert answer.code == 2
    assert "a number of cases from 1 to 999" in " ".join(answer.err.split())


class Backend:
    """A backend that returns its inputs, unless ``fault`` returns another response."""

    specification, name, version = parse_specification("fake"), "fake", ""
    ahead = 1

    def __init__(self, fault=lambda _operators: None):
        self.fault = fault
        self.sizes = []

    def submit(self, request):
        operators = [node.op_type for node in request.model.graph.node]
        self.sizes.append(len(operators))
        response = self.fault(operators) or Response([*request.inputs.values()])
        return lambda: response


def responses(executor, operators):
    """Submit a case of each operator, and return the responses.

    A name with the prefix ``Reject`` stands for a case that cannot be joined with others.
    """
    waiting = []
    for operator in operators:
        value = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
        node = helper.make_node(operator.removeprefix("Reject"), ["x"], ["y"])
        graph = helper.make_graph(
            [node], "graph", [value], [helper.make_tensor_value_info("y", 1, [1])]
        )
        inputs = {"x": np.float32([len(waiting)])}
        joinable = not operator.startswith("Reject")
        waiting.append(
            executor.submit(Request(helper.make_model(graph), inputs, joinable=joinable))
        )
    return [wait() for wait in waiting]


def hangs(operators):
    return Response(failure=Outcome.TIMEOUT) if "Hang" in operators else None


def test_case_that_hangs_does_not_make_later_batches_smaller():
    backend = Backend(hangs)
    executor = BatchExecutor(backend, 8)
    received = responses(executor, ["Abs"] * 5 + ["Hang"] + ["Abs"] * 2)
    assert [response.failure for response in received].count(Outcome.TIMEOUT) == 1
    backend.sizes.clear()
    responses(executor, ["Abs"] * 16)
    assert backend.sizes == [8, 8]


def test_batches_that_exceed_a_limit_become_smaller():
    limited = Backend(lambda names: Response(failure=Outcome.TIMEOUT) if len(names) > 2 else None)
    executor = BatchExecutor(limited, 8)
    received = responses(executor, ["Abs"] * 8)
    assert [float(response.outputs[0][0]) for response in received] == [*range(8)]
    limited.sizes.clear()
    responses(executor, ["Abs"] * 8)
    assert limited.sizes == [2, 2, 2, 2]


def test_rejected_case_does_not_exclude_its_operator_from_batches():
    backend = Backend(lambda names: Response(failure=Outcome.ERROR) if names == ["Abs"] else None)
    executor = BatchExecutor(backend, 4)
    assert responses(executor, ["RejectAbs"])[0].failure is Outcome.ERROR
    responses(executor, ["Abs"] * 4)
    assert backend.sizes == [1, 4]


def test_interrupted_batch_does_not_run_again():
    backend = Backend(lambda _: "interrupted")
    assert responses(BatchExecutor(backend, 4), ["Abs"] * 4) == ["interrupted"] * 4
    assert backend.sizes == [4]
