# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["mnn==3.6.1", "onnx==1.23.2", "numpy==2.4.6"]
#
# [tool.onnxopt]
# runtime = "mnn"
# unsupported = ["These Op Not Support"]
# ///
"""MNN on the CPU.

MNN has no 64-bit integers and no booleans. MNN's converter declares such tensors as int32, and this
adapter exchanges int32 arrays with MNN. The package ``MNN.tools`` must not be imported, because it
calls pip and connects to a server. The adapter calls the native converter that the package wraps.
The native converter does neither.
"""

import os
import sys
import tempfile
from pathlib import Path

import _tools
import numpy as np
import onnx
from MNN import expr, nn

# MNN's types of inputs, by the element type that a model declares.
_TYPES = {
    "float32": (expr.float, np.float32),
    "int32": (expr.int, np.int32),
    "int64": (expr.int, np.int32),
    "bool": (expr.int, np.int32),
    "uint8": (expr.uint8, np.uint8),
}
_WIDENED = {onnx.TensorProto.INT64: np.int64, onnx.TensorProto.BOOL: np.bool_}


def _variable(value):
    """Return an input as a value for MNN."""
    if not isinstance(value, np.ndarray) or value.dtype.name not in _TYPES:
        raise NotImplementedError(
            f"MNN's Python interface has no type for {getattr(value, 'dtype', type(value))}"
        )
    kind, dtype = _TYPES[value.dtype.name]
    return expr.const(value.astype(dtype), list(value.shape), expr.NCHW, kind)


def _array(variable, declared):
    """Return an output of MNN as an array."""
    array = variable.read()
    if array is None:
        raise RuntimeError(f"MNN computed no values of {declared.name}")
    # The array may be a view of memory that MNN frees with the variable.
    array = np.array(array)
    dtype = _WIDENED.get(declared.type.tensor_type.elem_type)
    return array.astype(dtype) if dtype and array.dtype == np.int32 else array


def _convert(model, folder):
    """Convert a model to MNN's format and return the path of the file."""
    source, target = folder / "model.onnx", folder / "model.mnn"
    printed = folder / "printed"
    source.write_bytes(model.SerializeToString())
    sys.stdout.flush()
    stdout = os.dup(1)
    with printed.open("wb") as file:
        os.dup2(file.fileno(), 1)
        try:
            paths = ["--modelFile", str(source), "--MNNModel", str(target)]
            _tools.mnnconvert(["mnnconvert", "-f", "ONNX", *paths, "--bizCode", "onnxopt"])
        finally:
            os.dup2(stdout, 1)
            os.close(stdout)
    if not target.exists():
        raise RuntimeError(printed.read_text(errors="replace"))
    return str(target)


class Backend:
    """Converts each model and loads the result as a module."""

    def run(self, model, inputs):
        """Return the outputs of a model, in the graph's order."""
        arguments = [_variable(value) for value in inputs.values()]
        names = [output.name for output in model.graph.output]
        with tempfile.TemporaryDirectory() as folder:
            path = _convert(model, Path(folder))
            network = nn.load_module_from_file(path, list(inputs), names)
            variables = network.forward(arguments)
            # Variables are computed when they are read.
            return list(map(_array, variables, model.graph.output))
