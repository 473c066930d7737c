"""TensorProto to array and back, for every element type, checked before anything is allocated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from onnxopt_cli.cases.values.regular_file import Malformed
from onnxopt_cli.core.values import STRING, Array, dtype_name, dtype_named

_TYPED_FIELDS = (
    "float_data",
    "int32_data",
    "string_data",
    "int64_data",
    "double_data",
    "uint64_data",
)
_FIELD_OF = {
    "FLOAT": "float_data",
    "COMPLEX64": "float_data",
    "DOUBLE": "double_data",
    "COMPLEX128": "double_data",
    "INT64": "int64_data",
    "UINT32": "uint64_data",
    "UINT64": "uint64_data",
    "STRING": "string_data",
}
_BITS_OF = {
    "INT2": 2,
    "UINT2": 2,
    "INT4": 4,
    "UINT4": 4,
    "FLOAT4E2M1": 4,
    "FLOAT6E2M3": 6,
    "FLOAT6E3M2": 6,
}
_BYTE = 8
_MAXIMUM_RANK = 64
_MAXIMUM_ELEMENTS = 2**58


@dataclass(frozen=True, slots=True)
class _Storage:
    """How an element type is stored.

    Attributes:
        number: of TensorProto.DataType.
        name: ours, ``float32``.
        dtype: of the array.
        field: the typed field that may hold it instead of raw_data.
        bits: of one element in raw_data.
        entries: elements that one entry of the typed field holds.
        components: entries that one element takes: 2 for complex numbers.
    """

    number: int
    name: str
    dtype: np.dtype[Any]
    field: str
    bits: int
    entries: int
    components: int

    @property
    def word(self) -> np.dtype[Any]:
        """The unsigned integer of one stored number, in raw_data's byte order."""
        return np.dtype(f"<u{self.dtype.itemsize // self.components}")


def _storages() -> dict[int, _Storage]:
    table = {}
    for name, number in TensorProto.DataType.items():
        dtype = dtype_named(name)
        if dtype is not None:
            bits = _BITS_OF.get(name, dtype.itemsize * _BYTE)
            table[number] = _Storage(
                number=number,
                name=dtype_name(dtype),
                dtype=dtype,
                field=_FIELD_OF.get(name, "int32_data"),
                bits=bits,
                entries=_BYTE // bits if bits in (2, 4) else 1,
                components=2 if dtype.kind == "c" else 1,
            )
    return table


_STORAGES = _storages()
_STORAGE_OF = {storage.dtype: storage for storage in _STORAGES.values()}


def array_of(tensor: onnx.TensorProto) -> Array:
    """Return a tensor's elements as an array of its own, writable.

    Raises:
        Malformed: if the tensor is not whole and consistent, see :func:`check_tensor`, or holds
            numbers that its element type lacks, or strings that are not UTF-8.
    """
    storage, shape, field = _layout(tensor)
    if storage.name == STRING:
        return _strings(tensor.string_data, shape)
    if field == "raw_data":
        return _from_raw(tensor.raw_data, storage, shape)
    return _from_entries(getattr(tensor, storage.field), storage, shape)


def check_tensor(tensor: onnx.TensorProto) -> None:
    """Make sure that a tensor's dims and its data agree, without looking at the elements.

    Raises:
        Malformed: if the element type is unknown, a dimension negative, the data in several fields,
            in one of another type or in another file, or of another size than type and dims say.
    """
    _layout(tensor)


def byte_size(tensor: onnx.TensorProto) -> int:
    """Return how many bytes of raw_data a tensor's type and dims ask for.

    Raises:
        Malformed: if the type is unknown or holds strings, or a dimension is negative.
    """
    storage = _storage(tensor.data_type)
    if storage.name == STRING:
        raise Malformed("has strings, which have no raw form")
    return _bytes_needed(storage, math.prod(_shape(tensor)))


def tensor_of(array: Array, name: str = "") -> onnx.TensorProto:
    """Return an array as a tensor, its elements in raw_data unless they are strings.

    Raises:
        ValueError: if the dtype has no ONNX element type (one of foreign byte order has none), or a
            string array holds something else.
    """
    if array.dtype.kind in "OUT":
        tensor = TensorProto(data_type=TensorProto.STRING, dims=array.shape, name=name)
        for text in array.ravel().tolist():
            if not isinstance(text, str):
                what = f"a string tensor holds {type(text).__name__}"
                raise ValueError(what)  # noqa: TRY004 - a wrong value, in an array of objects
            tensor.string_data.append(text.encode())
        return tensor
    storage = _STORAGE_OF.get(array.dtype)
    if storage is None:
        raise ValueError(f"ONNX has no element type {array.dtype}")
    return TensorProto(
        data_type=storage.number, dims=array.shape, name=name, raw_data=_to_raw(array, storage)
    )


def type_name(number: int) -> str:
    """Return our name of a TensorProto.DataType, ``float32``.

    Raises:
        Malformed: if there is no such type.
    """
    return _storage(number).name


def _storage(number: int) -> _Storage:
    storage = _STORAGES.get(number)
    if storage is None:
        what = f"the unknown element type {number}" if number else "no element type"
        raise Malformed(f"has {what}")
    return storage


def _shape(tensor: onnx.TensorProto) -> tuple[int, ...]:
    shape = tuple(tensor.dims)
    if shape and min(shape) < 0:
        raise Malformed(f"has a negative dimension: {list(shape)}")
    if len(shape) > _MAXIMUM_RANK:
        raise Malformed(f"has {len(shape)} dimensions, more than the {_MAXIMUM_RANK} of an array")
    # A zero beside huge dimensions is an empty tensor that no array library can describe.
    if math.prod(filter(None, shape)) > _MAXIMUM_ELEMENTS:
        raise Malformed(f"has impossible dimensions: {list(shape)}")
    return shape


def _layout(tensor: onnx.TensorProto) -> tuple[_Storage, tuple[int, ...], str]:
    """Return how the elements are stored, their shape and the field that holds them."""
    storage = _storage(tensor.data_type)
    if tensor.data_location != TensorProto.DEFAULT or tensor.external_data:
        raise Malformed("keeps its elements in another file")
    if tensor.HasField("segment"):
        raise Malformed("is one segment of a tensor, which is not supported")
    shape = _shape(tensor)
    fields = [field for field in _TYPED_FIELDS if len(getattr(tensor, field))]
    if tensor.HasField("raw_data"):
        fields.append("raw_data")
    if len(fields) > 1:
        raise Malformed(f"has elements in {' and in '.join(fields)}; one field was expected")
    count = math.prod(shape)
    described = f"{storage.name}[{','.join(map(str, shape))}]"
    if not fields:
        if count:
            raise Malformed(f"has no elements; {described} has {count}")
        return storage, shape, storage.field
    (field,) = fields
    if field == "raw_data" and storage.name != STRING:
        found, expected, unit = len(tensor.raw_data), _bytes_needed(storage, count), "bytes"
    elif field == storage.field:
        found = len(getattr(tensor, field))
        expected = -(-count // storage.entries) * storage.components
        unit = "entries"
    else:
        raise Malformed(f"has {storage.name} elements in {field}; {storage.field} was expected")
    if found != expected:
        raise Malformed(f"has {found} {unit} in {field}; {described} needs {expected}")
    return storage, shape, field


def _bytes_needed(storage: _Storage, count: int) -> int:
    return -(-count * storage.bits // _BYTE)


def _from_raw(data: bytes, storage: _Storage, shape: tuple[int, ...]) -> Array:
    if storage.bits < _BYTE:
        codes = _unpack(np.frombuffer(data, np.uint8), math.prod(shape), storage.bits)
        return codes.view(storage.dtype).reshape(shape)
    little_endian = np.frombuffer(data, storage.word)
    if storage.name == "bool" and little_endian.size and little_endian.max() > 1:
        raise Malformed(f"has the byte {little_endian.max()} for a bool; 0 or 1 was expected")
    native = little_endian.astype(storage.word.newbyteorder("="))
    return native.view(storage.dtype).reshape(shape)


def _to_raw(array: Array, storage: _Storage) -> bytes:
    native = np.ascontiguousarray(array).reshape(-1)
    if storage.bits < _BYTE:
        return _pack(native.view(np.uint8), storage.bits)
    return native.view(storage.word.newbyteorder("=")).astype(storage.word).tobytes()


def _from_entries(entries: Sequence[Any], storage: _Storage, shape: tuple[int, ...]) -> Array:
    if storage.field in ("float_data", "double_data"):
        component = np.float32 if storage.field == "float_data" else np.float64
        return np.array(entries, component).view(storage.dtype).reshape(shape)
    numbers = np.array(entries, np.uint64 if storage.field == "uint64_data" else np.int64)
    lowest, highest = _entry_range(storage)
    wrong = numbers[(numbers < lowest) | (numbers > highest)]
    if wrong.size:
        raise Malformed(
            f"has the entry {wrong[0]} in {storage.field}; {storage.name} was expected to have "
            f"{lowest} to {highest}"
        )
    words = numbers.astype(storage.word.newbyteorder("="))
    if storage.entries > 1:
        words = _unpack(words, math.prod(shape), storage.bits)
    return words.view(storage.dtype).reshape(shape)


def _entry_range(storage: _Storage) -> tuple[int, int]:
    """Return the numbers that an entry may be: values of integers, bit patterns of all others."""
    if storage.name == "bool":
        return 0, 1
    bits = storage.bits * storage.entries
    if storage.dtype.kind == "i":
        return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return 0, 2**bits - 1


def _strings(data: Sequence[bytes], shape: tuple[int, ...]) -> Array:
    # NumPy's own string types drop trailing null characters.
    array = np.empty(len(data), object)
    for index, text in enumerate(data):
        try:
            array[index] = text.decode()
        except UnicodeDecodeError:
            raise Malformed(f"has a string that is not UTF-8: {text[:40]!r}") from None
    return array.reshape(shape)


def _unpack(data: Array, count: int, bits: int) -> Array:
    """Spread a stream of ``bits`` a code, lowest bit first, to a byte a code."""
    stream = np.unpackbits(data, count=count * bits, bitorder="little").reshape(count, bits)
    return np.packbits(stream, axis=1, bitorder="little").reshape(count)


def _pack(codes: Array, bits: int) -> bytes:
    stream = np.unpackbits(codes[:, np.newaxis], axis=1, count=bits, bitorder="little")
    return np.packbits(stream, bitorder="little").tobytes()
