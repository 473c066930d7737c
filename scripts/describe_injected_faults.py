# ruff: noqa: ANN001, ANN201, ANN202, D102, C901, PLR0915, PLR2004, S311
# mypy: ignore-errors
"""Inject faults in right results, and see what is said of them, and whether it is true.

    python scripts/describe_injected_faults.py [--faults N] [--seed N] [--beyond] [OPERATOR ...]

A fault changes one output where one or two conditions hold; with ``--beyond`` one of them is such
as no sentence says, so that only something weaker, or nothing, is true. The backend with the fault
is put to the suite of its operator; where it fails, what its failures have in common is asked for
as ``onnxopt run`` does. The sentence is then put to 400 inputs that nothing here has seen.
Prints how many faults have a sentence, and how often the sentences are right.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from random import Random

import numpy as np

from onnxopt_cli.analysis.audit import find_trials
from onnxopt_cli.analysis.failure_conditions import failure_condition, sample
from onnxopt_cli.config.run_config import Judging
from onnxopt_cli.core.blocks import available_jobs
from onnxopt_cli.interpret.bound.error_bound import bound
from onnxopt_cli.interpret.evaluate import evaluate, nonnegative_tensors
from onnxopt_cli.operators.call import bind, complete_attributes
from onnxopt_cli.operators.registry import OPERATORS
from onnxopt_cli.suites.catalogue import suite_cases
from onnxopt_cli.workers.parallel import parallel

#: Fresh inputs that a sentence is put to, and how many are drawn to find as many that fail.
_FRESH, _DRAWS = 400, 3000
_ENOUGH_SHARE, _TOO_LITTLE_SHARE = 0.95, 0.8


@dataclass(frozen=True)
class Fault:
    """A change of the elements where all conditions hold."""

    words: str
    conditions: tuple
    output: int
    change: object

    def outputs(self, call):
        outputs = evaluate(call)
        masks = []
        for group, (first, *_) in enumerate(call.groups):
            holds = [condition(call, group) for condition in self.conditions]
            masks.append(np.logical_and.reduce([np.broadcast_to(it, first.shape) for it in holds]))
        if call.operator.carries(list(call.operator.outputs)[self.output]):
            masks = [any(mask.any() for mask in masks)]
        for place, mask in enumerate(masks, start=self.output * len(masks)):
            like, _ = call.operator.places(len(call.groups))[place]
            old = np.broadcast_to(call.inputs[like], outputs[place].shape)
            with np.errstate(all="ignore"):
                changed = np.asarray(self.change(outputs[place], old), outputs[place].dtype)
            outputs[place] = np.where(mask, changed, outputs[place])
        return outputs


def _positions(call, group):
    first = call.groups[group][0]
    return np.arange(first.size).reshape(first.shape)


def _value(name):
    def value(call, group):
        tensor = call.groups[group][call.operator.tensors.index(name)]
        return np.broadcast_to(tensor, call.groups[group][0].shape)

    return value


def conditions(operator, random):
    """Return the kinds of conditions, each with what draws one of the kind."""
    tensors = operator.tensors

    def of_first(words, holds):
        return words, lambda call, group: holds(call.groups[group][0])

    def attribute():
        item = random.choice(operator.attributes)
        at = next(i for i, it in enumerate(operator.attributes) if it is item)
        if item.choices:
            word = random.choice(item.choices)
            return f"{item.name} {word}", lambda call, _: call.attributes[item.name] == word
        if item.default is not None and random.random() < 0.4:
            return f"{item.name} omitted", lambda call, _: item.name in call.omitted
        number = random.choice(item.limits or (0.0, 1.0))

        def holds(call, group):
            value = call.attributes[operator.attributes[at].name]
            return (value[group % len(value)] if isinstance(value, tuple) else value) == number

        return f"{item.name} = {number}", holds

    def count():
        k = random.choice((0, 1, 2, 3, 10, 1000, 2**24, 2**31, -1))
        if k <= 0:
            return f"T <= {k}", lambda call, _: int(call.scalars[-1].item()) <= k
        return f"T >= {k}", lambda call, _: int(call.scalars[-1].item()) >= k

    def double():
        name = random.choice(tensors)
        at = tensors.index(name)
        return f"{name} double", lambda call, group: call.groups[group][at].dtype == np.float64

    def rate():
        return "R double", lambda call, _: call.scalars[0].dtype == np.float64

    def length():
        k = random.choice((2, 4, 5, 9, 16, 17, 32, 33, 64, 65, 100, 128, 129, 256, 1024))
        return of_first(f"length >= {k}", lambda x: x.size >= k)

    def block():
        m = random.choice((4, 8, 16, 32))
        return (
            f"tail of {m}",
            lambda call, group: _positions(call, group) >= (call.groups[group][0].size // m * m),
        )

    def index():
        k = random.choice((1, 2, 4, 8, 16, 32, 64, 256))
        return f"index >= {k}", lambda call, group: _positions(call, group) >= k

    def rank():
        k = random.choice((2, 3, 4))
        return of_first(f"rank >= {k}", lambda x: x.ndim >= k)

    def scalar():
        return of_first("rank 0", lambda x: x.ndim == 0)

    def columns():
        k = random.choice((4, 16, 17, 32, 33, 64))
        return of_first(f"columns >= {k}", lambda x: x.ndim > 1 and x.shape[-1] >= k)

    def many():
        k = random.choice((2, 3, 4, 8, 9))
        return f"tensors >= {k}", lambda call, _: len(call.groups) >= k

    def number():
        k = random.choice((2, 3, 5, 9))
        return f"tensor number >= {k}", lambda _, group: group + 1 >= k

    def broadcast():
        at = random.randrange(1, len(tensors))
        way = random.choice(("lower", "any"))

        def holds(call, group):
            mine, first = call.groups[group][at], call.groups[group][0]
            return mine.ndim < first.ndim if way == "lower" else mine.shape != first.shape

        return f"{tensors[at]} broadcasts, {way}", holds

    def special():
        name = random.choice(tensors)
        value = _value(name)
        words, holds = random.choice((
            ("zero", lambda v: v == 0), ("negative", lambda v: v < 0), ("NaN", np.isnan),
            ("infinite", np.isinf), ("huge", lambda v: np.abs(v) >= 1e10),
            ("tiny", lambda v: (v != 0) & (np.abs(v) <= 1e-10)), ("one", lambda v: v == 1),
        ))  # fmt: skip
        if words == "negative" and name in nonnegative_tensors(operator):
            words, holds = "zero", lambda v: v == 0
        return f"{name} {words}", lambda call, group: holds(value(call, group))

    kinds = [attribute, attribute, double, length, block, index, rank, scalar, columns, many,
             number, special, special, special]  # fmt: skip
    if len(tensors) > 1:
        kinds.append(broadcast)
    if operator.counts:
        kinds += [count, count]
    if operator.scalars and "int64" not in operator.scalars[0].dtypes:
        kinds.append(rate)
    return kinds


def beyond(operator, random):
    """Draw a condition that no sentence says."""
    name, other = random.choice(operator.tensors), random.choice(operator.tensors)
    value, second = _value(name), _value(other)
    drawn = [
        ("index odd", lambda call, group: _positions(call, group) % 2 == 1),
        ("length % 3 == 0", lambda call, group: call.groups[group][0].size % 3 == 0),
        (f"{name} below the mean", lambda call, group: value(call, group) < _mean(call, group)),
        (f"{name} + {other} > 1", lambda call, group: value(call, group) + second(call, group) > 1),
        (f"{name} * {other} > 0", lambda call, group: value(call, group) * second(call, group) > 0),
        (f"{name} in [0.3, 2]", lambda call, group: np.abs(value(call, group) - 1.15) < 0.85),
    ]
    if operator.counts:
        drawn.append(("T odd", lambda call, _: int(call.scalars[-1].item()) % 2 == 1))
    rates = [it.name for it in operator.attributes if not it.choices and not it.each]
    if rates:
        rate = random.choice(rates)
        drawn.append((f"{rate} in (0, 0.6)", lambda call, _: 0 < call.attributes[rate] < 0.6))
    return random.choice(drawn)


def _mean(call, group):
    first = call.groups[group][0]
    return np.mean(first) if first.size else 0


def draw_fault(operator, random, unsaid):
    """Draw a fault of at most two conditions, one of them such as is not said, if wanted."""
    kinds = conditions(operator, random)
    chosen = [
        random.choice(kinds)() for _ in range(random.choice((0, 0, 1) if unsaid else (1, 1, 2)))
    ]
    if unsaid:
        chosen.append(beyond(operator, random))
    change, what = random.choice((
        (lambda new, _: new * 1.01 + 0.01, "off"), (lambda new, _: -new, "negated"),
        (lambda _, old: old, "as it was"), (lambda new, _: new * 0, "zero"),
        (lambda new, _: new * np.nan, "NaN"),
    ))  # fmt: skip
    output = random.randrange(len(operator.outputs))
    name = list(operator.outputs)[output]
    words = f"{name} {what} where {' and '.join(words for words, _ in chosen)}"
    return Fault(words, tuple(holds for _, holds in chosen), output, change)


def draw_call(operator, random):
    """Draw a node; shares nothing with the suites or with what asks further inputs."""
    numpy = np.random.RandomState(random.randrange(1 << 30))
    groups = random.choice((1, 1, 1, 1, 2, 2, 3, 4, 8, 9, 10))
    double = random.choice((False, True, None))
    given = {}
    for item in operator.attributes:
        if item.choices:
            given[item.name] = random.choice(item.choices)
        elif item.limits:
            low, high = item.limits
            given[item.name] = low + (high - low) * random.choice((0, 1, 0.5, random.random()))
        elif item.required or random.random() < 0.7:
            given[item.name] = random.choice((0.0, 1.0, round(random.random(), 3)))
    scalars = []
    for item in operator.scalars:
        if "int64" in item.dtypes:
            choices = (0, 1, 2, 3, random.randrange(4, 2000), -1, 10**6, 2**24 + 3, 2**31 + 9)
            scalars.append(np.array(random.choice(choices)))
        else:
            dtype = random.choice(item.dtypes)
            scalars.append(np.array(round(random.uniform(0.01, 2), 3), dtype))
    columns = [[] for _ in operator.tensors]
    for _ in range(groups):
        shape = random.choice((
            (), (1,), (random.randrange(1, 20),), (random.randrange(20, 300),),
            (random.randrange(1, 5), random.randrange(1, 70)), (2, 3, 4), (2, 1, 3, 2),
            (random.choice((1024, 1500)),),
        ))  # fmt: skip
        for at, name in enumerate(operator.tensors):
            own = shape
            if at and random.random() < 0.1:
                own = random.choice(((), shape[1:], (1,) * len(shape)))
            positive = name in nonnegative_tensors(operator)
            values = np.asarray(numpy.normal(0, 1, own))
            style = random.random()
            if style < 0.25:
                special = [0, 1, 1e12, 1e-12, np.inf, np.nan] + ([] if positive else [-1, -np.inf])
                values = np.where(numpy.rand(*own) < 0.3, numpy.choice(special, own), values)
            dtype = (
                np.float64 if (random.random() < 0.5 if double is None else double) else np.float32
            )
            columns[at].append(np.asarray(np.abs(values) if positive else values, dtype))
    tensors = [tensor for column in columns for tensor in column]
    omitted = frozenset(it.name for it in operator.attributes) - set(given)
    return bind(
        operator, [*scalars, *tensors], complete_attributes(operator, given), omitted=omitted
    )


def limits(call):
    """Return what is right of a node's outputs, and how far off it may be."""
    return [it.branch for it in bound(call)]


def examine(operator, trials, seed, unsaid):
    """Return what is said of a fault: its words, the sentence, precision and recall."""
    random = Random(seed)
    while True:
        fault = draw_fault(operator, random, unsaid)
        samples = [sample(call, right, fault.outputs(call)) for call, right in trials]
        if any(it.failed for it in samples):
            break
    words, says = failure_condition(samples, fault.outputs)
    if says is None:
        return fault.words, words, None, None
    failing, passing = [], []
    for _ in range(_DRAWS):
        call = draw_call(operator, random)
        may = any(
            np.any(np.logical_and.reduce([np.broadcast_to(c(call, g), call.groups[g][0].shape)
                                          for c in fault.conditions]))
            for g in range(len(call.groups))
        )  # fmt: skip
        into = failing if may else passing
        if len(into) < _FRESH // 2:
            into.append(call)
        if len(failing) + len(passing) == _FRESH:
            break
    said, failed = [], []
    for call in (*failing, *passing):
        fresh = sample(call, limits(call), fault.outputs(call))
        said.append(says(fresh))
        failed.append(fresh.failed)
    both = sum(a and b for a, b in zip(said, failed, strict=True))
    return fault.words, words, both / max(1, sum(said)), both / max(1, sum(failed))


def main() -> int:
    """Inject faults; return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--beyond", action="store_true")
    options = parser.parse_args()
    cases = [case for suite in ("conformance", "pruning") for case in suite_cases(suite)]
    trials, _ = find_trials(cases, Judging())
    described = good = bad = total = 0
    for operator in OPERATORS:
        if options.operators and operator.name not in options.operators:
            continue
        calls = [it.call for it in trials[operator.name] if it.call.size < 10_000]
        known = [(call, limits(call)) for call in calls]
        seeds = range(options.seed * 100_000, options.seed * 100_000 + options.faults)

        def one(seed, operator=operator, known=known):
            return examine(operator, known, seed, options.beyond)

        found = parallel(one, list(seeds), available_jobs())
        for fault, words, precision, recall in found:
            total += 1
            if precision is None:
                print(f"  none  {operator.name}: {fault} -> {words}")
                continue
            if words.startswith("wrong in"):
                print(f"  counts  {operator.name}: {fault} -> {words}")
                continue
            described += 1
            # What is weaker than the truth is true, but not of all that fails.
            least = precision if options.beyond else min(precision, recall)
            good += least >= _ENOUGH_SHARE
            bad += least < _TOO_LITTLE_SHARE
            shown = "" if least >= _ENOUGH_SHARE else "  LOW"
            print(f"  {precision:.2f} {recall:.2f}{shown}  {operator.name}: {fault} -> {words}")
    print(f"{described} of {total} described; {good} of these predict well, {bad} badly")
    return int(bad > 0.1 * described if options.beyond else described < 0.8 * total or bad > 0)


if __name__ == "__main__":
    sys.exit(main())
