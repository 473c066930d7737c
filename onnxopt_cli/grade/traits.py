"""What an element of a case is, in numbers and in words: what failures may have in common.

Each element of each tensor has the same features: those of its node (T, attributes, number of
tensors), of its tensor (types, shapes, length), and its own (position, values). A trait is a
condition on one feature, with the words for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.formula.call import Call

#: Elements of a tensor, and tensors of a node, that are looked at.
_ELEMENTS = 100
_GROUPS = 24
_BLOCKS = (4, 8, 16, 32, 64, 128, 256)
#: Marks an element that is wrong, and not only judged.
WRONG = 2
_POWERS = (2, 4, 6, 10, 18, 30)
_AROUND = tuple(2**power + by for power in range(4, 21) for by in (-1, 0, 1))
_COUNTS = (*range(11), 12, 20, 99, 100, 101, 999, 1000, 1001, *_AROUND)
_STEPS = (-1, *range(12), 99, 100, 101, 1000, 1001, 10**6, 2**24, 2**24 + 1, 2**31, 2**32)


@dataclass(frozen=True, slots=True)
class Trait:
    """A condition on a feature.

    Attributes:
        feature: the feature's name.
        words: says the condition, of an element or of what it is in.
        cost: how far from plain it is; 1 for the plainest.
        holds: tells it of a feature's values, NaN where an element has none.
    """

    feature: str
    words: str
    cost: float
    holds: Callable[[Array], Array]


def traits(call: Call[Array], seen: Mapping[str, Iterable[float]]) -> Iterator[Trait]:
    """Yield all conditions on the features of an operator.

    Args:
        call: a node of the operator, whichever.
        seen: further numbers at which an integer feature may turn, by its name.
    """
    operator = call.operator
    first = operator.tensors[0]
    # Of each the smallest number that there is: it, or more, holds everywhere.
    whole: dict[str, tuple[str, Sequence[int], float]] = {
        "tensors": ("there {are} {k} tensor{s}", (*range(1, 13), *_AROUND[:24]), 1),
        "tensor": ("the tensor's number is {k}", range(1, 10), 1),
        "length": (f"{first} has {{k}} element{{s}}", _COUNTS, 1),
        "rank": (f"{first} has {{k}} dimension{{s}}", range(9), 0),
        "rows": (f"{first} has {{k}} row{{s}}", _COUNTS[:60], 1),
        "columns": (f"{first} has {{k}} column{{s}}", _COUNTS[:60], 1),
        "index": ("the element's index is {k}", _COUNTS, 0),
        "row": ("the element's row is {k}", _COUNTS[:60], 0),
        "column": ("the element's column is {k}", _COUNTS[:60], 0),
    }
    counts = [it.name for it in operator.scalars if "int64" in it.dtypes]
    whole |= {name: (f"{name} is {{k}}", _STEPS, -np.inf) for name in counts}
    for feature, (words, marks, least) in whole.items():
        yield from _counts(feature, words, sorted({*marks, *seen.get(feature, ())}), least)
    rates = [it.name for it in operator.scalars if it.name not in counts]
    for name in (*rates, *(it.name for it in operator.attributes), *operator.tensors):
        yield from _values(name)
    for words, cost, _ in _flags(call, 0, _NOWHERE):
        yield Trait(words, words, cost, partial(np.equal, 1))


def _counts(feature: str, words: str, marks: Sequence[float], least: float) -> Iterator[Trait]:
    for mark in marks:
        k = int(mark)
        # Plain are small numbers and those at a power of two.
        cost = 0.0 if k in (0, 1, 2) or (k - 1) & (k - 2) == 0 or k & (k - 1) == 0 else 0.1
        for number, are, own_cost, holds in (
            (f"{k}", "is" if k == 1 else "are", 1.02, np.equal),
            (f"at least {k}", "are", 1.0, np.less_equal),
            (f"at most {k}", "are", 1.05 if k else 1.2, np.greater_equal),
        ):
            if holds is np.less_equal and k <= least:
                continue
            text = words.format(k=number, are=are, s="s" * (k != 1))
            yield Trait(feature, text, own_cost + cost, partial(holds, k))


def _values(name: str) -> Iterator[Trait]:
    for words, cost, holds in (
        ("is 0", 1.0, partial(np.equal, 0)),
        ("is 1", 1.0, partial(np.equal, 1)),
        ("is negative", 1.0, partial(np.greater, 0)),
        ("is positive", 1.1, partial(np.less, 0)),
        ("is above 1", 1.1, partial(np.less, 1)),
        ("is below 1", 1.2, partial(np.greater, 1)),
        ("is NaN", 1.0, np.isnan),
        ("is infinite", 1.0, np.isinf),
        ("is finite, but beyond float32", 1.1, _beyond),
        ("is not a float32 number", 1.2, _fine),
    ):
        yield Trait(name, f"{name} {words}", cost, holds)
    for power in _POWERS:
        far, near = f"{name} is 1e{power} or more in size", f"{name} is 1e-{power} or less in size"
        yield Trait(name, far, 1.2, partial(_far, 10.0**power))
        yield Trait(name, f"{near}, and not 0", 1.2, partial(_near, 10.0**-power))


def _beyond(values: Array) -> Array:
    return np.isfinite(values) & (np.abs(values) > np.finfo(np.float32).max)


def _fine(values: Array) -> Array:
    return np.isfinite(values) & (values != values.astype(np.float32))


def _far(least: float, values: Array) -> Array:
    return np.abs(values) >= least


def _near(most: float, values: Array) -> Array:
    return (values != 0) & (np.abs(values) <= most)


def feature_places(call: Call[Array]) -> dict[str, int]:
    """Return the names of the features that nodes of an operator have, and the column of each."""
    return {name: place for place, name in enumerate(_features(call, 0, _NOWHERE))}


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
        own = _features(call, group, kept)
        values = np.empty((len(own), kept.size))
        for place, value in enumerate(own.values()):
            values[place] = value
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


_NOWHERE = np.empty(0, int)


def _features(call: Call[Array], group: int, kept: Array) -> dict[str, Any]:
    """Return the features of a tensor's elements at some flat places, each for all or one by one.

    They have one order in all nodes of an operator.
    """
    flags = {words: holds for words, _, holds in _flags(call, group, kept)}
    return _numbers(call, group, kept) | flags


def _numbers(call: Call[Array], group: int, kept: Array) -> dict[str, Any]:
    """Return the features that are numbers, NaN where there is none."""
    operator, tensors = call.operator, call.groups[group]
    first = tensors[0]
    own: dict[str, Any] = {
        "tensors": len(call.groups),
        "tensor": group + 1,
        "length": first.size,
        "rank": first.ndim,
        "index": kept,
        **dict.fromkeys(("rows", "columns", "row", "column"), np.nan),
    }
    if first.ndim > 1:
        rows, columns = first.shape[-2:]
        own |= {"rows": rows, "columns": columns}
        own |= {"row": kept // columns % rows, "column": kept % columns}
    for item, scalar in zip(operator.scalars, call.scalars, strict=True):
        own[item.name] = scalar.item()
    for name, value in call.attributes.items():
        number = value[group % len(value)] if isinstance(value, tuple) else value
        own[name] = np.nan if isinstance(number, str) else number
    for name, tensor in zip(operator.tensors, tensors, strict=True):
        own[name] = np.broadcast_to(tensor, first.shape).reshape(-1)[kept]
    return own


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
