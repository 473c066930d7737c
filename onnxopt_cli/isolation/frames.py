"""Length-capped frames on a socket between the runner and a worker: JSON, then raw bytes.

::

    magic "oxw1" | length of the JSON, uint32 | length of the payload, uint64 | JSON | payload

All numbers are little-endian. Nothing that arrives is unpickled or run; what breaks the format, or
is larger than the caps, is refused from its first bytes on. Memory is taken as bytes come, not as
they are announced, and JSON of more parts than the cap is not parsed.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from onnxopt_cli.errors import ProtocolBreach

Buffer: TypeAlias = "bytes | bytearray | memoryview"

#: Most bytes of JSON, and of payload, that a frame may have.
LARGEST_MESSAGE = 16 << 20
LARGEST_PAYLOAD = 1 << 30

# JSON of so many bytes and more is counted before it is parsed: its parts, Python's objects, take
# ten times the room of their text and more. Commas and brackets in strings count too.
_MOST_PARTS = 2 << 20

_HEADER = struct.Struct("<4sIQ")
_MAGIC = b"oxw1"


def pack(message: Any, payload: Sequence[Buffer] = ()) -> list[memoryview]:
    """Return a frame as buffers that are to be sent one after the other.

    Args:
        message: what JSON can hold.
        payload: buffers of bytes; they are not copied.
    """
    text = json.dumps(message, separators=(",", ":")).encode("ascii")
    views = [memoryview(buffer) for buffer in payload if len(buffer)]
    header = _HEADER.pack(_MAGIC, len(text), sum(view.nbytes for view in views))
    return [memoryview(header + text), *views]


class FrameReader:
    """Takes bytes as they come and yields whole frames.

    Ask :meth:`buffer` where the next bytes belong, put up to that many there, and tell
    :meth:`received` how many they were.
    """

    def __init__(self) -> None:
        self._header = bytearray(_HEADER.size)
        self._body: memoryview | None = None
        self._message_size = 0
        self._filled = 0

    @property
    def empty(self) -> bool:
        """True between two frames."""
        return self._body is None and not self._filled

    def buffer(self) -> memoryview:
        """Return the room for the next bytes, never empty."""
        target = memoryview(self._header) if self._body is None else self._body
        return target[self._filled :]

    def received(self, count: int) -> tuple[Any, memoryview] | None:
        """Return the message and payload if they are now complete.

        Raises:
            ProtocolBreach: if the bytes are no frame, or one that is too large.
        """
        self._filled += count
        if self._body is None:
            if self._filled < _HEADER.size:
                return None
            magic, message_size, payload_size = _HEADER.unpack(self._header)
            if magic != _MAGIC:
                raise ProtocolBreach(f"sent {bytes(self._header)!r}, which begins no frame")
            if message_size > LARGEST_MESSAGE or payload_size > LARGEST_PAYLOAD:
                raise ProtocolBreach(
                    f"sent a frame of {message_size} and {payload_size} bytes; "
                    f"at most {LARGEST_MESSAGE} and {LARGEST_PAYLOAD} are accepted"
                )
            self._message_size = message_size
            # Not a bytearray, which would fill all of it with zeros.
            self._body = np.empty(message_size + payload_size, np.uint8).data
            self._filled = 0
        if self._filled < len(self._body):
            return None
        body, self._body, self._filled = self._body, None, 0
        return _parse(bytes(body[: self._message_size])), body[self._message_size :]


def _parse(text: bytes) -> Any:
    if len(text) >= _MOST_PARTS:
        parts = sum(text.count(mark) for mark in (b",", b"[", b"{"))
        if parts > _MOST_PARTS:
            raise ProtocolBreach(
                f"sent a message of {parts} parts; at most {_MOST_PARTS} are accepted"
            )
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ProtocolBreach("sent a frame whose message is no JSON") from None
