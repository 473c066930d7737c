# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = [
#     "torch==2.13.0", "torchvision==0.28.0", "onnx2fx==0.0.1",
#     "onnx==1.23.2", "numpy==2.4.6",
# ]
#
# [tool.onnxopt]
# runtime = ["onnx2fx", "torch"]
# unsupported = [
#     '^(UnsupportedOpError|UnsupportedDTypeError): ',
#     "Couldn't load custom C\\+\\+ ops",
# ]
# ///
"""onnx2fx on the CPU; a few operators import torchvision when they are called."""

import onnx2fx
import torch

from onnxopt_cli.backends.glue.torch_support import from_torch, import_torchvision, to_torch

import_torchvision()


class Backend:
    """Converts each model and runs it without gradients."""

    def run(self, model, inputs):
        """Return the outputs of a model, in the graph's order."""
        module = onnx2fx.convert(model).eval()
        with torch.no_grad():
            returned = module(*map(to_torch, inputs.values()))
        return from_torch(returned if len(model.graph.output) > 1 else [returned])
