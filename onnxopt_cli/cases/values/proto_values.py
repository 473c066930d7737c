"""Values as the messages of ONNX: tensors, sequences, optionals and maps, checked both ways.

A file holds one such message and no tag that says which; the graph's declared type does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
from onnx import MapProto, OptionalProto, SequenceProto, TensorProto, TypeProto

from onnxopt_cli.cases.values.declared_type import check_type, describe_type
from onnxopt_cli.cases.values.malformed import Malformed
from onnxopt_cli.cases.values.tensor_data import array_of, tensor_of, type_name
from onnxopt_cli.cases.values.wire import parse_strictly
from onnxopt_cli.core.values import STRING, Value, describe, dtype_named

#: A message that holds a value.
Message: TypeAlias = TensorProto | SequenceProto | OptionalProto | MapProto

_MESSAGES: dict[str, type[Message]] = {
    "tensor_type": TensorProto,
    "sequence_type": SequenceProto,
    "optional_type": OptionalProto,
    "map_type": MapProto,
}
# The numbers of SequenceProto.DataType, which are those of OptionalProto.DataType too.
_ELEMENT_TYPES = {
    "tensor_type": SequenceProto.TENSOR,
    "sequence_type": SequenceProto.SEQUENCE,
    "optional_type": SequenceProto.OPTIONAL,
    "map_type": SequenceProto.MAP,
}
# The fields that hold elements, in the order of these numbers from 1 on.
_SEQUENCE_FIELDS = (
    "tensor_values",
    "sparse_tensor_values",
    "sequence_values",
    "map_values",
    "optional_values",
)
_OPTIONAL_FIELDS = (
    "tensor_value",
    "sparse_tensor_value",
    "sequence_value",
    "map_value",
    "optional_value",
)


def message_class(declared: TypeProto) -> type[Message]:
    """Return the message that holds values of a declared type.

    Raises:
        Malformed: if there is none: sparse tensors, opaque types, no type at all.
    """
    kind = declared.WhichOneof("value")
    if kind not in _MESSAGES:
        raise Malformed(f"is declared as {describe_type(declared)}, which is not supported")
    return _MESSAGES[kind]


def value_of(message: Message, declared: TypeProto) -> Value:
    """Return the value in a message.

    Raises:
        Malformed: if the message is inconsistent, or its value not of the declared type.
    """
    value = _value(message)
    check_type(value, declared)
    return value


def parse_value(data: bytes, declared: TypeProto) -> tuple[str, Value]:
    """Return the name and the value in a serialized message.

    Raises:
        Malformed: as :func:`value_of`, or if the data is not such a message; then it says what
            the data is, if anything.
    """
    message = parse_message(data, message_class(declared))
    return name_of(message), value_of(message, declared)


def parse_message(data: bytes, expected: type[Message]) -> Any:
    """Parse a serialized message of the expected class.

    Raises:
        Malformed: if the data is not such a message; then it says what the data is, if anything.
    """
    try:
        return parse_strictly(expected, data)
    except Malformed as error:
        others = [kind for kind in _MESSAGES.values() if kind is not expected]
        found = "; it holds ".join(["", *_readable_as(data, others)])
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
        field = _element_field(message, _SEQUENCE_FIELDS)
        return [_value(element) for element in getattr(message, field)] if field else []
    if isinstance(message, OptionalProto):
        field = _element_field(message, _OPTIONAL_FIELDS)
        return _value(getattr(message, field)) if field else None
    return _map(message)


def _element_field(message: SequenceProto | OptionalProto, fields: tuple[str, ...]) -> str | None:
    """Return the one field that elem_type names and that holds anything, None if none does."""
    kind = type(message).DataType
    filled = [descriptor.name for descriptor, _ in message.ListFields()]
    filled = [field for field in fields if field in filled]
    elem_type = message.elem_type
    if elem_type not in kind.values() or (elem_type == 0 and isinstance(message, SequenceProto)):
        raise Malformed(f"has the unknown elem_type {elem_type}")
    expected = fields[elem_type - 1] if elem_type else "no value"
    if filled not in ([], [expected]):
        found = " and ".join(filled)
        raise Malformed(f"has the elem_type {kind.Name(elem_type)} but {found}, not {expected}")
    if elem_type == SequenceProto.SPARSE_TENSOR:
        raise Malformed("has sparse tensors, which are not supported")
    return expected if filled else None


def _map(message: MapProto) -> dict[Any, Value]:
    key_type = type_name(message.key_type)
    keys: list[Any]
    if key_type == STRING:
        keys, others = _text_keys(message.string_keys), len(message.keys)
    else:
        keys, others = _integer_keys(message.keys, key_type), len(message.string_keys)
    if others:
        raise Malformed(f"has keys that are not of its key type {key_type}")
    values = _value(message.values) if message.HasField("values") else []
    if not isinstance(values, list) or len(values) != len(keys):
        raise Malformed(f"has {len(keys)} keys, but as values {describe(values)}")
    mapping = dict(zip(keys, values, strict=True))
    if len(mapping) != len(keys):
        raise Malformed("has a key more than once")
    return mapping


def _text_keys(keys: Iterable[bytes]) -> list[str]:
    try:
        return [key.decode() for key in keys]
    except UnicodeDecodeError:
        raise Malformed("has a key that is not UTF-8") from None


def _integer_keys(keys: Iterable[int], key_type: str) -> list[int]:
    dtype = dtype_named(key_type)
    if dtype is None or dtype.kind not in "iu":
        raise Malformed(f"has {key_type} keys; integers or strings were expected")
    limits = np.iinfo(dtype)
    # The field is int64: the upper half of uint64 stands there as negative numbers.
    converted = [key % 2**64 if key_type == "uint64" else key for key in keys]
    for key in converted:
        if not limits.min <= key <= limits.max:
            raise Malformed(f"has the key {key}, which {key_type} cannot hold")
    return converted


def _readable_as(data: bytes, classes: list[type[Message]]) -> list[str]:
    """Describe the first value that the data is in one of the classes."""
    for candidate in classes:
        try:
            message = parse_strictly(candidate, data)
            return [f"{describe(_value(message))}, as {candidate.DESCRIPTOR.name}"]
        except Malformed:
            continue
    return []


def _message(name: str, value: Value, declared: TypeProto) -> Message:
    kind = declared.WhichOneof("value")
    if isinstance(value, np.ndarray) and kind == "tensor_type":
        return tensor_of(value, name)
    if isinstance(value, list) and kind == "sequence_type":
        return _sequence_message(name, value, declared.sequence_type.elem_type)
    if isinstance(value, dict) and kind == "map_type":
        return _map_message(name, value, declared.map_type)
    return _optional_message(name, value, declared.optional_type.elem_type)


def _sequence_message(name: str, values: list[Value], element: TypeProto) -> SequenceProto:
    number = _element_type(element)
    message = SequenceProto(name=name, elem_type=number)
    field = getattr(message, _SEQUENCE_FIELDS[number - 1])
    field.extend(_message("", value, element) for value in values)
    return message


def _optional_message(name: str, value: Value, element: TypeProto) -> OptionalProto:
    if value is None:
        # onnx's own reader finds a value missing where the type of an empty optional is told.
        return OptionalProto(name=name, elem_type=OptionalProto.UNDEFINED)
    number = _element_type(element)
    message = OptionalProto(name=name, elem_type=number)
    getattr(message, _OPTIONAL_FIELDS[number - 1]).CopyFrom(_message("", value, element))
    return message


def _map_message(name: str, mapping: dict[Any, Value], declared: TypeProto.Map) -> MapProto:
    message = MapProto(name=name, key_type=declared.key_type)
    if type_name(declared.key_type) == STRING:
        message.string_keys.extend(key.encode() for key in mapping)
    else:
        message.keys.extend(key if key < 2**63 else key - 2**64 for key in mapping)
    values: list[Value] = list(mapping.values())
    message.values.CopyFrom(_sequence_message("", values, declared.value_type))
    return message


def _element_type(element: TypeProto) -> int:
    message_class(element)
    return _ELEMENT_TYPES[str(element.WhichOneof("value"))]
