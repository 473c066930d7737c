"""External data of a model, read into its tensors; only files of the model's own folder."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath, PureWindowsPath

from onnx import TensorProto

from onnxopt_cli.cases.values.malformed import Malformed
from onnxopt_cli.cases.values.regular_file import PROTOBUF_LIMIT, open_regular_file, read_exactly
from onnxopt_cli.cases.values.tensor_data import byte_size

_MAXIMUM_DIGITS = 19


class ExternalData:
    """The external data of one model.

    Args:
        folder: where the model stands; no file outside of it is opened.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Many tensors may name the same bytes, so the files' sizes do not bound what is read.
        self._allowance = PROTOBUF_LIMIT

    def take_in(self, tensor: TensorProto) -> None:
        """Move a tensor's external data into its raw_data; leave any other tensor alone.

        Raises:
            Malformed: if the location leads out of the folder or through a link, the offset and
                length do not fit the tensor and the file, or all data of the model together exceed
                what a model can hold.
        """
        if tensor.data_location != TensorProto.EXTERNAL:
            return
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
        self._allowance -= needed
        if self._allowance < 0:
            raise Malformed(f"brings the external data to more than {PROTOBUF_LIMIT} bytes")
        try:
            data = self._read(location, offset, needed)
        except Malformed as error:
            raise Malformed(f"has external data in {location!r}, which {error}") from None
        tensor.raw_data = data
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")

    def _read(self, location: str, offset: int, length: int) -> bytes:
        path = self._folder
        for part in _inner_parts(location):
            path = path / part
            if path.is_symlink():
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


def external_path(folder: Path, tensor: TensorProto) -> Path | None:
    """Return the file that holds a tensor's data; None if none does, or not one in the folder."""
    if tensor.data_location != TensorProto.EXTERNAL:
        return None
    location = next((it.value for it in tensor.external_data if it.key == "location"), "")
    if not location or not isinstance(location, str):
        return None
    try:
        return folder.joinpath(*_inner_parts(location))
    except Malformed:
        return None


def _inner_parts(location: str) -> tuple[str, ...]:
    """Return the parts of a path that cannot lead out of where it starts, on any system."""
    path = PurePosixPath(location)
    parts = path.parts
    absolute = path.is_absolute() or PureWindowsPath(location).anchor
    if absolute or not parts or ".." in parts or "\\" in location or "\0" in location:
        raise Malformed("is not a path inside the model's folder")
    return parts


def _number(entries: dict[str, str], key: str, default: int) -> int:
    text = entries.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAXIMUM_DIGITS):
        raise Malformed(f"has external data with the {key} {text[:40]!r}; a number was expected")
    return int(text)
