"""Outputs of models and of their nodes, computed by onnx's corrected reference.

The outputs are computed in double, and rounded to the types of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from time import monotonic
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnxopt_cli.core.text import clipped, exception_text, printable
from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.errors import NodeError
from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.interpret.gradient.reverse_mode import expand_gradients, has_gradient
from onnxopt_cli.interpret.lower.lower_model import formula_operators, lower
from onnxopt_cli.operators.call import sole_call
from onnxopt_cli.operators.nodes import all_nodes, with_bound_functions
from onnxopt_cli.oracle.corrections.corrected_reference import unsupported_reason
from onnxopt_cli.oracle.evaluator import ReferenceModel, native_outputs
from onnxopt_cli.oracle.patching import corrected, replaced, unimplemented_operator
from onnxopt_cli.oracle.widen import in_double, rounded_like, widened_value

# Nodes are computed together until their outputs take this number of bytes.
_MAX_BYTES_OF_NODES = 64 << 20
# After this number of seconds, no further nodes are computed together.
_SECONDS_OF_NODES = 2.0
_MAX_MESSAGE_CHARS = 200
#: If onnx's reference lacks an operator, the reason for the missing values begins with this text.
UNIMPLEMENTED = "onnx's reference does not implement"


class NoReferenceError(Exception):
    """Raised if the condition of a model cannot be estimated. The message states the reason."""


def reference_values(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> list[Any]:
    """Return the outputs of a model, computed in double and rounded to the model's own types.

    If the model is a single node with a formula, the formula computes the outputs. The node is not
    lowered, because nodes of old opsets cannot be lowered.

    Raises:
        NoReferenceError: if onnx's reference cannot run the model.
    """
    try:
        call = sole_call(model, inputs)
    except NodeError as error:
        raise NoReferenceError(error.message) from error
    if call is not None:
        outputs = dict(zip(model.graph.node[0].output, evaluate(call), strict=True))
        return [outputs[info.name] for info in model.graph.output]
    model = prepared_model(model, inputs)
    require_supported(model)
    with corrected():
        try:
            native_model = ReferenceModel(model)
            native = native_model.run(inputs)
        except Exception as error:
            raise NoReferenceError(reference_failure(error)) from error
        try:
            exact = ReferenceModel(model, wide=True, like=native_model).run(inputs)
        except Exception:  # noqa: BLE001 - some operators run in the model's own types only
            return native
    return [*map(rounded_like, exact, native)]


def values_of_nodes(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> list[Array | None]:
    """Return the outputs of consecutive nodes, each computed as by :func:`reference_values`.

    Args:
        model: nodes without subgraphs, in order. All their outputs are outputs of the model. If an
            output declares a type, later nodes read the output in this type.
        inputs: the inputs of the model.

    Returns:
        One entry per output of the model. The evaluation ends if onnx's reference cannot run a
        node, returns another type, or takes too much time or memory. All further entries are then
        None.
    """
    declared = {info.name: info.type.tensor_type.elem_type for info in model.graph.output}
    values: dict[str, Any] = {}
    remaining, end = _MAX_BYTES_OF_NODES, monotonic() + _SECONDS_OF_NODES
    with corrected(), suppress(Exception):
        native_model = ReferenceModel(model)
        wide_model = ReferenceModel(model, wide=True, like=native_model)
        all_values = {"": None, **native_model.arrays, **inputs}
        wide_values = {"": None, **wide_model.arrays, **inputs}
        for node, wide_node in zip(native_model.nodes, wide_model.nodes, strict=True):
            if unsupported_reason(node.onnx_node):
                break
            outputs = native_model.visits.outputs_of(node, all_values)
            doubles = {name: widened_value(wide_values[name]) for name in node.input}
            exact = outputs
            # Some operators run in the model's own types only.
            with suppress(Exception), replaced(*in_double()):
                exact = wide_model.visits.outputs_of(wide_node, doubles)
            outputs = [*map(rounded_like, exact, outputs)]
            named = {name: value for name, value in zip(node.output, outputs, strict=False) if name}
            if not all(_has_type(value, declared[name]) for name, value in named.items()):
                break
            values |= named
            all_values |= named
            wide_values |= named
            remaining -= sum(value.nbytes for value in named.values())
            if remaining < 0 or monotonic() > end:
                break
    return [values.get(name) for name in declared]


def _has_type(value: Any, element: int) -> bool:
    """Return whether a value is a tensor of a declared element type; UNDEFINED matches any type."""
    if not isinstance(value, np.ndarray):
        return False
    if element == onnx.TensorProto.UNDEFINED:
        return True
    if value.dtype == object:
        return element == onnx.TensorProto.STRING
    return element == helper.np_dtype_to_tensor_dtype(value.dtype)


def require_supported(model: onnx.ModelProto) -> None:
    """Check that onnx's reference follows the specification at every node of a model.

    Raises:
        NoReferenceError: if the reference deviates from the specification.
    """
    if why := next(filter(None, map(unsupported_reason, all_nodes(model))), ""):
        raise NoReferenceError(f"onnx's reference {why}")


def reference_failure(error: Exception, precision: str = "") -> str:
    """Return why onnx's reference did not run a model.

    Args:
        error: the exception that the reference raised.
        precision: the precision of the run, such as ``" in double"``.
    """
    if operator := unimplemented_operator(error):
        return f"{UNIMPLEMENTED} {printable(operator)}"
    return f"onnx's reference does not run it{precision}: {first_line(error)}"


def first_line(error: Exception) -> str:
    """Return the first line of an error message of the reference."""
    # The lines after the first may list all operators of the reference.
    return clipped(exception_text(error).split("\n", 1)[0], _MAX_MESSAGE_CHARS)


def prepared_model(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> onnx.ModelProto:
    """Return a model in which primitive nodes replace Gradient nodes and nodes with a formula.

    The lowering of a node with a formula replaces the node. The nodes of the backward pass replace
    a Gradient node. Each primitive node has its own roundings.

    Raises:
        NoReferenceError: if a node breaks its operator's signature, or cannot be lowered.
    """
    try:
        if has_gradient(model):
            model = expand_gradients(model, inputs, native_outputs)
        lowered = lower(model).model if formula_operators(model) else model
        return with_bound_functions(lowered)
    except NodeError as error:
        raise NoReferenceError(error.message) from error
