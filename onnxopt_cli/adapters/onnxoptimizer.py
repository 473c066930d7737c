# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["onnxoptimizer==0.4.2", "onnxruntime==1.32.0", "onnx==1.23.2", "numpy==2.4.6"]
#
# [tool.onnxopt]
# runtime = ["onnxoptimizer", "onnxruntime"]
# ///
"""The default passes of onnxoptimizer, then ONNX Runtime without optimizations of its own."""

import onnxoptimizer

from onnxopt_cli.backends.onnxruntime.onnxruntime_backend import OnnxRuntimeBackend
from onnxopt_cli.backends.specification import Specification

_OPTIONS = {"graph_optimization_level": "disable_all"}


class Backend:
    """Optimizes a model, and runs it on the CPU."""

    def __init__(self):
        specification = Specification("onnxruntime", "onnxruntime", options=_OPTIONS)
        self._onnxruntime = OnnxRuntimeBackend(specification)

    def run(self, model, inputs):
        """Return the outputs of a model, in the graph's order."""
        return self._onnxruntime.prepare(onnxoptimizer.optimize(model)).run(inputs)
