# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["onnxruntime==1.32.0", "onnx==1.23.2", "numpy==2.4.6"]
#
# [tool.onnxopt]
# runtime = "onnxruntime"
# ///
"""ONNX Runtime on the CPU with its optimizations, in a version that the environment pins.

The backend ``onnxruntime`` tests the version that is installed beside onnxopt.
"""

from onnxopt_cli.backends.glue.onnxruntime_run import run_onnxruntime


class Backend:
    """Opens a session for each model."""

    def run(self, model, inputs):
        """Return the outputs of a model, in the graph's order."""
        return run_onnxruntime(model, inputs)
