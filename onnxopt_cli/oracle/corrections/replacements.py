"""What runs in place of functions of onnx's reference: a register that modules of ours fill."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial, reduce
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np

from onnxopt_cli.core.values import Array

#: Operators that interpolate.
INTERPOLATING = frozenset({"GridSample", "Resize", "Upsample"})
#: How what is interpolated between integers becomes one: the specification does not say.
ROUNDING = SimpleNamespace(toward=np.rint)
F = TypeVar("F", bound=Callable[..., Any])

# By so little whole numbers are missed.
_WHOLE = 1e-6
_INSTEAD: list[tuple[str, Callable[..., Any]]] = []


def instead_of(*places: str) -> Callable[[F], F]:
    """Have a function run in place of the reference's.

    It is given the reference's own first; if that is a method, the node before it.

    Args:
        places: which, by module and class.
    """

    def note(function: F) -> F:
        _INSTEAD.extend((place, function) for place in places)
        return function

    return note


@cache
def functions() -> list[tuple[Any, str, Any]]:
    """Return what is run in place of the reference's functions: owner, name and function."""
    found = []
    for place, function in _INSTEAD:
        *within, name = place.split(".")
        owner = reduce(getattr, within, reference_modules())
        given = _method if isinstance(owner, type) else partial
        found.append((owner, name, given(function, getattr(owner, name))))
    return found


def reference_modules() -> Any:
    """Return the reference's modules by name; their types are of no use here."""
    # The latter is read so that it is one of them.
    from onnx.reference import ops
    from onnx.reference.ops.aionnxml import _op_list  # noqa: F401

    return ops


def _method(function: Callable[..., Any], kept: Any) -> Callable[..., Any]:
    """Return a method; one of functools makes an object at each call, of which there are many."""
    return lambda node, *given, **rest: function(node, kept, *given, **rest)


def whole_numbers(values: Array, dtype: Any) -> Array:
    """Return integers near values, within the range of a dtype."""
    near, limits = np.rint(values), np.iinfo(dtype)
    # What is whole but for roundings is that number.
    close = np.abs(values - near) < _WHOLE
    return np.clip(np.where(close, near, ROUNDING.toward(values)), limits.min, limits.max).astype(
        dtype
    )
