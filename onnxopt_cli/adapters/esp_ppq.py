# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["torch==2.13.0", "esp-ppq==1.3.12", "onnx==1.19.1", "numpy==2.4.6"]
#
# [tool.onnxopt]
# runtime = ["esp-ppq", "torch"]
# unsupported = [
#     'Numpy type \w+ is not included in ppq now',
#     'has no backend implementation',
#     'We will implement it soon',
#     "No module named 'mmcv'",
# ]
# ///
"""esp-ppq's executor on torch, in float32 on the CPU, without quantization.

If an operator raises an exception, the executor wraps it; the adapter raises the original
exception.
"""

import tempfile
from pathlib import Path

from esp_ppq.api import load_onnx_graph
from esp_ppq.executor import TorchExecutor

from onnxopt_cli.backends.glue.torch_support import from_torch, to_torch


class Backend:
    """Reads each model from a file and runs its operators."""

    def run(self, model, inputs):
        """Return the outputs of a model, in the graph's order."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.onnx")
            path.write_bytes(model.SerializeToString())
            graph = load_onnx_graph(str(path))
        executor = TorchExecutor(graph, fp16_mode=False, device="cpu")
        arguments = {name: to_torch(value) for name, value in inputs.items()}
        names = [output.name for output in model.graph.output]
        # The parser may remove an Identity node at the end of the graph, and rename the output.
        requested = names if len(names) > 1 else None
        try:
            return from_torch(executor.forward(arguments, requested))
        except RuntimeError as error:
            # The message "Op Execution Error" names the operator but not the reason.
            if error.__cause__ is None:
                raise
            raise error.__cause__ from None
