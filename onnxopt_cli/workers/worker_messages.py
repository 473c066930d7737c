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
from collections.abc import Container
from typing import Any

import onnx

from onnxopt_cli.backends.host import (
    FAILURES,
    Request,
    Response,
)
from onnxopt_cli.config.run_config import LoweringMode
from onnxopt_cli.core.codec import (
    LARGEST_PAYLOAD,
    ValueReader,
    ValueWriter,
    pack,
    read_run,
    run_request,
)
from onnxopt_cli.core.result import Outcome
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import (
    BackendUnavailable,
    OnnxoptError,
    ProtocolBreach,
    UnusableOutput,
    UsageError,
)
from onnxopt_cli.workers.shared_memory import (
    ALIGNMENT,
    fill,
    mapped,
    taken,
)

# Of what a backend says of its version, no more is shown.
_LONGEST_VERSION = 400
_START_ERRORS = {"usage": UsageError, "unavailable": BackendUnavailable}


def hello(backend: str, lowering: LoweringMode) -> dict[str, Any]:
    """Return the first request to a worker: which backend it is to run, and how."""
    return {"request": "hello", "backend": backend, "lowering": lowering.value}


def refusal(error: OnnxoptError) -> dict[str, Any]:
    """Return a worker's first answer, if its backend did not start."""
    kind = "usage" if isinstance(error, UsageError) else "unavailable"
    return {"refusal": kind, "message": error.message, "hint": error.hint}


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
            what, how = (printable(text, lines=True) for text in (what, how))
            raise _START_ERRORS[kind](what, hint=how)
    raise ProtocolBreach("did not say that its backend is ready")


def pack_request(request: Request, model: bytes) -> tuple[dict[str, Any], ValueWriter]:
    """Return the message for a request, whose model is already serialised, and its values.

    Raises:
        UnusableOutput: if the inputs cannot be sent.
    """
    settings = {"collect": request.collect, "keep": request.keep, "most": most_bytes(request)}
    return run_request(model, request.inputs, **settings)


def most_bytes(request: Request) -> int:
    """Return how many bytes an answer may share: more than any, and than twice a right one."""
    return max(LARGEST_PAYLOAD, 2 * request.expected_bytes)


def read_request(message: Any, payload: memoryview, given: int = -1) -> Request:
    """Return what :func:`pack_request` was given.

    Args:
        message: the request.
        payload: its raw bytes.
        given: the file in memory with the values where there are no raw bytes; -1 for none.
    """
    own = None
    if given >= 0 and "shared" in message:
        payload, others = (mapped(given, message["shared"]) for _ in range(2))
        model, inputs = read_run(message, payload, ALIGNMENT)
        _, own = read_run(message, others, ALIGNMENT)
    else:
        model, inputs = read_run(message, payload)
    settings = {name: message[name] for name in ("collect", "keep")}
    return Request(
        onnx.ModelProto.FromString(bytes(model)), inputs, writable_inputs=own, **settings
    )


def pack_answer(
    number: int, response: Response, returned: int = -1, most: int = LARGEST_PAYLOAD
) -> list[memoryview]:
    """Return a worker's answer to a request to run a case.

    Args:
        number: of the request.
        response: what the backend did.
        returned: the file in memory for large values; -1 for none.
        most: bytes that may be in it.
    """
    values = ValueWriter()
    answer = {"id": number, "seconds": response.seconds, "lowered": response.lowered}
    if response.outputs is not None:
        try:
            outputs = [values.put(value) for value in response.outputs]
            said: dict[str, Any] = {"outputs": outputs, "changed": response.changed}
            if size := fill(returned, values.buffers, most):
                said["shared"] = size
                values.buffers.clear()
            return values.message({**answer, **said})
        except UnusableOutput as error:
            response = Response(failure=Outcome.ERROR, message=f"of its outputs, {error.message}")
    said = {"failure": response.failure, "message": response.message, "earlier": response.earlier}
    return pack({**answer, **said})


def read_answer(
    message: Any,
    payload: memoryview,
    inputs: Container[str],
    returned: int = -1,
    most: int = LARGEST_PAYLOAD,
) -> Response:
    """Return a worker's answer to a request to run a case.

    Args:
        message: the answer.
        payload: its raw bytes.
        inputs: names of the inputs that it was given.
        returned: the file in memory with the values where there are no raw bytes; -1 for none.
        most: bytes that may be in it.

    Raises:
        ProtocolBreach: if it is not an answer.
    """
    reader = ValueReader(payload)
    if "shared" in message:
        reader.end()
        payload = taken(returned, message.pop("shared"), most)
        reader = ValueReader(payload, ALIGNMENT)
    match message:
        case {
            "outputs": list(outputs),
            "lowered": bool(lowered),
            "changed": list(changed),
            "seconds": float(seconds),
        } if len(message) == 4 and math.isfinite(seconds) and set(map(type, changed)) <= {str}:  # noqa: PLR2004
            values = [reader.value(described) for described in outputs]
            reader.end()
            names = tuple(dict.fromkeys(changed))
            if not all(name in inputs for name in names):
                raise ProtocolBreach("says that it changed inputs that it did not get")
            return Response(values, lowered=lowered, changed=names, seconds=seconds)
        case {
            "failure": _,
            "message": _,
            "earlier": bool(earlier),
            "lowered": bool(lowered),
            "seconds": float(seconds),
        } if len(message) == 5 and math.isfinite(seconds):  # noqa: PLR2004
            reader.end()
            failure, text = read_failure(message)
            return Response(None, failure, text, lowered, earlier, seconds=seconds)
    raise ProtocolBreach("sent an answer with neither outputs nor a failure")


def read_failure(message: Any) -> tuple[Outcome, str]:
    """Return what a worker says of a failure: of a case, or when it ended.

    Raises:
        ProtocolBreach: if it says something else.
    """
    match message:
        case {"failure": str(failure), "message": str(text)} if failure in FAILURES:
            return Outcome(failure), printable(text, lines=True)
    raise ProtocolBreach("spoke without being asked")
