# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["apache-tvm==0.27.0.post1", "onnx==1.23.2", "numpy==2.4.6"]
#
# [tool.onnxopt]
# runtime = "apache-tvm"
# unsupported = [
#     '(is currently un|currently |is not (yet )?)supported',
#     'not supported yet',
# ]
# ///
"""TVM with models imported by its Relax frontend and compiled for the CPU with LLVM."""

import numpy as np
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from onnxopt_cli.backends.glue.plain_tensors import require_tensors


def _value(result):
    """Return an output as an array or a list of arrays; a shape becomes an array of int64."""
    if isinstance(result, tvm.runtime.Tensor):
        return result.numpy()
    if isinstance(result, tvm.runtime.ShapeTuple):
        return np.array(list(result), dtype=np.int64)
    return [_value(element) for element in result]


class Backend:
    """Compiles each model."""

    def run(self, model, inputs):
        """Return the outputs of a model, in the graph's order."""
        require_tensors(inputs)
        if any(value.dtype.hasobject for value in inputs.values()):
            raise NotImplementedError("TVM has no tensors of strings")
        shapes = {name: list(value.shape) for name, value in inputs.items()}
        dtypes = {name: value.dtype.name for name, value in inputs.items()}
        module = from_onnx(model, shapes, dtypes)
        executable = tvm.compile(module, target="llvm")
        machine = relax.VirtualMachine(executable, tvm.cpu())
        result = machine["main"](*map(tvm.runtime.tensor, inputs.values()))
        outputs = _value(result)
        return outputs if len(model.graph.output) > 1 else [outputs]
