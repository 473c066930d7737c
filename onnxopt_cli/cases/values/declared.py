"""Values whose type is known before their data are made."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from onnxopt_cli.core.values import Array, Value

#: How many elements all tensors of a case may have together. Judging one element takes up to 760
#: bytes, as was measured with Adam where X alone is large and the types are unlike: its formula is
#: followed in wider types, operation by operation; and the next cases are read meanwhile. With this
#: many a run stays below 1 GiB.
MAX_ELEMENTS = 750_000


@dataclass(frozen=True, slots=True)
class DeclaredTensor:
    """A tensor to be made.

    Attributes:
        dtype: its element type.
        shape: its shape.
        make: makes it; raises FormatError where the data turn out not to fit.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    make: Callable[[], Array]


@dataclass(frozen=True, slots=True)
class DeclaredSequence:
    """A sequence to be made; ``dtype`` also says the element type of an empty one."""

    dtype: np.dtype[Any]
    items: tuple[Declared, ...]

    def make(self) -> Value:
        """Make all of it."""
        return [item.make() for item in self.items]


@dataclass(frozen=True, slots=True)
class DeclaredOptional:
    """An optional to be made; ``dtype`` also says the element type of an empty one."""

    dtype: np.dtype[Any]
    item: Declared | None

    def make(self) -> Value:
        """Make what is in it, or None."""
        return None if self.item is None else self.item.make()


Declared: TypeAlias = DeclaredTensor | DeclaredSequence | DeclaredOptional


def too_large(shape: tuple[int, ...]) -> str | None:
    """Say that a shape has too many elements to be made, None if it has not.

    A dimension of zero does not excuse the others: NumPy refuses shapes such as (0, 2^62, 4).
    """
    if math.prod(max(size, 1) for size in shape) <= MAX_ELEMENTS:
        return None
    return f"shape {list(shape)}, expected at most {MAX_ELEMENTS} elements"


def element_count(value: Declared) -> int:
    """Return the number of elements of all tensors in a value."""
    match value:
        case DeclaredTensor():
            return math.prod(value.shape)
        case DeclaredSequence():
            return sum(map(element_count, value.items))
        case DeclaredOptional():
            return 0 if value.item is None else element_count(value.item)


def outline(value: Declared) -> Value:
    """Return a value of the same structure, types and shapes that takes no memory: all zeros."""
    match value:
        case DeclaredTensor():
            return np.broadcast_to(np.zeros((), value.dtype), value.shape)
        case DeclaredSequence():
            return [outline(item) for item in value.items]
        case DeclaredOptional():
            return None if value.item is None else outline(value.item)
