"""Sends requests to an untrusted process (a worker or a command), and reads its responses.

Each request has a number and a deadline. Output violates the protocol if it arrives without a
request, before the whole request has been sent, or after the response. Thus no output is mistaken
for the response to another request. After a violation, an exit or a timeout, the caller kills the
process.

Error messages have no subject, as in "did not respond within 5 s", because the caller adds the name
of the process.
"""

from __future__ import annotations

import json
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
from onnxopt_cli.core.text import clipped, exit_text, printable
from onnxopt_cli.errors import (
    BackendDied,
    BackendHangs,
    ProtocolBreach,
)

#: Seconds between checks of the clock in an idle loop.
TICK_SECONDS = 0.05

# Seconds that a process has to end after it has closed its channel. The exit code can be reported
# only if the process ends.
_DYING_SECONDS = 1.0
# The type in which the ioctl FIONREAD returns the number of unread bytes in a pipe.
_INT = struct.Struct("i")
# The largest number of buffers in one call of writev, which systems limit.
_MAX_BUFFERS = 64
# A message displays at most this number of characters of an invalid request number.
_MAX_SHOWN_CHARS = 200
# Request numbers are unique across all processes, so that a repeated response is detected.
_numbers = count(1)


@dataclass(eq=False)
class Conversation:
    """A channel to a process for requests and responses.

    The method :meth:`wait` blocks; all other methods return immediately.

    Attributes:
        process: the process.
        reading: the descriptor from which responses are read.
        writing: a different descriptor, to which requests are written.
        finish: closes the writing end, so that the process sees the end of its requests.
        selector: the selector that watches ``reading`` while data may arrive, and ``writing`` while
            data remain to be sent.
        open: True until the process has closed its channel.
        pending: number of the request that awaits its response; 0 if no request does.
        reader: parses the responses.
    """

    process: subprocess.Popen[bytes]
    reading: int
    writing: int
    finish: Callable[[], None]
    selector: selectors.BaseSelector
    open: bool = True
    pending: int = 0
    reader: MessageReader = field(default_factory=MessageReader)
    _ending: bool = False
    # Buffers that have not fitted into the channel yet.
    _unsent: deque[memoryview] = field(default_factory=deque)
    # Number of bytes of the last request that were written to the channel.
    _sent: int = 0
    _seconds: float = float("inf")
    _deadline: float = float("inf")

    def __post_init__(self) -> None:
        for descriptor in (self.reading, self.writing):
            os.set_blocking(descriptor, False)
        self.selector.register(self.reading, selectors.EVENT_READ)

    def send(
        self, message: dict[str, Any], seconds: float, values: ValueWriter | None = None
    ) -> None:
        """Send a request; :meth:`poll` sends the part that does not fit into the channel.

        Args:
            message: the request, without its number.
            seconds: the time limit of the response.
            values: the raw bytes of the values in the message.

        Raises:
            UnusableOutput: if the request exceeds the size limit of messages.
        """
        number = next(_numbers)
        frame = (values or ValueWriter()).message({"id": number, **message})
        self.pending, self._sent = number, 0
        self._allow(seconds)
        self._unsent.extend(frame)
        self._flush()

    def end(self, seconds: float, *, tell: bool = True) -> None:
        """Close the input of the process, which tells the process to end.

        Args:
            seconds: the time that the process has to end.
            tell: whether to send the request ``shutdown`` first.
        """
        if tell:
            self.send({"request": "shutdown"}, seconds)
        self._allow(seconds)
        self._ending = True
        self._unsent.clear()
        self._flush()
        with suppress(OSError):
            self.finish()

    def poll(self) -> tuple[dict[str, Any], memoryview] | None:
        """Return the response and its raw bytes, or None while the response is incomplete.

        Raises:
            ProtocolBreach: if the process sent anything but one response to the last request.
            BackendDied: if the process has ended, or has closed its channel but does not end.
            BackendHangs: if the process did not respond in time.
        """
        # Check the exit code before reading the channel. If the process has ended, the channel then
        # contains everything that the process sent.
        code = self.process.poll()
        if self._unsent:
            self._flush()
        response = self._received()
        if response is not None:
            return self._checked(*response)
        if not self.pending and not self.reader.empty:
            raise ProtocolBreach("sent a message that was not requested")
        if code is not None:
            raise BackendDied(exit_text(code))
        if monotonic() > self._deadline:
            if self._ending:
                raise BackendHangs(f"did not end within {self._seconds:g} s after shutdown")
            if not self.open:
                raise BackendDied("closed its channel")
            raise BackendHangs(f"did not respond within {self._seconds:g} s")
        return None

    def wait(self) -> tuple[dict[str, Any], memoryview]:
        """Wait for the response, and return the response with its raw bytes.

        Raises:
            ProtocolBreach, BackendDied, BackendHangs: as :meth:`poll` does.
        """
        while (response := self.poll()) is None:
            seconds_left = max(0.0, self._deadline - monotonic())
            tick = TICK_SECONDS if self.open else TICK_SECONDS / 10
            self.selector.select(min(seconds_left, tick))
        return response

    def unread(self) -> bool:
        """Return whether the process has read no bytes of the last request.

        The result is False if the system cannot tell how many bytes of the pipe are unread.
        """
        if not self._sent:
            return True
        waiting = bytes(_INT.size)
        with suppress(ImportError, OSError):
            import fcntl
            import termios

            waiting = fcntl.ioctl(self.writing, termios.FIONREAD, waiting)
        return _INT.unpack(waiting)[0] == self._sent

    def require_no_more(self) -> None:
        """Check that the process has sent nothing after its response.

        Raises:
            ProtocolBreach: if the process has sent further bytes.
        """
        surplus = b""
        if self.open:
            with suppress(OSError):
                surplus = os.read(self.reading, 1)
        if surplus or not self.reader.empty:
            raise ProtocolBreach("sent output after its response")

    def close(self) -> None:
        """Discard unsent data and unregister the descriptors; the caller closes the descriptors."""
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
            # Without a pending request, the method `poll` reports any output as unrequested, even
            # if the output is malformed.
            if self.pending:
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
        if not self.pending:
            raise ProtocolBreach("sent a message that was not requested")
        if type(number) is not int or number != self.pending:
            # The number is shown as JSON, which distinguishes the text "1" from the integer 1.
            request_text = printable(clipped(json.dumps(number), _MAX_SHOWN_CHARS))
            raise ProtocolBreach(
                f"responded to the request {request_text} instead of {self.pending}"
            )
        if self._unsent:
            raise ProtocolBreach("responded before it had received the whole request")
        self.pending, self._deadline = 0, float("inf")
        return message, payload

    def _flush(self) -> None:
        """Write unsent data without blocking.

        If data remain, the channel is registered for writing.
        """
        try:
            while self._unsent:
                sent = os.writev(self.writing, list(islice(self._unsent, _MAX_BUFFERS)))
                self._sent += sent
                while self._unsent and sent >= len(self._unsent[0]):
                    sent -= len(self._unsent.popleft())
                if sent:
                    self._unsent[0] = self._unsent[0][sent:]
        except BlockingIOError:
            pass
        except OSError:
            # The process has closed its input, but its output may still contain a response.
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
