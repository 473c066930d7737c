"""Reads ``.npy``, ``.npz`` and ``.pb`` files: first type and shape, and the data on demand."""

from __future__ import annotations

import lzma
import math
import os
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
from onnx import TensorProto

from onnxopt_cli.cases.tensors.declared import PromisedTensor, too_large
from onnxopt_cli.cases.tensors.proto_values import (
    MAX_RANK,
    array_of,
    elements,
    parse_message,
    read_message,
)
from onnxopt_cli.core.text import abbreviated, clipped, listed, printable
from onnxopt_cli.core.untrusted_files import Malformed, open_regular_file
from onnxopt_cli.core.values import (
    DTYPES,
    STRING,
    Array,
    dtype_name,
)

#: Largest number of bytes of a file: 2^26 elements of 16 bytes, and a header.
MAX_BYTES = 2**30 + 2**16

#: Element type, shape, and whether the array is stored in Fortran order.
_Header: TypeAlias = tuple[np.dtype[Any], tuple[int, ...], bool]

_MAX_HEADER_BYTES = 10_000
_SUFFIXES = (".npy", ".npz", ".pb")
# The exceptions besides OSError that zipfile raises for damaged, encrypted and unsupported archives
# (NotImplementedError is a RuntimeError).
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    RuntimeError,
    ValueError,
)
# The exceptions that NumPy raises if a header is not the expected Python literal.
_HEADER_ERRORS = (
    KeyError,
    TypeError,
    ValueError,
    SyntaxError,
    RecursionError,
    MemoryError,
    tokenize.TokenError,
)


def declare_file(path: Path, key: str | None, dtype: np.dtype[Any] | None) -> PromisedTensor:
    """Read the type and shape of a tensor in a file; the data are read on demand.

    Args:
        path: the file, with all symbolic links resolved; the suffix determines the format.
        key: name of the array in an ``.npz`` file; None for a file with a single array.
        dtype: the element type that the case states, which must equal the type in the file; None if
            the case states none. A dtype is required for bfloat16 and float8, which NumPy stores as
            bytes without a type.

    Raises:
        Malformed: if the file is missing, damaged, too large, of another element type, or in
            another format.
    """
    if path.suffix not in _SUFFIXES:
        raise Malformed(f"does not end in {', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]}")
    if path.suffix != ".npz" and key is not None:
        raise Malformed("has no keys; only .npz files have them")
    if path.suffix == ".pb":

        def read() -> Array:
            data, raw_data = read_message(path, MAX_BYTES, links=False)
            return array_of(parse_message(data, TensorProto), raw_data)

        # Only a complete read can validate the message. The array is then discarded, and is read
        # again on demand.
        array = read()
        if dtype is not None and array.dtype != dtype:
            raise Malformed(f"holds {dtype_name(array.dtype)}; {dtype_name(dtype)} was expected")
        return PromisedTensor(array.dtype, array.shape, read)
    with _array_stream(path, key) as (stream, size):
        stored, shape, _ = _header(stream, size)
    element = _element_type(stored, dtype)

    def make() -> Array:
        with _array_stream(path, key) as (stream, size):
            header = _header(stream, size)
            if header[:2] != (stored, shape):
                raise Malformed("has changed since it was checked")
            return _elements(stream, header, element)

    return PromisedTensor(element, shape, make)


def array_names(path: Path) -> list[str]:
    """Return the names of the arrays in an ``.npz`` file.

    Raises:
        Malformed: if the file is missing, damaged or too large.
    """
    with open_regular_file(path, limit=MAX_BYTES, links=False) as (descriptor, _):
        try:
            with (
                os.fdopen(descriptor, "rb", closefd=False) as file,
                zipfile.ZipFile(file) as archive,
            ):
                return [member.filename.removesuffix(".npy") for member in archive.infolist()]
        except _ZIP_ERRORS as error:
            raise Malformed(f"is not an .npz file: {clipped(str(error))}") from None


@contextmanager
def _array_stream(path: Path, key: str | None) -> Iterator[tuple[IO[bytes], int]]:
    """Open an ``.npy`` file or a member of an ``.npz`` file; yield a stream and its stated size."""
    with (
        open_regular_file(path, limit=MAX_BYTES, links=False) as (descriptor, status),
        os.fdopen(descriptor, "rb", closefd=False) as file,
    ):
        if path.suffix == ".npy":
            yield file, status.st_size
            return
        try:
            with zipfile.ZipFile(file) as archive:
                member = _member(archive, key)
                with archive.open(member) as stream:
                    yield stream, member.file_size
        except _ZIP_ERRORS as error:
            raise Malformed(f"is not a readable .npz file: {printable(str(error))}") from None


def _member(archive: zipfile.ZipFile, key: str | None) -> zipfile.ZipInfo:
    names = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
    if key is None and len(names) == 1:
        return next(iter(names.values()))
    if key not in names:
        arrays = listed(names) or "no array"
        raise Malformed(
            f"holds {arrays}; " + (f"{abbreviated(key)} was expected" if key else "give a key")
        )
    return names[key]


def _header(stream: IO[bytes], size: int) -> _Header:
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    try:
        version = np.lib.format.read_magic(stream)
    except ValueError:
        raise Malformed("is not .npy data") from None
    if version not in readers:
        raise Malformed(f"is .npy data of version {version[0]}; version 1 or 2 was expected")
    try:
        with warnings.catch_warnings():
            # NumPy warns about files that were written by Python 2.
            warnings.simplefilter("ignore", UserWarning)
            shape, fortran, dtype = readers[version](stream, max_header_size=_MAX_HEADER_BYTES)
    except _HEADER_ERRORS:
        raise Malformed("has a malformed .npy header") from None
    if len(shape) > MAX_RANK:
        raise Malformed(f"has {len(shape)} dimensions; at most {MAX_RANK} are supported")
    if not all(type(dimension) is int for dimension in shape):
        # In Python, True is an int.
        raise Malformed(f"has a dimension that is not an integer: {clipped(repr(shape))}")
    if any(dimension < 0 for dimension in shape):
        raise Malformed(f"has a negative dimension: {list(shape)}")
    if oversize := too_large(shape):
        raise Malformed(f"has {oversize}")
    if dtype.hasobject:
        raise Malformed("holds Python objects, which are not read; store numbers")
    available, required = size - stream.tell(), math.prod(shape) * dtype.itemsize
    if available != required:
        raise Malformed(f"has {available} bytes of data; {dtype}{list(shape)} needs {required}")
    return dtype, shape, fortran


def _element_type(stored: np.dtype[Any], stated: np.dtype[Any] | None) -> np.dtype[Any]:
    """Return the element type of a file's data.

    The type must equal the type that the case states.
    """
    if stored.kind == "V":
        if stated is None or stated.kind != "V" or stated.itemsize != stored.itemsize:
            raise Malformed(
                f"holds elements of {stored.itemsize} bytes without a type; state the dtype"
            )
        if not dtype_name(stated).startswith(("bfloat16", "float8")):
            raise Malformed(f"cannot hold {dtype_name(stated)}; store it in a .pb file")
        return stated
    native = stored.newbyteorder("=")
    if native not in DTYPES.values() or dtype_name(native) == STRING:
        raise Malformed(
            f"holds {stored}, which is not an element type of ONNX that .npy files support"
        )
    if stated is not None and stated != native:
        raise Malformed(f"holds {dtype_name(native)}; {dtype_name(stated)} was expected")
    return native


def _elements(stream: IO[bytes], header: _Header, element: np.dtype[Any]) -> Array:
    stored, shape, fortran = header
    size = math.prod(shape) * stored.itemsize
    data = stream.read(size)
    if len(data) != size:
        raise Malformed(f"ends {size - len(data)} bytes early")
    flat = elements(data, element if stored.kind == "V" else stored).astype(element, copy=False)
    return np.asarray(flat.reshape(shape, order="F" if fortran else "C"), order="C")
