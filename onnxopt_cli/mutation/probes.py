"""Calls that cover an operator's inputs, to distinguish implementations without a suite.

Dense probes, with hundreds of double elements for each T and setting of the attributes, reveal
mistakes in a formula. Small probes with every combination of shapes and types reveal mistakes in
the treatment of inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain, product

import numpy as np

from onnxopt_cli.core.blocks import LARGE_ELEMENTS
from onnxopt_cli.core.values import Array
from onnxopt_cli.interpret.evaluate import (
    evaluate,
    nonnegative_tensors,
    undefined_at,
)
from onnxopt_cli.operators.call import (
    Call,
    bind,
    complete_attributes,
)
from onnxopt_cli.operators.operator import AttributeValue, Operator

_ELEMENTS = 300
_COUNTS = (2, 1, 0, 1000, -1)
#: Values of T that float32 cannot represent, or that become negative or small in int32.
_LARGE_COUNTS = (2**24 + 1, 2**31 + 5, 2**32 + 1)
_ABOVE_ONE = 1.5
_BELOW_ONE = float(np.nextafter(np.float32(1), np.float32(0)))

Shape = tuple[int, ...]
#: For each group, the shape of its first tensor and the shape of its other tensors.
Layout = tuple[tuple[Shape, Shape], ...]
Numbers = dict[str, AttributeValue]

_LAYOUTS: tuple[Layout, ...] = (
    (((2, 3), (2, 3)),) * 3,
    (((4,), (4,)), ((2, 5), (2, 5))),
    (((), ()),),
    (((1, 3, 1), (1, 3, 1)),),
    (((0,), (0,)), ((2, 0), (2, 0))),
    (((21,), (21,)),),
    (((2, 3), (3,)),),
    (((2, 3), (2, 1)),),
    (((2, 3), ()),),
)
_LARGE_LAYOUT: Layout = (((70_001,), (70_001,)),)
_ODD: Layout = (((21,), (21,)),)
_PAIR: Layout = (((3,), (3,)),) * 2


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """A call with its expected outputs; all arrays are read-only.

    Attributes:
        call: the node.
        expected: its outputs.
        dense: True for one group with many elements, each of which is a probe of its own.
        finite: True if all inputs are finite numbers.
        largest: largest finite magnitude among its tensors.
    """

    call: Call[Array]
    expected: tuple[Array, ...]
    dense: bool
    finite: bool
    largest: float


@cache
def probes(operator: Operator) -> tuple[Probe, ...]:
    """Return the operator's probes, which are always the same; most mistakes show in the first.

    Large probes come last, since a mistake usually shows in a smaller one.
    """
    draw = _Draw(operator)
    first, *dense = [probe_of(call, dense=True) for call in draw.dense()]
    small = map(probe_of, chain(draw.structures(), draw.limits(), draw.not_finite()))
    return tuple(
        sorted((first, *small, *dense), key=lambda probe: probe.call.size >= LARGE_ELEMENTS)
    )


def probe_of(call: Call[Array], *, dense: bool = False) -> Probe:
    """Return a call as a probe."""
    for array in call.inputs:
        array.setflags(write=False)
    finite = all(np.isfinite(array).all() for array in call.inputs)
    tensors = [tensor for group in call.groups for tensor in group]
    largest = max(float(np.abs(tensor[np.isfinite(tensor)]).max(initial=0)) for tensor in tensors)
    return Probe(call, tuple(evaluate(call)), dense, finite, largest)


class _Draw:
    """Draws the calls of one operator; the numbers are the same with every version of NumPy."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._random = np.random.RandomState(1)
        numeric = [item for item in operator.attributes if not item.choices]
        self._numeric = {item.name: item.limits or (0.0, 1.0) for item in numeric}
        self._limits = {item.name: item.limits for item in numeric if item.limits}
        self._choices = {item.name: item.choices for item in operator.attributes if item.choices}
        self._each = [item.name for item in operator.attributes if item.each]
        self._magnitudes = nonnegative_tensors(operator)

    def dense(self) -> Iterator[Call[Array]]:
        layout: Layout = (((_ELEMENTS,), (_ELEMENTS,)),)
        counts = _COUNTS if self._operator.counts else (0,)
        for attributes, count in product(self._settings(), counts):
            yield self._call(layout, count=count, attributes=attributes)

    def structures(self) -> Iterator[Call[Array]]:
        types = self._operator.dtypes
        for layout, dtype in product(_LAYOUTS, types):
            yield self._call(layout, types=(dtype, dtype))
        for first, others, rate in product(types, types, types):
            yield self._call(_PAIR, types=(first, others), rate=rate)
        for rank, shape in product((1, 2), ((), (3,))):
            yield self._call(((shape, shape),), rank=rank)
        for count in (-1, 0, 1) if self._operator.counts else ():
            yield self._call(_PAIR, count=count)
        for count, name in product(_LARGE_COUNTS if self._operator.counts else (), self._numeric):
            if self._numeric[name][1] >= _BELOW_ONE:
                attributes = self._attributes() | {name: _BELOW_ONE}
                yield self._call(_PAIR, count=count, attributes=attributes)
        for scale in (1e-25, 1e6, 1e18):
            yield self._call(_PAIR, types=("float32", "float32"), scale=scale)
        for dtype in types:
            yield self._call(_LARGE_LAYOUT, types=(dtype, dtype))

    def limits(self) -> Iterator[Call[Array]]:
        for name in self._each:
            limits = self._numeric[name]
            numbers = (*limits, sum(limits) / 2)
            yield self._call(_LAYOUTS[0], attributes=self._attributes() | {name: numbers})
        for name, limits in self._limits.items():
            for value in (*limits, sum(limits) / 2):
                yield self._call(_ODD, attributes=self._attributes() | {name: value})

    def not_finite(self) -> Iterator[Call[Array]]:
        for name, value in product(self._operator.tensors, (np.nan, np.inf, -np.inf)):
            if name not in self._magnitudes or not value < 0:
                call = self._call(_PAIR)
                call.groups[0][self._operator.tensors.index(name)][1] = value
                yield call

    def _call(
        self,
        layout: Layout,
        *,
        count: int = 3,
        attributes: Mapping[str, object] | None = None,
        types: tuple[str, str] = ("float64", "float64"),
        rate: str = "float64",
        rank: int = 0,
        scale: float = 1.0,
    ) -> Call[Array]:
        """Draw a call.

        Of the two ``types``, the first one is that of the first tensor of each group, the second
        one that of its other tensors; likewise the shapes in ``layout``.
        """
        operator = self._operator
        if attributes is None:
            attributes = self._attributes()
        scalars = [
            np.full((1,) * rank, count, "int64")
            if "int64" in scalar.dtypes
            else np.full((1,) * rank, self._random.randint(5, 250) / 100, rate)
            for scalar in operator.scalars
        ]
        tensors = [
            self._tensor(name, shapes[position > 0], types[position > 0], scale)
            for position, name in enumerate(operator.tensors)
            for shapes in layout
        ]
        return bind(
            operator,
            [*scalars, *tensors],
            complete_attributes(operator, attributes),
            omitted=frozenset(item.name for item in operator.attributes) - set(attributes),
        )

    def _tensor(self, name: str, shape: Shape, dtype: str, scale: float) -> Array:
        """Draw short decimal numbers of many magnitudes, one in five zero."""
        powers = 10.0 ** -self._random.randint(-5, 1, shape)
        # A quotient by a power of ten is the double nearest to the decimal; a product is not.
        values = self._random.randint(-999, 1000, shape) / powers
        values = values * (self._random.randint(0, 5, shape) > 0) * scale
        # The sum turns negative zeros into positive ones.
        return np.asarray(np.abs(values) if name in self._magnitudes else values + 0.0, dtype)

    def _settings(self) -> Iterator[Numbers]:
        """Draw attributes: all present, optional ones omitted, and each one zero or above one."""
        required = [item.name for item in self._operator.attributes if item.required]
        for chosen in product(*self._choices.values()):
            fixed: Numbers = dict(zip(self._choices, chosen, strict=True))
            for _ in range(3):
                yield self._attributes() | fixed
            drawn = self._attributes() | fixed
            yield {name: drawn[name] for name in drawn if name in required}
            for name in self._numeric:
                limits = self._limits.get(name, ())
                least, largest = limits or (-np.inf, np.inf)
                for value in (0.0, *limits, _ABOVE_ONE):
                    inside = least <= value <= largest
                    if inside and not undefined_at(self._operator, {name: value}):
                        yield self._attributes() | fixed | {name: value}

    def _attributes(self) -> Numbers:
        chosen: Numbers = {
            name: choices[self._random.randint(len(choices))]
            for name, choices in self._choices.items()
        }
        fractions: Numbers = {
            name: least + (largest - least) * float(self._random.randint(5, 95) / 100)
            for name, (least, largest) in self._numeric.items()
        }
        return chosen | fractions
