"""Read a model file: check every tensor, and load external data into the model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError
from onnx import AttributeProto, GraphProto, SparseTensorProto, TensorProto, defs

from onnxopt_cli.cases.tensors.proto_values import byte_size, check_tensor
from onnxopt_cli.core.untrusted_files import (
    PROTOBUF_LIMIT,
    Malformed,
    TooLarge,
    inner_parts,
    open_regular_file,
    read_exactly,
    read_regular_file,
)
from onnxopt_cli.errors import BeyondLimit, Fault, InvalidCase
from onnxopt_cli.operators.nodes import imported_versions, plain_domain

_MAX_DIGITS = 19
# The beginning of a tensor's description, depending on the field that contains the tensor.
_PLACES = {"t": "the tensor of the", "tensors": "a tensor of the"}
# The largest opset version that onnx accepts when it looks up a schema.
_MAX_OPSET = 2**31 - 1


def read_model(path: Path, *, links: bool = True) -> onnx.ModelProto:
    """Read a model and its external data, which must be inside the model's folder.

    The operators are not checked, because a backend may support operators that onnx lacks.

    Args:
        path: the file.
        links: whether symbolic links in the path are followed; otherwise they are an error.

    Returns:
        The model, including its external data.

    Raises:
        InvalidCase: if the file is not a model, a tensor is inconsistent, or external data are
            missing, too short, or outside the folder.
        BeyondLimit: if the model and its external data are too large.
    """
    try:
        data = read_regular_file(path, links=links)
        model = _parse(data)
    except TooLarge as error:
        raise BeyondLimit([Fault(str(path), str(error))]) from None
    except Malformed as error:
        raise InvalidCase([Fault(str(path), str(error))]) from None
    problems: list[Fault] = []
    oversized: list[Fault] = []
    # Many tensors may refer to the same bytes of a file, so the size of the model may exceed any
    # limit on file sizes.
    allowance = PROTOBUF_LIMIT - len(data)
    for place, tensor in _tensors(model):
        try:
            if tensor.data_location == TensorProto.EXTERNAL:
                allowance -= byte_size(tensor)
                _load_external(tensor, path.parent, allowance)
            check_tensor(tensor)
        except Malformed as error:
            faults = oversized if isinstance(error, TooLarge) else problems
            faults.append(Fault(str(path), f"{place} {tensor.name!r} {error}"))
    if problems:
        raise InvalidCase(problems)
    if oversized:
        raise BeyondLimit(oversized[:1])
    return model


def external_files(path: Path) -> list[Path]:
    """Return the files of external data that a model names; none if the model is unreadable."""
    try:
        data = read_regular_file(path)
        # Every location of external data has the key "location". Few models contain the key, and
        # searching for the key is fast.
        tensors = _tensors(_parse(data)) if b"location" in data else ()
    except Malformed:
        return []
    entries = (entry for _, tensor in tensors for entry in tensor.external_data)
    locations = (entry.value for entry in entries if entry.key == "location")
    paths = map(inner_parts, locations)
    # A record of opened files has the same paths, see _external_data.
    folder = Path(os.path.realpath(path.parent))
    return [folder.joinpath(*parts) for parts in dict.fromkeys(paths) if parts]


def _parse(data: bytes) -> onnx.ModelProto:
    if not data:
        raise Malformed("is not a model: it is empty")
    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError:
        raise Malformed("is not a model: the data is damaged or cut off") from None
    graph = model.graph
    if not graph.output:
        raise Malformed("is not a model: it has no graph, or one without outputs")
    for values, kind in ((graph.input, "inputs"), (graph.output, "outputs")):
        if len({value.name for value in values}) != len(values):
            raise Malformed(f"has several {kind} with the same name")
    _check_texts(model)
    _check_opsets(model)
    return model


def _check_texts(message: Any) -> None:
    """Check the texts in a message and in the messages that it contains at any depth.

    Raises:
        Malformed: if a text is not UTF-8.
    """
    for name, is_text, is_repeated in _text_fields(message.DESCRIPTOR):
        if not is_text and not is_repeated and not message.HasField(name):
            continue
        content = getattr(message, name)
        for item in content if is_repeated else (content,):
            if not is_text:
                _check_texts(item)
            # Protobuf returns bytes for a string field that is not UTF-8.
            elif not isinstance(item, str):
                raise Malformed(f"has a field {name} that is not UTF-8: {item[:40]!r}")


@cache
def _text_fields(kind: Descriptor) -> list[tuple[str, bool, bool]]:
    """Return the fields of a message that contain texts or messages.

    Returns:
        The name of each field, whether the field contains text, and whether it is repeated.
    """
    kinds = {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE}
    fields = [field for field in kind.fields if field.type in kinds]
    return [(field.name, field.message_type is None, field.is_repeated) for field in fields]


def _check_opsets(model: onnx.ModelProto) -> None:
    """Check that no opset version is out of range, and that no function replaces an operator.

    Raises:
        Malformed: if an opset version is out of range, or a function replaces an operator.
    """
    imports = (entry for part in (model, *model.functions) for entry in part.opset_import)
    for entry in imports:
        if not 0 <= entry.version <= _MAX_OPSET:
            raise Malformed(
                f"imports the opset {entry.version} of {entry.domain[:40]!r}, which cannot exist"
            )
    versions = imported_versions(model)
    for function in model.functions:
        domain = plain_domain(function.domain)
        version = versions.get(domain, 0)
        is_standard = domain in {"", "ai.onnx.ml"} and defs.has(function.name, version, domain)
        if is_standard and not function.overload:
            raise Malformed(
                f"defines a function {function.name}, which is also an operator of onnx; "
                "runtimes may choose which of the two a node calls"
            )


def _tensors(message: Any, owner: str = "") -> Iterator[tuple[str, TensorProto]]:
    """Yield every tensor in a message at any depth, with a description of its place."""
    if isinstance(message, SparseTensorProto):
        # If the field `values` is missing, an empty tensor is yielded. A later check reports that
        # the tensor has no element type.
        yield f"the values of the {owner}", message.values
        yield f"the indices of the {owner}", message.indices
        return
    for field in _tensor_fields(message.DESCRIPTOR):
        name = field.name
        if not field.is_repeated and not message.HasField(name):
            continue
        content = getattr(message, name)
        if isinstance(message, AttributeProto):
            # The attribute's type tag is ignored, because it may be wrong.
            owner = f"attribute {message.name!r},"
        elif isinstance(message, GraphProto):
            owner = name.replace("_", " ")
        for item in content if field.is_repeated else [content]:
            if isinstance(item, TensorProto):
                yield f"{_PLACES.get(name, 'the')} {owner}", item
            else:
                yield from _tensors(item, owner)


@cache
def _tensor_fields(kind: Descriptor) -> list[FieldDescriptor]:
    """Return the fields of a message that may contain tensors; initializers come first."""
    fields = [field for field in kind.fields if _may_contain_tensors(field.message_type)]
    return sorted(fields, key=lambda field: "initializer" not in field.name)


def _may_contain_tensors(kind: Descriptor | None) -> bool:
    """Return whether messages of a kind are tensors or may contain tensors at any depth."""
    kinds = [kind]
    for outer in kinds:  # the loop appends to kinds
        inner = [field.message_type for field in outer.fields] if outer else []
        kinds += [item for item in dict.fromkeys(inner) if item not in kinds]
    return TensorProto.DESCRIPTOR in kinds


def _load_external(tensor: TensorProto, folder: Path, allowance: int) -> None:
    """Move a tensor's external data into its raw_data.

    Args:
        tensor: the tensor.
        folder: the model's folder; files outside it are not opened.
        allowance: the number of bytes that may still be added to the model after the tensor;
            negative if the tensor exceeds the limit.

    Raises:
        Malformed: if the location leads out of the folder or through a link, or if the offset or
            the length does not match the tensor and the file.
        TooLarge: if the model becomes too large; the data are then not read.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if len(entries) != len(tensor.external_data):
        raise Malformed("names its external data twice")
    location = entries.get("location")
    if not location:
        raise Malformed("has external data without a location")
    size = byte_size(tensor)
    offset = _number(entries, "offset", 0)
    length = _number(entries, "length", size)
    if length != size:
        raise Malformed(f"has external data of length {length}; type and dims need {size}")
    try:
        with _external_data(folder, location, offset, size) as descriptor:
            if allowance >= 0:
                tensor.raw_data = read_exactly(descriptor, size)
    except TooLarge:
        raise
    except Malformed as error:
        raise Malformed(f"has external data in {location!r}, which {error}") from None
    if allowance < 0:
        raise TooLarge(
            f"brings the model to more than {PROTOBUF_LIMIT} bytes, the limit of a protobuf "
            "message; onnxopt passes a model with its external data as one message"
        )
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")


@contextmanager
def _external_data(folder: Path, location: str, offset: int, length: int) -> Iterator[int]:
    """Open a file of external data; yield a file descriptor that is positioned at the offset."""
    parts = inner_parts(location)
    if parts is None:
        raise Malformed("is not a path inside the model's folder")
    path = Path(os.path.realpath(folder))
    for part in parts:
        path /= part
        if _is_link(path):
            raise Malformed("leads through a symbolic link")
    # Another program may have replaced a part of the path by a link since the check.
    with open_regular_file(path, links=False) as (descriptor, status):
        if status.st_nlink > 1:
            raise Malformed("is a hard link: the file has another name elsewhere")
        if offset + length > status.st_size:
            raise Malformed(
                f"has {status.st_size} bytes; offset {offset} and length {length} need more"
            )
        os.lseek(descriptor, offset, os.SEEK_SET)
        yield descriptor


def _is_link(path: Path) -> bool:
    try:
        return path.is_symlink()
    except OSError as error:
        # Possible reasons are a name that is too long and a folder that is not accessible.
        raise Malformed(f"cannot be read: {error.strerror}") from None


def _number(entries: dict[str, str], key: str, default: int) -> int:
    text = entries.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        raise Malformed(f"has external data with the {key} {text[:40]!r}; a number was expected")
    return int(text)
