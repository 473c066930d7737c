"""Reject values that a runtime's Python interface cannot exchange as arrays."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto

from onnxopt_cli.core.values import Value
from onnxopt_cli.errors import Unsupported

_NUMPY_TYPES = {
    TensorProto.BOOL, TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE,
    TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64,
    TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64,
}  # fmt: skip


def require_tensors(inputs: Mapping[str, Value]) -> None:
    """Reject inputs that are sequences, maps or absent optional values.

    Raises:
        Unsupported: if an input is not a tensor; the message names the input.
    """
    for name, value in inputs.items():
        if not isinstance(value, np.ndarray):
            raise Unsupported(f"input {name} is not a tensor")


def require_numpy_types(model: onnx.ModelProto) -> None:
    """Reject a model if an input or output is not a tensor of a real type that NumPy has.

    Raises:
        Unsupported: if there is such an input or output; the message names it.
    """
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type not in _NUMPY_TYPES:
            written = onnx.helper.printable_type(value.type)
            raise Unsupported(f"{value.name} is not a tensor of a NumPy type: {written}")
