"""One worker, seen from the runner, which never waits for it: it looks in when something happened.

A worker that breaks the protocol, is late, or holds too much is killed and not asked again, so that
nothing that it may still send can be mistaken for the answer to a later case.
"""

from __future__ import annotations

import os
import selectors
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum, auto
from time import monotonic
from typing import Any

from onnxopt_cli.backends.lowering import Lowering
from onnxopt_cli.core.outcome import Outcome
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import BackendUnavailable, OnnxoptError, ProtocolBreach, UnusableOutput
from onnxopt_cli.run.channel import Channel, ChannelClosed
from onnxopt_cli.run.death import cause_of_death
from onnxopt_cli.run.leaks import CONFIRMATIONS, Watch, describe_growth
from onnxopt_cli.run.limits import TEARDOWN_SECONDS, Limits
from onnxopt_cli.run.messages import Order, pack_hello, pack_order, read_answer, read_ready
from onnxopt_cli.run.printed import Printed
from onnxopt_cli.run.processes import descendants, out_of_memory_kills, resident
from onnxopt_cli.run.response import Response
from onnxopt_cli.run.worker_process import kill_process, start_process

# How often the memory of a busy worker is looked at.
_LOOK_SECONDS = 0.1
# How long a worker that has closed its channel may take to end: only then is it known how it ended.
_DYING_SECONDS = 2.0


class State(Enum):
    """What a worker is doing."""

    STARTING = auto()
    IDLE = auto()
    BUSY = auto()
    ENDING = auto()
    GONE = auto()


@dataclass(frozen=True, slots=True)
class Aside:
    """What a worker did while no case was running.

    Attributes:
        place: ``teardown`` or ``between-cases``.
        outcome: what it amounts to.
        message: what it did, in words.
    """

    place: str
    outcome: Outcome
    message: str


class Worker:
    """A process that runs one case after the other on a backend.

    Args:
        backend: the backend as the user asked for it.
        lowering: when it is given primitive operators.
        limits: what it may use.
        selector: where its descriptors are registered.

    Attributes:
        state: what it is doing.
        identity: the backend's name and version, once it is ready.
        refusal: why the backend did not start, if it did not.
        response: the response to the last order, once it is there.
        aside: what it did while no case was running, if that was anything.
        asked: number of orders so far.
    """

    def __init__(
        self, backend: str, lowering: Lowering, limits: Limits, selector: selectors.BaseSelector
    ) -> None:
        self.state = State.STARTING
        self.identity: tuple[str, str] | None = None
        self.refusal: OnnxoptError | None = None
        self.response: Response | None = None
        self.aside: Aside | None = None
        self.asked = 0
        self._backend = backend
        self._limits = limits
        self._selector = selector
        self._kills = out_of_memory_kills()
        self._started = monotonic()
        self._deadline = self._started + limits.startup
        self._next_look = self._started
        self._closed = False
        self._order: Order | None = None
        self._model = b""
        self._watch: Watch | None = None
        # The first answer to a case that runs again, and what grew each time so far.
        self._first: Response | None = None
        self._grown: dict[str, int] = {}
        self._confirmations = 0
        self._process = start_process(limits.memory)
        self._channel = Channel(self._process.channel)
        self._printed = Printed(self._process.printed)
        self._registered: set[int] = set()
        for descriptor in (self._channel.socket.fileno(), self._printed.descriptor):
            self._register(descriptor)
        if self._process.ended is not None:
            self._register(self._process.ended)
        self._send(pack_hello(backend, lowering))

    @property
    def free(self) -> bool:
        """True if it can be asked."""
        return self.state is State.IDLE

    def ask(self, order: Order, model: bytes) -> None:
        """Send a case to an idle worker; the response comes later.

        Args:
            order: the case; its number does not matter.
            model: its model, serialised.
        """
        self.state = State.BUSY
        self.response = None
        self._model = model
        self._first, self._confirmations = None, 0
        self._printed.forget()
        self._put(order)

    def look(self) -> None:
        """Take notice of whatever has happened since the last look."""
        if self.state is State.GONE:
            return
        if not self._printed.read():
            self._unregister(self._printed.descriptor)
        if not self._closed:
            self._talk()
        self._check()

    def _check(self) -> None:
        """See whether the worker has ended, is late or holds too much."""
        if self.state is State.GONE:
            return
        code = self._process.popen.poll()
        if code is not None:
            self._ended(code)
        elif monotonic() > self._deadline:
            self._late()
        elif self.state is State.BUSY and monotonic() > self._next_look:
            self._look_at_memory()

    def end(self) -> None:
        """Tell the worker to end by itself; it is GONE when it has."""
        self.state = State.ENDING
        self._deadline = monotonic() + TEARDOWN_SECONDS
        self._printed.forget()
        self._channel.finish()

    def kill(self) -> None:
        """Kill the worker with all that it started, and let go of everything."""
        if self.state is State.GONE:
            return
        self.state = State.GONE
        kill_process(self._process.popen)
        for descriptor in list(self._registered):
            self._unregister(descriptor)
        self._printed.close()
        self._channel.socket.close()
        if self._process.ended is not None:
            os.close(self._process.ended)

    def _put(self, order: Order) -> None:
        self.asked += 1
        # No number is used twice, so an answer that comes twice is known.
        self._order = order = replace(order, number=self.asked)
        self._started = monotonic()
        self._deadline = self._started + self._limits.timeout
        self._next_look = self._started + _LOOK_SECONDS
        try:
            frame = pack_order(order, self._model)
        except UnusableOutput as error:
            raise AssertionError("inputs of a case are values") from error
        self._send(frame)

    def _send(self, frame: list[memoryview]) -> None:
        # Whoever has closed the channel is about to be found dead.
        with suppress(ChannelClosed):
            self._channel.send(frame)
        self._await_room()

    def _await_room(self) -> None:
        descriptor = self._channel.socket.fileno()
        if descriptor in self._registered:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._channel.sending else 0)
            self._selector.modify(descriptor, events)

    def _talk(self) -> None:
        try:
            if self._channel.sending:
                self._channel.flush()
                self._await_room()
            frame = self._channel.receive()
            if frame is not None:
                self._heard(*frame)
        except ChannelClosed:
            self._closed = True
            self._unregister(self._channel.socket.fileno())
            if self.state is not State.ENDING:
                self._deadline = min(self._deadline, monotonic() + _DYING_SECONDS)
        except ProtocolBreach as breach:
            self._lost(Outcome.PROTOCOL, f"the worker {breach.message}")

    def _heard(self, message: Any, payload: memoryview) -> None:
        if self.state is State.STARTING:
            try:
                self.identity = read_ready(message)
            except ProtocolBreach:
                raise
            except OnnxoptError as refusal:
                self.refusal = refusal
                self.kill()
                return
            self._watch = Watch(self._process.popen.pid)
            self.state = State.IDLE
            self._deadline = float("inf")
        elif self.state is State.BUSY and self._order is not None:
            if self._is_answered_already(message):
                # An earlier case's fault; the present one has another try in another worker.
                self.state = State.IDLE
                raise ProtocolBreach("answered a case twice")
            response = read_answer(message, payload, self._order)
            if self._channel.more():
                raise ProtocolBreach("sent more than an answer")
            self._printed.read()
            measured = monotonic() - self._started
            seconds = min(max(response.seconds, 0.0), measured)
            self._answered(replace(response, seconds=seconds, printed=self._printed.text()))
        else:
            raise ProtocolBreach("spoke without being asked")

    def _is_answered_already(self, message: Any) -> bool:
        number = message.get("number") if isinstance(message, dict) else None
        return type(number) is int and 0 < number < self.asked

    def _answered(self, response: Response) -> None:
        """Accept an answer, unless the worker has grown and must show whether it does so again."""
        assert self._order is not None  # noqa: S101 - for the type checker; the caller has looked
        assert self._watch is not None  # noqa: S101 - as above
        grown = self._watch.growth()
        orphans = self._watch.orphans()
        if self._first is None:
            self._first, self._grown = response, grown
        else:
            self._grown = {what: n for what, n in self._grown.items() if what in grown}
            if response.failure not in {None, self._first.failure}:
                self._reply(replace(response, message=f"{response.message} (when it ran again)"))
                return
        if orphans:
            self._reply(replace(self._first, leak=f"leaves processes behind: {', '.join(orphans)}"))
            self.kill()
        elif not self._grown:
            self._reply(self._first)
        elif self._confirmations == CONFIRMATIONS:
            self._reply(replace(self._first, leak=describe_growth(self._grown)))
            self.kill()
        else:
            self._confirmations += 1
            self._put(replace(self._order, collect=True))

    def _reply(self, response: Response) -> None:
        self.response = response
        self.state = State.IDLE
        self._deadline = float("inf")
        self._order, self._model, self._first = None, b"", None
        if response.failure is Outcome.OOM:
            self.kill()

    def _ended(self, code: int) -> None:
        self._printed.read()
        if self.state is State.ENDING and not code:
            self.kill()
            return
        starved = out_of_memory_kills() > self._kills
        outcome, how = cause_of_death(code, self._printed.text(), out_of_memory=starved)
        self._lost(outcome, f"the worker {how}")

    def _late(self) -> None:
        self._printed.read()
        if self._closed and self.state is not State.ENDING:
            self._lost(Outcome.CRASH, "the worker closed its channel")
            return
        seconds = {State.STARTING: self._limits.startup, State.ENDING: TEARDOWN_SECONDS}
        allowed = seconds.get(self.state, self._limits.timeout)
        self._lost(Outcome.TIMEOUT, f"no answer within {allowed:g} s")

    def _look_at_memory(self) -> None:
        self._next_look = monotonic() + _LOOK_SECONDS
        if not self._limits.memory:
            return
        held = sum(map(resident, descendants(self._process.popen.pid)))
        if held > self._limits.memory:
            mebibytes = f"{held >> 20} MiB; {self._limits.memory >> 20} MiB are allowed"
            self._lost(Outcome.OOM, f"the worker held {mebibytes}")

    def _lost(self, outcome: Outcome, message: str) -> None:
        """Give the worker up; whatever it was doing has its result."""
        state, printed = self.state, self._printed.text()
        seconds = monotonic() - self._started
        again = " (when the case ran again)" if self._first else ""
        self.kill()
        if state is State.BUSY:
            self.response = Response(
                failure=outcome, message=message + again, seconds=seconds, printed=printed
            )
        elif state is State.STARTING:
            about = f"backend {printable(self._backend)} does not start: {message}"
            self.refusal = BackendUnavailable(about, hint=printed)
        else:
            place = "teardown" if state is State.ENDING else "between-cases"
            self.aside = Aside(place, outcome, message)

    def _register(self, descriptor: int) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ)
        self._registered.add(descriptor)

    def _unregister(self, descriptor: int) -> None:
        if descriptor in self._registered:
            self._selector.unregister(descriptor)
            self._registered.discard(descriptor)
