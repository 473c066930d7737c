"""What an element of a case is, in numbers and in words: what failures may have in common.

Each element of each tensor has the same features: those of its node (T, attributes, number of
tensors), of its tensor (types, shapes, length), and its own (position, values). A feature condition
is a condition on one feature, with the words for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.operators.call import Call

#: Elements of a tensor, and tensors of a node, that are looked at.
_ELEMENTS = 100
_GROUPS = 24
_BLOCKS = (2, 3, 4, 8, 16, 32, 64, 128, 256)
#: Marks an element that is wrong, and not only judged.
WRONG = 2
_LARGEST_FLOAT32 = np.finfo(np.float32).max
_POWERS_OF_TEN = 300
_NO_ELEMENT = {0: np.empty(0, int)}
_POWERS = (2, 4, 6, 10, 18, 30)
_AROUND = tuple(2**power + by for power in range(4, 21) for by in (-1, 0, 1))
_COUNTS = (*range(11), 12, 20, 99, 100, 101, 999, 1000, 1001, *_AROUND)
_STEPS = (-1, *range(12), 99, 100, 101, 1000, 1001, 10**6, 2**24, 2**24 + 1, 2**31, 2**32)


@dataclass(frozen=True, slots=True)
class FeatureCondition:
    """A condition on a feature.

    Attributes:
        feature: the feature's row.
        words: says the condition, of an element or of what it is in.
        cost: how far from plain it is; 1 for the plainest.
        holds: tells it of a feature's values, NaN where an element has none.
    """

    feature: int
    words: str
    cost: float
    holds: Callable[[Array], Array]


@dataclass(frozen=True, slots=True)
class Range:
    """Where a feature's values are in the elements that are wrong, and next to these.

    Attributes:
        counts: further numbers at which a count may turn.
        below, above: the nearest values of elements that are right, on either side; infinite where
            there is none.
        least, most: of the elements that are wrong.
    """

    counts: tuple[float, ...] = ()
    below: float = -np.inf
    least: float = -np.inf
    most: float = np.inf
    above: float = np.inf


#: What is known of a feature before any element was seen.
_UNKNOWN = Range()

#: Words, cost and test of a condition.
_Condition: TypeAlias = tuple[str, float, Callable[[Array], Array]]
#: Yields all conditions on a feature, given where its values are.
_Conditions: TypeAlias = Callable[[Range], Iterable[_Condition]]


def feature_conditions(call: Call[Array], seen: Mapping[int, Range]) -> Iterator[FeatureCondition]:
    """Yield all conditions on the features of an operator.

    Args:
        call: a node of the operator, whichever.
        seen: where a feature's values are, by its row.
    """
    for row, (_, conditions) in enumerate(_features(call, _NO_ELEMENT)):
        for condition in conditions(seen.get(row, _UNKNOWN)):
            yield FeatureCondition(row, *condition)


def number_names(call: Call[Array]) -> dict[int, str]:
    """Return the names of scalars, attributes and tensors whose value is a feature, by its row."""
    rows = enumerate(_features(call, _NO_ELEMENT))
    found = {row: it for row, (_, it) in rows if isinstance(it, partial) and it.func is _values}
    return {row: str(it.args[0]) for row, it in found.items()}


def roundest(low: float, high: float) -> float:
    """Return the number of fewest digits from one number to another."""
    if low <= 0 <= high:
        return 0.0
    for power in range(int(np.floor(np.log10(max(abs(low), abs(high))))), -330, -1):
        # Beyond the powers of ten that a double holds.
        if power < -_POWERS_OF_TEN:
            break
        step = float(f"1e{power}")
        number = float(f"{np.ceil(low / step):.0f}e{power}")
        if low <= number <= high:
            return number
    return high


def _counts(words: str, marks: Iterable[float], least: float, seen: Range) -> Iterator[_Condition]:
    """Yield the conditions on a count, of which ``least`` is the smallest that there is."""
    for mark in sorted({*marks, *seen.counts}):
        k = int(mark)
        # Plain are small numbers and those at a power of two.
        cost = 0.0 if k in (0, 1, 2) or (k - 1) & (k - 2) == 0 or k & (k - 1) == 0 else 0.1
        for number, are, own_cost, holds in (
            (f"{k}", "is" if k == 1 else "are", 1.02, np.equal),
            (f"at least {k}", "are", 1.0, np.less_equal),
            (f"at most {k}", "are", 1.05 if k else 1.2, np.greater_equal),
        ):
            # The smallest, or more, holds everywhere.
            if holds is np.less_equal and k <= least:
                continue
            text = words.format(k=number, are=are, s="s" * (k != 1))
            yield text, own_cost + cost, partial(holds, k)


def _values(name: str, seen: Range) -> Iterator[_Condition]:
    for words, cost, holds in (
        ("is 0", 1.0, partial(np.equal, 0)),
        ("is 1", 1.0, partial(np.equal, 1)),
        ("is not 0", 1.15, lambda it: (it != 0) & ~np.isnan(it)),
        ("is negative", 1.0, partial(np.greater, 0)),
        ("is positive", 1.1, partial(np.less, 0)),
        ("is above 1", 1.1, partial(np.less, 1)),
        ("is below 1", 1.2, partial(np.greater, 1)),
        ("is NaN", 1.0, np.isnan),
        ("is infinite", 1.0, np.isinf),
        (
            "is finite, but beyond float32",
            1.1,
            lambda it: np.isfinite(it) & (np.abs(it) > _LARGEST_FLOAT32),
        ),
        ("is not a float32 number", 1.2, lambda it: np.isfinite(it) & (it != it.astype("f"))),
    ):
        yield f"{name} {words}", cost, holds
    for power in _POWERS:
        yield f"{name} is 1e{power} or more in size", 1.2, partial(_far, 10.0**power)
        near = f"{name} is 1e-{power} or less in size, and not 0"
        yield near, 1.2, partial(_near, 10.0**-power)
    if np.isfinite(seen.below) and seen.below < seen.least:
        number = roundest(seen.below, seen.least)
        if number == seen.least:
            yield f"{name} is at least {number:g}", 1.3, partial(np.less_equal, number)
        else:
            yield f"{name} is above {number:g}", 1.3, partial(np.less, number)
    if np.isfinite(seen.above) and seen.most < seen.above:
        number = -roundest(-seen.above, -seen.most)
        if number == seen.most:
            yield f"{name} is at most {number:g}", 1.3, partial(np.greater_equal, number)
        else:
            yield f"{name} is below {number:g}", 1.3, partial(np.greater, number)
    if seen.least == seen.most and abs(seen.least) not in (0, 1):
        yield f"{name} is {seen.least:g}", 1.4, partial(np.equal, seen.least)


def _flag(words: str, cost: float, _: object) -> Iterator[_Condition]:
    yield words, cost, partial(np.equal, 1)


def _far(least: float, values: Array) -> Array:
    return np.abs(values) >= least


def _near(most: float, values: Array) -> Array:
    return (values != 0) & (np.abs(values) <= most)


def features(call: Call[Array], marked: Array) -> tuple[Array, Array]:
    """Return the features of a node's elements, and which of them are marked.

    Args:
        call: the node.
        marked: for the elements of all tensors in a row, 1 for those that matter, 2 for those that
            matter most, 0 for those that are to be left out.

    Returns:
        A row for each feature and a column for each element; and the mark of each element.
    """
    marks = [it.reshape(-1) for it in call.apart([marked])]
    order = sorted(range(len(marks)), key=lambda at: -int(np.max(marks[at], initial=0)))
    chosen = {*order[: _GROUPS // 2], *range(_GROUPS // 4), len(marks) - 1}
    kept = {group: _kept(marks[group]) for group in sorted(chosen & set(order))}
    own = [value for value, _ in _features(call, kept)]
    rows = np.empty((len(own), sum(it.size for it in kept.values())))
    for row, value in zip(rows, own, strict=True):
        row[:] = value
    return rows, np.concatenate([marks[group][places] for group, places in kept.items()])


def _kept(marked: Array) -> Array:
    """Return the places of some elements: all of a short tensor, both ends of a long one."""
    usable = np.flatnonzero(marked)
    if usable.size <= _ELEMENTS:
        return usable
    wrong = np.flatnonzero(marked == WRONG)
    spread = np.linspace(0, usable.size - 1, 20).astype(int)
    more = np.linspace(0, wrong.size - 1, 20).astype(int) if wrong.size else wrong
    ends = (usable[:33], usable[-33:], usable[spread], wrong[more], wrong[:9])
    return np.unique(np.concatenate(ends))


def _features(call: Call[Array], kept: Mapping[int, Array]) -> Iterator[tuple[Any, _Conditions]]:
    """Yield the features of elements at some flat places of tensors, with the conditions on them.

    Each is for all elements or one by one, and NaN where there is none. They have one order in all
    nodes of an operator.
    """
    operator, x = call.operator, call.operator.tensors[0]
    groups, index = [call.groups[at] for at in kept], np.concatenate([*kept.values()])
    tensor = np.repeat(np.arange(len(kept)), [it.size for it in kept.values()])

    def each(values: Iterable[Any]) -> Array:
        """Return what is said of each tensor for each of its elements."""
        return np.array([*values])[tensor]

    size, rank = each(it.size for it, *_ in groups), each(it.ndim for it, *_ in groups)
    ends = [it.shape[-2:] if it.ndim > 1 else (np.nan, np.nan) for it, *_ in groups]
    rows, columns = map(each, zip(*ends, strict=True))
    few, many = _COUNTS[:60], (*range(1, 13), *_AROUND[:24])
    yield len(call.groups), partial(_counts, "there {are} {k} tensor{s}", many, 1)
    yield each(kept) + 1, partial(_counts, "the tensor's number is {k}", range(1, 10), 1)
    yield size, partial(_counts, f"{x} has {{k}} element{{s}}", _COUNTS, 1)
    yield rank, partial(_counts, f"{x} has {{k}} dimension{{s}}", range(9), 0)
    yield rows, partial(_counts, f"{x} has {{k}} row{{s}}", few, 1)
    yield columns, partial(_counts, f"{x} has {{k}} column{{s}}", few, 1)
    yield index, partial(_counts, "the element's index is {k}", _COUNTS, 0)
    yield index // columns % rows, partial(_counts, "the element's row is {k}", few, 0)
    yield index % columns, partial(_counts, "the element's column is {k}", few, 0)
    scalars = list(zip(operator.scalars, call.scalars, strict=True))
    for item, scalar in scalars:
        if "int64" in item.dtypes:
            yield scalar.item(), partial(_counts, f"{item.name} is {{k}}", _STEPS, -np.inf)
    for item, scalar in scalars:
        if "int64" not in item.dtypes:
            yield scalar.item(), partial(_values, item.name)
    for attribute in operator.attributes:
        value = call.attributes[attribute.name]
        number = each(value[at % len(value)] for at in kept) if isinstance(value, tuple) else value
        yield np.nan if isinstance(number, str) else number, partial(_values, attribute.name)
    for place, name in enumerate(operator.tensors):
        elements = [
            np.broadcast_to(it[place], it[0].shape).reshape(-1)[places]
            for it, places in zip(groups, kept.values(), strict=True)
        ]
        yield np.concatenate(elements), partial(_values, name)
    for words, cost, holds in (*_flags(call, kept, each), *_specials(call, kept, each)):
        yield holds, partial(_flag, words, cost)


def _flags(
    call: Call[Array], kept: Mapping[int, Array], each: Callable[[Iterable[Any]], Array]
) -> Iterator[tuple[str, float, Any]]:
    """Yield the features that hold or do not: the words of each, their cost, and where it holds."""
    operator, x = call.operator, call.operator.tensors[0]
    groups, index = [call.groups[at] for at in kept], np.concatenate([*kept.values()])
    size, rank = each(it.size for it, *_ in groups), each(it.ndim for it, *_ in groups)
    for item, scalar in zip(operator.scalars, call.scalars, strict=True):
        yield f"{item.name} is double", 1, scalar.dtype == np.float64
        yield f"{item.name} has a dimension", 1.5, scalar.ndim > 0
        if "int64" in item.dtypes:
            yield f"{item.name} is odd", 1.1, scalar.item() % 2 == 1
            yield f"{item.name} is even", 1.1, scalar.item() % 2 == 0
    for attribute in operator.attributes:
        name, value = attribute.name, call.attributes[attribute.name]
        for choice in attribute.choices:
            yield f"{name} is {choice}", 1, value == choice
        yield f"{name} is left out", 1, name in call.omitted
        shares = value if isinstance(value, tuple) else (np.nan,)
        at_rank = (size - 1) * each(shares[at % len(shares)] for at in kept) / 100
        yield f"{name} falls on a whole rank", 1.5, at_rank % 1 == 0
        yield f"each tensor has its {name}", 1.5, len(shares) > 1
    for place, name in enumerate(operator.tensors):
        other = each(it[place].shape != it[0].shape for it in groups)
        own = each(it[place].ndim for it in groups)
        yield f"{name} is double", 1.1, each(it[place].dtype == np.float64 for it in groups)
        yield f"{name} broadcasts to {x}", 1.3, other
        yield f"{name} has no dimension and {x} has", 1.3, other & (own == 0)
        yield f"{name} has fewer dimensions than {x}", 1.3, own < rank
        single = each(it[place].size == 1 for it in groups)
        yield f"{name} has one element and {x} has more", 1.3, other & single
        inner = "has an inner dimension of one and as many as"
        yield f"{name} {inner} {x}", 1.3, other & (own == rank)
    doubles = [[it.dtype == np.float64 for it in group] for group in groups]
    some, every = each(map(any, doubles)), each(map(all, doubles))
    yield "a tensor is double", 1, some
    yield "a tensor is float32", 1, ~every
    yield "types are mixed within a tensor's group", 1, some & ~every
    broadcast = each(any(it.shape != group[0].shape for it in group) for group in groups)
    yield f"an operand broadcasts to {x}", 1, broadcast
    rates = [it.dtype for it in call.scalars if it.dtype.kind == "f"][:1]
    other_rate = each(any(it != first.dtype for it in rates) for first, *_ in groups)
    yield f"R's type is not that of {x}", 1, other_rate
    yield "the element is the last one", 1, index == size - 1
    yield f"{x} has an odd number of elements", 1.15, size % 2 == 1
    yield f"{x} has an even number of elements", 1.15, size % 2 == 0
    yield "the element's index is odd", 1.2, index % 2 == 1
    last = len(call.groups) - 1
    yield "the tensor is the last of several", 1, each(0 < at == last for at in kept)
    yield "a tensor of the node has no element", 1, any(it.size == 0 for it, *_ in call.groups)
    for block in _BLOCKS:
        yield f"{x}'s length is no multiple of {block}", 1.3, size % block != 0
        tail = index >= size - size % block
        yield f"the element is one of the last n mod {block} of n", 1.2, tail
        yield f"{x}'s length is a multiple of {block}", 1.2, size % block == 0
        yield f"the element's index is a multiple of {block}", 1.3, index % block == 0


def _specials(
    call: Call[Array], kept: Mapping[int, Array], each: Callable[[Iterable[Any]], Array]
) -> Iterator[tuple[str, float, Any]]:
    """Yield what holds of all elements of a tensor if one of them is not finite, as above."""
    groups = [call.groups[at] for at in kept]
    for place, name in enumerate(call.operator.tensors):
        for word, special in (("NaN", np.isnan), ("infinite", np.isinf)):
            holds = each(bool(special(it[place]).any()) for it in groups)
            yield f"an element of {name} is {word}", 1.2, holds
