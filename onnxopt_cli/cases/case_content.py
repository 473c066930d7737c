"""The content of a case as text, which the result of a failing case keeps for reports."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from onnxopt_cli.cases.case import Case, Problem
from onnxopt_cli.core.result import CaseContent
from onnxopt_cli.core.text import clipped
from onnxopt_cli.core.values import Value, describe

# The content of a case has at most this number of inputs, of elements in each input, of nodes, and
# of characters in each text.
_MAX_INPUTS = 50
_MAX_ELEMENTS = 32
_MAX_NODES = 20
_MAX_TEXT_CHARS = 400


def case_content(case: Case, problem: Problem) -> CaseContent:
    """Return the description of a case, its nodes with their attributes, and its inputs.

    Values are included up to a number of elements.
    """
    nodes = problem.model.graph.node
    listed = [node_text(node) for node in nodes[:_MAX_NODES]]
    if (hidden := len(nodes) - _MAX_NODES) > 0:
        listed.append((f"{hidden} more nodes", ""))
    inputs = [
        (name, describe(value), input_text(value, _MAX_ELEMENTS))
        for name, value in [*problem.inputs.items()][:_MAX_INPUTS]
    ]
    if (hidden := len(problem.inputs) - _MAX_INPUTS) > 0:
        inputs.append((f"{hidden} more inputs", "", ""))
    return CaseContent(clipped(case.about, _MAX_TEXT_CHARS), tuple(listed), tuple(inputs))


def input_text(value: Value, most: int) -> str:
    """Return the elements of a value as text; empty for an empty optional.

    Args:
        value: the value.
        most: maximum number of elements of a tensor; the text of a larger tensor ends with dots.
    """
    if value is None:
        return ""
    if not isinstance(value, np.ndarray):
        return clipped(repr(value), _MAX_TEXT_CHARS)
    elements = ", ".join(str(element) for element in value.reshape(-1)[:most])
    more = ", ..." if value.size > most else ""
    text = elements + more if value.ndim == 0 else f"[{elements}{more}]"
    return clipped(text, 4 * _MAX_TEXT_CHARS)


def node_text(node: onnx.NodeProto) -> tuple[str, str]:
    """Return the name of a node's operator, with its domain, and the attributes as text."""
    name = f"{node.domain}:{node.op_type}" if node.domain else node.op_type
    attributes = (f"{item.name}={_attribute_text(item)}" for item in node.attribute)
    return name, ", ".join(attributes)


def _attribute_text(attribute: onnx.AttributeProto) -> str:
    """Return the value of a node's attribute as text."""
    try:
        value = helper.get_attribute_value(attribute)
    except ValueError:
        # A hostile file may have an attribute of an unknown type.
        return "?"
    if isinstance(value, onnx.GraphProto):
        return ", ".join(node.op_type for node in value.node)
    if isinstance(value, float):
        return str(np.float32(value))
    if isinstance(value, onnx.TensorProto):
        return f"a tensor of shape {[*value.dims]}"
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return clipped(text, _MAX_TEXT_CHARS)
