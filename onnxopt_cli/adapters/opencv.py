# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["opencv-python-headless==5.0.0.93", "onnx==1.23.2", "numpy==2.4.6"]
#
# [tool.onnxopt]
# runtime = "opencv-python-headless"
# unsupported = [
#     '-213:The function/feature is not implemented',
#     '-210:Unsupported format or combination of formats',
#     'Can.t create layer .* of type',
#     'blob data type = \w+ is not supported',
# ]
# ///
"""OpenCV's dnn module on the CPU."""

import cv2
import numpy as np

from onnxopt_cli.backends.glue.plain_tensors import require_tensors


class Backend:
    """Reads each model as a network."""

    def run(self, model, inputs):
        """Return the outputs of a model, in the graph's order."""
        require_tensors(inputs)
        buffer = np.frombuffer(model.SerializeToString(), dtype=np.uint8)
        network = cv2.dnn.readNetFromONNX(buffer)
        for name, value in inputs.items():
            network.setInput(value, name)
        return network.forward([output.name for output in model.graph.output])
