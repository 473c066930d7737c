"""A command that runs models with onnx's reference evaluator, but lacks the training operators."""

from __future__ import annotations

import json
import sys

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator


def main():
    """Respond to requests until shutdown."""
    for line in sys.stdin.buffer:
        request = json.loads(line)
        payload = sys.stdin.buffer.read(request.get("bytes", 0))
        if request["request"] == "shutdown":
            return
        response, data = (hello(), b"") if request["request"] == "hello" else run(request, payload)
        response = {"id": request["id"], "bytes": len(data), **response}
        sys.stdout.buffer.write(json.dumps(response).encode() + b"\n" + data)
        sys.stdout.flush()


def hello():
    return {
        "protocol": "onnxopt-exec/2",
        "name": "reference",
        "version": onnx.__version__,
        "domains": {"ai.onnx": [1, 21]},
        "dtypes": ["float32", "float64", "int64"],
        "devices": ["CPU"],
    }


def run(request, payload):
    place = request["model"]
    model = onnx.load_from_string(payload[:place])
    inputs = {}
    for tensor in request["inputs"]:
        value = tensor["value"]
        dtype, count = np.dtype(value["dtype"]), int(np.prod(value["shape"]))
        array = np.frombuffer(payload, dtype, count, place).reshape(value["shape"])
        inputs[tensor["name"]] = array
        place += array.nbytes
    outputs = [np.asarray(output) for output in ReferenceEvaluator(model).run(None, inputs)]
    described = [{"dtype": output.dtype.name, "shape": output.shape} for output in outputs]
    return {"outputs": described}, b"".join(output.tobytes() for output in outputs)


main()
