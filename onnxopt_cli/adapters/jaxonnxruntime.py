# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = [
#     "jaxonnxruntime==0.3.0", "jax==0.10.2", "absl-py==2.5.1",
#     "onnx==1.23.2", "numpy==2.4.6",
# ]
#
# [tool.onnxopt]
# runtime = ["jaxonnxruntime", "jax"]
# ///
"""jaxonnxruntime on the CPU, with 64-bit types; it may treat inputs as constants.

The settings are those of jaxonnxruntime's own tests of ONNX's cases.
"""

import jax
import numpy as np
from jaxonnxruntime import call_onnx, config

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_enable_x64", True)
config.update("jaxort_only_allow_initializers_as_static_args", False)


class Backend:
    """Converts each model to a function of JAX."""

    def run(self, model, inputs):
        """Return the outputs of a model, in the graph's order."""
        function, parameters = call_onnx.call_onnx_model(model, inputs)
        return [np.asarray(output) for output in function(parameters, inputs)]
