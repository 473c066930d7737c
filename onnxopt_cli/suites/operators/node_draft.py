"""Nodes that a generator draws: attributes, inputs and outputs under the operator's schema.

Choices are the only source of randomness of the generators. In the suite, choices follow from a
seed. In a search for failures, hypothesis makes the choices, and replaces them with simpler choices
to shrink an example. The first of several options is the simplest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from math import prod
from random import Random
from typing import Any, Protocol, TypeVar

import ml_dtypes
import numpy as np
from onnx.defs import OpSchema

from onnxopt_cli.core.values import (
    DTYPES,
    STRING,
    Array,
    Value,
    dtype_name,
    dtype_named,
    random_state,
)

T = TypeVar("T")
Shape = tuple[int, ...]
_SEEDS = 1 << 16
#: The element types that generators use; the first type is the simplest.
FLOATS = ("float32", "float64", "float16", "bfloat16")
SIGNED = ("int64", "int32", "int8", "int16")
UNSIGNED = ("uint8", "uint32", "uint64", "uint16")
INTEGERS = (*SIGNED, *UNSIGNED)
NUMBERS = (
    *("float32", "float64", "int64", "int32", "float16", "int8", "uint8", "bfloat16"),
    *("int16", "uint32", "uint64", "uint16"),
)
ANY = (*NUMBERS, "bool", STRING)
_MAX_DIMENSION = 4
# In a tensor with a style from _EXCEPTIONS, one in _EXCEPTIONAL_PERIOD elements is exceptional.
_EXCEPTIONAL_PERIOD = 8
_EXCEPTIONS = {
    "exceptional": (np.nan, np.inf, -np.inf),
    "nan": (np.nan,),
    "masked": (-np.inf,),
}


# Styles of floats that are used in a node with exceptional values, in addition to the styles that
# the generator states.
_EXCEPTIONAL_STYLES = ("nan", "exceptional", "special", "limits", "wide", "negative")
# Styles of integers in a node with exceptional values.
_EXTREME_STYLES = ("special", "negative")
_WIDE_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
# The type is Any, because finfo and iinfo of ml_dtypes have no type annotations.
_finfo: Any = ml_dtypes.finfo
_iinfo: Any = ml_dtypes.iinfo


class Unsuitable(Exception):
    """The choices lead to no valid node, although other choices may."""


class Choices(Protocol):
    """Makes the choices of a generator."""

    def integer(self, least: int, most: int) -> int:
        """Return an integer between ``least`` and ``most``.

        A search for a simpler node prefers the integer nearest to zero.
        """
        ...


class SeededChoices:
    """Choices that follow from a seed and are the same in every version of Python.

    Args:
        seed: a text that identifies the node.
    """

    def __init__(self, seed: str) -> None:
        self._random = Random(seed)  # noqa: S311 - test data

    def integer(self, least: int, most: int) -> int:
        """Return an integer from least to most."""
        # Python guarantees only for random() that its sequence is the same in all versions.
        return least + int(self._random.random() * (most - least + 1))


class NodeDraft:
    """A node whose attributes, inputs and outputs a generator chooses one by one.

    Args:
        schema: the operator in one version.
        choices: makes the choices.
        is_exceptional: whether tensors may contain NaN, infinities and the limits of their types
            even if the generator does not draw such elements.

    Attributes:
        schema: the operator in one version.
        attributes: the attributes that the node has; a subgraph is a GraphProto.
        inputs: the value of each input of the node, by position; None for an omitted input.
        outputs: whether each output is requested; by default, all outputs that are not optional.
    """

    def __init__(self, schema: OpSchema, choices: Choices, *, is_exceptional: bool = False) -> None:
        self.schema = schema
        self.attributes: dict[str, Any] = {}
        self.inputs: list[Value] = []
        single = OpSchema.FormalParameterOption.Optional
        self.outputs = [formal.option != single for formal in schema.outputs]
        self._choices = choices
        self._is_exceptional = is_exceptional
        self._types: dict[str, np.dtype[Any]] = {}

    @property
    def version(self) -> int:
        """The version of the operator's schema."""
        return int(self.schema.since_version)

    def since(self, version: int) -> bool:
        """Return whether the operator has the given version or a later version."""
        return self.version >= version

    def integer(self, least: int, most: int) -> int:
        """Return an integer from least to most; the integer nearest to zero is the simplest."""
        return least if least == most else self._choices.integer(least, most)

    def choice(self, options: Sequence[T]) -> T:
        """Return one of the options; the first option is the simplest."""
        return options[self.integer(0, len(options) - 1)]

    def maybe(self, times: int = 2) -> bool:
        """Return True about once in ``times`` calls; False is simpler."""
        return self.integer(0, times - 1) == times - 1

    def require(self, condition: object) -> None:
        """Discard the node unless a condition is true.

        Raises:
            Unsuitable: if the condition is false.
        """
        if not condition:
            raise Unsuitable

    def has(self, attribute: str) -> bool:
        """Return whether the operator's version has an attribute."""
        return attribute in self.schema.attributes

    def set(self, attribute: str, value: Any) -> Any:
        """Set an attribute if the operator's version has it, unless the value is None."""
        if value is not None and self.has(attribute):
            self.attributes[attribute] = value
        return value

    def attribute(self, name: str, options: Sequence[Any]) -> Any:
        """Choose the value of an attribute, if the operator has the attribute; None omits it."""
        return self.set(name, self.choice(options)) if self.has(name) else None

    def float_attribute(self, name: str, options: Sequence[float | None]) -> float | None:
        """Choose a float attribute, whose value is rounded to float32."""
        value = self.choice(options) if self.has(name) else None
        return self.set(name, None if value is None else float(np.float32(value)))

    def add(self, value: Value) -> Value:
        """Append an input."""
        self.inputs.append(np.asarray(value) if isinstance(value, np.generic) else value)
        return self.inputs[-1]

    def omit(self) -> None:
        """Leave out the next input."""
        self.inputs.append(None)

    def allowed(self, place: int, among: Iterable[str] = ANY) -> list[str]:
        """Return the element types in ``among`` that an input may have."""
        formal = self.schema.inputs[min(place, len(self.schema.inputs) - 1)]
        names = tensor_types(formal)
        return [name for name in among if name in names]

    def returned(self, place: int, among: Iterable[str] = ANY) -> list[str]:
        """Return the element types in ``among`` that an output may have."""
        names = tensor_types(self.schema.outputs[place])
        return [name for name in among if name in names]

    def dtype(self, place: int, among: Iterable[str] = ANY) -> np.dtype[Any]:
        """Choose the element type of an input.

        Inputs with the same type variable have the same type. Half of the nodes have the simplest
        type.
        """
        formal = self.schema.inputs[min(place, len(self.schema.inputs) - 1)]
        variable = formal.type_str if "(" not in formal.type_str else ""
        if variable in self._types:
            return self._types[variable]
        names = self.allowed(place, among)
        self.require(names)
        name = self.choice(names) if self.maybe() else names[0]
        dtype = DTYPES[name]
        if variable and formal.is_homogeneous:
            self._types[variable] = dtype
        return dtype

    def shape(self, least: int = 1, most: int = 4, *, smallest: int = 1) -> Shape:
        """Choose a shape whose rank is from least to most."""
        rank = self.choice(sorted(range(least, most + 1), key=lambda rank: abs(rank - 2)))
        return tuple(self.size(smallest) for _ in range(rank))

    def size(self, smallest: int = 1, largest: int = _MAX_DIMENSION) -> int:
        """Choose the length of a dimension.

        Few lengths are equal, because equal lengths hide mistakes.
        """
        order = sorted(range(smallest, largest + 1), key=lambda size: abs(size - 3))
        return self.choice(order)

    def axis(self, rank: int, *, end: int = 0) -> int:
        """Choose an axis, counted from the beginning or from the end.

        Args:
            rank: the number of axes.
            end: 1 if the axis may also be the position after the last axis, else 0.
        """
        return self.integer(-rank if not end else -rank - end, rank - 1 + end)

    def axes(self, rank: int, least: int = 1, most: int | None = None) -> list[int]:
        """Choose distinct axes in any order; some of them are negative."""
        remaining = list(range(rank))
        count = self.integer(min(least, rank), rank if most is None else min(most, rank))
        chosen = [remaining.pop(self.integer(0, len(remaining) - 1)) for _ in range(count)]
        return [axis - rank if self.maybe(3) else axis for axis in chosen]

    def narrowed(self, shape: Shape) -> Shape:
        """Choose a shape that can be broadcast to the given shape."""
        cut = self.integer(0, len(shape)) if self.maybe() else 0
        return tuple(1 if self.maybe(3) else size for size in shape[cut:])

    def state(self) -> np.random.RandomState:
        """Return a new random generator, from which the elements of one tensor are drawn."""
        return random_state(self.integer(0, _SEEDS - 1))

    def tensor(
        self,
        dtype: np.dtype[Any],
        shape: Shape,
        *,
        low: float | None = None,
        high: float | None = None,
        styles: Sequence[str] = ("plain", "halves", "wide"),
    ) -> Array:
        """Draw a tensor.

        Args:
            dtype: the element type.
            shape: the shape.
            low: the least element; None for a range that suits the type.
            high: the largest element.
            styles: how the elements may be distributed; see :func:`elements`.
        """
        if self._is_exceptional and low is None and high is None:
            further = _EXTREME_STYLES if dtype.kind in "iu" else _EXCEPTIONAL_STYLES
            styles = (*styles, *further)
        style = self.choice(styles)
        return elements(self.state(), dtype, shape, style, low, high)

    def index_tensor(self, dtype: np.dtype[Any], shape: Shape, length: int) -> Array:
        """Draw indices into a dimension; some are negative if the type is signed."""
        least = -length if dtype.kind == "i" and self.maybe() else 0
        return np.asarray(self.state().randint(least, length, shape), dtype)

    def optional(self, make: Any, times: int = 2) -> Value:
        """Append an optional input in about one of ``times`` calls; omit it in the other calls."""
        return self.add(make()) if self.maybe(times) else self.add(None)


@cache
def _tensor_types_of(types: frozenset[str]) -> frozenset[str]:
    names = set()
    for text in types:
        if text.startswith("tensor("):
            dtype = dtype_named(text[len("tensor(") : -1])
            if dtype is not None:
                names.add(dtype_name(dtype))
    return frozenset(names)


def tensor_types(formal: OpSchema.FormalParameter) -> frozenset[str]:
    """Return the element types that the tensors of a parameter may have."""
    return _tensor_types_of(frozenset(formal.types))


# A text longer than the texts that common implementations store without an allocation.
_LONG_TEXT = "open neural network exchange"
_WORDS = ("", "a", "b", "ab", "A", "Ab", _LONG_TEXT, "été", "x y", "0", "-1.5", "NaN")


def elements(
    random: np.random.RandomState,
    dtype: np.dtype[Any],
    shape: Shape,
    style: str,
    low: float | None = None,
    high: float | None = None,
) -> Array:
    """Draw the elements of a tensor.

    The styles of floats:

    - ``plain``: decimals around zero; ``halves``: multiples of 1/2, among them ties; ``wide``:
      numbers of many magnitudes; ``negative``: negative numbers;
    - ``nan``: plain elements and at least one NaN; ``masked``: plain elements and at least one
      minus infinity; ``exceptional``: plain elements and at least one NaN or infinity;
    - ``limits``: plain elements, zeros of both signs, and the limits of the type; ``special``: the
      elements of ``limits``, NaN and infinities.

    The styles of integers:

    - ``plain`` and ``halves``: small numbers; ``negative``: negative numbers;
    - ``wide``, ``special`` and ``limits``: small numbers and the limits of the type.
    """
    count = prod(shape)
    name = dtype_name(dtype)
    if name == STRING:
        return np.array([_WORDS[i] for i in random.randint(0, len(_WORDS), count)], object).reshape(
            shape
        )
    if name == "bool":
        return (random.randint(0, 2, count) > 0).reshape(shape)
    if "int" in name:
        return _integers(random, dtype, count, style, low, high).reshape(shape)
    if dtype.kind == "c":
        real, imaginary = (_decimals(random, count) for _ in range(2))
        return (real + 1j * imaginary).astype(dtype).reshape(shape)
    return _floats(random, dtype, count, style, low, high).astype(dtype).reshape(shape)


def _decimals(random: np.random.RandomState, count: int) -> Array:
    return random.randint(-3000, 3001, count) / 1000.0


def _floats(
    random: np.random.RandomState,
    dtype: np.dtype[Any],
    count: int,
    style: str,
    low: float | None,
    high: float | None,
) -> Array:
    if low is not None or high is not None:
        least = -3.0 if low is None else low
        largest = least + 6.0 if high is None else high
        steps = 16 if style == "halves" else 1000
        return least + (largest - least) * random.randint(0, steps + 1, count) / steps
    values = _decimals(random, count)
    if style == "halves":
        return random.randint(-7, 8, count) / 2.0
    if style == "negative":
        return -np.abs(values) - 0.125
    if style == "wide":
        return values * 10.0 ** random.randint(-4, 4 if dtype in _WIDE_FLOATS else 2, count)
    if style in _EXCEPTIONS:
        options = np.array(_EXCEPTIONS[style])
        exceptions = options[random.randint(0, len(options), count)]
        replaced = random.randint(0, _EXCEPTIONAL_PERIOD, count) == 0
        if count and not replaced.any():
            replaced[random.randint(count)] = True
        return np.where(replaced, exceptions, values)
    if style in ("special", "limits"):
        limits = _limits(dtype)
        pool = limits if style == "limits" else (*limits, np.inf, -np.inf, np.nan)
        return np.where(
            random.randint(0, 3, count) == 0,
            np.array(pool)[random.randint(0, len(pool), count)],
            values,
        )
    return values


@cache
def _limits(dtype: np.dtype[Any]) -> tuple[float, ...]:
    info = _finfo(dtype)
    ends = float(info.max), -float(info.max), float(info.smallest_normal)
    return (0.0, -0.0, 1.0, -1.0, float(info.eps), 1 + float(info.eps), *ends)


def _integers(
    random: np.random.RandomState,
    dtype: np.dtype[Any],
    count: int,
    style: str,
    low: float | None,
    high: float | None,
) -> Array:
    info = _iinfo(dtype)
    least, largest = int(info.min), int(info.max)
    if low is not None or high is not None:
        first = max(least, 0 if low is None else int(low))
        last = min(largest, first + 9 if high is None else int(high))
        drawn = [first + int(x * (last - first + 1)) for x in random.random_sample(count).tolist()]
        return np.array(drawn, object).astype(_plain(dtype)).astype(dtype)
    small = [int(x) for x in random.randint(max(least, -9), min(largest, 9) + 1, count)]
    if style == "negative" and least < 0:
        small = [-abs(x) - 1 for x in small]
    if style in ("wide", "special", "limits"):
        pool = [least, largest, least + 1, largest - 1, 0, 1]
        pool += [x for x in (2**24 + 1, -(2**24) - 1, 2**53 + 1, 1000) if least <= x <= largest]
        replaced = random.randint(0, 2, count)
        picks = random.randint(0, len(pool), count)
        small = [
            pool[pick] if replace else x
            for x, replace, pick in zip(small, replaced, picks, strict=True)
        ]
    return np.array(small, object).astype(_plain(dtype)).astype(dtype)


def _plain(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a type to which NumPy can convert objects: ``dtype`` if it is NumPy's, else int64."""
    return dtype if dtype.kind in "iu" else np.dtype(np.int64)
