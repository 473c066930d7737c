# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["onnx==1.23.2", "numpy==2.4.6"]
#
# [tool.onnxopt]
# runtime = "onnx"
# unsupported = ["No implementation for", "is not implemented"]
# ///
"""onnx's reference implementation, in a version that the environment pins.

The backend ``onnx-reference`` tests the version that is installed beside onnxopt.
"""

from onnx.reference import ReferenceEvaluator


class Backend:
    """Interprets each model."""

    def run(self, model, inputs):
        """Return the outputs of a model, in the graph's order."""
        return ReferenceEvaluator(model).run(None, inputs)
