# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["tinygrad==0.14.0", "onnx==1.23.2", "numpy==2.4.6"]
#
# [tool.onnxopt]
# runtime = "tinygrad"
# system-packages = { debian = ["clang"] }
# unsupported = [
#     'is not a valid (OnnxDataType|Domain)',
# ]
# ///
"""tinygrad on the CPU; it compiles its kernels with clang."""

import os

os.environ.setdefault("DEV", "CPU")

from tinygrad import Tensor
from tinygrad.nn.onnx import OnnxRunner

from onnxopt_cli.backends.glue.start_check import run_small_model


def _array(value):
    return [_array(element) for element in value] if isinstance(value, list) else value.numpy()


class Backend:
    """Parses and runs each model."""

    def __init__(self):
        run_small_model(self)

    def run(self, model, inputs):
        """Return the outputs of a model, in the graph's order."""
        outputs = OnnxRunner(Tensor(model.SerializeToString(), device="PYTHON"))(inputs)
        return [_array(outputs[output.name]) for output in model.graph.output]
