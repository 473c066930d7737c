"""Faults of single nodes and of fused nodes, and a backend with one fault.

``NODE_FAULTS`` maps a kind of fault to a function that computes the wrong outputs of a node. The
function returns None if the fault does not apply to the node. ``FUSION_FAULTS`` are wrong kernels
for a chain of nodes.

The backend :class:`Faulty` has the fault that the environment variable ``INJECTED_FAULT``
describes. It runs models node by node with onnx's reference. A model without the faulty nodes runs
on ONNX Runtime if ONNX Runtime accepts it.

This module does not import onnxopt. The faults are therefore computed independently of onnxopt.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

Array = Any
Node = onnx.NodeProto
#: A function that computes the outputs of a node from its operands. An absent operand is None.
Compute = Callable[[Node, Sequence[Array]], list[Array]]
#: A function that computes the wrong outputs of a node; it returns None if the fault does not apply
#: to the node.
Fault = Callable[[Node, Sequence[Array], Compute], "list[Array] | None"]

VARIABLE = "INJECTED_FAULT"
ROUNDOFF = float(np.finfo(np.float32).eps) / 2
# Exceptions that are raised if a node does not accept its operands.
COMPUTATION_ERRORS = (ValueError, TypeError, IndexError, RuntimeError, AttributeError, KeyError)
# Number of runs with random roundings.
ROUNDING_RUNS = 8
PRODUCTS = {"Conv", "Gemm", "MatMul"}
WITH_BIAS = {"Conv", "ConvTranspose", "Gemm"}
REDUCTIONS = {"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"}
ELEMENTWISE = {"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min"}
UNARY = {
    "Relu", "Sigmoid", "HardSigmoid", "Tanh", "Sqrt", "Exp", "Log", "Erf", "LeakyRelu", "Clip",
    "Neg", "Abs", "Reciprocal", "Sin", "Cos", "Identity",
}  # fmt: skip
#: Operators that compute floats. Operators that only move floats are not included.
COMPUTING = (
    PRODUCTS | WITH_BIAS | REDUCTIONS | ELEMENTWISE | UNARY - {"Identity"}
    | {"Softmax", "GlobalAveragePool", "AveragePool", "BatchNormalization", "LayerNormalization",
       "Resize", "LSTM"}
)  # fmt: skip


class NodeComputer:
    """A function that computes single nodes by onnx's reference.

    Args:
        model: a model whose imports determine the versions of the operator sets.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._imports, self._ir_version = list(model.opset_import), model.ir_version

    def __call__(self, node: Node, operands: Sequence[Array]) -> list[Array]:
        """Return all outputs of a node, including unused outputs, which have empty names.

        Raises:
            COMPUTATION_ERRORS: if the node does not accept the operands.
        """
        if node.op_type == "GlobalMaxPool":
            # onnx's reference drops the reduced dimensions of the output of GlobalMaxPool.
            axes = tuple(range(2, operands[0].ndim))
            return [np.max(operands[0], axes, keepdims=True)]
        copy = Node()
        copy.CopyFrom(node)
        names = [f"input{i}" if value is not None else "" for i, value in enumerate(operands)]
        copy.input[:] = names
        copy.output[:] = [f"output{i}" for i in range(len(node.output))]
        graph = onnx.GraphProto(name="node", node=[copy])
        for name, value in zip(names, operands, strict=True):
            if name:
                element = helper.np_dtype_to_tensor_dtype(np.asarray(value).dtype)
                graph.input.append(helper.make_tensor_value_info(name, element, None))
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in copy.output)
        model = onnx.ModelProto(ir_version=self._ir_version, graph=graph)
        model.opset_import.extend(self._imports)
        feeds = {name: value for name, value in zip(names, operands, strict=True) if name}
        with np.errstate(all="ignore"):
            try:
                outputs = [*ReferenceEvaluator(model).run(None, feeds)]
            except (ValueError, NotImplementedError):
                # onnx's reference rejects some valid nodes.
                try:
                    outputs = [*run_on_onnxruntime(model, feeds)]
                except Exception as error:  # ONNX Runtime has no common class of errors
                    raise ValueError(str(error)) from error
        return [np.asarray(value) for value in outputs]


@dataclass
class Step:
    """A node as it ran: the node, the values of its inputs, and its outputs."""

    node: Node
    operands: list[Array]
    outputs: list[Array]


def plain_name(name: str) -> str:
    """Return the name of a value or node without the scope that onnxopt prepends."""
    return re.sub(r"^.*#\d+/", "", name)


def interpret(
    graph: onnx.GraphProto, values: dict[str, Array], compute: Compute, steps: list[Step]
) -> list[Array]:
    """Run a graph node by node, and return its outputs. Of an If, only the taken branch runs.

    Args:
        graph: the graph.
        values: its inputs and the values of the surrounding graphs. The function adds all other
            values of the graph.
        compute: computes a node.
        steps: a list to which the function appends each computed node with its operands and
            outputs. An If is not appended, but the nodes of its taken branch are.
    """
    for tensor in graph.initializer:
        values.setdefault(tensor.name, numpy_helper.to_array(tensor))
    for node in graph.node:
        operands = [values[name] if name else None for name in node.input]
        if node.op_type == "If":
            branches = {item.name: item.g for item in node.attribute}
            taken_branch = branches["then_branch" if np.all(operands[0]) else "else_branch"]
            outputs = interpret(taken_branch, dict(values), compute, steps)
        else:
            outputs = compute(node, operands)
            steps.append(Step(node, operands, outputs))
        values.update(zip(node.output, outputs, strict=False))
    return [values[info.name] for info in graph.output]


def attribute(node: Node, name: str, default: Any) -> Any:
    """Return an attribute of a node, or its default."""
    for item in node.attribute:
        if item.name == name:
            return helper.get_attribute_value(item)
    return default


def changed(node: Node, operator: str = "", **attributes: Any) -> Node:
    """Return a copy of a node with another operator or other attributes."""
    copy = Node()
    copy.CopyFrom(node)
    copy.op_type = operator or node.op_type
    kept_attributes = [item for item in copy.attribute if item.name not in attributes]
    del copy.attribute[:]
    copy.attribute.extend(kept_attributes)
    copy.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    return copy


def is_float(value: Array) -> bool:
    """Return whether a value is a nonempty tensor of floats."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.size > 0


def replaced(operands: Sequence[Array], index: int, value: Array) -> list[Array]:
    """Return operands with another value at an index."""
    return [*operands[:index], value, *operands[index + 1 :]]


def constant_index(operands: Sequence[Array]) -> int | None:
    """Return the index of the smaller of two operands; None if they have equal sizes."""
    if operands[0].size == operands[1].size:
        return None
    return int(operands[1].size < operands[0].size)


def on_output(change: Callable[[Array], Array]) -> Fault:
    """Return a fault that changes the first output of an operator that computes floats."""

    def fault(node: Node, operands: Sequence[Array], compute: Compute) -> list[Array] | None:
        if node.op_type not in COMPUTING:
            return None
        first, *other_outputs = compute(node, operands)
        return [change(first).astype(first.dtype), *other_outputs] if is_float(first) else None

    return fault


def as_operator(replacements: Mapping[str, str]) -> Fault:
    """Return a fault that computes another operator."""

    def fault(node: Node, operands: Sequence[Array], compute: Compute) -> list[Array] | None:
        if node.op_type not in replacements:
            return None
        outputs = compute(changed(node, replacements[node.op_type]), operands)
        right = compute(node, operands)
        return [np.asarray(outputs[0], right[0].dtype), *outputs[1:]]

    return fault


def epsilon(node: Node, operands: Sequence[Array], compute: Compute) -> list[Array] | None:
    """Compute a normalization, an Add or a Max with an epsilon that is 100 times too large."""
    if node.op_type.endswith("Normalization"):
        return compute(changed(node, epsilon=attribute(node, "epsilon", 1e-5) * 100), operands)
    if node.op_type in {"Add", "Max"}:
        for index, value in enumerate(operands):
            if is_float(value) and value.size == 1 and 0 < value.ravel()[0] < 1e-2:  # noqa: PLR2004
                return compute(node, replaced(operands, index, value * 100))
    return None


def axis(node: Node, operands: Sequence[Array], compute: Compute) -> list[Array] | None:
    """Compute a node along the axis after the correct axis."""
    rank = np.ndim(operands[0]) if operands else 0
    if rank < 2:  # noqa: PLR2004
        return None
    if node.op_type in {"Softmax", "LogSoftmax", "ArgMax", "Concat"}:
        old = attribute(node, "axis", 0 if node.op_type == "ArgMax" else -1)
        if node.op_type == "Concat" and len({value.shape for value in operands}) > 1:
            return None
        return compute(changed(node, axis=(old + 1) % rank), operands)
    if node.op_type in REDUCTIONS:
        if len(operands) > 1 and operands[1] is not None and operands[1].size < rank:
            return compute(node, replaced(operands, 1, (operands[1] + 1) % rank))
        if len(axes := attribute(node, "axes", [])) in range(1, rank):
            return compute(changed(node, axes=[(old + 1) % rank for old in axes]), operands)
    return None


def rounding_mode(node: Node, operands: Sequence[Array], compute: Compute) -> list[Array] | None:
    """Compute a node that rounds in another direction."""
    outputs = compute(node, operands)
    if node.op_type == "Cast" and is_float(operands[0]) and outputs[0].dtype.kind in "iu":
        return [np.rint(operands[0]).astype(outputs[0].dtype)]
    if node.op_type == "Div" and outputs[0].dtype.kind == "i":
        return [np.rint(operands[0] / operands[1]).astype(outputs[0].dtype)]
    if node.op_type == "Resize" and attribute(node, "mode", b"nearest") == b"nearest":
        old = attribute(node, "nearest_mode", b"round_prefer_floor")
        return compute(changed(node, nearest_mode="ceil" if old != b"ceil" else "floor"), operands)
    if node.op_type in COMPUTING and is_float(outputs[0]) and outputs[0].dtype == np.float32:
        # The bit mask rounds the significand towards zero, to 16 bits.
        bits = np.atleast_1d(outputs[0]).view(np.uint32) & np.uint32(0xFFFFFF00)
        return [bits.view(np.float32).reshape(outputs[0].shape), *outputs[1:]]
    return None


def missing_bias(node: Node, operands: Sequence[Array], compute: Compute) -> list[Array] | None:
    """Compute a node without its bias."""
    if node.op_type in WITH_BIAS and len(operands) > 2 and operands[2] is not None:  # noqa: PLR2004
        return compute(node, [*operands[:2], np.zeros_like(operands[2])])
    if node.op_type == "BatchNormalization":
        return compute(node, replaced(operands, 2, np.zeros_like(operands[2])))
    if node.op_type == "LSTM" and len(operands) > 3 and operands[3] is not None:  # noqa: PLR2004
        return compute(node, replaced(operands, 3, np.zeros_like(operands[3])))
    return None


def partial_sums(node: Node, operands: Sequence[Array], compute: Compute) -> list[Array] | None:
    """Return the terms that a product or sum adds; None for a node of another operator."""
    if node.op_type == "Conv" and attribute(node, "group", 1) == 1:
        data, weights = operands[:2]
        channels = range(data.shape[1])
        bias = list(operands[2:])
        zero = [np.zeros_like(b) for b in bias]
        return [
            compute(node, [data[:, c : c + 1], weights[:, c : c + 1], *(zero if c else bias)])[0]
            for c in channels
        ]
    if node.op_type == "MatMul" and operands[1].ndim > 1 and operands[0].ndim > 1:
        left, right = operands
        return [left[..., k : k + 1] * right[..., k : k + 1, :] for k in range(left.shape[-1])]
    if node.op_type in {"ReduceSum", "ReduceMean"}:
        axes = attribute(node, "axes", None)
        axes = axes if axes is not None else operands[1].tolist() if len(operands) > 1 else None
        if axes is None or len(axes) != 1 or not attribute(node, "keepdims", 1):
            return None
        terms = np.split(operands[0], operands[0].shape[axes[0]], axes[0])
        divisor = len(terms) if node.op_type == "ReduceMean" else 1
        return [term / operands[0].dtype.type(divisor) for term in terms]
    return None


def float16_accumulation(
    node: Node, operands: Sequence[Array], compute: Compute
) -> list[Array] | None:
    """Compute a product or sum in half precision."""
    if not (operands and is_float(operands[0])):
        return None
    terms = partial_sums(node, operands, compute)
    if terms is None or len(terms) < 2:  # noqa: PLR2004
        return None
    total = np.zeros_like(terms[0], np.float16)
    with np.errstate(all="ignore"):
        for term in terms:
            total = total + term.astype(np.float16)
    return [total.astype(terms[0].dtype)]


def truncated_sum(node: Node, operands: Sequence[Array], compute: Compute) -> list[Array] | None:
    """Compute a product or sum without the last term."""
    if not (operands and is_float(operands[0])):
        return None
    terms = partial_sums(node, operands, compute)
    if terms is not None and len(terms) > 1:
        return [np.sum(terms[:-1], axis=0, dtype=terms[0].dtype)]
    if node.op_type == "GlobalAveragePool":
        data = np.array(operands[0])
        data[..., -1] = 0
        return compute(node, [data])
    return None


def swapped_outputs(node: Node, operands: Sequence[Array], compute: Compute) -> list[Array] | None:
    """Compute a node, and swap its last two outputs."""
    outputs = compute(node, operands)
    named = [index for index, name in enumerate(node.output) if name]
    if len(named) < 2 or outputs[named[-1]].shape != outputs[named[-2]].shape:  # noqa: PLR2004
        return None
    outputs[named[-1]], outputs[named[-2]] = outputs[named[-2]], outputs[named[-1]]
    return outputs


_buffers: dict[tuple[Any, ...], Array] = {}


def kept_state(node: Node, operands: Sequence[Array], compute: Compute) -> list[Array] | None:
    """Return a sum that starts with the result of the previous call instead of zero."""
    if node.op_type not in PRODUCTS | {"Add", "ReduceSum", "ReduceMean", "GlobalAveragePool"}:
        return None
    first, *other_outputs = compute(node, operands)
    if not is_float(first):
        return None
    wrong = first + _buffers.get((node.op_type, first.shape), np.ones_like(first))
    _buffers[node.op_type, first.shape] = first
    return [wrong, *other_outputs]


def stale_buffer(y: Array) -> Array:
    """Return a tensor whose first row was not written."""
    return np.concatenate([np.zeros_like(y[:1]), y[1:]]) if y.ndim else np.zeros_like(y)


def wrong_padding(node: Node, operands: Sequence[Array], compute: Compute) -> list[Array] | None:
    """Compute a node with padding on the wrong side or in a wrong mode."""
    pads = list(attribute(node, "pads", []))
    if any(pads):
        half = len(pads) // 2
        index = next(index for index, pad in enumerate(pads) if pad) % half
        if pads[index] == pads[index + half]:
            pads[index], pads[index + half] = pads[index] - 1, pads[index + half] + 1
        else:
            pads[index], pads[index + half] = pads[index + half], pads[index]
        return compute(changed(node, pads=pads), operands)
    if node.op_type == "Pad":
        mode = attribute(node, "mode", b"constant")
        return compute(changed(node, mode="edge" if mode != b"edge" else "constant"), operands)
    return None


def ignored_group(node: Node, operands: Sequence[Array], compute: Compute) -> list[Array] | None:
    """Compute a convolution with the weights of the first group in all groups."""
    groups = attribute(node, "group", 1)
    if node.op_type != "Conv" or groups == 1:
        return None
    first = operands[1][: len(operands[1]) // groups]
    return compute(node, replaced(operands, 1, np.concatenate([first] * groups)))


def ignored_stride(node: Node, operands: Sequence[Array], compute: Compute) -> list[Array] | None:
    """Compute a node without its strides and dilations."""
    strides, dilations = attribute(node, "strides", []), attribute(node, "dilations", [])
    if node.op_type not in {"Conv", "MaxPool", "AveragePool"} or {*strides, *dilations} <= {1}:
        return None
    right = compute(node, operands)[0]
    ones: dict[str, Any] = {"strides": [1] * len(strides)} if strides else {}
    if dilations:
        ones["dilations"] = [1] * len(dilations)
    outputs = compute(changed(node, **ones), operands)
    window = tuple(slice(0, size) for size in right.shape)
    return [np.ascontiguousarray(outputs[0][window])]


def transposed_weights(
    node: Node, operands: Sequence[Array], compute: Compute
) -> list[Array] | None:
    """Compute a node with transposed or reversed weights."""
    if node.op_type not in PRODUCTS | {"ConvTranspose"} or len(operands) < 2:  # noqa: PLR2004
        return None
    weights = operands[1]
    if weights.ndim < 2 or not is_float(weights):  # noqa: PLR2004
        return None
    if weights.shape[-1] == weights.shape[-2]:
        wrong = np.swapaxes(weights, -1, -2)
    elif weights.ndim == 2:  # noqa: PLR2004
        wrong = weights.T.reshape(weights.shape)
    else:
        wrong = weights[..., ::-1]
    return compute(node, replaced(operands, 1, np.ascontiguousarray(wrong)))


def wrong_broadcast(node: Node, operands: Sequence[Array], compute: Compute) -> list[Array] | None:
    """Compute a node in which all elements of the smaller operand equal its first element."""
    if node.op_type not in ELEMENTWISE or len(operands) != 2:  # noqa: PLR2004
        return None
    index = constant_index(operands)
    if index is None or operands[index].size == 1:
        return None
    first = np.broadcast_to(operands[index].ravel()[0], operands[index].shape)
    return compute(node, replaced(operands, index, np.ascontiguousarray(first)))


def clipped_activation(
    node: Node, operands: Sequence[Array], compute: Compute
) -> list[Array] | None:
    """Compute a node, and clip its output."""
    if node.op_type not in UNARY - {"Identity"}:
        return None
    (y,) = compute(node, operands)
    if not is_float(y):
        return None
    limit = 6.0 if node.op_type in {"Relu", "Clip", "LeakyRelu"} else 0.98
    return [np.minimum(y, y.dtype.type(limit))]


def wrong_slope(node: Node, operands: Sequence[Array], compute: Compute) -> list[Array] | None:
    """Compute an activation with another slope."""
    if node.op_type == "HardSigmoid":
        alpha = attribute(node, "alpha", 0.2)
        return compute(changed(node, alpha=1 / 6 if abs(alpha - 1 / 6) > 1e-3 else 0.2), operands)  # noqa: PLR2004
    if node.op_type in {"LeakyRelu", "Elu"}:
        return compute(changed(node, alpha=attribute(node, "alpha", 0.01) * 1.1), operands)
    if node.op_type in {"Relu", "Clip"}:
        (y,) = compute(node, operands)
        return [np.where(operands[0] < 0, y + operands[0] * y.dtype.type(0.01), y)]
    return None


def wrong_interpolation(
    node: Node, operands: Sequence[Array], compute: Compute
) -> list[Array] | None:
    """Compute an interpolation or pooling in a wrong mode."""
    if node.op_type == "Resize":
        old = attribute(node, "mode", b"nearest")
        return compute(changed(node, mode="linear" if old == b"nearest" else "nearest"), operands)
    if node.op_type == "MaxPool":
        return compute(changed(node, "AveragePool"), operands)
    if node.op_type == "AveragePool":
        included = attribute(node, "count_include_pad", 0)
        return compute(changed(node, count_include_pad=1 - included), operands)
    return None


def off_by_one(node: Node, operands: Sequence[Array], compute: Compute) -> list[Array] | None:
    """Compute a node with input or output indices that are off by one."""
    if node.op_type == "Slice" and len(operands) > 1:
        return compute(node, replaced(operands, 1, operands[1] + 1))
    if node.op_type in {"Gather", "GatherElements"}:
        along = attribute(node, "axis", 0)
        wrong = (operands[1] + 1) % operands[0].shape[along]
        return compute(node, replaced(operands, 1, wrong))
    if node.op_type == "ArgMax":
        return [compute(node, operands)[0] + 1]
    return None


def reversed_concat(node: Node, operands: Sequence[Array], compute: Compute) -> list[Array] | None:
    """Compute a concatenation in reverse order."""
    if node.op_type != "Concat" or len(operands) < 2:  # noqa: PLR2004
        return None
    return compute(node, [*reversed(operands)])


def wrong_layout(node: Node, operands: Sequence[Array], compute: Compute) -> list[Array] | None:
    """Compute a node, and return the elements in the order of another layout."""
    if node.op_type not in {"Transpose", "Reshape", "Unsqueeze", "Squeeze", "Flatten"}:
        return None
    (y,) = compute(node, operands)
    return [np.ascontiguousarray(y.ravel().reshape(y.shape, order="F"))]


def missing_scale(node: Node, operands: Sequence[Array], compute: Compute) -> list[Array] | None:
    """Compute a node without one of its factors."""
    if node.op_type in {"Mul", "Div"}:
        index = constant_index(operands)
        if index is None or (node.op_type == "Div" and index == 0):
            return None
        return compute(node, replaced(operands, index, np.ones_like(operands[index])))
    if node.op_type == "ReduceMean":
        (y,) = compute(node, operands)
        return [y * y.dtype.type(operands[0].size / max(y.size, 1))]
    if node.op_type == "GlobalAveragePool":
        (y,) = compute(node, operands)
        return [y * y.dtype.type(operands[0][0, 0].size)]
    if node.op_type == "BatchNormalization":
        return compute(node, replaced(operands, 1, np.ones_like(operands[1])))
    return None


def nan_handling(node: Node, operands: Sequence[Array], compute: Compute) -> list[Array] | None:
    """Compute a node with 0 in place of NaN, and the largest number in place of infinity."""
    if node.op_type not in UNARY | {"Max", "Min", "ReduceMax", "MaxPool"}:
        return None
    outputs = compute(node, operands)
    return [np.nan_to_num(outputs[0])] if is_float(outputs[0]) else None


def swapped_operands(node: Node, operands: Sequence[Array], compute: Compute) -> list[Array] | None:
    """Compute a node with swapped operands."""
    if node.op_type not in {"Sub", "Div", "Pow"}:
        return None
    return compute(node, [operands[1], operands[0]])


def wrong_gates(node: Node, operands: Sequence[Array], compute: Compute) -> list[Array] | None:
    """Compute an LSTM with two swapped gates."""
    if node.op_type != "LSTM":
        return None
    weights = np.split(operands[1], 4, axis=1)
    wrong = [weights[index] for index in (0, 2, 1, 3)]
    return compute(node, replaced(operands, 1, np.concatenate(wrong, axis=1)))


def last_element(y: Array) -> Array:
    """Return a tensor with an inexact last element."""
    wrong = np.array(y)
    wrong.reshape(-1)[-1:] *= y.dtype.type(1.001)
    return wrong


NODE_FAULTS: dict[str, Fault] = {
    "epsilon": epsilon,
    "axis": axis,
    "rounding_mode": rounding_mode,
    "missing_bias": missing_bias,
    "float16_accumulation": float16_accumulation,
    "truncated_sum": truncated_sum,
    "swapped_outputs": swapped_outputs,
    "stale_buffer": on_output(stale_buffer),
    "kept_state": kept_state,
    "wrong_padding": wrong_padding,
    "ignored_group": ignored_group,
    "ignored_stride": ignored_stride,
    "transposed_weights": transposed_weights,
    "wrong_broadcast": wrong_broadcast,
    "clipped_activation": clipped_activation,
    "wrong_slope": wrong_slope,
    "wrong_interpolation": wrong_interpolation,
    "off_by_one": off_by_one,
    "reversed_concat": reversed_concat,
    "wrong_layout": wrong_layout,
    "missing_scale": missing_scale,
    "nan_handling": nan_handling,
    "swapped_operands": swapped_operands,
    "wrong_gates": wrong_gates,
    "float16_result": on_output(lambda y: y.astype(np.float16)),
    "bfloat16_result": on_output(lambda y: y.astype(ml_dtypes.bfloat16)),
    "last_element": on_output(last_element),
    "inexact_scale": on_output(lambda y: y * y.dtype.type(1 + 1e-4)),
    "negative_zeroed": on_output(lambda y: np.where(y < 0, y.dtype.type(0), y)),
    "other_operator": as_operator(
        {"Add": "Sub", "Mul": "Add", "Max": "Min", "ReduceMax": "ReduceMin", "Sin": "Cos",
         "Relu": "Abs", "Sigmoid": "Tanh", "ReduceMean": "ReduceSum", "Sqrt": "Abs",
         "GreaterOrEqual": "LessOrEqual", "Exp": "Abs"}
    ),
}  # fmt: skip


def half_intermediate(steps: Sequence[Step], compute: Compute) -> list[Array] | None:
    """Return the outputs of a fused kernel that keeps intermediate values in half precision."""
    return rerun(steps, compute, lambda y: y.astype(np.float16).astype(y.dtype))


def dropped_node(steps: Sequence[Step], compute: Compute) -> list[Array] | None:
    """Return the outputs of a fused kernel that leaves out a node.

    In a chain of two nodes, the kernel leaves out the first node. In a longer chain, it leaves out
    the first inner node that preserves shape and type.
    """
    inner_places = range(1, len(steps) - 1)
    for place in inner_places or [0]:
        step = steps[place]
        value = steps[place - 1].outputs[0] if place > 0 else step.operands[0]
        if value.shape == step.outputs[0].shape and value.dtype == step.outputs[0].dtype:
            for former, after in pairwise(steps[place:]):
                value = compute(after.node, operands_after(after, former, value))[0]
            return [value]
    return None


def swapped_order(steps: Sequence[Step], compute: Compute) -> list[Array] | None:
    """Return the outputs of a fused kernel that applies the last two nodes in reverse order."""
    second, last = steps[-2:]
    if {second.node.op_type, last.node.op_type} - ELEMENTWISE - UNARY:
        return None
    links = [index for index, name in enumerate(second.node.input) if name]
    before = steps[-3].node.output[0] if len(steps) > 2 else second.node.input[links[0]]  # noqa: PLR2004
    place = list(second.node.input).index(before)
    value = second.operands[place]
    value = compute(last.node, operands_after(last, second, value))[0]
    value = compute(second.node, replaced(second.operands, place, value))[0]
    return [value] if value.shape == last.outputs[0].shape else None


def inexact_fusion(steps: Sequence[Step], _: Compute) -> list[Array] | None:
    """Return the outputs of a fused kernel that approximates the function of the chain."""
    y = steps[-1].outputs[0]
    return [y * y.dtype.type(1 + 1e-3)]


FUSION_FAULTS: dict[str, Callable[[Sequence[Step], Compute], list[Array] | None]] = {
    "half_intermediate": half_intermediate,
    "dropped_node": dropped_node,
    "swapped_order": swapped_order,
    "inexact_fusion": inexact_fusion,
}


def operands_after(step: Step, former: Step, value: Array) -> list[Array]:
    """Return the operands of ``step``, with ``value`` in place of the output of ``former``."""
    name = former.node.output[0]
    pairs = zip(step.node.input, step.operands, strict=True)
    return [value if key == name else operand for key, operand in pairs]


def rerun(steps: Sequence[Step], compute: Compute, change: Callable[[Array], Array]) -> list[Array]:
    """Compute a chain of nodes, and change each value between two nodes."""
    outputs = compute(steps[0].node, steps[0].operands)
    for former, step in pairwise(steps):
        outputs = compute(step.node, operands_after(step, former, change(outputs[0])))
    return outputs


class Faulty:
    """A backend with the fault that the environment variable describes.

    The variable states the ``kind`` of the fault, and the ``outputs``: the name of the first output
    of each faulty node, in order. A fault of fused nodes affects only models that contain all of
    the fused nodes.
    """

    def run(self, model: onnx.ModelProto, inputs: Mapping[str, Array]) -> list[Array]:
        """Return the outputs of a model."""
        fault = json.loads(os.environ.get(VARIABLE, "{}"))
        targets = fault.get("outputs", [])
        produced = {plain_name(name) for name in produced_names(model.graph)}
        if not targets or not produced.issuperset(targets):
            return run_right(model, inputs)
        right, steps = NodeComputer(model), list[Step]()

        def compute(node: Node, operands: Sequence[Array]) -> list[Array]:
            if not node.output or plain_name(node.output[0]) != targets[-1]:
                return right(node, operands)
            if fault["kind"] in NODE_FAULTS:
                outputs = NODE_FAULTS[fault["kind"]](node, operands, right)
            else:
                last = Step(node, list(operands), right(node, operands))
                chain = [step for step in steps if plain_name(step.node.output[0]) in targets[:-1]]
                outputs = FUSION_FAULTS[fault["kind"]]([*chain, last], right)
            return right(node, operands) if outputs is None else outputs

        return interpret(model.graph, dict(inputs), compute, steps)


def produced_names(graph: onnx.GraphProto) -> list[str]:
    """Return the outputs of the nodes of a graph, including the nodes in branches."""
    names = [name for node in graph.node for name in node.output]
    for node in graph.node:
        for item in node.attribute:
            if item.type == onnx.AttributeProto.GRAPH:
                names += produced_names(item.g)
    return names


def run_on_onnxruntime(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> Sequence[Array]:
    """Run a model on ONNX Runtime, and return its outputs."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    content = model.SerializeToString()
    session = onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"])
    outputs: Sequence[Array] = session.run(None, dict(inputs))
    return outputs


def run_right(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> list[Array]:
    """Run a model on ONNX Runtime or, if ONNX Runtime rejects it, on onnx's reference."""
    try:
        return [*run_on_onnxruntime(model, inputs)]
    except Exception:  # noqa: BLE001 - ONNX Runtime has no common class of errors
        return [*ReferenceEvaluator(model).run(None, dict(inputs))]


def deviation(right: Array, wrong: Array) -> Array:
    """Return the magnitude of each difference; infinity if only one of two elements is finite."""
    with np.errstate(all="ignore"):
        equal = (right == wrong) | (np.isnan(right) & np.isnan(wrong))
        return np.where(equal, 0.0, np.nan_to_num(np.abs(right - wrong), nan=np.inf))


def widened(value: Array) -> Array:
    """Return a tensor of floats in double precision, and other values unchanged."""
    return value.astype(np.float64) if is_float(value) else value


def rounded_at_random(value: Array, generator: np.random.Generator) -> Array:
    """Return a tensor of floats whose elements are moved by one float32 rounding, up or down."""
    if not is_float(value):
        return value
    return value * (1 + ROUNDOFF * generator.choice([-1.0, 1.0], value.shape))


def rounded_operands(
    node: Node, operands: Sequence[Array], generator: np.random.Generator
) -> list[Array]:
    """Return the operands of a node. All operands except sizes are moved by random roundings."""
    sizes = range(1, len(operands)) if node.op_type == "Resize" else ()
    return [
        value if index in sizes else rounded_at_random(value, generator)
        for index, value in enumerate(operands)
    ]


def exceeds_rounding(right: Array, wrong: Array, exact: Array, roundings: Sequence[Array]) -> bool:
    """Return whether a wrong output differs from the right output by more than roundings explain.

    An error is beyond rounding if it exceeds 16 times the largest change that the roundings cause
    in the element.

    Args:
        right: the output in the type of the model.
        wrong: the wrong output.
        exact: the output in double precision.
        roundings: the outputs of several runs with roundings. The roundings are injected at random
            into doubles, or are those of the model's own types.
    """
    if right.shape != wrong.shape or right.dtype != wrong.dtype:
        return True
    if not is_float(right):
        return not np.array_equal(right, wrong)
    noise = np.abs(exact) * ROUNDOFF + np.finfo(np.float32).smallest_subnormal
    for moved in roundings:
        noise = np.maximum(noise, deviation(exact, moved))
    return bool(np.any(deviation(widened(right), widened(wrong)) > 16 * noise))


def is_visible(step: Step, wrong: Sequence[Array], compute: Compute) -> bool:
    """Return whether the wrong outputs of a node differ from the right ones beyond rounding."""
    generator = np.random.default_rng(0)
    operands = [*map(widened, step.operands)]
    exact = compute(step.node, operands)
    runs = [
        compute(step.node, rounded_operands(step.node, operands, generator))
        for _ in range(ROUNDING_RUNS)
    ]
    return any(
        exceeds_rounding(right, wrong[index], exact[index], [run[index] for run in runs])
        for index, right in enumerate(step.outputs)
        if step.node.output[index]
    )


class ChainVisibility:
    """A test of whether the fault of a chain is visible in the outputs of a model.

    Args:
        graph: the graph of the model.
        inputs: its inputs.
        compute: computes a node.
    """

    def __init__(
        self, graph: onnx.GraphProto, inputs: Mapping[str, Array], compute: Compute
    ) -> None:
        self._graph, self._compute = graph, compute
        self._inputs = {name: widened(value) for name, value in inputs.items()}
        generator = np.random.default_rng(0)

        def rounded(node: Node, operands: Sequence[Array]) -> list[Array]:
            outputs = self._wide(node, rounded_operands(node, operands, generator))
            if not operands:
                return outputs
            return [rounded_at_random(value, generator) for value in outputs]

        self._exact = self._run(self._wide)
        # The run in the model's own types is included, because the operands of a fault have the
        # roundings of these types.
        self._roundings = [
            interpret(graph, dict(inputs), compute, []),
            *[self._run(rounded) for _ in range(ROUNDING_RUNS)],
        ]

    def __call__(self, steps: Sequence[Step], wrong: Sequence[Array]) -> bool:
        """Return whether wrong outputs of a chain change an output of the model beyond rounding.

        If a later node does not accept the wrong outputs, for example as a shape, the model has no
        outputs, and the result is False.
        """
        last = steps[-1].node.output[0]

        def faulty(node: Node, operands: Sequence[Array]) -> list[Array]:
            if node.output and node.output[0] == last:
                return [*map(widened, wrong)]
            return self._wide(node, operands)

        try:
            outputs = self._run(faulty)
        except COMPUTATION_ERRORS:
            return False
        return any(
            exceeds_rounding(exact, output, exact, [run[index] for run in self._roundings])
            for index, (exact, output) in enumerate(zip(self._exact, outputs, strict=True))
        )

    def _wide(self, node: Node, operands: Sequence[Array]) -> list[Array]:
        return [*map(widened, self._compute(node, [*map(widened, operands)]))]

    def _run(self, compute: Compute) -> list[Array]:
        return interpret(self._graph, dict(self._inputs), compute, [])


def applied(kind: str, steps: Sequence[Step], compute: Compute) -> list[Array] | None:
    """Return the wrong outputs of a fault; None if it does not apply or cannot be computed."""
    try:
        if kind in FUSION_FAULTS:
            return FUSION_FAULTS[kind](steps, compute)
        return NODE_FAULTS[kind](steps[-1].node, steps[-1].operands, compute)
    except COMPUTATION_ERRORS:
        return None
