"""The intermediate values of a model: in memory up to a limit, others in a temporary folder."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from onnxopt_cli.core.values import Value


class ValueStore(MutableMapping[str, Value]):
    """Values by name. Numeric tensors beyond a limit of memory are written to files.

    Args:
        memory: bytes of tensors that are kept in memory.
    """

    def __init__(self, memory: int) -> None:
        self._remaining = memory
        self._values: dict[str, Value] = {}
        self._files: dict[str, tuple[Path, np.dtype[Any], tuple[int, ...]]] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Remove the files."""
        if self._folder is not None:
            self._folder.cleanup()

    def __setitem__(self, name: str, value: Value) -> None:
        if not isinstance(value, np.ndarray) or value.dtype.kind == "O":
            self._values[name] = value
            return
        if value.nbytes <= self._remaining:
            self._remaining -= value.nbytes
            self._values[name] = value
            return
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="onnxopt-values-")
        path = Path(self._folder.name, str(len(self._files)))
        path.write_bytes(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
        self._files[name] = path, value.dtype, value.shape

    def __getitem__(self, name: str) -> Value:
        if name in self._values:
            return self._values[name]
        path, dtype, shape = self._files[name]
        return np.fromfile(path, np.uint8).view(dtype).reshape(shape)

    def bytes_of(self, name: str) -> int:
        """Return the size of a numeric tensor, without reading its file; 0 for another value."""
        if name in self._files:
            _, dtype, shape = self._files[name]
            return dtype.itemsize * math.prod(shape)
        value = self._values[name]
        return value.nbytes if isinstance(value, np.ndarray) and value.dtype.kind != "O" else 0

    def __delitem__(self, name: str) -> None:
        if name in self._files:
            self._files.pop(name)[0].unlink()
            return
        value = self._values.pop(name)
        if isinstance(value, np.ndarray) and value.dtype.kind != "O":
            self._remaining += value.nbytes

    def __iter__(self) -> Iterator[str]:
        yield from self._values
        yield from self._files

    def __len__(self) -> int:
        return len(self._values) + len(self._files)
