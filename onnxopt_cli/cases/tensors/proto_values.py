"""Values as the messages of ONNX: tensors, sequences, optionals and maps, checked both ways.

A file holds one such message and no tag that says which; the graph's declared type does.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, TypeAlias

import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from onnx import MapProto, OptionalProto, SequenceProto, TensorProto, TypeProto, helper

from onnxopt_cli.cases.tensors.regular_file import (
    PROTOBUF_LIMIT,
    Malformed,
    open_regular_file,
    read_exactly,
    read_into,
)
from onnxopt_cli.cases.tensors.tensor_data import (
    array_of,
    tensor_of,
    type_name,
)
from onnxopt_cli.core.blocks import room
from onnxopt_cli.core.values import (
    STRING,
    Array,
    Value,
    describe,
    dtype_name,
    dtype_named,
)

#: A message that holds a value.
Message: TypeAlias = TensorProto | SequenceProto | OptionalProto | MapProto

# Of files that are larger, the raw data are read apart if they begin within the head.
_LARGE_BYTES, _HEAD_BYTES = 1 << 20, 1 << 16

# How a field begins: its key, and its value or the length of its data. Both are numbers in base
# 128, the lowest digit first, of which all but the last have the high bit set.
_FIELD = re.compile(rb"([\x80-\xff]{0,9}[\x00-\x7f])" * 2)

# In the order of the numbers that SequenceProto and OptionalProto have for what they hold, from 1
# on; the fields are called tensor_type, tensor_value and tensor_values.
_KINDS: dict[str, type[Message] | None] = {
    "tensor": TensorProto,
    "sparse_tensor": None,
    "sequence": SequenceProto,
    "map": MapProto,
    "optional": OptionalProto,
}


def message_class(declared: TypeProto) -> type[Message]:
    """Return the message that holds values of a declared type.

    Raises:
        Malformed: if there is none: sparse tensors, opaque types, no type at all.
    """
    found = _KINDS.get(_kind(declared))
    if found is None:
        raise Malformed(f"is declared as {describe_type(declared)}, which is not supported")
    return found


def _kind(declared: TypeProto) -> str:
    return (declared.WhichOneof("value") or "").removesuffix("_type")


def value_of(message: Message, declared: TypeProto, raw_data: Array | None = None) -> Value:
    """Return the value in a message.

    Args:
        message: the message.
        declared: its type.
        raw_data: what :func:`read_message` has read apart.

    Raises:
        Malformed: if the message is inconsistent, or its value not of the declared type.
    """
    if raw_data is not None and not isinstance(message, TensorProto):
        raise Malformed(f"is a tensor, but declared as {describe_type(declared)}")
    value = _value(message) if raw_data is None else array_of(message, raw_data)
    check_type(value, declared)
    return value


def read_message(
    path: Path, limit: int = PROTOBUF_LIMIT, *, links: bool = True
) -> tuple[bytes, Array | None]:
    """Read a file that holds a message, the raw data of a large tensor apart: without a copy.

    The file is read and not mapped: who cuts a mapped file short ends whoever looks at it.

    Returns:
        The message, and its ``raw_data`` as uint8 if the message is a tensor without it.

    Raises:
        Malformed: as :func:`~onnxopt_cli.cases.tensors.regular_file.read_regular_file` does.
    """
    with open_regular_file(path, limit=limit, links=links) as (descriptor, status):
        size = status.st_size
        if size < _LARGE_BYTES:
            return read_exactly(descriptor, size), None
        head = read_exactly(descriptor, _HEAD_BYTES)
        begin, start, length = _large_field(head, TensorProto.RAW_DATA_FIELD_NUMBER)
        if not length or start + length > size:
            return head + read_exactly(descriptor, size - _HEAD_BYTES), None
        raw = room(length, np.dtype(np.uint8))
        raw[: _HEAD_BYTES - start] = np.frombuffer(head, np.uint8)[start : start + length]
        read_into(descriptor, raw.data[_HEAD_BYTES - start :])
        tail = read_exactly(descriptor, size - start - length)
    with suppress(Malformed):
        if not parse_strictly(TensorProto, head[:begin] + tail).HasField("raw_data"):
            return head[:begin] + tail, raw
    return b"".join([head[:start], raw.data, tail]), None


def _large_field(head: bytes, number: int) -> tuple[int, int, int]:
    """Return where a long field of a message begins, and its data, and their length; 0 if none.

    Args:
        head: the beginning of the message.
        number: of the field.
    """
    at = 0
    while field := _FIELD.match(head, at):
        key, length = (
            sum((digit & 0x7F) << 7 * place for place, digit in enumerate(digits))
            for digits in field.groups()
        )
        if key & 7 not in (0, _LENGTH):
            break
        if key == number << 3 | _LENGTH and length >= _LARGE_BYTES // 2 and field.end() < len(head):
            return at, field.end(), length
        # A length may be more than any place of a text.
        at = min(field.end() + (length if key & 7 else 0), len(head))
    return 0, 0, 0


def parse_message(data: bytes, expected: type[Message]) -> Any:
    """Parse a serialized message of the expected class.

    Raises:
        Malformed: if the data is not such a message; then it says what the data is, if anything.
    """
    try:
        return parse_strictly(expected, data)
    except Malformed as error:
        found = ""
        for other in _KINDS.values():
            if other is not None and not found:
                with suppress(Malformed):
                    value = describe(_value(parse_strictly(other, data)))
                    found = f"; it holds {value}, as {other.DESCRIPTOR.name}"
        raise Malformed(f"{error}{found}") from None


def name_of(message: Message) -> str:
    """Return the name in a message, or an empty string.

    Raises:
        Malformed: if the name is not UTF-8.
    """
    # Protobuf yields bytes where a string field is not UTF-8.
    if not isinstance(message.name, str):
        raise Malformed(f"has a name that is not UTF-8: {message.name[:40]!r}")
    return message.name


def message_of(name: str, value: Value, declared: TypeProto) -> Message:
    """Return the message that holds a value of a declared type, with the value's name.

    Raises:
        ValueError: if the value is not of that type.
    """
    try:
        check_type(value, declared)
        return _message(name, value, declared)
    except Malformed as error:
        raise ValueError(f"{name} {error}") from None


def _value(message: Any) -> Value:
    if isinstance(message, TensorProto):
        return array_of(message)
    if isinstance(message, SequenceProto):
        return list(map(_value, getattr(message, _held(message, "values") or "", ())))
    if isinstance(message, OptionalProto):
        field = _held(message, "value")
        return _value(getattr(message, field)) if field else None
    return _map(message)


def _held(message: SequenceProto | OptionalProto, ending: str) -> str | None:
    """Return the one field that elem_type names and that holds anything, None if none does."""
    types = type(message).DataType
    fields = [f"{kind}_{ending}" for kind in _KINDS]
    filled = [field.name for field, _ in message.ListFields() if field.name in fields]
    elem_type = message.elem_type
    if elem_type not in types.values() or (elem_type == 0 and isinstance(message, SequenceProto)):
        raise Malformed(f"has the unknown elem_type {elem_type}")
    expected = fields[elem_type - 1] if elem_type else "no value"
    if filled not in ([], [expected]):
        found = " and ".join(filled)
        raise Malformed(f"has the elem_type {types.Name(elem_type)} but {found}, not {expected}")
    if elem_type == SequenceProto.SPARSE_TENSOR:
        raise Malformed("has sparse tensors, which are not supported")
    return expected if filled else None


def _map(message: MapProto) -> dict[Any, Value]:
    key_type = type_name(message.key_type)
    keys: list[Any]
    if key_type == STRING:
        others = len(message.keys)
        try:
            keys = [key.decode() for key in message.string_keys]
        except UnicodeDecodeError:
            raise Malformed("has a key that is not UTF-8") from None
    else:
        # The field is int64: the upper half of uint64 stands there as negative numbers.
        unsigned = key_type == "uint64"
        keys = [key % 2**64 if unsigned else key for key in message.keys]
        allowed, others = _keys_of(key_type), len(message.string_keys)
        if not allowed:
            raise Malformed(f"has {key_type} keys; integers or strings were expected")
        if wrong := [key for key in keys if key not in allowed]:
            raise Malformed(f"has the key {wrong[0]}, which {key_type} cannot hold")
    if others:
        raise Malformed(f"has keys that are not of its key type {key_type}")
    values = _value(message.values) if message.HasField("values") else []
    if not isinstance(values, list) or len(values) != len(keys):
        raise Malformed(f"has {len(keys)} keys, but as values {describe(values)}")
    mapping = dict(zip(keys, values, strict=True))
    if len(mapping) != len(keys):
        raise Malformed("has a key more than once")
    return mapping


def _keys_of(key_type: str) -> range:
    """Return the keys that maps of an integer type may have; none where it is another type."""
    dtype = dtype_named(key_type)
    if dtype is None or dtype.kind not in "iu":
        return range(0)
    return range(np.iinfo(dtype).min, int(np.iinfo(dtype).max) + 1)


def _message(name: str, value: Value, declared: TypeProto) -> Message:
    if isinstance(value, np.ndarray) and declared.HasField("tensor_type"):
        return tensor_of(value, name)
    if isinstance(value, list) and declared.HasField("sequence_type"):
        return _sequence_message(name, value, declared.sequence_type.elem_type)
    if isinstance(value, dict) and declared.HasField("map_type"):
        kind = declared.map_type
        keys = [
            key.encode() if isinstance(key, str) else key if key < 2**63 else key - 2**64
            for key in value
        ]
        values = _sequence_message("", list(value.values()), kind.value_type)
        return helper.make_map(name, kind.key_type, keys, values)
    if value is None:
        # onnx's own reader finds a value missing where the type of an empty optional is told.
        return helper.make_optional(name, OptionalProto.UNDEFINED, None)
    element = declared.optional_type.elem_type
    return helper.make_optional(name, _number(element), _message("", value, element))


def _sequence_message(name: str, values: list[Value], element: TypeProto) -> SequenceProto:
    held = [_message("", value, element) for value in values]
    return helper.make_sequence(name, _number(element), held)


def _number(element: TypeProto) -> Any:
    """Return the number that SequenceProto and OptionalProto, each by itself, have for a type."""
    message_class(element)
    return list(_KINDS).index(_kind(element)) + 1


def check_type(value: Value, declared: TypeProto, place: str = "") -> None:
    """Make sure that a value has the declared structure, element types and static dimensions.

    Args:
        value: the value.
        declared: its type; an undefined element type and a missing shape allow any.
        place: the way into the value, for the message.

    Raises:
        Malformed: if it has not.
    """
    kind = _kind(declared)
    fits = True
    if kind == "tensor" and isinstance(value, np.ndarray):
        fits = _tensor_fits(value, declared.tensor_type)
    elif kind == "sequence" and isinstance(value, list):
        for index, element in enumerate(value):
            check_type(element, declared.sequence_type.elem_type, f"{place}[{index}]")
    elif kind == "map" and isinstance(value, dict):
        for key, element in value.items():
            _check_key(key, declared.map_type.key_type, place)
            check_type(element, declared.map_type.value_type, f"{place}[{shortened(key)}]")
    elif kind == "optional":
        if value is not None:
            check_type(value, declared.optional_type.elem_type, place)
    else:
        fits = False
    if not fits:
        where = f"at {place} " if place else ""
        raise Malformed(f"{where}is {describe(value)}, but declared as {describe_type(declared)}")


def describe_type(declared: TypeProto) -> str:
    """Show a declared type as values are shown: ``float32[2,N]``, ``sequence of float32[...]``."""
    kind = _kind(declared)
    if kind == "tensor":
        tensor = declared.tensor_type
        sizes = (
            str(it.dim_value if it.HasField("dim_value") else it.dim_param or "?")
            for it in tensor.shape.dim
        )
        shape = ",".join(sizes) if tensor.HasField("shape") else "..."
        return f"{type_name(tensor.elem_type) if tensor.elem_type else 'any'}[{shape}]"
    if kind == "sequence":
        return f"sequence of {describe_type(declared.sequence_type.elem_type)}"
    if kind == "optional":
        return f"optional {describe_type(declared.optional_type.elem_type)}"
    if kind == "map":
        keys, values = declared.map_type.key_type, declared.map_type.value_type
        return f"map of {type_name(keys)} to {describe_type(values)}"
    return kind.replace("_", " ") or "nothing"


# Some exporters write it, and onnx's checker takes it.
_UNKNOWN_SIZE = -1


def _tensor_fits(array: Array, declared: TypeProto.Tensor) -> bool:
    if declared.elem_type and dtype_name(array.dtype) != type_name(declared.elem_type):
        return False
    if not declared.HasField("shape"):
        return True
    dimensions = declared.shape.dim
    return len(dimensions) == array.ndim and all(
        not dimension.HasField("dim_value") or dimension.dim_value in (size, _UNKNOWN_SIZE)
        for dimension, size in zip(dimensions, array.shape, strict=True)
    )


def _check_key(key: object, key_type: int, place: str) -> None:
    name = type_name(key_type)
    fits = isinstance(key, str if name == STRING else int)
    if not fits or (name != STRING and key not in _keys_of(name)):
        where = f" at {place}" if place else ""
        raise Malformed(f"has the key {shortened(key)}{where}, but declares {name} keys")


# How a field is encoded, by what it is in memory; of other kinds ONNX has none but integers.
_WIRE_TYPES = {
    FieldDescriptor.CPPTYPE_DOUBLE: 1,
    FieldDescriptor.CPPTYPE_STRING: 2,
    FieldDescriptor.CPPTYPE_MESSAGE: 2,
    FieldDescriptor.CPPTYPE_FLOAT: 5,
}
_LENGTH = 2


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
    if message.ByteSize() != len(data) and (fault := _fault(data, message_class.DESCRIPTOR)):
        raise Malformed(f"is not a {kind}: {fault}")
    return message


def _fault(data: bytes, descriptor: Descriptor) -> str | None:
    """Say what keeps data, which protobuf has parsed, from being exactly this message."""
    seen = set()
    # To a message without fields all of them are unknown ones.
    for found in UnknownFieldSet(Empty.FromString(data)):
        number, wire_type = found.field_number, found.wire_type
        field = descriptor.fields_by_number.get(number)
        if field is None:
            return f"it has a field {number}, which {descriptor.name} lacks"
        packed = field.is_repeated and wire_type == _LENGTH
        if wire_type != _WIRE_TYPES.get(field.cpp_type, 0) and not packed:
            return f"its field {number} is no {descriptor.name}.{field.name}"
        if not field.is_repeated and number in seen:
            return f"it has the field {field.name} more than once"
        seen.add(number)
        if field.enum_type is not None and found.data not in field.enum_type.values_by_number:
            return f"its {field.name} has the unknown value {found.data}"
        if field.message_type and (fault := _fault(found.data, field.message_type)):
            return f"in {field.name}, {fault}"
    return None
