"""One worker as a state machine in the runner, which polls it and never blocks on it.

A worker that violates the protocol, exceeds a time limit or holds too much memory is killed and
never used again, so that late messages cannot be mistaken for the response to a later case.
"""

from __future__ import annotations

import selectors
import signal
from dataclasses import dataclass, replace
from enum import Enum, auto
from time import monotonic
from typing import Any

import onnx

from onnxopt_cli.backends.host import (
    Incident,
    Request,
    Response,
)
from onnxopt_cli.backends.protocol import unavailable
from onnxopt_cli.config.run_config import Limits, LoweringMode
from onnxopt_cli.core.result import Outcome
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
from onnxopt_cli.workers.processes import descendants, out_of_memory_kills
from onnxopt_cli.workers.resources import SETTLING_SECONDS, LeakCheck, Step, held_bytes
from onnxopt_cli.workers.worker_messages import (
    hello,
    max_response_bytes,
    pack_request,
    read_failure,
    read_ready,
    read_response,
    write_buffers,
)
from onnxopt_cli.workers.worker_process import WorkerProcess

_NO_REQUEST = Request(onnx.ModelProto(), {})
_RERUN_NOTE = " (when the case ran again)"
# Time limit for a worker to end after a shutdown request.
_TEARDOWN_SECONDS = 10.0
# Interval between memory checks of a busy worker, and the largest share of time that they take.
_MEMORY_CHECK_SECONDS = 0.1
_MEMORY_CHECK_SHARE = 0.1
# Output of programs that end themselves because an allocation failed.
_MEMORY_MESSAGES = ("std::bad_alloc", "MemoryError", "memory allocation of", "out of memory")


class State(Enum):
    """The state of a worker."""

    STARTING = auto()
    IDLE = auto()
    BUSY = auto()
    ENDING = auto()
    GONE = auto()


@dataclass(eq=False)
class Worker:
    """A process that runs one case after another on a backend.

    Attributes:
        backend: the backend as the user specified it.
        lowering: when to lower models to primitive operators.
        limits: limits of time and memory.
        selector: the selector with which its descriptors are registered.
        closed: whether to keep other workers from inspecting it.
        state: its state.
        version: the version that the backend reports, once it is ready.
        refusal: the reason why the backend did not start; None if it started.
        response: the response to the last request, once it has arrived.
        incident: a fault that belongs to no case; None without a fault.
        has_responded: whether it has responded to any request.
        case_count: number of requests that do not keep the prepared model.
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
    # Whether the response to the last case obeyed the protocol.
    _obeyed_protocol: bool = False
    # Size of the inputs in shared memory.
    _input_bytes: int = 0
    # The first response to a case that runs again.
    _first_response: Response | None = None
    # Time of the next step of the leak check after a wait.
    _check_leak_at: float = float("inf")

    def __post_init__(self) -> None:
        self._kills = out_of_memory_kills()
        self._begin(State.STARTING)
        self._process = WorkerProcess(self.limits.memory, self.selector, closed=self.closed)
        self._conversation = self._process.conversation
        self._conversation.send(hello(self.backend, self.lowering), self.limits.startup_timeout)

    def _begin(self, state: State) -> None:
        self.state = state
        self._started = monotonic()
        self._next_memory_check = self._started + _MEMORY_CHECK_SECONDS

    @property
    def free(self) -> bool:
        """True if it can receive a request."""
        return self.state is State.IDLE and self._conversation.open

    def submit(self, request: Request, model: bytes) -> bool:
        """Send a request if the worker can still receive one.

        Args:
            request: the request.
            model: its model, serialised.

        Returns:
            Whether the request was sent.

        Raises:
            UnusableOutput: if its inputs cannot be sent.
        """
        # The worker may have sent something since the last poll.
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
                # An earlier case may have caused the message, so this case is not blamed.
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
        """Send a shutdown request; the state is GONE once the worker has ended."""
        self.poll()
        if self.state is not State.GONE:
            self._begin(State.ENDING)
            self._process.printed.forget()
            self._conversation.end(min(self.limits.timeout, _TEARDOWN_SECONDS))

    def give_up(self, outcome: Outcome, message: str) -> None:
        """Kill the worker; record the reason as the result of its case, its start or its end."""
        state, printed = self.state, self._process.printed.text()
        seconds = monotonic() - self._started
        self.kill()
        if state is State.BUSY:
            if self._first_response:
                message += _RERUN_NOTE
            self.response = Response(None, outcome, message, seconds=seconds, printed=printed)
        elif state is State.STARTING:
            self.refusal = unavailable(self.backend, f" does not start: {message}", printed)
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
                # An earlier case may be the cause: the backend's command may have sent a second
                # response to it, or have ended before this case. A new worker runs the case again.
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
        # A command that violated the protocol was killed, so no message of it is pending.
        self._obeyed_protocol = response.failure is not Outcome.PROTOCOL
        self._request, self._model, self._first_response = _NO_REQUEST, b"", None
        self._begin(State.IDLE)
        if response.failure is Outcome.OOM or response.leak:
            # The next case must not run while this one's memory is held.
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
