"""Inject random faults into operators, and count how many of them the suites reject.

    python scripts/injected_faults.py --seed 1 [--faults 100] [--operators FILE] [SUITE]...

A fault changes the result where one or two conditions on the input hold. An example is "the last n
mod 16 elements are stale where the tensor has more than 8 elements and V is negative". A fault is
visible if its error exceeds the error bound on at least one of 2,000 random inputs. The code that
draws faults and inputs is independent of the suites. The script prints a table by kind of fault,
and the visible faults that the suites miss. The script exits with 1 if the suites reject less than
95 % of the visible faults of a kind, or less than 99 % of all visible faults.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from onnxopt_cli.core.compare import compare_outputs
from onnxopt_cli.errors import NodeError
from onnxopt_cli.interpret.bound.error_bound import bound
from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.operators.call import (
    Call,
    bind,
    complete_attributes,
    sole_call,
)
from onnxopt_cli.operators.operator import Operator
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.suites.catalogue import conformance_suites
from onnxopt_cli.suites.collect import collect

DRAWS = 2000
REQUIRED_SHARE_OF_KIND, REQUIRED_SHARE = 0.95, 0.99


class Part:
    """One group of a node, or all of its groups if their results depend on each other.

    A group consists of the operands that belong to one optimized tensor.
    """

    def __init__(self, call: Call[Any]) -> None:
        self.call = call

    @cached_property
    def expected(self) -> list[Any]:
        """The expected outputs, in the node's order."""
        return evaluate(self.call)

    @cached_property
    def error_bounds(self) -> list[Any]:
        """The error bound of each output."""
        return [derived_output.error_bound for derived_output in bound(self.call)]

    def exceeds(self, index: int, returned: Any) -> bool:
        """Return whether an output differs from the expected output beyond the error bound."""
        expected = self.expected[index]
        if returned.shape != expected.shape or returned.dtype != expected.dtype:
            return True
        if np.array_equal(returned, expected, equal_nan=True):
            return False
        error_bound = self.error_bounds[index]
        (diff,) = compare_outputs({"": expected}, [returned], lambda _: error_bound, worst=0)
        return not diff.agrees


class Node:
    """A node with its inputs. Groups are judged separately unless they depend on each other."""

    def __init__(self, call: Call[Any], name: str = "") -> None:
        self.call, self.name = call, name
        self.has_dependent_groups = any(map(call.operator.carries, call.operator.outputs))
        self._parts: dict[int, Part] = {}

    def size(self) -> int:
        """Return the number of elements of the groups' first tensors, plus the number of groups."""
        return sum(tensors[0].size + 1 for tensors in self.call.groups)

    def part(self, group: int) -> Part:
        """Return the part that contains a group."""
        if self.has_dependent_groups:
            group = 0
        if group not in self._parts:
            attributes = {
                name: (value[min(group, len(value) - 1)],) if isinstance(value, tuple) else value
                for name, value in self.call.attributes.items()
            }
            single = replace(self.call, groups=(self.call.groups[group],), attributes=attributes)
            self._parts[group] = Part(self.call if self.has_dependent_groups else single)
        return self._parts[group]


# ---------------------------------------------------------------- inputs

LENGTHS = [*range(10), 12, 15, 16, 17, 20, 31, 32, 33, 48, 63, 64, 65, 100, 127, 128, 129, 255, 256]
LENGTHS += [257, 500, 1023, 1024, 1025]
NUMBERS = [*[1] * 24, *[2] * 8, 3, 3, 4, 5, 8, 8, 9, 9, 10, 16, 17, 20, 33, 65, 129]
COUNTS = [0, 1, 2, 3, 5, 10, 100, 1000, 10**6, 2**24 + 1, 2**31 - 1, 2**31 + 7, 2**32 + 1, -1, -5]


def draw(operator: Operator, random: np.random.RandomState) -> Call[Any]:
    """Draw a node with any number of tensors, any shapes and any values."""
    number = int(random.choice(NUMBERS))
    mostly_double = random.rand() < 0.3
    inputs: list[Any] = []
    for scalar in operator.scalars:
        shape = (1,) * int(random.choice([0, 0, 0, 1, 2]))
        if "int64" in scalar.dtypes:
            inputs.append(np.full(shape, random.choice(COUNTS), np.int64))
        else:
            value = random.choice([0.1, 0.5, 1.0, random.rand(), 0.0, -0.3, 1e-6, 30.0])
            inputs.append(
                np.full(shape, value, ["f4", "f8"][random.rand() < (0.8 * mostly_double + 0.1)])
            )
    shapes = [draw_shape(random, small=number > 4) for _ in range(number)]
    for name in operator.tensors:
        for shape in shapes:
            broadcast = name != operator.tensors[0] and random.rand() < 0.3
            drawn_shape = draw_broadcast_shape(shape, random) if broadcast else shape
            dtype = ["f4", "f8"][int(random.rand() < (0.85 if mostly_double else 0.05))]
            inputs.append(draw_values(drawn_shape, dtype, random, positive=name == "H"))
    attributes: dict[str, Any] = {}
    for item in operator.attributes:
        if item.choices:
            attributes[item.name] = str(random.choice(item.choices))
        elif item.default is None or random.rand() < 0.85:
            value = draw_attribute(item.limits, shapes[0], random)
            attributes[item.name] = (value,) if item.each else value
    complete = complete_attributes(operator, attributes)
    omitted = frozenset(item.name for item in operator.attributes) - attributes.keys()
    return bind(operator, inputs, complete, omitted=omitted)


def draw_attribute(limits: Any, shape: tuple[int, ...], random: np.random.RandomState) -> float:
    if limits is None:
        return float(
            random.choice(
                [*random.random_sample(3), 0.9, 0.999, 0.1, 0.0, 1.0, -1.0, -0.5, 1e-6, 1e-8, 30.0]
            )
        )
    least, most = limits
    # If the attribute is a percentage, the number `integral` is the share of its range that selects
    # an integer rank.
    size = max(1, int(np.prod(shape)))
    integral = random.randint(size) / max(1, size - 1)
    near_integral = [integral, integral, integral + 1e-6, integral - 1e-6]
    share = random.choice([random.rand(), 0.0, 1.0, 0.5, 0.14, 0.28, 0.56, *near_integral])
    return float(np.clip(np.float32(least + share * (most - least)), least, most))


def draw_shape(random: np.random.RandomState, *, small: bool) -> tuple[int, ...]:
    kind = random.rand()
    if kind < 0.5:
        lengths = [length for length in LENGTHS if length < 300] if small else LENGTHS
        return (int(random.choice(lengths)),)
    if kind < 0.7:
        edge = int(
            random.choice([1, 2, 3, 5, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257])
        )
        second_edge = int(random.choice([1, 1, 2, 3, 7, 16, 33]))
        return ((edge, second_edge), (second_edge, edge))[random.randint(2)]
    if kind < 0.8:
        return ()
    rank = random.randint(2, 8)
    lengths = [1, 2, 3] if rank > 4 else [1, 2, 3, 4, 5]
    return tuple(int(length) for length in random.choice(lengths, rank))


def draw_broadcast_shape(shape: tuple[int, ...], random: np.random.RandomState) -> tuple[int, ...]:
    if not shape:
        return shape
    kind = random.randint(6)
    if kind == 0:
        return ()
    if kind == 1:
        return (1,)
    if kind == 2:
        return (1,) * len(shape)
    if kind == 3:
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
    """A condition on a group of tensors or on its elements: a boolean, or a mask."""

    text: str
    holds: Callable[[Call[Any], int], Any]


def first_tensor(call: Call[Any], group: int) -> Any:
    return call.groups[group][0]


def attribute_of(call: Call[Any], name: str) -> float:
    value: Any = call.attributes[name]
    return value[0] if isinstance(value, tuple) else value


def numeric_attributes(operator: Operator) -> list[str]:
    return [item.name for item in operator.attributes if not item.choices]


def unlimited_attributes(operator: Operator) -> list[str]:
    return [item.name for item in operator.attributes if not item.choices and not item.limits]


Rule = Callable[[Operator, np.random.RandomState], "Condition | None"]


def pick(items: Sequence[Any], random: np.random.RandomState) -> Any:
    return items[random.randint(len(items))]


def on_broadcast(operator: Operator, random: np.random.RandomState) -> Condition | None:
    if len(operator.tensors) == 1:
        return None
    index = random.randint(1, len(operator.tensors))
    name = operator.tensors[index]
    kind = pick(["of lower rank", "with inner 1", "0-d", "[1]", "all ones", "broadcast"], random)

    def holds(call: Call[Any], group: int) -> bool:
        full, shape = call.groups[group][0].shape, call.groups[group][index].shape
        if full == shape:
            return False
        return bool({
            "of lower rank": 0 < len(shape) < len(full),
            "with inner 1": len(shape) == len(full) > 0 and shape[-1] == 1 != full[-1],
            "0-d": shape == (),
            "[1]": shape == (1,),
            "all ones": len(shape) > 1 and set(shape) == {1},
            "broadcast": True,
        }[kind])  # fmt: skip

    return Condition(f"{name} is {kind}", holds)


def on_attribute(operator: Operator, random: np.random.RandomState) -> Condition | None:
    names = unlimited_attributes(operator)
    if not names:
        return None
    name = pick(names, random)
    kind = pick([0.0, 1.0, -1.0, "omitted", "negative", "above 1"], random)

    def holds(call: Call[Any], _: int) -> bool:
        value = attribute_of(call, name)
        if kind == "omitted":
            return name in call.omitted
        if kind == "negative":
            return value < 0
        return value > 1 if kind == "above 1" else value == kind

    return Condition(f"{name} is {kind}", holds)


def on_small_attribute(operator: Operator, random: np.random.RandomState) -> Condition | None:
    names = unlimited_attributes(operator)
    if not names:
        return None
    name, limit = pick(names, random), pick([1e-3, 1e-5], random)
    return Condition(
        f"0 < {name} < {limit}",
        lambda call, _: 0 < attribute_of(call, name) < limit and name not in call.omitted,
    )


def on_groups(_: Operator, random: np.random.RandomState) -> Condition:
    kind = random.randint(4)
    number = int(pick([1, 2, 3, 7, 8, 9, 16, 32, 64], random))
    if kind == 0:
        return Condition(f"of {number} tensors", lambda call, _: len(call.groups) == number)
    if kind == 1:
        return Condition(f"in tensor {number}", lambda call, group: group + 1 == number)
    if kind == 2:
        return Condition(f"from tensor {number + 1} on", lambda _, group: group >= number)
    return Condition(f"more than {number} tensors", lambda call, _: len(call.groups) > number)


def on_length(_: Operator, random: np.random.RandomState) -> Condition:
    block = int(pick([2, 3, 4, 8, 16, 32, 64, 128, 256, 1024], random))
    kind = random.randint(6)

    def index(call: Call[Any], group: int) -> Any:
        shape = first_tensor(call, group).shape
        return np.arange(size(call, group)).reshape(shape)

    def size(call: Call[Any], group: int) -> int:
        return int(first_tensor(call, group).size)

    if kind == 0:
        exact = int(pick([1, 2, 3, 4, 5, 6, 7, 8, 9, block - 1, block, block + 1], random))
        return Condition(f"{exact} elements", lambda call, group: size(call, group) == exact)
    if kind == 1:
        return Condition(
            f"in the last n mod {block} elements",
            lambda c, g: index(c, g) >= size(c, g) // block * block,
        )
    if kind == 2:
        return Condition(f"from element {block} on", lambda c, g: index(c, g) >= block)
    if kind == 3:
        return Condition(
            f"in the last of a multiple of {block}",
            lambda c, g: (index(c, g) == size(c, g) - 1) & (size(c, g) % block == 0),
        )
    if kind == 4:
        return Condition(
            f"in element {block - 1} of each {block}", lambda c, g: index(c, g) % block == block - 1
        )
    return Condition(f"more than {block} elements", lambda c, g: size(c, g) > block)


def on_tile(_: Operator, random: np.random.RandomState) -> Condition:
    axis, edge = random.randint(2), int(pick([32, 64, 128, 256], random))
    word = ("row", "column")[axis]

    def is_beyond_edge(call: Call[Any], group: int) -> Any:
        shape = first_tensor(call, group).shape
        if len(shape) != 2:
            return False
        return np.broadcast_to(np.indices(shape)[axis] >= edge, shape)

    def has_edge(call: Call[Any], group: int) -> bool:
        shape = first_tensor(call, group).shape
        return len(shape) == 2 and shape[axis] == edge

    if random.rand() < 0.25:
        return Condition(f"a matrix of {edge} {word}s", has_edge)
    return Condition(f"in a matrix, from {word} {edge} on", is_beyond_edge)


def on_rank(_: Operator, random: np.random.RandomState) -> Condition:
    rank = int(pick([2, 3, 4, 5, 6], random))
    if random.rand() < 0.3:
        return Condition(f"of rank {rank}", lambda c, g: first_tensor(c, g).ndim == rank)
    return Condition(f"of rank {rank} and more", lambda c, g: first_tensor(c, g).ndim >= rank)


def on_single(operator: Operator, random: np.random.RandomState) -> Condition:
    shape = pick([(), (1,), (1, 1), (1, 1, 1)], random)
    index = random.randint(len(operator.tensors))
    name = operator.tensors[index]
    return Condition(f"{name} of shape {shape}", lambda c, g: c.groups[g][index].shape == shape)


def on_type(operator: Operator, random: np.random.RandomState) -> Condition:
    index = random.randint(len(operator.tensors))
    double = random.rand() < 0.7
    name, word = operator.tensors[index], "double" if double else "float"
    return Condition(f"{name} is {word}", lambda c, g: (c.groups[g][index].dtype == "f8") == double)


def on_count(operator: Operator, random: np.random.RandomState) -> Condition | None:
    indices = [i for i, scalar in enumerate(operator.scalars) if "int64" in scalar.dtypes]
    if not indices:
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
    return Condition(text, lambda c, _: bool(test(int(c.scalars[indices[0]].reshape(())))))


def on_scalar(operator: Operator, random: np.random.RandomState) -> Condition | None:
    indices = [i for i, scalar in enumerate(operator.scalars) if "int64" not in scalar.dtypes]
    if not indices:
        return None
    index = indices[0]
    name = operator.scalars[index].name
    text, test = pick(
        [
            ("is 0", lambda r: r == 0), ("is 1", lambda r: r == 1),
            ("is negative", lambda r: r < 0),
            ("is above 10", lambda r: r > 10), ("is tiny", lambda r: 0 < abs(r) < 1e-4),
            ("is a double", lambda r: r.dtype == "f8"), ("has dimensions", lambda r: r.ndim > 0),
        ],
        random,
    )  # fmt: skip
    return Condition(f"{name} {text}", lambda c, _: bool(np.all(test(c.scalars[index]))))


def on_values(operator: Operator, random: np.random.RandomState) -> Condition:
    index = random.randint(len(operator.tensors))
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
        with np.errstate(all="ignore"):
            mask = test(call.groups[group][index])
        return np.broadcast_to(mask, first_tensor(call, group).shape)

    return Condition(f"{operator.tensors[index]} is {text}", holds)


def on_double_values(operator: Operator, random: np.random.RandomState) -> Condition:
    index = random.randint(len(operator.tensors))
    text, test = pick(
        [
            ("beyond float32", lambda v: (np.abs(v) > 3.5e38) & np.isfinite(v)),
            ("below float32", lambda v: (v != 0) & (np.abs(v) < 1e-46)),
            ("not a float32", lambda v: v.astype("f4") != v),
        ],
        random,
    )

    def holds(call: Call[Any], group: int) -> Any:
        tensor = call.groups[group][index]
        with np.errstate(all="ignore"):
            mask = test(tensor) if tensor.dtype == "f8" else np.zeros(tensor.shape, bool)
        return np.broadcast_to(mask, first_tensor(call, group).shape)

    return Condition(f"the double {operator.tensors[index]} is {text}", holds)


def on_percent(operator: Operator, random: np.random.RandomState) -> Condition | None:
    limited = [item for item in operator.attributes if item.limits]
    if not limited:
        return None
    item = limited[0]
    least, most = item.limits or (0, 1)
    kind = pick(
        ["integral", "just below", "just above", "thousands", "infinite", "least", "largest"],
        random,
    )

    def holds(call: Call[Any], group: int) -> bool:
        size = first_tensor(call, group).size
        values: Any = call.attributes[item.name]
        share = (values[min(group, len(values) - 1)] - least) / (most - least)
        rank = share * (size - 1)
        distance = rank - round(rank)
        if kind == "infinite":
            return bool(np.isinf(first_tensor(call, group)).any())
        if kind in ("least", "largest"):
            return bool(share == (0 if kind == "least" else 1))
        if kind == "thousands":
            return bool(size > 1000)
        holds_near = {
            "integral": abs(distance) < 1e-9,
            "just below": distance < 0,
            "just above": distance > 0,
        }
        return bool(0 < share < 1 and abs(distance) < 1e-2 and holds_near[kind])

    return Condition(f"the rank is {kind}", holds)


# ---------------------------------------------------------------- faults


@dataclass(frozen=True)
class Fault:
    """A fault: an implementation that changes the result where all of its conditions hold."""

    kind: str
    operator: Operator
    conditions: tuple[Condition, ...]
    change: str
    output: str
    parameters: tuple[Any, ...]

    def __str__(self) -> str:
        where = " and ".join(condition.text for condition in self.conditions)
        change = f"{self.operator.name}: {self.change} {self.parameters}"
        return f"{change} of {self.output or 'all'} where {where}"

    def is_visible(self, node: Node) -> bool:
        """Return whether an output of a node exceeds its error bound."""
        call = node.call
        with np.errstate(all="ignore"):
            for group, tensors in enumerate(call.groups):
                mask: Any = np.True_
                for condition in self.conditions:
                    mask = mask & np.asarray(condition.holds(call, group))
                    if not np.any(mask):
                        break
                else:
                    part = node.part(group)
                    mask = np.broadcast_to(mask, tensors[0].shape)
                    index = group if node.has_dependent_groups else 0
                    outputs = self._changed_outputs(part, index, mask)
                    if any(part.exceeds(position, output) for position, output in outputs):
                        return True
        return False

    def _changed_outputs(self, part: Part, group: int, mask: Any) -> Iterator[tuple[int, Any]]:
        """Yield the index and value of each output that the fault changes under a mask."""
        call, change, operator = part.call, self.change, self.operator
        changed = None
        if change in ("operand", "rounded", "attribute"):
            try:
                changed = evaluate(self._changed_call(call, group))
            except NodeError:
                return
        for index, (name, like) in enumerate(operator.outputs.items()):
            if self.output and name != self.output:
                continue
            expected = part.expected[index]
            if change == "shape":
                yield index, expected.reshape((1,) if expected.shape == () else -1)[..., None]
                continue
            everywhere = operator.carries(name) or change == "reversed"
            old = self._input(call, like, group) if change == "stale" else expected
            value = changed[index] if changed is not None else self._changed_value(expected, old)
            where = np.ones(expected.shape, bool) if everywhere else mask
            yield index, np.where(where, value, expected).astype(expected.dtype)

    def _changed_value(self, expected: Any, old: Any) -> Any:
        """Return the wrong output.

        If the change is ``stale``, the output is the unchanged input ``old``.
        """
        if self.change == "scaled":
            return expected * expected.dtype.type(1 + self.parameters[0])
        if self.change == "zero":
            return np.zeros_like(expected)
        if self.change == "stale":
            return np.broadcast_to(old, expected.shape)
        if self.change == "reversed":
            return expected.T.reshape(expected.shape)
        return np.roll(expected, 1)

    def _input(self, call: Call[Any], like: str, group: int) -> Any:
        names = [scalar.name for scalar in call.operator.scalars]
        if like in names:
            return call.scalars[names.index(like)].reshape(-1)[0]
        return call.groups[group][call.operator.tensors.index(like)]

    def _changed_call(self, call: Call[Any], group: int) -> Call[Any]:
        if self.change == "attribute":
            name, value = self.parameters
            if isinstance(call.attributes[name], tuple):
                value = (value,)
            return replace(call, attributes={**call.attributes, name: value})
        index, change = self.parameters
        tensors = call.groups[group]
        tensor = np.asarray(OPERAND_CHANGES[change](tensors[index]), tensors[index].dtype)
        changed = (*tensors[:index], tensor, *tensors[index + 1 :])
        groups = (*call.groups[:group], changed, *call.groups[group + 1 :])
        return replace(call, groups=groups)


OPERAND_CHANGES: dict[str, Callable[[Any], Any]] = {
    "replaced by zero": lambda v: v * 0,
    "replaced by its first element": lambda v: np.full_like(v, v.flat[0] if v.size else 0),
    "made positive": np.abs,
    "negated": lambda v: -v,
    "reversed": lambda v: v.reshape(-1)[::-1].reshape(v.shape),
    "transposed": lambda v: v.T.reshape(v.shape),
    "shifted by one": lambda v: np.roll(v, 1),
    "rounded to float32": lambda v: v.astype("f4"),
    "multiplied by 1.001": lambda v: v * (1 + 1e-3),
}

KINDS: dict[str, tuple[Rule, ...]] = {
    "broadcasting": (on_broadcast,),
    "an attribute at 0, 1, -1 or omitted": (on_attribute,),
    "number of tensors": (on_groups,),
    "lengths and blocks": (on_length,),
    "rows and columns": (on_tile,),
    "ranks and orders": (on_rank,),
    "single elements of rank 0 to 3": (on_single,),
    "inexact constants": (on_type,),
    "doubles beyond float32": (on_double_values,),
    "percentiles": (on_percent,),
    "small attributes": (on_small_attribute,),
    "values of states": (on_values,),
    "counts and rates": (on_count, on_scalar),
}
ALL_RULES = tuple(dict.fromkeys(rule for rules in KINDS.values() for rule in rules))


def draw_fault(kind: str, operator: Operator, random: np.random.RandomState) -> Fault | None:
    """Return a fault of a kind, or None if the kind does not apply to the operator."""
    drawn = [pick(KINDS[kind], random)(operator, random)]
    if kind == "values of states" or random.rand() < 0.5:
        second_rule = on_values if kind == "values of states" else pick(ALL_RULES, random)
        drawn.append(second_rule(operator, random))
    conditions = tuple(condition for condition in drawn if condition is not None)
    if drawn[0] is None:
        return None
    change = pick(["scaled", "zero", "stale", "operand", "operand", "attribute", "shifted"], random)
    if kind in ("single elements of rank 0 to 3", "ranks and orders") and random.rand() < 0.3:
        change = pick(["shape", "reversed"], random)
    if kind == "inexact constants":
        change = pick(["rounded", "inexact"], random)
    if kind == "small attributes":
        change = "attribute"
    output = pick(["", *operator.outputs], random)
    if change in ("attribute", "inexact"):
        # For two kinds of faults, the text of the condition contains the name of the attribute. The
        # dictionary states the position of this name among the words of the text.
        words = conditions[0].text.split()
        position = {"small attributes": 2, "an attribute at 0, 1, -1 or omitted": 0}.get(kind)
        names = unlimited_attributes(operator) or numeric_attributes(operator)
        name = pick(names, random) if position is None else words[position]
        item = next(item for item in operator.attributes if item.name == name)
        value = float(pick([0.0, 1.0, 0.5, item.default or 0.0], random))
        if kind == "small attributes":
            value = 0.0
        limited = float(np.clip(value, *(item.limits or (-1e9, 1e9))))
        fault_type = InexactAttribute if change == "inexact" else Fault
        return fault_type(kind, operator, conditions, "attribute", output, (name, limited))
    index = random.randint(len(operator.tensors))
    parameters: dict[str, tuple[Any, ...]] = {
        "scaled": (pick([1e-3, 1e-2, -1.0, 1.0], random),),
        "operand": (index, pick([*OPERAND_CHANGES], random)),
        "rounded": (index, "rounded to float32"),
    }
    return Fault(kind, operator, conditions, change, output, parameters.get(change, ()))


class InexactAttribute(Fault):
    """A fault that uses a decimal attribute, such as 0.1, without rounding its value to float32."""

    def _changed_call(self, call: Call[Any], group: int) -> Call[Any]:
        name = self.parameters[0]
        value: Any = call.attributes[name]
        decimal: Any
        if isinstance(value, tuple):
            decimal = tuple(float(f"{number:.6g}") for number in value)
        else:
            decimal = float(f"{value:.6g}")
        return replace(call, attributes={**call.attributes, name: decimal})


# ---------------------------------------------------------------- counting


def suite_nodes(targets: Sequence[str], only: Sequence[str]) -> dict[str, list[Node]]:
    """Return the nodes of suites by operator. If ``only`` is empty, all operators are included."""
    nodes: dict[str, list[Node]] = {}
    for case in collect(targets).cases:
        if only and not set(only) & set(case.operators or ()):
            continue
        content = case.load()
        if not content.must_reject and content.trajectory is None:
            call = sole_call(content.model, content.inputs)
            if call is not None:
                nodes.setdefault(call.operator.name, []).append(Node(call, case.id))
    return {name: sorted(group, key=Node.size) for name, group in nodes.items()}


def drawn_nodes(operator: Operator, random: np.random.RandomState) -> Iterator[Node]:
    while True:
        yield Node(draw(operator, random))


def inject_kind(
    kind: str,
    required: int,
    draws: dict[str, list[Node]],
    suites: dict[str, list[Node]],
    random: np.random.RandomState,
) -> tuple[Counter[str], list[Fault]]:
    """Inject visible faults of a kind; return the counts and the faults that the suites miss."""
    operators = [operator for operator in registry().operators if operator.name in suites]
    counts: Counter[str] = Counter()
    missed = []
    while counts["visible"] < required and counts["tried"] < 60 * required:
        counts["tried"] += 1
        operator = pick(operators, random)
        fault = draw_fault(kind, operator, random)
        if fault is None:
            continue
        if not any(map(fault.is_visible, draws[operator.name])):
            counts["invisible"] += 1
            continue
        counts["visible"] += 1
        if any(map(fault.is_visible, suites[operator.name])):
            counts["rejected"] += 1
        else:
            missed.append(fault)
    return counts, missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="*", default=[*conformance_suites(), "pairwise"])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument(
        "--faults", type=int, default=100, help="number of visible faults of each kind"
    )
    parser.add_argument(
        "--kind", action="append", help="inject only kinds of faults whose names contain this text"
    )
    parser.add_argument(
        "--draws", type=int, default=DRAWS, help="number of inputs that are tried for each fault"
    )
    parser.add_argument("--operator", action="append", help="inject faults only into this operator")
    parser.add_argument("--operators", type=Path, action="append", default=[])
    arguments = parser.parse_args()
    random = np.random.RandomState(arguments.seed)
    for path in arguments.operators:
        registry().add_file(path)
    suites = suite_nodes(arguments.suites, arguments.operator or ())
    draws: dict[str, list[Node]] = {}
    for operator in registry().operators:
        if operator.name in suites:
            nodes = itertools.islice(drawn_nodes(operator, random), arguments.draws)
            # Small nodes come first, because most faults are visible on a small node.
            draws[operator.name] = sorted(nodes, key=Node.size)
    print(f"{'kind':38} visible rejected  share invisible")
    total: Counter[str] = Counter()
    missed: list[Fault] = []
    misses_kind = False
    for kind in KINDS:
        if arguments.kind and not any(part in kind for part in arguments.kind):
            continue
        counts, missed_of_kind = inject_kind(kind, arguments.faults, draws, suites, random)
        total.update(counts)
        missed += missed_of_kind
        share = counts["rejected"] / max(1, counts["visible"])
        misses_kind |= share < REQUIRED_SHARE_OF_KIND
        print(
            f"{kind:38} {counts['visible']:7} {counts['rejected']:8} {share:6.1%} "
            f"{counts['invisible']:9}",
            flush=True,
        )
    share = total["rejected"] / max(1, total["visible"])
    print(
        f"{'all':38} {total['visible']:7} {total['rejected']:8} {share:6.1%} {total['invisible']:9}"
    )
    for fault in missed:
        print(f"missed {fault.kind}: {fault}")
    return int(misses_kind or share < REQUIRED_SHARE)


if __name__ == "__main__":
    sys.exit(main())
