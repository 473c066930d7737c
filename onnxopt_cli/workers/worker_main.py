"""The main program of a worker process: runs requests from a private socket on a backend.

Standard input is empty; standard output and error belong to the backend. When the socket closes,
the worker exits like any Python program.
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


def main(
    channel: int, input_file: int, output_file: int, runner: int, memory: int, folder: str
) -> None:
    """Serve requests until the channel closes.

    Args:
        channel: the descriptor of the worker's end of the socket.
        input_file: the descriptor of the file in memory with large inputs; -1 without such a file.
        output_file: the descriptor of the file in memory for large outputs; -1 without such a file.
        runner: the runner's process id.
        memory: limit of this process's memory in bytes, or 0.
        folder: the folder for temporary files; created here.
    """
    fork_supervisor(runner, channel, folder)
    limit_memory(memory)
    # The runner handles Ctrl-C, and a backend that interrupts its own main thread must not end the
    # worker.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    for descriptor in (channel, input_file, output_file):
        if descriptor >= 0:
            # Processes that the backend starts must not inherit it.
            os.set_inheritable(descriptor, False)
    # EOFError: the runner has ended, or has closed the channel.
    with socket.socket(fileno=channel) as connection, suppress(EOFError):
        _serve(connection, input_file, output_file)


def _serve(connection: socket.socket, input_file: int, output_file: int) -> None:
    # Imported here so that the supervisor is forked before large modules are loaded.
    from onnxopt_cli.backends.host import Host, Response
    from onnxopt_cli.backends.specification import parse_specification
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
        host = Host(parse_specification(text), LoweringMode(message["lowering"]))
    except (OnnxoptError, KeyboardInterrupt) as error:
        interrupted = BackendUnavailable(f"backend {text} raises KeyboardInterrupt while it starts")
        refusal = error if isinstance(error, OnnxoptError) else interrupted
        send(pack({"id": number, **worker_messages.refusal(refusal)}))
        return
    send(pack({"id": number, "ready": host.version}))
    while True:
        message, payload = reader.receive(connection.recv_into)
        if message["request"] == "shutdown":
            break
        request = worker_messages.read_request(message, payload, input_file)
        try:
            response = host.respond(request)
        except KeyboardInterrupt:
            # SIGINT is ignored, so the backend has raised it.
            response = Response(failure=Outcome.ERROR, message="KeyboardInterrupt")
        if response.printed:
            # The backend may have replaced or closed sys.stderr.
            with suppress(OSError):
                os.write(2, f"{response.printed}\n".encode("utf-8", "replace"))
        answer = worker_messages.pack_response(
            message["id"], response, output_file, message["most"]
        )
        must_collect = request.collect or "shared" in message
        # If the worker still held large values when the response arrives, the runner would suspect
        # a leak and run the case again. An exception of the backend may hold them in a cycle.
        del request, response, payload
        if must_collect:
            gc.collect()
        send(answer)
        del answer
    if trouble := host.close():
        failure, text = trouble
        send(pack({"id": message["id"], "failure": failure, "message": text}))
