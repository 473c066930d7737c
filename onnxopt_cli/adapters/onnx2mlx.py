# /// script
# requires-python = ">=3.12,<3.14"
# dependencies = ["onnx2mlx==0.0.5", "mlx[cpu]==0.32.4", "onnx==1.23.2", "numpy==2.4.6"]
#
# [tool.onnxopt]
# runtime = ["onnx2mlx", "mlx"]
# unsupported = [
#     'Unsupported ONNX data type',
#     '\[\w+\] Unsupported type',
# ]
# ///
"""onnx2mlx with MLX on the CPU."""

import ml_dtypes
import mlx.core as mx
import numpy as np
from onnx2mlx import convert_to_mlx

mx.set_default_device(mx.cpu)


def _argument(value):
    """Return an input as an array of MLX of the same type."""
    if value is None:
        return None
    if isinstance(value, list):
        return [_argument(element) for element in value]
    name = value.dtype.name
    if name == "bfloat16":
        return mx.array(value.view(np.uint16)).view(mx.bfloat16)
    dtype = getattr(mx, "bool_" if name == "bool" else name, None)
    if not isinstance(dtype, mx.Dtype):
        raise NotImplementedError(f"MLX has no arrays of type {name}")
    return mx.array(value, dtype=dtype)


def _value(output):
    """Return an output as an array or a list of arrays."""
    if isinstance(output, (list, tuple)):
        return [_value(element) for element in output]
    if output.dtype == mx.bfloat16:
        return np.array(output.view(mx.uint16)).view(ml_dtypes.bfloat16)
    return np.array(output)


class Backend:
    """Converts each model to a function of MLX."""

    def run(self, model, inputs):
        """Return the outputs of a model, in the graph's order."""
        returned = convert_to_mlx(model)(*map(_argument, inputs.values()))
        outputs = returned if len(model.graph.output) > 1 else [returned]
        return [_value(output) for output in outputs]
