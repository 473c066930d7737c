"""The formula gone wrong: every wrong implementation of an operator that has a name.

Those that a person would name stand beside the formula; those that any operator can have are
generated from its signature. What is wrong in a program's manners and not in its results, such as
writing into its inputs, is none of them: no value shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial

from onnxopt_cli.interpret.implementation import (
    Implementation,
    both,
    unchanged,
)
from onnxopt_cli.mutation.equivalence import equivalent
from onnxopt_cli.mutation.general_mistakes import generated
from onnxopt_cli.mutation.probes import probes
from onnxopt_cli.operators.operator import KnownMistake, Operator
from onnxopt_cli.operators.rewrite import rewrite


@cache
def known_mistakes(operator: Operator) -> tuple[Implementation, ...]:
    """Return the operator's wrong implementations, those of its own file first.

    Generated ones that equal the formula, or an earlier one, on every input of this operator are
    left out.

    Raises:
        ValueError: if a known mistake of the operator's file changes nothing that is there.
    """
    named = {mistake.name for mistake in operator.known_mistakes}
    different = [
        implementation
        for implementation in all_known_mistakes(operator)
        if implementation.name in named or not equivalent(operator, implementation)
    ]
    return tuple(distinct(operator, different))


@cache
def all_known_mistakes(operator: Operator) -> tuple[Implementation, ...]:
    """Return the wrong implementations unsifted, in no time: those of the operator's file first.

    Some may equal the formula, or an earlier one, on every input.

    Raises:
        ValueError: if a known mistake of the operator's file changes nothing that is there.
    """
    named = {mistake.name: mistake for mistake in operator.known_mistakes}
    others = {implementation.name: implementation for implementation in generated(operator)}
    own = [_implementation(operator, item, others.get(item.name)) for item in named.values()]
    return (*own, *(it for name, it in others.items() if name not in named))


@cache
def named(operator: Operator, *names: str) -> Implementation | None:
    """Return the implementation with all mistakes of these names; None if there is none."""
    known = {mistake.name: mistake for mistake in all_known_mistakes(operator)}
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
                key = tuple(
                    (output.dtype.str, output.shape, output.tobytes()) for output in outputs
                )
                alike.setdefault(key, []).append(implementation)
            parted += alike.values()
        groups = parted
    kept = {id(group[0]) for group in groups}
    return [implementation for implementation in implementations if id(implementation) in kept]


def _implementation(
    operator: Operator, mistake: KnownMistake, generated: Implementation | None
) -> Implementation:
    """Return the implementation; without a change of its own it is the generated one."""
    if not mistake.replace and not mistake.defaults:
        if generated is None:
            raise ValueError(f"{operator.name}: known mistake {mistake.name!r} changes nothing")
        return replace(generated, about=mistake.about, seen_in=mistake.seen_in)
    change = unchanged
    if mistake.replace:
        change = lru_cache(partial(rewrite, replace=mistake.replace))
        # It must be possible; the cache keeps what comes of it.
        change(operator.formula)
    rounds = any(".astype(" in it for it in mistake.replace.values())
    name, about, seen_in = mistake.name, mistake.about, mistake.seen_in
    defaults = mistake.defaults
    return Implementation(name, about, seen_in, change=change, defaults=defaults, rounds=rounds)
