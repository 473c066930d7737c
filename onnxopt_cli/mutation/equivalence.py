"""Recognize equivalent mutants, and find inputs that distinguish other mutants from the formula.

Implementations are compared on probes: calls that together cover an operator's possible inputs.
Dense probes reveal mistakes in a formula: for each setting of the attributes and each count T, one
probe has hundreds of double-precision elements. Small probes reveal mistakes in the treatment of
inputs and outputs. They cover every combination of shapes and types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, product

import numpy as np

from onnxopt_cli.core.blocks import LARGE_ELEMENTS
from onnxopt_cli.core.values import Array
from onnxopt_cli.interpret.evaluate import (
    WIDEST_TYPE,
    evaluate,
    nonnegative_tensors,
    undefined_at,
)
from onnxopt_cli.interpret.implementation import Implementation
from onnxopt_cli.operators.call import (
    Attributes,
    Call,
    bind,
    complete_attributes,
)
from onnxopt_cli.operators.operator import AttributeValue, Operator

#: Relative tolerance by item size. The tolerance is far larger than the error of a correct formula
#: that is computed in another order in the wide type and rounded once.
_RTOL = {4: 1e-5, 8: 1e-9}
#: An example is clear if its relative difference is at least _CLEAR_DIFFERENCE. The smallest clear
#: example is preferred.
_CLEAR_DIFFERENCE = 0.1
#: If terms cancel, a result this small may consist of nothing but rounding errors. The value is
#: relative to the largest input.
_RESIDUE = 1e-15
_ELEMENTS = 300
_COUNTS = (2, 1, 0, 1000, -1)
#: Values of T that float32 cannot represent, or that become negative or small in int32.
_LARGE_COUNTS = (2**24 + 1, 2**31 + 5, 2**32 + 1)
_ABOVE_ONE, _NEGATIVE = 1.5, -0.5
_BELOW_ONE = float(np.nextafter(np.float32(1), np.float32(0)))

_Shape = tuple[int, ...]
#: For each group (a tensor with its gradient and states), the shape of the tensor, and the shape of
#: the gradient and states.
_Layout = tuple[tuple[_Shape, _Shape], ...]
_Numbers = dict[str, AttributeValue]

_LAYOUTS: tuple[_Layout, ...] = (
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
_LARGE_LAYOUT: _Layout = (((70_001,), (70_001,)),)
_ODD: _Layout = (((21,), (21,)),)
_PAIR: _Layout = (((3,), (3,)),) * 2


def equivalent(operator: Operator, implementation: Implementation) -> bool:
    """Return whether an implementation equals the formula on all probes.

    If the formula yields NaN from finite inputs, the element is not compared, because the
    specification does not define it. For example, a negative second moment leads to NaN.
    """
    return all(
        _agrees(_differences(probe, implementation.run(probe.call))) for probe in _probes(operator)
    )


def distinguishing_input(
    operator: Operator, implementation: Implementation
) -> tuple[Attributes, dict[str, Array]] | None:
    """Return a small input that distinguishes an implementation from the formula, or None.

    Returns:
        The attributes of the node, and its inputs by name. If possible, the input is a single
        element: the one with the largest relative difference in any probe. If elements depend on
        each other, or if only the structure is wrong, the input is the smallest probe with a clear
        difference.
    """
    whole_probes: list[tuple[float, int, Call[Array]]] = []
    elements: list[tuple[float, int, Call[Array]]] = []
    # Size of the smallest clear example up to now. Larger examples are harder to read, so larger
    # probes are skipped. A dense probe is not skipped, because one of its elements may be a clear
    # example.
    smallest_clear = float("inf")
    for index, probe in enumerate(_probes(operator)):
        if not probe.dense and probe.call.size >= smallest_clear:
            continue
        differences = _differences(probe, implementation.run(probe.call))
        if _agrees(differences):
            continue
        largest = max(
            (float(np.max(difference, initial=0)) for difference in differences or ()),
            default=_CLEAR_DIFFERENCE,
        )
        whole_probes.append((-min(largest, _CLEAR_DIFFERENCE), probe.call.size, probe.call))
        if largest >= _CLEAR_DIFFERENCE:
            smallest_clear = min(smallest_clear, probe.call.size)
        by_element = {difference.shape for difference in differences or ()} == {
            probe.call.groups[0][0].shape
        }
        if probe.dense and by_element and differences is not None:
            difference = np.ravel(np.max(differences, axis=0))
            element = int(np.argmax(difference))
            call = probe.call.at(slice(element, element + 1))
            elements.append((float(difference[element]), -index, call))
    has_clear_probe = any(negated <= -_CLEAR_DIFFERENCE for negated, _, _ in whole_probes)
    for largest, _, call in sorted(elements, key=lambda item: item[:2], reverse=True):
        if has_clear_probe and largest < _CLEAR_DIFFERENCE:
            break
        differences = _differences(_probe_of(call), implementation.run(call))
        if differences is not None and not _agrees(differences):
            return _described(call)
    return _described(min(whole_probes, key=lambda item: item[:2])[2]) if whole_probes else None


def distinct(operator: Operator, implementations: Sequence[Implementation]) -> list[Implementation]:
    """Return the implementations that differ from each earlier one on at least one probe."""
    groups = [list(implementations)]
    for probe in _probes(operator):
        subgroups: list[list[Implementation]] = []
        for group in groups:
            if len(group) == 1:
                subgroups.append(group)
                continue
            by_outputs: dict[object, list[Implementation]] = {}
            for implementation in group:
                outputs = implementation.run(probe.call)
                key = tuple(
                    (output.dtype.str, output.shape, output.tobytes()) for output in outputs
                )
                by_outputs.setdefault(key, []).append(implementation)
            subgroups += by_outputs.values()
        groups = subgroups
    firsts = {id(group[0]) for group in groups}
    return [implementation for implementation in implementations if id(implementation) in firsts]


def _agrees(differences: list[Array] | None) -> bool:
    return differences is not None and not any(map(np.any, differences))


def _differences(probe: _Probe, outputs: list[Array]) -> list[Array] | None:
    """Return the relative difference of each element of each output; 0 for elements that agree.

    The result is None if the number of outputs, a type or a shape is wrong.
    """
    same = len(outputs) == len(probe.expected) and all(
        output.dtype == expected.dtype and output.shape == expected.shape
        for output, expected in zip(outputs, probe.expected, strict=True)
    )
    if not same:
        return None
    residue = _RESIDUE * probe.largest
    return [
        _relative(output, expected, residue, finite=probe.finite)
        for output, expected in zip(outputs, probe.expected, strict=True)
    ]


def _relative(output: Array, expected: Array, residue: float, *, finite: bool) -> Array:
    agrees = (output == expected) | np.isnan(expected) & (finite | np.isnan(output))
    if np.all(agrees):
        return np.zeros(expected.shape)
    with np.errstate(all="ignore"):
        distance = np.abs(output.astype(WIDEST_TYPE) - expected.astype(WIDEST_TYPE))
        relative = distance / np.maximum(np.abs(output), np.abs(expected))
    # If only one of two values is finite, their difference is 2, as for values of opposite signs.
    relative = np.where(np.isfinite(relative), relative, 2)
    agrees |= (relative <= _RTOL[expected.itemsize]) | (distance <= residue)
    return np.where(agrees, 0, relative).astype(np.float64)


def _described(call: Call[Array]) -> tuple[Attributes, dict[str, Array]]:
    attributes = {
        name: value for name, value in call.attributes.items() if name not in call.omitted
    }
    names = call.operator.input_names(len(call.groups))
    return attributes, dict(zip(names, call.inputs, strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class _Probe:
    """A call with its expected outputs; all arrays are read-only.

    Attributes:
        call: the call.
        expected: the outputs of the formula.
        dense: whether the call has one group of many elements, each of which is a separate test.
        finite: whether all inputs are finite numbers.
        largest: the largest finite magnitude in the tensors of the call.
    """

    call: Call[Array]
    expected: tuple[Array, ...]
    dense: bool
    finite: bool
    largest: float


@cache
def _probes(operator: Operator) -> tuple[_Probe, ...]:
    """Return the operator's probes, beginning with a probe that reveals most mistakes.

    Large probes come last, because a smaller probe is usually sufficient.
    """
    draw = _Draw(operator)
    first, *dense = [_probe_of(call, dense=True) for call in draw.dense()]
    small = map(_probe_of, chain(draw.structures(), draw.limits(), draw.not_finite()))
    return tuple(
        sorted((first, *small, *dense), key=lambda probe: probe.call.size >= LARGE_ELEMENTS)
    )


def _probe_of(call: Call[Array], *, dense: bool = False) -> _Probe:
    """Return a probe: a call with its expected outputs."""
    for array in call.inputs:
        array.setflags(write=False)
    finite = all(np.isfinite(array).all() for array in call.inputs)
    tensors = [tensor for group in call.groups for tensor in group]
    largest = max(float(np.abs(tensor[np.isfinite(tensor)]).max(initial=0)) for tensor in tensors)
    return _Probe(call, tuple(evaluate(call)), dense, finite, largest)


class _Draw:
    """Draws random calls of one operator. All versions of NumPy yield the same numbers."""

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
        layout: _Layout = (((_ELEMENTS,), (_ELEMENTS,)),)
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
        layout: _Layout,
        *,
        count: int = 3,
        attributes: Mapping[str, object] | None = None,
        types: tuple[str, str] = ("float64", "float64"),
        rate: str = "float64",
        rank: int = 0,
        scale: float = 1.0,
    ) -> Call[Array]:
        """Draw a call.

        For each group, ``layout`` contains two shapes: that of the first tensor, and that of all
        other tensors. Likewise, ``types`` contains two types, which apply to every group.
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

    def _tensor(self, name: str, shape: _Shape, dtype: str, scale: float) -> Array:
        """Draw short decimal numbers of many magnitudes; one number in five is zero."""
        powers = 10.0 ** -self._random.randint(-5, 1, shape)
        # Division by a power of ten yields the double that is nearest to the decimal number.
        # Multiplication by a negative power may yield another double.
        values = self._random.randint(-999, 1000, shape) / powers
        values = values * (self._random.randint(0, 5, shape) > 0) * scale
        # Adding 0.0 turns negative zeros into positive zeros.
        return np.asarray(np.abs(values) if name in self._magnitudes else values + 0.0, dtype)

    def _settings(self) -> Iterator[_Numbers]:
        """Yield random attributes: all, only the required ones, and all with one extreme value."""
        required = [item.name for item in self._operator.attributes if item.required]
        for chosen in product(*self._choices.values()):
            fixed: _Numbers = dict(zip(self._choices, chosen, strict=True))
            for _ in range(3):
                yield self._attributes() | fixed
            drawn = self._attributes() | fixed
            yield {name: drawn[name] for name in drawn if name in required}
            for name in self._numeric:
                limits = self._limits.get(name, ())
                least, largest = limits or (-np.inf, np.inf)
                for value in (0.0, *limits, _ABOVE_ONE, _NEGATIVE):
                    inside = least <= value <= largest
                    if inside and not undefined_at(self._operator, {name: value}):
                        yield self._attributes() | fixed | {name: value}

    def _attributes(self) -> _Numbers:
        chosen: _Numbers = {
            name: choices[self._random.randint(len(choices))]
            for name, choices in self._choices.items()
        }
        fractions: _Numbers = {
            name: least + (largest - least) * float(self._random.randint(5, 95) / 100)
            for name, (least, largest) in self._numeric.items()
        }
        return chosen | fractions
