"""A command that supports LeakyRelu in float32, with Python's standard library only."""

from __future__ import annotations

import json
import struct
import sys

HELLO = {
    "protocol": "onnxopt-exec/2",
    "name": "nodes",
    "version": "1.0",
    "domains": {"ai.onnx": [6, 21], "ai.onnx.preview.training": [1, 1]},
    "dtypes": ["float32", "int64"],
    "devices": ["CPU"],
    "form": "node",
}


def main():
    """Respond to requests until shutdown."""
    for line in sys.stdin.buffer:
        request = json.loads(line)
        payload = sys.stdin.buffer.read(request.get("bytes", 0))
        if request["request"] == "shutdown":
            return
        response, data = (HELLO, b"") if request["request"] == "hello" else run(request, payload)
        response = {"id": request["id"], "bytes": len(data), **response}
        sys.stdout.buffer.write(json.dumps(response).encode() + b"\n" + data)
        sys.stdout.buffer.flush()


def run(request, payload):
    node = request["node"]
    if node["op_type"] != "LeakyRelu":
        missing = "{domain}:{op_type}".format(**node).replace("ai.onnx:", ":")
        return {"unsupported": f"no {node['op_type']}", "operator": missing}, b""
    assert "model" not in request
    assert (node["domain"], node["inputs"], node["outputs"]) == ("ai.onnx", ["X"], ["Y"])
    slope = node["attributes"].get("alpha", 0.01)
    elements = struct.unpack(f"<{len(payload) // 4}f", payload)
    scaled = [x if x >= 0 else slope * x for x in elements]
    return {"outputs": [request["inputs"][0]["value"]]}, struct.pack(f"<{len(scaled)}f", *scaled)


main()
