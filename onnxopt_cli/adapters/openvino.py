# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["openvino==2026.4.1", "onnx==1.23.2", "numpy==2.4.6"]
#
# [tool.onnxopt]
# runtime = "openvino"
# unsupported = [
#     "No conversion rule found for operations",
#     "CPU plug-in doesn't support",
#     "is not supported",
#     "is only supported for",
#     "Unsupported padding mode",
# ]
# ///
"""OpenVINO on the CPU, with the precision of the model and one thread."""

import openvino

from onnxopt_cli.backends.glue.plain_tensors import require_numpy_types

# On some processors the default precision is bfloat16.
_PROPERTIES = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}


class Backend:
    """Compiles each model for the CPU."""

    def __init__(self):
        self._core = openvino.Core()

    def run(self, model, inputs):
        """Return the outputs of a model, in the graph's order."""
        require_numpy_types(model)
        network = self._core.read_model(model.SerializeToString())
        compiled = self._core.compile_model(network, "CPU", _PROPERTIES)
        # The conversion removes inputs on which no output depends.
        names = {name for port in compiled.inputs for name in port.names}
        used = {name: array for name, array in inputs.items() if name in names}
        results = compiled.create_infer_request().infer(used)
        return [results[output] for output in compiled.outputs]
