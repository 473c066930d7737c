"""Cache of condition estimates in the user's cache folder.

A cached estimate decides verdicts, so it is used only if onnxopt wrote it on this machine for this
user. The folder belongs to the user, and other users have no access. An index has the size, times
and SHA-256 of every entry; an entry that differs, as after copying or unpacking, is computed again.
Programs that run as the same user can forge the whole cache.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import stat
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx

from onnxopt_cli import __version__
from onnxopt_cli.cases.onnx.corpora import (
    cache_folder,
    is_ours,
    is_private,
)
from onnxopt_cli.cases.tensors.regular_file import Malformed, read_regular_file
from onnxopt_cli.core.codec import (
    ValueReader,
    ValueWriter,
    read_json,
    run_request,
)
from onnxopt_cli.core.files import write_atomically
from onnxopt_cli.core.locks import locked
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.values import Value
from onnxopt_cli.errors import (
    ProtocolBreach,
    UnusableOutput,
    UsageError,
)

# Version of the format of entries.
_FORMAT = 3
_INDEX = "index.json"
_INDEX_LIMIT = 16 << 20
_MAX_ENTRY_BYTES = 16 << 20
_MAX_CACHE_BYTES = 1 << 30
# The index of this number of entries is smaller than its limit.
_MAX_ENTRIES = 50_000
_LOCK_SECONDS = 3.0


class OracleCache:
    """The cached estimates of earlier runs and of this run."""

    def __init__(self) -> None:
        self._folder = cache_folder() / f"estimates-{_origin()[:16]}"
        self._new: dict[str, list[Any]] = {}
        self._unusable = self._prepared()
        self._has_warned = False
        self._entries = self._index()

    def get(self, key: str) -> list[Value] | None:
        """Return a cached estimate; None without a trusted entry."""
        if self._unusable and not self._has_warned:
            self._has_warned = True
            logging.getLogger(__name__).warning(
                "condition estimates are computed without a cache, which takes longer: "
                "cannot use %s: %s",
                printable(str(self._folder)),
                printable(self._unusable),
            )
        entry = self._entries.get(key)
        try:
            if entry is None or _signature(self._folder / key) != entry[:-1]:
                return None
            data = read_regular_file(self._folder / key, _MAX_ENTRY_BYTES)
            if sha256(data).hexdigest() != entry[-1]:
                return None
            end = data.index(b"\n") + 1
            reader = ValueReader(data[end:])
            outputs = [reader.value(value) for value in read_json(data[:end])["outputs"]]
            reader.end()
        except (OSError, Malformed, ProtocolBreach, ValueError, TypeError, LookupError):
            return None
        return outputs

    def put(self, key: str, outputs: Sequence[Value]) -> None:
        """Store an estimate, if possible."""
        if self._unusable or not key:
            return
        values = ValueWriter()
        with suppress(OSError, UsageError, UnusableOutput):
            described = [values.put(value) for value in outputs]
            data = b"".join(values.message({"outputs": described}))
            if len(data) <= _MAX_ENTRY_BYTES:
                write_atomically(self._folder / key, data)
                signature = _signature(self._folder / key)
                self._new[key] = [*signature, sha256(data).hexdigest()]

    def close(self) -> None:
        """Add the new entries to the index for later runs."""
        if not self._new:
            return
        with locked(self._folder, _LOCK_SECONDS), suppress(OSError, UsageError):
            # Another run may have changed the index meanwhile.
            entries = {**self._index(), **self._new}
            total_bytes = sum(size for size, *_ in entries.values())
            while total_bytes > _MAX_CACHE_BYTES or len(entries) > _MAX_ENTRIES:
                oldest = next(iter(entries))
                total_bytes -= entries.pop(oldest)[0]
                (self._folder / oldest).unlink(missing_ok=True)
            write_atomically(self._folder / _INDEX, json.dumps(entries).encode())
        self._new = {}

    def _prepared(self) -> str:
        """Create the folder if needed, and return why it cannot be used; empty if it can."""
        try:
            missing_parents = [parent for parent in self._folder.parents if not parent.exists()]
            for missing in reversed(missing_parents):
                missing.mkdir(0o700, exist_ok=True)
            self._folder.mkdir(0o700, exist_ok=True)
            status = self._folder.lstat()
        except OSError as error:
            return error.strerror or str(error)
        if not stat.S_ISDIR(status.st_mode):
            return "it is not a folder"
        return "" if is_private(status) else "others may write to it"

    def _index(self) -> dict[str, list[Any]]:
        path = self._folder / _INDEX
        try:
            if self._unusable or not _signature(path):
                return {}
            index = read_json(read_regular_file(path, _INDEX_LIMIT))
            return {
                str(key): [int(size), int(mtime), int(ctime), str(digest)]
                for key, (size, mtime, ctime, digest) in index.items()
                if "/" not in key
            }
        except (OSError, Malformed, ArithmeticError, ValueError, TypeError, AttributeError):
            return {}


def estimate_key(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> str:
    """Return the key of an estimate: a digest of everything that it depends on.

    The key is empty if an input cannot be serialized.
    """
    digest = sha256(_origin().encode())
    try:
        request, values = run_request(model.SerializeToString(deterministic=True), inputs)
        for part in values.message(request):
            digest.update(part)
    except UnusableOutput:
        return ""
    return digest.hexdigest()


def _signature(path: Path) -> list[int]:
    """Return the size, mtime and ctime of a regular file of this user; empty for other files.

    Programs cannot set the ctime.
    """
    status = os.lstat(path)
    ours = stat.S_ISREG(status.st_mode) and is_ours(status) and status.st_nlink == 1
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns] if ours else []


@cache
def _origin() -> str:
    """Return a digest of the code and the versions that compute estimates."""
    versions = (__version__, onnx.__version__, np.__version__, ml_dtypes.__version__, sys.version)
    digest = sha256(repr((_FORMAT, *versions, platform.machine())).encode())
    sources = Path(__file__).parent
    for path in sorted(sources.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
