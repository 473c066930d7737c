"""Inject random faults, and check the failure conditions that are reported for them.

    python scripts/explain_injected_faults.py [--faults N] [--seed N] [--beyond] [OPERATOR ...]

A fault changes one output where one or two conditions hold. The faulty backend runs the suite of
its operator, and its failures are explained as in ``onnxopt run``. The reported failure condition
is then used to predict the outcomes of 400 new inputs. The script prints the precision and recall
of each condition. The script exits with 1 if less than 80 % of the faults are explained, or if a
reported condition predicts badly.

With ``--beyond``, one condition of each fault cannot be expressed as a failure condition. A correct
report then covers only some of the failures, or states no condition. In this mode, the script exits
with 1 if more than 10 % of the reported conditions have a low precision.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import numpy as np

from onnxopt_cli.analysis.audit import find_trials
from onnxopt_cli.analysis.explanation.failure_conditions import failure_condition
from onnxopt_cli.analysis.explanation.samples import sample
from onnxopt_cli.config.run_config import Judging
from onnxopt_cli.core.blocks import available_jobs
from onnxopt_cli.interpret.bound.error_bound import bound
from onnxopt_cli.interpret.evaluate import evaluate, nonnegative_tensors
from onnxopt_cli.operators.call import (
    Call,
    bind,
    complete_attributes,
)
from onnxopt_cli.operators.operator import Operator
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.suites.catalogue import conformance_suites, suite_cases
from onnxopt_cli.workers.forked_processes import parallel

#: Number of new inputs for which a condition must predict the outcome.
NEW_INPUTS = 400
#: Largest number of inputs that are drawn to find inputs on which the fault is visible.
MAX_DRAWS = 3000
#: The minimum precision and recall of a condition that predicts well.
GOOD_SHARE = 0.95
#: The precision or recall below which a condition predicts badly.
BAD_SHARE = 0.8

#: A function that returns where a condition holds in a group, as a boolean for the whole group or
#: as a mask of the elements. A group consists of the operands that belong to one optimized tensor.
Holds = Callable[[Call[Any], int], Any]
#: A condition and its description.
Condition = tuple[str, Holds]


@dataclass(frozen=True)
class Fault:
    """A fault: a change of one output in the elements where all conditions hold."""

    description: str
    conditions: tuple[Holds, ...]
    output: int
    change: Callable[[Any, Any], Any]

    def mask(self, call: Call[Any], group: int) -> Any:
        """Return where all conditions hold in a group."""
        shape = call.groups[group][0].shape
        masks = [np.broadcast_to(holds(call, group), shape) for holds in self.conditions]
        return np.logical_and.reduce(masks)

    def outputs(self, call: Call[Any]) -> list[Any]:
        """Return the outputs of the faulty implementation."""
        outputs = evaluate(call)
        masks = [self.mask(call, group) for group in range(len(call.groups))]
        if call.operator.carries(list(call.operator.outputs)[self.output]):
            masks = [any(mask.any() for mask in masks)]
        for index, mask in enumerate(masks, start=self.output * len(masks)):
            like, _ = call.operator.places(len(call.groups))[index]
            old = np.broadcast_to(call.inputs[like], outputs[index].shape)
            with np.errstate(all="ignore"):
                changed = np.asarray(self.change(outputs[index], old), outputs[index].dtype)
            outputs[index] = np.where(mask, changed, outputs[index])
        return outputs


def positions(call: Call[Any], group: int) -> Any:
    """Return the flat index of each element of a group's first tensor."""
    first = call.groups[group][0]
    return np.arange(first.size).reshape(first.shape)


def values_of(name: str) -> Holds:
    """Return a function that returns a tensor, broadcast to the first tensor of its group."""

    def values(call: Call[Any], group: int) -> Any:
        tensor = call.groups[group][call.operator.tensors.index(name)]
        return np.broadcast_to(tensor, call.groups[group][0].shape)

    return values


def on_first_tensor(description: str, holds: Callable[[Any], Any]) -> Condition:
    """Return a condition on the first tensor of a group."""
    return description, lambda call, group: holds(call.groups[group][0])


def attribute_condition(operator: Operator, random: Random) -> Condition:
    """Draw a condition on the value of an attribute, or on its omission."""
    item = random.choice(operator.attributes)
    if item.choices:
        word = random.choice(item.choices)
        return f"{item.name} {word}", lambda call, _: call.attributes[item.name] == word
    if item.default is not None and random.random() < 0.4:
        return f"{item.name} omitted", lambda call, _: item.name in call.omitted
    number = random.choice(item.limits or (0.0, 1.0))

    def holds(call: Call[Any], group: int) -> bool:
        value: Any = call.attributes[item.name]
        return bool((value[group % len(value)] if isinstance(value, tuple) else value) == number)

    return f"{item.name} = {number}", holds


def count_condition(_operator: Operator, random: Random) -> Condition:
    """Draw a condition that limits the operand T to certain values."""
    k = random.choice((0, 1, 2, 3, 10, 1000, 2**24, 2**31, -1))
    if k <= 0:
        return f"T <= {k}", lambda call, _: int(call.scalars[-1].item()) <= k
    return f"T >= {k}", lambda call, _: int(call.scalars[-1].item()) >= k


def double_condition(operator: Operator, random: Random) -> Condition:
    """Draw the condition that a tensor has the type double."""
    name = random.choice(operator.tensors)
    index = operator.tensors.index(name)
    return f"{name} double", lambda call, group: call.groups[group][index].dtype == np.float64


def rate_condition(_operator: Operator, _random: Random) -> Condition:
    """Return the condition that the rate is a double."""
    return "R double", lambda call, _: call.scalars[0].dtype == np.float64


def length_condition(_operator: Operator, random: Random) -> Condition:
    """Draw the condition that the first tensor has a minimum number of elements."""
    k = random.choice((2, 4, 5, 9, 16, 17, 32, 33, 64, 65, 100, 128, 129, 256, 1024))
    return on_first_tensor(f"length >= {k}", lambda x: x.size >= k)


def block_condition(_operator: Operator, random: Random) -> Condition:
    """Draw the condition that an element comes after the last complete block."""
    m = random.choice((4, 8, 16, 32))
    return (
        f"tail of {m}",
        lambda call, group: positions(call, group) >= (call.groups[group][0].size // m * m),
    )


def index_condition(_operator: Operator, random: Random) -> Condition:
    """Draw the condition that the index of an element is not below a minimum."""
    k = random.choice((1, 2, 4, 8, 16, 32, 64, 256))
    return f"index >= {k}", lambda call, group: positions(call, group) >= k


def rank_condition(_operator: Operator, random: Random) -> Condition:
    """Draw the condition that the first tensor has a minimum rank."""
    k = random.choice((2, 3, 4))
    return on_first_tensor(f"rank >= {k}", lambda x: x.ndim >= k)


def scalar_condition(_operator: Operator, _random: Random) -> Condition:
    """Return the condition that the first tensor has rank 0."""
    return on_first_tensor("rank 0", lambda x: x.ndim == 0)


def columns_condition(_operator: Operator, random: Random) -> Condition:
    """Draw the condition that the last of several axes has a minimum length."""
    k = random.choice((4, 16, 17, 32, 33, 64))
    return on_first_tensor(f"columns >= {k}", lambda x: x.ndim > 1 and x.shape[-1] >= k)


def group_count_condition(_operator: Operator, random: Random) -> Condition:
    """Draw the condition that a node has a minimum number of groups."""
    k = random.choice((2, 3, 4, 8, 9))
    return f"tensors >= {k}", lambda call, _: len(call.groups) >= k


def group_number_condition(_operator: Operator, random: Random) -> Condition:
    """Draw a condition that holds for a group and all later groups."""
    k = random.choice((2, 3, 5, 9))
    return f"tensor number >= {k}", lambda _, group: group + 1 >= k


def broadcasting_condition(operator: Operator, random: Random) -> Condition:
    """Draw the condition that a tensor has a lower rank or another shape than the first tensor."""
    index = random.randrange(1, len(operator.tensors))
    kind = random.choice(("lower", "any"))

    def holds(call: Call[Any], group: int) -> bool:
        tensor, first = call.groups[group][index], call.groups[group][0]
        return bool(tensor.ndim < first.ndim if kind == "lower" else tensor.shape != first.shape)

    return f"{operator.tensors[index]} broadcasts, {kind}", holds


def value_condition(operator: Operator, random: Random) -> Condition:
    """Draw a condition on the value of an element."""
    name = random.choice(operator.tensors)
    values = values_of(name)
    description, holds = random.choice((
        ("zero", lambda v: v == 0), ("negative", lambda v: v < 0), ("NaN", np.isnan),
        ("infinite", np.isinf), ("huge", lambda v: np.abs(v) >= 1e10),
        ("tiny", lambda v: (v != 0) & (np.abs(v) <= 1e-10)), ("one", lambda v: v == 1),
    ))  # fmt: skip
    if description == "negative" and name in nonnegative_tensors(operator):
        description, holds = "zero", lambda v: v == 0
    return f"{name} {description}", lambda call, group: holds(values(call, group))


def draw_condition(operator: Operator, random: Random) -> Condition:
    """Draw a condition that failure conditions can express."""
    kinds = [
        attribute_condition, attribute_condition, double_condition, length_condition,
        block_condition, index_condition, rank_condition, scalar_condition, columns_condition,
        group_count_condition, group_number_condition, value_condition, value_condition,
        value_condition,
    ]  # fmt: skip
    if len(operator.tensors) > 1:
        kinds.append(broadcasting_condition)
    if operator.counts:
        kinds += [count_condition, count_condition]
    if operator.scalars and "int64" not in operator.scalars[0].dtypes:
        kinds.append(rate_condition)
    return random.choice(kinds)(operator, random)


def inexpressible_condition(operator: Operator, random: Random) -> Condition:
    """Draw a condition that failure conditions cannot express."""
    first_name, second_name = random.choice(operator.tensors), random.choice(operator.tensors)
    first, second = values_of(first_name), values_of(second_name)
    drawn: list[Condition] = [
        ("index odd", lambda call, group: positions(call, group) % 2 == 1),
        ("length % 3 == 0", lambda call, group: call.groups[group][0].size % 3 == 0),
        (
            f"{first_name} below the mean",
            lambda call, group: first(call, group) < mean_of_first_tensor(call, group),
        ),
        (
            f"{first_name} + {second_name} > 1",
            lambda call, group: first(call, group) + second(call, group) > 1,
        ),
        (
            f"{first_name} * {second_name} > 0",
            lambda call, group: first(call, group) * second(call, group) > 0,
        ),
        (f"{first_name} in [0.3, 2]", lambda call, group: np.abs(first(call, group) - 1.15) < 0.85),
    ]
    if operator.counts:
        drawn.append(("T odd", lambda call, _: int(call.scalars[-1].item()) % 2 == 1))
    rates = [item.name for item in operator.attributes if not item.choices and not item.each]
    if rates:
        rate = random.choice(rates)

        def is_small(call: Call[Any], _: int) -> bool:
            value: Any = call.attributes[rate]
            return bool(0 < value < 0.6)

        drawn.append((f"{rate} in (0, 0.6)", is_small))
    return random.choice(drawn)


def mean_of_first_tensor(call: Call[Any], group: int) -> Any:
    """Return the mean of a group's first tensor, or 0 if it is empty."""
    first = call.groups[group][0]
    return np.mean(first) if first.size else 0


def draw_fault(operator: Operator, random: Random, *, beyond: bool) -> Fault:
    """Draw a fault with one or two conditions.

    With ``beyond``, the last condition cannot be expressed as a failure condition.
    """
    number = random.choice((0, 0, 1) if beyond else (1, 1, 2))
    drawn = [draw_condition(operator, random) for _ in range(number)]
    if beyond:
        drawn.append(inexpressible_condition(operator, random))
    changes: tuple[tuple[Callable[[Any, Any], Any], str], ...] = (
        (lambda new, _: new * 1.01 + 0.01, "inexact"),
        (lambda new, _: -new, "negated"),
        (lambda _, old: old, "unchanged"),
        (lambda new, _: new * 0, "zero"),
        (lambda new, _: new * np.nan, "NaN"),
    )
    change, change_name = random.choice(changes)
    output = random.randrange(len(operator.outputs))
    where = " and ".join(description for description, _ in drawn)
    description = f"{list(operator.outputs)[output]} {change_name} where {where}"
    return Fault(description, tuple(holds for _, holds in drawn), output, change)


def draw_call(operator: Operator, random: Random) -> Call[Any]:
    """Draw a node. This function shares no code with the suites or the explanation of failures."""
    numpy = np.random.RandomState(random.randrange(1 << 30))
    groups = random.choice((1, 1, 1, 1, 2, 2, 3, 4, 8, 9, 10))
    all_double = random.choice((False, True, None))
    attributes: dict[str, Any] = {}
    for item in operator.attributes:
        if item.choices:
            attributes[item.name] = random.choice(item.choices)
        elif item.limits:
            low, high = item.limits
            attributes[item.name] = low + (high - low) * random.choice((0, 1, 0.5, random.random()))
        elif item.required or random.random() < 0.7:
            attributes[item.name] = random.choice((0.0, 1.0, round(random.random(), 3)))
    scalars = []
    for scalar in operator.scalars:
        if "int64" in scalar.dtypes:
            choices = (0, 1, 2, 3, random.randrange(4, 2000), -1, 10**6, 2**24 + 3, 2**31 + 9)
            scalars.append(np.array(random.choice(choices)))
        else:
            dtype = random.choice(scalar.dtypes)
            scalars.append(np.array(round(random.uniform(0.01, 2), 3), dtype))
    columns: list[list[Any]] = [[] for _ in operator.tensors]
    for _ in range(groups):
        group_shape: tuple[int, ...] = random.choice((
            (), (1,), (random.randrange(1, 20),), (random.randrange(20, 300),),
            (random.randrange(1, 5), random.randrange(1, 70)), (2, 3, 4), (2, 1, 3, 2),
            (random.choice((1024, 1500)),),
        ))  # fmt: skip
        for index, name in enumerate(operator.tensors):
            shape: tuple[int, ...] = group_shape
            if index and random.random() < 0.1:
                shape = random.choice(((), shape[1:], (1,) * len(shape)))
            nonnegative = name in nonnegative_tensors(operator)
            values = np.asarray(numpy.normal(0, 1, shape))
            if random.random() < 0.25:
                special = [0, 1, 1e12, 1e-12, np.inf, np.nan]
                special += [] if nonnegative else [-1, -np.inf]
                values = np.where(numpy.rand(*shape) < 0.3, numpy.choice(special, shape), values)
            double = random.random() < 0.5 if all_double is None else all_double
            columns[index].append(
                np.asarray(
                    np.abs(values) if nonnegative else values, np.float64 if double else np.float32
                )
            )
    tensors = [tensor for column in columns for tensor in column]
    omitted = frozenset(item.name for item in operator.attributes) - set(attributes)
    complete = complete_attributes(operator, attributes)
    return bind(operator, [*scalars, *tensors], complete, omitted=omitted)


def expected_outputs(call: Call[Any]) -> list[Any]:
    """Return the expected values and error bounds of a node's outputs."""
    return [derived_output.branch for derived_output in bound(call)]


def explain_fault(
    operator: Operator, trials: Sequence[tuple[Call[Any], list[Any]]], beyond: bool, seed: int
) -> tuple[str, str, float | None, float | None]:
    """Explain a random fault that the suite rejects.

    Returns:
        The fault, the statement about its failures, and the precision and recall of its condition.
    """
    random = Random(seed)
    while True:
        fault = draw_fault(operator, random, beyond=beyond)
        samples = [sample(call, expected, fault.outputs(call)) for call, expected in trials]
        if any(trial.failed for trial in samples):
            break
    samples.sort(key=lambda trial: not trial.failed)
    condition = failure_condition(samples, fault.outputs)
    if condition is None or not condition.conditions:
        return fault.description, condition.text if condition else "", None, None
    visible: list[Call[Any]] = []
    invisible: list[Call[Any]] = []
    for _ in range(MAX_DRAWS):
        call = draw_call(operator, random)
        shows = any(np.any(fault.mask(call, group)) for group in range(len(call.groups)))
        calls = visible if shows else invisible
        if len(calls) < NEW_INPUTS // 2:
            calls.append(call)
        if len(visible) + len(invisible) == NEW_INPUTS:
            break
    new = [
        sample(call, expected_outputs(call), fault.outputs(call)) for call in (*visible, *invisible)
    ]
    predicted = sum(condition.meets(trial) for trial in new)
    failed = sum(trial.failed for trial in new)
    predicted_failures = sum(condition.meets(trial) and trial.failed for trial in new)
    precision, recall = predicted_failures / max(1, predicted), predicted_failures / max(1, failed)
    return fault.description, condition.text, precision, recall


def main() -> int:
    """Inject and explain faults; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--beyond", action="store_true")
    options = parser.parse_args()
    cases = [case for suite in conformance_suites() for case in suite_cases(suite)]
    trials, _ = find_trials(cases, Judging())
    explained = good = bad = total = 0
    for operator in registry().operators:
        if options.operators and operator.name not in options.operators:
            continue
        calls = [trial.call for trial in trials[operator.name] if trial.call.size < 10_000]
        expected = [(call, expected_outputs(call)) for call in calls]
        seeds = range(options.seed * 100_000, options.seed * 100_000 + options.faults)
        explain_seed = partial(explain_fault, operator, expected, options.beyond)
        for fault, statement, precision, recall in parallel(
            explain_seed, list(seeds), available_jobs()
        ):
            total += 1
            if precision is None or recall is None:
                print(f"  none  {operator.name}: {fault} -> {statement}")
                continue
            if statement.startswith("wrong only"):
                print(f"  frequencies  {operator.name}: {fault} -> {statement}")
                continue
            explained += 1
            # If a condition cannot be expressed, a correct report may cover only some of the
            # failures. Its recall is then low, so only the precision counts.
            quality = precision if options.beyond else min(precision, recall)
            good += quality >= GOOD_SHARE
            bad += quality < BAD_SHARE
            mark = "" if quality >= GOOD_SHARE else "  LOW"
            print(f"  {precision:.2f} {recall:.2f}{mark}  {operator.name}: {fault} -> {statement}")
    print(f"{explained} of {total} explained; {good} of these predict well, {bad} badly")
    return int(bad > 0.1 * explained if options.beyond else explained < 0.8 * total or bad > 0)


if __name__ == "__main__":
    sys.exit(main())
