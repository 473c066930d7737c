"""Functions of other libraries as we need them for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(module: Any, **functions: Any) -> Iterator[None]:
    """Let functions of a module be others meanwhile."""
    kept = {name: getattr(module, name) for name in functions}
    vars(module).update(functions)
    try:
        yield
    finally:
        vars(module).update(kept)
