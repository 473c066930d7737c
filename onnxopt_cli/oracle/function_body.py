"""The function body that ONNX publishes for an operator, as a model of its own."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnxopt_cli.core.values import Value
from onnxopt_cli.operators.nodes import all_nodes, imported_versions

#: The domain of the functions that stand for operators.
BODY = "onnxopt.body"
#: What published bodies call, and whose own bodies are looked into, too: they subtract.
CALLED = ("Elu", "HardSigmoid", "LogSoftmax")
# They take the variance as E(X^2) - E(X)^2, which loses the square of what X - E(X) loses. A form
# that nobody should run is no measure of others.
_UNSTABLE = frozenset({"GroupNormalization", "LayerNormalization", "MeanVarianceNormalization"})
# The same of graphs, whose nodes may be computed as their bodies are.
_SUBTRACT = (*CALLED, "Celu", "Gelu", "HardSwish", "Selu", "Softplus")


def published_body(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> onnx.ModelProto | None:
    """Return a model that runs the published body of the only node of another.

    Args:
        model: the model.
        inputs: what it is fed, for the types.

    Returns:
        The model, or None if there are several nodes, or no body is published that is stable.
    """
    if len(model.graph.node) != 1 or model.functions:
        return None
    node = model.graph.node[0]
    if node.op_type in _UNSTABLE:
        return None
    version = imported_versions(model).get(node.domain)
    if version is None or not onnx.defs.has(node.op_type, version, node.domain):
        return None
    # onnx's stubs lack what it says of function bodies.
    schema: Any = onnx.defs.get_schema(node.op_type, version, node.domain)
    function = onnx.FunctionProto()
    if schema.has_function:
        function.CopyFrom(schema.function_body)
    elif schema.has_context_dependent_function:
        # onnx ends the process where it is given no tensor.
        if not all(isinstance(inputs.get(name), np.ndarray) for name in node.input if name):
            return None
        types = [_type(inputs.get(name)).SerializeToString() for name in node.input]
        text = schema.get_context_dependent_function(node.SerializeToString(), types)
        function.ParseFromString(text)
    else:
        return None
    known = {it.domain for it in function.opset_import}
    function.domain = BODY
    # What nobody asks for may not be computed.
    del function.output[len(node.output) :]
    function.opset_import.extend(it for it in model.opset_import if it.domain not in known)
    body = deepcopy(model)
    body.graph.node[0].domain = BODY
    body.graph.node[0].op_type = function.name
    # The reference counts what is left out at the end as missing.
    left = len(function.input) - len(node.input)
    body.graph.node[0].input.extend([""] * left)
    given = {it.name for it in node.attribute}
    for name in function.attribute:
        default = schema.attributes[name].default_value
        if name not in given and default.type:
            body.graph.node[0].attribute.append(default)
    body.functions.append(function)
    body.opset_import.append(helper.make_opsetid(BODY, 1))
    return body


def subtracting(model: onnx.ModelProto) -> list[str]:
    """Return the operators of a graph that subtract in their published bodies.

    ``Softplus`` below a ``Tanh`` is part of ``Mish``, which would lose all of a small result.
    """
    version = imported_versions(model).get("", 0)
    nodes = [node for node in all_nodes(model) if node.domain in {"", "ai.onnx"}]
    below_tanh = {node.input[0] for node in nodes if node.op_type == "Tanh" and node.input}
    used = {
        node.op_type
        for node in nodes
        if node.op_type != "Softplus" or below_tanh.isdisjoint(node.output)
    }
    schemas: dict[str, Any] = {
        name: onnx.defs.get_schema(name, version, "")
        for name in _SUBTRACT
        if name in used and onnx.defs.has(name, version, "")
    }
    return [
        name for name, it in schemas.items() if it.has_function or it.has_context_dependent_function
    ]


def _type(value: Value) -> onnx.TypeProto:
    if not isinstance(value, np.ndarray):
        return onnx.TypeProto()
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
