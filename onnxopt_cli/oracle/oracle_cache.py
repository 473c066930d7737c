"""A cache of condition estimates for reuse by later runs."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx

from onnxopt_cli import __version__
from onnxopt_cli.core.cache import Cache
from onnxopt_cli.core.codec import ValueReader, ValueWriter, read_json, run_request
from onnxopt_cli.core.values import Value
from onnxopt_cli.errors import ProtocolBreach, UnusableOutput

# The version of the format of cached estimates.
_FORMAT = 3


class OracleCache:
    """The cached condition estimates of earlier runs and of this run."""

    def __init__(self) -> None:
        self._cache = Cache(f"estimates-{_origin()[:16]}", "condition estimates are computed")

    def get(self, key: str) -> list[Value] | None:
        """Return the cached estimate for a key; None without a trusted entry for the key."""
        data = self._cache.get(key)
        if data is None:
            return None
        line, _, payload = data.partition(b"\n")
        try:
            reader = ValueReader(payload)
            outputs = [reader.value(value) for value in read_json(line)["outputs"]]
            reader.end()
        except (ProtocolBreach, ValueError, TypeError, LookupError):
            return None
        return outputs

    def put(self, key: str, outputs: Sequence[Value]) -> None:
        """Store an estimate under a key, if possible."""
        values = ValueWriter()
        with suppress(UnusableOutput):
            described = [values.put(value) for value in outputs]
            self._cache.put(key, b"".join(values.message({"outputs": described})))

    def close(self) -> None:
        """Write the new estimates to the cache, for later runs."""
        self._cache.close()


def estimate_key(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> str:
    """Return the key of an estimate: a digest of the model, the inputs, the code and the packages.

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


@cache
def _origin() -> str:
    """Return a digest of the code that computes estimates and of the versions of its libraries."""
    versions = (__version__, onnx.__version__, np.__version__, ml_dtypes.__version__, sys.version)
    digest = sha256(repr((_FORMAT, *versions, platform.machine())).encode())
    sources = Path(__file__).parent
    for path in sorted(sources.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
