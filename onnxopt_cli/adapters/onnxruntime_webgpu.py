# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["onnxruntime-webgpu==1.27.0", "onnx==1.23.2", "numpy==2.4.6"]
#
# [tool.onnxopt]
# runtime = "onnxruntime-webgpu"
# system-packages = { debian = ["libvulkan1", "chromium-common"] }
# ///
"""ONNX Runtime's WebGPU execution provider, on a Vulkan device.

Mesa's lavapipe 22.3 lacks a feature that the provider requires. SwiftShader, a part of Chromium, is
a Vulkan device on the CPU: ``VK_ICD_FILENAMES=/usr/lib/chromium/vk_swiftshader_icd.json`` selects
it.

The session forbids nodes to run on ONNX Runtime's own CPU provider. Therefore, a model is
unsupported if the WebGPU provider does not support one of its nodes.
"""

import onnxruntime

from onnxopt_cli.backends.glue.start_check import run_small_model
from onnxopt_cli.backends.onnxruntime_backend import unsupported_by_onnxruntime
from onnxopt_cli.backends.protocol import reporting


class Backend:
    """Opens a session for each model."""

    def __init__(self):
        run_small_model(self)

    @reporting(unsupported_by_onnxruntime)
    def run(self, model, inputs):
        """Return the outputs of a model, in the graph's order."""
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        session = onnxruntime.InferenceSession(
            model.SerializeToString(),
            options,
            providers=["WebGpuExecutionProvider"],
            enable_fallback=0,
        )
        return session.run(None, inputs)
