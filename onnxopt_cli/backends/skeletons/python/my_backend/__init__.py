# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy", "onnx"]
#
# [tool.onnxopt]
# runtime = "numpy"
# unsupported = []
# ///
"""A backend with which onnxopt can test my_backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

__version__ = "0.1.0"

# Replace the functions of NumPy by calls of your implementation.
_OPERATORS: dict[str, Callable[..., Any]] = {
    "Identity": np.copy,
    "Abs": np.abs,
    "Neg": np.negative,
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
}


class Backend:
    """Runs models node by node."""

    def run(self, model: onnx.ModelProto, inputs: dict[str, Any]) -> list[Any]:
        """Return the graph's outputs, in the graph's order.

        Args:
            model: a copy of the model, which may be changed.
            inputs: the value of every input without an initializer, by name. Do not write into the
                inputs. Tensors are NumPy arrays, sequences are lists, and maps are dicts. An
                optional is its value, or None.

        Raises:
            NotImplementedError: if the model needs a feature that is not implemented. onnxopt then
                tries a model of primitive operators, or counts the case as unsupported. Any other
                exception counts as an error.
        """
        values = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        values |= inputs
        for node in model.graph.node:
            if node.domain not in {"", "ai.onnx"} or node.op_type not in _OPERATORS:
                raise NotImplementedError(f"{node.domain or 'ai.onnx'}:{node.op_type}")
            operands = [values[name] for name in node.input]
            values[node.output[0]] = np.asarray(_OPERATORS[node.op_type](*operands))
        return [values[output.name] for output in model.graph.output]
