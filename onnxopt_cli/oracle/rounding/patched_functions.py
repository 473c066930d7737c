"""Functions of other libraries as we need them for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(*functions: tuple[Any, str, Any]) -> Iterator[None]:
    """Let functions be others meanwhile, each given with its module and name."""
    kept = [(module, name, getattr(module, name)) for module, name, _ in functions]
    try:
        for replacement in functions:
            setattr(*replacement)
        yield
    finally:
        for it in kept:
            setattr(*it)
