"""Functions of onnx's reference and of NumPy that ours replace.

Corrections of the reference register their functions with :func:`replaces`. They take effect where
:func:`replaced` applies :func:`replacements`, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial, reduce
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_REPLACEMENTS: list[tuple[str, Callable[..., Any]]] = []


@contextmanager
def replaced(*functions: tuple[Any, str, Any]) -> Iterator[None]:
    """Replace functions within the block: (module or class, name, replacement)."""
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in functions]
    try:
        for replacement in functions:
            setattr(*replacement)
        yield
    finally:
        for original in originals:
            setattr(*original)


def replaces(*places: str) -> Callable[[F], F]:
    """Register a function that replaces functions of onnx's reference.

    Its first argument is the original function; that of a method is the node, then the original.

    Args:
        places: the functions to replace: module, class if any, and name.
    """

    def register(function: F) -> F:
        _REPLACEMENTS.extend((place, function) for place in places)
        return function

    return register


@cache
def replacements() -> list[tuple[Any, str, Any]]:
    """Return the registered replacements, as :func:`replaced` takes them."""
    bound = []
    for place, function in _REPLACEMENTS:
        *within, name = place.split(".")
        owner = reduce(getattr, within, reference_modules())
        bind = _method if isinstance(owner, type) else partial
        bound.append((owner, name, bind(function, getattr(owner, name))))
    return bound


def reference_modules() -> Any:
    """Return the package whose attributes are the modules of the reference's operators."""
    from onnx.reference import ops

    # Importing the operators of ai.onnx.ml makes their modules an attribute, too.
    from onnx.reference.ops.aionnxml import _op_list  # noqa: F401

    return ops


def _method(function: Callable[..., Any], original: Any) -> Callable[..., Any]:
    """Return a method. A partialmethod would create an object at each of many calls."""
    return lambda node, *args, **kwargs: function(node, original, *args, **kwargs)
