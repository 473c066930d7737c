"""The suite ``gradient``: the backend numpy passes it, and wrong derivatives fail it."""

from __future__ import annotations

from functools import cache
from hashlib import blake2b

import numpy as np
import pytest

from onnxopt_cli.backends.reference import NumpyBackend
from onnxopt_cli.cases.onnx.model_check import model_fault
from onnxopt_cli.core.compare import largest_share
from onnxopt_cli.interpret.gradient import backward_rules, reverse_mode
from onnxopt_cli.interpret.gradient.backward_pass import BackwardPass, DifferentiatedNode
from onnxopt_cli.oracle.reference_oracle import estimated_here
from onnxopt_cli.suites.gradients import VERSION, gradient_cases, gradient_templates

CASES = {case.id.partition("/")[2]: case for case in gradient_cases()}
RULES = backward_rules.RULES


@cache
def loaded(name):
    problem = CASES[name].load()
    return problem, estimated_here(problem)


def fails(name):
    """Return whether the backend numpy fails the case ``name``."""
    problem, expected = loaded(name)
    outputs = NumpyBackend().prepare(problem.model).run(problem.inputs)
    return largest_share(expected.outputs, outputs, expected.tolerances.__getitem__) > 1


def test_numpy_passes_the_published_cases(onnxopt):
    answer = onnxopt("run", "onnx-simple", "-k", "gradient", "-b", "numpy")
    assert answer.code == 0
    assert "2 pass" in answer.out
    assert "ONNX's tolerance" not in answer.out


@pytest.mark.parametrize("name", CASES)
def test_numpy_passes(name):
    problem, expected = loaded(name)
    assert model_fault(problem.model) == ""
    assert not expected.invalid
    assert not fails(name)
    for output, value in expected.outputs.items():
        limits = expected.tolerances[output].at(np.arange(value.size)).limit
        assert np.isfinite(limits).all(), output


def scaled(factor):
    """Return a function that changes a rule; it multiplies the gradients by ``factor``."""

    def change(rule):
        def wrong(node):
            return [
                name and node.times(name, node.like(factor, node.inputs[0])) for name in rule(node)
            ]

        return wrong

    return change


def exchanged(rule):
    return lambda node: list(rule(node))[::-1]


def last_is_first(rule):
    def wrong(node):
        gradients = [*rule(node)]
        return [*gradients[:-1], gradients[0]]

    return wrong


def negative_second(rule):
    def wrong(node):
        first, second = rule(node)
        return [first, node.call("Neg", second)]

    return wrong


def of_elementwise(derivative):
    """Return a function that turns every rule into ``derivative(node, gradient, x, y)``."""

    def change(_rule):
        return lambda node: [derivative(node, node.gradient, node.inputs[0], node.outputs[0])]

    return change


def with_attributes(**attributes):
    """Return a function that changes a rule; the changed rule uses the given attributes."""

    def change(rule):
        def wrong(node):
            node.attributes = node.attributes | attributes
            return rule(node)

        return wrong

    return change


#: For each mistake: the operator, the change of its rule, and a case that rejects the change.
WRONG_RULES = {
    "Sub adds": ("Sub", negative_second, "sub"),
    "Mul by its own operand": ("Mul", exchanged, "mul"),
    "Div has a positive second gradient": ("Div", negative_second, "div"),
    "Pow exchanges operands": ("Pow", exchanged, "pow"),
    "Max to both": ("Max", lambda _: RULES["Add"], "max"),
    "Min to both": ("Min", lambda _: RULES["Add"], "min"),
    "Where to both": ("Where", lambda _: lambda n: [None, *RULES["Add"](n)[1:]], "where"),
    "Relu passes all": ("Relu", lambda _: RULES["Identity"], "relu"),
    "LeakyRelu has the default alpha": (
        "LeakyRelu",
        with_attributes(alpha=0.01),
        "leakyrelu_alpha",
    ),
    "Elu has the default alpha": ("Elu", with_attributes(alpha=1.0), "elu_alpha"),
    "Sigmoid without 1 - y": (
        "Sigmoid",
        of_elementwise(lambda n, g, _x, y: n.times(g, y)),
        "sigmoid",
    ),
    "Tanh with 1 - y": (
        "Tanh",
        of_elementwise(lambda n, g, x, y: n.times(g, n.call("Sub", n.like(1, x), y))),
        "tanh",
    ),
    "Sqrt without 1/2": ("Sqrt", scaled(2.0), "sqrt"),
    "Erf without 2/sqrt(pi)": ("Erf", scaled(0.886227), "erf"),
    "Softmax without coupling": (
        "Softmax",
        of_elementwise(lambda n, g, x, y: n.times(g, n.times(y, n.call("Sub", n.like(1, x), y)))),
        "softmax",
    ),
    "Softmax over the last axis": ("Softmax", with_attributes(axis=-1), "softmax"),
    "LogSoftmax as Softmax": ("LogSoftmax", lambda _: RULES["Softmax"], "logsoftmax"),
    "MatMul exchanges operands": ("MatMul", exchanged, "matmul_square"),
    "Gemm ignores transA": ("Gemm", with_attributes(transA=0), "gemm_10"),
    "Gemm ignores transB": ("Gemm", with_attributes(transB=0), "gemm_01"),
    "Gemm ignores alpha": ("Gemm", with_attributes(alpha=1.0), "gemm_00"),
    "Gemm ignores beta": ("Gemm", with_attributes(beta=1.0), "gemm_00"),
    "Conv ignores dilations": ("Conv", with_attributes(dilations=[1, 1]), "conv"),
    "Conv ignores pads": ("Conv", with_attributes(pads=[0, 0, 0, 0]), "conv"),
    "AveragePool counts the padding": (
        "AveragePool",
        with_attributes(count_include_pad=1),
        "averagepool",
    ),
    "ReduceMean does not divide": ("ReduceMean", lambda _: RULES["ReduceSum"], "reducemean"),
    "ReduceMax to all": ("ReduceMax", lambda _: RULES["ReduceSum"], "reducemax"),
    "Concat gives the first part to both": ("Concat", last_is_first, "concat"),
    "Clip passes all": ("Clip", lambda _: RULES["Identity"], "clip"),
}


@pytest.mark.parametrize("mistake", WRONG_RULES)
def test_wrong_rule_fails(monkeypatch, mistake):
    operator, change, name = WRONG_RULES[mistake]
    assert not fails(name)
    monkeypatch.setitem(RULES, operator, change(RULES[operator]))
    assert fails(name)


def first_of_the_axis(self, gradient, shape, name):
    """Along broadcast axes, use the first element instead of the sum."""
    own_shape = self.shape(name)
    lead = len(shape) - len(own_shape)
    for axis in range(len(shape)):
        if axis < lead or own_shape[axis - lead] != shape[axis]:
            gradient = self.call("Gather", gradient, self.backward.integers([0]), axis=axis)
    return self.backward.reshaped(gradient, own_shape)


def only_the_last_use(self, op_type, *inputs, **attributes):
    """Where two gradients are added, use only the second one."""
    if op_type == "Add" and len(inputs) == 2 and inputs[0].startswith("gradient_"):
        return inputs[1]
    return WRITE_NODE(self, op_type, *inputs, **attributes)


def in_float16(self, name, axes, *, keepdims):
    """Add the terms of a sum sequentially in float16."""
    if not axes:
        return name
    return WRITE_NODE(self, "Squeeze", running_sum(self, name, axes), self.integers(axes))


def running_sum(self, name, axes):
    (axis,) = axes
    total = WRITE_NODE(self, "CumSum", name, self.constant(axis, np.dtype(np.int64)))
    return WRITE_NODE(self, "Gather", total, self.integers([-1]), axis=axis)


WRITE_NODE = BackwardPass.node
WRITE_BACKWARD_PASS = reverse_mode._Expansion._backward


def exchanged_xs(self, backward, nodes, y, variables, values):
    gradients = WRITE_BACKWARD_PASS(self, backward, nodes, y, variables, values)
    turned = dict(zip(variables, [*variables[1:], variables[0]], strict=True))
    return {name: gradients.get(turned.get(name, name)) for name in gradients | turned}


def mean_of_y(self, backward, nodes, y, variables, values):
    """Differentiate the mean of y instead of its sum."""
    gradients = WRITE_BACKWARD_PASS(self, backward, nodes, y, variables, values)
    share = backward.constant(1 / values[y].size, values[y].dtype)
    return {name: backward.node("Mul", gradient, share) for name, gradient in gradients.items()}


def test_substituted_values_are_used(monkeypatch):
    """Derivatives at the values of the graph are wrong if the Gradient node has other inputs."""

    def at_the_values_of_the_graph(_self, function):
        return function.nodes, function.y, {name: name for name in function.xs}

    for name in ("other_values", "exchanged_values"):
        assert not fails(name)
    monkeypatch.setattr(reverse_mode._Expansion, "_substituted", at_the_values_of_the_graph)
    for name in ("other_values", "exchanged_values"):
        assert fails(name)


#: For each mistake in a backward pass: the class, the method, its replacement, and cases that
#: reject the replacement.
WRONG_PASSES = {
    "broadcast axes are not summed": (
        DifferentiatedNode,
        "reduced",
        first_of_the_axis,
        ("add_broadcast", "mul_scalar", "prelu", "gemm_00"),
    ),
    "only the last use counts": (
        BackwardPass,
        "node",
        only_the_last_use,
        ("used_thrice", "two_paths"),
    ),
    "xs are exchanged": (
        reverse_mode._Expansion,
        "_backward",
        exchanged_xs,
        ("order_of_xs", "div", "two_layers", "no_influence"),
    ),
    "the mean of y": (reverse_mode._Expansion, "_backward", mean_of_y, ("exp", "two_paths")),
    "sums in float16": (BackwardPass, "summed", in_float16, ("long_sum_float16",)),
}


@pytest.mark.parametrize("mistake", WRONG_PASSES)
def test_wrong_backward_pass_fails(monkeypatch, mistake):
    owner, method, replacement, names = WRONG_PASSES[mistake]
    for name in names:
        assert not fails(name)
    monkeypatch.setattr(owner, method, replacement)
    for name in names:
        assert fails(name), name


def test_cases_change_only_with_the_version_of_the_suite():
    digest = blake2b(digest_size=8)
    for case in gradient_templates():
        inputs = case.problem().inputs
        texts = [case.name, case.xs, case.zs, case.feeds, case.omitted, case.opset, *case.steps]
        digest.update(repr(texts).encode())
        for value in inputs.values():
            digest.update(value.tobytes())
    assert (VERSION, digest.hexdigest()) == ("1", "1a7cdbfd13a08f6f")


def test_directories_hold_the_cases_of_the_suite(onnxopt, workplace):
    answer = onnxopt("generate", "gradient", "-o", "cases")
    assert answer.code == 0
    answer = onnxopt("run", "cases/gradient/test_two_paths", "cases/gradient/test_gemm_10")
    assert answer.code == 0
    answer = onnxopt("generate", "gradient", "--format", "yaml")
    assert answer.code == 2
    assert "gradient can only be written as ONNX test directories" in answer.err
