# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["onnxoptimizer==0.4.2", "onnxruntime==1.32.0", "onnx==1.23.2", "numpy==2.4.6"]
#
# [tool.onnxopt]
# runtime = ["onnxoptimizer", "onnxruntime"]
# ///
"""The default passes of onnxoptimizer, then ONNX Runtime without optimizations of its own."""

import onnxoptimizer

from onnxopt_cli.backends.glue.onnxruntime_run import run_onnxruntime


class Backend:
    """Optimizes each model before it runs."""

    def run(self, model, inputs):
        """Return the outputs of a model, in the graph's order."""
        return run_onnxruntime(onnxoptimizer.optimize(model), inputs, "disable_all")
