"""What an element of a case is, in numbers and in words: what failures may have in common.

Each element of each tensor has the same features: those of its node (T, attributes, number of
tensors), of its tensor (types, shapes, length), and its own (position, values). A trait is a
condition on one feature, with the words for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.formula.call import Call
from onnxopt_cli.formula.operator import Operator

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


def traits(operator: Operator, seen: Mapping[str, Iterable[float]]) -> Iterator[Trait]:
    """Yield all conditions on an operator's features.

    Args:
        operator: whose nodes are looked at.
        seen: further numbers at which an integer feature may turn, by its name.
    """
    first = operator.tensors[0]
    whole: dict[str, tuple[str, Sequence[int]]] = {
        "tensors": ("there {are} {k} tensors", (*range(1, 13), *_AROUND[:24])),
        "tensor": ("in tensor {k} of the node", range(1, 10)),
        "length": (f"{first} has {{k}} elements", _COUNTS),
        "rank": (f"{first} has {{k}} dimensions", range(9)),
        "rows": (f"{first} has {{k}} rows", _COUNTS[:60]),
        "columns": (f"{first} has {{k}} columns", _COUNTS[:60]),
        "index": ("the element's index is {k}", _COUNTS),
        "row": ("the element's row is {k}", _COUNTS[:60]),
        "column": ("the element's column is {k}", _COUNTS[:60]),
    }
    counts = [it.name for it in operator.scalars if "int64" in it.dtypes]
    whole |= {name: (f"{name} is {{k}}", _STEPS) for name in counts}
    for feature, (words, marks) in whole.items():
        yield from _counts(feature, words, sorted({*marks, *seen.get(feature, ())}))
    rates = [it.name for it in operator.scalars if it.name not in counts]
    for name in (*rates, *(it.name for it in operator.attributes), *operator.tensors):
        yield from _values(name)
    for feature, words, cost in _flags(operator, first):
        yield Trait(feature, words, cost, lambda values: values == 1)


def _flags(operator: Operator, first: str) -> Iterator[tuple[str, str, float]]:
    """Yield features that hold or do not, with words and cost."""
    for scalar in operator.scalars:
        yield f"{scalar.name} double", f"{scalar.name} is double", 1
        yield f"{scalar.name} ranked", f"{scalar.name} has a dimension", 1.5
    for attribute in operator.attributes:
        name = attribute.name
        for choice in attribute.choices:
            yield f"{name} {choice}", f"{name} is {choice}", 1
        yield f"{name} omitted", f"{name} is left out", 1
        yield f"{name} rank", f"{name} falls on a whole rank", 1.5
        yield f"{name} many", f"each tensor has its {name}", 1.5
    for name in operator.tensors:
        yield f"{name} double", f"{name} is double", 1.1
        for what, (words, _) in _SHAPES.items():
            yield f"{name} {what}", f"{name} {words.format(first)}", 1.3
    for feature, words in _FLAGS.items():
        yield feature, words.format(first), 1
    for block in _BLOCKS:
        yield f"tail {block}", f"the element is one of the last n mod {block} of n", 1.2
        yield f"length mod {block}", f"{first}'s length is a multiple of {block}", 1.2
        yield f"index mod {block}", f"the element's index is a multiple of {block}", 1.3


#: Of a tensor whose shape is not that of the first one: words, and whether it is so of the two.
_SHAPES: dict[str, tuple[str, Callable[[Array, Array], bool]]] = {
    "broadcasts": ("broadcasts to {}", lambda _tensor, _first: True),
    "scalar": ("has no dimension and {} has", lambda tensor, _: tensor.ndim == 0),
    "lower": ("has fewer dimensions than {}", lambda tensor, first: tensor.ndim < first.ndim),
    "one": ("has one element and {} has more", lambda tensor, _: tensor.size == 1),
    "inner": (
        "has an inner dimension of one and as many as {}",
        lambda tensor, first: tensor.ndim == first.ndim,
    ),
}
_FLAGS = {
    "any double": "a tensor is double",
    "any float": "a tensor is float32",
    "mixed": "types are mixed within a tensor's group",
    "any broadcasts": "an operand broadcasts to {}",
    "differs": "R's type is not that of {}",
    "last": "the element is the last one",
    "last tensor": "in the last of several tensors",
    "any empty": "a tensor of the node has no element",
}


def _counts(feature: str, words: str, marks: Sequence[float]) -> Iterator[Trait]:
    for mark in marks:
        k = int(mark)
        # Plain are small numbers and those at a power of two.
        cost = 0.0 if k in (0, 1, 2) or (k - 1) & (k - 2) == 0 or k & (k - 1) == 0 else 0.1
        for number, are, own_cost, holds in (
            (f"{k}", "is" if k == 1 else "are", 1.02, np.equal),
            (f"at least {k}", "are", 1.0, np.less_equal),
            (f"at most {k}", "are", 1.05 if k else 1.2, np.greater_equal),
        ):
            text = words.format(k=number, are=are)
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


@cache
def feature_places(operator: Operator) -> dict[str, int]:
    """Return the names of an operator's features, and the column of each."""
    names = dict.fromkeys(it.feature for it in traits(operator, {}))
    return {name: place for place, name in enumerate(names)}


def features(call: Call[Array], marked: Sequence[Array]) -> tuple[Array, Array]:
    """Return the features of a node's elements, and which of them are marked.

    Args:
        call: the node.
        marked: for each tensor, flat, 1 for elements that matter, 2 for those that matter most, 0
            for elements that are to be left out.

    Returns:
        A row for each element and a column for each feature; and the mark of each row.
    """
    operator = call.operator
    places = feature_places(operator)
    empty = any(first.size == 0 for first, *_ in call.groups)
    common: dict[str, Any] = {"tensors": len(call.groups), "any empty": empty}
    for item, scalar in zip(operator.scalars, call.scalars, strict=True):
        common[item.name] = scalar.item()
        common[f"{item.name} double"] = scalar.dtype == np.float64
        common[f"{item.name} ranked"] = scalar.ndim > 0
    for attribute in operator.attributes:
        value = call.attributes[attribute.name]
        common[f"{attribute.name} omitted"] = attribute.name in call.omitted
        common[f"{attribute.name} {value}"] = True
        if isinstance(value, float):
            common[attribute.name] = value
    rows, marks = [], []
    order = sorted(range(len(call.groups)), key=lambda at: -int(np.max(marked[at], initial=0)))
    chosen = {*order[: _GROUPS // 2], *range(_GROUPS // 4), len(call.groups) - 1}
    for group in sorted(chosen & set(order)):
        kept = _kept(marked[group])
        if not kept.size:
            continue
        values = np.full((len(places), kept.size), np.nan)
        own = common | _of_group(call, group) | _of_elements(call, group, kept)
        for name, value in own.items():
            if name in places:
                values[places[name]] = value
        rows.append(values.T)
        marks.append(marked[group][kept])
    if not rows:
        return np.empty((0, len(places))), np.empty(0, int)
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


def _of_group(call: Call[Array], group: int) -> dict[str, Any]:
    operator, tensors = call.operator, call.groups[group]
    first = tensors[0]
    doubles = [it.dtype == np.float64 for it in tensors]
    rate = next((it.dtype for it in call.scalars if it.dtype.kind == "f"), first.dtype)
    own: dict[str, Any] = {
        "tensor": group + 1,
        "last tensor": len(call.groups) > 1 and group == len(call.groups) - 1,
        "length": first.size,
        "rank": first.ndim,
        "any double": any(doubles),
        "any float": not all(doubles),
        "mixed": any(doubles) and not all(doubles),
        "any broadcasts": any(it.shape != first.shape for it in tensors),
        "differs": rate != first.dtype,
    }
    if first.ndim > 1:
        own |= {"rows": first.shape[-2], "columns": first.shape[-1]}
    for block in _BLOCKS:
        own[f"length mod {block}"] = first.size % block == 0
    for name, tensor, double in zip(operator.tensors, tensors, doubles, strict=True):
        own[f"{name} double"] = double
        for what, (_, holds) in _SHAPES.items():
            own[f"{name} {what}"] = tensor.shape != first.shape and holds(tensor, first)
    for attribute in operator.attributes:
        value = call.attributes[attribute.name]
        if isinstance(value, tuple):
            number = value[group if len(value) > 1 else 0]
            rank = (first.size - 1) * number / 100
            own |= {attribute.name: number, f"{attribute.name} rank": rank == round(rank)}
            own[f"{attribute.name} many"] = len(value) > 1
    return own


def _of_elements(call: Call[Array], group: int, kept: Array) -> dict[str, Any]:
    first = call.groups[group][0]
    own: dict[str, Any] = {"index": kept, "last": kept == first.size - 1}
    if first.ndim > 1:
        own["column"] = kept % first.shape[-1]
        own["row"] = kept // first.shape[-1] % first.shape[-2]
    for block in _BLOCKS:
        own[f"tail {block}"] = kept >= first.size - first.size % block
        own[f"index mod {block}"] = kept % block == 0
    for name, tensor in zip(call.operator.tensors, call.groups[group], strict=True):
        own[name] = np.broadcast_to(tensor, first.shape).reshape(-1)[kept]
    return own
