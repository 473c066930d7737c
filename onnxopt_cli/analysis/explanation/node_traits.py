"""Traits of nodes. Failure conditions of operators without a formula consist of traits.

A trait is a short statement about the attributes, optional inputs, types, shapes or values of a
node, for example "dilations are not all 1". Some traits limit a number, such as the length of an
axis, to an interval. The interval is fitted to the numbers of right nodes and of wrong nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import defs

from onnxopt_cli.analysis.explanation.element_features import axes_of
from onnxopt_cli.analysis.explanation.features import (
    LIMIT_DIGITS,
    are_inexact_in_float32,
    number_text,
    plain_count,
    roundest,
)
from onnxopt_cli.core.values import Array, NumberKind, Value, dtype_name, kind_of
from onnxopt_cli.mutation.bound_node import BoundNode, attribute_type
from onnxopt_cli.mutation.node_mutants import FLAGS
from onnxopt_cli.mutation.proofs import has_single_value

#: A mistake that ignores an attribute or input has a name with this ending. Such a mistake shows
#: whether a node depends on the attribute or input.
IGNORED = " ignored"
#: A mistake that changes the default of an attribute or input has a name with this ending.
CHANGED = " changed"
PROBES = (IGNORED, CHANGED)
#: The limit of an interval lies between the nearest numbers of a right node and of a wrong node. If
#: the relative difference between these numbers is at most NARROW_GAP, the limit counts as known.
NARROW_GAP = 0.01
# Smallest number of wrong nodes within the limits of a condition.
_MIN_INSIDE = 3
# Largest number of intervals that are tried for one number of a node.
_MAX_INTERVALS = 2
# An attribute's value is named if it has at most this number of characters.
_MAX_VALUE_CHARS = 40
# The largest number of elements of a tensor whose values are examined.
_MAX_ELEMENTS = 1 << 20
# Attributes whose value is the number of an element type.
_TYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_datatype", "output_dtype"})
# Operators whose attribute ``axis`` names an axis of the output. The output has another rank than
# the input.
_WITH_OUTPUT_AXIS = frozenset({"OneHot"})
# Attributes that have a number for each spatial axis.
_SPATIAL_ATTRIBUTES = frozenset({"dilations", "kernel_shape", "strides"})
# Attributes that count channels.
_CHANNEL_ATTRIBUTES = frozenset({"group", "num_groups", "size"})
_LONGEST_NAMED_RANK = 5
# An input with at most _MAX_PARAMETERS integers is probably a parameter, such as axes, sizes or
# pads.
_MAX_PARAMETERS = 16
_SHORT_BITS, _LONG_BITS = 16, 64
# Sizes of integer types that a trait names. 16 and 32 bits are not named, because faults are rarely
# confined to all integers of such a size.
_NAMED_BITS = frozenset({8, 64})
# Position of the first spatial axis, after the batch and the channels.
_SPATIAL = 2
# Names and positions of the axes that two inputs may have in common.
_NAMED_AXES = (("first", 0), ("second", 1), ("last", -1))
# Additional cost of a trait of an optional attribute if the trait may also hold for nodes that omit
# the attribute.
_DEFAULT_COST = 0.15
# Cost of each value in a list that a trait states.
_ITEM_COST = 0.2
# Additional cost of traits of the right output, because they follow from traits of the inputs.
_OUTPUT_COST = 0.12
# The floating-point types that NumPy itself defines. Another package defines bfloat16.
_NUMPY_FLOATS = frozenset({np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)})


@dataclass(frozen=True, slots=True)
class Trait:
    """A statement about a node.

    Attributes:
        text: the statement, as it follows "wherever".
        cost: among the conditions that agree with all nodes, the one with the lowest cost is named.
        ignoring: for a statement about an attribute or optional input, the name of the mutant that
            ignores it or changes its default; otherwise empty. If the mutant is right on a node,
            the node neither confirms nor contradicts the statement.
        limits: the limits of a number of the node; None if the statement is not about a number.
        is_parameter: whether the statement is about an attribute (possibly compared with a shape),
            an optional input, a type or the version of the operator. Generated nodes vary these
            parameters separately from the shapes and values of a failing node.
        parameter: name of the attribute or optional input of the statement; empty for other
            statements.
    """

    text: str
    cost: float
    ignoring: str = ""
    limits: NumberLimits | None = None
    is_parameter: bool = False
    parameter: str = ""

    @property
    def key(self) -> str:
        """A text that identifies the statement. The values of its limits are left out."""
        return self.limits.key if self.limits else self.text


@dataclass(frozen=True, slots=True)
class NodeNumber:
    """A number of a node, such as the value of an attribute or the length of an axis.

    Attributes:
        name: the number in words.
        cost: the cost of a statement about the number.
        is_integer: whether the number is an integer in every node.
        attribute: the name of the attribute, if the number is the value of an attribute.
        ignoring: see :class:`Trait`.
    """

    name: str
    cost: float
    is_integer: bool = True
    attribute: str = ""
    ignoring: str = ""


@dataclass(frozen=True, slots=True)
class NumberLimits:
    """An interval that contains numbers of wrong nodes, but no number of a right node.

    Attributes:
        number: the number.
        low: the two numbers between which the lower limit lies: the largest number of a right node
            below, and the smallest number of a wrong node inside; None without a lower limit.
        high: the two numbers between which the upper limit lies: the smallest number of a right
            node above, and the largest number of a wrong node inside; None without an upper limit.
    """

    number: NodeNumber
    low: tuple[float, float] | None
    high: tuple[float, float] | None

    @property
    def key(self) -> str:
        """The name of the number, and whether it has a lower and an upper limit."""
        return f"{self.number.name} {bool(self.low)} {bool(self.high)}"

    @property
    def gaps(self) -> list[tuple[float, float]]:
        """The interval of each limit that is not known to within 1 %, in ascending order."""
        sides = [sorted(side) for side in (self.low, self.high) if side]
        return [
            (low, high)
            for low, high in sides
            if high - low > NARROW_GAP * max(abs(low), abs(high))
            and not (self.number.is_integer and high - low <= 1)
        ]

    def contain(self, numbers: Mapping[NodeNumber, float]) -> bool:
        """Return whether a node with these numbers is inside the interval."""
        value = numbers.get(self.number)
        if value is None:
            return False
        if self.low and not (value > self.low[0] and value >= self._least(self.low)):
            return False
        return not self.high or (value < self.high[0] and value <= self._most(self.high))

    def _least(self, low: tuple[float, float]) -> float:
        right, wrong = low
        if self.number.is_integer:
            return plain_count(int(right), int(wrong))
        return roundest(right, wrong)

    def _most(self, high: tuple[float, float]) -> float:
        right, wrong = high
        return wrong if self.number.is_integer else -roundest(-right, -wrong)

    def statement(self) -> Trait:
        """Return the statement that the number is inside the interval."""
        words = []
        if self.low:
            least = self._least(self.low)
            comparison = "more than" if least == self.low[0] else "at least"
            words.append(f"{comparison} {number_text(least, LIMIT_DIGITS)}")
        if self.high:
            most = self._most(self.high)
            comparison = "less than" if most == self.high[0] else "at most"
            words.append(f"{comparison} {number_text(most, LIMIT_DIGITS)}")
        text = f"{self.number.name} is {' and '.join(words)}"
        cost = self.number.cost + 0.4 * (len(words) - 1)
        attribute = self.number.attribute
        return Trait(text, cost, self.number.ignoring, self, bool(attribute), attribute)


def fitted_limits(number: NodeNumber, wrong: Array, right: Array) -> Iterator[NumberLimits]:
    """Yield intervals that contain the numbers of wrong nodes, but no number of a right node.

    Intervals that contain the numbers of many nodes come first.

    Args:
        number: the number.
        wrong: the values of the number in wrong nodes.
        right: its values in right nodes.
    """
    bounds = np.unique(right)
    separable = np.sort(wrong[~np.isin(wrong, bounds)])
    # All wrong values between two consecutive right values belong to the same interval.
    places, starts, counts = np.unique(
        np.searchsorted(bounds, separable), return_index=True, return_counts=True
    )
    for index in np.argsort(-counts, kind="stable")[:_MAX_INTERVALS]:
        place, first, count = places[index], starts[index], counts[index]
        least, most = separable[first], separable[first + count - 1]
        low = (float(bounds[place - 1]), float(least)) if place else None
        high = (float(bounds[place]), float(most)) if place < bounds.size else None
        if (low or high) and count >= _MIN_INSIDE:
            yield NumberLimits(number, low, high)


def node_numbers(node: BoundNode) -> dict[NodeNumber, float]:
    """Return the numbers of a node that a condition may limit."""
    numbers: dict[NodeNumber, float] = {}
    for name, entry in node.schema.attributes.items():
        value, kind = node.attribute(name), attribute_type(entry)
        if kind in {"INT", "FLOAT"} and value is not None and name not in FLAGS | _TYPE_ATTRIBUTES:
            ignoring = "" if entry.required else f"{name} ignored"
            number = NodeNumber(_full_name(node, name), 1.1, kind == "INT", name, ignoring)
            numbers[number] = float(value)
        elif kind == "INTS" and value:
            largest = f"the largest value of {_full_name(node, name)}"
            numbers[NodeNumber(largest, 1.25)] = float(max(value))
    for place, formal in enumerate(node.schema.inputs):
        array = node.operand(place)
        if array is not None:
            # The schema decides whether a number is an integer, rather than the node. Therefore,
            # all nodes have the same numbers, and every node can contradict a limit.
            is_integer = all("int" in type_name for type_name in formal.types)
            numbers.update(
                _array_numbers(formal.name, array, 0.05 * min(place, 1), is_integer=is_integer)
            )
    return {number: value for number, value in numbers.items() if np.isfinite(value)}


def _array_numbers(
    name: str, array: Array, extra: float, *, is_integer: bool
) -> Iterator[tuple[NodeNumber, float]]:
    """Yield the size of a tensor, the lengths of its axes, and its largest and smallest value.

    Args:
        name: the name of the input.
        array: the tensor.
        extra: additional cost of statements about the input.
        is_integer: whether the input consists of integers in every node.
    """
    shape = array.shape
    yield NodeNumber(f"the number of elements of {name}", 1.3 + extra), float(array.size)
    for axis, position in (("first", 0), ("second", 1), ("last", -1)):
        if len(shape) > max(position, 0):
            yield (
                NodeNumber(f"the length of the {axis} axis of {name}", 1.25 + extra),
                shape[position],
            )
    is_number = kind_of(array.dtype) in {NumberKind.INTEGER, NumberKind.FLOAT}
    if is_number and 0 < array.size <= _MAX_ELEMENTS:
        wide = array.astype(np.float64)
        finite = wide[np.isfinite(wide)]
        if finite.size:
            values = f"{'' if is_integer else 'finite '}value of {name}"
            highest = NodeNumber(f"the largest {values}", 1.35 + extra, is_integer)
            lowest = NodeNumber(f"the smallest {values}", 1.35 + extra, is_integer)
            yield highest, float(finite.max())
            yield lowest, float(finite.min())


def node_traits(node: BoundNode, outputs: Mapping[str, Value]) -> frozenset[Trait]:
    """Return the traits of a node.

    Args:
        node: the node with its inputs.
        outputs: its correct outputs by name.
    """
    return traits_of_parameters(node, outputs) | traits_of_values(node, outputs)


def traits_of_parameters(node: BoundNode, outputs: Mapping[str, Value]) -> frozenset[Trait]:
    """Return the traits of the attributes, optional inputs, types and version of a node."""
    traits = (
        *_attribute_traits(node),
        *_input_traits(node),
        *_type_traits(node, outputs),
        *_ratio_traits(node),
    )
    return frozenset(replace(trait, is_parameter=True) for trait in traits)


def traits_of_values(node: BoundNode, outputs: Mapping[str, Value]) -> frozenset[Trait]:
    """Return the traits of the shapes and values of a node."""
    return frozenset(
        (
            *_shape_traits(node),
            *_length_traits(node),
            *_reduction_traits(node),
            *_comparisons_with_axis(node),
            *_broadcast_traits(node, outputs),
            *_value_traits(node),
            *_output_value_traits(outputs),
        )
    )


def _attribute_traits(node: BoundNode) -> Iterator[Trait]:
    for name in node.schema.attributes:
        for trait in _traits_of_attribute(node, name):
            yield replace(trait, parameter=name)


def _traits_of_attribute(node: BoundNode, name: str) -> Iterator[Trait]:
    entry = node.schema.attributes[name]
    kind = attribute_type(entry)
    if kind not in {"INT", "FLOAT", "STRING", "INTS", "FLOATS", "STRINGS"}:
        return
    value = node.attribute(name)
    ignoring = "" if entry.required else f"{name} ignored"
    full_name = _full_name(node, name)
    if name in node.attributes:
        default = node.with_attribute(name, None).attribute(name)
        if default is not None:
            yield Trait(f"{full_name} {_are(name)} given", 1.6)
        if value != default:
            yield _stated(name, full_name, default, ignoring)
    else:
        yield Trait(f"{full_name} {_are(name)} left out", 1.5, f"default of {name} changed")
    if value is not None:
        # A statement about a value also holds for nodes that have the value by default.
        for trait in _named(name, full_name, value, "", 1.0):
            yield replace(trait, cost=trait.cost + _DEFAULT_COST * bool(ignoring))
        if ignoring and value != node.with_attribute(name, None).attribute(name):
            yield from _named(name, full_name, value, ignoring, 1.0)


def _full_name(node: BoundNode, name: str) -> str:
    """Return the name of an attribute as statements use it.

    The name states that it is an attribute if another version of the operator has an input of the
    same name.
    """
    is_also_input = name in _input_names(node.schema.name, node.schema.domain)
    return f"the attribute {name}" if is_also_input else name


def _stated(name: str, full_name: str, default: Any, ignoring: str) -> Trait:
    """Return the trait that an attribute has another value than its default."""
    if default is None:
        return Trait(f"{full_name} {_are(name)} given", 1.1, ignoring)
    return Trait(f"{full_name} {_are(name)} not {_words(default)}", 1.05, ignoring)


@cache
def _history(op_type: str, domain: str) -> list[defs.OpSchema]:
    """Return the schemas of all versions of an operator, the oldest first."""
    history = [defs.get_schema(op_type, domain=domain)]
    while history[0].since_version > 1:
        try:
            earlier = defs.get_schema(op_type, history[0].since_version - 1, domain)
        except defs.SchemaError:
            break
        history.insert(0, earlier)
    return history


@cache
def _input_names(op_type: str, domain: str) -> frozenset[str]:
    """Return all input names that occur in any version of an operator."""
    return frozenset(
        formal.name for schema in _history(op_type, domain) for formal in schema.inputs
    )


def _are(name: str) -> str:
    is_single = name.endswith(("axis", "bias")) or name in {"batch_dims", "keepdims"}
    return "are" if name.endswith("s") and not is_single else "is"


def _true(statements: Iterable[tuple[Any, str, float]], ignoring: str = "") -> Iterator[Trait]:
    """Yield a trait for each statement that holds.

    Args:
        statements: for each statement, whether it holds, its text and its cost.
        ignoring: see :class:`Trait`.
    """
    for holds, text, cost in statements:
        if holds:
            yield Trait(text, cost, ignoring)


def _named(name: str, full_name: str, value: Any, ignoring: str, cost: float) -> Iterator[Trait]:
    """Yield the traits of an attribute's value."""
    if isinstance(value, list):
        yield from _list_traits(name, full_name, value, ignoring)
        return
    words = _words(value)
    if name in _TYPE_ATTRIBUTES and value in onnx.TensorProto.DataType.values():
        yield Trait(f"{name} is {onnx.TensorProto.DataType.Name(value).lower()}", cost, ignoring)
        return
    is_number = isinstance(value, int | float)
    yield from _true(
        (
            (len(words) <= _MAX_VALUE_CHARS, f"{full_name} is {words}", cost),
            (is_number and value < 0, f"{full_name} is negative", 1.02),
            (is_number and value > 1, f"{full_name} is more than 1", 1.04),
            (
                isinstance(value, float) and not value.is_integer(),
                f"{full_name} is not an integer", 1.3,
            ),
        ),
        ignoring,
    )  # fmt: skip


def _list_traits(name: str, full_name: str, values: list[Any], ignoring: str) -> Iterator[Trait]:
    """Yield the traits of a list of numbers or texts.

    Args:
        name: the name of the attribute or input.
        full_name: its name in the statements.
        values: the list.
        ignoring: see :class:`Trait`.
    """
    words, are = _words(values), _are(name)
    # A long list is a costly condition, because a fault rarely depends on all numbers of a list.
    are_exact = not any(isinstance(value, float) for value in values)
    is_short = are_exact and len(words) <= _MAX_VALUE_CHARS
    cost = 1.3 + _ITEM_COST * len(values)
    yield from _true([(is_short, f"{full_name} {are} {words}", cost)], ignoring)
    if not values or not all(isinstance(value, int | float) for value in values):
        return
    neutral = 0 if "pad" in name or name.startswith("offset") else 1
    half = len(values) // 2
    are_axes = name in {"axes", "perm"}
    yield from _true(
        (
            (min(values) < 0, f"a value of {full_name} is negative", 1.05),
            (
                not are_axes and any(value != neutral for value in values),
                f"{full_name} {are} not all {neutral}", 1.0,
            ),
            (len({*values}) > 1, f"the values of {full_name} differ", 1.1),
            (
                "pads" in name and values[:half] != values[half:],
                f"{full_name} differ between begin and end", 1.05,
            ),
            (
                are_axes and values != sorted(values),
                f"{full_name} are not in ascending order", 1.05,
            ),
            (
                name == "perm" and _inverse(values) != values,
                f"{full_name} is not its own inverse", 1.04,
            ),
            (
                len(values) > 1 and name in {"axes", "split"},
                f"{full_name} has more than one value", 1.1,
            ),
            (
                name == "kernel_shape" and any(value % 2 == 0 for value in values),
                f"a value of {full_name} is even", 1.1,
            ),
        ),
        ignoring,
    )  # fmt: skip


def _inverse(permutation: list[int]) -> list[int]:
    """Return the inverse of a permutation."""
    return sorted(range(len(permutation)), key=permutation.__getitem__)


def _words(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace") or "empty"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return f"[{', '.join(map(_words, value))}]"
    return str(value)


def _input_traits(node: BoundNode) -> Iterator[Trait]:
    formals, option = list(node.schema.inputs), defs.OpSchema.FormalParameterOption
    for index, formal in enumerate(formals):
        name, value = formal.name, node.operand(index)
        if formal.option == option.Optional:
            is_given = index < len(node.names) and bool(node.names[index])
            yield (
                Trait(f"{name} is given", 1.0, f"{name} ignored", parameter=name)
                if is_given
                else Trait(f"{name} is left out", 1.15, parameter=name)
            )
        is_flag = {*formal.types} == {"tensor(bool)"} and has_single_value(node.node.op_type, name)
        # An omitted condition of a Loop counts as true.
        if is_flag and not (value is None and node.node.op_type == "Loop"):
            is_true = value is not None and bool(value.all())
            words = "is true" if is_true else "is not true"
            yield Trait(f"{name} {words}", 1.1, parameter=name)
        if formal.option != option.Variadic and value is not None:
            for trait in _parameter_traits(name, value, index):
                yield replace(trait, parameter=name)
    used = [name for name in node.names if name]
    yield from _true([(len({*used}) < len(used), "one value is used for two inputs", 1.3)])
    if formals and formals[-1].option == option.Variadic:
        count, name = len(node.names) - len(formals) + 1, formals[-1].name
        yield from _true(
            (
                (True, f"the node has {count} input{'s' * (count != 1)} {name}", 1.1),
                (count > 1, f"the node has more than one input {name}", 1.15),
                (count > 2, f"the node has more than two inputs {name}", 1.1),  # noqa: PLR2004
            )
        )
    requested = [bool(name) for name in node.node.output]
    for formal, is_requested in list(zip(node.schema.outputs, requested, strict=False))[1:]:
        yield from _true([(is_requested, f"the output {formal.name} is requested", 1.2)])
    yield from _version_traits(node.schema)


def _version_traits(schema: defs.OpSchema) -> Iterator[Trait]:
    version = schema.since_version
    yield Trait(f"the operator has version {version}", 1.45)
    for later in _history(schema.name, schema.domain)[1:]:
        words = "at least version" if version >= later.since_version else "a version before"
        yield Trait(f"the operator has {words} {later.since_version}", 1.4)


def _parameter_traits(name: str, value: Array, index: int) -> Iterator[Trait]:
    """Yield traits about the values in a short list of integers, such as axes or pads."""
    is_list = value.ndim <= 1 and 0 < value.size <= _MAX_PARAMETERS
    if index and is_list and value.dtype in (np.int64, np.int32):
        values = value.reshape(-1).tolist()
        if value.ndim == 0:
            is_negative = (values[0] < 0, f"{name} is negative", 1.05)
            yield from _true([(True, f"{name} is {values[0]}", 1.2), is_negative])
        else:
            yield from _list_traits(name, name, values, "")


def _type_traits(node: BoundNode, outputs: Mapping[str, Value]) -> Iterator[Trait]:
    formals = list(node.schema.inputs)
    named: dict[str, Array] = {}
    for index, value in enumerate(node.operands):
        if isinstance(value, np.ndarray) and formals:
            named.setdefault(formals[min(index, len(formals) - 1)].name, value)
    for name, value in named.items():
        yield from _types_of(name, value, 1.0)
    first_output = next(iter(outputs.values()), None)
    if isinstance(first_output, np.ndarray):
        yield from _types_of("the first output", first_output, 1.12)
    types = {value.dtype for value in named.values()}
    if len(types) > 1:
        yield Trait("the inputs have several types", 1.25)


def _types_of(name: str, value: Array, cost: float) -> Iterator[Trait]:
    type_name, kind = dtype_name(value.dtype), kind_of(value.dtype)
    is_float, is_integer = kind is NumberKind.FLOAT, kind is NumberKind.INTEGER
    is_unsigned = type_name.startswith("u")
    # A 4-bit integer occupies a byte in NumPy.
    is_whole_bytes = value.dtype.kind in "iu"
    bits = 8 * value.dtype.itemsize
    yield from _true(
        (
            (True, f"{name} is {type_name}", cost),
            (is_float and bits == _SHORT_BITS, f"{name} is a float of 16 bits", cost + 0.02),
            (is_float, f"{name} is a float", cost + 0.08),
            (
                value.dtype in _NUMPY_FLOATS,
                f"{name} is float16, float32 or float64", cost + 0.1,
            ),
            (is_integer, f"{name} is an integer", cost + 0.02),
            (is_integer and is_unsigned, f"{name} is unsigned", cost + 0.04),
            (is_integer and not is_unsigned, f"{name} is a signed integer", cost + 0.04),
            (
                is_whole_bytes and bits in _NAMED_BITS,
                f"{name} is an integer of {bits} bits", cost + 0.04,
            ),
            (value.dtype != np.float32, f"{name} is not float32", cost + 0.06),
            (
                (is_float or is_whole_bytes) and bits == _LONG_BITS,
                f"{name} has elements of 64 bits", cost + 0.07,
            ),
        )
    )  # fmt: skip


def _named_arrays(node: BoundNode) -> dict[str, Array]:
    """Return the tensors among the inputs of a node, by the names in its schema."""
    formals = list(node.schema.inputs)
    arrays: dict[str, Array] = {}
    for index, value in enumerate(node.operands):
        if isinstance(value, np.ndarray) and formals:
            formal = formals[min(index, len(formals) - 1)].name
            beyond = index - len(formals) + 1
            arrays[f"{formal}_{beyond}" if beyond > 0 else formal] = value
    return arrays


def _shape_traits(node: BoundNode) -> Iterator[Trait]:
    arrays = _named_arrays(node)
    for place, (name, value) in enumerate(arrays.items()):
        yield from _shapes_of(name, value, 0.0 if place == 0 else 0.05)
    for (first, left), (second, right) in combinations(list(arrays.items())[:3], 2):
        yield from _true(
            (
                (left.shape != right.shape, f"the shapes of {first} and {second} differ", 1.3),
                (left.ndim < right.ndim, f"{first} has fewer axes than {second}", 1.25),
                (left.ndim > right.ndim, f"{second} has fewer axes than {first}", 1.25),
                (left.dtype != right.dtype, f"the types of {first} and {second} differ", 1.25),
                *(
                    (
                        _have_axis(left, right, position)
                        and left.shape[position] != right.shape[position],
                        f"the {ordinal} axes of {first} and {second} differ in length", 1.28,
                    )
                    for ordinal, position in _NAMED_AXES
                ),
            )
        )  # fmt: skip
    is_empty = any(value.size == 0 for value in arrays.values())
    yield from _true([(is_empty, "an input has no elements", 1.1)])
    axis, first_array = node.attribute("axis"), next(iter(arrays.values()), None)
    is_of_input = isinstance(axis, int) and node.node.op_type not in _WITH_OUTPUT_AXIS
    if is_of_input and first_array is not None and first_array.ndim:
        position = axis + first_array.ndim if axis < 0 else axis
        yield from _true(
            (
                (position != first_array.ndim - 1, "axis is not the last axis", 1.08),
                (position != 0, "axis is not the first axis", 1.1),
                (
                    any(
                        array.ndim == first_array.ndim
                        and array.shape[position : position + 1] == (0,)
                        for array in arrays.values()
                    ),
                    "an input has length 0 along the axis",
                    1.12,
                ),
            )
        )


def _shapes_of(name: str, value: Array, extra: float) -> Iterator[Trait]:
    rank, shape = value.ndim, value.shape
    last = shape[-1] if rank and value.size else 0
    statements = [
        (True, f"{name} has rank {rank}", 1.1),
        (rank and shape[0] > 1, f"the first axis of {name} is longer than 1", 1.15),
        (rank > 1 and shape[1] > 1, f"the second axis of {name} is longer than 1", 1.2),
        (
            rank > 1 and shape[-1] != shape[-2],
            f"the last two axes of {name} differ in length", 1.2,
        ),
        (last % 2 == 1, f"the last axis of {name} has an odd length", 1.3),
        (last and last % 2 == 0, f"the last axis of {name} has an even length", 1.3),
        (1 in shape, f"an axis of {name} has length 1", 1.2),
        (value.size == 1, f"{name} has one element", 1.2),
        (value.size > 1, f"{name} has more than one element", 1.25),
    ]  # fmt: skip
    for number in range(2, _LONGEST_NAMED_RANK + 1):
        statements += [
            (rank >= number, f"{name} has at least {number} axes", 1.15),
            (rank <= number < _LONGEST_NAMED_RANK, f"{name} has at most {number} axes", 1.2),
        ]
    yield from _true((holds, text, cost + extra) for holds, text, cost in statements)


def _have_axis(left: Array, right: Array, position: int) -> bool:
    """Return whether two tensors have the same rank, and both have an axis at the position."""
    return left.ndim == right.ndim > max(position, 0)


def _ratio_traits(node: BoundNode) -> Iterator[Trait]:
    """Yield traits that compare a window or a channel count with the shape of the first input."""
    array = node.operand(0)
    if array is None or array.ndim <= _SPATIAL:
        return
    first, spatial = node.schema.inputs[0].name, array.shape[_SPATIAL:]
    for name in node.schema.attributes:
        value = node.attribute(name)
        if name in _SPATIAL_ATTRIBUTES and value and len(value) == len(spatial) and min(value) > 0:
            pairs = list(zip(spatial, value, strict=True))
            yield from _true(
                (
                    (
                        any(length % step for length, step in pairs),
                        f"the spatial lengths of {first} are not all multiples of {name}", 1.3,
                    ),
                    (
                        any(length < step for length, step in pairs),
                        f"a spatial length of {first} is less than that of {name}", 1.3,
                    ),
                )
            )  # fmt: skip
        if name in _CHANNEL_ATTRIBUTES and value and value > 1:
            channels = array.shape[1]
            yield from _true(
                (
                    (
                        channels == value,
                        f"{name} equals the length of the second axis of {first}", 1.3,
                    ),
                    (channels < value, f"the second axis of {first} is shorter than {name}", 1.3),
                    (
                        channels > value,
                        f"{name} is between 1 and the length of the second axis of {first}", 1.3,
                    ),
                )
            )  # fmt: skip


def _length_traits(node: BoundNode) -> Iterator[Trait]:
    """Yield traits that compare a vector, or a position, with the length of an axis."""
    array = node.operand(0)
    if array is None or not array.ndim:
        return
    first, axis = node.schema.inputs[0].name, node.attribute("axis")
    has_axis = "axis" in node.schema.attributes and node.node.op_type not in _WITH_OUTPUT_AXIS
    if has_axis and (axis is None or -array.ndim <= axis < array.ndim):
        length = array.size if axis is None else array.shape[axis]
        for place, formal in list(enumerate(node.schema.inputs))[1:]:
            vector = node.operand(place)
            # A single integer, such as K of TopK, is a number rather than a vector.
            is_number = vector is not None and vector.size == 1 and vector.dtype.kind == "i"
            if vector is not None and vector.ndim == 1 and not is_number:
                longer_vector = f"{first}, flattened" if axis is None else f"the axis of {first}"
                yield from _true(
                    [(vector.size < length, f"{formal.name} is shorter than {longer_vector}", 1.2)]
                )
    for name in ("starts", "ends"):
        positions, axes = _parameter(node, name), _parameter(node, "axes")
        if positions is None:
            continue
        lengths = [
            array.shape[axis]
            for axis in axes or range(len(positions))
            if -array.ndim <= axis < array.ndim
        ]
        if len(lengths) == len(positions):
            pairs = list(zip(positions, lengths, strict=True))
            yield from _true(
                (
                    (
                        any(position > length for position, length in pairs),
                        f"a value of {name} exceeds the length of its axis",
                        1.15,
                    ),
                    (
                        any(position < -length for position, length in pairs),
                        f"a value of {name} is below minus the length of its axis",
                        1.15,
                    ),
                )
            )


def _reduction_traits(node: BoundNode) -> Iterator[Trait]:
    """Yield traits of the lengths of the axes along which an operator reduces."""
    array, axes = node.operand(0), axes_of(node)
    if array is None or axes is None or not node.node.op_type.startswith("Reduce"):
        return
    lengths = [array.shape[axis] for axis in axes]
    long_axes = sum(length > 1 for length in lengths)
    yield from _true(
        (
            (0 in lengths, "no elements are reduced", 1.05),
            (long_axes and min(lengths), "more than one element is reduced", 1.12),
            (long_axes > 1, "more than one axis longer than 1 is reduced", 1.14),
            (len(axes) > 1, "more than one axis is reduced", 1.15),
            (len(axes) == array.ndim, "all axes are reduced", 1.16),
            (len(axes) < array.ndim, "not all axes are reduced", 1.16),
        )
    )


def _comparisons_with_axis(node: BoundNode) -> Iterator[Trait]:
    """Yield traits that compare a single integer with the length of an axis.

    The axis is the one that the attribute ``axis`` names, or else the last axis.
    """
    array = node.operand(0)
    if array is None or not array.ndim:
        return
    numbers = {
        name: node.attribute(name)
        for name, entry in node.schema.attributes.items()
        if attribute_type(entry) == "INT" and name not in FLAGS | _TYPE_ATTRIBUTES
    }
    for place, formal in list(enumerate(node.schema.inputs))[1:]:
        value = node.operand(place)
        if value is not None and value.size == 1 and value.dtype in (np.int64, np.int32):
            numbers[formal.name] = int(value.reshape(-1)[0])
    axis = numbers.pop("axis", None)
    is_of_input = axis is not None and node.node.op_type not in _WITH_OUTPUT_AXIS
    has_axis = is_of_input and -array.ndim <= axis < array.ndim
    length = array.shape[axis if has_axis else -1]
    words = (
        f"the length of {'the' if has_axis else 'the last'} axis of {node.schema.inputs[0].name}"
    )
    first = node.schema.inputs[0].name
    for name in ("start", "end"):
        bound = node.attribute(name)
        if isinstance(bound, int):
            yield from _true(
                (
                    (bound > array.ndim, f"{name} exceeds the number of axes of {first}", 1.1),
                    (
                        bound < -array.ndim,
                        f"{name} is below minus the number of axes of {first}", 1.1,
                    ),
                )
            )  # fmt: skip
    for name, number in numbers.items():
        if number is None or name == "axes":
            continue
        yield from _true(
            (
                (number == length, f"{name} equals {words}", 1.25),
                (number > length, f"{name} is more than {words}", 1.25),
                (number < length, f"{name} is less than {words}", 1.28),
                (abs(number) < length, f"the magnitude of {name} is less than {words}", 1.29),
                (number <= -length, f"{name} is at most minus {words}", 1.28),
                (number > 0 and length % number, f"{name} does not divide {words}", 1.22),
            )
        )


def _broadcast_traits(node: BoundNode, outputs: Mapping[str, Value]) -> Iterator[Trait]:
    """Yield traits that compare inputs, if the operator broadcasts all of its inputs."""
    arrays, first_output = _named_arrays(node), next(iter(outputs.values()), None)
    if len(arrays) <= 1 or not isinstance(first_output, np.ndarray):
        return
    try:
        shape = np.broadcast_shapes(*(array.shape for array in arrays.values()))
    except ValueError:
        return
    # An input of a fixed type is a parameter, such as the axes of a reduction.
    if any("(" in formal.type_str for formal in node.schema.inputs):
        return
    if shape != first_output.shape:
        return
    are_all_broadcast = all(array.shape != shape for array in arrays.values())
    yield from _true([(are_all_broadcast, "all inputs are broadcast", 1.15)])
    for name, array in arrays.items():
        beginning = shape[: array.ndim]
        yield from _true(
            (
                (array.shape != shape, f"{name} is broadcast", 1.2),
                (
                    _is_broadcast_inside(array.shape, shape),
                    f"{name} is broadcast along an axis that follows a longer one", 1.22,
                ),
                (
                    0 < array.ndim < len(shape) and array.shape == beginning,
                    f"{name} has the lengths of the first axes of the output", 1.25,
                ),
                (
                    0 < array.ndim < len(shape)
                    and all(np.isin(array.shape, 1) | np.equal(array.shape, beginning)),
                    f"{name} has fewer axes than the output, and also fits its first axes", 1.25,
                ),
            )
        )  # fmt: skip
    for (first, left), (second, right) in combinations([*arrays.items()][:3], 2):
        if left.dtype == right.dtype and first_output.size <= _MAX_ELEMENTS:
            are_equal = np.broadcast_to(left, shape) == np.broadcast_to(right, shape)
            yield from _true(
                (
                    (are_equal.any(), f"an element of {first} equals that of {second}", 1.25),
                    (
                        are_equal.size and are_equal.all(),
                        f"the elements of {first} and {second} are equal", 1.25,
                    ),
                )
            )  # fmt: skip


def _is_broadcast_inside(shape: tuple[int, ...], common: tuple[int, ...]) -> bool:
    """Return whether an axis of length 1 is broadcast, and an earlier axis is longer than 1."""
    lengths = shape[::-1]
    repeated = [place for place, length in enumerate(lengths) if length == 1 < common[::-1][place]]
    return bool(repeated) and any(length > 1 for length in lengths[min(repeated) :])


def _parameter(node: BoundNode, name: str) -> list[int] | None:
    """Return the integers of an attribute or input that is a list of integers; otherwise None."""
    for place, formal in enumerate(node.schema.inputs):
        value = node.operand(place)
        if formal.name == name and value is not None and value.ndim == 1:
            return [int(number) for number in value]
    return node.attribute(name)


def _output_value_traits(outputs: Mapping[str, Value]) -> Iterator[Trait]:
    """Yield traits of the values of the first output."""
    first = next(iter(outputs.values()), None)
    if isinstance(first, np.ndarray) and 0 < first.size <= _MAX_ELEMENTS:
        yield from _true(
            (holds, f"the right output has {text}", cost + _OUTPUT_COST)
            for holds, text, cost in _statements(first)
        )


def _value_traits(node: BoundNode) -> Iterator[Trait]:
    formals = list(node.schema.inputs)
    for index, value in enumerate(node.operands[: len(formals)]):
        if isinstance(value, np.ndarray) and 0 < value.size <= _MAX_ELEMENTS:
            name, extra = formals[index].name, 0.0 if index == 0 else 0.03
            yield from _true(
                (holds, f"{name} has {text}", cost + extra)
                for holds, text, cost in _statements(value)
            )


def _statements(value: Array) -> list[tuple[Any, str, float]]:
    """Return statements about the elements of a tensor, with their costs."""
    is_float = kind_of(value.dtype) is NumberKind.FLOAT
    if not is_float and kind_of(value.dtype) is not NumberKind.INTEGER:
        return []
    wide = value.astype(np.float64)
    is_finite = np.isfinite(wide)
    numbers = wide[is_finite]
    # Integers are not converted, because different 64-bit integers may become equal as doubles.
    exact = value if value.dtype.kind in "iu" else wide[~np.isnan(wide)]
    return [
        (np.isnan(wide).any(), "a NaN", 1.1),
        (np.isinf(wide).any(), "an infinity", 1.1),
        (is_float and (numbers != np.round(numbers)).any(), "a fraction", 1.35),
        ((np.abs(numbers % 1) == 0.5).any(), "a value halfway between integers", 1.12),  # noqa: PLR2004
        ((np.abs(numbers) > 1).any(), "a value beyond 1", 1.35),
        ((np.signbit(numbers) & (numbers == 0)).any(), "a negative zero", 1.2),
        (
            not is_float and are_inexact_in_float32(value).any(),
            "a value that is not exact in float32", 1.15,
        ),
        ((wide < 0).any(), "a negative value", 1.1),
        ((numbers == 0).any(), "a zero", 1.2),
        ((wide != 0).any(), "a value other than 0", 1.25),
        ((wide != 1).any(), "a value other than 1", 1.3),
        (not is_float and _reaches_limit(value), "the smallest or largest value of its type", 1.2),
        (np.unique(exact).size < exact.size, "equal values", 1.2),
    ]  # fmt: skip


def _reaches_limit(value: Array) -> bool:
    limits = ml_dtypes.iinfo(value.dtype)  # type: ignore[no-untyped-call]
    return bool(((value == limits.max) | (value == limits.min)).any())
