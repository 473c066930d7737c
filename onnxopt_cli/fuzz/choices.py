"""Draw the parts of an example: shapes, numbers and attributes.

Hypothesis needs more time to make a choice than a backend needs to compute a small tensor.
Therefore, a whole tensor is drawn with a single choice: either a constant for all elements, or the
seed of random decimals. The decimals are short, so that they are readable in a report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import numpy as np

from onnxopt_cli.core.values import (
    DTYPES,
    Array,
    random_state,
)
from onnxopt_cli.interpret.evaluate import WIDEST_TYPE, undefined_at
from onnxopt_cli.operators.operator import (
    Attribute,
    AttributeValue,
    Operator,
    Scalar,
)

T = TypeVar("T")

#: The suite of the cases that are written for findings. The name of the suite is the first part of
#: the ids of its cases.
SUITE = "fuzz"
#: Name of the only case in the file of a finding.
NAME = "found"


class Source:
    """Makes choices.

    Hypothesis simplifies the choices to shrink a failing example.

    Args:
        draw: draws a value from a hypothesis strategy. If None, the simplest choice is always made.
    """

    def __init__(self, draw: Callable[[Any], Any] | None = None) -> None:
        self._draw = draw

    def choice(self, options: Sequence[T]) -> T:
        """Return one of the options; the first option is the simplest."""
        return options[self.integer(0, len(options) - 1)]

    def integer(self, least: int, most: int) -> int:
        """Return an integer from ``least`` to ``most``; the simplest is the one nearest to zero."""
        if self._draw is None or least == most:
            return min(max(0, least), most)
        return int(self._draw(_integers(least, most)))

    def rarely(self, times: int = 8) -> bool:
        """Return True about once in ``times`` calls; False is simpler."""
        return self.integer(0, times - 1) == times - 1

    def reject(self) -> None:
        """Discard the example as inconclusive; without ``draw``, do nothing."""
        if self._draw is not None:
            import hypothesis

            hypothesis.reject()


@cache
def _integers(least: int, most: int) -> Any:
    from hypothesis import strategies

    return strategies.integers(least, most)


Shape = tuple[int, ...]

#: Shapes of tensors in examples; the first shape is the simplest.
SHAPES: tuple[Shape, ...] = (
    (), (1,), (2,), (3,), (0,), (1, 1), (2, 3), (5,), (1, 3, 1), (2, 0), (17,), (2, 1, 3, 2),
    (7, 5), (64,), (129,),
)  # fmt: skip
#: The exponents of the powers of ten by which elements are scaled, by item size in bytes. Most
#: squares of scaled elements are in the range of the type, but some are not.
_POWERS = {
    4: (-6, 6, -12, 12, -18, 18, -30, 30, -40),
    8: (-6, 6, -15, 15, -30, 30, -150, 150, -310),
}
_CONSTANTS = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, 10.0)
# has_result() evaluates the formula once for each of these values. In each evaluation, all elements
# of all tensors have the same value.
_TRIAL_ELEMENTS = (1.0, 0.375)
_SEEDS = 1 << 12
# The style of a tensor is its seed modulo _STYLES. One style scales the decimals, and another style
# replaces some decimals by special values. All other styles use plain decimals.
_STYLES = 6


def draw_narrow_shape(source: Source, shape: Shape) -> Shape:
    """Draw a shape that can be broadcast to ``shape``."""
    narrow = (shape, (), shape[1:], (1,) * len(shape), (*shape[:-1], 1) if shape else ())
    return source.choice(narrow)


def draw_tensor(
    source: Source, shape: Shape, dtype: np.dtype[Any], *, nonnegative: bool = False
) -> Array:
    """Draw a tensor with a single choice.

    Args:
        source: source of the choice.
        shape: shape of the tensor.
        dtype: a float type.
        nonnegative: whether to replace the elements by their absolute values.
    """
    chosen = source.integer(0, len(_CONSTANTS) + _SEEDS - 1)
    with np.errstate(all="ignore"):
        values = _values(chosen, shape, dtype)
        return np.asarray(np.abs(values) if nonnegative else values, dtype)


def _values(chosen: int, shape: Shape, dtype: np.dtype[Any]) -> Array:
    if chosen < len(_CONSTANTS):
        return np.full(shape, _CONSTANTS[chosen])
    random = random_state(chosen)
    values = _decimals(random, shape)
    style = chosen % _STYLES
    if style == _STYLES - 2:
        return values * 10.0 ** random.choice(_POWERS[dtype.itemsize])
    if style == _STYLES - 1:
        special = random.choice(_special(dtype), shape)
        return np.where(random.randint(0, 3, shape) == 0, special, values)
    return values


def _decimals(random: np.random.RandomState, shape: Shape) -> Array:
    """Return decimals with up to three digits and many magnitudes.

    About one in eight decimals is zero.
    """
    powers = 10.0 ** random.randint(-5, 1, shape)
    digits = random.randint(-999, 1000, shape) * (random.randint(0, 8, shape) > 0)
    # Dividing the digits by a power of ten yields the double that is nearest to the decimal. Adding
    # 0.0 turns -0.0 into 0.0.
    return digits / (1 / powers) + 0.0


@cache
def _special(dtype: np.dtype[Any]) -> tuple[float, ...]:
    limits = np.finfo(dtype)
    epsilon, largest = float(limits.eps), float(limits.max)
    smallest = float(limits.smallest_normal), float(limits.smallest_subnormal)
    ends = largest, -largest, np.inf, -np.inf, np.nan
    return (0.0, -0.0, 1.0, -1.0, epsilon, 1 + epsilon, *smallest, *ends)


_FRACTIONS = (
    0.5, 0.0, 0.9, 0.1, 0.25, 0.75, 0.999, 0.9999, 0.01, 0.3, 1e-3, 1e-6, 1e-8, 1.0, 1.5, 2.0, -0.5,
    float(np.nextafter(np.float32(1), np.float32(0))), 1e-30,
)  # fmt: skip
# Positions between the limits of an attribute, from 0 (lower limit) to 1 (upper limit).
_SHARES = (0.5, 0.0, 1.0, 0.25, 0.8, 0.333, 0.6, 0.995, 0.01)
_COUNTS = (
    *range(13), 20, 31, 99, 100, 1000, 12345, 2**20, 2**24 + 1, 2**31 + 5, 2**32 + 1, -1, -7,
)  # fmt: skip
# A rate is finite or NaN. If an infinite rate is combined with a zero, the result depends on the
# order of operations.
_RATES = (1.0, 0.1, 0.5, 2.0, 0.0, 1e-3, 0.3, 1e-8, -0.1, 1e4, 1e-30, 1e20, float("nan"))

# Ranks of scalars. A tensor with one element and any rank is a valid scalar.
_RANKS = (0, 0, 0, 1, 2)


def draw_attributes(source: Source, operator: Operator, groups: int) -> dict[str, AttributeValue]:
    """Draw the attributes of a node; optional attributes may be omitted."""
    attributes: dict[str, AttributeValue] = {}
    for attribute in operator.attributes:
        if attribute.choices:
            attributes[attribute.name] = source.choice(attribute.choices)
            continue
        numbers = _numbers(operator, attribute)
        # An optional attribute is omitted in one of three examples.
        omissions = 0 if attribute.required else len(numbers) // 2
        place = source.integer(0, omissions + len(numbers) - 1) - omissions
        if place < 0:
            continue
        if attribute.each:
            count = groups - 1 if groups > 1 and source.integer(0, 1) else 0
            further = [source.choice(numbers) for _ in range(count)]
            attributes[attribute.name] = (numbers[place], *further)
        else:
            attributes[attribute.name] = numbers[place]
    return attributes


def draw_scalar(source: Source, scalar: Scalar) -> Array:
    """Draw a tensor of one element: an integer count, or a rate that is finite or NaN."""
    rank, dtype, value = source.choice(_scalars(scalar))
    return np.full((1,) * rank, value, dtype)


def has_result(
    operator: Operator, attributes: Mapping[str, AttributeValue], scalars: Iterable[Array]
) -> bool:
    """Return whether the formula has finite outputs for some ordinary tensors.

    If the formula never has finite outputs, for example because it divides a rate by zero, the
    outputs depend on the order of operations. Such outputs cannot be judged.
    """
    operands: dict[str, object] = {}
    for item, value in zip(operator.scalars, scalars, strict=True):
        number = value.reshape(()).astype(WIDEST_TYPE)[()]
        # A rate may be NaN. The result is then NaN in every order of operations.
        operands[item.name] = WIDEST_TYPE.type(1) if np.isnan(number) else number
    for attribute in operator.attributes:
        setting = attributes.get(attribute.name, attribute.default)
        first = setting[0] if isinstance(setting, tuple) else setting
        operands[attribute.name] = (
            first if isinstance(first, str) else WIDEST_TYPE.type(np.float32(first))
        )
    trials = [dict.fromkeys(operator.tensors, WIDEST_TYPE.type(value)) for value in _TRIAL_ELEMENTS]
    with np.errstate(all="ignore"):
        return any(np.isfinite(operator.formula(**operands, **tensors)).all() for tensors in trials)


@cache
def _numbers(operator: Operator, attribute: Attribute) -> tuple[float, ...]:
    if attribute.limits is not None:
        least, most = attribute.limits
        numbers = (round(least + share * (most - least), 3) for share in _SHARES)
        return tuple(min(max(number, least), most) for number in numbers)
    defined = [
        number for number in _FRACTIONS if not undefined_at(operator, {attribute.name: number})
    ]
    # If the formula is undefined for every number, the attribute is not the cause. Then all numbers
    # are kept.
    return tuple(defined) or _FRACTIONS


@cache
def _scalars(scalar: Scalar) -> tuple[tuple[int, np.dtype[Any], float], ...]:
    return tuple(
        (rank, DTYPES[name], value)
        for rank in _RANKS
        for name in scalar.dtypes
        for value in (_COUNTS if DTYPES[name].kind == "i" else _RATES)
    )
