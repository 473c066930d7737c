"""The private folder through which a command is given a case, and gives back outputs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path

import onnx
from onnx import TypeProto

from onnxopt_cli.cases.values.proto_values import message_class, message_of, parse_message, value_of
from onnxopt_cli.cases.values.regular_file import (
    PROTOBUF_LIMIT,
    Malformed,
    open_regular_file,
    read_exactly,
)
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.values import Value
from onnxopt_cli.errors import OnnxoptError, ProtocolBreach, Unsupported

#: The name of the model's file.
MODEL = "model.onnx"

# What a link leads to need not lie in the folder.
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_SEPARATORS = frozenset("/\\\0:")


def write_case(
    folder: Path, model: bytes, graph: onnx.GraphProto, inputs: Mapping[str, Value]
) -> list[dict[str, str]]:
    """Write a model and its inputs into a new folder.

    Args:
        folder: is created.
        model: the content of the model file.
        graph: declares the inputs and outputs.
        inputs: values by name.

    Returns:
        Name and file of each input.

    Raises:
        Unsupported: if an input or output is of a type that no file can hold.
        OnnxoptError: if the folder cannot be written.
    """
    declared = {value.name: value.type for value in graph.input}
    files = []
    try:
        for output in graph.output:
            message_class(output.type)
        folder.mkdir(mode=0o700)
        (folder / MODEL).write_bytes(model)
        for index, (name, value) in enumerate(inputs.items()):
            message = message_of(name, value, _of_any_element(declared[name]))
            file = f"input_{index}.pb"
            (folder / file).write_bytes(message.SerializeToString())
            files.append({"name": name, "file": file})
    except Malformed as error:
        raise Unsupported(f"a value of the model {error}") from None
    except OSError as error:
        raise OnnxoptError(
            f"the files for the command cannot be written: {error.strerror or error}",
            hint="TMPDIR says where",
        ) from error
    return files


def read_values(
    folder: Path, files: Sequence[str], declared: Sequence[onnx.ValueInfoProto]
) -> list[Value]:
    """Read the outputs that a command has written.

    Element types and shapes are taken as they are, and files beyond those that the graph declares
    as tensors: the comparison reports them.

    Raises:
        ProtocolBreach: if a file is not there, not regular, not in the folder, too large, or holds
            no such value.
    """
    types = [_of_any_element(output.type) for output in declared]
    types += [_any_tensor()] * (len(files) - len(types))
    remaining = PROTOBUF_LIMIT
    values = []
    for file, expected in zip(files, types, strict=False):
        try:
            data = _content(folder, file, remaining)
            values.append(value_of(parse_message(data, message_class(expected)), expected))
        except Malformed as error:
            raise ProtocolBreach(f"the command's output {printable(file)!r} {error}") from None
        remaining -= len(data)
    return values


def _content(folder: Path, file: str, limit: int) -> bytes:
    if file in {"", ".", ".."} or not _SEPARATORS.isdisjoint(file) or not file.isprintable():
        raise Malformed("is no name of a file in the folder of the request")
    if (folder / file).is_symlink():
        raise Malformed("is a symbolic link")
    with open_regular_file(folder / file, _NO_LINK) as (descriptor, status):
        if status.st_size > limit:
            raise Malformed(
                f"has {status.st_size} bytes; all outputs may have {PROTOBUF_LIMIT} together"
            )
        return read_exactly(descriptor, status.st_size)


def _of_any_element(declared: TypeProto) -> TypeProto:
    """Return a type of the same structure whose tensors are of any element type and shape."""
    relaxed = deepcopy(declared)
    inner = innermost(relaxed)
    if inner.HasField("tensor_type"):
        inner.CopyFrom(_any_tensor())
    return relaxed


def innermost(declared: TypeProto) -> TypeProto:
    """Return what a sequence, an optional or a map holds in the end; any other type as it is."""
    kind = declared.WhichOneof("value")
    if kind in {"sequence_type", "optional_type"}:
        return innermost(getattr(declared, kind).elem_type)
    return innermost(declared.map_type.value_type) if kind == "map_type" else declared


def _any_tensor() -> TypeProto:
    anything = TypeProto()
    anything.tensor_type.SetInParent()
    return anything
