"""One worker, seen from the runner, which never waits for it: it looks in when something happened.

A worker that breaks the protocol, is late, or holds too much is killed and not asked again, so that
nothing that it may still send can be mistaken for the answer to a later case.
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
from onnxopt_cli.workers.leaks import (
    SETTLING_SECONDS,
    Step,
    Watch,
)
from onnxopt_cli.workers.memory import held_bytes
from onnxopt_cli.workers.processes import descendants, out_of_memory_kills
from onnxopt_cli.workers.shared_memory import fill
from onnxopt_cli.workers.worker_messages import (
    hello,
    most_bytes,
    pack_request,
    read_answer,
    read_failure,
    read_ready,
)
from onnxopt_cli.workers.worker_process import WorkerProcess

_NO_REQUEST = Request(onnx.ModelProto(), {})
_AGAIN = " (when the case ran again)"
# How long a worker may take to end when it is asked to.
_LONGEST_TEARDOWN_SECONDS = 10.0
# How often the memory of a busy worker is looked at.
_MEMORY_CHECK_SECONDS = 0.1
# Looking takes at most this part of the time.
_MEMORY_CHECK_PART = 0.1
# What programs print that could get no memory and ended themselves.
_MEMORY_MESSAGES = ("std::bad_alloc", "MemoryError", "memory allocation of", "out of memory")


class State(Enum):
    """What a worker is doing."""

    STARTING = auto()
    IDLE = auto()
    BUSY = auto()
    ENDING = auto()
    GONE = auto()


@dataclass(eq=False)
class Worker:
    """A process that runs one case after the other on a backend.

    Attributes:
        backend: the backend as the user asked for it.
        lowering: when it is given primitive operators.
        limits: what it may use.
        selector: where its descriptors are registered.
        closed: whether no other worker may look into it.
        state: what it is doing.
        version: what the backend says of its version, once it is ready.
        refusal: why the backend did not start, if it did not.
        response: the response to the last request, once it is there.
        incident: what it did that is no case's fault, if that was anything.
        with_expected: True once it has answered a case.
        asked: number of orders so far, without those that are to be kept for the next one.
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
    with_expected: bool = False
    asked: int = 0
    _request: Request = _NO_REQUEST
    _model: bytes = b""
    # Whether the last case was answered as the protocol has it.
    _kept_protocol: bool = False
    # Bytes that it was given in memory.
    _given: int = 0
    # The first answer to a case that runs again, and when the worker is to be looked at without
    # its running once more.
    _first_response: Response | None = None
    _check_leak_at: float = float("inf")

    def __post_init__(self) -> None:
        self._kills = out_of_memory_kills()
        self._begin(State.STARTING)
        self._process = WorkerProcess(self.limits.memory, self.selector, closed=self.closed)
        self._conversation = self._process.conversation
        self._conversation.ask(hello(self.backend, self.lowering), self.limits.startup_timeout)

    def _begin(self, state: State) -> None:
        self.state = state
        self._started = monotonic()
        self._next_memory_check = self._started + _MEMORY_CHECK_SECONDS

    @property
    def free(self) -> bool:
        """True if it can be asked."""
        return self.state is State.IDLE and self._conversation.open

    def ask(self, request: Request, model: bytes) -> bool:
        """Send a case, whose response comes later; return False if it cannot be asked any more.

        Args:
            request: the case; its number does not matter.
            model: its model, serialised.

        Raises:
            UnusableOutput: if its inputs cannot be sent.
        """
        # It may have spoken since the last look.
        self.poll()
        if self.free:
            self._model = model
            self._process.printed.forget()
            self._send(request)
        return self.state is State.BUSY

    def poll(self) -> None:
        """Take notice of whatever has happened since the last look."""
        if self.state is State.GONE:
            return
        self._process.read_printed()
        try:
            answer = self._conversation.poll()
            if answer is not None:
                self._handle(*answer)
            self._check()
        except ProtocolBreach as breach:
            if self.state is State.BUSY and self.with_expected and self._conversation.asked:
                # A case before this one may have left what it sent.
                self.state = State.IDLE
            self.give_up(Outcome.PROTOCOL, f"the worker {breach.message}")
        except MemoryError:
            self.give_up(Outcome.OOM, f"{OUT_OF_MEMORY} for what the worker sent")
        except BackendDied as death:
            self._ended(death)
        except BackendHangs as error:
            self.give_up(Outcome.TIMEOUT, f"the worker {error.message}")

    def _check(self) -> None:
        """See whether the worker has settled, or holds too much."""
        now = monotonic()
        if self.state is State.BUSY and now > self._check_leak_at:
            self._check_leak_at = float("inf")
            self._proceed()
        elif self.state is State.BUSY and self.limits.memory and now > self._next_memory_check:
            processes, most = descendants(self._process.popen.pid), self.limits.memory
            shared = self._process.shared_files(self._given, most_bytes(self._request))
            held = held_bytes(processes, most, shared)
            took = monotonic() - now
            # To count what large processes share may take the kernel long.
            self._next_memory_check = now + max(_MEMORY_CHECK_SECONDS, took / _MEMORY_CHECK_PART)
            if held > most:
                mebibytes = f"{held >> 20} MiB; {self.limits.memory >> 20} MiB are allowed"
                self.give_up(Outcome.OOM, f"the worker held {mebibytes}")

    def end(self) -> None:
        """Tell the worker to end by itself; it is GONE when it has."""
        self.poll()
        if self.state is not State.GONE:
            self._begin(State.ENDING)
            self._process.printed.forget()
            self._conversation.end(min(self.limits.timeout, _LONGEST_TEARDOWN_SECONDS))

    def give_up(self, outcome: Outcome, message: str) -> None:
        """Kill the worker; whatever it was doing has this as its result."""
        state, printed = self.state, self._process.printed.text()
        seconds = monotonic() - self._started
        self.kill()
        if state is State.BUSY:
            said = message + (_AGAIN if self._first_response else "")
            self.response = Response(None, outcome, said, seconds=seconds, printed=printed)
        elif state is State.STARTING:
            self.refusal = unavailable(self.backend, f" does not start: {message}", printed)
        else:
            place = "teardown" if state is State.ENDING else "between-cases"
            self.incident = Incident(place, outcome, message)

    def kill(self) -> None:
        """Kill the worker with all that it started, and close everything."""
        if self.state is State.GONE:
            return
        self.state = State.GONE
        if not self._process.kill():
            said = "leaves processes behind that cannot be killed"
            self.incident = Incident("between-cases", Outcome.LEAK, said)

    def _send(self, request: Request) -> None:
        self.asked += not request.keep
        self._request = request
        self._begin(State.BUSY)
        try:
            message, values = pack_request(request, self._model)
            self._given = size = fill(self._process.given, values.buffers)
            if size:
                message["shared"] = size
                values.buffers.clear()
            self._conversation.ask(message, self.limits.timeout, values)
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
            self._watch: Watch = Watch(self._process.popen.pid, self._process.shared_files(0, 0))
            self._begin(State.IDLE)
        elif self.state is State.BUSY:
            shared, most = self._process.returned, most_bytes(self._request)
            response = read_answer(message, payload, self._request.inputs, shared, most)
            if response.lowered and self.lowering is LoweringMode.NEVER:
                raise ProtocolBreach("says that it was given primitive operators, which it was not")
            self._conversation.require_no_more()
            again = response.failure is Outcome.PROTOCOL and self._kept_protocol
            if response.failure and (again or (response.earlier and self.with_expected)):
                # A command behind the worker may have answered an earlier case once more, or had
                # ended. The case meets another worker, where only it can be to blame.
                self.state = State.IDLE
                self.give_up(response.failure, response.message)
                return
            seconds = min(max(response.seconds, 0.0), monotonic() - self._started)
            printed = self._process.printed.text()
            self._accept(replace(response, seconds=seconds, printed=printed))
        else:
            self.give_up(*read_failure(message))

    def _accept(self, response: Response) -> None:
        """Accept an answer, unless the worker has grown and must show whether it does so again."""
        first = self._first_response
        if first is not None and response.failure not in {None, first.failure}:
            self._reply(replace(response, message=f"{response.message}{_AGAIN}"))
            return
        if first is None:
            self._first_response, self._looks = response, self._watch.look()
        self._proceed()

    def _proceed(self) -> None:
        found = next(self._looks)
        if found is Step.WAIT:
            self._check_leak_at = monotonic() + SETTLING_SECONDS
        elif found is Step.AGAIN:
            self._send(replace(self._request, collect=True))
        elif self._first_response is not None:
            self._reply(replace(self._first_response, leak=found))

    def _reply(self, response: Response) -> None:
        self.response = response
        self.with_expected = True
        # A command that broke it was killed, and says no more.
        self._kept_protocol = response.failure is not Outcome.PROTOCOL
        self._request, self._model, self._first_response = _NO_REQUEST, b"", None
        self._begin(State.IDLE)
        if response.failure is Outcome.OOM or response.leak:
            # The next case must not run with the memory that this one holds.
            self.kill()

    def _ended(self, death: BackendDied) -> None:
        code = self._process.popen.returncode
        if self.state is State.ENDING and code == 0:
            if not self._conversation.reader.empty:
                self.give_up(Outcome.PROTOCOL, "the worker ended in the middle of a message")
            self.kill()
            return
        outcome, how = Outcome.CRASH, death.message
        printed = self._process.printed.text()
        if code == -signal.SIGKILL and out_of_memory_kills() > self._kills:
            outcome, how = Outcome.OOM, "was killed by the system, which had run out of memory"
        elif code in {-signal.SIGABRT, 1} and any(it in printed for it in _MEMORY_MESSAGES):
            outcome = Outcome.OOM
        self.give_up(outcome, f"the worker {how}")
