"""The outputs of trusted models by onnx's corrected reference, for generated cases."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from onnxopt_cli.core.values import Value
from onnxopt_cli.operators.nodes import all_nodes
from onnxopt_cli.oracle.corrections.corrected_reference import unsupported_reason
from onnxopt_cli.oracle.evaluator import ReferenceModel
from onnxopt_cli.oracle.patching import corrected
from onnxopt_cli.oracle.rounding.node_kinds import DEFINED
from onnxopt_cli.oracle.widen import ROUNDOFF, rounded_like


def reference_outputs(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> list[Value]:
    """Return the outputs of a trusted model, computed in double and rounded to the model's types.

    Outputs that are not floating-point are computed in the model's own types.

    Args:
        model: a trusted model, because the reference runs it in this process.
        inputs: a value for each input of the graph.

    Raises:
        NotImplementedError: if the reference is known to compute the model incorrectly.
        Exception: any exception that the reference raises.
    """
    nodes = list(all_nodes(model))
    for node in nodes:
        if reason := unsupported_reason(node):
            raise NotImplementedError(f"onnx's reference {reason}")
    with corrected():
        native = [*map(_array, ReferenceModel(model).run(inputs))]
        if {node.op_type for node in nodes} <= DEFINED or not any(map(_is_rounded, native)):
            return native
        exact = ReferenceModel(model, wide=True).run(inputs)
        return [*map(rounded_like, exact, native)]


def _array(value: Value) -> Value:
    return np.asarray(value) if isinstance(value, np.generic) else value


def _is_rounded(value: Value) -> bool:
    return isinstance(value, np.ndarray) and value.dtype in ROUNDOFF
