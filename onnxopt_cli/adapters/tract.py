# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["tract==0.23.9", "onnx==1.23.2", "numpy==2.4.6"]
#
# [tool.onnxopt]
# runtime = "tract"
# unsupported = [
#     "Unimplemented",
#     "is not supported",
#     "Unsupported mode",
#     "shape input is variable",
#     "to be a known scalar|must be a known scalar",
#     '(?i)\b(expects?|expected|needs?|must be|are not|typable only if)\b[^\n]*\bconst(ants?)?\b',
# ]
# ///
"""tract, with the optimizations of its command line."""

import os
import tempfile
from pathlib import Path

import numpy as np
import tract

from onnxopt_cli.backends.glue.plain_tensors import require_numpy_types

# Exclude stack traces from the messages of errors, even if RUST_BACKTRACE is 1. The messages of
# panics still contain stack traces.
os.environ.setdefault("RUST_LIB_BACKTRACE", "0")


class Backend:
    """Compiles each model for the shapes of its inputs."""

    def __init__(self):
        self._onnx = tract.onnx()

    def run(self, model, inputs):
        """Return the outputs of a model, in the graph's order."""
        require_numpy_types(model)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.onnx")
            path.write_bytes(model.SerializeToString())
            network = self._onnx.load(path)
        names = [network.input_name(place) for place in range(network.input_count())]
        for place, name in enumerate(names):
            network.set_input_fact(place, _fact(inputs[name]))
        runnable = network.into_model().into_runnable()
        outputs = runnable.run([tract.Tensor.from_numpy(inputs[name]) for name in names])
        return [_array(output) for output in outputs]


def _array(tensor):
    try:
        return tensor.to_numpy()
    except tract.TractError as error:
        # Computed dimensions have the type TDim, which NumPy lacks. Convert the tensor to int64.
        if "TDim" not in str(error):
            raise
        return tensor.convert_to(tract.DatumType.I64).to_numpy()


def _fact(array):
    """Return the shape and element type of an array in tract's syntax, such as ``2,3,f32``."""
    kind = "bool" if array.dtype == np.bool_ else f"{array.dtype.kind}{8 * array.dtype.itemsize}"
    return ",".join([*map(str, array.shape), kind])
