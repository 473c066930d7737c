# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["wonnx==0.5.1", "onnx==1.23.2", "numpy==2.4.6"]
#
# [tool.onnxopt]
# runtime = "wonnx"
# unsupported = [
#     'NotSupported\(',
#     'NotRecognized\(',
#     'Unsupported\(',
#     'UnimplementedOp\(',
#     'UnknownOpset\(',
#     'not yet implemented',
# ]
# system-packages = { debian = ["libvulkan1", "mesa-vulkan-drivers"] }
# ///
"""wonnx on a Vulkan device, for example Mesa's lavapipe on the CPU.

The Python interface of wonnx exchanges flat lists, so outputs get the shapes that the model
declares.
"""

import numpy as np
import wonnx

from onnxopt_cli.backends.glue.plain_tensors import require_tensors
from onnxopt_cli.backends.glue.start_check import run_small_model


class Backend:
    """Opens a session for each model."""

    def __init__(self):
        run_small_model(self)

    def run(self, model, inputs):
        """Return the outputs of a model, in the graph's order."""
        require_tensors(inputs)
        session = wonnx.Session.from_bytes(model.SerializeToString())
        results = session.run({name: value.ravel().tolist() for name, value in inputs.items()})
        outputs = []
        for output in model.graph.output:
            shape = [dimension.dim_value for dimension in output.type.tensor_type.shape.dim]
            array = np.array(results[output.name], dtype=np.float32)
            outputs.append(array.reshape(shape) if array.size == np.prod(shape) else array)
        return outputs
