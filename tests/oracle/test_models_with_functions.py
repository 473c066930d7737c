"""Condition estimates of a model with functions equal those of the model with inlined nodes."""

import numpy as np
import onnx
import pytest
from onnx import AttributeProto

from onnxopt_cli.cases.onnx.model_check import model_fault
from onnxopt_cli.errors import NodeError
from onnxopt_cli.operators import nodes
from onnxopt_cli.operators.nodes import with_bound_functions
from onnxopt_cli.oracle.distributions import drawn
from onnxopt_cli.oracle.estimate.condition_estimate import condition
from onnxopt_cli.oracle.estimate.reference_values import NoReferenceError

X = np.array([0.5, 1.25, -3, 100], np.float32)
HEAD = '<ir_version: 10, opset_import: ["" : 21, "my" : 1]>\n'
IMPORTS = '<domain: "my", opset_import: ["" : 21, "my" : 1]>\n'
GRAPH = HEAD + "g (float[4] x) => (float[4] y) { %s }\n"


def model(*functions: str, call: str = "y = my.F <k = 0.3> (x)") -> onnx.ModelProto:
    return onnx.parser.parse_model(
        GRAPH % call + "".join(IMPORTS + text + "\n" for text in functions)
    )


LEAKY = "F <k>(x) => (y) { y = LeakyRelu <alpha: float = @k> (x) }"
INNER = "G <slope>(x) => (y) { y = LeakyRelu <alpha: float = @slope> (x) }"
PLAIN_NODE = "y = LeakyRelu <alpha = 0.3> (x)"
EQUIVALENT = {
    "an attribute": (model(LEAKY), PLAIN_NODE),
    "an omitted attribute with the operator's default": (
        model(LEAKY, call="y = my.F (x)"),
        "y = LeakyRelu (x)",
    ),
    "a default of the function": (
        model("F <k: float = 0.3>(x) => (y) { y = LeakyRelu <alpha: float = @k> (x) }",
              call="y = my.F (x)"),
        PLAIN_NODE,
    ),
    "an attribute that replaces a default": (
        model("F <k: float = 0.1>(x) => (y) { y = LeakyRelu <alpha: float = @k> (x) }"),
        PLAIN_NODE,
    ),
    "a constant number": (
        model("F <k>(x) => (y) { c = Constant <value_float: float = @k> () y = Mul(x, c) }"),
        "c = Constant <value = float {0.3}> () y = Mul(x, c)",
    ),
    "a constant tensor": (
        model(
            "F <k>(x) => (y) { c = Constant <value: tensor = @k> () y = Mul(x, c) }",
            call="y = my.F <k = float {0.3}> (x)",
        ),
        "c = Constant <value = float {0.3}> () y = Mul(x, c)",
    ),
    "a type that is passed in an attribute of another name": (
        model(
            "F <k>(x) => (y) { c = Cast <to: int = @k> (x) d = Exp(c) y = Cast <to = 1> (d) }",
            call="y = my.F <k = 10> (x)",
        ),
        "c = Cast <to = 10> (x) d = Exp(c) y = Cast <to = 1> (d)",
    ),
    "nested functions, the caller first": (
        model("F <k>(x) => (y) { y = my.G <slope: float = @k> (x) }", INNER),
        PLAIN_NODE,
    ),
    "nested functions, the caller last": (
        model(INNER, "F <k>(x) => (y) { y = my.G <slope: float = @k> (x) }"),
        PLAIN_NODE,
    ),
    "two calls with two values": (
        model(LEAKY, call="t = my.F <k = 0.3> (x) y = my.F <k = 0.5> (t)"),
        "t = LeakyRelu <alpha = 0.3> (x) y = LeakyRelu <alpha = 0.5> (t)",
    ),
    "inside a subgraph": (
        model(
            """F <k>(x) => (y) {
                c = Constant <value = bool {1}> ()
                y = If (c) <
                    then_branch = a () => (float[4] u) { u = LeakyRelu <alpha: float = @k> (x) },
                    else_branch = b () => (float[4] v) { v = Neg (x) }>
            }"""
        ),
        PLAIN_NODE,
    ),
    "a subgraph that the call passes": (
        model(
            """F <k>(x) => (y) {
                c = Constant <value = bool {1}> ()
                y = If (c) <then_branch: graph = @k, else_branch: graph = @k>
            }""",
            call="y = my.F <k = a () => (float[4] u) { u = LeakyRelu <alpha = 0.3> (x) }> (x)",
        ),
        PLAIN_NODE,
    ),
    "a function called in a subgraph": (
        model(
            LEAKY,
            call="""c = Constant <value = bool {1}> ()
                y = If (c) <
                    then_branch = a () => (float[4] u) { u = my.F <k = 0.3> (x) },
                    else_branch = b () => (float[4] v) { v = Neg (x) }>""",
        ),
        PLAIN_NODE,
    ),
    "inputs and outputs omitted at the end": (
        model(
            "F <k>(x, least) => (y, z) { y = Clip (x, least) z = Neg (x) }",
            call="y = my.F <k = 0.3> (x)",
        ),
        "y = Clip (x)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EQUIVALENT)
def test_function_yields_the_same_estimate_as_its_nodes(name):
    with_functions, nodes = EQUIVALENT[name]
    plain = onnx.parser.parse_model(GRAPH % nodes)
    (output,) = condition(with_functions, {"x": X})
    (expected,) = condition(plain, {"x": X})
    assert output.right, output.reason
    for pair, expected_pair in zip(output.right, expected.right, strict=True):
        for array, expected_array in zip(pair, expected_pair, strict=True):
            np.testing.assert_array_equal(array, expected_array)


def test_function_may_receive_a_subgraph():
    with_functions, _ = EQUIVALENT["a subgraph that the call passes"]
    assert model_fault(with_functions) == ""


def test_overloads_are_distinguished():
    made = model(LEAKY, LEAKY.replace("LeakyRelu", "Elu"), call="y = my.F <k = 0.3> (x)")
    made.functions[0].overload = "other"
    (output,) = condition(made, {"x": X})
    expected = np.where(X > 0, X, np.float64(np.float32(0.3)) * np.expm1(X.astype("d")))
    np.testing.assert_allclose(output.right[0][0], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        (["F (x) => (y) { y = my.F (x) }"], "calls itself"),
        (["F (x) => (y) { y = my.G (x) }", "G (x) => (y) { y = my.F (x) }"], "calls itself"),
    ],
)
def test_recursive_functions_are_rejected(functions, message):
    made = model(*functions, call="y = my.F (x)")
    with pytest.raises(NodeError, match=message):
        with_bound_functions(made)
    with pytest.raises(NoReferenceError, match=message):
        condition(made, {"x": X})


@pytest.mark.parametrize(
    ("function", "call", "message"),
    [
        ("F (x) => (y) { z = Neg (x) }", "y = my.F (x)", "does not compute its output y"),
        ("F (x) => (y) { y = Neg (x) }", "y = my.F (x, x)", "has 2 inputs; at most 1"),
        ("F (x) => (y) { y = Neg (x) }", "y, z = my.F (x)", "has 2 outputs; at most 1"),
        (LEAKY, "y = LeakyRelu <alpha: float = @k> (x)", "refers to the attribute k"),
        (LEAKY, "y = my.F <k = 0.3> (x)", ""),
        ("F (x, s) => (x, y) { y = Neg (x) }", "z, y = my.F (x)", ""),
    ],
)
def test_functions_and_their_calls_are_checked(function, call, message):
    fault = model_fault(model(function, call=call))
    assert message in fault
    assert bool(message) == bool(fault)


def test_functions_of_a_newer_model_are_checked():
    made = model("F (x) => (y) { y = my.F (x) }", call="y = my.F (x)")
    made.ir_version = onnx.IR_VERSION + 1
    assert "call each other in a circle" in model_fault(made)


def test_defaults_are_spelled_out_in_one_pass(monkeypatch):
    made = model("F <k: float = 0.3>(x) => (y) { y = Neg (x) }", call="y = my.F (x)")
    function = made.functions[0]
    for at in range(20):
        made.functions.add().CopyFrom(function)
        made.functions[-1].overload = f"other{at}"
        made.functions[-1].attribute_proto.add(name=f"k{at}", f=at, type=AttributeProto.FLOAT)
    passes = []
    walked = nodes.all_nodes
    monkeypatch.setattr(nodes, "all_nodes", lambda model: passes.append(1) or walked(model))
    (call,) = nodes.spell_out_defaults(made).graph.node
    assert [attribute.name for attribute in call.attribute] == [
        "k",
        *(f"k{at}" for at in range(20)),
    ]
    assert len(passes) == 1


def test_equal_calls_share_bound_functions():
    doubling = [
        f"F{at} <k>(x) => (y) {{ t = my.F{at + 1} <k = {at}.1> (x) "
        f"y = my.F{at + 1} <k = {at}.2> (t) z = LeakyRelu <alpha: float = @k> (y) }}"
        for at in range(40)
    ]
    # Equal calls share a bound function, so there are about 80 bound functions instead of 2^40.
    made = model(*doubling, "F40 <k>(x) => (y) { y = Neg (x) }", call="y = my.F0 <k = 0.5> (x)")
    assert len(with_bound_functions(made).functions) < 100


def test_uncalled_random_function_is_ignored():
    made = model(LEAKY, "G (x) => (y) { y = RandomNormalLike (x) }")
    assert drawn(made, {"x": X}) == {}
    called = model("F (x) => (y) { y = RandomNormalLike (x) }", call="y = my.F (x)")
    assert drawn(called, {"x": X})
