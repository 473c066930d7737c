"""Tensors in ``.npy``, ``.npz`` and ``.pb`` files: type and shape first, the data when needed."""

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
from onnxopt_cli.cases.tensors.proto_values import parse_message, read_message
from onnxopt_cli.cases.tensors.regular_file import Malformed, open_regular_file
from onnxopt_cli.cases.tensors.tensor_data import array_of, elements
from onnxopt_cli.core.text import clipped, printable
from onnxopt_cli.core.values import (
    DTYPES,
    STRING,
    Array,
    dtype_name,
)

#: Larger files are refused: they have room for 2^26 elements of 16 bytes.
MAX_BYTES = 2**30 + 2**16

#: Element type, shape, and whether the array lies in Fortran's order.
_Header: TypeAlias = tuple[np.dtype[Any], tuple[int, ...], bool]

_LONGEST_HEADER = 10_000
_SUFFIXES = (".npy", ".npz", ".pb")
# What zipfile raises on damaged, encrypted and exotic (NotImplementedError is a RuntimeError)
# archives, beside OSError.
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    RuntimeError,
    ValueError,
)
# What NumPy raises on a header that is no Python literal, or another than it should be.
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
    """Read a file's type and shape, and promise the tensor.

    Args:
        path: the file, without symbolic links on it; its suffix says what it is.
        key: name of the array in an ``.npz`` file; None if it has only one.
        dtype: the element type that the case gives. It must be the file's; bfloat16 and float8,
            which NumPy stores as bytes of unknown meaning, are known from it alone.

    Raises:
        Malformed: if the file is missing, damaged, too large, of another type or no such file.
    """
    if path.suffix not in _SUFFIXES:
        raise Malformed(f"does not end in {', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]}")
    if path.suffix != ".npz" and key is not None:
        raise Malformed("has no keys: only .npz files do")
    if path.suffix == ".pb":

        def read() -> Array:
            data, raw_data = read_message(path, MAX_BYTES, links=False)
            return array_of(parse_message(data, TensorProto), raw_data)

        # The message can only be checked whole; its data are let go again.
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
    """Open an ``.npy`` file, or the member of an ``.npz`` file, with the size that it claims."""
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
        found = printable(", ".join(names)) or "no array"
        raise Malformed(f"holds {found}; " + (f"{key} was expected" if key else "give a key"))
    return names[key]


def _header(stream: IO[bytes], size: int) -> _Header:
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    try:
        reader = readers[np.lib.format.read_magic(stream)]
        with warnings.catch_warnings():
            # That Python 2 wrote the file is no concern of a user's.
            warnings.simplefilter("ignore", UserWarning)
            shape, fortran, dtype = reader(stream, max_header_size=_LONGEST_HEADER)
    except _HEADER_ERRORS:
        raise Malformed("is not .npy data of version 1 or 2") from None
    if not all(type(dimension) is int for dimension in shape):
        # True is one to Python.
        raise Malformed(f"has a dimension that is not an integer: {clipped(repr(shape))}")
    if any(dimension < 0 for dimension in shape):
        raise Malformed(f"has a negative dimension: {list(shape)}")
    if oversize := too_large(shape):
        raise Malformed(f"has {oversize}")
    if dtype.hasobject:
        raise Malformed("holds Python objects, which are not read; store numbers")
    claimed, needed = size - stream.tell(), math.prod(shape) * dtype.itemsize
    if claimed != needed:
        raise Malformed(f"has {claimed} bytes of data; {dtype}{list(shape)} needs {needed}")
    return dtype, shape, fortran


def _element_type(stored: np.dtype[Any], given: np.dtype[Any] | None) -> np.dtype[Any]:
    if stored.kind == "V":
        if given is None or given.kind != "V" or given.itemsize != stored.itemsize:
            raise Malformed(
                f"holds {stored.itemsize} bytes an element of unknown meaning; give its dtype"
            )
        if not dtype_name(given).startswith(("bfloat16", "float8")):
            raise Malformed(f"cannot hold {dtype_name(given)}; store it in a .pb file")
        return given
    native = stored.newbyteorder("=")
    if native not in DTYPES.values() or dtype_name(native) == STRING:
        raise Malformed(
            f"holds {stored}, which is not an element type of ONNX that .npy files hold"
        )
    if given is not None and given != native:
        raise Malformed(f"holds {dtype_name(native)}; {dtype_name(given)} was expected")
    return native


def _elements(stream: IO[bytes], header: _Header, element: np.dtype[Any]) -> Array:
    stored, shape, fortran = header
    size = math.prod(shape) * stored.itemsize
    data = stream.read(size)
    if len(data) != size:
        raise Malformed(f"ends {size - len(data)} bytes early")
    flat = elements(data, element if stored.kind == "V" else stored).astype(element, copy=False)
    return np.asarray(flat.reshape(shape, order="F" if fortran else "C"), order="C")
