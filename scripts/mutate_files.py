"""Damage done at random to case files and ONNX directories, the same for the same generator."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

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
_INTEGRAL = frozenset({1, 2, 3, 4, 7})  # the cpp_type of integers and truth values
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


def mutate(seed: Seed, other: Seed, generator: random.Random) -> Seed:
    """Return the seed with one to five things changed.

    Args:
        seed: the files to damage.
        other: files to take parts from.
        generator: what chooses.
    """
    files = dict(seed)
    for _ in range(generator.choice([1, 1, 1, 2, 3, 5])):
        name = generator.choice(sorted(files))
        if name.endswith(".yaml"):
            change = generator.choice(_IN_TEXT)
        elif name.endswith((".onnx", ".pb")):
            change = generator.choice(_IN_MESSAGE)
        else:
            change = _damage
        if generator.random() < 0.08 and not name.endswith(".yaml"):  # noqa: PLR2004 - one in twelve
            _rearrange(files, name, generator)
            if not files:
                return dict(seed)
        else:
            part = generator.choice(sorted(other.values()))
            files[name] = change(name, files[name], part, generator)
    return files


def _damage(_name: str, data: bytes, other: bytes, generator: random.Random) -> bytes:
    """Change bytes, whatever they mean."""
    start = generator.randrange(len(data) + 1)
    end = min(len(data), start + generator.choice([1, 1, 2, 8, 64, 512]))
    middle = generator.choice(
        [
            b"",
            generator.randbytes(end - start),
            data[start:end] * generator.choice([2, 3, 50]),
            generator.choice(_BYTES),
            other[start : start + 64],
        ]
    )
    if generator.random() < 0.1:  # noqa: PLR2004 - cut short one time in ten
        return data[:start]
    return data[:start] + middle + data[end:]


def _number(_name: str, data: bytes, _other: bytes, generator: random.Random) -> bytes:
    """Put a value that means harm in the place of a number."""
    found = list(_NUMBER.finditer(data))
    if not found:
        return data
    place = generator.choice(found)
    return data[: place.start()] + generator.choice(_SCALARS) + data[place.end() :]


def _value(_name: str, data: bytes, _other: bytes, generator: random.Random) -> bytes:
    """Put a value that means harm behind a key."""
    found = list(re.finditer(rb":( |$)", data, re.MULTILINE))
    if not found:
        return data
    place = generator.choice(found)
    ends = [data.find(mark, place.end()) for mark in (b",", b"}", b"\n")]
    end = min((at for at in ends if at >= 0), default=len(data))
    return data[: place.end()] + b" " + generator.choice(_SCALARS) + data[end:]


def _lines(_name: str, data: bytes, other: bytes, generator: random.Random) -> bytes:
    """Leave out, repeat, swap, indent or borrow a line."""
    lines = data.splitlines(keepends=True) or [b""]
    at = generator.randrange(len(lines))
    kind = generator.randrange(5)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(at, lines[generator.randrange(len(lines))])
    elif kind == 2:  # noqa: PLR2004 - one of five
        to = generator.randrange(len(lines))
        lines[at], lines[to] = lines[to], lines[at]
    elif kind == 3:  # noqa: PLR2004 - one of five
        lines[at] = generator.choice([b"  ", b" ", b"\t"]) + lines[at]
    else:
        lines.insert(at, generator.choice(other.splitlines(keepends=True) or [b""]))
    return b"".join(lines)


def _field(name: str, data: bytes, _other: bytes, generator: random.Random) -> bytes:
    """Change a field somewhere in a message."""
    whole: Message = ModelProto() if name.endswith(".onnx") else TensorProto()
    try:
        whole.ParseFromString(data)
        message = whole
        while (inner := _messages_in(message)) and generator.random() < 0.8:  # noqa: PLR2004 - deep
            message = generator.choice(inner)
        _change_field(message, generator)
        return whole.SerializeToString()
    except (DecodeError, EncodeError, UnicodeError, ValueError):
        return _damage(name, data, b"", generator)


def _messages_in(message: Message) -> list[Message]:
    found: list[Message] = []
    for field, value in message.ListFields():
        if field.message_type is not None:
            found += value if isinstance(value, Sequence) else [value]
    return found


def _change_field(message: Message, generator: random.Random) -> None:
    """Change, add or leave out one field of a message, given or not."""
    field = generator.choice(message.DESCRIPTOR.fields)
    value = getattr(message, field.name)
    if field.message_type is None:
        kind = field.cpp_type
        new: object = generator.choice(_INTEGERS if kind in _INTEGRAL else [0.0, 1e38, -1.5])
        if kind == field.CPPTYPE_STRING:
            text = generator.choice(_TEXTS)
            new = text.encode() if field.type == field.TYPE_BYTES else text
        elif kind == field.CPPTYPE_ENUM:
            new = generator.randrange(8)
        if isinstance(value, int | float | str | bytes):
            setattr(message, field.name, new)
        elif len(value) and generator.random() < 0.7:  # noqa: PLR2004 - change rather than grow
            value[generator.randrange(len(value))] = new
        else:
            value.append(new)
    elif not isinstance(value, Sequence):
        message.ClearField(field.name)
    elif len(value) and generator.random() < 0.5:  # noqa: PLR2004 - even odds
        del value[generator.randrange(len(value))]
    elif len(value):
        value.add().CopyFrom(generator.choice(list(value)))
    else:
        value.add()


def _rearrange(files: dict[str, bytes], name: str, generator: random.Random) -> None:
    """Take a file away, swap it with another, or give it another name."""
    data = files.pop(name)
    kind = generator.randrange(3)
    if kind == 0 and files:
        other = generator.choice(sorted(files))
        files[name], files[other] = files[other], data
    elif kind == 1:
        number = str(generator.choice([0, 1, 2, 7, 10, "x"]))
        files[re.sub(r"\d+(?=\.|/)", number, name)] = data


_IN_TEXT = [_damage, _number, _number, _value, _value, _lines, _lines]
_IN_MESSAGE = [_damage, _field, _field]
