"""The runner's end of a worker's socket: frames that go out and come in without ever waiting."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Sequence
from typing import Any

from onnxopt_cli.isolation.frames import FrameReader

# The system takes at most so many buffers at a time.
_MOST_BUFFERS = 64


class ChannelClosed(Exception):
    """The other end is closed."""


class Channel:
    """Frames over a socket that does not block."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._reader = FrameReader()
        self._unsent: deque[memoryview] = deque()

    @property
    def sending(self) -> bool:
        """True while something waits for room in the socket."""
        return bool(self._unsent)

    @property
    def partial(self) -> bool:
        """True while only the beginning of a frame has come."""
        return not self._reader.empty

    def send(self, frame: Sequence[memoryview]) -> None:
        """Send a frame as far as there is room; :meth:`flush` sends the rest.

        Raises:
            ChannelClosed: if the other end is closed.
        """
        self._unsent.extend(frame)
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as there is room.

        Raises:
            ChannelClosed: if the other end is closed.
        """
        while self._unsent:
            buffers = [self._unsent[i] for i in range(min(len(self._unsent), _MOST_BUFFERS))]
            try:
                sent = self.socket.sendmsg(buffers)
            except BlockingIOError:
                return
            except OSError:
                self._unsent.clear()
                raise ChannelClosed from None
            while self._unsent and sent >= len(self._unsent[0]):
                sent -= len(self._unsent.popleft())
            if sent:
                self._unsent[0] = self._unsent[0][sent:]

    def receive(self) -> tuple[Any, memoryview] | None:
        """Return the next frame, or None if it is not all there yet.

        Raises:
            ChannelClosed: if the other end is closed.
            ProtocolBreach: if what came is no frame.
        """
        while True:
            try:
                count = self.socket.recv_into(self._reader.buffer())
            except BlockingIOError:
                return None
            except OSError:
                raise ChannelClosed from None
            if not count:
                raise ChannelClosed
            frame = self._reader.received(count)
            if frame is not None:
                return frame

    def more(self) -> bool:
        """Tell whether bytes are there that belong to no frame yet received."""
        try:
            return bool(self.socket.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def finish(self) -> None:
        """Tell the other end that nothing more will be sent."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            return
