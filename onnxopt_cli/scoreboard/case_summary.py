"""A case in one line: operators, attributes, inputs."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from onnxopt_cli.cases.case import Case
from onnxopt_cli.core.text import clipped, exception_text
from onnxopt_cli.core.values import Value, describe
from onnxopt_cli.errors import InvalidCase

_MAX_VALUES = 8
_MAX_ATTRIBUTE_CHARS = 80
_MAX_CHARS = 600


def case_summary(case: Case) -> str:
    """Return operator, opset, attributes and inputs of a case; empty if it cannot be loaded."""
    try:
        problem = case.load()
    except (InvalidCase, MemoryError):
        return ""
    opsets = ", ".join(
        f"{opset.domain or 'ai.onnx'} {opset.version}" for opset in problem.model.opset_import
    )
    nodes = problem.model.graph.node
    names = ", ".join(dict.fromkeys(node.op_type for node in nodes))
    parts = [f"{clipped(names, _MAX_ATTRIBUTE_CHARS)} (opset {opsets})"]
    if len(nodes) == 1:
        parts += [*map(_attribute, nodes[0].attribute)]
    parts += [f"{name}: {_described(value)}" for name, value in problem.inputs.items()]
    return clipped("; ".join(parts), _MAX_CHARS)


def _attribute(attribute: onnx.AttributeProto) -> str:
    try:
        value = helper.get_attribute_value(attribute)
    except ValueError as error:
        return f"{attribute.name} ({exception_text(error)})"
    if isinstance(value, onnx.GraphProto | onnx.TensorProto | onnx.SparseTensorProto):
        return f"{attribute.name} = {type(value).__name__}"
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return f"{attribute.name} = {clipped(text, _MAX_ATTRIBUTE_CHARS)}"


def _described(value: Value) -> str:
    text = describe(value)
    if isinstance(value, np.ndarray) and 0 < value.size <= _MAX_VALUES:
        values = ", ".join(
            f"{element:.6g}" if isinstance(element, float) else str(element)
            for element in value.ravel().tolist()
        )
        text += f" = {clipped(values, _MAX_ATTRIBUTE_CHARS)}"
    return text
