# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = [
#     "torch==2.13.0", "torchvision==0.28.0", "onnx2torch==1.5.15",
#     "onnx==1.23.2", "numpy==2.4.6",
# ]
#
# [tool.onnxopt]
# runtime = ["onnx2torch", "torch"]
# unsupported = ["Couldn't load custom C\\+\\+ ops"]
# ///
"""onnx2torch on the CPU.

onnx2torch raises NotImplementedError for operators, versions and attributes that it lacks. The
module that onnx2torch creates returns a list with one value for each node that produces outputs of
the graph. If there is only one such node, the module returns the value itself. The value of a node
is its output, a list of its outputs, or only its first output if onnx2torch does not compute the
others.
"""

import torch

from onnxopt_cli.backends.glue.torch_support import from_torch, import_torchvision, to_torch

import_torchvision()
import onnx2torch  # noqa: E402 - imports torchvision


class Backend:
    """Converts each model and runs it without gradients."""

    def run(self, model, inputs):
        """Return the outputs of a model, in the graph's order."""
        module = onnx2torch.convert(model).eval()
        with torch.no_grad():
            returned = module(*map(to_torch, inputs.values()))
        names = [output.name for output in model.graph.output]
        nodes = {name: node for node in model.graph.node for name in node.output}
        # onnx creates a new object at each access to a node, so identify a node by its first
        # output.
        order = list(dict.fromkeys(nodes[name].output[0] for name in names))
        values = dict(zip(order, returned if len(order) > 1 else [returned], strict=True))
        outputs = {}
        for first, value in values.items():
            produced = nodes[first].output
            if len(produced) > 1 and isinstance(value, (list, tuple)):
                outputs.update(zip(produced, value, strict=False))
            else:
                outputs[first] = value
        return from_torch([outputs.get(name) for name in names])
