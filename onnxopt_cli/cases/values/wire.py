"""Parsing protobuf messages that carry no type tag, so that a wrong type is noticed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from onnxopt_cli.cases.values.malformed import Malformed

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZES = {_FIXED32: 4, _FIXED64: 8}
_WIRE_TYPES = {
    FieldDescriptor.TYPE_DOUBLE: _FIXED64,
    FieldDescriptor.TYPE_FLOAT: _FIXED32,
    FieldDescriptor.TYPE_INT32: _VARINT,
    FieldDescriptor.TYPE_INT64: _VARINT,
    FieldDescriptor.TYPE_UINT64: _VARINT,
    FieldDescriptor.TYPE_ENUM: _VARINT,
    FieldDescriptor.TYPE_STRING: _LENGTH,
    FieldDescriptor.TYPE_BYTES: _LENGTH,
    FieldDescriptor.TYPE_MESSAGE: _LENGTH,
}


def parse_strictly(message_class: type[Any], data: bytes) -> Any:
    """Parse a message and make sure that it accounts for all of the data.

    Protobuf itself keeps unknown fields silently and lets a repetition of a single field replace or
    extend the first: a tensor read as a sequence is then an empty sequence, and a sequence read as
    an optional is its last element.

    Raises:
        Malformed: if the data is damaged, has fields that the message lacks, or repeats a field
            that occurs once.
    """
    kind = message_class.DESCRIPTOR.name
    try:
        message = message_class.FromString(data)
    except DecodeError:
        raise Malformed(f"is not a {kind}: the data is damaged or cut off") from None
    message.DiscardUnknownFields()
    # Equal sizes prove that nothing was dropped or merged. Unequal ones prove nothing: packed and
    # unpacked numbers, for one, are the same message.
    if message.ByteSize() != len(data):
        fault = _fault(memoryview(data), message_class.DESCRIPTOR)
        if fault:
            raise Malformed(f"is not a {kind}: {fault}")
    return message


def _fault(data: memoryview, descriptor: Descriptor) -> str | None:
    """Say what keeps data, which protobuf has parsed, from being exactly this message."""
    blank = GetMessageClass(descriptor)()
    seen = set()
    for number, wire_type, value in _fields(data):
        field = descriptor.fields_by_number.get(number)
        if field is None:
            return f"it has a field {number}, which {descriptor.name} lacks"
        repeated = hasattr(getattr(blank, field.name), "extend")
        packed = repeated and wire_type == _LENGTH
        if wire_type != _WIRE_TYPES[field.type] and not packed:
            return f"its field {number} is no {descriptor.name}.{field.name}"
        if not repeated and number in seen:
            return f"it has the field {field.name} more than once"
        seen.add(number)
        if field.enum_type is not None and value not in field.enum_type.values_by_number:
            return f"its {field.name} has the unknown value {value}"
        if field.message_type is not None and isinstance(value, memoryview):
            fault = _fault(value, field.message_type)
            if fault:
                return f"in {field.name}, {fault}"
    return None


def _fields(data: memoryview) -> Iterator[tuple[int, int, int | memoryview | None]]:
    """Yield number, wire type and content (None if of no interest) of a message's fields."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            value, position = _varint(data, position)
            yield number, wire_type, value
        elif wire_type == _LENGTH:
            length, position = _varint(data, position)
            yield number, wire_type, data[position : position + length]
            position += length
        else:
            yield number, wire_type, None
            position += _FIXED_SIZES.get(wire_type, 0)


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the continuation bit
            return value, position
        shift += 7
