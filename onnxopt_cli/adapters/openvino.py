# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["openvino==2026.4.1", "onnx==1.23.2", "numpy==2.4.6"]
#
# [tool.onnxopt]
# runtime = "openvino"
# unsupported = [
#   "No conversion rule found for operations",
#   "CPU plug-in doesn't support",
#   "is not supported",
#   "is only supported for",
#   "Unsupported padding mode",
# ]
# ///
"""OpenVINO on the CPU, with the precision of the model and one thread."""

import openvino
from onnx import TensorProto

# On some processors the default precision is bfloat16.
_PROPERTIES = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
# Element types that the Python interface exchanges as arrays of NumPy's own types.
_ELEMENT_TYPES = {
    TensorProto.BOOL, TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE,
    TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64,
    TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64,
}  # fmt: skip


class Backend:
    """Compiles each model for the CPU."""

    def __init__(self):
        self._core = openvino.Core()

    def run(self, model, inputs):
        """Return the outputs of a model, in the graph's order."""
        for value in (*model.graph.input, *model.graph.output):
            if value.type.tensor_type.elem_type not in _ELEMENT_TYPES:
                raise NotImplementedError(f"the type of {value.name}: {value.type}")
        network = self._core.read_model(model.SerializeToString())
        compiled = self._core.compile_model(network, "CPU", _PROPERTIES)
        # A converted model lacks the inputs that its outputs do not depend on.
        names = {name for port in compiled.inputs for name in port.names}
        used = {name: array for name, array in inputs.items() if name in names}
        results = compiled.create_infer_request().infer(used)
        return [results[output] for output in compiled.outputs]
