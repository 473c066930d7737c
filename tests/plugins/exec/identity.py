"""A command that supports Identity. An optional argument selects a rule that it breaks."""

from __future__ import annotations

import json
import math
import os
import sys
from itertools import count

BREAKS = sys.argv[1] if len(sys.argv) > 1 else ""
KNOWN_FIELDS = {"id", "request", "bytes", "protocol", "onnxopt", "device", "model"} | {
    "inputs",
    "outputs",
}
CALLS = count()


def main():
    """Respond to requests until shutdown."""
    for line in sys.stdin.buffer:
        request = json.loads(line)
        payload = sys.stdin.buffer.read(request.get("bytes", 0))
        if BREAKS == "fields" and set(request) - KNOWN_FIELDS:
            sys.exit("unknown fields")
        if request["request"] == "shutdown":
            sys.exit(3 if BREAKS == "shutdown" else 0)
        response, data = (hello(), b"") if request["request"] == "hello" else run(request, payload)
        number = 0 if BREAKS == "id" and request["request"] == "run" else request["id"]
        response = {"id": number, "bytes": len(data), **response}
        sys.stdout.buffer.write(json.dumps(response).encode() + b"\n" + data)
        if BREAKS == "chatter" and request["request"] == "run":
            sys.stdout.buffer.write(b"done\n")
        sys.stdout.flush()
    sys.exit(4 if BREAKS == "end-of-input" else 0)


def hello():
    return {
        "protocol": "onnxopt-exec/2",
        "name": "identity",
        "version": str(os.getpid()) if BREAKS == "version" else "1.0",
        "domains": {"ai.onnx": [18, 20]},
        "dtypes": ["float32", "int64"],
        "devices": ["CPU"],
    }


def run(request, payload):
    model, data = payload[: request["model"]], payload[request["model"] :]
    (given,) = request["inputs"]
    value = given["value"]
    if b'"\x08Identity' not in model:
        return refuse(model), b""
    if (
        (BREAKS == "empty" and not math.prod(value["shape"]))
        or (BREAKS == "large" and len(data) > 1 << 20)
        or (BREAKS == "names" and not given["name"].isascii())
    ):
        os.abort()
    if BREAKS == "alike" and data:
        data = data[:-1] + bytes([next(CALLS) % 2])
    elif BREAKS == "type":
        return {"outputs": [{"dtype": "float64", "shape": [1]}]}, bytes(8)
    elif BREAKS == "length":
        data += b"!"
    return {"outputs": [value]}, data


def refuse(model):
    damaged = model.startswith(b"\xff")
    if damaged and BREAKS == "damaged":
        os.abort()
    if damaged or BREAKS == "unsupported":
        return {"error": "cannot run this"}
    return {"unsupported": "only Identity is known"}


main()
