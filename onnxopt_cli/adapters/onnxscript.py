# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["onnxscript==0.7.2", "onnxruntime==1.32.0", "onnx==1.23.2", "numpy==2.4.6"]
#
# [tool.onnxopt]
# runtime = ["onnxscript", "onnxruntime"]
# ///
"""onnxscript's optimizer, then ONNX Runtime without optimizations of its own."""

import onnxscript.optimizer

from onnxopt_cli.backends.glue.onnxruntime_run import run_onnxruntime


class Backend:
    """Optimizes each model before it runs."""

    def run(self, model, inputs):
        """Return the outputs of a model, in the graph's order."""
        return run_onnxruntime(onnxscript.optimizer.optimize(model), inputs, "disable_all")
