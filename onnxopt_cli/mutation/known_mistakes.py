"""The known mistakes of an operator: the named wrong implementations.

The file of an operator defines mistakes of this operator. Mistakes that any operator can have are
generated from its signature. A defect that has no effect on outputs, such as writing to an input,
is not a known mistake.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache, partial

import numpy as np

from onnxopt_cli.interpret.implementation import (
    Implementation,
    both,
    unchanged,
)
from onnxopt_cli.mutation.equivalence import distinct, equivalent
from onnxopt_cli.mutation.general_mistakes import generated
from onnxopt_cli.operators.operator import KnownMistake, Operator
from onnxopt_cli.operators.rewrite import rewrite


@cache
def known_mistakes(operator: Operator) -> tuple[Implementation, ...]:
    """Return the operator's known mistakes. The mistakes in the operator's file come first.

    Generated mistakes that are equivalent to the formula or to an earlier mistake are omitted.

    Raises:
        ValueError: if the operator's file has a known mistake without a change, or one that
            replaces an expression which the formula lacks.
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
    """Return the known mistakes, without the slow search that omits equivalent mistakes.

    The mistakes in the operator's file come first. Some mistakes may be equivalent to the formula
    or to other mistakes.

    Raises:
        ValueError: if the operator's file has a known mistake without a change, or one that
            replaces an expression which the formula lacks.
    """
    named = {mistake.name: mistake for mistake in operator.known_mistakes}
    general = {implementation.name: implementation for implementation in generated(operator)}
    specific = [
        _implementation(operator, mistake, general.get(mistake.name)) for mistake in named.values()
    ]
    return (
        *specific,
        *(implementation for name, implementation in general.items() if name not in named),
    )


@cache
def named(operator: Operator, *names: str) -> Implementation | None:
    """Return the implementation with all named mistakes; None if a name is unknown."""
    by_name = {mistake.name: mistake for mistake in all_known_mistakes(operator)}
    combined = by_name.get(names[0])
    for name in names[1:]:
        mistake = by_name.get(name)
        combined = both(combined, mistake) if combined and mistake else None
    return combined


def is_likely(operator: Operator, mistake: Implementation) -> bool:
    """Return whether a mistake is listed in the operator's file, or is common in any operator.

    Common mistakes are an ignored attribute and computation in float32.
    """
    listed = mistake.name in {listed_mistake.name for listed_mistake in operator.known_mistakes}
    return listed or ignores_attribute(operator, mistake) or mistake.precision == np.float32


def ignores_attribute(operator: Operator, mistake: Implementation) -> bool:
    """Return whether a mistake always uses the default or another fixed value of an attribute."""
    prefixes = tuple(f"{attribute.name} taken as" for attribute in operator.attributes)
    return mistake.name.startswith(prefixes)


def _implementation(
    operator: Operator, mistake: KnownMistake, generated: Implementation | None
) -> Implementation:
    """Return the implementation of a mistake.

    If a known mistake states no changes, the generated mistake of the same name is returned.
    """
    if not mistake.replace and not mistake.defaults:
        if generated is None:
            raise ValueError(f"{operator.name}: known mistake {mistake.name!r} changes nothing")
        return replace(generated, about=mistake.about, seen_in=mistake.seen_in)
    change = unchanged
    if mistake.replace:
        change = lru_cache(partial(rewrite, replace=mistake.replace))
        # This call raises ValueError if the formula lacks the expression.
        change(operator.formula)
    rounds = any(".astype(" in expression for expression in mistake.replace.values())
    name, about, seen_in = mistake.name, mistake.about, mistake.seen_in
    defaults = mistake.defaults
    return Implementation(name, about, seen_in, change=change, defaults=defaults, rounds=rounds)
