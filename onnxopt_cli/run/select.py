"""Choosing among cases by what the user asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

from onnxopt_cli.core.case import Case
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import InvalidCase, UsageError
from onnxopt_cli.formula.nodes import operator_names
from onnxopt_cli.readings.capabilities import CAPABILITIES, capabilities


@dataclass(frozen=True, slots=True)
class Selection:
    """Filters over cases; an empty one lets everything through.

    Attributes:
        patterns: each a case's whole id; or a glob; or, without `*?[`, a piece of an id. A case
            must match one of them.
        operators: names of operators, one of which the model must contain.
        tags: tags, one of which the case must carry.
    """

    patterns: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    def choose(self, cases: Sequence[Case]) -> list[Case]:
        """Return the selected cases in their order; letter case never matters.

        Raises:
            UsageError: if an operator or a tag occurs in none of the cases.
        """
        chosen = list(cases)
        if self.patterns:
            ids = {name for pattern in self.patterns for name in _matching(pattern, cases)}
            chosen = [case for case in cases if case.id in ids]
        if self.tags:
            chosen = _having("tag", self.tags, [(case, case.tags) for case in chosen])
        if self.operators:
            pairs = [(case, operators_of(case)) for case in chosen]
            chosen = _having("operator", self.operators, pairs)
        return chosen


def unmatched(patterns: Sequence[str], cases: Sequence[Case]) -> list[str]:
    """Return the patterns that no case's id matches."""
    return [pattern for pattern in dict.fromkeys(patterns) if not _matching(pattern, cases)]


def operators_of(case: Case) -> tuple[str, ...]:
    """Return the names of the operators of a case's model; none if it cannot be read."""
    if case.operators is not None:
        return case.operators
    try:
        return operator_names(case.read().model)
    except InvalidCase:
        return ()


def _matching(pattern: str, cases: Sequence[Case]) -> list[str]:
    """Return the ids that one pattern matches; a whole id matches that id alone."""
    ids = [case.id for case in cases]
    if pattern in ids:
        return [pattern]
    lowered = pattern.lower()
    glob = lowered if set(lowered) & set("*?[") else f"*{lowered}*"
    return [name for name in ids if fnmatchcase(name.lower(), glob)]


def _having(
    what: str, wanted: tuple[str, ...], pairs: list[tuple[Case, tuple[str, ...]]]
) -> list[Case]:
    """Keep the cases that have one of the wanted words; a word that none has is a mistake."""
    known = {word.lower(): word for _, words in pairs for word in words}
    for word in wanted:
        if pairs and word.lower() not in known:
            near = get_close_matches(word.lower(), known, n=3)
            hint = "did you mean " + " or ".join(known[name] for name in near) + "?" if near else ""
            raise UsageError(f"no selected case has the {what} {word!r}", hint=hint)
    lowered = {word.lower() for word in wanted}
    return [case for case, words in pairs if lowered & {word.lower() for word in words}]


def leave_out(
    cases: Sequence[Case], without: Mapping[str, str]
) -> tuple[list[Case], dict[str, str]]:
    """Leave out the cases that need a capability.

    Args:
        cases: to choose among.
        without: names of capabilities, and why they are not asked for.

    Returns:
        The other cases, and for each name how many cases need it, and why they are left out.

    Raises:
        UsageError: if there is no such capability.
    """
    for name in without:
        if name not in CAPABILITIES:
            near = get_close_matches(name, CAPABILITIES, n=1)
            raise UsageError(
                f"there is no capability {printable(name)!r}",
                hint=f"did you mean {near[0]}?" if near else f"there are {', '.join(CAPABILITIES)}",
            )
    needs = [set(_capabilities(case)) if without else set() for case in cases]
    counts = {name: sum(name in it for it in needs) for name in without}
    return (
        [case for case, it in zip(cases, needs, strict=True) if it.isdisjoint(without)],
        {
            name: f"{counts[name]} case{'s' * (counts[name] != 1)}{': ' * bool(why)}{why}"
            for name, why in without.items()
        },
    )


def _capabilities(case: Case) -> tuple[str, ...]:
    try:
        return capabilities(case.read())
    except (InvalidCase, MemoryError):
        # Running it says so.
        return ()
