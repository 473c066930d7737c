# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["onnxruntime-ggml==0.2.0", "onnx==1.23.2", "numpy==2.4.6"]
#
# [tool.onnxopt]
# runtime = ["onnxruntime-ggml", "onnxruntime"]
# unsupported = [
#     ': unsupported: ',
# ]
# ///
"""ggml on the CPU, as an execution provider of ONNX Runtime.

The session forbids nodes to run on ONNX Runtime's own CPU provider. Therefore, a model is
unsupported if ggml does not support one of its nodes.
"""

import onnxruntime
import onnxruntime_ggml

from onnxopt_cli.backends.onnxruntime_backend import unsupported_by_onnxruntime
from onnxopt_cli.backends.protocol import reporting


class Backend:
    """Opens a session for each model."""

    @reporting(unsupported_by_onnxruntime)
    def run(self, model, inputs):
        """Return the outputs of a model, in the graph's order."""
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        session = onnxruntime_ggml.InferenceSession(
            model.SerializeToString(), {"device": "cpu"}, options
        )
        return session.run(None, inputs)
