"""Run a small model when a backend starts, so that a missing device or tool prevents the start."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnxopt_cli.core.values import Value


class _Backend(Protocol):
    def run(self, model: onnx.ModelProto, inputs: dict[str, Value]) -> Any: ...


def run_small_model(backend: _Backend) -> None:
    """Run a model with one Relu; the exceptions of the runtime propagate.

    Without the check, a runtime that lacks a driver would start, and every case would be recorded
    as an error of the runtime.
    """
    shape = [1, 2]
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "start",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    backend.run(model, {"x": np.array([[-1, 2]], np.float32)})
