"""The format of values and messages in the protocols of workers and commands, and in logs.

A message is a line of JSON, followed by the number of raw bytes in its field ``bytes``::

    {"id": 2, "request": "run", "bytes": 8, "inputs": [{"dtype": "float32", "shape": [2]}]}

A tensor is ``{"dtype": NAME, "shape": [...]}`` in the JSON. The raw bytes hold the elements of all
tensors in the order of the JSON: little-endian, in C order, at least one byte per element. A log
has no raw bytes; in a log, the field ``data`` holds the elements in base64. For a tensor of
strings, the field ``data`` is a list of the strings. A sequence is ``{"sequence": [...]}``, a map
is ``{"map": [[key, value], ...]}``, and an empty optional is ``null``. A backend may return numbers
of an element type that ONNX lacks; such a type has its NumPy name.

Received data is never unpickled or executed. A malformed or oversized message is refused as early
as possible. Memory is allocated only for bytes that have arrived or that a limit allows. JSON with
too many parts is not parsed. The values of a message are counted while they are built.

Workers in the interpreters of plugins also use this module. It must therefore run on Python 3.9
with NumPy 1.24 and no other package.
"""

from __future__ import annotations

import base64
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from onnxopt_cli.core.text import printable
from onnxopt_cli.core.values import (
    DTYPES,
    STRING,
    Array,
    Value,
    as_strings,
    dtype_name,
    is_string,
)
from onnxopt_cli.errors import ProtocolBreach, UnusableOutput

#: Name and version of the protocol between onnxopt and backends that are commands.
PROTOCOL = "onnxopt-exec/2"

# Maximum number of bytes of a line of JSON.
_MAX_LINE_BYTES = 16 << 20
#: Maximum number of raw bytes after a line of JSON.
LARGEST_PAYLOAD = 1 << 30
# Maximum number of values in a message, including sequences and their elements.
_MAX_VALUES = 250_000

# Maximum number of parts (commas and brackets, including those in strings) of a JSON text. The
# parts are counted before parsing, because Python objects need at least ten times the memory of
# their text.
_MAX_PARTS = 2 << 20
_CHUNK_BYTES = 1 << 16
_MAX_SHOWN_BYTES = 80
_MAX_DEPTH = 32
_MAX_DIGITS = 40
_MAX_DIMENSIONS = 64
_MAX_DIMENSION = 1 << 48
# NumPy's element types that a backend may return although ONNX lacks them: long floats, dates and
# durations. Types with pointers (objects) or fields (records) are never accepted.
_FOREIGN = re.compile(r"[fc](12|16|24|32)|[mM]8(\[\w{1,12}\])?")


def read_json(text: bytes, most_parts: int = _MAX_PARTS) -> Any:
    """Parse JSON.

    Args:
        text: the JSON.
        most_parts: maximum number of parts of the text.

    Raises:
        ValueError: if the text is not UTF-8 or not JSON, if it contains NaN, an infinity or a
            duplicate field, if it is nested too deeply, or if it has too many parts.
    """
    if len(text) > most_parts:
        parts = sum(text.count(mark) for mark in (b",", b"[", b"{"))
        if parts > most_parts:
            raise ValueError(f"JSON of {parts} parts; at most {most_parts} are accepted")
    try:
        return _DECODER.decode(text.decode("utf-8"))
    except UnicodeDecodeError:
        raise ValueError("bytes that are not UTF-8") from None
    except RecursionError:
        raise ValueError("too much nesting") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"invalid JSON: {error}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field that occurs twice in one object")
    return fields


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name}, which is not JSON")


def _integer(digits: str) -> int:
    # Without this limit, float(number) could overflow. No integer type has as many digits.
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def _double(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"a number beyond the range of doubles: {digits[:40]}")
    return number


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_no_constant, parse_int=_integer, parse_float=_double
)


class ValueWriter:
    """A writer that converts values to JSON and raw bytes.

    Args:
        inline: whether the JSON contains the bytes, in base64.

    Attributes:
        buffers: the raw bytes of the values; the bytes of arrays are not copied.
    """

    def __init__(self, *, inline: bool = False) -> None:
        self.buffers: list[bytes | memoryview] = []
        self._inline = inline
        self._values = 0
        self._characters = 0

    def put(self, value: Value) -> Any:
        """Return the JSON of a value, and keep its elements as raw bytes.

        Raises:
            UnusableOutput: if a tensor's element type cannot be sent, or a limit is exceeded.
        """
        self._values += 1
        if value is None:
            return None
        if isinstance(value, list):
            return {"sequence": [self.put(item) for item in value]}
        if isinstance(value, dict):
            return {"map": [[key, self.put(item)] for key, item in value.items()]}
        described: dict[str, Any] = {"dtype": dtype_name(value.dtype), "shape": [*value.shape]}
        if is_string(value.dtype):
            described["data"] = as_strings(value).ravel().tolist()
            self._characters += sum(map(len, described["data"]))
            if not self._inline:
                # Check the limit before building the JSON, which may need much memory.
                _require_few("characters", self._characters, _MAX_LINE_BYTES)
            return described
        if described["dtype"] not in DTYPES:
            # The byte order is omitted, because it is always little-endian in a message.
            described["dtype"] = value.dtype.str[1:]
            if not _FOREIGN.fullmatch(described["dtype"]):
                raise UnusableOutput(
                    f"its element type {printable(str(value.dtype))} is not a number"
                )
        flat = _little_endian(np.ascontiguousarray(value)).reshape(-1).view(np.uint8)
        if self._inline:
            described["data"] = base64.b64encode(flat.data).decode("ascii")
        elif len(flat):
            self.buffers.append(flat.data)
        return described

    def message(self, message: Mapping[str, Any]) -> list[memoryview]:
        """Return a message with all collected values, as consecutive buffers.

        Args:
            message: fields that JSON can represent. The JSON begins with ``id``, ``request`` and
                ``bytes``, in this order, for programs without a JSON parser.

        Raises:
            UnusableOutput: if the message exceeds a limit.
        """
        views = [memoryview(buffer) for buffer in self.buffers]
        first: dict[str, Any] = {key: message[key] for key in ("id", "request") if key in message}
        if views:
            first["bytes"] = sum(view.nbytes for view in views)
            _require_few("bytes", first["bytes"], LARGEST_PAYLOAD)
        _require_few("values", self._values, _MAX_VALUES)
        line = json.dumps({**first, **message}).encode("ascii") + b"\n"
        _require_few("bytes of JSON", len(line), _MAX_LINE_BYTES)
        return [memoryview(line), *views]


def _require_few(items: str, amount: int, most: int) -> None:
    if amount > most:
        raise UnusableOutput(f"there are {amount} {items}; at most {most} are accepted")


def pack(message: Mapping[str, Any]) -> list[memoryview]:
    """Return a message without values, as consecutive buffers."""
    return ValueWriter().message(message)


class MessageReader:
    """A reader that assembles messages from the bytes that arrive."""

    def __init__(self) -> None:
        # The received bytes of an incomplete line. The first `_searched` bytes have been searched
        # for an end of line.
        self._ahead = bytearray()
        self._searched = 0
        self._chunk = memoryview(bytearray(_CHUNK_BYTES))
        self._message: dict[str, Any] | None = None
        self._payload = memoryview(b"")
        self._filled = 0

    @property
    def empty(self) -> bool:
        """True if no part of the next message has been received."""
        return self._message is None and not self._ahead

    def receive(self, read_into: Callable[[memoryview], int]) -> tuple[dict[str, Any], memoryview]:
        """Return the next message and its raw bytes.

        Args:
            read_into: a function that reads into a buffer and returns the number of bytes, or 0 if
                the other end is closed.

        Raises:
            BlockingIOError: if ``read_into`` raises this error. The next call then continues with
                the same message.
            EOFError: if the other end is closed.
            ProtocolBreach: if the bytes are not a valid message, or exceed a limit.
        """
        while not self._complete():
            room = self._chunk if self._message is None else self._payload[self._filled :]
            count = read_into(room)
            if not count:
                raise EOFError
            if self._message is None:
                self._ahead += room[:count]
            else:
                self._filled += count
        message, self._message = self._message, None
        return message or {}, self._payload

    def _complete(self) -> bool:
        if self._message is None and self._ahead:
            self._begin()
        return self._message is not None and self._filled == len(self._payload)

    def _begin(self) -> None:
        """If the line of JSON is complete, parse it and allocate the buffer for the raw bytes."""
        if not self._ahead.startswith(b"{"):
            belongs = "a command's standard output belongs to the protocol"
            raise ProtocolBreach(f"sent no line of JSON: {quoted(self._ahead)}; {belongs}")
        end = self._ahead.find(b"\n", self._searched)
        self._searched = len(self._ahead)
        if max(end, self._searched if end < 0 else 0) >= _MAX_LINE_BYTES:
            raise ProtocolBreach(f"sent a line of more than {_MAX_LINE_BYTES} bytes")
        if end < 0:
            return
        line = bytes(self._ahead[:end])
        try:
            message = read_json(line)
        except ValueError as error:
            raise ProtocolBreach(f"sent {printable(str(error))}, in {quoted(line)}") from None
        size = message.get("bytes", 0)
        if type(size) is not int or not 0 <= size <= LARGEST_PAYLOAD:
            # Show the size as JSON, which distinguishes the text "1" from the integer 1.
            size_text = printable(json.dumps(size)[:_MAX_SHOWN_BYTES])
            raise ProtocolBreach(
                f"sent a message whose number of bytes is {size_text}, expected an integer from 0 "
                f"to {LARGEST_PAYLOAD}"
            )
        # A bytearray would first be filled with zeros, which takes time.
        self._payload = np.empty(size, np.uint8).data
        received = self._ahead[end + 1 : end + 1 + size]
        self._filled = len(received)
        self._payload[: self._filled] = received
        del self._ahead[: end + 1 + self._filled]
        self._searched, self._message = 0, message


def quoted(data: bytes | bytearray | memoryview) -> str:
    """Return the beginning of received data as printable text."""
    text = printable(bytes(data[:_MAX_SHOWN_BYTES]).decode("utf-8", "backslashreplace"))
    return f"'{text}'{' ...' if len(data) > _MAX_SHOWN_BYTES else ''}"


def read_some(descriptor: int, room: memoryview) -> int:
    """Read available bytes into a buffer, and return their number, or 0 at the end."""
    return os.readv(descriptor, [room])


class ValueReader:
    """A reader of values from untrusted JSON and raw bytes.

    Args:
        payload: the raw bytes.
        alignment: each value begins at a multiple of this number of bytes, after padding.
    """

    def __init__(self, payload: memoryview | bytes = b"", alignment: int = 1) -> None:
        self._payload = memoryview(payload)
        self._alignment = alignment
        self._place = self._values = 0

    def take(self, count: int) -> memoryview:
        """Return the next ``count`` bytes.

        Raises:
            ProtocolBreach: if fewer than ``count`` bytes remain.
        """
        start = self._place + -self._place % self._alignment
        remaining = max(len(self._payload) - start, 0)
        if count > remaining:
            raise ProtocolBreach(f"sent {remaining} bytes where {count} were announced")
        self._place = start + count
        return self._payload[start : self._place]

    def value(self, described: Any, depth: int = 0) -> Value:
        """Return the value that parsed JSON describes.

        Raises:
            ProtocolBreach: if the description is invalid, or the bytes contradict it.
        """
        self._values += 1
        if self._values > _MAX_VALUES:
            raise ProtocolBreach(f"sent more than {_MAX_VALUES} values")
        if described is None:
            return None
        fields = set(described) if isinstance(described, dict) and depth <= _MAX_DEPTH else set()
        if fields == {"sequence"} and isinstance(described["sequence"], list):
            return [self.value(item, depth + 1) for item in described["sequence"]]
        if fields == {"map"} and isinstance(described["map"], list):
            pairs = [self._pair(pair, depth) for pair in described["map"]]
            if len(dict(pairs)) < len(pairs):
                raise ProtocolBreach("described a map that has a key twice")
            return dict(pairs)
        if {"dtype", "shape"} <= fields <= {"dtype", "shape", "data"}:
            return self._tensor(described["dtype"], described["shape"], described.get("data"))
        raise ProtocolBreach("described a value that is not valid")

    def end(self) -> None:
        """Check that all raw bytes have been read.

        Raises:
            ProtocolBreach: if bytes remain.
        """
        remaining = len(self._payload) - self._place
        if remaining >= self._alignment:
            raise ProtocolBreach(f"sent {remaining} bytes that belong to no value")

    def _pair(self, pair: Any, depth: int) -> tuple[int | str, Value]:
        if isinstance(pair, list) and len(pair) == 2 and type(pair[0]) in (int, str):  # noqa: PLR2004
            return pair[0], self.value(pair[1], depth + 1)
        raise ProtocolBreach("described a map that is not valid")

    def _tensor(self, name: Any, shape: Any, data: Any) -> Array:
        if (
            not isinstance(shape, list)
            or len(shape) > _MAX_DIMENSIONS
            or not all(type(length) is int and 0 <= length <= _MAX_DIMENSION for length in shape)
        ):
            raise ProtocolBreach("described a tensor whose shape is not valid")
        elements = math.prod(shape)
        if not isinstance(name, str) or (name not in DTYPES and not _FOREIGN.fullmatch(name)):
            raise ProtocolBreach(f"described a tensor of {printable(str(name))!r}")
        try:
            if name == STRING:
                if not isinstance(data, list) or not all(type(text) is str for text in data):
                    raise ProtocolBreach("described a tensor of strings without a list of them")
                return np.array(data, object).reshape(shape)
            dtype = DTYPES.get(name) or np.dtype(name)
            if data is None:
                content: bytes | memoryview = self.take(elements * dtype.itemsize)
            else:
                content = base64.b64decode(data, validate=True)
            raw = np.frombuffer(content, np.uint8)
            if dtype == np.bool_:
                raw = (raw != 0).view(np.uint8)
            array = np.require(_little_endian(raw.view(dtype)), requirements=("A", "W"))
            return array.reshape(shape)
        except (ValueError, TypeError):
            raise ProtocolBreach(f"sent a tensor that is not {printable(name)}{shape}") from None


def _little_endian(array: Array) -> Array:
    """Return an array with its bytes swapped on a big-endian machine."""
    if np.little_endian or array.dtype.itemsize == 1:
        return array
    return array.byteswap()


def run_request(
    model: bytes, inputs: Mapping[str, Value], **fields: Any
) -> tuple[dict[str, Any], ValueWriter]:
    """Return a request to run a model, and the writer that holds the request's values.

    Raises:
        UnusableOutput: if an input cannot be sent.
    """
    values = ValueWriter()
    if model:
        fields["model"] = len(model)
        values.buffers.append(model)
    named = [{"name": name, "value": values.put(value)} for name, value in inputs.items()]
    return {"request": "run", **fields, "inputs": named}, values


def read_run(
    message: Mapping[str, Any], payload: memoryview, alignment: int = 1
) -> tuple[memoryview, dict[str, Value]]:
    """Return the model and the inputs of a request from :func:`run_request`."""
    reader = ValueReader(payload, alignment)
    model = reader.take(message.get("model", 0))
    return model, {item["name"]: reader.value(item["value"]) for item in message["inputs"]}
