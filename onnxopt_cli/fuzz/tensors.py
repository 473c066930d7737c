"""Shapes and numbers of an example's tensors, drawn with few choices.

Hypothesis takes longer for a choice than a backend for a tensor. So the elements of a tensor are
not drawn one by one: they are a constant, or follow from a seed, as short decimals that a person
can read when the seed is all that is left of a failure.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.fuzz.source import Source

Shape = tuple[int, ...]

_SHAPES: tuple[Shape, ...] = (
    (), (1,), (2,), (3,), (0,), (1, 1), (2, 3), (5,), (1, 3, 1), (2, 0), (17,), (2, 1, 3, 2),
    (7, 5), (64,), (129,),
)  # fmt: skip
#: Powers of ten whose squares stay in range, and others, by item size.
_POWERS = {
    4: (-6, 6, -12, 12, -18, 18, -30, 30, -40),
    8: (-6, 6, -15, 15, -30, 30, -150, 150, -310),
}
_CONSTANTS = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, 10.0)
_SEEDS = 1 << 12
#: Of so many seeds most give decimals as they are, the last scaled ones and special values.
_STYLES = 6


def draw_shape(source: Source) -> Shape:
    """Draw the shape of an optimized tensor."""
    return source.choice(_SHAPES)


def draw_narrow_shape(source: Source, shape: Shape) -> Shape:
    """Draw a shape that broadcasts to the given one."""
    narrow = (shape, (), shape[1:], (1,) * len(shape), (*shape[:-1], 1) if shape else ())
    return source.choice(narrow)


def draw_tensor(
    source: Source, shape: Shape, dtype: np.dtype[Any], *, nonnegative: bool = False
) -> Array:
    """Draw a tensor with a single choice.

    Args:
        source: of the choice.
        shape: of the tensor.
        dtype: a float type.
        nonnegative: whether negative numbers are left out.
    """
    chosen = source.integer(0, len(_CONSTANTS) + _SEEDS - 1)
    with np.errstate(all="ignore"):
        values = _values(chosen, shape, dtype)
        return np.asarray(np.abs(values) if nonnegative else values, dtype)


def _values(chosen: int, shape: Shape, dtype: np.dtype[Any]) -> Array:
    if chosen < len(_CONSTANTS):
        return np.full(shape, _CONSTANTS[chosen])
    random = np.random.RandomState(chosen)
    values = _decimals(random, shape)
    style = chosen % _STYLES
    if style == _STYLES - 2:
        return values * 10.0 ** random.choice(_POWERS[dtype.itemsize])
    if style == _STYLES - 1:
        special = random.choice(_special(dtype), shape)
        return np.where(random.randint(0, 3, shape) == 0, special, values)
    return values


def _decimals(random: np.random.RandomState, shape: Shape) -> Array:
    """Return decimals of up to three digits and many magnitudes, one in eight of them zero."""
    powers = 10.0 ** random.randint(-5, 1, shape)
    digits = random.randint(-999, 1000, shape) * (random.randint(0, 8, shape) > 0)
    # Dividing rounds to the nearest double of the decimal; a zero loses its sign.
    return digits / (1 / powers) + 0.0


@cache
def _special(dtype: np.dtype[Any]) -> tuple[float, ...]:
    limits = np.finfo(dtype)
    return (
        0.0,
        -0.0,
        1.0,
        -1.0,
        float(limits.eps),
        1 + float(limits.eps),
        float(limits.smallest_normal),
        float(limits.smallest_subnormal),
        float(limits.max),
        -float(limits.max),
        float("inf"),
        float("-inf"),
        float("nan"),
    )
