"""What an element of a case is, in numbers and in words: what failures may have in common.

Each element of each tensor has the same features: those of its node (T, attributes, number of
tensors), of its tensor (types, shapes, length), and its own (position, values). A trait is a
condition on one feature, with the words for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.formula.call import Call

#: Elements of a tensor, and tensors of a node, that are looked at.
_ELEMENTS = 100
_GROUPS = 24
_BLOCKS = (4, 8, 16, 32, 64, 128, 256)
#: Marks an element that is wrong, and not only judged.
WRONG = 2
_MOST = np.finfo(np.float32).max
_POWERS = (2, 4, 6, 10, 18, 30)
_AROUND = tuple(2**power + by for power in range(4, 21) for by in (-1, 0, 1))
_COUNTS = (*range(11), 12, 20, 99, 100, 101, 999, 1000, 1001, *_AROUND)
_STEPS = (-1, *range(12), 99, 100, 101, 1000, 1001, 10**6, 2**24, 2**24 + 1, 2**31, 2**32)


@dataclass(frozen=True, slots=True)
class Trait:
    """A condition on a feature.

    Attributes:
        feature: the feature's column.
        words: says the condition, of an element or of what it is in.
        cost: how far from plain it is; 1 for the plainest.
        holds: tells it of a feature's values, NaN where an element has none.
    """

    feature: int
    words: str
    cost: float
    holds: Callable[[Array], Array]


#: Words, cost and test of a condition.
_Condition: TypeAlias = tuple[str, float, Callable[[Array], Array]]
#: Yields all conditions on a feature, given further numbers at which it may turn if it is a count.
_Conditions: TypeAlias = Callable[[Iterable[float]], Iterable[_Condition]]


def traits(call: Call[Array], seen: Mapping[int, Iterable[float]]) -> Iterator[Trait]:
    """Yield all conditions on the features of an operator.

    Args:
        call: a node of the operator, whichever.
        seen: further numbers at which a count may turn, by its column.
    """
    for column, (_, conditions) in enumerate(_features(call, 0, np.empty(0, int))):
        for condition in conditions(seen.get(column, ())):
            yield Trait(column, *condition)


def _counts(
    words: str, marks: Iterable[float], least: float, seen: Iterable[float]
) -> Iterator[_Condition]:
    """Yield the conditions on a count, of which ``least`` is the smallest that there is."""
    for mark in sorted({*marks, *seen}):
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


def _values(name: str, _: object) -> Iterator[_Condition]:
    for words, cost, holds in (
        ("is 0", 1.0, partial(np.equal, 0)),
        ("is 1", 1.0, partial(np.equal, 1)),
        ("is negative", 1.0, partial(np.greater, 0)),
        ("is positive", 1.1, partial(np.less, 0)),
        ("is above 1", 1.1, partial(np.less, 1)),
        ("is below 1", 1.2, partial(np.greater, 1)),
        ("is NaN", 1.0, np.isnan),
        ("is infinite", 1.0, np.isinf),
        ("is finite, but beyond float32", 1.1, lambda it: np.isfinite(it) & (np.abs(it) > _MOST)),
        ("is not a float32 number", 1.2, lambda it: np.isfinite(it) & (it != it.astype("f"))),
    ):
        yield f"{name} {words}", cost, holds
    for power in _POWERS:
        yield f"{name} is 1e{power} or more in size", 1.2, partial(_far, 10.0**power)
        near = f"{name} is 1e-{power} or less in size, and not 0"
        yield near, 1.2, partial(_near, 10.0**-power)


def _flag(words: str, cost: float, _: object) -> Iterator[_Condition]:
    yield words, cost, partial(np.equal, 1)


def _far(least: float, values: Array) -> Array:
    return np.abs(values) >= least


def _near(most: float, values: Array) -> Array:
    return (values != 0) & (np.abs(values) <= most)


def features(call: Call[Array], marked: Sequence[Array]) -> tuple[Array, Array]:
    """Return the features of a node's elements, and which of them are marked.

    Args:
        call: the node.
        marked: for each tensor, flat, 1 for elements that matter, 2 for those that matter most, 0
            for elements that are to be left out.

    Returns:
        A row for each element and a column for each feature; and the mark of each row.
    """
    rows, marks = [], []
    order = sorted(range(len(call.groups)), key=lambda at: -int(np.max(marked[at], initial=0)))
    chosen = {*order[: _GROUPS // 2], *range(_GROUPS // 4), len(call.groups) - 1}
    for group in sorted(chosen & set(order)):
        kept = _kept(marked[group])
        own = [value for value, _ in _features(call, group, kept)]
        values = np.empty((len(own), kept.size))
        for column, value in zip(values, own, strict=True):
            column[:] = value
        rows.append(values.T)
        marks.append(marked[group][kept])
    return np.concatenate(rows), np.concatenate(marks)


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


def _features(call: Call[Array], group: int, kept: Array) -> Iterator[tuple[Any, _Conditions]]:
    """Yield the features of a tensor's elements at some flat places, with the conditions on them.

    Each is for all elements or one by one, and NaN where there is none. They have one order in all
    nodes of an operator.
    """
    operator, tensors = call.operator, call.groups[group]
    x, first = operator.tensors[0], tensors[0]
    rows, columns = first.shape[-2:] if first.ndim > 1 else (np.nan, np.nan)
    few, many = _COUNTS[:60], (*range(1, 13), *_AROUND[:24])
    yield len(call.groups), partial(_counts, "there {are} {k} tensor{s}", many, 1)
    yield group + 1, partial(_counts, "the tensor's number is {k}", range(1, 10), 1)
    yield first.size, partial(_counts, f"{x} has {{k}} element{{s}}", _COUNTS, 1)
    yield first.ndim, partial(_counts, f"{x} has {{k}} dimension{{s}}", range(9), 0)
    yield rows, partial(_counts, f"{x} has {{k}} row{{s}}", few, 1)
    yield columns, partial(_counts, f"{x} has {{k}} column{{s}}", few, 1)
    yield kept, partial(_counts, "the element's index is {k}", _COUNTS, 0)
    yield kept // columns % rows, partial(_counts, "the element's row is {k}", few, 0)
    yield kept % columns, partial(_counts, "the element's column is {k}", few, 0)
    scalars = list(zip(operator.scalars, call.scalars, strict=True))
    for item, scalar in scalars:
        if "int64" in item.dtypes:
            yield scalar.item(), partial(_counts, f"{item.name} is {{k}}", _STEPS, -np.inf)
    for item, scalar in scalars:
        if "int64" not in item.dtypes:
            yield scalar.item(), partial(_values, item.name)
    for attribute in operator.attributes:
        value = call.attributes[attribute.name]
        number = value[group % len(value)] if isinstance(value, tuple) else value
        yield np.nan if isinstance(number, str) else number, partial(_values, attribute.name)
    for name, tensor in zip(operator.tensors, tensors, strict=True):
        elements = np.broadcast_to(tensor, first.shape).reshape(-1)[kept]
        yield elements, partial(_values, name)
    for words, cost, holds in _flags(call, group, kept):
        yield holds, partial(_flag, words, cost)


def _flags(call: Call[Array], group: int, kept: Array) -> Iterator[tuple[str, float, Any]]:
    """Yield the features that hold or do not: the words of each, their cost, and where it holds."""
    operator, tensors = call.operator, call.groups[group]
    x, first = operator.tensors[0], tensors[0]
    for item, scalar in zip(operator.scalars, call.scalars, strict=True):
        yield f"{item.name} is double", 1, scalar.dtype == np.float64
        yield f"{item.name} has a dimension", 1.5, scalar.ndim > 0
    for attribute in operator.attributes:
        name, value = attribute.name, call.attributes[attribute.name]
        for choice in attribute.choices:
            yield f"{name} is {choice}", 1, value == choice
        yield f"{name} is left out", 1, name in call.omitted
        shares = value if isinstance(value, tuple) else (np.nan,)
        rank = (first.size - 1) * shares[group % len(shares)] / 100
        yield f"{name} falls on a whole rank", 1.5, rank % 1 == 0
        yield f"each tensor has its {name}", 1.5, len(shares) > 1
    for name, tensor in zip(operator.tensors, tensors, strict=True):
        other, rank = tensor.shape != first.shape, tensor.ndim
        yield f"{name} is double", 1.1, tensor.dtype == np.float64
        yield f"{name} broadcasts to {x}", 1.3, other
        yield f"{name} has no dimension and {x} has", 1.3, other and rank == 0
        yield f"{name} has fewer dimensions than {x}", 1.3, rank < first.ndim
        yield f"{name} has one element and {x} has more", 1.3, other and tensor.size == 1
        inner = "has an inner dimension of one and as many as"
        yield f"{name} {inner} {x}", 1.3, other and rank == first.ndim
    doubles = [it.dtype == np.float64 for it in tensors]
    yield "a tensor is double", 1, any(doubles)
    yield "a tensor is float32", 1, not all(doubles)
    yield "types are mixed within a tensor's group", 1, any(doubles) and not all(doubles)
    yield f"an operand broadcasts to {x}", 1, any(it.shape != first.shape for it in tensors)
    rate = next((it.dtype for it in call.scalars if it.dtype.kind == "f"), first.dtype)
    yield f"R's type is not that of {x}", 1, rate != first.dtype
    yield "the element is the last one", 1, kept == first.size - 1
    yield "the tensor is the last of several", 1, 0 < group == len(call.groups) - 1
    yield "a tensor of the node has no element", 1, any(it.size == 0 for it, *_ in call.groups)
    for block in _BLOCKS:
        tail = kept >= first.size - first.size % block
        yield f"the element is one of the last n mod {block} of n", 1.2, tail
        yield f"{x}'s length is a multiple of {block}", 1.2, first.size % block == 0
        yield f"the element's index is a multiple of {block}", 1.3, kept % block == 0
