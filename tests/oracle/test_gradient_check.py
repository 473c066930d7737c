"""Difference quotients confirm derivatives in reverse mode. Kinks are inconclusive."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from onnxopt_cli.backends.reference import NumpyBackend
from onnxopt_cli.cases.onnx.model_check import model_fault
from onnxopt_cli.errors import NodeError
from onnxopt_cli.interpret.gradient.backward_rules import RULES
from onnxopt_cli.interpret.gradient.reverse_mode import expand_gradients
from onnxopt_cli.oracle.estimate.condition_estimate import all_readings
from onnxopt_cli.oracle.estimate.gradient_check import unconfirmed_elements
from onnxopt_cli.oracle.evaluator import native_outputs
from onnxopt_cli.suites.gradients import GradientCase, any_of, positive

TENSOR = {"X": any_of(2, 3)}
OPERANDS = {"X": any_of(2, 3), "W": any_of(3)}
# Nodes of operators that the suite does not test: operator, inputs, attributes, operands, opset.
OTHER_OPERATORS = [
    *[(name, TENSOR) for name in ("Asinh", "Atan", "Celu", "Ceil", "Cosh", "Floor", "HardSigmoid")],
    *[(name, TENSOR) for name in ("HardSwish", "Identity", "Round", "Selu", "Sign")],
    *[(name, TENSOR) for name in ("Sinh", "Tan", "ThresholdedRelu", "Dropout", "ReduceLogSumExp")],
    *[(name, {"X": positive(2, 3)}) for name in ("ReduceL1", "ReduceLogSum", "ReduceProd")],
    *[(name, TENSOR) for name in ("ReduceMin", "ReduceSumSquare", "Flatten", "Trilu")],
    *[(name, OPERANDS) for name in ("Mean", "Sum")],
    ("Acosh", {"X": np.array([1.5, 3.0])}),
    ("Asin", {"X": np.array([0.5, -0.25])}),
    ("Acos", {"X": np.array([0.5, -0.25])}),
    ("Atanh", {"X": np.array([0.5, -0.25])}),
    ("Mish", TENSOR, {}, "", 21),
    ("Gelu", TENSOR, {}, "", 21),
    ("Gelu", TENSOR, {"approximate": "tanh"}, "", 21),
    ("CumSum", TENSOR, {"exclusive": 1, "reverse": 1}, "X =1!"),
    ("DepthToSpace", {"X": any_of(1, 4, 1, 2)}, {"blocksize": 2}),
    ("ScatterElements", {"X": any_of(4), "V": any_of(2)}, {}, "X =3,1 V"),
    ("Pad", {"X": any_of(2, 3), "C": any_of()}, {}, "X =0,1,1,0 C"),
    ("Einsum", {"X": any_of(2, 3), "W": any_of(4, 3)}, {"equation": "ij,kj->ki"}),
    ("Einsum", {"X": any_of(2, 3), "W": any_of(4, 2)}, {"equation": "ij,kl->il"}),
    ("GlobalAveragePool", {"X": any_of(1, 2, 3)}),
    ("GlobalMaxPool", {"X": any_of(1, 2, 3)}),
    ("AveragePool", {"X": any_of(1, 1, 5)}, {"kernel_shape": [2], "strides": [2], "ceil_mode": 1}),
    ("Conv", {"X": any_of(1, 2, 5), "W": any_of(3, 2, 2)}, {"auto_pad": "SAME_LOWER"}),
    (
        "BatchNormalization",
        {"X": any_of(2, 3), "W": any_of(3), "B": any_of(3), "M": any_of(3), "V": positive(3)},
    ),
    ("InstanceNormalization", {"X": any_of(2, 2, 3), "W": any_of(2), "B": any_of(2)}),
    ("MeanVarianceNormalization", {"X": any_of(2, 2, 2, 1)}),
]


def check(operator, inputs, attributes=None, sources="", opset=17):
    """Differentiate h * h + h, where h is the output of an operator.

    Return, by output, masks of the elements that difference quotients do not confirm.
    """
    sources = sources or " ".join(inputs)
    steps = [(operator, sources, "h", attributes or {}), ("Mul", "h h", "p"), ("Add", "p h", "y")]
    case = GradientCase("case", "", inputs, steps, tuple(inputs), opset=opset)
    return unconfirmed(case)


def unconfirmed(case):
    problem = case.problem()
    return unconfirmed_elements(problem.model, problem.inputs)


@pytest.mark.parametrize("row", OTHER_OPERATORS, ids=str)
def test_differences_confirm_the_rule(row):
    masks = check(*row)
    assert masks
    assert not any(mask.any() for mask in masks.values())


@pytest.mark.parametrize("operator", ["Tanh", "Mul", "MatMul"])
def test_differences_do_not_confirm_a_wrong_rule(monkeypatch, operator):
    rule = RULES[operator]

    def slightly_wrong(node):
        return [node.times(name, node.like(1.0001, node.inputs[0])) for name in rule(node)]

    inputs = {"X": any_of(2, 2)} if operator == "Tanh" else {"X": any_of(2, 2), "W": any_of(2, 2)}
    assert not any(mask.any() for mask in check(operator, inputs).values())
    monkeypatch.setitem(RULES, operator, slightly_wrong)
    assert all(mask.all() for mask in check(operator, inputs).values())


KINKS = {
    "Relu": ({"X": [0.0, 1.0, -1.0, 1e-6]}, [1, 0, 0, 0]),
    "Abs": ({"X": [0.0, 1e-6, -2.0]}, [1, 0, 0]),
    "Max": ({"X": [0.0, 1.0, 2.0], "W": [0.0, 3.0, 2.0]}, [1, 0, 1]),
    "Floor": ({"X": [1.0, 1.5, -2.0]}, [1, 0, 1]),
    "Sqrt": ({"X": [0.0, 4.0, -1.0]}, [1, 0, 1]),
    "Exp": ({"X": [np.nan, 0.0, np.inf]}, [1, 0, 1]),
}


@pytest.mark.parametrize("operator", KINKS)
def test_only_points_without_a_derivative_are_inconclusive(operator):
    values, expected = KINKS[operator]
    inputs = {name: np.array(numbers) for name, numbers in values.items()}
    case = GradientCase(
        "case", "", inputs, [(operator, " ".join(inputs), "h"), ("Neg", "h", "y")], tuple(inputs)
    )
    problem = case.problem()
    (reading,) = all_readings(problem.model, problem.inputs)
    for output in reading.conditioned_outputs:
        ((_, limit), *_) = output.right
        assert np.isinf(limit).tolist() == [bool(mark) for mark in expected]


def test_derivative_at_a_kink_is_inconclusive_even_if_another_node_follows():
    inputs = {"X": np.array([0.0, 1.0])}
    case = GradientCase("case", "", inputs, [("Relu", "X", "y")])
    problem = case.problem()
    graph = problem.model.graph
    graph.output[0].name = "scaled"
    graph.node.add(op_type="Neg", input=["d_X"], output=["scaled"])
    masks = unconfirmed_elements(problem.model, problem.inputs)
    assert {name: mask.tolist() for name, mask in masks.items()} == {"scaled": True}


def test_large_tensors_are_checked_in_random_directions(monkeypatch):
    inputs = {"X": any_of(50, 50), "W": any_of(50, 50)}
    case = GradientCase("case", "", inputs, [("MatMul", "X W", "y")], ("X", "W"))
    assert not any(mask.any() for mask in unconfirmed(case).values())
    rule = RULES["MatMul"]

    def one_element_wrong(node):
        by_x, by_w = rule(node)
        change = np.zeros((50, 50))
        change[7, 5] = 1.0
        return [node.call("Add", by_x, node.like(change, node.inputs[0])), by_w]

    problem = case.problem()
    monkeypatch.setitem(RULES, "MatMul", one_element_wrong)
    masks = unconfirmed_elements(problem.model, problem.inputs)
    assert masks["d_X"].all()
    assert not masks["d_W"].any()


INVALID = {
    "unknown tensor": ({"xs": ["V"], "y": "y"}, ["X"], "unknown tensor, 'V'"),
    "inputs": ({"xs": ["X"], "y": "y"}, ["X", "X"], "2 inputs for 1 names"),
    "twice": ({"xs": ["X"], "zs": ["X"], "y": "y"}, ["X", "X"], "names a tensor twice"),
    "no y": ({"xs": ["X"]}, ["X"], "lacks the attribute"),
}


@pytest.mark.parametrize("fault", INVALID)
def test_node_that_breaks_the_specification_is_refused(fault):
    attributes, feeds, message = INVALID[fault]
    case = GradientCase("case", "", {"X": any_of(2)}, [("Mul", "X X", "y")])
    problem = case.problem()
    node = problem.model.graph.node[-1]
    del node.attribute[:], node.input[:]
    node.input.extend(feeds)
    for name, value in attributes.items():
        kind = {"s": value.encode()} if isinstance(value, str) else {}
        attribute = node.attribute.add(name=name, type=8 if not kind else 3, **kind)
        if not kind:
            attribute.strings.extend(text.encode() for text in value)
    with pytest.raises(NodeError, match=message):
        expand_gradients(problem.model, problem.inputs, native_outputs)


@pytest.mark.parametrize("attribute", ["xs", "zs", "y"])
def test_name_that_is_not_utf_8_is_an_unknown_tensor(attribute):
    steps = [("Mul", "X W", "y")]
    problem = GradientCase("case", "", OPERANDS, steps, ("X",), ("W",)).problem()
    named = next(a for a in problem.model.graph.node[-1].attribute if a.name == attribute)
    if named.strings:
        named.strings[0] = b"\xff"
    else:
        named.s = b"\xff"
    with pytest.raises(NodeError, match="names an unknown tensor"):
        expand_gradients(problem.model, problem.inputs, native_outputs)


def test_operator_without_a_rule_is_unsupported():
    steps = [("Det", "X", "y")]
    case = GradientCase("case", "", {"X": any_of(2, 2)}, steps)
    inputs = {"X": np.eye(2, dtype=np.float32)}
    model = case._model(inputs)
    with pytest.raises(Exception, match="Det has no rule of differentiation"):
        NumpyBackend().prepare(model).run(inputs)


@pytest.mark.parametrize(("order", "fault"), [(2, ""), (30, "derivative of an order beyond 20")])
def test_order_of_a_derivative_is_limited(order, fault):
    domain, nodes = "ai.onnx.preview.training", []
    for at in range(order):
        square = helper.make_node("Mul", [f"d{at}", f"d{at}"], [f"y{at}"])
        total = helper.make_node("ReduceSum", [f"y{at}"], [f"s{at}"], keepdims=0)
        outputs = {"xs": [f"d{at}"], "y": f"s{at}"}
        gradient = helper.make_node(
            "Gradient", [f"d{at}"], [f"d{at + 1}"], domain=domain, **outputs
        )
        nodes += [square, total, gradient]
    nodes.append(helper.make_node("Neg", [f"d{order}"], ["y"]))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("d0", "y"))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    graph = helper.make_graph(nodes, "graph", [x], [y])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    assert fault in model_fault(model)
    assert bool(fault) == bool(model_fault(model))
