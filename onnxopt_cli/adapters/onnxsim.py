# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["onnxsim==0.8.1", "onnxruntime==1.32.0", "onnx==1.23.2", "numpy==2.4.6"]
#
# [tool.onnxopt]
# runtime = ["onnxsim", "onnxruntime"]
# ///
"""onnxsim's simplifier, then ONNX Runtime without optimizations of its own.

The simplifier computes constant nodes with ONNX Runtime, and optimizes with onnxoptimizer.
"""

import onnxsim

from onnxopt_cli.backends.glue.onnxruntime_run import run_onnxruntime


class Backend:
    """Simplifies each model before it runs."""

    def run(self, model, inputs):
        """Return the outputs of a model, in the graph's order."""
        simplified, _ = onnxsim.simplify(model)
        return run_onnxruntime(simplified, inputs, "disable_all")
