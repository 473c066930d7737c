"""Messages between the runner and a worker, and shared memory for their large values.

A worker receives the model, the inputs and the settings of the run, but never the expected result.
The runner validates every message of a worker. It identifies the backend by the worker's channel,
not by the content of messages.

The backend runs in the worker's process, so the backend can send every message that the worker can
send. A secret in the hello message would not help, because the backend could read it. A deceptive
backend can therefore misreport the following facts:

- its version;
- whether it ran primitive operators, and whether it modified its inputs;
- its running time.

A backend can neither pass with wrong outputs nor respond in the name of another backend.

**Shared memory.** Each worker has two files in memory, which the runner creates: one for inputs,
one for outputs. The files have no names, so nothing remains of them when the last process that
holds them ends, for any reason. On systems that lack files in memory, or space for such files,
values pass through the channel.

The runner reads the files instead of mapping them into its memory. A worker that truncates or
modifies its file therefore cannot crash the runner, which merely reads fewer bytes or different
bytes. The worker maps its input file twice, with private pages. If the backend modifies a page of
one mapping, only a copy of the page changes. The worker compares the two mappings to detect inputs
that the backend modified.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import numpy as np
import onnx

from onnxopt_cli.backends.host import (
    FAILURES,
    Request,
    Response,
)
from onnxopt_cli.config.run_config import Limits, LoweringMode
from onnxopt_cli.core.blocks import room
from onnxopt_cli.core.codec import (
    LARGEST_PAYLOAD,
    ValueReader,
    ValueWriter,
    pack,
    read_run,
    run_request,
)
from onnxopt_cli.core.result import Outcome
from onnxopt_cli.core.text import exception_text, printable
from onnxopt_cli.errors import (
    BackendUnavailable,
    OnnxoptError,
    ProtocolBreach,
    UnusableOutput,
    UsageError,
)

_MAX_VERSION_CHARS = 400
_START_ERRORS = {"usage": UsageError, "unavailable": BackendUnavailable}
_MAX_OPSET = 1000
_OWN_CODE_FAILED = (
    "code of onnxopt in the worker failed; the backend may have changed Python or a library"
)
# Numbers of fields in a response with outputs and in a response with a failure.
_OUTPUT_FIELDS, _FAILURE_FIELDS = 5, 6

#: The least number of bytes of values in shared memory; smaller values pass through the channel.
MIN_SHARED_BYTES = 1 << 20
# The alignment in bytes of each buffer in shared memory, which suits elements of any type.
_ALIGNMENT = 64


def hello(backend: str, lowering: LoweringMode, limits: Limits) -> dict[str, Any]:
    """Return the first request to a worker: the backend, when to lower models, and the limits."""
    return {
        "request": "hello",
        "backend": backend,
        "lowering": lowering.value,
        "limits": asdict(limits),
    }


def refusal(error: OnnxoptError) -> dict[str, Any]:
    """Return a worker's response to the hello if its backend did not start."""
    kind = "usage" if isinstance(error, UsageError) else "unavailable"
    return {"refusal": kind, "message": error.message, "hint": error.hint}


def read_ready(message: Any) -> str:
    """Return the version from a worker's response to the hello, as one short line.

    Raises:
        UsageError: if the backend does not exist.
        BackendUnavailable: if the backend does not start.
        ProtocolBreach: if the message is not a response to a hello.
    """
    match message:
        case {"ready": str(version)} if len(message) == 1:
            return printable(version[:_MAX_VERSION_CHARS])
        case {
            "refusal": ("usage" | "unavailable") as kind,
            "message": str(text),
            "hint": str(hint),
        }:
            text, hint = printable(text, lines=True), printable(hint, lines=True)
            raise _START_ERRORS[kind](text, hint=hint)
    raise ProtocolBreach("did not report that its backend is ready")


def pack_request(request: Request, model: bytes) -> tuple[dict[str, Any], ValueWriter]:
    """Return the message for a request, and the values of the request.

    The argument ``model`` is the serialised model.

    Raises:
        UnusableOutput: if the inputs cannot be sent.
    """
    settings = {
        "collect": request.collect,
        "keep": request.keep,
        "most": max_response_bytes(request),
    }
    return run_request(model, request.inputs, **settings)


def max_response_bytes(request: Request) -> int:
    """Return the largest accepted size of a response: at least twice the expected size."""
    return max(LARGEST_PAYLOAD, 2 * request.expected_bytes)


def read_request(message: Any, payload: memoryview, input_file: int = -1) -> Request:
    """Return the request that a message of :func:`pack_request` contains.

    Args:
        message: the message.
        payload: its raw bytes.
        input_file: descriptor of the file in memory with the values, if the payload is empty; -1
            without such a file.
    """
    writable_inputs = None
    if input_file >= 0 and "shared" in message:
        payload, copy = (_map_buffers(input_file, message["shared"]) for _ in range(2))
        model, inputs = read_run(message, payload, _ALIGNMENT)
        _, writable_inputs = read_run(message, copy, _ALIGNMENT)
    else:
        model, inputs = read_run(message, payload)
    settings = {name: message[name] for name in ("collect", "keep")}
    parsed_model = onnx.ModelProto.FromString(bytes(model))
    return Request(parsed_model, inputs, writable_inputs=writable_inputs, **settings)


def pack_response(
    number: int, response: Response, output_file: int = -1, limit: int = LARGEST_PAYLOAD
) -> list[memoryview]:
    """Return the message for a worker's response.

    Args:
        number: the number of the request.
        response: the response.
        output_file: descriptor of the file in memory for large values; -1 without such a file.
        limit: the largest size of the file.
    """
    values = ValueWriter()
    message: dict[str, Any] = {
        "id": number,
        "seconds": response.seconds,
        "lowered": response.lowered,
        "opset": response.opset,
    }
    if response.outputs is not None:
        try:
            outputs = [values.put(value) for value in response.outputs]
            output_fields: dict[str, Any] = {"outputs": outputs, "changed": response.changed}
            if size := write_buffers(output_file, values.buffers, limit):
                output_fields["shared"] = size
                values.buffers.clear()
            return values.message({**message, **output_fields})
        except UnusableOutput as error:
            response = Response(failure=Outcome.ERROR, message=f"of its outputs, {error.message}")
    failure_fields = {
        "failure": response.failure,
        "message": response.message,
        "earlier": response.earlier,
    }
    return pack({**message, **failure_fields})


def pack_own_failure(number: int, error: Exception) -> list[memoryview]:
    """Return the message for a request on which code of onnxopt failed in the worker.

    Args:
        number: the number of the request.
        error: the error.
    """
    if isinstance(error, MemoryError):
        return pack_response(number, Response(failure=Outcome.OOM, message=exception_text(error)))
    # An earlier case may have caused the failure, so a new worker runs the case again.
    message = f"{_OWN_CODE_FAILED}: {exception_text(error)}"
    return pack_response(number, Response(failure=Outcome.CRASH, message=message, earlier=True))


def read_response(
    message: Any,
    payload: memoryview,
    inputs: Container[str],
    output_file: int = -1,
    limit: int = LARGEST_PAYLOAD,
) -> Response:
    """Return the response that a worker's message contains.

    Args:
        message: the message.
        payload: its raw bytes.
        inputs: names of the inputs of the request.
        output_file: descriptor of the file in memory with the values, if the payload is empty; -1
            without such a file.
        limit: the largest size of the file.

    Raises:
        ProtocolBreach: if the message is not a response.
    """
    reader = ValueReader(payload)
    if "shared" in message:
        reader.end()
        payload = _take_buffers(output_file, message.pop("shared"), limit)
        reader = ValueReader(payload, _ALIGNMENT)
    match message:
        case {
            "outputs": list(outputs),
            "lowered": bool(lowered),
            "changed": list(changed),
            "seconds": float(seconds),
            "opset": int(opset),
        } if (
            len(message) == _OUTPUT_FIELDS
            and 0 <= opset <= _MAX_OPSET
            and math.isfinite(seconds)
            and set(map(type, changed)) <= {str}
        ):
            values = [reader.value(described) for described in outputs]
            reader.end()
            names = tuple(dict.fromkeys(changed))
            if not all(name in inputs for name in names):
                raise ProtocolBreach("reports changes of inputs that it did not receive")
            return Response(
                values, lowered=lowered, changed=names, seconds=seconds, opset=int(opset)
            )
        case {
            "failure": _,
            "message": _,
            "earlier": bool(earlier),
            "lowered": bool(lowered),
            "seconds": float(seconds),
            "opset": int(opset),
        } if (
            len(message) == _FAILURE_FIELDS and math.isfinite(seconds) and 0 <= opset <= _MAX_OPSET
        ):
            reader.end()
            failure, text = read_failure(message)
            return Response(
                None, failure, text, lowered, earlier, seconds=seconds, opset=int(opset)
            )
    raise ProtocolBreach("sent a response with neither outputs nor a failure")


def read_failure(message: Any) -> tuple[Outcome, str]:
    """Return the failure that a worker reports for a request or during its shutdown.

    Raises:
        ProtocolBreach: if the message does not report a failure.
    """
    match message:
        case {"failure": str(failure), "message": str(text)} if failure in FAILURES:
            return Outcome(failure), printable(text, lines=True)
    raise ProtocolBreach("sent a message that was not requested")


def create_memory_file() -> int:
    """Return the descriptor of a new file in memory; -1 if the system has none."""
    with suppress(AttributeError, OSError):
        return os.memfd_create("onnxopt")
    return -1


def write_buffers(
    descriptor: int, buffers: Sequence[bytes | memoryview], limit: float = float("inf")
) -> int:
    """Replace the content of a file in memory with buffers.

    Args:
        descriptor: the descriptor of the file; -1 without a file.
        buffers: the buffers, in order.
        limit: the largest size of the file.

    Returns:
        The size of the file; 0 if the buffers are small, exceed the limit, or do not fit into
        memory.
    """
    sizes = [memoryview(buffer).nbytes for buffer in buffers]
    aligned_size = sum(size + -size % _ALIGNMENT for size in sizes)
    if descriptor < 0 or sum(sizes) < MIN_SHARED_BYTES or aligned_size > limit:
        return 0
    offset = 0
    try:
        os.ftruncate(descriptor, 0)
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            while view:
                count = os.pwrite(descriptor, view, offset)
                offset, view = offset + count, view[count:]
            offset += -offset % _ALIGNMENT
        os.ftruncate(descriptor, offset)
    except OSError:
        os.ftruncate(descriptor, 0)
        return 0
    return offset


def _take_buffers(descriptor: int, size: object, limit: int) -> memoryview:
    """Return the content of a worker's output file, and empty the file.

    Args:
        descriptor: the descriptor of the file; -1 without a file.
        size: the size that the worker reports.
        limit: the largest accepted size.

    Raises:
        ProtocolBreach: if the file is smaller than reported, or the size exceeds the limit.
    """
    if descriptor < 0 or type(size) is not int or not 0 < size <= limit:
        raise ProtocolBreach(f"announced shared memory of a size outside of 1 to {limit} bytes")
    content, offset = room(size, np.dtype(np.uint8)).data, 0
    while offset < size and (count := os.preadv(descriptor, [content[offset:]], offset)):
        offset += count
    if offset < size:
        raise ProtocolBreach(f"shared less than the {size} bytes that it announced")
    os.ftruncate(descriptor, 0)
    return content


def _map_buffers(descriptor: int, size: int) -> memoryview:
    """Map a worker's input file; pages that the worker modifies become private copies."""
    return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY))
