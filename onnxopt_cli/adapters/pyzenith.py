# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["pyzenith==0.3.5", "onnx==1.23.2", "numpy==2.4.6"]
#
# [tool.onnxopt]
# runtime = "pyzenith"
# ///
"""pyzenith's interpreter of ONNX on the CPU; it rejects operators that it lacks."""

from zenith.adapters.onnx_adapter import ONNXAdapter
from zenith.execution.interpreter import ONNXInterpreter


class Backend:
    """Interprets each model."""

    def run(self, model, inputs):
        """Return the outputs of a model by name."""
        graph = ONNXAdapter().from_model(model)
        return ONNXInterpreter(graph, device="cpu", strict=True)(**inputs)
