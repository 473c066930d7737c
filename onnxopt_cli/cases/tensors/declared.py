"""Values whose type is known before their data are made, random ones among them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import ml_dtypes
import numpy as np

from onnxopt_cli.core.values import (
    STRING,
    Array,
    Value,
    dtype_name,
    random_state,
)

# It has no type information.
_iinfo: Any = ml_dtypes.iinfo

#: How many elements a tensor may have, whatever memory there is.
MAX_ELEMENTS = 1 << 31

#: The memory that a case may take where nothing else is said.
USUAL_MEMORY = 4 << 30

#: What judging takes for each element of a case, at most. Measured: 230 bytes for a trajectory, of
#: which all steps are kept; 80 for AdmmUpdate, which sorts; 10 to 50 for what is judged in blocks.
BYTES_PER_ELEMENT = 256


@dataclass(frozen=True, slots=True)
class PromisedTensor:
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
class DeclaredGroup:
    """A sequence or an optional to be made.

    Attributes:
        kind: ``seq`` or ``optional``, as ONNX names types.
        dtype: the element type, also of an empty one.
        items: the elements; of an optional one or none.
    """

    kind: Literal["seq", "optional"]
    dtype: np.dtype[Any]
    items: tuple[Declared, ...] = ()

    def filled(self, items: list[Value]) -> Value:
        """Return such a value of other items, as many."""
        return items if self.kind == "seq" else next(iter(items), None)


#: An array is a tensor whose data are known.
DeclaredTensor: TypeAlias = PromisedTensor | Array
Declared: TypeAlias = DeclaredTensor | DeclaredGroup


def made(value: Declared) -> Any:
    """Return the array or other value that is declared; a copy of what is known already."""
    if isinstance(value, DeclaredGroup):
        return value.filled([made(item) for item in value.items])
    return value.copy() if isinstance(value, np.ndarray) else value.make()


def too_large(shape: tuple[int, ...]) -> str | None:
    """Say that a shape has too many elements to be made, None if it has not.

    A dimension of zero does not excuse the others: NumPy refuses shapes such as (0, 2^62, 4).
    """
    if math.prod(max(size, 1) for size in shape) <= MAX_ELEMENTS:
        return None
    return f"shape {list(shape)}, expected at most {MAX_ELEMENTS} elements"


def broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Tell whether a tensor of a shape broadcasts to another shape."""
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False


def element_count(value: Declared) -> int:
    """Return the number of elements of all tensors in a value."""
    if not isinstance(value, DeclaredGroup):
        return math.prod(value.shape)
    return sum(map(element_count, value.items))


def outline(value: Declared) -> Value:
    """Return a value of the same structure, types and shapes that takes no memory: all zeros."""
    if not isinstance(value, DeclaredGroup):
        return np.broadcast_to(np.zeros((), value.dtype), value.shape)
    return value.filled(list(map(outline, value.items)))


def integer_range(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the least and the largest value of an integer type."""
    info = np.iinfo(dtype) if dtype.kind in "iu" else _iinfo(dtype)
    return int(info.min), int(info.max)


#: The parameters of the distributions of floats, in the order of NumPy's functions, and defaults.
_DEFAULTS = {
    "normal": {"mean": 0.0, "scale": 1.0},
    "uniform": {"low": 0.0, "high": 1.0},
    "lognormal": {"mean": 0.0, "scale": 1.0},
}


@dataclass(frozen=True, slots=True)
class RandomTensor:
    """A tensor as ``{random: {normal: {mean: 1.0}, seed: 7}, shape: [3], dtype: float32}`` says it.

    Attributes:
        distribution: ``normal``, ``uniform``, ``lognormal`` or ``integers``.
        seed: from 0 to 2^32 - 1.
        shape: the tensor's shape.
        dtype: what the draws (float64, int64 for integers) are cast to.
        parameters: of the distribution; those left out have the defaults that the schema names.
        tail: the last elements, in the place of drawn ones.
    """

    distribution: str
    seed: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    parameters: Mapping[str, float] = field(default_factory=dict)
    tail: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn.

        Raises:
            ValueError: says what was found and expected.
        """
        if oversize := too_large(self.shape):
            raise ValueError(oversize)
        name, given = dtype_name(self.dtype), dict(self.parameters)
        if len(self.tail) > math.prod(self.shape):
            raise ValueError(
                f"a tail of {len(self.tail)} elements, expected at most {math.prod(self.shape)}"
            )
        if self.distribution == "integers":
            smallest, largest = _integers_drawn(self.dtype)
            if not smallest <= given["low"] < given["high"] <= largest + 1:
                raise ValueError(
                    f"integers from {int(given['low'])} up to {int(given['high'])}, expected some "
                    f"between {smallest} and {largest + 1} for {name}"
                )
            return
        if "float" not in name:
            raise ValueError(
                f"a {self.distribution} distribution of {name}, expected a float type (or integers)"
            )
        values = _DEFAULTS[self.distribution] | given
        low, high = values.get("low", 0.0), values.get("high", 1.0)
        if not all(map(math.isfinite, (*values.values(), high - low))) or low > high:
            raise ValueError(f"{values}, expected a finite range that does not go backwards")

    def make(self) -> Array:
        """Draw it; rounding to the dtype may make a draw zero.

        Raises:
            ValueError: if a draw exceeds the dtype's range.
        """
        state, given = random_state(self.seed), dict(self.parameters)
        if self.distribution == "integers":
            found = state.randint(int(given["low"]), int(given["high"]), self.shape, np.int64)
        else:
            values = _DEFAULTS[self.distribution] | given
            found = getattr(state, self.distribution)(*values.values(), self.shape)
        drawn: Array = np.asarray(found)
        if self.tail:
            drawn.reshape(-1)[-len(self.tail) :] = self.tail
        with np.errstate(all="ignore"):
            tensor: Array = drawn.astype(self.dtype)
            inside = np.isfinite(tensor)
        if not inside.all():
            raise ValueError(
                f"a draw of {drawn[~inside].flat[0]}, expected all of them in the range of "
                f"{dtype_name(self.dtype)}"
            )
        return tensor


def _integers_drawn(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the least and the largest integer that can be drawn for an element type."""
    name = dtype_name(dtype)
    if name == STRING:
        raise ValueError("random text, expected a number type or bool")
    if name == "bool":
        return 0, 1
    drawable = np.iinfo(np.int64)
    low, high = integer_range(dtype) if "int" in name else (drawable.min, drawable.max)
    return max(low, drawable.min), min(high, drawable.max - 1)
