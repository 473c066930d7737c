"""Reading a model file: every tensor checked, external data taken in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError
from onnx import AttributeProto, GraphProto, SparseTensorProto, TensorProto

from onnxopt_cli.cases.tensors.regular_file import (
    PROTOBUF_LIMIT,
    Malformed,
    inner_parts,
    open_regular_file,
    read_exactly,
    read_regular_file,
)
from onnxopt_cli.cases.tensors.tensor_data import byte_size, check_tensor
from onnxopt_cli.errors import Fault, InvalidCase

_MAXIMUM_DIGITS = 19
_PLACES = {"t": "the tensor of the", "tensors": "a tensor of the"}


def read_model(path: Path, *, links: bool = True) -> onnx.ModelProto:
    """Read a model whose external data, if any, lie inside its own folder.

    With links off no part of its path may be a symbolic link.

    The operators are not checked: that is the backend's part.

    Returns:
        The model, complete in itself.

    Raises:
        InvalidCase: if the file is no model, a tensor in it contradicts itself, or external data
            are missing, too short, or outside the folder.
    """
    try:
        data = read_regular_file(path, links=links)
        model = _parse(data)
    except Malformed as error:
        raise InvalidCase([Fault(str(path), str(error))]) from None
    problems = []
    # Many tensors may name the same bytes, so the files' sizes do not bound what is read.
    allowance = PROTOBUF_LIMIT - len(data)
    for place, tensor in _tensors(model):
        try:
            if tensor.data_location == TensorProto.EXTERNAL:
                allowance -= byte_size(tensor)
                _take_in(tensor, path.parent, allowance)
            check_tensor(tensor)
        except Malformed as error:
            problems.append(Fault(str(path), f"{place} {tensor.name!r} {error}"))
    if problems:
        raise InvalidCase(problems)
    return model


def external_files(path: Path) -> list[Path]:
    """Return the files of external data that a model names; those that cannot be read are none."""
    try:
        data = read_regular_file(path)
        # The key of every location, and cheap to look for: hardly any model has external data.
        tensors = _tensors(_parse(data)) if b"location" in data else ()
    except Malformed:
        return []
    entries = (entry for _, tensor in tensors for entry in tensor.external_data)
    named = (entry.value for entry in entries if entry.key == "location")
    inside = (inner_parts(location) for location in named if isinstance(location, str))
    return [path.parent.joinpath(*parts) for parts in dict.fromkeys(inside) if parts]


def _parse(data: bytes) -> onnx.ModelProto:
    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError:
        raise Malformed("is not a model: the data is damaged or cut off") from None
    graph = model.graph
    if not graph.output:
        raise Malformed("is not a model: it has no graph, or one without outputs")
    for names, what in ((graph.input, "inputs"), (graph.output, "outputs")):
        if len({value.name for value in names}) != len(names):
            raise Malformed(f"has several {what} of one name")
    names = [value.name for value in (*graph.input, *graph.output)]
    names += [name for node in graph.node for name in (node.domain, node.op_type)]
    # Protobuf yields bytes where a string field is not UTF-8.
    for name in names:
        if not isinstance(name, str):
            raise Malformed(f"has a name that is not UTF-8: {name[:40]!r}")
    return model


def _tensors(message: Any, owner: str = "") -> Iterator[tuple[str, TensorProto]]:
    """Yield every tensor in a message, wherever it is, each with words for its place."""
    if isinstance(message, SparseTensorProto):
        # Also where one is missing: it is then a tensor without an element type.
        yield f"the values of the {owner}", message.values
        yield f"the indices of the {owner}", message.indices
        return
    for field in _holding_tensors(message.DESCRIPTOR):
        name = field.name
        if not field.is_repeated and not message.HasField(name):
            continue
        found = getattr(message, name)
        if isinstance(message, AttributeProto):
            # Its own type tag may lie: whatever is there counts.
            owner = f"attribute {message.name!r},"
        elif isinstance(message, GraphProto):
            owner = name.replace("_", " ")
        for item in found if field.is_repeated else [found]:
            if isinstance(item, TensorProto):
                yield f"{_PLACES.get(name, 'the')} {owner}", item
            else:
                yield from _tensors(item, owner)


@cache
def _holding_tensors(kind: Descriptor) -> list[FieldDescriptor]:
    """Return the fields of a message that may hold tensors, a graph's initializers first."""
    fields = [field for field in kind.fields if _may_hold_tensors(field.message_type)]
    return sorted(fields, key=lambda field: "initializer" not in field.name)


def _may_hold_tensors(kind: Descriptor | None) -> bool:
    """Tell whether a message of a kind is a tensor, or may hold one however deep."""
    found = [kind]
    for outer in found:  # grows
        inner = [field.message_type for field in outer.fields] if outer else []
        found += [it for it in dict.fromkeys(inner) if it not in found]
    return TensorProto.DESCRIPTOR in found


def _take_in(tensor: TensorProto, folder: Path, allowance: int) -> None:
    """Move a tensor's external data into its raw_data.

    Args:
        tensor: the tensor.
        folder: where the model stands; no file outside of it is opened.
        allowance: how many bytes are left, after this tensor, of what a model can hold.

    Raises:
        Malformed: if the location leads out of the folder or through a link, the offset and length
            do not fit the tensor and the file, or there is too much data.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if len(entries) != len(tensor.external_data):
        raise Malformed("names its external data twice")
    location = entries.get("location")
    if not location or not isinstance(location, str):
        raise Malformed("has external data without a location")
    needed = byte_size(tensor)
    offset = _number(entries, "offset", 0)
    length = _number(entries, "length", needed)
    if length != needed:
        raise Malformed(f"has external data of length {length}; type and dims need {needed}")
    if allowance < 0:
        raise Malformed(f"brings the model to more than {PROTOBUF_LIMIT} bytes")
    try:
        tensor.raw_data = _external_data(folder, location, offset, needed)
    except Malformed as error:
        raise Malformed(f"has external data in {location!r}, which {error}") from None
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")


def _external_data(path: Path, location: str, offset: int, length: int) -> bytes:
    parts = inner_parts(location)
    if parts is None:
        raise Malformed("is not a path inside the model's folder")
    for part in parts:
        path = path / part
        if _is_link(path):
            raise Malformed("leads through a symbolic link")
    # The last part may have become a link since.
    with open_regular_file(path, getattr(os, "O_NOFOLLOW", 0)) as (descriptor, status):
        if status.st_nlink > 1:
            raise Malformed("is a hard link: the file has another name elsewhere")
        if offset + length > status.st_size:
            raise Malformed(
                f"has {status.st_size} bytes; offset {offset} and length {length} need more"
            )
        os.lseek(descriptor, offset, os.SEEK_SET)
        return read_exactly(descriptor, length)


def _is_link(path: Path) -> bool:
    try:
        return path.is_symlink()
    except OSError as error:
        # Its name may be longer than any.
        raise Malformed(f"cannot be read: {error.strerror}") from None


def _number(entries: dict[str, str], key: str, default: int) -> int:
    text = entries.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAXIMUM_DIGITS):
        raise Malformed(f"has external data with the {key} {text[:40]!r}; a number was expected")
    return int(text)
