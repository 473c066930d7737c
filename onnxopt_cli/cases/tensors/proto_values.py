"""Converts values to and from ONNX messages of tensors, sequences, optionals and maps.

A file contains a message, but does not name the class of the message; the class follows from the
type that the graph declares. Values are checked against the declared type when they are read and
written. The sizes of a tensor are validated before its elements are converted.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import onnx
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from onnx import (
    MapProto,
    OptionalProto,
    SequenceProto,
    TensorProto,
    TypeProto,
    helper,
    numpy_helper,
)

from onnxopt_cli.core.blocks import room
from onnxopt_cli.core.untrusted_files import (
    PROTOBUF_LIMIT,
    Malformed,
    open_regular_file,
    read_exactly,
    read_into,
)
from onnxopt_cli.core.values import (
    DTYPES,
    STRING,
    Array,
    Value,
    describe,
    dtype_name,
    dtype_named,
)

#: The ONNX messages that contain a value.
Message: TypeAlias = TensorProto | SequenceProto | OptionalProto | MapProto

# Least number of bytes of a file whose raw data are read separately.
_LARGE_BYTES = 1 << 20
# The raw data of a message are read separately only if they begin within this number of bytes.
_HEAD_BYTES = 1 << 16

# Matches the beginning of a field: its key, followed by its value or the length of its data. The
# key and the length are varints: numbers in base 128 with the lowest digit first; the high bit is
# set in all digits but the last.
_FIELD = re.compile(rb"([\x80-\xff]{0,9}[\x00-\x7f])" * 2)

# The kinds of values, in the order of their numbers in the field elem_type of SequenceProto and
# OptionalProto; the numbers begin with 1. Names of fields begin with the kind: tensor_type,
# tensor_value, tensor_values.
_KINDS: dict[str, type[Message] | None] = {
    "tensor": TensorProto,
    "sparse_tensor": None,
    "sequence": SequenceProto,
    "map": MapProto,
    "optional": OptionalProto,
}


def message_class(declared: TypeProto) -> type[Message]:
    """Return the class of messages for values of a declared type.

    Raises:
        Malformed: if the type is not supported: sparse tensors, opaque types, a missing type.
    """
    message = _KINDS.get(_kind(declared))
    if message is None:
        raise Malformed(f"is declared as {describe_type(declared)}, which is not supported")
    return message


def _kind(declared: TypeProto) -> str:
    return (declared.WhichOneof("value") or "").removesuffix("_type")


def value_of(message: Message, declared: TypeProto, raw_data: Array | None = None) -> Value:
    """Return the value that a message contains.

    Args:
        message: the message.
        declared: its type.
        raw_data: the raw data that :func:`read_message` has read separately.

    Raises:
        Malformed: if the message is inconsistent, or its value is not of the declared type.
    """
    if raw_data is not None and not isinstance(message, TensorProto):
        raise Malformed(f"is a tensor, but declared as {describe_type(declared)}")
    value = _value(message) if raw_data is None else array_of(message, raw_data)
    check_type(value, declared)
    return value


def read_message(
    path: Path, limit: int = PROTOBUF_LIMIT, *, links: bool = True
) -> tuple[bytes, Array | None]:
    """Read a file that contains a message.

    The raw data of a large tensor are read separately, which saves a copy of the data. The file is
    not mapped, because reading a mapped file that another program truncates would end the process.

    Returns:
        The message, and the raw data as uint8. If no raw data have been separated from the message,
        None is returned in place of the raw data.

    Raises:
        Malformed: in the same cases as
            :func:`~onnxopt_cli.core.untrusted_files.read_regular_file`.
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
    """Find a field of a message by its number; a field with little data is not found.

    Args:
        head: the beginning of the message.
        number: the number of the field.

    Returns:
        The offsets of the field and of its data, and the length of the data; all 0 if the message
        has no such field.
    """
    offset = 0
    while field := _FIELD.match(head, offset):
        key, length = (
            sum((digit & 0x7F) << 7 * place for place, digit in enumerate(digits))
            for digits in field.groups()
        )
        if key & 7 not in (0, _LENGTH):
            break
        if key == number << 3 | _LENGTH and length >= _LARGE_BYTES // 2 and field.end() < len(head):
            return offset, field.end(), length
        # A length may exceed the largest offset that `re` accepts.
        offset = min(field.end() + (length if key & 7 else 0), len(head))
    return 0, 0, 0


def parse_message(data: bytes, expected: type[Message]) -> Any:
    """Parse a serialized message of the expected class.

    Raises:
        Malformed: if the data is not a message of the expected class. If the data is a message of
            another class, the error names the other class.
    """
    try:
        return parse_strictly(expected, data)
    except Malformed as error:
        alternative = ""
        for message_type in _KINDS.values():
            if message_type is not None and not alternative:
                with suppress(Malformed):
                    value = describe(_value(parse_strictly(message_type, data)))
                    alternative = f"; it holds {value}, as {message_type.DESCRIPTOR.name}"
        raise Malformed(f"{error}{alternative}") from None


def name_of(message: Message) -> str:
    """Return the name in a message, or an empty string.

    Raises:
        Malformed: if the name is not UTF-8.
    """
    # Protobuf returns bytes for a string field that is not UTF-8.
    if not isinstance(message.name, str):
        raise Malformed(f"has a name that is not UTF-8: {message.name[:40]!r}")
    return message.name


def message_of(name: str, value: Value, declared: TypeProto) -> Message:
    """Convert a value of a declared type to a message that contains the value and its name.

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
        return list(map(_value, getattr(message, _filled_field(message, "values") or "", ())))
    if isinstance(message, OptionalProto):
        field = _filled_field(message, "value")
        return _value(getattr(message, field)) if field else None
    return _map(message)


def _filled_field(message: SequenceProto | OptionalProto, ending: str) -> str | None:
    """Return the name of the field that elem_type selects; None if that field is empty.

    Raises:
        Malformed: if elem_type is unknown, or another field has content.
    """
    types = type(message).DataType
    fields = [f"{kind}_{ending}" for kind in _KINDS]
    filled = [field.name for field, _ in message.ListFields() if field.name in fields]
    elem_type = message.elem_type
    if elem_type not in types.values() or (elem_type == 0 and isinstance(message, SequenceProto)):
        raise Malformed(f"has the unknown elem_type {elem_type}")
    expected = fields[elem_type - 1] if elem_type else "no value"
    if filled not in ([], [expected]):
        content = " and ".join(filled)
        raise Malformed(f"has the elem_type {types.Name(elem_type)} but {content}, not {expected}")
    if elem_type == SequenceProto.SPARSE_TENSOR:
        raise Malformed("has sparse tensors, which are not supported")
    return expected if filled else None


def _map(message: MapProto) -> dict[Any, Value]:
    key_type = type_name(message.key_type)
    keys: list[Any]
    if key_type == STRING:
        wrong_type = len(message.keys)
        try:
            keys = [key.decode() for key in message.string_keys]
        except UnicodeDecodeError:
            raise Malformed("has a key that is not UTF-8") from None
    else:
        # The field is int64, so values in the upper half of uint64 are stored as negative numbers.
        unsigned = key_type == "uint64"
        keys = [key % 2**64 if unsigned else key for key in message.keys]
        valid, wrong_type = _key_range(key_type), len(message.string_keys)
        if not valid:
            raise Malformed(f"has {key_type} keys; integers or strings were expected")
        if invalid := [key for key in keys if key not in valid]:
            raise Malformed(f"has the key {invalid[0]}, which is out of the range of {key_type}")
    if wrong_type:
        raise Malformed(f"has keys that are not of its key type {key_type}")
    values = _value(message.values) if message.HasField("values") else []
    if not isinstance(values, list) or len(values) != len(keys):
        raise Malformed(f"has {len(keys)} keys, but its values are {describe(values)}")
    mapping = dict(zip(keys, values, strict=True))
    if len(mapping) != len(keys):
        raise Malformed("has a key more than once")
    return mapping


def _key_range(key_type: str) -> range:
    """Return the keys that are valid in a map whose key type is an integer type.

    For other key types, the range is empty.
    """
    dtype = dtype_named(key_type)
    if dtype is None or dtype.kind not in "iu":
        return range(0)
    return range(np.iinfo(dtype).min, int(np.iinfo(dtype).max) + 1)


def _stored_key(key: str | int) -> bytes | int:
    """Return a key of a map in a form that a field of MapProto can store.

    The integer fields are signed.
    """
    if isinstance(key, str):
        return key.encode()
    return key if key < 2**63 else key - 2**64


def _message(name: str, value: Value, declared: TypeProto) -> Message:
    if isinstance(value, np.ndarray) and declared.HasField("tensor_type"):
        return tensor_of(value, name)
    if isinstance(value, list) and declared.HasField("sequence_type"):
        return _sequence_message(name, value, declared.sequence_type.elem_type)
    if isinstance(value, dict) and declared.HasField("map_type"):
        kind = declared.map_type
        keys = list(map(_stored_key, value))
        values = _sequence_message("", list(value.values()), kind.value_type)
        return helper.make_map(name, kind.key_type, keys, values)
    if value is None:
        # The element type is omitted: if it were stated, onnx's reader would require a value.
        return helper.make_optional(name, OptionalProto.UNDEFINED, None)
    element = declared.optional_type.elem_type
    return helper.make_optional(name, _number(element), _message("", value, element))


def _sequence_message(name: str, values: list[Value], element: TypeProto) -> SequenceProto:
    messages = [_message("", value, element) for value in values]
    return helper.make_sequence(name, _number(element), messages)


def _number(element: TypeProto) -> Any:
    """Return the elem_type by which SequenceProto and OptionalProto represent a type."""
    message_class(element)
    return list(_KINDS).index(_kind(element)) + 1


def check_type(value: Value, declared: TypeProto, place: str = "") -> None:
    """Check that a value has the declared structure, element types and static dimensions.

    Args:
        value: the value.
        declared: its type; an undefined element type or a missing shape accepts every value.
        place: the keys and indices that lead to a nested value, for the message.

    Raises:
        Malformed: if the value does not have the declared type.
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
    """Describe a declared type: ``float32[2,N]``, ``sequence of float32[...]``."""
    kind = _kind(declared)
    if kind == "tensor":
        tensor = declared.tensor_type
        sizes = (
            str(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?")
            for dim in tensor.shape.dim
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
    return kind.replace("_", " ") or "an unknown type"


# An unknown dimension is written as -1 by some exporters, and onnx's checker accepts it.
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
    if not fits or (name != STRING and key not in _key_range(name)):
        where = f" at {place}" if place else ""
        raise Malformed(f"has the key {shortened(key)}{where}, but declares {name} keys")


# Wire types of fields of ONNX's messages, by their C++ types. Fields of all other types are
# integers, which have the wire type 0.
_WIRE_TYPES = {
    FieldDescriptor.CPPTYPE_DOUBLE: 1,
    FieldDescriptor.CPPTYPE_STRING: 2,
    FieldDescriptor.CPPTYPE_MESSAGE: 2,
    FieldDescriptor.CPPTYPE_FLOAT: 5,
}
_LENGTH = 2


def parse_strictly(message_class: type[Any], data: bytes) -> Any:
    """Parse a message, and check that none of the data was ignored.

    Protobuf ignores unknown fields, and merges repetitions of a field that may occur only once.
    Without the check, the data of a tensor, parsed as a sequence, would give an empty sequence. The
    data of a sequence, parsed as an optional, would give the last element.

    Raises:
        Malformed: if the data is damaged, has unknown fields, or repeats a field that may occur
            only once.
    """
    kind = message_class.DESCRIPTOR.name
    try:
        message = message_class.FromString(data)
    except DecodeError:
        raise Malformed(f"is not a valid {kind}: the data is damaged or cut off") from None
    message.DiscardUnknownFields()
    # If the message has the size of the data, no field was ignored or merged. A different size is
    # not an error by itself: for example, the numbers of a repeated field may be unpacked.
    if message.ByteSize() != len(data) and (fault := _fault(data, message_class.DESCRIPTOR)):
        raise Malformed(f"is not a valid {kind}: {fault}")
    return message


def _fault(data: bytes, descriptor: Descriptor) -> str | None:
    """Return a message about the first field that contradicts the descriptor, or None."""
    numbers = set()
    # If the data are parsed as a message without fields, all their fields are unknown fields, which
    # can be listed.
    for unknown in UnknownFieldSet(Empty.FromString(data)):
        number, wire_type = unknown.field_number, unknown.wire_type
        field = descriptor.fields_by_number.get(number)
        if field is None:
            return f"it has a field {number}, which {descriptor.name} lacks"
        packed = field.is_repeated and wire_type == _LENGTH
        if wire_type != _WIRE_TYPES.get(field.cpp_type, 0) and not packed:
            return f"its field {number} is not {descriptor.name}.{field.name}"
        if not field.is_repeated and number in numbers:
            return f"it has the field {field.name} more than once"
        numbers.add(number)
        if field.enum_type is not None and unknown.data not in field.enum_type.values_by_number:
            return f"its {field.name} has the unknown value {unknown.data}"
        if field.message_type and (fault := _fault(unknown.data, field.message_type)):
            return f"in {field.name}, {fault}"
    return None


_TYPED_FIELDS = [
    f"{name}_data" for name in ("float", "int32", "string", "int64", "double", "uint64")
]
_BITS = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4": 4, "float6": 6}
_BYTE = 8
#: The largest number of dimensions that NumPy supports.
MAX_RANK = 64
_MAX_ELEMENTS = 2**58


class _Storage(NamedTuple):
    """States how elements of a type are stored.

    Attributes:
        name: NumPy's name of the type, ``float32``.
        dtype: the dtype of arrays.
        field: the typed field that may contain the elements instead of raw_data.
        bits: size of one element in raw_data.
        entries: number of elements in one entry of the typed field.
    """

    name: str
    dtype: np.dtype[Any]
    field: str
    bits: int
    entries: int


@cache
def _storage(number: int) -> _Storage:
    exists = number in TensorProto.DataType.values()
    dtype = dtype_named(TensorProto.DataType.Name(number)) if exists else None
    if dtype is None:
        element_type = f"the unknown element type {number}" if number else "no element type"
        raise Malformed(f"has {element_type}")
    name = dtype_name(dtype)
    bits = _BITS.get(name.partition("_")[0], dtype.itemsize * _BYTE)
    return _Storage(
        name=name,
        dtype=dtype,
        field=helper.tensor_dtype_to_field(number),
        bits=bits,
        entries=_BYTE // bits if bits in (2, 4) else 1,
    )


def array_of(tensor: onnx.TensorProto, raw_data: Array | None = None) -> Array:
    """Return a tensor's elements as an array, which may be read-only.

    Args:
        tensor: the tensor.
        raw_data: the raw data as uint8 if they were read separately; the result shares their
            memory.

    Raises:
        Malformed: if the tensor is incomplete or inconsistent (see :func:`check_tensor`), or has
            numbers out of the range of its element type, or strings that are not UTF-8.
    """
    storage, shape, field, raw = _layout(tensor, raw_data)
    if storage.name == STRING:
        # onnx would make an array of NumPy's string types, which drop trailing null characters.
        array = np.empty(len(tensor.string_data), object)
        array[:] = _texts(tensor)
        return array.reshape(shape)
    if field == "raw_data":
        if storage.bits >= _BYTE:
            return elements(raw, storage.dtype.newbyteorder("<")).reshape(shape)
    elif "float" not in field and "double" not in field:
        _check_entries(tensor, storage)
    if raw_data is not None:
        tensor.raw_data = raw_data.tobytes()
    # The array is copied, because the array that onnx returns may share the message's memory.
    return np.array(numpy_helper.to_array(tensor))


def _texts(tensor: onnx.TensorProto) -> list[str]:
    try:
        return [text.decode() for text in tensor.string_data]
    except UnicodeDecodeError as error:
        raise Malformed(f"has a string that is not UTF-8: {error.object[:40]!r}") from None


def elements(raw: bytes | Array, dtype: np.dtype[Any]) -> Array:
    """Return bytes as a one-dimensional array of an element type.

    Raises:
        Malformed: if a byte of a bool is neither 0 nor 1.
    """
    if dtype.kind == "b" and (largest := np.frombuffer(raw, np.uint8).max(initial=0)) > 1:
        raise Malformed(f"has the byte {largest} for a bool; 0 or 1 was expected")
    return np.frombuffer(raw, dtype)


def check_tensor(tensor: onnx.TensorProto) -> None:
    """Check that a tensor's dims agree with its data, and that its elements are valid for its type.

    Raises:
        Malformed: if the tensor has an unknown element type, a negative dimension, a number out of
            the range of its type, or a string that is not UTF-8; or if the data have the wrong
            size, or are in several fields, in a field of another type, or in another file.
    """
    storage, _, field, raw = _layout(tensor)
    if storage.name == STRING:
        _texts(tensor)
    elif field == "raw_data":
        if storage.name == "bool":
            elements(raw, storage.dtype)
    elif field in {"int32_data", "uint64_data"}:
        _check_entries(tensor, storage)


def byte_size(tensor: onnx.TensorProto) -> int:
    """Return the size of raw_data that a tensor's type and dims require.

    Raises:
        Malformed: if the type is unknown or a string, or a dimension is negative.
    """
    storage = _storage(tensor.data_type)
    if storage.name == STRING:
        raise Malformed("has strings, which have no raw form")
    return _bytes(storage, math.prod(shape_of(tensor)))


def tensor_of(array: Array, name: str = "") -> onnx.TensorProto:
    """Return an array as a TensorProto.

    The elements of the array are in raw_data unless they are strings.

    Raises:
        ValueError: if the dtype is not an ONNX element type in native byte order, or an array of
            strings contains another object.
    """
    if array.dtype.kind in "OUT":
        array = array.astype(object)
        for text in array.ravel().tolist():
            if not isinstance(text, str):
                message = f"a string tensor holds {type(text).__name__}"
                raise ValueError(message)  # noqa: TRY004 - the argument itself is an array
    elif array.dtype not in DTYPES.values():
        raise ValueError(f"ONNX has no element type {array.dtype}")
    tensor = numpy_helper.from_array(array)
    tensor.name = name
    return tensor


def type_name(number: int) -> str:
    """Return NumPy's name for a TensorProto.DataType, such as ``float32``.

    Raises:
        Malformed: if the type does not exist.
    """
    return _storage(number).name


def _bytes(storage: _Storage, count: int) -> int:
    return -(-count * storage.bits // _BYTE)


def shape_of(tensor: onnx.TensorProto | onnx.SparseTensorProto) -> tuple[int, ...]:
    """Return the shape of a tensor.

    Raises:
        Malformed: if NumPy allows no array of this shape.
    """
    shape = tuple(tensor.dims)
    if shape and min(shape) < 0:
        raise Malformed(f"has a negative dimension: {list(shape)}")
    if len(shape) > MAX_RANK:
        raise Malformed(f"has {len(shape)} dimensions; at most {MAX_RANK} were expected")
    # NumPy rejects huge dimensions even in an empty tensor, which has a dimension of zero.
    if math.prod(filter(None, shape)) > _MAX_ELEMENTS:
        raise Malformed(f"has impossible dimensions: {list(shape)}")
    return shape


def _layout(
    tensor: onnx.TensorProto, raw_data: Array | None = None
) -> tuple[_Storage, tuple[int, ...], str, bytes | Array]:
    """Return a tensor's storage and shape, the field that contains its elements, and raw data."""
    storage = _storage(tensor.data_type)
    if tensor.data_location != TensorProto.DEFAULT or tensor.external_data:
        raise Malformed("stores its elements in another file")
    if tensor.HasField("segment"):
        raise Malformed("is one segment of a tensor, which is not supported")
    shape = shape_of(tensor)
    fields = [field for field in _TYPED_FIELDS if len(getattr(tensor, field))]
    if raw_data is not None or tensor.HasField("raw_data"):
        fields.append("raw_data")
    if len(fields) > 1:
        raise Malformed(f"has elements in {' and in '.join(fields)}; one field was expected")
    count = math.prod(shape)
    described = f"{storage.name}[{','.join(map(str, shape))}]"
    if not fields:
        if count:
            raise Malformed(f"has no elements; {described} has {count}")
        return storage, shape, storage.field, b""
    (field,) = fields
    # The data are read once, because each access to raw_data copies them.
    raw = tensor.raw_data if raw_data is None else raw_data
    if field == "raw_data" and storage.name != STRING:
        actual, expected, unit = len(raw), _bytes(storage, count), "bytes"
    elif field == storage.field:
        actual = len(getattr(tensor, field))
        # A complex number consists of two entries.
        expected = -(-count // storage.entries) * (2 if storage.dtype.kind == "c" else 1)
        unit = "entries"
    else:
        raise Malformed(f"has {storage.name} elements in {field}; {storage.field} was expected")
    if actual != expected:
        raise Malformed(f"has {actual} {unit} in {field}; {described} needs {expected}")
    return storage, shape, field, raw


def _check_entries(tensor: onnx.TensorProto, storage: _Storage) -> None:
    """Check that the entries of an integer field are in the range of the tensor's element type."""
    unsigned = storage.field == "uint64_data"
    numbers = np.array(getattr(tensor, storage.field), np.uint64 if unsigned else np.int64)
    bits = 1 if storage.name == "bool" else storage.bits * storage.entries
    lowest = -(2 ** (bits - 1)) if storage.dtype.kind == "i" else 0
    highest = lowest + 2**bits - 1
    invalid = numbers[(numbers < lowest) | (numbers > highest)]
    if invalid.size:
        raise Malformed(
            f"has the entry {invalid[0]} in {storage.field}; {lowest} to {highest} was expected "
            f"for {storage.name}"
        )
