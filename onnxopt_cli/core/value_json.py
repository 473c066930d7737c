"""Values and numbers as JSON that loses nothing.

Floats that JSON cannot hold are the strings ``"nan"``, ``"inf"`` and ``"-inf"``; tensors are their
dtype, shape and little-endian bytes in base64, string tensors a list.
"""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np

from onnxopt_cli.core.values import STRING, Value, dtype_name, dtype_named

_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def number_to_json(number: object) -> Any:
    """Return a number, bool or string as JSON has it."""
    if isinstance(number, complex):
        return str(number)
    if isinstance(number, float) and not math.isfinite(number):
        return str(number)
    return number


def number_from_json(data: Any) -> Any:
    """Return what :func:`number_to_json` was given, a complex number as its text."""
    return _SPECIAL.get(data, data) if isinstance(data, str) else data


def value_to_json(value: Value) -> Any:
    """Return a value as JSON."""
    if value is None:
        return None
    if isinstance(value, list):
        return {"sequence": [value_to_json(item) for item in value]}
    if isinstance(value, dict):
        return {"map": [[key, value_to_json(item)] for key, item in value.items()]}
    name = dtype_name(value.dtype)
    data: Any = (
        [str(item) for item in value.reshape(-1)]
        if name == STRING
        else base64.b64encode(_little_endian(value).tobytes()).decode("ascii")
    )
    return {"dtype": name, "shape": list(value.shape), "data": data}


def value_from_json(data: Any) -> Value:
    """Return what :func:`value_to_json` was given.

    Raises:
        ValueError: if the data are not what it returns.
    """
    try:
        if data is None:
            return None
        if "sequence" in data:
            return [value_from_json(item) for item in data["sequence"]]
        if "map" in data:
            return {key: value_from_json(item) for key, item in data["map"]}
        dtype = dtype_named(data["dtype"])
        if dtype is None:
            raise ValueError(f"there is no dtype {data['dtype']!r}")
        if data["dtype"] == STRING:
            return np.array(data["data"], dtype=object).reshape(data["shape"])
        raw = np.frombuffer(base64.b64decode(data["data"], validate=True), dtype=np.uint8)
        return _little_endian(raw.view(dtype)).reshape(data["shape"]).copy()
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a value: {error}") from error


def _little_endian(array: Any) -> Any:
    """Return an array whose bytes in memory are little-endian, or swap them back."""
    if np.little_endian or array.dtype.itemsize == 1:
        return array
    return array.byteswap()
