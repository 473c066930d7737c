"""What a worker process runs: a backend, asked one case after the other over a private socket.

Standard input is empty; standard output and error belong to the backend. The worker ends, as any
Python program does, when the channel closes.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress

from onnxopt_cli.workers.processes import limit_memory
from onnxopt_cli.workers.supervisor import fork_supervisor


def main(channel: int, given: int, returned: int, runner: int, memory: int, folder: str) -> None:
    """Serve until the channel closes.

    Args:
        channel: the descriptor of the worker's end of the socket.
        given: the descriptor of the file in memory with large values that are given; -1 for none.
        returned: likewise of the file for those that are returned.
        runner: the runner's process id.
        memory: bytes that this process may hold, or 0.
        folder: where temporary files go; made here.
    """
    fork_supervisor(runner, channel, folder)
    limit_memory(memory)
    # Ctrl-C is for the runner to handle; a backend that interrupts its own main thread must not
    # end the worker.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    for descriptor in (channel, given, returned):
        if descriptor >= 0:
            # What the backend starts is not to have it.
            os.set_inheritable(descriptor, False)
    # At the end of the requests the runner is gone, or wants no more of this process.
    with socket.socket(fileno=channel) as connection, suppress(EOFError):
        _serve(connection, given, returned)


def _serve(connection: socket.socket, given: int, returned: int) -> None:
    # The supervisor is forked before anything heavy is imported.
    from onnxopt_cli.backends.host import Host, Response
    from onnxopt_cli.config.run_config import LoweringMode
    from onnxopt_cli.core.codec import MessageReader, pack
    from onnxopt_cli.core.result import Outcome
    from onnxopt_cli.errors import BackendUnavailable, OnnxoptError
    from onnxopt_cli.operators.native_onnx import die_with_models
    from onnxopt_cli.workers import worker_messages

    def send(message: Sequence[memoryview]) -> None:
        for part in message:
            connection.sendall(part)

    die_with_models()
    reader = MessageReader()
    message, _ = reader.receive(connection.recv_into)
    number, text = message["id"], message["backend"]
    try:
        host = Host(text, LoweringMode(message["lowering"]))
    except (OnnxoptError, KeyboardInterrupt) as error:
        said = f"backend {text} raises KeyboardInterrupt while it starts"
        refused = error if isinstance(error, OnnxoptError) else BackendUnavailable(said)
        send(pack({"id": number, **worker_messages.refusal(refused)}))
        return
    send(pack({"id": number, "ready": host.version}))
    while True:
        message, payload = reader.receive(connection.recv_into)
        if message["request"] == "shutdown":
            break
        request = worker_messages.read_request(message, payload, given)
        try:
            response = host.respond(request)
        except KeyboardInterrupt:
            # Only the backend can have raised it here.
            response = Response(failure=Outcome.ERROR, message="KeyboardInterrupt")
        if response.printed:
            # The backend may have closed it, or put something else in its place in sys.
            with suppress(OSError):
                os.write(2, f"{response.printed}\n".encode("utf-8", "replace"))
        answer = worker_messages.pack_answer(message["id"], response, returned, message["most"])
        collects = request.collect or "shared" in message
        # Large values that are still held when the answer is there look like a leak, and the case
        # runs again; an exception of the backend may hold them in a circle.
        del request, response, payload
        if collects:
            gc.collect()
        send(answer)
        del answer
    if trouble := host.close():
        failure, text = trouble
        send(pack({"id": message["id"], "failure": failure, "message": text}))
