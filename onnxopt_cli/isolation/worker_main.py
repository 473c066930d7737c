"""What a worker process runs: a backend, asked one case after the other over a private socket.

Standard input is empty; standard output and error belong to the backend. The worker ends, as any
Python program does, when the channel closes.
"""

from __future__ import annotations

import faulthandler
import gc
import signal
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from onnxopt_cli.isolation.keeper import stand_between
from onnxopt_cli.isolation.processes import limit_memory

# The keeper is forked before anything heavy is imported.
if TYPE_CHECKING:
    from onnxopt_cli.backends.lowering import Kept, LoweringMode
    from onnxopt_cli.backends.protocol import Backend
    from onnxopt_cli.isolation.messages import Order
    from onnxopt_cli.isolation.response import Response


def main(channel: int, runner: int, memory: int, folder: str) -> None:
    """Serve until the channel closes.

    Args:
        channel: the descriptor of the worker's end of the socket.
        runner: the runner's process id.
        memory: bytes that this process may hold, or 0.
        folder: where temporary files go; made here.
    """
    stand_between(runner, channel, folder)
    limit_memory(memory)
    # Ctrl-C is for the runner to handle; a backend that interrupts its own main thread must not
    # end the worker.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    with socket.socket(fileno=channel) as connection:
        connection.set_inheritable(False)
        _serve(connection)


def _serve(connection: socket.socket) -> None:
    from onnxopt_cli.backends.resolve import resolve_backend
    from onnxopt_cli.errors import BackendUnavailable, OnnxoptError
    from onnxopt_cli.isolation import messages
    from onnxopt_cli.isolation.response import keeping, tear_down

    hello = _receive(connection)
    if hello is None:
        return
    text, lowering = messages.read_hello(hello[0])
    try:
        backend = resolve_backend(text)
        ready = messages.pack_ready(backend.version)
    except OnnxoptError as error:
        _send(connection, messages.pack_refusal(error))
        return
    except OSError as error:
        # What the machine lacks or does not allow, folders for temporary files for one.
        refusal = BackendUnavailable(f"backend {text} does not start: {error}")
        _send(connection, messages.pack_refusal(refusal))
        return
    except KeyboardInterrupt:
        refusal = BackendUnavailable(f"backend {text} raises KeyboardInterrupt while it starts")
        _send(connection, messages.pack_refusal(refusal))
        return
    _send(connection, ready)
    kept = None
    while (frame := _receive(connection)) is not None:
        order = messages.read_order(*frame)
        kept = keeping(kept, order.model) if order.keep else None
        response = _respond(backend, order, lowering, kept)
        if order.collect:
            gc.collect()
        _send(connection, messages.pack_answer(order.number, response))
    trouble = tear_down(backend)
    if trouble is not None:
        _send(connection, messages.pack_farewell(*trouble))


def _respond(backend: Backend, order: Order, lowering: LoweringMode, kept: Kept | None) -> Response:
    from onnxopt_cli.core.outcome import Outcome
    from onnxopt_cli.isolation.response import Response, respond

    try:
        return respond(backend, order.model, order.inputs, lowering, kept)
    except KeyboardInterrupt:
        # Nobody but the backend can have raised it here.
        return Response(failure=Outcome.ERROR, message="KeyboardInterrupt")


def _receive(connection: socket.socket) -> tuple[Any, memoryview] | None:
    """Return the next frame; None if the runner has closed the channel."""
    from onnxopt_cli.isolation.frames import FrameReader

    reader = FrameReader()
    while True:
        count = connection.recv_into(reader.buffer())
        if not count:
            return None
        frame = reader.received(count)
        if frame is not None:
            return frame


def _send(connection: socket.socket, frame: Sequence[memoryview]) -> None:
    for part in frame:
        connection.sendall(part)
