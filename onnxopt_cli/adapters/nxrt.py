# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["nxrt==0.1.0.dev6", "onnx==1.23.2", "numpy==2.4.6"]
#
# [tool.onnxopt]
# runtime = "nxrt"
# unsupported = [
#     'unsupported operator \S+: no available execution provider',
#     'unsupported (ONNX model|element type|target dtype)',
#     'has numpy dtype \S+, which nxrt does not support',
#     'has no fixed-width byte layout',
#     'is unsupported (because|by)',
#     'is not implemented by the native CPU kernel',
#     'tensor-only run API received a Sequence',
# ]
# ///
"""nxrt on the CPU; its Python interface takes and returns tensors, but no sequences."""

import nxrt

from onnxopt_cli.backends.glue.plain_tensors import require_tensors


class Backend:
    """Opens a session for each model."""

    def run(self, model, inputs):
        """Return the outputs of a model, in the graph's order."""
        require_tensors(inputs)
        return nxrt.InferenceSession(model.SerializeToString()).run(None, inputs)
