"""The main programs of a worker and of its supervisor, a small process between runner and worker.

**The worker** runs requests from a private socket on a backend. Standard input is empty; standard
output and error belong to the backend. When the socket closes, the worker exits like any Python
program.

**The supervisor** runs no code of the backend. The supervisor is the subreaper of all processes
that the worker starts, daemons included. The supervisor kills its descendants when the worker ends,
when the runner sends SIGTERM, or when the runner ends. Afterwards the supervisor removes the
worker's temporary files and ends with the worker's exit code or signal, which tells the runner how
the worker ended. If the backend kills the supervisor, the remaining processes become children of
the runner, because the runner is also a subreaper.

If /proc shows no processes, the supervisor cannot find its descendants. The worker then runs in a
PID namespace, if the supervisor may create one: when the first process of the namespace ends, the
kernel kills all others. Without a namespace, the supervisor kills only the worker's process group.
If /proc shows processes, no PID namespace is created. Few containers allow a process to create one,
and process ids in a namespace would differ from the process ids in /proc.

Supervisors exist only on Linux; on other systems only the worker's process group can be killed.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from onnxopt_cli.core.process_control import (
    become_subreaper,
    begin_pid_namespace,
    end_with,
)
from onnxopt_cli.workers.private_folder import enter_folder, remove_folder
from onnxopt_cli.workers.processes import end_descendants, limit_memory, mark_process, visible

# Seconds that killing may take, because processes may start new processes or stay in a system call.
_KILLING_SECONDS = 60.0


def main(
    channel: int, input_file: int, output_file: int, runner: int, memory: int, folder: str
) -> None:
    """Serve requests until the channel closes.

    Args:
        channel: the descriptor of the worker's end of the socket.
        input_file: the descriptor of the file in memory with large inputs; -1 without such a file.
        output_file: the descriptor of the file in memory for large outputs; -1 without such a file.
        runner: the runner's process id.
        memory: limit of the worker's memory in bytes, or 0.
        folder: the folder for temporary files; created here.

    If a system call fails, the worker prints the reason and exits with 1.
    """
    try:
        _run(channel, input_file, output_file, runner, memory, folder)
    except Exception as error:
        from onnxopt_cli.core.text import exception_text
        from onnxopt_cli.errors import is_debugging

        if is_debugging():
            raise
        # The backend may have replaced or closed sys.stderr.
        with suppress(OSError):
            os.write(2, f"{exception_text(error)}\n".encode())
        sys.exit(1)


def _run(
    channel: int, input_file: int, output_file: int, runner: int, memory: int, folder: str
) -> None:
    _fork_supervisor(runner, channel, folder)
    limit_memory(memory)
    # The runner handles Ctrl-C, and a backend that interrupts its own main thread must not end the
    # worker.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError):
        faulthandler.enable()
    for descriptor in (channel, input_file, output_file):
        if descriptor >= 0:
            # Processes that the backend starts must not inherit the descriptor.
            os.set_inheritable(descriptor, False)
    # With the family and type, Python does not ask the system for them, which a container's filter
    # may forbid. EOFError: the runner has ended, or has closed the channel.
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, channel) as connection,
        suppress(EOFError),
    ):
        _serve(connection, input_file, output_file)


def _serve(connection: socket.socket, input_file: int, output_file: int) -> None:
    # Imported late, so that the supervisor is forked before large modules are loaded.
    from onnxopt_cli.backends.host import Host, Response
    from onnxopt_cli.backends.specification import parse_specification
    from onnxopt_cli.config.run_config import Limits, LoweringMode
    from onnxopt_cli.core.codec import MessageReader, pack
    from onnxopt_cli.core.result import Outcome
    from onnxopt_cli.errors import BackendUnavailable, OnnxoptError
    from onnxopt_cli.operators.native_onnx import die_with_models
    from onnxopt_cli.workers import worker_messages

    def send(message: Sequence[memoryview]) -> None:
        for part in message:
            connection.sendall(part)

    def run_request(message: dict[str, Any], payload: memoryview) -> list[memoryview]:
        """Run a request on the backend, and return the message for the response."""
        request = worker_messages.read_request(message, payload, input_file)
        try:
            response = host.respond(request)
        except KeyboardInterrupt:
            # SIGINT is ignored, so the backend itself has raised KeyboardInterrupt.
            response = Response(failure=Outcome.ERROR, message="KeyboardInterrupt")
        if response.printed:
            # The backend may have replaced or closed sys.stderr.
            with suppress(OSError):
                os.write(2, f"{response.printed}\n".encode("utf-8", "replace"))
        return worker_messages.pack_response(message["id"], response, output_file, message["most"])

    die_with_models()
    reader = MessageReader()
    message, _ = reader.receive(connection.recv_into)
    number, text = message["id"], message["backend"]
    try:
        specification, lowering = parse_specification(text), LoweringMode(message["lowering"])
        host = Host(specification, lowering, Limits(**message["limits"]))
    except (OnnxoptError, KeyboardInterrupt) as error:
        interrupted = BackendUnavailable(f"backend {text} raises KeyboardInterrupt while it starts")
        refusal = error if isinstance(error, OnnxoptError) else interrupted
        send(pack({"id": number, **worker_messages.refusal(refusal)}))
        return
    send(pack({"id": number, "ready": host.version}))
    number = _run_requests(partial(reader.receive, connection.recv_into), run_request, send)
    if trouble := host.close():
        failure, text = trouble
        send(pack({"id": number, "failure": failure, "message": text}))


def _run_requests(
    receive: Callable[[], tuple[dict[str, Any], memoryview]],
    run_request: Callable[[dict[str, Any], memoryview], list[memoryview]],
    send: Callable[[Sequence[memoryview]], None],
) -> int:
    """Run requests until the runner requests a shutdown; return the number of that request."""
    from onnxopt_cli.workers.worker_messages import pack_own_failure

    while True:
        message, payload = receive()
        if message["request"] == "shutdown":
            return int(message["id"])
        try:
            response = run_request(message, payload)
        except Exception as error:  # noqa: BLE001 - the backend may have changed any function
            response = pack_own_failure(message["id"], error)
        # If the worker still held large values when the response arrives, the runner would suspect
        # a leak and run the case again. An exception of the backend may hold the values in a
        # reference cycle.
        del payload
        if message["collect"] or "shared" in message:
            gc.collect()
        send(response)
        del response


def _fork_supervisor(runner: int, channel: int, folder: str) -> None:
    """Become a supervisor, and fork the worker; return only in the worker.

    Args:
        runner: the runner's process id.
        channel: the descriptor of the channel, which only the worker may keep open.
        folder: the worker's folder for temporary files; created here, and removed by the
            supervisor.
    """
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform != "linux":
        if os.getppid() == runner:
            enter_folder(folder)
        return
    mark_process()
    signals = {signal.SIGCHLD, signal.SIGTERM, signal.SIGCONT}
    # The parent process may ignore SIGCHLD; if this process ignored it, too, sigwait would never
    # return it.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    become_subreaper()
    # From this point, the kernel sends SIGCONT when the runner ends. The blocked signal stays
    # pending until _supervise() waits for it, so that everything that is created from here on is
    # removed. SIGCONT also wakes a supervisor that the backend has stopped.
    end_with(runner, signal.SIGCONT)
    lock = enter_folder(folder)
    has_namespace = not visible() and begin_pid_namespace()
    parent = os.getpid()
    status_reader, status_writer = os.pipe() if has_namespace else (-1, -1)
    worker = _fork(folder)
    if worker:
        os.close(channel)
        _supervise(runner, worker, signals, folder, status_reader)
    if has_namespace:
        os.close(status_reader)
        _begin_namespace(signals, channel, status_writer)
        parent = 1
    # A worker without a process group of its own is still found as a descendant.
    with suppress(OSError):
        os.setpgid(0, 0)
    if lock is not None:
        # Only the supervisor keeps the lock on the folder, because a backend could release the
        # lock.
        os.close(lock)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    end_with(parent, signal.SIGKILL)


def _begin_namespace(signals: set[signal.Signals], channel: int, status_writer: int) -> None:
    """Fork the worker from the first process of the namespace, and return in the worker.

    The first process waits for the worker and sends its status to the supervisor. The worker cannot
    be the first process itself, because the kernel ignores most signals to the first process.
    """
    # A parent outside the namespace has process id 0.
    end_with(0, signal.SIGKILL)
    worker = _fork("")
    if not worker:
        os.close(status_writer)
        return
    os.close(channel)
    status = None
    while status is None:
        signal.sigwait(signals)
        status = _reap(worker)
    os.write(status_writer, b"%d" % status)
    os._exit(0)


def _fork(folder: str) -> int:
    """Fork; if the system allows no more processes, print a message, clean up and exit."""
    try:
        return os.fork()
    except OSError as error:
        reason = f"the system allows no more processes: {error.strerror}"
        _exit_with_message(f"{reason}; see ulimit -u, or use -j 1", folder)


def _exit_with_message(message: str, folder: str) -> NoReturn:
    os.write(2, f"{message}\n".encode())
    remove_folder(folder)
    os._exit(1)


def _supervise(
    runner: int, worker: int, signals: set[signal.Signals], folder: str, status_reader: int
) -> NoReturn:
    status: int | None = None
    while status is None:
        try:
            received = signal.sigwait(signals)
        except OSError as error:
            # When the supervisor ends, the kernel ends the worker.
            _exit_with_message(f"the system does not allow sigwait: {error.strerror}", folder)
        if received == signal.SIGTERM or os.getppid() != runner:
            status = signal.SIGKILL
        else:
            status = _reap(worker)
    if status_reader >= 0 and status == 0:
        status = int(os.read(status_reader, 16) or signal.SIGKILL)
    if not visible():
        _end_group(worker)
    if _has_unreaped(os.P_ALL, 0):
        end_descendants(os.getpid(), _KILLING_SECONDS)
    remove_folder(folder)
    _end_with_status(status)


def _end_group(worker: int) -> None:
    """Kill the process group of a worker, and the worker itself if it has not been reaped."""
    if _has_unreaped(os.P_PID, worker):
        with suppress(OSError):
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)
    with suppress(OSError):
        os.killpg(worker, signal.SIGKILL)


def _has_unreaped(id_kind: int, number: int) -> bool:
    """Return whether this process has children that it has not reaped; True if this is unknown.

    The parameters select children in the same way as the parameters of ``waitid``.
    """
    try:
        os.waitid(id_kind, number, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    except OSError:
        pass
    return True


def _reap(worker: int) -> int | None:
    """Reap all children that have ended; return the status of the worker if it is among them."""
    worker_status = None
    with suppress(ChildProcessError):
        while True:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                break
            if process == worker:
                worker_status = status
    return worker_status


def _end_with_status(status: int) -> NoReturn:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        if number not in {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1)
