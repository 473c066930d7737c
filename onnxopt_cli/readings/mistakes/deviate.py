"""The formula gone wrong: every wrong implementation of an operator that has a name.

Those that a person would name stand beside the formula; those that any operator can have are
generated from its signature. What is wrong in a program's manners and not in its results, such as
writing into its inputs, is none of them: no value shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial

from onnxopt_cli.formula.operator import Deviation, Operator
from onnxopt_cli.formula.rewrite import rewrite
from onnxopt_cli.readings.implementation import Implementation, both, unchanged
from onnxopt_cli.readings.mistakes.equivalence import equivalent
from onnxopt_cli.readings.mistakes.generated import generated
from onnxopt_cli.readings.mistakes.probes import probes


@cache
def deviations(operator: Operator) -> tuple[Implementation, ...]:
    """Return the operator's wrong implementations, those of its own file first.

    Generated ones that equal the formula, or an earlier one, on every input of this operator are
    left out.

    Raises:
        ValueError: if a deviation of the operator's file changes nothing that is there.
    """
    named = {deviation.name for deviation in operator.deviations}
    different = [
        implementation
        for implementation in all_deviations(operator)
        if implementation.name in named or not equivalent(operator, implementation)
    ]
    return tuple(distinct(operator, different))


@cache
def all_deviations(operator: Operator) -> tuple[Implementation, ...]:
    """Return the wrong implementations unsifted, in no time: those of the operator's file first.

    Some may equal the formula, or an earlier one, on every input.

    Raises:
        ValueError: if a deviation of the operator's file changes nothing that is there.
    """
    named = {deviation.name: deviation for deviation in operator.deviations}
    others = {implementation.name: implementation for implementation in generated(operator)}
    own = [_implementation(operator, item, others.get(item.name)) for item in named.values()]
    return (*own, *(it for name, it in others.items() if name not in named))


@cache
def named(operator: Operator, *names: str) -> Implementation | None:
    """Return the implementation with all mistakes of these names; None if there is none."""
    known = {it.name: it for it in all_deviations(operator)}
    found = known.get(names[0])
    for name in names[1:]:
        other = known.get(name)
        found = both(found, other) if found and other else None
    return found


def distinct(operator: Operator, implementations: Sequence[Implementation]) -> list[Implementation]:
    """Leave out what computes the same as an earlier one on every probe, bit for bit."""
    groups = [list(implementations)]
    for probe in probes(operator):
        parted: list[list[Implementation]] = []
        for group in groups:
            if len(group) == 1:
                parted.append(group)
                continue
            alike: dict[object, list[Implementation]] = {}
            for implementation in group:
                outputs = implementation.run(probe.call)
                key = tuple((it.dtype.str, it.shape, it.tobytes()) for it in outputs)
                alike.setdefault(key, []).append(implementation)
            parted += alike.values()
        groups = parted
    kept = {id(group[0]) for group in groups}
    return [each for each in implementations if id(each) in kept]


def _implementation(
    operator: Operator, deviation: Deviation, generated: Implementation | None
) -> Implementation:
    """Return the implementation; without a change of its own it is the generated one."""
    if not deviation.replace and not deviation.defaults:
        if generated is None:
            raise ValueError(f"{operator.name}: deviation {deviation.name!r} changes nothing")
        return replace(generated, about=deviation.about, seen_in=deviation.seen_in)
    change = unchanged
    if deviation.replace:
        change = lru_cache(partial(rewrite, replace=deviation.replace))
        # It must be possible; the cache keeps what comes of it.
        change(operator.formula)
    rounds = any(".astype(" in it for it in deviation.replace.values())
    name, about, seen_in = deviation.name, deviation.about, deviation.seen_in
    defaults = deviation.defaults
    return Implementation(name, about, seen_in, change=change, defaults=defaults, rounds=rounds)
