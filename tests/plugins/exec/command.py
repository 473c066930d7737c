"""A command that follows the protocol onnxopt-exec/2 and copies inputs.

An argument selects a fault.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

MODE = sys.argv[1] if len(sys.argv) > 1 else "copies"
HELLO = {
    "protocol": "onnxopt-exec/2",
    "name": "copier",
    "version": "1.0",
    "domains": {"ai.onnx": [1, 21]},
    "dtypes": ["float32", "float64", "int64", "string"],
    "devices": ["CPU", "GPU:0"],
}


def main():
    """Respond to requests until shutdown."""
    with contextlib.suppress(BrokenPipeError):
        for line in sys.stdin.buffer:
            request = json.loads(line)
            payload = sys.stdin.buffer.read(request.get("bytes", 0))
            if request["request"] == "hello":
                respond_to_hello(request)
            elif request["request"] == "run":
                respond_to_run(request, payload[request["model"] :])
            elif request["request"] == "shutdown":
                end()


def respond_to_hello(request):
    hello = {"id": request["id"], **HELLO}
    if MODE == "hello-error":
        hello = {"id": request["id"], "error": "no licence\x1b[31m"}
    elif MODE == "hello-dies":
        sys.exit(3)
    elif MODE == "hello-hangs":
        time.sleep(60)
    elif MODE == "hello-without-version":
        del hello["version"]
    elif MODE == "hello-differs":
        hello["version"] = str(os.getpid())
    elif MODE.startswith("hello="):
        hello |= json.loads(MODE.removeprefix("hello="))
    send(hello)


def respond_to_run(request, payload):
    number = request["id"]
    if MODE in RESPONSES:
        send({"id": number, **RESPONSES[MODE]})
    elif MODE in LINES:
        sys.stdout.buffer.write(LINES[MODE].replace(b"#", str(number).encode()))
        sys.stdout.flush()
    elif MODE == "hello-differs":
        sys.exit(7)
    elif MODE in ACTIONS:
        ACTIONS[MODE](request, payload)
    else:
        copy(request, payload)


def copy(request, payload):
    outputs = [tensor["value"] for tensor in request["inputs"]]
    send({"id": request["id"], "outputs": outputs}, payload)


def send(response, payload=b""):
    sys.stdout.buffer.write(
        json.dumps({**response, "bytes": len(payload)}).encode() + b"\n" + payload
    )
    sys.stdout.buffer.flush()


def end():
    if MODE == "ends-badly":
        sys.exit(9)
    if MODE == "never-ends":
        time.sleep(60)
    sys.exit(0)


def once(action):
    """Perform an action only in the first case, even if several processes run cases."""

    def at_first(request, payload):
        marker = Path(sys.argv[2])
        if marker.exists():
            return copy(request, payload)
        marker.touch()
        return action(request, payload)

    return at_first


def respond_twice(request, payload):
    copy(request, payload)
    send({"id": request["id"], "outputs": []})


RESPONDED = []


def repeat_earlier_response(request, payload):
    marker = Path(sys.argv[2])
    if RESPONDED and not marker.exists():
        marker.touch()
        send({"id": RESPONDED[-1], "outputs": []})
    RESPONDED.append(request["id"])
    copy(request, payload)


def respond_and_print(request, payload):
    copy(request, payload)
    time.sleep(0.05)
    sys.stdout.write("done!\n")
    sys.stdout.flush()


def respond_and_die(request, payload):
    copy(request, payload)
    os._exit(0)


def respond_and_die_slowly(request, payload):
    copy(request, payload)
    time.sleep(0.5)
    os._exit(0)


def close_output(_request, _payload):
    os.close(1)
    time.sleep(60)


def write_double(request, _payload):
    send({"id": request["id"], "outputs": [{"dtype": "float64", "shape": [1]}]}, bytes(8))


def record(request, payload):
    Path(sys.argv[2]).write_text(json.dumps({**request, "payload": payload.hex()}))
    copy(request, payload)


def die(_request, _payload):
    os._exit(7)


def leave_daemons(_request, _payload):
    """Start a process that outlives this one, and kill the supervisor that would end it."""
    status = Path(f"/proc/{os.getppid()}/status").read_text()
    supervisor = int(status.partition("PPid:")[2].split()[0])
    if not os.fork():
        os.setsid()
        if not os.fork():
            os.closerange(0, 256)
            time.sleep(300)
        os._exit(0)
    os.wait()
    os.kill(supervisor, signal.SIGKILL)
    time.sleep(60)


def segfault(_request, _payload):
    os.kill(os.getpid(), signal.SIGSEGV)


RESPONSES = {
    "unsupported": {"unsupported": "cannot do it", "operator": ":Neg"},
    "unsupported-without-operator": {"unsupported": "cannot do it"},
    "error": {"error": "out of \x1b[31mluck"},
    "empty-error": {"error": ""},
    "unknown-field": {"outputs": [], "seconds": 1},
    "two-responses": {"outputs": [], "error": "and a failure"},
    "empty-response": {},
    "outputs-no-list": {"outputs": "y"},
    "no-outputs": {"outputs": []},
    "too-few-bytes": {"outputs": [{"dtype": "float32", "shape": [1]}]},
    "much": {"outputs": [{"dtype": "float32", "shape": [1 << 40]}]},
    "negative": {"outputs": [{"dtype": "float32", "shape": [-1]}]},
    "no-dtype": {"outputs": [{"dtype": "object", "shape": [1]}]},
    "a-file": {"outputs": ["output_0.pb"]},
    "strings-missing": {"outputs": [{"dtype": "string", "shape": [2], "data": ["a"]}]},
}
LINES = {
    "garbage": b"hello there\n",
    "not-utf-8": b'{"id": #, "error": "\xff"}\n',
    "a-list": b"[#]\n",
    "nan": b'{"id": #, "error": NaN}\n',
    "field-twice": b'{"id": #, "error": "a", "error": "b"}\n',
    "other-id": b'{"id": 99, "outputs": []}\n',
    "true-id": b'{"id": true, "outputs": []}\n',
    "text-id": b'{"id": "99", "outputs": []}\n',
    "no-id": b'{"outputs": []}\n',
    "nested": b'{"id": ' + b"[" * 500_000 + b"\n",
    "too-long": b"{" + b" " * (16 << 20) + b"\n",
    "never-ending-line": b"{" * (20 << 20),
    "many-parts": b'{"id": [' + b"0," * (3 << 20) + b"0]}\n",
    "bytes-of-an-error": b'{"id": #, "error": "no", "bytes": 1}\n!',
    "bytes-of-unsupported": b'{"id": #, "unsupported": "no", "bytes": 1}\n!',
    "too-many-bytes": b'{"id": #, "outputs": [], "bytes": 1}\n!',
    "huge": b'{"id": #, "outputs": [], "bytes": 2147483648}\n',
    "negative-bytes": b'{"id": #, "outputs": [], "bytes": -1}\n',
    "bytes-no-number": b'{"id": #, "outputs": [], "bytes": "8"}\n',
    "stops-midway": b'{"id": #, "outputs": [], "bytes": 8}\nfour',
    "empty-line": b"\n",
}
ACTIONS = {
    "dies": once(die),
    "segfaults": once(segfault),
    "leaves-daemons": once(leave_daemons),
    "hangs": once(lambda _request, _payload: time.sleep(60)),
    "stops": once(lambda _request, _payload: os.kill(os.getpid(), signal.SIGSTOP)),
    "breaks-once": once(lambda _request, _payload: send({"id": -1})),
    "closes-output": close_output,
    "responds-twice": respond_twice,
    "repeats-earlier-response": repeat_earlier_response,
    "prints-after-response": respond_and_print,
    "responds-and-dies": respond_and_die,
    "responds-and-dies-slowly": respond_and_die_slowly,
    "double": write_double,
    "records": record,
}

main()
