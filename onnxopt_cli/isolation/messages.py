"""What the runner and a worker say to each other; both ends of each message stand here.

A worker is never told what is expected: only the model, the inputs and how to run them. What it
says is taken apart strictly, and which backend it is the runner knows without asking.

The backend lives in the worker's process, so it can say all that a worker can. No secret in the
hello would change that: the backend could read it. What remains, for one that is built to deceive:

- It can say another version than its own.
- It can say that it was not given primitive operators, or that it did not write into its inputs.
- It can say that it was faster.

What it cannot do is to pass with other outputs than the right ones, or in another backend's name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import onnx

from onnxopt_cli.backends.lowering import LoweringMode
from onnxopt_cli.core.result import Outcome
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import (
    BackendUnavailable,
    OnnxoptError,
    ProtocolBreach,
    UnusableOutput,
    UsageError,
)
from onnxopt_cli.isolation.frames import PayloadReader, PayloadWriter, pack
from onnxopt_cli.isolation.response import Order, Response

# What a worker may report of itself; all else is seen from outside.
_REPORTED = frozenset(
    {
        Outcome.UNSUPPORTED,
        Outcome.SKIP,
        Outcome.ERROR,
        Outcome.OOM,
        Outcome.CRASH,
        Outcome.TIMEOUT,
        Outcome.PROTOCOL,
    }
)
# Of what a backend says of its version, no more is shown.
_LONGEST_VERSION = 400
_START_ERRORS: Mapping[str, type[OnnxoptError]] = {
    "usage": UsageError,
    "unavailable": BackendUnavailable,
}


def pack_hello(backend: str, lowering: LoweringMode) -> list[memoryview]:
    """Return the first frame to a worker: which backend it is to run, and how."""
    return pack({"backend": backend, "lowering": lowering.value})


def read_hello(message: Any) -> tuple[str, LoweringMode]:
    """Return what :func:`pack_hello` was given."""
    return message["backend"], LoweringMode(message["lowering"])


def pack_ready(version: str) -> list[memoryview]:
    """Return a worker's first frame, if its backend started."""
    return pack({"ready": version})


def pack_refusal(error: OnnxoptError) -> list[memoryview]:
    """Return a worker's first frame, if its backend did not start."""
    kind = "usage" if isinstance(error, UsageError) else "unavailable"
    return pack({"refusal": kind, "message": error.message, "hint": error.hint})


def read_ready(message: Any) -> str:
    """Return what a worker's backend says of its implementation and version, as one short line.

    Raises:
        UsageError: if the worker says that there is no such backend.
        BackendUnavailable: if it says that the backend does not start.
        ProtocolBreach: if it says something else.
    """
    match message:
        case {"ready": str(version)} if len(message) == 1:
            return printable(version[:_LONGEST_VERSION])
        case {"refusal": ("usage" | "unavailable") as kind, "message": str(what), "hint": str(how)}:
            raise _START_ERRORS[kind](_text(what), hint=_text(how))
    raise ProtocolBreach("did not say that its backend is ready")


def pack_order(order: Order, model: bytes) -> list[memoryview]:
    """Return the frame of an order, whose model is already serialised.

    Raises:
        UnusableOutput: if the inputs cannot be sent.
    """
    payload = PayloadWriter()
    payload.buffers.append(model)
    inputs = [[name, payload.put(value)] for name, value in order.inputs.items()]
    message = {
        "number": order.number,
        "model": len(model),
        "inputs": inputs,
        "collect": order.collect,
        "keep": order.keep,
    }
    return pack(message, payload.buffers)


def read_order(message: Any, payload: memoryview) -> Order:
    """Return what :func:`pack_order` was given."""
    reader = PayloadReader(payload)
    model = onnx.ModelProto.FromString(bytes(reader.take(message["model"])))
    inputs = {name: reader.value(described) for name, described in message["inputs"]}
    settings = {name: message[name] for name in ("number", "collect", "keep")}
    return Order(model, inputs, **settings)


def pack_answer(number: int, response: Response) -> list[memoryview]:
    """Return the frame of a worker's answer to an order."""
    payload = PayloadWriter()
    outputs = None
    failure, message = response.failure, response.message
    try:
        if response.outputs is not None:
            outputs = [payload.put(value) for value in response.outputs]
            payload.require_acceptable()
    except UnusableOutput as error:
        failure, message, payload = Outcome.ERROR, error.message, PayloadWriter()
    answer = {
        "number": number,
        "outputs": None if failure else outputs,
        "failure": None if failure is None else failure.value,
        "message": message,
        "lowered": response.lowered,
        "changed": list(response.changed),
        "seconds": response.seconds,
    }
    return pack(answer, payload.buffers)


def read_answer(message: Any, payload: memoryview, order: Order) -> Response:
    """Return a worker's answer to an order.

    Raises:
        ProtocolBreach: if it is not an answer, or one to another order.
    """
    match message:
        case {"number": int(number)} if number != order.number:
            raise ProtocolBreach("answered another case than it was asked")
        case {
            "number": int(),
            "outputs": outputs,
            "failure": failure,
            "message": str(text),
            "lowered": bool(lowered),
            "changed": list(changed),
            "seconds": float(seconds),
        } if math.isfinite(seconds) and all(type(name) is str for name in changed):
            changed = list(dict.fromkeys(changed))
        case _:
            raise ProtocolBreach("sent a frame that answers nothing")
    reader = PayloadReader(payload)
    if failure is None and isinstance(outputs, list):
        values = [reader.value(described) for described in outputs]
        reader.end()
        if not order.inputs.keys() >= set(changed):
            raise ProtocolBreach("says that it changed inputs that it did not get")
        return Response(values, lowered=lowered, changed=tuple(changed), seconds=seconds)
    reader.end()
    if type(failure) is not str or failure not in _REPORTED or outputs is not None:
        raise ProtocolBreach("sent an answer with neither outputs nor a failure")
    return Response(failure=Outcome(failure), message=_text(text), seconds=seconds)


def pack_farewell(failure: Outcome, message: str) -> list[memoryview]:
    """Return a worker's last frame, if its backend failed to shut down."""
    return pack({"failure": failure.value, "message": message})


def read_farewell(message: Any) -> tuple[Outcome, str]:
    """Return what :func:`pack_farewell` was given.

    Raises:
        ProtocolBreach: if the worker says something else.
    """
    match message:
        case {"failure": str(failure), "message": str(text)} if failure in _REPORTED:
            return Outcome(failure), _text(text)
    raise ProtocolBreach("spoke without being asked")


def _text(text: str) -> str:
    return printable(text, lines=True)
