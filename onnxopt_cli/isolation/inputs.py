"""Copies of inputs for a backend, which may write into them, and whether it did."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from onnxopt_cli.core.values import Value


def copy_inputs(inputs: Mapping[str, Value]) -> dict[str, Value]:
    """Return inputs that share no memory with the given ones, tensors in C order."""
    return {name: _copy(value) for name, value in inputs.items()}


def changed_inputs(before: Mapping[str, Value], after: Mapping[str, Value]) -> list[str]:
    """Return the names of inputs that differ in any bit, or in structure."""
    return [name for name, value in before.items() if not _same(value, after.get(name))]


def _copy(value: Value) -> Value:
    if isinstance(value, list):
        return [_copy(item) for item in value]
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return None if value is None else np.array(value, order="C")


def _same(before: Value, after: Value) -> bool:
    if isinstance(before, list) and isinstance(after, list):
        pairs = zip(before, after, strict=False)
        return len(before) == len(after) and all(_same(*pair) for pair in pairs)
    if isinstance(before, dict) and isinstance(after, dict):
        return before.keys() == after.keys() and all(
            _same(value, after[key]) for key, value in before.items()
        )
    if not isinstance(before, np.ndarray) or not isinstance(after, np.ndarray):
        return before is None and after is None
    if before.dtype != after.dtype or before.shape != after.shape:
        return False
    if before.dtype == object:
        return bool(np.array_equal(before, after))
    # Bits, not values: NaN equals itself here, and 0.0 does not equal -0.0.
    return before.tobytes() == after.tobytes()
