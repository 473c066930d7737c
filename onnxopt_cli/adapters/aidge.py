# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = [
#     "aidge-core==0.10.1", "aidge-backend-cpu==0.10.1", "aidge-onnx==0.10.1",
#     "onnx==1.23.2", "numpy==2.4.6",
# ]
#
# [tool.onnxopt]
# runtime = ["aidge-core", "aidge-backend-cpu", "aidge-onnx"]
# unsupported = [
#     'not implemented yet',
#     'Unsupported python type passed to Tensor',
#     'ONNX DataType \d+ has no Aidge equivalent',
#     'missing or invalid registrar key',
# ]
# ///
"""Aidge on the CPU.

The inputs become initializers, because Aidge reads values such as shapes and axes only from
initializers. Aidge imports an unknown operator as a generic operator, which cannot run.
"""

import aidge_backend_cpu  # noqa: F401 - registers the kernels
import aidge_core
import aidge_onnx
import numpy as np
import onnx

from onnxopt_cli.backends.glue.plain_tensors import require_tensors

aidge_core.Log.set_console_level(aidge_core.Level.Fatal)


class Backend:
    """Imports each model as a graph and runs its nodes in sequence."""

    def run(self, model, inputs):
        """Return the outputs of a model, in the graph's order."""
        require_tensors(inputs)
        for name, value in inputs.items():
            model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
        del model.graph.input[:]
        graph = aidge_onnx.convert_onnx_to_aidge(model)
        graph.set_backend("cpu")
        graph.forward_dtype()
        graph.forward_dims(allow_data_dependency=True)
        aidge_core.SequentialScheduler(graph).forward()
        outputs = graph.get_ordered_outputs()
        return [np.array(node.get_operator().get_output(index)) for node, index in outputs]
