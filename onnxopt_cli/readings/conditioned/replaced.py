"""Functions of other libraries as we need them for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


@contextmanager
def replaced(*functions: tuple[Any, str, Any]) -> Iterator[None]:
    """Let functions be others meanwhile, each given with its module and name."""
    with ExitStack() as stack:
        for module, name, function in functions:
            stack.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, function)
        yield
