# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["onnxslim==0.1.98", "onnxruntime==1.32.0", "onnx==1.23.2", "numpy==2.4.6"]
#
# [tool.onnxopt]
# runtime = ["onnxslim", "onnxruntime"]
# ///
"""onnxslim's optimizer, then ONNX Runtime without optimizations of its own."""

import onnxslim

from onnxopt_cli.backends.glue.onnxruntime_run import run_onnxruntime


class Backend:
    """Optimizes each model before it runs."""

    def run(self, model, inputs):
        """Return the outputs of a model, in the graph's order."""
        return run_onnxruntime(onnxslim.slim(model), inputs, "disable_all")
