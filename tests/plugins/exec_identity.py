"""A command that knows Identity and keeps all rules but the one that its argument names."""

from __future__ import annotations

import json
import os
import shutil
import sys
from itertools import count
from pathlib import Path

BREAKS = sys.argv[1] if len(sys.argv) > 1 else ""
KNOWN_FIELDS = {"id", "request", "protocol", "onnxopt", "device", "folder", "model"} | {
    "inputs",
    "outputs",
}
CALLS = count()


def main():
    """Answer requests until told to end."""
    for line in sys.stdin:
        request = json.loads(line)
        if BREAKS == "fields" and set(request) - KNOWN_FIELDS:
            sys.exit("unknown fields")
        if request["request"] == "shutdown":
            sys.exit(3 if BREAKS == "shutdown" else 0)
        answer = hello() if request["request"] == "hello" else run(request)
        number = 0 if BREAKS == "id" and request["request"] == "run" else request["id"]
        sys.stdout.write(json.dumps({"id": number, **answer}) + "\n")
        if BREAKS == "chatter" and request["request"] == "run":
            sys.stdout.write("done\n")
        sys.stdout.flush()
    sys.exit(4 if BREAKS == "end-of-input" else 0)


def hello():
    return {
        "protocol": "onnxopt-exec/1",
        "name": "identity",
        "version": "1.0",
        "domains": {"ai.onnx": [18, 20]},
        "dtypes": ["FLOAT", "INT64"],
        "devices": ["CPU"],
    }


def run(request):
    folder = Path(request["folder"])
    model = (folder / request["model"]).read_bytes()
    (source,), (target,) = request["inputs"], request["outputs"]
    data = (folder / source["file"]).read_bytes()
    if b'"\x08Identity' not in model:
        return refuse(model)
    # A TensorProto begins with its dims; field 1 of value 0 is an empty one.
    if (
        (BREAKS == "empty" and data.startswith(b"\x08\x00"))
        or (BREAKS == "large" and len(data) > 1 << 20)
        or (BREAKS == "names" and not source["name"].isascii())
    ):
        os.abort()
    output = folder / target["file"]
    shutil.copy(folder / source["file"], output)
    if BREAKS == "alike" and len(data) > 20:
        output.write_bytes(data[:-1] + bytes([next(CALLS) % 2]))
    elif BREAKS == "type":
        # One double.
        output.write_bytes(bytes([8, 1, 16, 11, 74, 8]) + bytes(8))
    elif BREAKS == "folder":
        moved = folder.parent / "elsewhere.pb"
        shutil.move(output, moved)
        return {"outputs": [str(moved)]}
    return {"outputs": [target["file"]]}


def refuse(model):
    damaged = model.startswith(b"\xff")
    if damaged and BREAKS == "damaged":
        os.abort()
    if damaged or BREAKS == "unsupported":
        return {"error": "cannot run this"}
    return {"unsupported": "only Identity is known"}


main()
