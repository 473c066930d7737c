"""Convert the function body that ONNX publishes for an operator to a model."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnxopt_cli.core.values import Value
from onnxopt_cli.operators.nodes import all_nodes, imported_versions
from onnxopt_cli.oracle.widen import PRECISION_ATTRIBUTES, widened

# The domain of functions that replace operators.
_BODY = "onnxopt.body"
#: Operators that occur in the published bodies of other operators, and whose own published bodies
#: subtract. Their bodies are expanded as well.
CALLED = ("Elu", "HardSigmoid", "LogSoftmax")
# Operators whose bodies compute the variance as E(X^2) - E(X)^2, with a relative error of
# u (mean / deviation)^2. This error is large even for well-conditioned inputs, so the bodies are
# not accepted.
_UNSTABLE = frozenset({"GroupNormalization", "LayerNormalization", "MeanVarianceNormalization"})
# Operators whose published bodies contain a subtraction. In a graph of several nodes, only these
# bodies are expanded.
_SUBTRACTING = (*CALLED, "Celu", "Gelu", "HardSwish", "Selu", "Softplus")


def published_body(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> onnx.ModelProto | None:
    """Return a model that runs the published body of the only node of another model.

    Args:
        model: the model.
        inputs: the inputs of the model. The body may depend on their types.

    Returns: The model. None if there are several nodes, no published body, or an unstable body.
    """
    if len(model.graph.node) != 1 or model.functions:
        return None
    node = model.graph.node[0]
    if node.op_type in _UNSTABLE:
        return None
    version = imported_versions(model).get(node.domain)
    if version is None or not onnx.defs.has(node.op_type, version, node.domain):
        return None
    # onnx's type stubs lack the attributes of function bodies.
    schema: Any = onnx.defs.get_schema(node.op_type, version, node.domain)
    function = onnx.FunctionProto()
    if schema.has_function:
        function.CopyFrom(schema.function_body)
    elif schema.has_context_dependent_function:
        # onnx would abort the process for an input that is not a tensor.
        if not all(isinstance(inputs.get(name), np.ndarray) for name in node.input if name):
            return None
        types = [_type(inputs.get(name)).SerializeToString() for name in node.input]
        text = schema.get_context_dependent_function(node.SerializeToString(), types)
        function.ParseFromString(text)
    else:
        return None
    doubles = any(getattr(value, "dtype", None) == np.float64 for value in inputs.values())
    if doubles and PRECISION_ATTRIBUTES.isdisjoint(schema.attributes):
        # Some bodies take the root of an integer in float32. A model of doubles needs the root in
        # double.
        function = widened(function)
    domains = {opset.domain for opset in function.opset_import}
    function.domain = _BODY
    # The body must not compute optional outputs that the node omits.
    del function.output[len(node.output) :]
    function.opset_import.extend(
        opset for opset in model.opset_import if opset.domain not in domains
    )
    body = deepcopy(model)
    body.graph.node[0].domain = _BODY
    body.graph.node[0].op_type = function.name
    # The reference requires an empty name for each omitted optional input, also at the end.
    omitted = len(function.input) - len(node.input)
    body.graph.node[0].input.extend([""] * omitted)
    stated = {attribute.name for attribute in node.attribute}
    for name in function.attribute:
        default = schema.attributes[name].default_value
        if name not in stated and default.type:
            body.graph.node[0].attribute.append(default)
    body.functions.append(function)
    body.opset_import.append(helper.make_opsetid(_BODY, 1))
    return body


def has_stable_body(schema: Any) -> bool:
    """Return whether the published body of an operator is an accepted reformulation."""
    has_body = schema.has_function or schema.has_context_dependent_function
    return bool(has_body) and schema.name not in _UNSTABLE


def subtracting_operators(model: onnx.ModelProto) -> list[str]:
    """Return the operators of a graph whose published bodies subtract.

    A ``Softplus`` whose output is read by a ``Tanh`` is omitted. Such a ``Softplus`` is part of
    ``Mish``, and small results of ``Mish`` would lose all digits in the body of ``Softplus``.
    """
    version = imported_versions(model).get("", 0)
    nodes = [node for node in all_nodes(model) if node.domain in {"", "ai.onnx"}]
    tanh_inputs = {node.input[0] for node in nodes if node.op_type == "Tanh" and node.input}
    used = {
        node.op_type
        for node in nodes
        if node.op_type != "Softplus" or tanh_inputs.isdisjoint(node.output)
    }
    schemas: dict[str, Any] = {
        name: onnx.defs.get_schema(name, version, "")
        for name in _SUBTRACTING
        if name in used and onnx.defs.has(name, version, "")
    }
    return [
        name
        for name, schema in schemas.items()
        if schema.has_function or schema.has_context_dependent_function
    ]


def _type(value: Value) -> onnx.TypeProto:
    if not isinstance(value, np.ndarray):
        return onnx.TypeProto()
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
