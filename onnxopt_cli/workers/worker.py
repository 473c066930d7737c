"""One worker: its process, and its state in the runner, which polls the worker and never blocks.

A worker is killed if it violates the protocol, exceeds a time limit or holds too much memory. The
worker is never used again, so that late messages cannot be mistaken for the response to a later
case.
"""

from __future__ import annotations

import gc
import os
import selectors
import signal
import socket
import subprocess
import sys
import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cache, partial
from itertools import pairwise
from time import monotonic
from typing import Any, NoReturn

import onnx

from onnxopt_cli.backends.conversation import Conversation
from onnxopt_cli.backends.host import (
    Incident,
    Request,
    Response,
)
from onnxopt_cli.backends.protocol import unavailable
from onnxopt_cli.config.run_config import Limits, LoweringMode
from onnxopt_cli.core.ci_channels import without_ci_channels
from onnxopt_cli.core.process_control import STARTED, become_subreaper, claimed, close_to_others
from onnxopt_cli.core.result import Outcome
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import (
    OUT_OF_MEMORY,
    BackendDied,
    BackendHangs,
    BackendUnavailable,
    OnnxoptError,
    ProtocolBreach,
    UnusableOutput,
    UsageError,
)
from onnxopt_cli.operators.native_onnx import leave_helper
from onnxopt_cli.workers.private_folder import name_folder, remove_folder
from onnxopt_cli.workers.processes import (
    can_mark,
    children,
    descendants,
    end_descendants,
    is_marked,
    out_of_memory_kills,
    visible,
)
from onnxopt_cli.workers.resources import SETTLING_SECONDS, FileKey, LeakCheck, Step, held_bytes
from onnxopt_cli.workers.worker_messages import (
    create_memory_file,
    hello,
    max_response_bytes,
    pack_request,
    read_failure,
    read_ready,
    read_response,
    write_buffers,
)

_NO_REQUEST = Request(onnx.ModelProto(), {})
_MORE_TIME = "if the backend is slow, allow more time with --startup-timeout"
_RERUN_NOTE = " (when the case ran again)"
# Seconds that a worker has to end after a shutdown request.
_TEARDOWN_SECONDS = 30.0
# Seconds between memory checks of a busy worker.
_MEMORY_CHECK_SECONDS = 0.1
# Memory checks take at most this share of a worker's running time. Slow checks become rarer.
_MEMORY_CHECK_SHARE = 0.1
# Texts that programs print when they end because an allocation failed.
_MEMORY_MESSAGES = ("std::bad_alloc", "MemoryError", "memory allocation of", "out of memory")
# The worker gets the import path of the runner, independent of the current folder.
_START = (
    "import sys; *numbers, folder = sys.argv[1:7]; sys.path = sys.argv[7:]; "
    "from onnxopt_cli.workers.worker_main import main; "
    "main(*map(int, numbers), folder)"
)
# Seconds that a supervisor has to clean up.
_CLEANUP_SECONDS = 1.0
# Seconds after which an attempt to kill processes without a supervisor is given up.
_KILLING_SECONDS = 10.0
# Only this number of bytes at the end of a worker's output is kept.
_KEPT_BYTES = 16 << 10
# A message shows at most this number of lines and of characters from the end of a worker's output.
_SHOWN_LINES = 20
_SHOWN_CHARACTERS = 2000
# At most the content of a full pipe is read at a time, so that a worker that prints without pause
# cannot keep the runner busy.
_READ_BYTES = 64 << 10


class State(Enum):
    """The state of a worker."""

    STARTING = auto()
    IDLE = auto()
    BUSY = auto()
    ENDING = auto()
    GONE = auto()


@dataclass(eq=False)
class Worker:
    """Runs one case after another on a backend in a process of its own.

    Attributes:
        backend: the backend as the user specified it.
        lowering: when to lower models to primitive operators.
        limits: limits of time and memory.
        selector: the selector with which the worker's descriptors are registered.
        closed: whether to prevent other workers from inspecting this worker.
        state: the state of the worker.
        version: the version that the backend reports, once the backend is ready.
        refusal: the reason why the backend did not start; None if it started.
        response: the response to the last request, once it has arrived.
        incident: a fault outside of all cases; None without a fault.
        has_responded: whether the worker has responded to a request.
        case_count: number of requests sent, not counting those that keep the prepared model.
    """

    backend: str
    lowering: LoweringMode
    limits: Limits
    selector: selectors.BaseSelector
    closed: bool = False
    state: State = State.STARTING
    version: str | None = None
    refusal: OnnxoptError | None = None
    response: Response | None = None
    incident: Incident | None = None
    has_responded: bool = False
    case_count: int = 0
    _request: Request = _NO_REQUEST
    _model: bytes = b""
    # True if the response to the last case obeyed the protocol.
    _obeyed_protocol: bool = False
    # Number of bytes of the inputs in shared memory.
    _input_bytes: int = 0
    # The first response to a case that is running again.
    _first_response: Response | None = None
    # The time at which a waiting leak check continues.
    _check_leak_at: float = float("inf")

    def __post_init__(self) -> None:
        self._kills = out_of_memory_kills()
        self._begin(State.STARTING)
        self._process = _WorkerProcess(self.limits.memory, self.selector, closed=self.closed)
        self._conversation = self._process.conversation
        first = hello(self.backend, self.lowering, self.limits)
        self._conversation.send(first, self.limits.startup_timeout)

    def _begin(self, state: State) -> None:
        self.state = state
        self._started = monotonic()
        self._next_memory_check = self._started + _MEMORY_CHECK_SECONDS

    @property
    def free(self) -> bool:
        """True if the worker can receive a request."""
        return self.state is State.IDLE and self._conversation.open

    def submit(self, request: Request, model: bytes) -> bool:
        """Send a request if the worker can still receive requests.

        Args:
            request: the request.
            model: the serialised model of the request.

        Returns:
            Whether the request was sent.

        Raises:
            UnusableOutput: if the inputs of the request cannot be sent.
        """
        # The worker may have sent a message since the last poll.
        self.poll()
        if self.free:
            self._model = model
            self._process.printed.forget()
            self._send(request)
        return self.state is State.BUSY

    def poll(self) -> None:
        """Handle all events since the last poll."""
        if self.state is State.GONE:
            return
        self._process.read_printed()
        try:
            response = self._conversation.poll()
            if response is not None:
                self._handle(*response)
            self._check()
        except ProtocolBreach as breach:
            if self.state is State.BUSY and self.has_responded and self._conversation.pending:
                # An earlier case may have caused the invalid message, so the running case is not
                # blamed for it.
                self.state = State.IDLE
            self.give_up(Outcome.PROTOCOL, f"the worker {breach.message}")
        except MemoryError:
            self.give_up(Outcome.OOM, f"{OUT_OF_MEMORY} for the response of the worker")
        except BackendDied as death:
            self._ended(death)
        except BackendHangs as error:
            self.give_up(Outcome.TIMEOUT, f"the worker {error.message}")

    def _check(self) -> None:
        """Continue a leak check that is due, or check the memory of a busy worker."""
        now = monotonic()
        if self.state is State.BUSY and now > self._check_leak_at:
            self._check_leak_at = float("inf")
            self._continue_leak_check()
        elif self.state is State.BUSY and self.limits.memory and now > self._next_memory_check:
            processes, limit = descendants(self._process.popen.pid), self.limits.memory
            shared = self._process.shared_files(
                self._input_bytes, max_response_bytes(self._request)
            )
            held = held_bytes(processes, limit, shared)
            seconds = monotonic() - now
            # The kernel takes long to compute the shared memory of large processes.
            pause = max(_MEMORY_CHECK_SECONDS, seconds / _MEMORY_CHECK_SHARE)
            self._next_memory_check = now + pause
            if held > limit:
                mebibytes = f"{held >> 20} MiB; {self.limits.memory >> 20} MiB are allowed"
                self.give_up(Outcome.OOM, f"the worker held {mebibytes}")

    def end(self) -> None:
        """Send a shutdown request; once the worker has ended, its state is GONE."""
        self.poll()
        if self.state is not State.GONE:
            self._begin(State.ENDING)
            self._process.printed.forget()
            self._conversation.end(min(self.limits.timeout, _TEARDOWN_SECONDS))

    def give_up(self, outcome: Outcome, message: str) -> None:
        """Kill the worker, and record the reason as its response, its refusal or an incident."""
        state, printed = self.state, self._process.printed.text()
        seconds = monotonic() - self._started
        self.kill()
        if state is State.BUSY:
            if self._first_response:
                message += _RERUN_NOTE
            self.response = Response(None, outcome, message, seconds=seconds, printed=printed)
        elif state is State.STARTING:
            advice = _MORE_TIME if outcome is Outcome.TIMEOUT else ""
            hint = "\n".join(filter(None, (printed, advice)))
            self.refusal = unavailable(self.backend, f" does not start: {message}", hint)
        else:
            place = "teardown" if state is State.ENDING else "between-cases"
            self.incident = Incident(place, outcome, message)

    def kill(self) -> None:
        """Kill the worker and all processes that it started, and close its descriptors."""
        if self.state is State.GONE:
            return
        self.state = State.GONE
        if not self._process.kill():
            message = "leaves processes behind that cannot be killed"
            self.incident = Incident("between-cases", Outcome.LEAK, message)

    def _send(self, request: Request) -> None:
        self.case_count += not request.keep
        self._request = request
        self._begin(State.BUSY)
        try:
            message, values = pack_request(request, self._model)
            self._input_bytes = size = write_buffers(self._process.input_file, values.buffers)
            if size:
                message["shared"] = size
                values.buffers.clear()
            self._conversation.send(message, self.limits.timeout, values)
        except UnusableOutput:
            self._begin(State.IDLE)
            raise

    def _handle(self, message: Any, payload: memoryview) -> None:
        if self.state is State.STARTING:
            try:
                self.version = read_ready(message)
            except (UsageError, BackendUnavailable) as refusal:
                printed = self._process.printed.text()
                refusal.hint = "\n".join(filter(None, (printed, refusal.hint)))
                self.refusal = refusal
                self.kill()
                return
            self._leak_check: LeakCheck = LeakCheck(
                self._process.popen.pid, self._process.shared_files(0, 0)
            )
            self._begin(State.IDLE)
        elif self.state is State.BUSY:
            output_file, limit = self._process.output_file, max_response_bytes(self._request)
            response = read_response(message, payload, self._request.inputs, output_file, limit)
            if response.lowered and self.lowering is LoweringMode.NEVER:
                raise ProtocolBreach("reports a lowered model, although lowering is disabled")
            self._conversation.require_no_more()
            is_first_breach = response.failure is Outcome.PROTOCOL and self._obeyed_protocol
            if response.failure and (is_first_breach or (response.earlier and self.has_responded)):
                # An earlier case may have caused the failure. For example, the backend's command
                # may have sent a second response to the earlier case, or a Python backend may have
                # changed functions that onnxopt uses. Therefore, a new worker runs the case again.
                self.state = State.IDLE
                self.give_up(response.failure, response.message)
                return
            seconds = min(max(response.seconds, 0.0), monotonic() - self._started)
            printed = self._process.printed.text()
            self._accept(replace(response, seconds=seconds, printed=printed))
        else:
            self.give_up(*read_failure(message))

    def _accept(self, response: Response) -> None:
        """Accept a response; if the worker has grown, run the case again to confirm a leak."""
        if self.closed:
            # A closed worker runs only code of onnxopt, whose resources are not checked.
            self._reply(response)
            return
        first = self._first_response
        if first is not None and response.failure not in {None, first.failure}:
            self._reply(replace(response, message=f"{response.message}{_RERUN_NOTE}"))
            return
        if first is None:
            self._first_response, self._leak_steps = response, self._leak_check.steps()
        self._continue_leak_check()

    def _continue_leak_check(self) -> None:
        step = next(self._leak_steps)
        if step is Step.WAIT:
            self._check_leak_at = monotonic() + SETTLING_SECONDS
        elif step is Step.AGAIN:
            self._send(replace(self._request, collect=True))
        elif self._first_response is not None:
            self._reply(replace(self._first_response, leak=step))

    def _reply(self, response: Response) -> None:
        self.response = response
        self.has_responded = True
        # A command that violated the protocol was killed, so none of its messages is pending.
        self._obeyed_protocol = response.failure is not Outcome.PROTOCOL
        self._request, self._model, self._first_response = _NO_REQUEST, b"", None
        self._begin(State.IDLE)
        if response.failure is Outcome.OOM or response.leak or response.earlier:
            # The next case must not run in a worker that still holds the memory of this case, or
            # whose onnxopt code has failed.
            self.kill()

    def _ended(self, death: BackendDied) -> None:
        code = self._process.popen.returncode
        if self.state is State.ENDING and code == 0:
            if not self._conversation.reader.empty:
                self.give_up(Outcome.PROTOCOL, "the worker ended in the middle of a message")
            self.kill()
            return
        outcome, cause = Outcome.CRASH, death.message
        printed = self._process.printed.text()
        if code == -signal.SIGKILL and out_of_memory_kills() > self._kills:
            outcome, cause = Outcome.OOM, "was killed by the system, which had run out of memory"
        elif code in {-signal.SIGABRT, 1} and any(text in printed for text in _MEMORY_MESSAGES):
            outcome = Outcome.OOM
        self.give_up(outcome, f"the worker {cause}")


class _WorkerProcess:
    """A worker's process, which on Linux has a supervisor; only the method :meth:`kill` blocks.

    Args:
        memory: memory limit of each process of the worker in bytes, or 0.
        selector: the selector with which the descriptors are registered until they are closed.
        closed: whether to prevent other workers from inspecting the process from its start on
            (Linux only).

    Attributes:
        popen: the started process: the supervisor on Linux, else the worker.
        conversation: the requests to the worker and its responses.
        printed: the output of the worker.
        input_file: descriptor of the file in memory for inputs; -1 if the system has none.
        output_file: descriptor of the file in memory for outputs; -1 if the system has none.
    """

    def __init__(
        self, memory: int, selector: selectors.BaseSelector, *, closed: bool = False
    ) -> None:
        self._folder = name_folder()
        self.input_file, self.output_file = create_memory_file(), create_memory_file()
        shared = [self.input_file, self.output_file]
        self.popen, self._channel, printed = _start(memory, self._folder, shared, closed)
        reading = self._channel.fileno()
        finish = partial(self._channel.shutdown, socket.SHUT_WR)
        self.conversation = Conversation(self.popen, reading, os.dup(reading), finish, selector)
        self.printed = Printed(printed)
        # The descriptor of a process becomes readable when the process has ended. On systems
        # without descriptors of processes, regular polls detect the end.
        self._ended = -1
        with suppress(AttributeError, OSError):
            self._ended = os.pidfd_open(self.popen.pid)
        self._selector = selector
        for descriptor in (printed, self._ended):
            if descriptor >= 0:
                selector.register(descriptor, selectors.EVENT_READ)

    def shared_files(self, input_bytes: int, output_bytes: int) -> dict[FileKey, int]:
        """Return, for each file in memory, how many of its bytes the worker does not hold.

        Args:
            input_bytes: size of the inputs in shared memory.
            output_bytes: largest accepted size of the outputs.
        """
        sizes = {}
        for descriptor, size in ((self.input_file, input_bytes), (self.output_file, output_bytes)):
            if descriptor >= 0:
                status = os.fstat(descriptor)
                sizes[status.st_dev, status.st_ino] = size
        return sizes

    def read_printed(self) -> None:
        """Read the output that the worker has printed since the last poll."""
        if not self.printed.read():
            self._unregister(self.printed.descriptor)

    def kill(self) -> bool:
        """Kill the worker and all processes that it started, and close all descriptors.

        Returns:
            Whether no visible process is left alive.
        """
        if self.popen.poll() is None:
            _end_supervisor(self.popen)
        STARTED.discard(self.popen.pid)
        dead = not _adopts_orphans() or end_descendants(os.getpid(), _KILLING_SECONDS, _is_orphan)
        # The folder still exists only if there was no supervisor, or the supervisor was killed.
        remove_folder(self._folder)
        self.conversation.close()
        self._channel.close()
        descriptors = (
            self.conversation.writing,
            self.input_file,
            self.output_file,
            self.printed.descriptor,
            self._ended,
        )
        for descriptor in descriptors:
            if descriptor >= 0:
                self._unregister(descriptor)
                os.close(descriptor)
        return dead

    def _unregister(self, descriptor: int) -> None:
        with suppress(KeyError):
            self._selector.unregister(descriptor)


def _start(
    memory: int, folder: str, shared: list[int], closed: bool
) -> tuple[subprocess.Popen[bytes], socket.socket, int]:
    """Start a worker; return the process, and the runner's ends of its channel and output pipe."""
    close_to_others()
    runner_end, worker_end = socket.socketpair()
    printed, write_end = os.pipe()
    _adopts_orphans()
    numbers = [worker_end.fileno(), *shared, os.getpid(), memory]
    # Other processes can inspect a program while it starts, whereas a forked process inherits the
    # protection of its parent.
    serve = partial(_serve_forked, *numbers, folder) if closed and forks() else None
    try:
        with warnings.catch_warnings():
            # Newer versions of Python warn about forks if the process has threads, such as the
            # threads of BLAS.
            warnings.simplefilter("ignore", DeprecationWarning)
            popen = subprocess.Popen(  # noqa: S603 - our own interpreter
                [sys.executable, "-u", "-P", "-c", _START, *map(str, numbers), folder, *sys.path],
                stdin=subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                pass_fds=[
                    descriptor for descriptor in (worker_end.fileno(), *shared) if descriptor >= 0
                ],
                start_new_session=True,
                env=without_ci_channels(os.environ),
                preexec_fn=serve,  # noqa: PLW1509 - it never returns
            )
    except BaseException:
        for descriptor in (runner_end.detach(), printed, *shared):
            if descriptor >= 0:
                os.close(descriptor)
        raise
    finally:
        worker_end.close()
        os.close(write_end)
    STARTED.add(popen.pid)
    return popen, runner_end, printed


def forks() -> bool:
    """Return whether a closed worker is forked, so that other processes cannot inspect it.

    Forking is safe only in the command, which controls all threads of its process.
    """
    return sys.platform == "linux" and claimed()


def _serve_forked(channel: int, input_file: int, output_file: int, *settings: Any) -> NoReturn:
    """Run a worker in a process that was just forked, without executing another program."""
    code = 1
    try:
        gc.freeze()
        leave_helper()
        open_descriptors = sorted({2, channel, input_file, output_file} - {-1})
        for before, after in pairwise([*open_descriptors, os.sysconf("SC_OPEN_MAX")]):
            os.closerange(before + 1, after)
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        from onnxopt_cli.workers.worker_main import main

        main(channel, input_file, output_file, *settings)
        code = 0
    finally:
        os._exit(code)


@cache
def _adopts_orphans() -> bool:
    """Let this process adopt orphans of workers if possible; return whether it adopts them."""
    return claimed() and visible() and (_orphans_are_workers() or can_mark()) and become_subreaper()


@cache
def _orphans_are_workers() -> bool:
    """Return whether all orphans that this process adopts are orphans of its workers.

    A process that already has children, or is the first of a container, may adopt other orphans.
    """
    return os.getpid() != 1 and STARTED.issuperset(children(os.getpid()))


def _end_supervisor(process: subprocess.Popen[bytes]) -> None:
    if sys.platform == "linux":
        process.terminate()
        # A supervisor that the backend has stopped reacts only after SIGCONT.
        process.send_signal(signal.SIGCONT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_CLEANUP_SECONDS)
            return
    end_descendants(process.pid, _KILLING_SECONDS)
    # macOS rejects signals to a group that contains a zombie.
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def _is_orphan(child: int) -> bool:
    """Return whether a child of this process is an orphan of a worker.

    Supervisors begin new sessions, and their descendants cannot join an older session. All
    processes that the runner starts itself stay in the session of the runner.
    """
    if child in STARTED:
        return False
    if not _orphans_are_workers():
        return is_marked(child)
    with suppress(OSError):
        return os.getsid(child) != os.getsid(0)
    return False


class Printed:
    """Reads the output of a worker from a pipe, and keeps the last part of the output.

    Args:
        descriptor: the reading end of the pipe.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self._end = bytearray()
        self._count = 0

    def read(self) -> bool:
        """Read the content of the pipe; return False if the pipe has ended."""
        try:
            data = os.read(self.descriptor, _READ_BYTES)
        except BlockingIOError:
            return True
        self._count += len(data)
        self._end += data
        del self._end[:-_KEPT_BYTES]
        return bool(data)

    def forget(self) -> None:
        """Discard the output that belongs to an earlier case."""
        self._end.clear()
        self._count = 0

    def text(self) -> str:
        """Return the last lines in printable form; if lines are missing, the first line says so."""
        self.read()
        end_text = bytes(self._end).decode("utf-8", "replace").replace("\r\n", "\n").strip("\n")
        lines = end_text.split("\n")[-_SHOWN_LINES:]
        shown_text = "\n".join(lines)[-_SHOWN_CHARACTERS:]
        if not shown_text:
            return ""
        is_cut = self._count > _KEPT_BYTES or len(shown_text) < len(end_text)
        start = f"... the end of {self._count} bytes:\n" if is_cut else ""
        return start + printable(shown_text, lines=True)
