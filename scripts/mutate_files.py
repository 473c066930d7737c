"""Damage case files and ONNX test directories at random."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.message import DecodeError, EncodeError, Message
from hostile_files import Seed
from onnx import ModelProto, TensorProto

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_SCALARS = [
    b"-1", b"0", b"1e-7", b"1e999", b"-0.0", b".nan", b".inf", b"99999999999999999999999", b"0x7f",
    b"null", b"true", b"~", b"[]", b"{}", b"[[1], [1, 2]]", b"&a [1]", b"*a", b"!!binary x", b"1_0",
    b"{full: 1.0, shape: [99999, 99999]}", b"{random: {normal: {}, seed: 1}, shape: [9999999999]}",
    b"{file: ../../etc/passwd}", b"{file: /dev/zero}", b"{dtype: float32, data: [1, two]}",
    b"{dtype: float8e5m2, data: 1e9}", b"{dtype: string, data: 1}", b"{sequence: []}",
    b"{optional: }",
    b"0x" + b"f" * 257, b"-0x" + b"f" * 290, b"9" * 300, b"x" * 5000,
    b"{file: " + b"x" * 5000 + b".npy}",
    b"'\\e[31m'", b'"\\e[31m[/red]\\u202e"', b"=cmd|' /C calc'!A0", b"::error::x",
]  # fmt: skip
_BYTES = [b"\0", b"\xff", b"\n", b"\t", b":", b"- ", b"{", b"]", b"'", b'"', b"#", b"\xe2\x80\xae"]
_INTEGERS = [-(2**63), -1, 0, 1, 7, 99, 2**31 - 1, 2**31, 2**40, 2**63 - 1]
_INTEGRAL_TYPES = frozenset({1, 2, 3, 4, 7})  # the cpp_type of integers and booleans
_TEXTS = [
    "",
    "x",
    "..",
    "../x",
    "/etc/passwd",
    "\x1b[31m",
    "[/red]",
    "\u202e",
    "Loop",
    "Adam",
    "y" * 999,
    "y" * 5000,
]


def mutate(seed: Seed, donor: Seed, generator: random.Random) -> Seed:
    """Return the files of a seed with one to five changes.

    Args:
        seed: the files to damage.
        donor: files whose parts may be inserted.
        generator: the source of all choices.
    """
    files = dict(seed)
    for _ in range(generator.choice([1, 1, 1, 2, 3, 5])):
        name = generator.choice(sorted(files))
        if name.endswith(".yaml"):
            change = generator.choice(_TEXT_CHANGES)
        elif name.endswith((".onnx", ".pb")):
            change = generator.choice(_MESSAGE_CHANGES)
        else:
            change = _change_bytes
        if generator.random() < 0.08 and not name.endswith(".yaml"):  # noqa: PLR2004 - probability
            _rearrange(files, name, generator)
            if not files:
                return dict(seed)
        else:
            donor_data = generator.choice(sorted(donor.values()))
            files[name] = change(name, files[name], donor_data, generator)
    return files


def _change_bytes(_name: str, data: bytes, donor: bytes, generator: random.Random) -> bytes:
    """Delete, replace, repeat or insert bytes without regard to the format."""
    start = generator.randrange(len(data) + 1)
    end = min(len(data), start + generator.choice([1, 1, 2, 8, 64, 512]))
    middle = generator.choice(
        [
            b"",
            generator.randbytes(end - start),
            data[start:end] * generator.choice([2, 3, 50]),
            generator.choice(_BYTES),
            donor[start : start + 64],
        ]
    )
    if generator.random() < 0.1:  # noqa: PLR2004 - probability of a truncation
        return data[:start]
    return data[:start] + middle + data[end:]


def _change_number(_name: str, data: bytes, _donor: bytes, generator: random.Random) -> bytes:
    """Replace a number with a hostile value."""
    numbers = list(_NUMBER.finditer(data))
    if not numbers:
        return data
    number = generator.choice(numbers)
    return data[: number.start()] + generator.choice(_SCALARS) + data[number.end() :]


def _change_value(_name: str, data: bytes, _donor: bytes, generator: random.Random) -> bytes:
    """Replace the value of a key with a hostile value."""
    colons = list(re.finditer(rb":( |$)", data, re.MULTILINE))
    if not colons:
        return data
    colon = generator.choice(colons)
    ends = [data.find(mark, colon.end()) for mark in (b",", b"}", b"\n")]
    end = min((position for position in ends if position >= 0), default=len(data))
    return data[: colon.end()] + b" " + generator.choice(_SCALARS) + data[end:]


def _change_lines(_name: str, data: bytes, donor: bytes, generator: random.Random) -> bytes:
    """Delete, repeat, swap, indent or insert a line."""
    lines = data.splitlines(keepends=True) or [b""]
    index = generator.randrange(len(lines))
    match generator.choice(["delete", "repeat", "swap", "indent", "insert"]):
        case "delete":
            del lines[index]
        case "repeat":
            lines.insert(index, lines[generator.randrange(len(lines))])
        case "swap":
            second = generator.randrange(len(lines))
            lines[index], lines[second] = lines[second], lines[index]
        case "indent":
            lines[index] = generator.choice([b"  ", b" ", b"\t"]) + lines[index]
        case "insert":
            lines.insert(index, generator.choice(donor.splitlines(keepends=True) or [b""]))
    return b"".join(lines)


def _change_message(name: str, data: bytes, _donor: bytes, generator: random.Random) -> bytes:
    """Change one field at any depth of a protocol buffer."""
    root: Message = ModelProto() if name.endswith(".onnx") else TensorProto()
    try:
        root.ParseFromString(data)
        message = root
        while (inner := _messages_in(message)) and generator.random() < 0.8:  # noqa: PLR2004 - probability
            message = generator.choice(inner)
        _change_field(message, generator)
        return root.SerializeToString()
    except (DecodeError, EncodeError, UnicodeError, ValueError):
        return _change_bytes(name, data, b"", generator)


def _messages_in(message: Message) -> list[Message]:
    messages: list[Message] = []
    for field, value in message.ListFields():
        if field.message_type is not None:
            messages += value if isinstance(value, Sequence) else [value]
    return messages


def _change_field(message: Message, generator: random.Random) -> None:
    """Set, extend or clear one field of a message. The field need not be set before."""
    field = generator.choice(message.DESCRIPTOR.fields)
    value: Any = getattr(message, field.name)
    if field.message_type is None:
        kind = field.cpp_type
        new: object = generator.choice(_INTEGERS if kind in _INTEGRAL_TYPES else [0.0, 1e38, -1.5])
        if kind == field.CPPTYPE_STRING:
            text = generator.choice(_TEXTS)
            new = text.encode() if field.type == field.TYPE_BYTES else text
        elif kind == field.CPPTYPE_ENUM:
            new = generator.randrange(8)
        if isinstance(value, int | float | str | bytes):
            setattr(message, field.name, new)
        elif len(value) and generator.random() < 0.7:  # noqa: PLR2004 - probability of a change
            value[generator.randrange(len(value))] = new
        else:
            value.append(new)
    elif not hasattr(value, "add"):
        message.ClearField(field.name)
    elif len(value) and generator.random() < 0.5:  # noqa: PLR2004 - probability of a deletion
        del value[generator.randrange(len(value))]
    elif len(value):
        value.add().CopyFrom(generator.choice(list(value)))
    else:
        value.add()


def _rearrange(files: dict[str, bytes], name: str, generator: random.Random) -> None:
    """Remove a file, swap it with another file, or rename it."""
    data = files.pop(name)
    kind = generator.randrange(3)
    if kind == 0 and files:
        second = generator.choice(sorted(files))
        files[name], files[second] = files[second], data
    elif kind == 1:
        number = str(generator.choice([0, 1, 2, 7, 10, "x"]))
        files[re.sub(r"\d+(?=\.|/)", number, name)] = data


_Change = Callable[[str, bytes, bytes, random.Random], bytes]
_TEXT_CHANGES: list[_Change] = [
    _change_bytes,
    *(_change_number, _change_value, _change_lines) * 2,
]
_MESSAGE_CHANGES: list[_Change] = [_change_bytes, _change_message, _change_message]
