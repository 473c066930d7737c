"""Plant faults that nobody has listed, and count how many of them the suites reject.

    python scripts/planted_faults.py --seed 1 [--faults 100] [--operators FILE] [SUITE]...

A fault changes the result where one or two conditions on the input hold: "the last n mod 16
elements are stale where the tensor has more than 8 elements and V is negative". It is visible if at
least one of 2,000 inputs, drawn from the whole space, exceeds the limit of what a right
implementation may be off. Of visible faults the suites have to reject nearly all. Inputs and faults
share no code with what makes the suites. Prints a table by kind, and the faults that were missed.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from onnxopt_cli.cases.collect import collect
from onnxopt_cli.core.compare import compare_outputs
from onnxopt_cli.errors import NodeError
from onnxopt_cli.formula.call import Call, bind, complete_attributes
from onnxopt_cli.formula.operator import Operator
from onnxopt_cli.operators import OPERATORS, add_operators
from onnxopt_cli.readings.bound.bound import bound
from onnxopt_cli.readings.evaluate import evaluate
from onnxopt_cli.readings.single_node import sole_call

DRAWS = 2000
ENOUGH = 0.95, 0.99


class Part:
    """A node of one group, or of all where something is carried over them: what is right."""

    def __init__(self, call: Call[Any]) -> None:
        self.call = call

    @cached_property
    def expected(self) -> list[Any]:
        """The right outputs, in the node's order."""
        return evaluate(self.call)

    @cached_property
    def budgets(self) -> list[Any]:
        """How far off each may be."""
        return [it.budget for it in bound(self.call)]

    def exceeds(self, place: int, returned: Any) -> bool:
        """Tell whether an output is further off than it may be."""
        right = self.expected[place]
        if returned.shape != right.shape or returned.dtype != right.dtype:
            return True
        if np.array_equal(returned, right, equal_nan=True):
            return False
        budget = self.budgets[place]
        (diff,) = compare_outputs({"": right}, [returned], lambda _: budget, worst=0)
        return not diff.agrees


class Node:
    """A node with its inputs; its groups are judged one by one where they can be."""

    def __init__(self, call: Call[Any], name: str = "") -> None:
        self.call, self.name = call, name
        self.whole = any(map(call.operator.carries, call.operator.outputs))
        self._parts: dict[int, Part] = {}

    def elements(self) -> int:
        """Return the number of elements of the tensors that come first in their groups."""
        return sum(first.size + 1 for first, *_ in self.call.groups)

    def part(self, group: int) -> Part:
        """Return the part that a group belongs to."""
        if self.whole:
            group = 0
        if group not in self._parts:
            own = {
                name: (it[min(group, len(it) - 1)],) if isinstance(it, tuple) else it
                for name, it in self.call.attributes.items()
            }
            single = replace(self.call, groups=(self.call.groups[group],), attributes=own)
            self._parts[group] = Part(self.call if self.whole else single)
        return self._parts[group]


# ---------------------------------------------------------------- what is drawn

LENGTHS = [*range(10), 12, 15, 16, 17, 20, 31, 32, 33, 48, 63, 64, 65, 100, 127, 128, 129, 255, 256]
LENGTHS += [257, 500, 1023, 1024, 1025]
NUMBERS = [*[1] * 24, *[2] * 8, 3, 3, 4, 5, 8, 8, 9, 9, 10, 16, 17, 20, 33, 65, 129]
COUNTS = [0, 1, 2, 3, 5, 10, 100, 1000, 10**6, 2**24 + 1, 2**31 - 1, 2**31 + 7, 2**32 + 1, -1, -5]


def draw(operator: Operator, random: np.random.RandomState) -> Call[Any]:
    """Draw a node: any number and shape of tensors, any values."""
    number = int(random.choice(NUMBERS))
    wide = random.rand() < 0.3
    inputs: list[Any] = []
    for scalar in operator.scalars:
        shape = (1,) * int(random.choice([0, 0, 0, 1, 2]))
        if "int64" in scalar.dtypes:
            inputs.append(np.full(shape, random.choice(COUNTS), np.int64))
        else:
            value = random.choice([0.1, 0.5, 1.0, random.rand(), 0.0, -0.3, 1e-6, 30.0])
            inputs.append(np.full(shape, value, ["f4", "f8"][random.rand() < (0.8 * wide + 0.1)]))
    shapes = [draw_shape(random, small=number > 4) for _ in range(number)]
    for name in operator.tensors:
        for shape in shapes:
            own = shape
            if name != operator.tensors[0] and random.rand() < 0.3:
                own = narrower(shape, random)
            dtype = ["f4", "f8"][int(random.rand() < (0.85 if wide else 0.05))]
            inputs.append(draw_values(own, dtype, random, positive=name == "H"))
    attributes: dict[str, Any] = {}
    for item in operator.attributes:
        if item.choices:
            attributes[item.name] = str(random.choice(item.choices))
        elif item.default is None or random.rand() < 0.85:
            number_drawn = draw_number(item.limits, random, len(inputs), shapes)
            attributes[item.name] = (number_drawn,) if item.each else number_drawn
    complete = complete_attributes(operator, attributes)
    omitted = frozenset(item.name for item in operator.attributes) - attributes.keys()
    return bind(operator, inputs, complete, omitted=omitted)


def draw_number(limits: Any, random: np.random.RandomState, _: int, shapes: Any) -> float:
    if limits is None:
        return float(
            random.choice(
                [*random.random_sample(3), 0.9, 0.999, 0.1, 0.0, 1.0, -1.0, -0.5, 1e-6, 1e-8, 30.0]
            )
        )
    least, most = limits
    size = max(1, int(np.prod(shapes[0])))
    whole = random.randint(size) / max(1, size - 1)
    share = random.choice(
        [random.rand(), 0.0, 1.0, 0.5, 0.14, 0.28, 0.56, whole, whole, whole + 1e-6, whole - 1e-6]
    )
    return float(np.clip(np.float32(least + share * (most - least)), least, most))


def draw_shape(random: np.random.RandomState, *, small: bool) -> tuple[int, ...]:
    kind = random.rand()
    if kind < 0.5:
        lengths = [it for it in LENGTHS if it < 300] if small else LENGTHS
        return (int(random.choice(lengths)),)
    if kind < 0.7:
        edge = int(
            random.choice([1, 2, 3, 5, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257])
        )
        other = int(random.choice([1, 1, 2, 3, 7, 16, 33]))
        return ((edge, other), (other, edge))[random.randint(2)]
    if kind < 0.8:
        return ()
    rank = random.randint(2, 8)
    return tuple(int(it) for it in random.choice([1, 2, 3] if rank > 4 else [1, 2, 3, 4, 5], rank))


def narrower(shape: tuple[int, ...], random: np.random.RandomState) -> tuple[int, ...]:
    if not shape:
        return shape
    way = random.randint(6)
    if way == 0:
        return ()
    if way == 1:
        return (1,)
    if way == 2:
        return (1,) * len(shape)
    if way == 3:
        return shape[1:]
    axis = random.randint(len(shape))
    return (*shape[:axis], 1, *shape[axis + 1 :])


def draw_values(shape: Any, dtype: str, random: np.random.RandomState, *, positive: bool) -> Any:
    values = random.standard_normal(shape)
    style = random.rand()
    if style < 0.15:
        values = values * 10.0 ** random.uniform(-9, 9)
    elif style < 0.5:
        scales = [0, 0, 1e-6, 1e-9, 1e-20, 1e6, 1e10, 1e15, 1, 1, 1, 1]
        if dtype == "f8":
            scales += [1e50, 1e-50, 1e100, 1e-100]
        values = values * random.choice(scales, shape)
    elif style < 0.55:
        values = np.round(values)
    if positive and random.rand() < 0.95:
        values = np.abs(values)
    if random.rand() < 0.03 and np.size(values):
        values = np.where(random.rand(*np.shape(values)) < 0.1, np.inf, values)
    with np.errstate(all="ignore"):
        return np.asarray(values, dtype)


# ---------------------------------------------------------------- conditions


@dataclass(frozen=True)
class Condition:
    """Where a fault shows: in a group, or in elements of it; the function returns a mask."""

    text: str
    holds: Callable[[Call[Any], int], Any]


def first(call: Call[Any], group: int) -> Any:
    return call.groups[group][0]


def attribute_of(call: Call[Any], name: str) -> float:
    value = call.attributes[name]
    return value[0] if isinstance(value, tuple) else value


def numeric(operator: Operator) -> list[str]:
    return [item.name for item in operator.attributes if not item.choices]


def free(operator: Operator) -> list[str]:
    return [it.name for it in operator.attributes if not it.choices and not it.limits]


Rule = Callable[[Operator, np.random.RandomState], "Condition | None"]


def pick(items: Sequence[Any], random: np.random.RandomState) -> Any:
    return items[random.randint(len(items))]


def on_broadcast(operator: Operator, random: np.random.RandomState) -> Condition | None:
    if len(operator.tensors) == 1:
        return None
    place = random.randint(1, len(operator.tensors))
    name = operator.tensors[place]
    way = pick(["of lower rank", "with inner 1", "0-d", "[1]", "all ones", "broadcast"], random)

    def holds(call: Call[Any], group: int) -> bool:
        whole, own = call.groups[group][0].shape, call.groups[group][place].shape
        if whole == own:
            return False
        return bool({
            "of lower rank": 0 < len(own) < len(whole),
            "with inner 1": len(own) == len(whole) and len(own) > 0 and own[-1] == 1 != whole[-1],
            "0-d": own == (),
            "[1]": own == (1,),
            "all ones": len(own) > 1 and set(own) == {1},
            "broadcast": True,
        }[way])  # fmt: skip

    return Condition(f"{name} is {way}", holds)


def on_attribute(operator: Operator, random: np.random.RandomState) -> Condition | None:
    names = free(operator)
    if not names:
        return None
    name, value = (
        pick(names, random),
        pick([0.0, 1.0, -1.0, "left out", "negative", "above 1"], random),
    )

    def holds(call: Call[Any], _: int) -> bool:
        now = attribute_of(call, name)
        if value == "left out":
            return name in call.omitted
        return bool(
            now < 0 if value == "negative" else now > 1 if value == "above 1" else now == value
        )

    return Condition(f"{name} is {value}", holds)


def on_small_attribute(operator: Operator, random: np.random.RandomState) -> Condition | None:
    names = free(operator)
    if not names:
        return None
    name, limit = pick(names, random), pick([1e-3, 1e-5], random)
    return Condition(
        f"0 < {name} < {limit}",
        lambda call, _: 0 < attribute_of(call, name) < limit and name not in call.omitted,
    )


def on_many(_: Operator, random: np.random.RandomState) -> Condition:
    way = random.randint(4)
    number = int(pick([1, 2, 3, 7, 8, 9, 16, 32, 64], random))
    if way == 0:
        return Condition(f"of {number} tensors", lambda call, _: len(call.groups) == number)
    if way == 1:
        return Condition(f"in tensor {number}", lambda call, group: group + 1 == number)
    if way == 2:
        return Condition(f"from tensor {number + 1} on", lambda _, group: group >= number)
    return Condition(f"more than {number} tensors", lambda call, _: len(call.groups) > number)


def on_length(_: Operator, random: np.random.RandomState) -> Condition:
    block = int(pick([2, 3, 4, 8, 16, 32, 64, 128, 256, 1024], random))
    way = random.randint(6)

    def index(call: Call[Any], group: int) -> Any:
        return np.arange(first(call, group).size).reshape(first(call, group).shape)

    def size(call: Call[Any], group: int) -> int:
        return first(call, group).size

    if way == 0:
        exact = int(pick([1, 2, 3, 4, 5, 6, 7, 8, 9, block - 1, block, block + 1], random))
        return Condition(f"{exact} elements", lambda call, group: size(call, group) == exact)
    if way == 1:
        return Condition(
            f"in the last n mod {block} elements",
            lambda c, g: index(c, g) >= size(c, g) // block * block,
        )
    if way == 2:
        return Condition(f"from element {block} on", lambda c, g: index(c, g) >= block)
    if way == 3:
        return Condition(
            f"in the last of a multiple of {block}",
            lambda c, g: (index(c, g) == size(c, g) - 1) & (size(c, g) % block == 0),
        )
    if way == 4:
        return Condition(
            f"in element {block - 1} of each {block}", lambda c, g: index(c, g) % block == block - 1
        )
    return Condition(f"more than {block} elements", lambda c, g: size(c, g) > block)


def on_tile(_: Operator, random: np.random.RandomState) -> Condition:
    axis, edge = random.randint(2), int(pick([32, 64, 128, 256], random))
    word = ("row", "column")[axis]

    def holds(call: Call[Any], group: int) -> Any:
        shape = first(call, group).shape
        if len(shape) != 2:
            return False
        return np.broadcast_to(np.indices(shape)[axis] >= edge, shape)

    def exact(call: Call[Any], group: int) -> bool:
        shape = first(call, group).shape
        return len(shape) == 2 and shape[axis] == edge

    if random.rand() < 0.25:
        return Condition(f"a matrix of {edge} {word}s", exact)
    return Condition(f"from {word} {edge} of a matrix on", holds)


def on_rank(_: Operator, random: np.random.RandomState) -> Condition:
    rank = int(pick([2, 3, 4, 5, 6], random))
    if random.rand() < 0.3:
        return Condition(f"of rank {rank}", lambda c, g: first(c, g).ndim == rank)
    return Condition(f"of rank {rank} and more", lambda c, g: first(c, g).ndim >= rank)


def on_single(operator: Operator, random: np.random.RandomState) -> Condition:
    shape = pick([(), (1,), (1, 1), (1, 1, 1)], random)
    place = random.randint(len(operator.tensors))
    name = operator.tensors[place]
    return Condition(f"{name} of shape {shape}", lambda c, g: c.groups[g][place].shape == shape)


def on_type(operator: Operator, random: np.random.RandomState) -> Condition:
    place = random.randint(len(operator.tensors))
    wide = random.rand() < 0.7
    name, word = operator.tensors[place], "double" if wide else "float"
    return Condition(f"{name} is {word}", lambda c, g: (c.groups[g][place].dtype == "f8") == wide)


def on_count(operator: Operator, random: np.random.RandomState) -> Condition | None:
    places = [i for i, it in enumerate(operator.scalars) if "int64" in it.dtypes]
    if not places:
        return None
    text, test = pick(
        [
            ("T is 0", lambda t: t == 0), ("T is 1", lambda t: t == 1),
            ("T is 2", lambda t: t == 2),
            ("T is negative", lambda t: t < 0), ("T above 100", lambda t: t > 100),
            ("T above 2^24", lambda t: t > 2**24), ("T above 2^31", lambda t: t >= 2**31),
            ("T above 2^32", lambda t: t > 2**32), ("T positive", lambda t: t > 0),
        ],
        random,
    )  # fmt: skip
    return Condition(text, lambda c, _: bool(test(int(c.scalars[places[0]].reshape(())))))


def on_scalar(operator: Operator, random: np.random.RandomState) -> Condition | None:
    places = [i for i, it in enumerate(operator.scalars) if "int64" not in it.dtypes]
    if not places:
        return None
    place = places[0]
    name = operator.scalars[place].name
    text, test = pick(
        [
            ("is 0", lambda r: r == 0), ("is 1", lambda r: r == 1),
            ("is negative", lambda r: r < 0),
            ("is above 10", lambda r: r > 10), ("is tiny", lambda r: 0 < abs(r) < 1e-4),
            ("is a double", lambda r: r.dtype == "f8"), ("has dimensions", lambda r: r.ndim > 0),
        ],
        random,
    )  # fmt: skip
    return Condition(f"{name} {text}", lambda c, _: bool(np.all(test(c.scalars[place]))))


def on_values(operator: Operator, random: np.random.RandomState) -> Condition:
    place = random.randint(len(operator.tensors))
    text, test = pick(
        [
            ("negative", lambda v: v < 0), ("zero", lambda v: v == 0),
            ("positive", lambda v: v > 0),
            ("tiny", lambda v: (v != 0) & (np.abs(v) < 1e-5)),
            ("huge", lambda v: (np.abs(v) > 1e5) & np.isfinite(v)),
            ("below 1", lambda v: np.abs(v) < 1), ("above 1", lambda v: np.abs(v) > 1),
        ],
        random,
    )  # fmt: skip

    def holds(call: Call[Any], group: int) -> Any:
        whole = call.groups[group][0].shape
        with np.errstate(all="ignore"):
            return np.broadcast_to(test(call.groups[group][place]), whole)

    return Condition(f"{operator.tensors[place]} is {text}", holds)


def on_wide(operator: Operator, random: np.random.RandomState) -> Condition:
    place = random.randint(len(operator.tensors))
    text, test = pick(
        [
            ("beyond float32", lambda v: (np.abs(v) > 3.5e38) & np.isfinite(v)),
            ("below float32", lambda v: (v != 0) & (np.abs(v) < 1e-46)),
            ("not a float32", lambda v: v.astype("f4") != v),
        ],
        random,
    )

    def holds(call: Call[Any], group: int) -> Any:
        own = call.groups[group][place]
        with np.errstate(all="ignore"):
            found = test(own) if own.dtype == "f8" else np.zeros(own.shape, bool)
            return np.broadcast_to(found, call.groups[group][0].shape)

    return Condition(f"the double {operator.tensors[place]} is {text}", holds)


def on_percent(operator: Operator, random: np.random.RandomState) -> Condition | None:
    names = [it for it in operator.attributes if it.limits]
    if not names:
        return None
    item = names[0]
    least, most = item.limits or (0, 1)
    way = pick(
        ["at", "just below", "just above", "thousands", "infinite", "least", "largest"], random
    )

    def holds(call: Call[Any], group: int) -> bool:
        size = first(call, group).size
        value = call.attributes[item.name]
        share = (value[min(group, len(value) - 1)] - least) / (most - least)
        rank = share * (size - 1)
        off = rank - round(rank)
        if way == "infinite":
            return bool(np.isinf(first(call, group)).any())
        if way in ("least", "largest"):
            return share == (0 if way == "least" else 1)
        if way == "thousands":
            return size > 1000
        near = 0 < share < 1 and abs(off) < 1e-2
        return bool(
            near
            and {"at": abs(off) < 1e-9, "just below": -1e-2 < off < 0, "just above": off > 0}[way]
        )

    return Condition(f"the rank is {way}", holds)


# ---------------------------------------------------------------- changes


@dataclass(frozen=True)
class Fault:
    """A wrong implementation: right but where its conditions hold."""

    kind: str
    operator: Operator
    conditions: tuple[Condition, ...]
    change: str
    output: str
    about: tuple[Any, ...]

    def __str__(self) -> str:
        where = " and ".join(it.text for it in self.conditions)
        what = f"{self.operator.name}: {self.change} {self.about}"
        return f"{what} of {self.output or 'all'} where {where}"

    def shows(self, node: Node) -> bool:
        """Tell whether the fault makes a node's result exceed its limit."""
        call = node.call
        with np.errstate(all="ignore"):
            for group, tensors in enumerate(call.groups):
                mask = np.True_
                for condition in self.conditions:
                    mask = mask & np.asarray(condition.holds(call, group))
                    if not np.any(mask):
                        break
                else:
                    part = node.part(group)
                    mask = np.broadcast_to(mask, tensors[0].shape)
                    place = group if node.whole else 0
                    if any(part.exceeds(*it) for it in self._wrong(part, place, mask)):
                        return True
        return False

    def _wrong(self, part: Part, group: int, mask: Any) -> Iterator[tuple[int, Any]]:
        """Yield the outputs that the fault changes where it shows, by their place."""
        call, change, operator = part.call, self.change, self.operator
        other = None
        if change in ("operand", "rounded", "attribute"):
            try:
                other = evaluate(self._other_call(call, group))
            except NodeError:
                return
        for place, (name, like) in enumerate(operator.outputs.items()):
            if self.output and name != self.output:
                continue
            right = part.expected[place]
            if change == "shape":
                yield place, right.reshape((1,) if right.shape == () else -1)[..., None]
                continue
            everywhere = operator.carries(name) or change == "reversed"
            source = self._input(call, like, group) if change == "stale" else right
            value = other[place] if other is not None else self._changed(right, source)
            where = np.ones(right.shape, bool) if everywhere else mask
            yield place, np.where(where, value, right).astype(right.dtype)

    def _changed(self, right: Any, source: Any) -> Any:
        """Return what comes instead of a right output; the source is what is stale."""
        if self.change == "scaled":
            return right * right.dtype.type(1 + self.about[0])
        if self.change == "zero":
            return np.zeros_like(right)
        if self.change == "stale":
            return np.broadcast_to(source, right.shape)
        return right.T.reshape(right.shape) if self.change == "reversed" else np.roll(right, 1)

    def _input(self, call: Call[Any], like: str, group: int) -> Any:
        names = [it.name for it in call.operator.scalars]
        if like in names:
            return call.scalars[names.index(like)].reshape(-1)[0]
        return call.groups[group][call.operator.tensors.index(like)]

    def _other_call(self, call: Call[Any], group: int) -> Call[Any]:
        if self.change == "attribute":
            name, value = self.about
            if isinstance(call.attributes[name], tuple):
                value = (value,)
            return replace(call, attributes={**call.attributes, name: value})
        place, how = self.about
        tensors = call.groups[group]
        own = np.asarray(CHANGES[how](tensors[place]), tensors[place].dtype)
        changed = (*tensors[:place], own, *tensors[place + 1 :])
        groups = (*call.groups[:group], changed, *call.groups[group + 1 :])
        return replace(call, groups=groups)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "taken as zero": lambda v: v * 0,
    "taken as its first element": lambda v: np.full_like(v, v.flat[0] if v.size else 0),
    "made positive": np.abs,
    "negated": lambda v: -v,
    "reversed": lambda v: v.reshape(-1)[::-1].reshape(v.shape),
    "in another order": lambda v: v.T.reshape(v.shape),
    "shifted by one": lambda v: np.roll(v, 1),
    "rounded to float32": lambda v: v.astype("f4"),
    "a little larger": lambda v: v * (1 + 1e-3),
}

KINDS: dict[str, tuple[Rule, ...]] = {
    "broadcasting": (on_broadcast,),
    "an attribute at 0, 1, -1 or left out": (on_attribute,),
    "number of tensors": (on_many,),
    "lengths and blocks": (on_length,),
    "rows and columns": (on_tile,),
    "ranks and orders": (on_rank,),
    "[1, 1], 0-d and rank 1": (on_single,),
    "inexact constants": (on_type,),
    "doubles beyond float32": (on_wide,),
    "percentiles": (on_percent,),
    "small attributes": (on_small_attribute,),
    "values of states": (on_values,),
    "counts and rates": (on_count, on_scalar),
}
ALL_RULES = tuple(dict.fromkeys(rule for rules in KINDS.values() for rule in rules))


def plant(kind: str, operator: Operator, random: np.random.RandomState) -> Fault | None:
    """Return a fault of a kind in an operator; None if the operator has no such dimension."""
    chosen = [pick(KINDS[kind], random)(operator, random)]
    if kind == "values of states" or random.rand() < 0.5:
        again = on_values if kind == "values of states" else pick(ALL_RULES, random)
        chosen.append(again(operator, random))
    conditions = tuple(it for it in chosen if it is not None)
    if chosen[0] is None:
        return None
    change = pick(["scaled", "zero", "stale", "operand", "operand", "attribute", "shifted"], random)
    if kind in ("[1, 1], 0-d and rank 1", "ranks and orders") and random.rand() < 0.3:
        change = pick(["shape", "reversed"], random)
    if kind == "inexact constants":
        change = pick(["rounded", "inexact"], random)
    if kind == "small attributes":
        change = "attribute"
    output = pick(["", *operator.outputs], random)
    if change in ("attribute", "inexact"):
        named = conditions[0].text.split()
        own = {"small attributes": 2, "an attribute at 0, 1, -1 or left out": 0}.get(kind)
        name = pick(free(operator) or numeric(operator), random) if own is None else named[own]
        item = next(it for it in operator.attributes if it.name == name)
        value = float(pick([0.0, 1.0, 0.5, item.default or 0.0], random))
        if kind == "small attributes":
            value = 0.0
        about: tuple[Any, ...] = (name, float(np.clip(value, *(item.limits or (-1e9, 1e9)))))
        made = Inexact if change == "inexact" else Fault
        return made(kind, operator, conditions, "attribute", output, about)
    place = random.randint(len(operator.tensors))
    about = {
        "scaled": (pick([1e-3, 1e-2, -1.0, 1.0], random),),
        "operand": (place, pick([*CHANGES], random)),
        "rounded": (place, "rounded to float32"),
    }.get(change, ())
    return Fault(kind, operator, conditions, change, output, about)


class Inexact(Fault):
    """An attribute that is not rounded to float32 as the node holds it, or loses digits by it."""

    def _other_call(self, call: Call[Any], group: int) -> Call[Any]:
        name = self.about[0]
        value = call.attributes[name]
        # The decimal that the float32 stands for.
        decimal = [float(f"{it:.6g}") for it in (value if isinstance(value, tuple) else (value,))]
        given = tuple(decimal) if isinstance(value, tuple) else decimal[0]
        return replace(call, attributes={**call.attributes, name: given})


# ---------------------------------------------------------------- counting


def suite_nodes(targets: Sequence[str], only: Sequence[str]) -> dict[str, list[Node]]:
    """Return the nodes of the cases of suites, by operator; of some operators, if any are named."""
    found: dict[str, list[Node]] = {}
    for case in collect(targets).cases:
        if only and not set(only) & set(case.operators):
            continue
        content = case.read()
        if not content.rejects and content.trajectory is None:
            call = sole_call(content.model, content.inputs)
            if call is not None:
                found.setdefault(call.operator.name, []).append(Node(call, case.id))
    for nodes in found.values():
        nodes.sort(key=Node.elements)
    return found


def drawn_nodes(operator: Operator, random: np.random.RandomState) -> Iterator[Node]:
    while True:
        yield Node(draw(operator, random))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="*", default=["conformance", "pruning", "space"])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--faults", type=int, default=100, help="visible faults of each kind")
    parser.add_argument("--kind", action="append", help="only kinds that contain this")
    parser.add_argument("--draws", type=int, default=DRAWS, help="inputs that may show a fault")
    parser.add_argument("--operator", action="append", help="only this operator")
    parser.add_argument("-v", "--verbose", action="store_true", help="show what is missed at once")
    parser.add_argument("--operators", type=Path, action="append", default=[])
    arguments = parser.parse_args()
    random = np.random.RandomState(arguments.seed)
    for path in arguments.operators:
        add_operators(path)
    suites = suite_nodes(arguments.suites, arguments.operator or ())
    operators = [it for it in OPERATORS if it.name in suites]
    draws: dict[str, list[Node]] = {}
    for operator in operators:
        source = drawn_nodes(operator, random)
        drawn = [next(source) for _ in range(arguments.draws)]
        # Most faults show in a small one.
        draws[operator.name] = sorted(drawn, key=Node.elements)
    print(f"{'kind':38} visible rejected  share invisible")
    total: Counter[str] = Counter()
    missed: list[str] = []
    bad = False
    for kind in KINDS:
        if arguments.kind and not any(it in kind for it in arguments.kind):
            continue
        counts: Counter[str] = Counter()
        while counts["visible"] < arguments.faults and counts["tried"] < 60 * arguments.faults:
            counts["tried"] += 1
            operator = pick(operators, random)
            fault = plant(kind, operator, random)
            if fault is None:
                continue
            if not any(map(fault.shows, draws[operator.name])):
                counts["invisible"] += 1
                continue
            counts["visible"] += 1
            if any(map(fault.shows, suites[operator.name])):
                counts["rejected"] += 1
            else:
                missed.append(f"{kind}: {fault}")
                if arguments.verbose:
                    print(f"  missed {fault}", flush=True)
        total.update(counts)
        share = counts["rejected"] / max(1, counts["visible"])
        bad |= share < ENOUGH[0]
        print(
            f"{kind:38} {counts['visible']:7} {counts['rejected']:8} {share:6.1%} "
            f"{counts['invisible']:9}",
            flush=True,
        )
    share = total["rejected"] / max(1, total["visible"])
    print(
        f"{'all':38} {total['visible']:7} {total['rejected']:8} {share:6.1%} {total['invisible']:9}"
    )
    print(*("missed " + it for it in missed), sep="\n")
    return int(bad or share < ENOUGH[1])


if __name__ == "__main__":
    sys.exit(main())
