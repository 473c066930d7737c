"""A command that runs models with onnx's reference evaluator, but no training operators."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator


def main():
    """Answer requests until told to end."""
    for line in sys.stdin:
        request = json.loads(line)
        if request["request"] == "shutdown":
            return
        answer = hello() if request["request"] == "hello" else run(request)
        sys.stdout.write(json.dumps({"id": request["id"], **answer}) + "\n")
        sys.stdout.flush()


def hello():
    return {
        "protocol": "onnxopt-exec/1",
        "name": "reference",
        "version": onnx.__version__,
        "domains": {"ai.onnx": [1, 21]},
        "dtypes": ["FLOAT", "DOUBLE", "INT64"],
        "devices": ["CPU"],
    }


def run(request):
    folder = Path(request["folder"])
    model = onnx.load(folder / request["model"])
    inputs = {
        given["name"]: numpy_helper.to_array(onnx.load_tensor(folder / given["file"]))
        for given in request["inputs"]
    }
    outputs = ReferenceEvaluator(model).run(None, inputs)
    for wanted, output in zip(request["outputs"], outputs, strict=True):
        tensor = numpy_helper.from_array(output, wanted["name"])
        (folder / wanted["file"]).write_bytes(tensor.SerializeToString())
    return {"outputs": [wanted["file"] for wanted in request["outputs"]]}


main()
