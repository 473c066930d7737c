"""A process that is asked and answers, whatever it does instead: a worker, or a command.

Each request has a number and a deadline. What the process sends unasked, too early, too late or
twice is a breach of the protocol, so that nothing is ever taken for the answer to another request.
Whoever is told of a breach, a death or a deadline kills the process and does not ask it again.

Messages say what the process did, and not which process: "gave no answer within 5 s".
"""

from __future__ import annotations

import os
import selectors
import struct
import subprocess
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice
from time import monotonic
from typing import Any

from onnxopt_cli.core.codec import (
    MessageReader,
    ValueWriter,
    read_some,
)
from onnxopt_cli.core.text import exit_text, printable
from onnxopt_cli.errors import (
    BackendDied,
    BackendHangs,
    ProtocolBreach,
)

#: How often the clock is looked at where nothing happens.
TICK_SECONDS = 0.05

# How long a process that has closed its channel may take to end: only then is it known how it
# ended.
_DYING_SECONDS = 1.0
# How many bytes wait in a pipe.
_INT = struct.Struct("i")
# The system sends at most so many buffers at a time.
_MOST_BUFFERS = 64
# No number is used twice, not even by different processes, so an answer that comes twice is known.
_numbers = count(1)


@dataclass(eq=False)
class Conversation:
    """Requests to a process, and its answers; only :meth:`wait` waits.

    Attributes:
        process: the process.
        reading: the descriptor from which answers come.
        writing: another descriptor, to which requests go.
        finish: closes the writing end, so that the process sees the end of its requests.
        selector: where the descriptors are registered as long as something may come or go.
        open: True until the process has closed its channel.
        asked: number of the request whose answer is awaited; 0 if none is.
        reader: takes the answers apart.
    """

    process: subprocess.Popen[bytes]
    reading: int
    writing: int
    finish: Callable[[], None]
    selector: selectors.BaseSelector
    open: bool = True
    asked: int = 0
    reader: MessageReader = field(default_factory=MessageReader)
    _ending: bool = False
    # Waits for room in the channel, so that the process cannot have it.
    _unsent: deque[memoryview] = field(default_factory=deque)
    # Bytes of the last request that the channel has taken.
    _sent: int = 0
    _seconds: float = float("inf")
    _deadline: float = float("inf")

    def __post_init__(self) -> None:
        for descriptor in (self.reading, self.writing):
            os.set_blocking(descriptor, False)
        self.selector.register(self.reading, selectors.EVENT_READ)

    def ask(
        self, message: dict[str, Any], seconds: float, values: ValueWriter | None = None
    ) -> None:
        """Send a request, as far as there is room, the rest whenever :meth:`poll` is called.

        Args:
            message: the request, without its number.
            seconds: how long the answer may take.
            values: what the message holds of values.

        Raises:
            UnusableOutput: if it is too large for any process.
        """
        number = next(_numbers)
        frame = (values or ValueWriter()).message({"id": number, **message})
        self.asked, self._sent = number, 0
        self._allow(seconds)
        self._unsent.extend(frame)
        self._flush()

    def end(self, seconds: float, *, tell: bool = True) -> None:
        """Let the process see that it will be asked nothing more, and end within so many seconds.

        Args:
            seconds: how long it may take.
            tell: ask it to shut down; else only its requests end.
        """
        if tell:
            self.ask({"request": "shutdown"}, seconds)
        self._allow(seconds)
        self._ending = True
        self._unsent.clear()
        self._flush()
        with suppress(OSError):
            self.finish()

    def poll(self) -> tuple[dict[str, Any], memoryview] | None:
        """Return the answer and its raw bytes, or None as long as it is not all there.

        Raises:
            ProtocolBreach: if the process has sent anything but one answer to the last request.
            BackendDied: if it has ended, or closed its channel and does not end.
            BackendHangs: if it has not answered in time.
        """
        # What it has sent before it ended is still there to be read.
        code = self.process.poll()
        if self._unsent:
            self._flush()
        answer = self._received()
        if answer is not None:
            return self._checked(*answer)
        if not self.asked and not self.reader.empty:
            raise ProtocolBreach("spoke without being asked")
        if code is not None:
            raise BackendDied(exit_text(code))
        if monotonic() > self._deadline:
            if self._ending:
                raise BackendHangs(f"did not end within {self._seconds:g} s of being told to")
            if not self.open:
                raise BackendDied("closed its channel")
            raise BackendHangs(f"gave no answer within {self._seconds:g} s")
        return None

    def wait(self) -> tuple[dict[str, Any], memoryview]:
        """Return the answer when it is there.

        Raises:
            ProtocolBreach, BackendDied, BackendHangs: as :meth:`poll` does.
        """
        while (answer := self.poll()) is None:
            left = max(0.0, self._deadline - monotonic())
            self.selector.select(min(left, TICK_SECONDS if self.open else TICK_SECONDS / 10))
        return answer

    def unread(self) -> bool:
        """Tell whether the process has read nothing of the last request, as far as pipes say."""
        if not self._sent:
            return True
        waiting = bytes(_INT.size)
        with suppress(ImportError, OSError):
            import fcntl
            import termios

            waiting = fcntl.ioctl(self.writing, termios.FIONREAD, waiting)
        return _INT.unpack(waiting)[0] == self._sent

    def require_no_more(self) -> None:
        """Make sure that the process has sent nothing after its answer.

        Raises:
            ProtocolBreach: if it has.
        """
        more = b""
        if self.open:
            with suppress(OSError):
                more = os.read(self.reading, 1)
        if more or not self.reader.empty:
            raise ProtocolBreach("sent more than an answer")

    def close(self) -> None:
        """Forget what waits; the caller closes the descriptors."""
        self._unsent.clear()
        self._flush()
        self._close_reading()

    def _allow(self, seconds: float) -> None:
        self._seconds, self._deadline = seconds, monotonic() + seconds

    def _received(self) -> tuple[dict[str, Any], memoryview] | None:
        try:
            return self.reader.receive(partial(read_some, self.reading)) if self.open else None
        except BlockingIOError:
            return None
        except ProtocolBreach:
            # What nobody asked for need not be a message to be said to be that.
            if self.asked:
                raise
            return None
        except (OSError, EOFError):
            self._close_reading()
            return None

    def _checked(
        self, message: dict[str, Any], payload: memoryview
    ) -> tuple[dict[str, Any], memoryview]:
        number = message.pop("id", None)
        message.pop("bytes", None)
        if not self.asked:
            raise ProtocolBreach("spoke without being asked")
        if type(number) is not int or number != self.asked:
            shown = printable(str(number))
            raise ProtocolBreach(f"answered the request {shown}, but was asked {self.asked}")
        if self._unsent:
            raise ProtocolBreach("answered before it had the whole request")
        self.asked, self._deadline = 0, float("inf")
        return message, payload

    def _flush(self) -> None:
        """Send what waits, as far as there is room, and have the selector say when there is."""
        try:
            while self._unsent:
                sent = os.writev(self.writing, list(islice(self._unsent, _MOST_BUFFERS)))
                self._sent += sent
                while self._unsent and sent >= len(self._unsent[0]):
                    sent -= len(self._unsent.popleft())
                if sent:
                    self._unsent[0] = self._unsent[0][sent:]
        except BlockingIOError:
            pass
        except OSError:
            # It does not listen any more, but may still have something to say.
            self._unsent.clear()
        if bool(self._unsent) != (self.writing in self.selector.get_map()):
            if self._unsent:
                self.selector.register(self.writing, selectors.EVENT_WRITE)
            else:
                self.selector.unregister(self.writing)

    def _close_reading(self) -> None:
        if self.open:
            self.open = False
            if not self._ending:
                self._deadline = min(self._deadline, monotonic() + _DYING_SECONDS)
            self.selector.unregister(self.reading)
