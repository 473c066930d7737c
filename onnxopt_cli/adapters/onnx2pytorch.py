# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = [
#     "torch==2.13.0", "torchvision==0.28.0", "onnx2pytorch==0.6.0",
#     "onnx==1.23.2", "numpy==2.4.6",
# ]
#
# [tool.onnxopt]
# runtime = ["onnx2pytorch", "torch"]
# unsupported = ["Couldn't load (custom C\\+\\+ ops|the image extension)"]
# ///
"""onnx2pytorch on the CPU.

onnx2pytorch raises NotImplementedError for operators, versions and attributes that it lacks, and
keeps string tensors as NumPy arrays.
"""

import numpy as np
import torch

from onnxopt_cli.backends.glue.torch_support import from_torch, import_torchvision, to_torch

import_torchvision()
import onnx2pytorch  # noqa: E402 - imports torchvision


def _argument(value):
    """Return strings as they are, and values of other types as torch tensors."""
    is_string = isinstance(value, np.ndarray) and value.dtype.hasobject
    return value if is_string else to_torch(value)


class Backend:
    """Converts each model and runs it without gradients."""

    def run(self, model, inputs):
        """Return the outputs of a model, in the graph's order."""
        module = onnx2pytorch.ConvertModel(model).eval()
        with torch.no_grad():
            returned = module(*map(_argument, inputs.values()))
        return from_torch(returned if len(model.graph.output) > 1 else [returned])
