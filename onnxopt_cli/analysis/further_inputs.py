"""Further inputs for an operator: those of a case, changed in a few respects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle, islice
from random import Random

import numpy as np

from onnxopt_cli.core.values import DTYPES, Array
from onnxopt_cli.errors import NodeError
from onnxopt_cli.interpret.evaluate import nonnegative_tensors, undefined_at
from onnxopt_cli.operators.call import Call, bind
from onnxopt_cli.operators.operator import AttributeValue

_SHAPES = (
    *((length,) for length in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127,
                               128, 129, 255, 256, 257, 300, 511, 512, 513, 1000, 1023, 1024, 1025,
                               2049, 4097, 65537)),
    (), (1, 1), (2, 3), (3, 4), (1, 5), (4, 1), (2, 3, 4), (2, 1, 3, 2), (2, 2, 2, 1, 2), (16, 3),
    (3, 17), (33, 2), (2, 33), (65, 3), (3, 65), (129, 2), (2, 129), (16, 16),
)  # fmt: skip
_TENSORS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 17, 33)
_STEPS = (0, 1, 2, 3, 4, 5, 7, 9, 10, 11, 50, 99, 100, 101, 1000, 1001, 10**6, 2**24 + 1, 2**31 + 5,
          2**32 + 1, -1, -7)  # fmt: skip
_RATES = (0.0, 1.0, -0.1, 0.1, 1e-3, 0.5, 3.0, 1e-7, 2e4)
_NUMBERS = (0.0, 1.0, -0.5, 0.25, 0.5, 0.9, 0.99, 0.999, 1e-3, 1e-6, 1.5, 20.0)
_SHARES = (0.0, 0.1, 0.25, 0.5, 0.8, 0.999, 1.0)
_SPECIAL = (0.0, 1.0, -0.8, np.nan, np.inf, -np.inf, 1e-30, 1e-8, 1e8, 1e20, -3.0, 1e-3, 50.0)
_SCALES = (1e-30, 1e-12, 1e-6, 1e-3, 100.0, 1e4, 1e8, 1e20)
#: No node has more elements.
_MAX_ELEMENTS = 1 << 18


def further(random: Random, call: Call[Array], changes: Sequence[int]) -> Call[Array] | None:
    """Change a node at random, as often as one of some numbers; None if that makes no valid one."""
    ways = (_scalars, _scalars, _attribute, _attribute, _types, _groups, _groups, _shape, _shape,
            _narrow, _values, _values, _values)  # fmt: skip
    try:
        with np.errstate(all="ignore"):
            for _ in range(random.choice(changes)):
                call = random.choice(ways)(random, call)
            small = sum(it.size for it in call.inputs) <= _MAX_ELEMENTS
            inputs, left_out = call.inputs, call.omitted
            return bind(call.operator, inputs, call.attributes, omitted=left_out) if small else None
    except NodeError:
        return None


def mixed(random: Random, one: Call[Array], other: Call[Array]) -> Call[Array]:
    """Take each attribute, scalar, type and kind of values of one of two nodes."""
    draw = _draw(random)

    def either() -> Call[Array]:
        return random.choice((one, other))

    def values(of: Call[Array], place: int) -> Array:
        return random.choice(of.groups)[place].reshape(-1)

    sources = {it.name: either() for it in one.operator.attributes}
    groups = [[*group] for group in either().groups]
    for place in range(len(one.operator.tensors)):
        kind, dtype = either(), either().groups[0][place].dtype
        for group in groups:
            known = values(kind, place)
            if known.size:
                group[place] = draw.choice(known, group[place].shape)
            with np.errstate(over="ignore"):
                group[place] = group[place].astype(dtype)
    each = {name: it.attributes[name] for name, it in sources.items()}
    for name, value in each.items():
        if isinstance(value, tuple) and len(value) > 1:
            each[name] = tuple(islice(cycle(value), len(groups)))
    return replace(
        one,
        attributes=each,
        omitted=frozenset(name for name, it in sources.items() if name in it.omitted),
        scalars=tuple(either().scalars[place] for place in range(len(one.scalars))),
        groups=tuple(map(tuple, groups)),
    )


def _scalars(random: Random, call: Call[Array]) -> Call[Array]:
    scalars = list(call.scalars)
    if scalars:
        place, what = random.randrange(len(scalars)), random.randrange(6)
        one = scalars[place]
        if what == 0:
            one = one.reshape((1,) * random.randrange(3))
        elif what == 1 and one.dtype.kind == "f":
            one = one.astype(random.choice((np.float32, np.float64)))
        else:
            one = np.full_like(one, random.choice(_RATES if one.dtype.kind == "f" else _STEPS))
        scalars[place] = one
    return replace(call, scalars=tuple(scalars))


def _attribute(random: Random, call: Call[Array]) -> Call[Array]:
    item = random.choice(call.operator.attributes)
    omitted = call.omitted - {item.name}
    value: AttributeValue
    if item.choices:
        value = random.choice(item.choices)
    elif item.limits:
        low, high = item.limits
        shares = random.choices(_SHARES, k=random.choice((1, len(call.groups))))
        numbers = tuple(float(np.float32(low + share * (high - low))) for share in shares)
        value = numbers if item.each else numbers[0]
    elif item.default is not None and random.randrange(3) == 0:
        value, omitted = item.default, omitted | {item.name}
    else:
        value = number = float(np.float32(random.choice(_NUMBERS)))
        if undefined_at(call.operator, {item.name: number}):
            return call
    return replace(call, attributes={**call.attributes, item.name: value}, omitted=omitted)


def _types(random: Random, call: Call[Array]) -> Call[Array]:
    """Give all tensors one type, or each operand its own."""
    types = [DTYPES[random.choice(call.operator.dtypes)] for _ in call.operator.tensors]
    alike = random.randrange(2)
    return _mapped(call, lambda at, it: it.astype(types[0 if alike else at]))


def _groups(random: Random, call: Call[Array]) -> Call[Array]:
    beside = [max(1, len(call.groups) + by) for by in (-1, 1)]
    chosen = random.choices(call.groups, k=random.choice((*_TENSORS, *beside * 3)))
    if random.randrange(3) == 0:
        # Never the first of several: what depends on that one shows in its elements.
        first = random.randrange(min(1, len(chosen) - 1), len(chosen))
        for at in range(first, random.choice((first + 1, len(chosen)))):
            chosen[at] = tuple(it[:0] if it.ndim else it for it in chosen[at])
    groups = [
        tuple(np.asarray(it * (1 + at / 16), it.dtype) for it in group)
        for at, group in enumerate(chosen)
    ]
    return replace(call, groups=tuple(groups))


def _shape(random: Random, call: Call[Array]) -> Call[Array]:
    """Give all tensors a shape, or each group its own, with values like those that they have."""
    draw, number = _draw(random), len(call.groups)
    beside = [(max(1, call.groups[0][0].size + by),) for by in (-1, 1)]
    shapes = random.choices((*_SHAPES, *beside * 3), k=random.choice((1, 1, number)))

    def changed(tensor: Array, shape: tuple[int, ...]) -> Array:
        values = draw.choice(tensor.reshape(-1) if tensor.size else [1.0], shape)
        return np.asarray(values * draw.uniform(0.5, 2, shape), tensor.dtype)

    groups = [
        tuple(changed(it, shape) for it in group)
        for group, shape in zip(call.groups, cycle(shapes), strict=False)
    ]
    return replace(call, groups=tuple(groups))


def _narrow(random: Random, call: Call[Array]) -> Call[Array]:
    """Let one operand broadcast."""
    place = random.randrange(len(call.operator.tensors))
    takes: tuple[Callable[[Array], Array], ...] = (
        lambda it: it.reshape(-1)[:1].reshape(()), lambda it: it[:1], lambda it: it[0],
        lambda it: it[..., :1], lambda it: it.reshape(-1)[:1],
    )  # fmt: skip
    take = random.choice(takes)
    return _mapped(call, lambda at, it: take(it) if at == place > 0 and it.size and it.ndim else it)


def _values(random: Random, call: Call[Array]) -> Call[Array]:
    """Draw ordinary values, scale those of an operand, or put a special one into it."""
    names, positive = call.operator.tensors, nonnegative_tensors(call.operator)
    place, what, where = random.randrange(len(names)), random.randrange(5), random.random()
    draw, special, scale = _draw(random), random.choice(_SPECIAL), random.choice(_SCALES)

    def changed(at: int, tensor: Array) -> Array:
        if what == 0 or (what == 1 and at == place):
            values = draw.uniform(0.1, 3, tensor.shape) * draw.choice((-1, 1), tensor.shape)
        elif at != place or not tensor.size:
            return tensor
        elif what == 2:  # noqa: PLR2004 - the ways are counted
            values = tensor * tensor.dtype.type(scale)
        else:
            values = np.full_like(tensor, special) if what == 3 else tensor.copy()  # noqa: PLR2004
            values.reshape(-1)[int(where * tensor.size)] = special
        return np.asarray(np.abs(values) if names[at] in positive else values, tensor.dtype)

    return _mapped(call, changed)


def _draw(random: Random) -> np.random.RandomState:
    return np.random.RandomState(random.randrange(1 << 30))


def _mapped(call: Call[Array], change: Callable[[int, Array], Array]) -> Call[Array]:
    groups = [tuple(change(at, it) for at, it in enumerate(group)) for group in call.groups]
    return replace(call, groups=tuple(groups))
