"""Length-capped frames on a socket between the runner and a worker: JSON, then raw bytes.

::

    magic "oxw1" | length of the JSON, uint32 | length of the payload, uint64 | JSON | payload

All numbers are little-endian. Nothing that arrives is unpickled or run; what breaks the format, or
is larger than the caps, is refused from its first bytes on. Memory is taken as bytes come, not as
they are announced, and JSON of more parts than the cap is not parsed.

A tensor is ``{"dtype": NAME, "shape": [...]}`` in the JSON, and its elements in the payload, in the
byte order of the machine and C order. A string tensor's payload is the length in bytes of each
string as uint64, then all of them in UTF-8. Element types that ONNX lacks, which a backend may
return all the same, go by NumPy's own names, as far as they are plain numbers.

Small things grow when they become Python's objects. So how many values a frame may hold, and how
much room its strings may take, is bounded, and looked at before they are built.
"""

from __future__ import annotations

import json
import math
import re
import socket
import struct
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from onnxopt_cli.core.compare import as_strings
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.values import DTYPES, STRING, Array, Value, dtype_name, is_string
from onnxopt_cli.errors import ProtocolBreach, UnusableOutput

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
    """Takes bytes as they come and yields whole frames."""

    def __init__(self) -> None:
        self._header = bytearray(_HEADER.size)
        self._body: memoryview | None = None
        self._message_size = 0
        self._filled = 0

    @property
    def empty(self) -> bool:
        """True between two frames."""
        return self._body is None and not self._filled

    def receive(self, connection: socket.socket) -> tuple[Any, memoryview]:
        """Return the message and payload of the next frame.

        Raises:
            BlockingIOError: if it is not all there, and the socket does not block.
            EOFError: if the other end is closed.
            ProtocolBreach: if the bytes are no frame, or one that is too large.
        """
        while True:
            room = memoryview(self._header) if self._body is None else self._body
            count = connection.recv_into(room[self._filled :])
            if not count:
                raise EOFError
            self._filled += count
            if self._filled == len(room) and (frame := self._complete()) is not None:
                return frame

    def _complete(self) -> tuple[Any, memoryview] | None:
        """Return a frame whose body is complete; make room for the body of one that has begun."""
        if self._body is None:
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
            if len(self._body):
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


#: Most values that a frame may hold, sequences and what they hold included.
MOST_VALUES = 250_000
#: Most bytes that the strings of a frame may take in memory, as :func:`_room` counts them.
_MOST_STRINGS = 1 << 30
# What a string takes beside its characters: the object, and its places in lists and arrays.
_STRING_BYTES = 112
_DEEPEST = 32
_MOST_DIMENSIONS = 64
_LONGEST_DIMENSION = 1 << 48
# NumPy's long floats and times; what refers to memory, or has fields, is never read.
_FOREIGN = re.compile(r"[fc](12|16|24|32)|[mM]8(\[\w{1,12}\])?")


class PayloadWriter:
    """Collects the payload of a frame."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self._values = 0
        self._text_bytes = 0

    def put(self, value: Value) -> Any:
        """Add a value's elements and return what JSON says of it.

        Raises:
            UnusableOutput: if a tensor's element type cannot be sent.
        """
        self._values += 1
        if value is None:
            return None
        if isinstance(value, list):
            return {"sequence": [self.put(item) for item in value]}
        if isinstance(value, dict):
            return {"map": [[key, self.put(item)] for key, item in value.items()]}
        shape = list(value.shape)
        if is_string(value.dtype):
            encoded = [item.encode("utf-8", "surrogatepass") for item in as_strings(value).flat]
            lengths = np.array([len(item) for item in encoded], np.uint64)
            self.buffers += [lengths.tobytes(), b"".join(encoded)]
            self._text_bytes += _room(len(encoded), len(self.buffers[-1]))
            return {"dtype": STRING, "shape": shape}
        name = dtype_name(value.dtype)
        if name not in DTYPES:
            name = value.dtype.str[1:]
            if not _FOREIGN.fullmatch(name):
                raise UnusableOutput(
                    f"its element type {printable(str(value.dtype))} is not a number"
                )
        flat = np.ascontiguousarray(value).reshape(-1)
        self.buffers.append(flat.view(np.uint8).data)
        return {"dtype": name, "shape": shape}

    def require_acceptable(self) -> None:
        """Refuse values that :class:`PayloadReader` would not take.

        Raises:
            UnusableOutput: saying of what there is too much.
        """
        size = sum(memoryview(buffer).nbytes for buffer in self.buffers)
        for what, amount, most in (
            ("values", self._values, MOST_VALUES),
            ("bytes", size, LARGEST_PAYLOAD),
            ("bytes as strings", self._text_bytes, _MOST_STRINGS),
        ):
            if amount > most:
                raise UnusableOutput(
                    f"the backend returned {amount} {what}; at most {most} are accepted"
                )


class PayloadReader:
    """Takes the payload of a frame apart, trusting nothing that its JSON says of it."""

    def __init__(self, payload: memoryview) -> None:
        self._payload = payload
        self._values = 0
        self._text_bytes = 0

    def take(self, count: int) -> memoryview:
        """Return the next bytes.

        Raises:
            ProtocolBreach: if there are fewer.
        """
        if count > len(self._payload):
            raise ProtocolBreach(f"sent {len(self._payload)} bytes where {count} were announced")
        taken, self._payload = self._payload[:count], self._payload[count:]
        return taken

    def value(self, described: Any, depth: int = 0) -> Value:
        """Return the value that JSON describes.

        Raises:
            ProtocolBreach: if it describes none, or another one than the payload holds.
        """
        self._values += 1
        if self._values > MOST_VALUES:
            raise ProtocolBreach(f"sent more than {MOST_VALUES} values")
        if described is None:
            return None
        if not isinstance(described, dict) or depth > _DEEPEST:
            raise ProtocolBreach("described a value that is not valid")
        match described:
            case {"sequence": list(items)}:
                return [self.value(item, depth + 1) for item in items]
            case {"map": list(pairs)}:
                return dict(self._pair(pair, depth) for pair in pairs)
            case {"dtype": str(name), "shape": list(shape)}:
                return self._tensor(name, shape)
        raise ProtocolBreach("described a value that is not valid")

    def end(self) -> None:
        """Make sure that all of the payload was taken.

        Raises:
            ProtocolBreach: if something is left.
        """
        if len(self._payload):
            raise ProtocolBreach(f"sent {len(self._payload)} bytes that belong to no value")

    def _pair(self, pair: Any, depth: int) -> tuple[int | str, Value]:
        match pair:
            case [int(key) | str(key), value]:
                return key, self.value(value, depth + 1)
        raise ProtocolBreach("described a map that is not valid")

    def _tensor(self, name: str, shape: list[Any]) -> Array:
        lengths = all(type(n) is int and 0 <= n <= _LONGEST_DIMENSION for n in shape)
        if len(shape) > _MOST_DIMENSIONS or not lengths:
            raise ProtocolBreach("described a tensor whose shape is not valid")
        elements = math.prod(shape)
        try:
            if name == STRING:
                return self._strings(elements).reshape(shape)
            dtype = DTYPES.get(name)
            if dtype is None:
                if not _FOREIGN.fullmatch(name):
                    raise ProtocolBreach(f"described a tensor of {printable(name)!r}")
                dtype = np.dtype(name)
            raw = np.frombuffer(self.take(elements * dtype.itemsize), np.uint8)
            if dtype == np.bool_:
                raw = raw != 0
            return np.require(raw.view(dtype), requirements="A").reshape(shape)
        except (ValueError, TypeError, UnicodeDecodeError):
            raise ProtocolBreach(f"sent a tensor that is no {printable(name)}{shape}") from None

    def _strings(self, elements: int) -> Array:
        lengths = np.frombuffer(self.take(elements * 8), np.uint64)
        size = int(lengths.sum(dtype=np.float64)) if elements else 0
        self._text_bytes += _room(elements, size)
        if self._text_bytes > _MOST_STRINGS:
            raise ProtocolBreach(
                f"sent {elements} strings, which may take {self._text_bytes} bytes; "
                f"at most {_MOST_STRINGS} are accepted"
            )
        texts = [str(self.take(length), "utf-8", "surrogatepass") for length in lengths.tolist()]
        array = np.empty(elements, object)
        array[:] = texts
        return array


def _room(strings: int, size: int) -> int:
    """Return how many bytes strings may take: up to four for each byte of their UTF-8."""
    return strings * _STRING_BYTES + 4 * size
