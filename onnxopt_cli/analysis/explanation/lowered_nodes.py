"""Find the primitive nodes that a backend computes wrongly in a lowered model.

If a backend lacks an operator, it runs a lowered model of primitive nodes instead. If one of these
nodes is wrong, a known mistake of the operator may have the same effect by chance. Each node is
therefore submitted as a separate model. onnx's reference computes the inputs of this model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from onnxopt_cli.core.result import short_element
from onnxopt_cli.core.tolerance import Branch
from onnxopt_cli.core.values import Array, describe
from onnxopt_cli.errors import OnnxoptError

#: A function that runs a model on a backend; it returns None if the backend fails or an output is
#: not a tensor.
Submit = Callable[[onnx.ModelProto, Mapping[str, Array]], Sequence[Array] | None]

#: Floats that differ by at most this number of epsilons count as equal.
MAX_EPSILONS = 2.0


@dataclass(frozen=True, slots=True)
class WrongNode:
    """A primitive node that a backend gets wrong.

    Attributes:
        operator: the op_type of the node.
        example: one wrong element: its operands, the returned and the expected value.
    """

    operator: str
    example: str


def wrong_nodes(
    model: onnx.ModelProto,
    inputs: Mapping[str, Array],
    submit: Submit,
    only: frozenset[str] = frozenset(),
) -> Iterator[WrongNode]:
    """Yield the nodes that a backend computes wrongly in a lowered model, at most one per operator.

    Args:
        model: a model whose nodes have formulas.
        inputs: a value for each of its inputs.
        submit: runs a model on the backend.
        only: the operators whose nodes are submitted; empty for all.
    """
    wrong_operators: set[str] = set()
    for node_model, node_inputs, right in _nodes(model, inputs):
        (node,) = node_model.graph.node
        if node.op_type in wrong_operators or (only and node.op_type not in only):
            continue
        returned = submit(node_model, node_inputs)
        if returned is None or len(returned) != len(right):
            continue
        for output, expected in zip(returned, right, strict=True):
            if example := _wrong_element(node_model, node_inputs, output, expected):
                wrong_operators.add(node.op_type)
                yield WrongNode(node.op_type, example)
                break


def _nodes(
    model: onnx.ModelProto, inputs: Mapping[str, Array]
) -> Iterator[tuple[onnx.ModelProto, dict[str, Array], list[Array]]]:
    """Yield each node of a lowered model as a model of its own, with its inputs and outputs."""
    from onnx.reference import ReferenceEvaluator

    from onnxopt_cli.interpret.lower.lower_model import lower

    try:
        lowered = lower(model).model
        names = [name for node in lowered.graph.node for name in node.output if name]
        with np.errstate(all="ignore"):
            computed = ReferenceEvaluator(lowered).run(names, dict(inputs))
    except Exception:  # noqa: BLE001 - onnx's reference may lack what another node needs
        return
    values = {**inputs, **dict(zip(names, computed, strict=True))}
    for tensor in lowered.graph.initializer:
        values[tensor.name] = onnx.numpy_helper.to_array(tensor)
    for node in lowered.graph.node:
        names = [name for name in (*node.input, *node.output) if name]
        if node.op_type == "Constant" or not all(
            isinstance(values.get(name), np.ndarray) for name in names
        ):
            continue
        node_inputs = {name: values[name] for name in node.input if name}
        right = [values[name] for name in node.output if name]
        yield _node_model(node, node_inputs, right, lowered), node_inputs, right


def _node_model(
    node: onnx.NodeProto,
    inputs: Mapping[str, Array],
    right: Sequence[Array],
    model: onnx.ModelProto,
) -> onnx.ModelProto:
    """Return a model of a single node of another model."""

    def info(name: str, value: Array) -> onnx.ValueInfoProto:
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        return helper.make_tensor_value_info(name, kind, value.shape)

    outputs = [name for name in node.output if name]
    graph = helper.make_graph(
        [node],
        "alone",
        [info(name, value) for name, value in inputs.items()],
        [info(name, value) for name, value in zip(outputs, right, strict=True)],
    )
    version = model.ir_version
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=version)


def _wrong_element(
    model: onnx.ModelProto, inputs: Mapping[str, Array], actual: Array, expected: Array
) -> str:
    """Describe a wrong element of a node's output, and its operands; empty if all are right."""
    if (actual.dtype, actual.shape) != (expected.dtype, expected.shape):
        return f"returned {describe(actual)}, expected {describe(expected)}"
    if _near(actual, expected).all():
        return ""
    from onnxopt_cli.oracle.estimate.condition_estimate import condition
    from onnxopt_cli.oracle.estimate.reference_values import NoReferenceError

    try:
        (judged, *_) = condition(model, inputs)
    except (NoReferenceError, OnnxoptError, MemoryError):
        return ""
    branch = None
    for value, limit in reversed(judged.right):
        branch = Branch(value, limit, branch)
    if branch is None or branch.expected.shape != actual.shape:
        return ""
    indices = np.flatnonzero(branch.wrong(actual))
    if not indices.size:
        return ""

    def text(tensor: Array, like: Array) -> str:
        element = np.broadcast_to(tensor, actual.shape).reshape(-1)[indices[0]]
        return short_element(element.item(), describe(like))

    operands = [
        text(tensor, tensor)
        for tensor in inputs.values()
        if np.broadcast_shapes(tensor.shape, actual.shape) == actual.shape
    ]
    call = f"{model.graph.node[0].op_type}({', '.join(operands)})"
    return f"{call} returned {text(actual, actual)}, expected {text(branch.expected, expected)}"


def _near(actual: Array, expected: Array) -> Array:
    """Return a mask of the elements that are equal or differ only by roundings."""
    equal = actual == expected
    if expected.dtype.kind != "f":
        return np.asarray(equal)
    with np.errstate(all="ignore"):
        limit = MAX_EPSILONS * np.finfo(expected.dtype).eps * np.abs(expected)
        near = np.abs(actual - expected) <= limit
    both_nan = np.isnan(actual) & np.isnan(expected)
    return np.asarray(equal | both_nan | (near & np.isfinite(expected)))
