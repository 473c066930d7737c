"""Small models for tests of backends, created with onnx's helpers only."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

TRAINING = "ai.onnx.preview.training"
FLOAT = TensorProto.FLOAT

ADAM_INPUTS = {
    "R": np.array(0.1, np.float32),
    "T": np.array(1, np.int64),
    "X": np.array([1.0, 1.0], np.float32),
    "G": np.array([1.0, -1.0], np.float32),
    "V": np.array([0.0, 0.0], np.float32),
    "H": np.array([0.0, 0.0], np.float32),
}
ADAM_ATTRIBUTES = {"alpha": 0.9, "beta": 0.999, "epsilon": 0.1}
#: Computed by hand for G = ±1: 1 ∓ 0.1·(sqrt(0.001)/0.1)·0.1/(sqrt(0.001)+0.1).
ADAM_X_NEW = np.array([0.975975, 1.024025], np.float32)


def value(name, dtype=FLOAT, shape=("n",)):
    return helper.make_tensor_value_info(name, dtype, shape)


def model(
    nodes, inputs, outputs, *, opset=18, domains=(), functions=(), ir_version=8, constants=()
):
    """Return a model of nodes; ``domains`` are imported in version 1."""
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(domain, 1) for domain in domains]
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(constants))
    return helper.make_model(
        graph, opset_imports=imports, ir_version=ir_version, functions=list(functions)
    )


def one_node(
    op_type, dtype=FLOAT, *, outputs_as=None, opset=18, ir_version=8, domain="", **attributes
):
    """Return a model of one node with the input x and the output y, each of three elements."""
    node = helper.make_node(op_type, ["x"], ["y"], domain=domain, **attributes)
    return model(
        [node],
        [value("x", dtype, [3])],
        [value("y", dtype if outputs_as is None else outputs_as, [3])],
        opset=opset,
        ir_version=ir_version,
        domains=(domain,) if domain else (),
    )


def adam_node(outputs=("X_new", "V_new", "H_new"), **attributes):
    return helper.make_node(
        "Adam", list(ADAM_INPUTS), list(outputs), domain=TRAINING, **(attributes or ADAM_ATTRIBUTES)
    )


def adam_inputs():
    """Return the declarations of Adam's inputs."""
    return [value("R", shape=[]), value("T", TensorProto.INT64, [])] + [
        value(name, shape=[2]) for name in "XGVH"
    ]


def adam(**attributes):
    """Return a model of one Adam node."""
    outputs = [value(name, shape=[2]) for name in ("X_new", "V_new", "H_new")]
    return model([adam_node(**attributes)], adam_inputs(), outputs, domains=(TRAINING,))


def doubled_adam(**attributes):
    """Return a model of three nodes: Add computes X + X for Adam, and Neg negates X_new."""
    node = adam_node(**attributes)
    node.input[2] = "doubled"
    nodes = [
        helper.make_node("Add", ["X", "X"], ["doubled"]),
        node,
        helper.make_node("Neg", ["X_new"], ["y"]),
    ]
    return model(nodes, adam_inputs(), [value("y", shape=[2])], domains=(TRAINING,))


def adam_in_function(call=None, *, attributes=(), defaults=None):
    """Return a model that calls a function with Adam; Adam's alpha is the function's rate.

    Args:
        call: the attributes of the call.
        attributes: the names of the function's attributes without a default.
        defaults: the function's attributes with a default, by name.
    """
    node = adam_node(beta=0.999, epsilon=0.1)
    reference = node.attribute.add(name="alpha", ref_attr_name="rate")
    reference.type = 1
    function = helper.make_function(
        "local",
        "Step",
        list(ADAM_INPUTS),
        ["X_new"],
        [node],
        [helper.make_opsetid("", 18), helper.make_opsetid(TRAINING, 1)],
        attributes=list(attributes),
        attribute_protos=[helper.make_attribute(*pair) for pair in (defaults or {}).items()],
    )
    caller = helper.make_node("Step", list(ADAM_INPUTS), ["y"], domain="local", **(call or {}))
    return model(
        [caller],
        adam_inputs(),
        [value("y", shape=[2])],
        domains=(TRAINING, "local"),
        functions=[function],
    )


def adam_in_branch():
    """Return a model with Adam in the executed branch of an If; Adam reads outer tensors."""
    branch = helper.make_graph(
        [adam_node(("inner", "v", "h"))], "b", [], [value("inner", shape=[2])]
    )
    other_branch = helper.make_graph(
        [helper.make_node("Identity", ["X"], ["kept"])], "o", [], [value("kept", shape=[2])]
    )
    nodes = [
        helper.make_node("If", ["yes"], ["y"], then_branch=branch, else_branch=other_branch),
    ]
    return model(
        nodes,
        adam_inputs(),
        [value("y", shape=[2])],
        domains=(TRAINING,),
        constants=[helper.make_tensor("yes", TensorProto.BOOL, [], [True])],
    )


def adam_in_function_in_branch():
    """Return a model that calls a function with an If; Adam is in the executed branch."""
    branch = adam_in_branch()
    function = helper.make_function(
        "local",
        "Step",
        [*ADAM_INPUTS, "yes"],
        ["y"],
        list(branch.graph.node),
        [helper.make_opsetid("", 18), helper.make_opsetid(TRAINING, 1)],
    )
    caller = helper.make_node("Step", [*ADAM_INPUTS, "yes"], ["y"], domain="local")
    return model(
        [caller],
        adam_inputs(),
        [value("y", shape=[2])],
        domains=(TRAINING, "local"),
        functions=[function],
        constants=branch.graph.initializer,
    )
