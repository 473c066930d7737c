"""One worker, seen from the runner, which never waits for it: it looks in when something happened.

A worker that breaks the protocol, is late, or holds too much is killed and not asked again, so that
nothing that it may still send can be mistaken for the answer to a later case.
"""

from __future__ import annotations

import selectors
import signal
from dataclasses import replace
from enum import Enum, auto
from itertools import count
from time import monotonic
from typing import Any

from onnxopt_cli.backends.lowering import LoweringMode
from onnxopt_cli.core.outcome import Outcome
from onnxopt_cli.core.text import exit_text, printable
from onnxopt_cli.errors import (
    OUT_OF_MEMORY,
    BackendUnavailable,
    OnnxoptError,
    ProtocolBreach,
    UnusableOutput,
)
from onnxopt_cli.isolation.leaks import SETTLING_SECONDS, Step, Watch
from onnxopt_cli.isolation.messages import (
    Order,
    pack_hello,
    pack_order,
    read_answer,
    read_farewell,
    read_ready,
)
from onnxopt_cli.isolation.processes import Limits, out_of_memory_kills
from onnxopt_cli.isolation.response import Aside, Response
from onnxopt_cli.isolation.worker_process import WorkerProcess

# No number is used twice, not even by different workers, so an answer that comes twice is known.
_numbers = count(1)
_AGAIN = " (when the case ran again)"
# How often the memory of a busy worker is looked at.
_LOOK_SECONDS = 0.1
# How long a worker that has closed its channel may take to end: only then is it known how it ended.
_DYING_SECONDS = 1.0


class State(Enum):
    """What a worker is doing."""

    STARTING = auto()
    IDLE = auto()
    BUSY = auto()
    ENDING = auto()
    GONE = auto()


class Worker:
    """A process that runs one case after the other on a backend.

    Args:
        backend: the backend as the user asked for it.
        lowering: when it is given primitive operators.
        limits: what it may use.
        selector: where its descriptors are registered.

    Attributes:
        state: what it is doing.
        version: what the backend says of its version, once it is ready.
        refusal: why the backend did not start, if it did not.
        response: the response to the last order, once it is there.
        aside: what it did that is no case's fault, if that was anything.
        answered: True once it has answered a case.
        asked: number of orders so far, without those that are to be kept for the next one.
    """

    def __init__(
        self, backend: str, lowering: LoweringMode, limits: Limits, selector: selectors.BaseSelector
    ) -> None:
        self.state = State.STARTING
        self.version: str | None = None
        self.refusal: OnnxoptError | None = None
        self.response: Response | None = None
        self.aside: Aside | None = None
        self.answered = False
        self.asked = 0
        self._backend = backend
        self._lowering = lowering
        self._limits = limits
        self._kills = out_of_memory_kills()
        self._started = monotonic()
        self._deadline = self._started + limits.startup
        self._next_look = self._started
        self._dying = False
        self._order: Order | None = None
        self._model = b""
        self._watch: Watch | None = None
        self._answered_numbers: set[int] = set()
        # The first answer to a case that runs again, and when the worker is to be looked at
        # without its running once more.
        self._first: Response | None = None
        self._settled = float("inf")
        self._process = WorkerProcess(limits.memory, selector)
        self._process.send(pack_hello(backend, lowering))

    @property
    def free(self) -> bool:
        """True if it can be asked."""
        return self.state is State.IDLE and not self._dying

    def still_free(self) -> bool:
        """Tell whether it can be asked, now that it may have spoken."""
        self._talk()
        return self.free

    def ask(self, order: Order, model: bytes) -> None:
        """Send a case to an idle worker; the response comes later.

        Args:
            order: the case; its number does not matter.
            model: its model, serialised.
        """
        self.state = State.BUSY
        self.response = None
        self._model = model
        self._first = None
        self._process.forget_printed()
        self._put(order)

    def look(self) -> None:
        """Take notice of whatever has happened since the last look."""
        if self.state is State.GONE:
            return
        self._process.read_printed()
        self._talk()
        self._check()

    def _check(self) -> None:
        """See whether the worker has ended, is late or holds too much."""
        if self.state is State.GONE:
            return
        code = self._process.exit_code
        if code is not None:
            self._ended(code)
        elif monotonic() > self._deadline:
            self._late()
        elif monotonic() > self._settled and self._watch and self._first and self._order:
            self._settled = float("inf")
            self._proceed(self._watch.after_wait(), self._watch, self._first, self._order)
        elif self.state is State.BUSY and monotonic() > self._next_look:
            self._look_at_memory()

    def end(self) -> None:
        """Tell the worker to end by itself; it is GONE when it has."""
        self._talk()
        if self.state is State.GONE:
            return
        self.state = State.ENDING
        self._deadline = monotonic() + self._limits.teardown
        self._process.forget_printed()
        self._process.finish()

    def give_up(self, outcome: Outcome, message: str) -> None:
        """Kill the worker; whatever it was doing has this as its result."""
        state, printed = self.state, self._process.printed()
        seconds = monotonic() - self._started
        self.kill()
        if state is State.BUSY:
            said = message + (_AGAIN if self._first else "")
            self.response = Response(None, outcome, said, seconds=seconds, printed=printed)
        elif state is State.STARTING:
            about = f"backend {printable(self._backend)} does not start: {message}"
            self.refusal = BackendUnavailable(about, hint=printed)
        else:
            place = "teardown" if state is State.ENDING else "between-cases"
            self.aside = Aside(place, outcome, message)

    def kill(self) -> None:
        """Kill the worker with all that it started, and let go of everything."""
        if self.state is State.GONE:
            return
        self.state = State.GONE
        if not self._process.kill():
            self.aside = Aside(
                "between-cases", Outcome.LEAK, "leaves processes behind that cannot be killed"
            )

    def _put(self, order: Order) -> None:
        self.asked += not order.keep
        self._order = order = replace(order, number=next(_numbers))
        self._started = monotonic()
        self._deadline = self._started + self._limits.timeout
        self._next_look = self._started + _LOOK_SECONDS
        try:
            frame = pack_order(order, self._model)
        except UnusableOutput as error:
            raise AssertionError("inputs of a case are values") from error
        self._process.send(frame)

    def _talk(self) -> None:
        try:
            frame = self._process.receive()
            if frame is not None:
                self._heard(*frame)
            elif self.state is State.IDLE and self._process.partial:
                self._heard(None, memoryview(b""))
        except ProtocolBreach as breach:
            if self._may_be_an_earlier_cases_fault():
                self.state = State.IDLE
            self.give_up(Outcome.PROTOCOL, f"the worker {breach.message}")
            return
        except MemoryError:
            self.give_up(Outcome.OOM, f"{OUT_OF_MEMORY} for what the worker sent")
            return
        if not self._process.open and not self._dying and self.state is not State.ENDING:
            self._dying = True
            self._deadline = min(self._deadline, monotonic() + _DYING_SECONDS)

    def _heard(self, message: Any, payload: memoryview) -> None:
        if self.state is State.STARTING:
            try:
                self.version = read_ready(message)
            except ProtocolBreach:
                raise
            except OnnxoptError as refusal:
                self.refusal = refusal
                self.kill()
                return
            self._watch = Watch(self._process.pid)
            self.state = State.IDLE
            self._deadline = float("inf")
        elif self.state is State.BUSY and self._order is not None:
            if self._process.sending:
                raise ProtocolBreach("answered before it had the whole case")
            if self._is_answered_already(message):
                raise ProtocolBreach("answered a case twice")
            response = read_answer(message, payload, self._order)
            if response.lowered and self._lowering is LoweringMode.NEVER:
                raise ProtocolBreach("says that it was given primitive operators, which it was not")
            self._answered_numbers.add(self._order.number)
            if self._process.has_more():
                raise ProtocolBreach("sent more than an answer")
            seconds = min(max(response.seconds, 0.0), monotonic() - self._started)
            self._accepted(replace(response, seconds=seconds, printed=self._process.printed()))
        elif self.state is State.ENDING:
            self.give_up(*read_farewell(message))
        else:
            raise ProtocolBreach("spoke without being asked")

    def _is_answered_already(self, message: Any) -> bool:
        number = message.get("number") if isinstance(message, dict) else None
        return type(number) is int and number in self._answered_numbers

    def _may_be_an_earlier_cases_fault(self) -> bool:
        """Tell whether what broke the protocol may have been left by a case before this one."""
        if self.state is not State.BUSY or self._order is None:
            return False
        return self.answered and self._order.number not in self._answered_numbers

    def _accepted(self, response: Response) -> None:
        """Accept an answer, unless the worker has grown and must show whether it does so again."""
        assert self._order is not None  # noqa: S101 - for the type checker; the caller has looked
        assert self._watch is not None  # noqa: S101 - as above
        if self._first is None:
            self._first = response
        elif response.failure not in {None, self._first.failure}:
            self._reply(replace(response, message=f"{response.message}{_AGAIN}"))
            return
        self._proceed(self._watch.after_answer(), self._watch, self._first, self._order)

    def _proceed(self, step: Step, watch: Watch, response: Response, order: Order) -> None:
        if step is Step.WAIT:
            self._settled = monotonic() + SETTLING_SECONDS
        elif step is Step.AGAIN:
            self._put(replace(order, collect=True))
        else:
            self._reply(replace(response, leak=watch.leak))

    def _reply(self, response: Response) -> None:
        self.response = response
        self.answered = True
        self.state = State.IDLE
        self._deadline = float("inf")
        self._order, self._model, self._first = None, b"", None
        self._settled = float("inf")
        if response.failure is Outcome.OOM or response.leak:
            # What it holds is not for the next case to bear.
            self.kill()

    def _ended(self, code: int) -> None:
        if self.state is State.ENDING and not code and not self._dying:
            # Its last words may have come after the last look.
            self._talk()
            if self._process.partial and self.state is State.ENDING:
                self.give_up(Outcome.PROTOCOL, "the worker ended in the middle of a frame")
            self.kill()
            return
        starved = out_of_memory_kills() > self._kills
        outcome, how = cause_of_death(code, self._process.printed(), out_of_memory=starved)
        self.give_up(outcome, f"the worker {how}")

    def _late(self) -> None:
        if self._dying:
            self.give_up(Outcome.CRASH, "the worker closed its channel")
            return
        seconds = {
            State.STARTING: self._limits.startup,
            State.ENDING: self._limits.teardown,
        }
        allowed = seconds.get(self.state, self._limits.timeout)
        self.give_up(Outcome.TIMEOUT, f"no answer within {allowed:g} s")

    def _look_at_memory(self) -> None:
        self._next_look = monotonic() + _LOOK_SECONDS
        if not self._limits.memory:
            return
        held = self._process.memory
        if held > self._limits.memory:
            mebibytes = f"{held >> 20} MiB; {self._limits.memory >> 20} MiB are allowed"
            self.give_up(Outcome.OOM, f"the worker held {mebibytes}")


# The last words of programs that could get no memory and ended themselves.
_LAST_WORDS = ("std::bad_alloc", "MemoryError", "memory allocation of", "out of memory")


def cause_of_death(code: int, printed: str, *, out_of_memory: bool) -> tuple[Outcome, str]:
    """Return the outcome that a worker's end amounts to, and it in words.

    Args:
        code: its exit code, or the negative number of the signal that ended it.
        printed: the end of what it printed.
        out_of_memory: whether the kernel has killed processes for want of memory meanwhile.
    """
    if code == -signal.SIGKILL and out_of_memory:
        return Outcome.OOM, "was killed by the system, which had run out of memory"
    said = any(words in printed for words in _LAST_WORDS)
    outcome = Outcome.OOM if said and code in {-signal.SIGABRT, 1} else Outcome.CRASH
    return outcome, exit_text(code)
