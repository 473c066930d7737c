"""Run ONNX Runtime in the interpreter of an adapter, with or without its optimizations."""

from __future__ import annotations

from functools import cache
from typing import Any

import onnx

from onnxopt_cli.backends.onnxruntime_backend import OnnxRuntimeBackend
from onnxopt_cli.backends.specification import Specification
from onnxopt_cli.core.values import Value


def run_onnxruntime(
    model: onnx.ModelProto,
    inputs: dict[str, Value],
    graph_optimization_level: str = "enable_all",
) -> Any:
    """Return the outputs of a model on the CPU.

    Args:
        model: the model.
        inputs: values by name; values of inputs that an optimizer has removed are ignored.
        graph_optimization_level: with ``disable_all``, ONNX Runtime does not change the model, so
            that a failure is due to the optimizer that the adapter called earlier.

    Raises:
        Unsupported: if ONNX Runtime reports an unsupported feature.
    """
    names = {graph_input.name for graph_input in model.graph.input}
    values = {name: value for name, value in inputs.items() if name in names}
    return _backend(graph_optimization_level).prepare(model).run(values)


@cache
def _backend(graph_optimization_level: str) -> OnnxRuntimeBackend:
    options = {"graph_optimization_level": graph_optimization_level}
    return OnnxRuntimeBackend(Specification("onnxruntime", "onnxruntime", options=options))
