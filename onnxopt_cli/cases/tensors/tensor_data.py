"""Convert between TensorProto and array for all element types; sizes are validated first."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxopt_cli.core.untrusted_files import Malformed
from onnxopt_cli.core.values import (
    DTYPES,
    STRING,
    Array,
    dtype_name,
    dtype_named,
)

_TYPED_FIELDS = [
    f"{name}_data" for name in ("float", "int32", "string", "int64", "double", "uint64")
]
_BITS = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4": 4, "float6": 6}
_BYTE = 8
_MAX_RANK = 64
_MAX_ELEMENTS = 2**58


class _Storage(NamedTuple):
    """How an element type is stored.

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
        try:
            array[:] = [text.decode() for text in tensor.string_data]
        except UnicodeDecodeError as error:
            raise Malformed(f"has a string that is not UTF-8: {error.object[:40]!r}") from None
        return array.reshape(shape)
    if field == "raw_data":
        if storage.bits >= _BYTE:
            return elements(raw, storage.dtype.newbyteorder("<")).reshape(shape)
    elif "float" not in field and "double" not in field:
        _check_entries(tensor, storage)
    if raw_data is not None:
        tensor.raw_data = raw_data.tobytes()
    # Copy: the array that onnx returns may share the message's memory.
    return np.array(numpy_helper.to_array(tensor))


def elements(raw: bytes | Array, dtype: np.dtype[Any]) -> Array:
    """Return bytes as a flat array of an element type.

    Raises:
        Malformed: if a byte of a bool is neither 0 nor 1.
    """
    if dtype.kind == "b" and (largest := np.frombuffer(raw, np.uint8).max(initial=0)) > 1:
        raise Malformed(f"has the byte {largest} for a bool; 0 or 1 was expected")
    return np.frombuffer(raw, dtype)


def check_tensor(tensor: onnx.TensorProto) -> None:
    """Check that a tensor's dims agree with its data; the elements are not checked.

    Raises:
        Malformed: if the element type is unknown, a dimension is negative, or the data are in
            several fields, in a field of another type, in another file, or of the wrong size.
    """
    _layout(tensor)


def byte_size(tensor: onnx.TensorProto) -> int:
    """Return the size of raw_data that a tensor's type and dims require.

    Raises:
        Malformed: if the type is unknown or a string, or a dimension is negative.
    """
    storage = _storage(tensor.data_type)
    if storage.name == STRING:
        raise Malformed("has strings, which have no raw form")
    return _bytes(storage, math.prod(_shape(tensor)))


def tensor_of(array: Array, name: str = "") -> onnx.TensorProto:
    """Return an array as a tensor, its elements in raw_data unless they are strings.

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
    """Return NumPy's name of a TensorProto.DataType, ``float32``.

    Raises:
        Malformed: if the type does not exist.
    """
    return _storage(number).name


def _bytes(storage: _Storage, count: int) -> int:
    return -(-count * storage.bits // _BYTE)


def _shape(tensor: onnx.TensorProto) -> tuple[int, ...]:
    shape = tuple(tensor.dims)
    if shape and min(shape) < 0:
        raise Malformed(f"has a negative dimension: {list(shape)}")
    if len(shape) > _MAX_RANK:
        raise Malformed(f"has {len(shape)} dimensions; at most {_MAX_RANK} were expected")
    # NumPy rejects huge dimensions even if another dimension of zero makes the tensor empty.
    if math.prod(filter(None, shape)) > _MAX_ELEMENTS:
        raise Malformed(f"has impossible dimensions: {list(shape)}")
    return shape


def _layout(
    tensor: onnx.TensorProto, raw_data: Array | None = None
) -> tuple[_Storage, tuple[int, ...], str, bytes | Array]:
    """Return the storage of the elements, the shape, the field that contains them, and raw data."""
    storage = _storage(tensor.data_type)
    if tensor.data_location != TensorProto.DEFAULT or tensor.external_data:
        raise Malformed("stores its elements in another file")
    if tensor.HasField("segment"):
        raise Malformed("is one segment of a tensor, which is not supported")
    shape = _shape(tensor)
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
    # Each access to raw_data copies it.
    raw = tensor.raw_data if raw_data is None else raw_data
    if field == "raw_data" and storage.name != STRING:
        actual, expected, unit = len(raw), _bytes(storage, count), "bytes"
    elif field == storage.field:
        actual = len(getattr(tensor, field))
        # A complex number has two entries.
        expected = -(-count // storage.entries) * (2 if storage.dtype.kind == "c" else 1)
        unit = "entries"
    else:
        raise Malformed(f"has {storage.name} elements in {field}; {storage.field} was expected")
    if actual != expected:
        raise Malformed(f"has {actual} {unit} in {field}; {described} needs {expected}")
    return storage, shape, field, raw


def _check_entries(tensor: onnx.TensorProto, storage: _Storage) -> None:
    """Check that entries are values of an integer type, or bit patterns of another type."""
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
