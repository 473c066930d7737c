"""Generate random inputs for an operator by changing the nodes of known cases.

A node has one or more groups. A group consists of the operands that belong to one optimized tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle, islice, product
from random import Random
from typing import Any

import numpy as np

from onnxopt_cli.core.values import DTYPES, Array
from onnxopt_cli.errors import NodeError
from onnxopt_cli.interpret.evaluate import evaluate, nonnegative_tensors, undefined_at
from onnxopt_cli.operators.call import Call, bind
from onnxopt_cli.operators.operator import AttributeValue

SHAPES = (
    *((length,) for length in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127,
                               128, 129, 255, 256, 257, 300, 511, 512, 513, 1000, 1023, 1024, 1025,
                               2049, 4097, 65537)),
    (), (1, 1), (2, 3), (3, 4), (1, 5), (4, 1), (2, 3, 4), (2, 1, 3, 2), (2, 2, 2, 1, 2), (16, 3),
    (3, 17), (33, 2), (2, 33), (65, 3), (3, 65), (129, 2), (2, 129), (16, 16),
)  # fmt: skip
_TENSOR_COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 17, 33)
STEPS = (0, 1, 2, 3, 4, 5, 7, 9, 10, 11, 50, 99, 100, 101, 1000, 1001, 10**6, 2**24 + 1, 2**31 + 5,
         2**32 + 1, -1, -7)  # fmt: skip
RATES = (0.0, 1.0, -0.1, 0.1, 1e-3, 0.5, 3.0, 1e-7, 2e4)
# Values that each scalar or attribute takes in turn. Some of them distinguish types of few digits:
# types of 4 digits do not contain 17 and 100, bfloat16 does not contain 259, and float16 does not
# contain 2051. The range of float16 excludes 70001, 1e5 and 1e-9.
_FEW_STEPS = (0, 1, 2, 10, 17, 100, 259, 1001, 2051, 70001, 10**6 + 1, 2**31 + 5, -1)
_FEW_RATES = (0.0, 1.0, -0.5, 1e-9, 1e-3, 0.5, 0.999, 20.0, 1001.0, 1e5)
_ATTRIBUTE_VALUES = (0.0, 1.0, -0.5, 0.25, 0.5, 0.9, 0.99, 0.999, 1e-3, 1e-6, 1.5, 20.0)
#: Values that are tried for an attribute. They are fractions of the interval from its lower limit
#: (0) to its upper limit (1).
SHARES = (0.0, 0.1, 0.25, 0.5, 0.8, 0.999, 1.0)
_SPECIAL_VALUES = (
    0.0, 1.0, -0.8, np.nan, np.inf, -np.inf, 1e-30, 1e-8, 1e8, 1e20, -3.0, 1e-3, 50.0,
)  # fmt: skip
# Numbers of axes of length 1 that are added before and after the axes of all tensors. If no axis is
# added, the tensors become vectors.
_ADDED_AXES = ((0, 0), (1, 0), (0, 1), (1, 1), (0, 2))
# Numbers that are nearly 0 or nearly infinite in float32.
_TINY_NUMBERS = (1e-36, -1e-31, 1e-20, 1e-9)
_LARGE_NUMBERS = (1e20, -1e30, 3e38)
_SCALES = (1e-30, 1e-12, 1e-6, 1e-3, 100.0, 1e4, 1e8, 1e20)
_MAX_INPUT_ELEMENTS = 1 << 18
_MAX_TENSORS = 512
#: Largest number of steps of the search for a scale.
MAX_SCALINGS = 8
#: The search for a scale must reach this relative accuracy.
EXPECTED_ACCURACY = 1e-3
# The least magnitude of a double that is outside the range of int64.
_INT64_LIMIT = 2.0**63


def changed(random: Random, call: Call[Array], counts: Sequence[int]) -> Call[Array] | None:
    """Apply random changes to a node; return None if the result is not valid.

    Args:
        random: source of all choices.
        call: the node.
        counts: the number of changes is drawn from these numbers.
    """
    ways = (_scalars, _scalars, _attribute, _attribute, _types, _groups, _groups, _shape, _shape,
            _narrow, _values, _values, _values)  # fmt: skip
    try:
        with np.errstate(all="ignore"):
            for _ in range(random.choice(counts)):
                call = random.choice(ways)(random, call)
    except NodeError:
        return None
    return checked(call)


def checked(call: Call[Array]) -> Call[Array] | None:
    """Return a node unchanged if it is small and the operator accepts it; otherwise None."""
    if sum(tensor.size for tensor in call.inputs) > _MAX_INPUT_ELEMENTS:
        return None
    try:
        return bind(call.operator, call.inputs, call.attributes, omitted=call.omitted)
    except NodeError:
        return None


def mixed(random: Random, one: Call[Array], other: Call[Array]) -> Call[Array]:
    """Return a node that takes each attribute, scalar, type and value from one of two nodes."""
    draw = _draw(random)

    def either() -> Call[Array]:
        return random.choice((one, other))

    def values(call: Call[Array], place: int) -> Array:
        return random.choice(call.groups)[place].reshape(-1)

    sources = {item.name: either() for item in one.operator.attributes}
    groups = [[*group] for group in either().groups]
    for place in range(len(one.operator.tensors)):
        source, dtype = either(), either().groups[0][place].dtype
        for group in groups:
            elements = values(source, place)
            if elements.size:
                group[place] = draw.choice(elements, group[place].shape)
            with np.errstate(over="ignore"):
                group[place] = group[place].astype(dtype)
    attributes = {name: source.attributes[name] for name, source in sources.items()}
    for name, value in attributes.items():
        if isinstance(value, tuple) and len(value) > 1:
            attributes[name] = tuple(islice(cycle(value), len(groups)))
    return replace(
        one,
        attributes=attributes,
        omitted=frozenset(name for name, source in sources.items() if name in source.omitted),
        scalars=tuple(either().scalars[place] for place in range(len(one.scalars))),
        groups=tuple(map(tuple, groups)),
    )


def with_number(call: Call[Array], number: float, name: str) -> Call[Array] | None:
    """Return a copy of a node in which one scalar, attribute or operand is set to a number.

    The result is None if the operator rejects the number, or if the number would become infinite or
    0 in the type, so that the node would not contain the number.
    """
    operator, scalars, attributes = call.operator, list(call.scalars), call.attributes
    groups, omitted = call.groups, call.omitted
    with np.errstate(over="ignore"):
        for place, item in enumerate(operator.scalars):
            if item.name == name:
                if not _in_range(number, scalars[place].dtype):
                    return None
                scalars[place] = np.full_like(scalars[place], number)
        if name in attributes:
            single, old = float(np.float32(number)), attributes[name]
            in_range = _in_range(number, np.dtype(np.float32))
            if isinstance(old, str) or not in_range or undefined_at(operator, {name: single}):
                return None
            value = (single,) * len(old) if isinstance(old, tuple) else single
            attributes, omitted = {**attributes, name: value}, omitted - {name}
        if name in operator.tensors:
            place = operator.tensors.index(name)
            if name in nonnegative_tensors(operator):
                number = abs(number)
            if not all(_in_range(number, group[place].dtype) for group in groups):
                return None
            groups = _mapped(
                call, lambda at, tensor: np.full_like(tensor, number) if at == place else tensor
            ).groups
    changed_call = replace(call, scalars=tuple(scalars), attributes=attributes, groups=groups)
    return checked(replace(changed_call, omitted=omitted))


def with_other_numbers(call: Call[Array]) -> Iterator[tuple[str, float, Call[Array]]]:
    """Yield copies of a node in which one scalar or one attribute has another value.

    Each copy comes with the name of the scalar or attribute, and with its value.
    """
    numbers: dict[str, Sequence[float]] = {}
    for place, item in enumerate(call.operator.scalars):
        numbers[item.name] = _FEW_RATES if call.scalars[place].dtype.kind == "f" else _FEW_STEPS
    for attribute in call.operator.attributes:
        if attribute.limits:
            low, high = attribute.limits
            numbers[attribute.name] = [low + share * (high - low) for share in SHARES]
        elif not attribute.choices:
            numbers[attribute.name] = _FEW_RATES
    for name, values in numbers.items():
        for number in values:
            if varied_call := with_number(call, number, name):
                yield name, number, varied_call


def with_near_values(call: Call[Array]) -> Iterator[tuple[str, float, Call[Array]]]:
    """Yield copies of a node in which special elements of an operand become nearly special numbers.

    Zeros become tiny numbers, and infinite elements become large numbers. Each copy comes with the
    name of the operand, and with the number of the largest magnitude.
    """
    nonnegative = nonnegative_tensors(call.operator)
    for place, name in enumerate(call.operator.tensors):
        tensors = [group[place] for group in call.groups]
        for is_special, numbers in ((_is_zero, _TINY_NUMBERS), (np.isinf, _LARGE_NUMBERS)):
            if not any(is_special(tensor).any() for tensor in tensors):
                continue
            for number in numbers:
                if number < 0 and name in nonnegative:
                    continue

                def replaced(
                    at: int,
                    tensor: Array,
                    place: int = place,
                    is_special: Callable[[Array], Array] = is_special,
                    number: float = number,
                ) -> Array:
                    if at != place:
                        return tensor
                    # Special elements are equal, but nearly special elements need not be.
                    near_values = number * np.linspace(0.5, 1, tensor.size).reshape(tensor.shape)
                    return np.where(is_special(tensor), near_values, tensor).astype(tensor.dtype)

                if near := checked(_mapped(call, replaced)):
                    yield name, number, near


def with_other_ranks(call: Call[Array]) -> Iterator[tuple[str, float, Call[Array]]]:
    """Yield copies of a node whose tensors have the same elements, but another number of axes.

    Each copy comes with a description of what changes, and with a number that identifies the copy.
    """
    for number, added in enumerate(_ADDED_AXES):

        def reshaped(group: Sequence[Array], added: tuple[int, int] = added) -> tuple[Array, ...]:
            before, after = added
            full = group[0].shape
            shape = (1,) * before + full + (1,) * after if before or after else (group[0].size,)
            return tuple(np.broadcast_to(tensor, full).reshape(shape) for tensor in group)

        groups = tuple(map(reshaped, call.groups))
        if other := checked(replace(call, groups=groups)):
            yield "the number of axes", float(number), other


def _is_zero(tensor: Array) -> Array:
    return np.asarray(tensor == 0)


def _in_range(number: float, dtype: np.dtype[Any]) -> bool:
    """Return whether a number neither overflows nor underflows to 0 in a type."""
    if dtype.kind == "i":
        return abs(number) < _INT64_LIMIT
    rounded = float(dtype.type(number))
    return bool(np.isfinite(rounded) == np.isfinite(number) and (rounded == 0) == (number == 0))


@np.errstate(over="ignore", invalid="ignore")
def with_expected(call: Call[Array], number: float, name: str) -> Call[Array] | None:
    """Return a node in which all elements of an expected output are close to ``number``.

    First, the operands of one element are copied to all elements. Then all tensors are scaled until
    the output is close to ``number``. The search works if the output is approximately
    proportional to a power of the scale.
    """
    place = [*call.operator.outputs].index(name) * len(call.groups)
    output = evaluate(call)[place].reshape(-1).astype(np.float64)
    usable = np.flatnonzero(np.isfinite(output) & (output != 0))
    same_sign = usable[np.sign(output[usable]) == np.sign(number)]
    if not same_sign.size or not np.isfinite(number):
        return None
    element, first = same_sign[0], call.groups[0][0]
    operands = [
        np.broadcast_to(tensor, first.shape).reshape(-1)[element] for tensor in call.groups[0]
    ]
    for power in (1, 2):
        scale = 1.0
        for _ in range(MAX_SCALINGS):
            scaled = _mapped(
                call,
                lambda at, tensor: np.full_like(tensor, operands[at] * scale),  # noqa: B023
            )
            value = float(evaluate(scaled)[place].reshape(-1)[0])
            if abs(value - number) <= EXPECTED_ACCURACY * abs(number):
                return checked(scaled)
            ratio = number / value if value else 0.0
            if not ratio > 0 or not np.isfinite(ratio):
                break
            scale *= ratio ** (1 / power)
    return None


def with_length(call: Call[Array], number: float) -> Call[Array] | None:
    """Return a node whose tensors are vectors of length ``number``; None if it is not valid."""
    length = int(number)
    if not 0 < length <= _MAX_INPUT_ELEMENTS:
        return None
    return checked(_mapped(call, lambda _, tensor: np.resize(tensor, length)))


def with_tensor_count(call: Call[Array], number: float) -> Call[Array] | None:
    """Return a copy of a node with ``number`` tensors; None if it is not valid."""
    count = int(number)
    if not 0 < count <= _MAX_TENSORS:
        return None
    attributes = {
        name: tuple(islice(cycle(value), count))
        if isinstance(value, tuple) and len(value) > 1
        else value
        for name, value in call.attributes.items()
    }
    groups = tuple(islice(cycle(call.groups), count))
    return checked(replace(call, groups=groups, attributes=attributes))


def _scalars(random: Random, call: Call[Array]) -> Call[Array]:
    """Change rank, type or value of a scalar."""
    scalars = list(call.scalars)
    if scalars:
        place, what = random.randrange(len(scalars)), random.randrange(6)
        scalar = scalars[place]
        if what == 0:
            scalar = scalar.reshape((1,) * random.randrange(3))
        elif what == 1 and scalar.dtype.kind == "f":
            scalar = scalar.astype(random.choice((np.float32, np.float64)))
        else:
            values = RATES if scalar.dtype.kind == "f" else STEPS
            scalar = np.full_like(scalar, random.choice(values))
        scalars[place] = scalar
    return replace(call, scalars=tuple(scalars))


def _attribute(random: Random, call: Call[Array]) -> Call[Array]:
    """Change the value of an attribute, or omit the attribute."""
    item = random.choice(call.operator.attributes)
    omitted = call.omitted - {item.name}
    value: AttributeValue
    if item.choices:
        value = random.choice(item.choices)
    elif item.limits:
        low, high = item.limits
        shares = random.choices(SHARES, k=random.choice((1, len(call.groups))))
        numbers = tuple(float(np.float32(low + share * (high - low))) for share in shares)
        value = numbers if item.each else numbers[0]
    elif item.default is not None and random.randrange(3) == 0:
        value, omitted = item.default, omitted | {item.name}
    else:
        value = number = float(np.float32(random.choice(_ATTRIBUTE_VALUES)))
        if undefined_at(call.operator, {item.name: number}):
            return call
    return replace(call, attributes={**call.attributes, item.name: value}, omitted=omitted)


def _types(random: Random, call: Call[Array]) -> Call[Array]:
    """Draw one type for all tensors, or one for each operand; sometimes, change only one group.

    The elements of new doubles get further digits, so that float32 cannot represent them.
    Otherwise, a rounding to float32 would be invisible.
    """
    draw = _draw(random)
    types = [DTYPES[random.choice(call.operator.dtypes)] for _ in call.operator.tensors]
    same = random.randrange(2)
    numbers = range(len(call.groups))
    changed_groups = {random.choice(numbers)} if random.randrange(3) == 0 else {*numbers}
    groups = tuple(
        tuple(_converted(draw, tensor, types[0 if same else at]) for at, tensor in enumerate(group))
        if number in changed_groups
        else group
        for number, group in enumerate(call.groups)
    )
    return replace(call, groups=groups)


def with_types(random: Random, call: Call[Array]) -> Iterator[Call[Array] | None]:
    """Yield copies of a node with each combination of types of its operands; None if invalid.

    Each combination is yielded twice: with the old values, and with ordinary values. Old values
    that are beyond the range of a type become infinite.
    """
    draw, operator = _draw(random), call.operator
    nonnegative = nonnegative_tensors(operator)

    def ordinary(at: int, tensor: Array) -> Array:
        values = draw.uniform(0.1, 3, tensor.shape) * draw.choice((-1, 1), tensor.shape)
        return np.asarray(np.abs(values) if operator.tensors[at] in nonnegative else values)

    def convert(types: Sequence[np.dtype[Any]], at: int, tensor: Array) -> Array:
        return _converted(draw, tensor, types[at])

    with_ordinary = _mapped(call, ordinary)
    allowed = [DTYPES[name] for name in operator.dtypes]
    for types, source in product(
        product(allowed, repeat=len(operator.tensors)), (call, with_ordinary)
    ):
        with np.errstate(over="ignore"):
            converted = _mapped(source, partial(convert, types))
        yield checked(converted)


def _converted(draw: np.random.RandomState, tensor: Array, dtype: np.dtype[Any]) -> Array:
    if tensor.dtype.itemsize >= dtype.itemsize:
        return tensor.astype(dtype)
    further_digits = draw.uniform(0, np.finfo(tensor.dtype).eps, tensor.shape)
    return np.asarray(tensor.astype(dtype) * (1 + further_digits), dtype)


def _groups(random: Random, call: Call[Array]) -> Call[Array]:
    """Change the number of tensors; sometimes, some tensors have no elements."""
    near = [max(1, len(call.groups) + step) for step in (-1, 1)]
    chosen = random.choices(call.groups, k=random.choice((*_TENSOR_COUNTS, *near * 3)))
    if random.randrange(3) == 0:
        # The first of several tensors keeps its elements, because a fault may be visible in them.
        first = random.randrange(min(1, len(chosen) - 1), len(chosen))
        for at in range(first, random.choice((first + 1, len(chosen)))):
            chosen[at] = tuple(tensor[:0] if tensor.ndim else tensor for tensor in chosen[at])
    groups = [
        tuple(np.asarray(tensor * (1 + at / 16), tensor.dtype) for tensor in group)
        for at, group in enumerate(chosen)
    ]
    return replace(call, groups=tuple(groups))


def _shape(random: Random, call: Call[Array]) -> Call[Array]:
    """Draw one shape for all tensors, or one for each group. The old elements are reused."""
    draw, number = _draw(random), len(call.groups)
    near = [(max(1, call.groups[0][0].size + step),) for step in (-1, 1)]
    shapes = random.choices((*SHAPES, *near * 3), k=random.choice((1, 1, number)))

    def reshaped(tensor: Array, shape: tuple[int, ...]) -> Array:
        values = draw.choice(tensor.reshape(-1) if tensor.size else [1.0], shape)
        return np.asarray(values * draw.uniform(0.5, 2, shape), tensor.dtype)

    groups = [
        tuple(reshaped(tensor, shape) for tensor in group)
        for group, shape in zip(call.groups, cycle(shapes), strict=False)
    ]
    return replace(call, groups=tuple(groups))


def _narrow(random: Random, call: Call[Array]) -> Call[Array]:
    """Give one operand a smaller shape that broadcasts."""
    operand = random.randrange(len(call.operator.tensors))
    parts: tuple[Callable[[Array], Array], ...] = (
        lambda tensor: tensor.reshape(-1)[:1].reshape(()), lambda tensor: tensor[:1],
        lambda tensor: tensor[0], lambda tensor: tensor[..., :1],
        lambda tensor: tensor.reshape(-1)[:1],
    )  # fmt: skip
    part = random.choice(parts)

    def narrowed(at: int, tensor: Array) -> Array:
        return part(tensor) if at == operand > 0 and tensor.size and tensor.ndim else tensor

    return _mapped(call, narrowed)


def _values(random: Random, call: Call[Array]) -> Call[Array]:
    """Draw ordinary values, scale the values of an operand, or insert a special value."""
    names, nonnegative = call.operator.tensors, nonnegative_tensors(call.operator)
    way = random.choice(("draw all", "draw", "scale", "fill", "insert"))
    operand, position = random.randrange(len(names)), random.random()
    draw, special, scale = _draw(random), random.choice(_SPECIAL_VALUES), random.choice(_SCALES)

    def revalued(at: int, tensor: Array) -> Array:
        if way == "draw all" or (way == "draw" and at == operand):
            values = draw.uniform(0.1, 3, tensor.shape) * draw.choice((-1, 1), tensor.shape)
        elif at != operand or not tensor.size:
            return tensor
        elif way == "scale":
            values = tensor * tensor.dtype.type(scale)
        elif way == "fill":
            values = np.full_like(tensor, special)
        else:
            values = tensor.copy()
            values.reshape(-1)[int(position * tensor.size)] = special
        return np.asarray(np.abs(values) if names[at] in nonnegative else values, tensor.dtype)

    return _mapped(call, revalued)


def _draw(random: Random) -> np.random.RandomState:
    return np.random.RandomState(random.randrange(1 << 30))


def _mapped(call: Call[Array], change: Callable[[int, Array], Array]) -> Call[Array]:
    """Replace each tensor of a node by the result of a function of its position and value."""
    groups = [tuple(change(at, tensor) for at, tensor in enumerate(group)) for group in call.groups]
    return replace(call, groups=tuple(groups))
