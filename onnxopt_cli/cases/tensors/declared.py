"""Values with known types and shapes whose data may be created later, such as random tensors."""

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

# iinfo of ml_dtypes lacks type annotations.
_iinfo: Any = ml_dtypes.iinfo

#: Largest number of elements of a tensor, independent of the available memory.
MAX_ELEMENTS = 1 << 31

#: Number of bytes of memory that a case may use by default.
DEFAULT_MEMORY = 4 << 30

#: Upper estimate of the memory in bytes that judging needs for each element of a case. Measured
#: bytes for each element: 230 for trajectories, since all steps are kept; 80 for AdmmUpdate, which
#: sorts its elements; 10 to 50 for operators that are judged in blocks.
BYTES_PER_ELEMENT = 256


@dataclass(frozen=True, slots=True)
class PromisedTensor:
    """A tensor whose data are created later.

    Attributes:
        dtype: the element type.
        shape: the shape.
        make: function that creates the tensor; raises Malformed or FormatError if the data are
            invalid.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    make: Callable[[], Array]


@dataclass(frozen=True, slots=True)
class DeclaredGroup:
    """A sequence or an optional whose data are created later.

    Attributes:
        kind: ``seq`` or ``optional``, ONNX's names of these types.
        dtype: the element type, defined even without elements.
        items: the elements; at most one in an optional.
    """

    kind: Literal["seq", "optional"]
    dtype: np.dtype[Any]
    items: tuple[Declared, ...] = ()

    def filled(self, items: list[Value]) -> Value:
        """Return ``items`` as a sequence or as an optional, depending on ``kind``."""
        return items if self.kind == "seq" else next(iter(items), None)


#: A tensor: declared if its data are created later, or an array if the data are already known.
DeclaredTensor: TypeAlias = PromisedTensor | Array
Declared: TypeAlias = DeclaredTensor | DeclaredGroup


def made(value: Declared) -> Any:
    """Create the data of a declared value; an array is copied."""
    if isinstance(value, DeclaredGroup):
        return value.filled([made(item) for item in value.items])
    return value.copy() if isinstance(value, np.ndarray) else value.make()


def too_large(shape: tuple[int, ...]) -> str | None:
    """Return a message if a tensor of a shape would be too large, otherwise None.

    Dimensions with length zero are ignored, because NumPy rejects even empty shapes such as (0,
    2^62, 4).
    """
    if math.prod(max(size, 1) for size in shape) <= MAX_ELEMENTS:
        return None
    return f"shape {list(shape)}, expected at most {MAX_ELEMENTS} elements"


def broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Return whether a tensor of a shape can be broadcast to a target shape."""
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
    """Return a value of zeros with the same structure, types and shapes.

    The zeros take no memory.
    """
    if not isinstance(value, DeclaredGroup):
        return np.broadcast_to(np.zeros((), value.dtype), value.shape)
    return value.filled(list(map(outline, value.items)))


def integer_range(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the least and the largest value of an integer type."""
    info = np.iinfo(dtype) if dtype.kind in "iu" else _iinfo(dtype)
    return int(info.min), int(info.max)


#: Parameters of the float distributions with their defaults, in the order in which NumPy's
#: functions take the parameters.
_DEFAULTS = {
    "normal": {"mean": 0.0, "scale": 1.0},
    "uniform": {"low": 0.0, "high": 1.0},
    "lognormal": {"mean": 0.0, "scale": 1.0},
}


@dataclass(frozen=True, slots=True)
class RandomTensor:
    """A random tensor: ``{random: {normal: {mean: 1.0}, seed: 7}, shape: [3], dtype: float32}``.

    Attributes:
        distribution: ``normal``, ``uniform``, ``lognormal`` or ``integers``.
        seed: from 0 to 2^32 - 1.
        shape: the tensor's shape.
        dtype: the type to which the draws (float64, or int64 for integers) are cast.
        parameters: parameters of the distribution; omitted ones have their default values.
        tail: values that replace the last draws.
    """

    distribution: str
    seed: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    parameters: Mapping[str, float] = field(default_factory=dict)
    tail: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Validate the parameters.

        Raises:
            ValueError: if the parameters are invalid; the message states the actual and the
                expected values.
        """
        if oversize := too_large(self.shape):
            raise ValueError(oversize)
        name, parameters = dtype_name(self.dtype), dict(self.parameters)
        if len(self.tail) > math.prod(self.shape):
            raise ValueError(
                f"a tail of {len(self.tail)} elements, expected at most {math.prod(self.shape)}"
            )
        if self.distribution == "integers":
            smallest, largest = _drawable_range(self.dtype)
            low, high = parameters["low"], parameters["high"]
            if not smallest <= low < high <= largest + 1:
                raise ValueError(
                    f"integers from {int(low)} up to {int(high)}, expected a range between "
                    f"{smallest} and {largest + 1} for {name}"
                )
            return
        if "float" not in name:
            raise ValueError(
                f"a {self.distribution} distribution of {name}, expected a float type (or integers)"
            )
        values = _DEFAULTS[self.distribution] | parameters
        low, high = values.get("low", 0.0), values.get("high", 1.0)
        if not all(map(math.isfinite, (*values.values(), high - low))) or low > high:
            raise ValueError(f"{values}, expected a finite range with low <= high")

    def make(self) -> Array:
        """Draw the elements, and convert them to the dtype, which may round a draw to zero.

        Raises:
            ValueError: if a draw exceeds the dtype's range.
        """
        state, parameters = random_state(self.seed), dict(self.parameters)
        if self.distribution == "integers":
            low, high = int(parameters["low"]), int(parameters["high"])
            values = state.randint(low, high, self.shape, np.int64)
        else:
            arguments = (_DEFAULTS[self.distribution] | parameters).values()
            values = getattr(state, self.distribution)(*arguments, self.shape)
        draws: Array = np.asarray(values)
        if self.tail:
            draws.reshape(-1)[-len(self.tail) :] = self.tail
        with np.errstate(all="ignore"):
            tensor: Array = draws.astype(self.dtype)
            finite = np.isfinite(tensor)
        if not finite.all():
            raise ValueError(
                f"a draw of {draws[~finite].flat[0]}, expected all draws in the range of "
                f"{dtype_name(self.dtype)}"
            )
        return tensor


def _drawable_range(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the least and the largest integer that can be drawn for an element type."""
    name = dtype_name(dtype)
    if name == STRING:
        raise ValueError("random text, expected a number type or bool")
    if name == "bool":
        return 0, 1
    drawable = np.iinfo(np.int64)
    low, high = integer_range(dtype) if "int" in name else (drawable.min, drawable.max)
    return max(low, drawable.min), min(high, drawable.max - 1)
