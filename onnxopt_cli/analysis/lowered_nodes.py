"""Which primitive nodes of a lowered model a backend gets wrong.

A backend that lacks an operator runs primitive nodes in its place. If one of these is wrong, a
known mistake of the operator may do the same by chance. So each node is submitted alone, with the
values that onnx's reference has for its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from onnxopt_cli.core import numbers
from onnxopt_cli.core.tolerance import Branch
from onnxopt_cli.core.values import Array, describe
from onnxopt_cli.errors import OnnxoptError

#: Runs a model on a backend; None if it does not return tensors alone.
Submit = Callable[[onnx.ModelProto, Mapping[str, Array]], Sequence[Array] | None]

#: A float that is so many units of rounding off needs no closer look.
_CLOSE = 2.0


@dataclass(frozen=True, slots=True)
class WrongNode:
    """A primitive node that a backend gets wrong.

    Attributes:
        operator: the node's op_type.
        shows: one element of it: what it is computed from, what the backend returns, what is right.
    """

    operator: str
    shows: str


def wrong_nodes(
    model: onnx.ModelProto,
    inputs: Mapping[str, Array],
    submit: Submit,
    only: frozenset[str] = frozenset(),
) -> Iterator[WrongNode]:
    """Yield the nodes of a lowered model that a backend gets wrong alone, each operator once.

    Args:
        model: a model whose nodes have formulas.
        inputs: a value for each of its inputs.
        submit: runs a model on the backend.
        only: the operators whose nodes are submitted; empty for all.
    """
    found: set[str] = set()
    for alone, given, right in _nodes(model, inputs):
        (node,) = alone.graph.node
        if node.op_type in found or (only and node.op_type not in only):
            continue
        returned = submit(alone, given)
        if returned is None or len(returned) != len(right):
            continue
        for output, expected in zip(returned, right, strict=True):
            if shows := _wrong(alone, given, output, expected):
                found.add(node.op_type)
                yield WrongNode(node.op_type, shows)
                break


def _nodes(
    model: onnx.ModelProto, inputs: Mapping[str, Array]
) -> Iterator[tuple[onnx.ModelProto, dict[str, Array], list[Array]]]:
    """Yield the nodes of a lowered model, alone, with their inputs by name and their outputs."""
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
        given = {name: values[name] for name in node.input if name}
        right = [values[name] for name in node.output if name]
        yield _alone(node, given, right, lowered), given, right


def _alone(
    node: onnx.NodeProto, given: Mapping[str, Array], right: Sequence[Array], model: onnx.ModelProto
) -> onnx.ModelProto:
    """Return a model of one node of another model."""

    def info(name: str, value: Array) -> onnx.ValueInfoProto:
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        return helper.make_tensor_value_info(name, kind, value.shape)

    outputs = [name for name in node.output if name]
    graph = helper.make_graph(
        [node],
        "alone",
        [info(name, value) for name, value in given.items()],
        [info(name, value) for name, value in zip(outputs, right, strict=True)],
    )
    version = model.ir_version
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=version)


def _wrong(
    model: onnx.ModelProto, given: Mapping[str, Array], actual: Array, expected: Array
) -> str:
    """Return an element of a node's output that is wrong, with what it is computed from."""
    if (actual.dtype, actual.shape) != (expected.dtype, expected.shape):
        return f"returned {describe(actual)}, expected {describe(expected)}"
    if _near(actual, expected).all():
        return ""
    from onnxopt_cli.oracle.condition_estimate import NoReferenceError, condition

    try:
        (judged, *_) = condition(model, given)
    except (NoReferenceError, OnnxoptError, MemoryError):
        return ""
    branch = None
    for value, limit in reversed(judged.right):
        branch = Branch(value, limit, branch)
    if branch is None or branch.expected.shape != actual.shape:
        return ""
    places = np.flatnonzero(branch.wrong(actual))
    if not places.size:
        return ""
    kind, at = describe(expected), places[0]
    operands = [
        numbers.element(np.broadcast_to(it, actual.shape).reshape(-1)[at].item(), describe(it))
        for it in given.values()
        if np.broadcast_shapes(it.shape, actual.shape) == actual.shape
    ]
    found, right = (
        numbers.element(it.reshape(-1)[at].item(), kind) for it in (actual, branch.expected)
    )
    call = f"{model.graph.node[0].op_type}({', '.join(operands)})"
    return f"{call} returned {found}, expected {right}"


def _near(actual: Array, expected: Array) -> Array:
    """Tell which elements are equal or a rounding apart."""
    equal = actual == expected
    if expected.dtype.kind != "f":
        return np.asarray(equal)
    with np.errstate(all="ignore"):
        near = np.abs(actual - expected) <= _CLOSE * np.finfo(expected.dtype).eps * np.abs(expected)
    both_nan = np.isnan(actual) & np.isnan(expected)
    return np.asarray(equal | both_nan | (near & np.isfinite(expected)))
