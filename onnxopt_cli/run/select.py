"""Choosing among cases by what the user asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

from onnxopt_cli.core.case import Case
from onnxopt_cli.errors import InvalidCase, UsageError
from onnxopt_cli.operators.nodes import operator_names


@dataclass(frozen=True, slots=True)
class Selection:
    """Filters over cases; an empty one lets everything through.

    Attributes:
        pattern: a case's whole id; or a glob that it must match; or, without `*?[`, a piece of it.
        operators: names of operators, one of which the model must contain.
        tags: tags, one of which the case must carry.
    """

    pattern: str = ""
    operators: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    def choose(self, cases: Sequence[Case]) -> list[Case]:
        """Return the selected cases in their order; letter case never matters.

        Raises:
            UsageError: if an operator or a tag occurs in none of the cases.
        """
        pattern = self.pattern.lower()
        if not set(pattern) & set("*?["):
            pattern = f"*{pattern}*"
        chosen = [case for case in cases if case.id == self.pattern]
        chosen = chosen or [case for case in cases if fnmatchcase(case.id.lower(), pattern)]
        if self.tags:
            chosen = _having("tag", self.tags, [(case, case.tags) for case in chosen])
        if self.operators:
            pairs = [(case, operators_of(case)) for case in chosen]
            chosen = _having("operator", self.operators, pairs)
        return chosen


def operators_of(case: Case) -> tuple[str, ...]:
    """Return the names of the operators of a case's model; none if it cannot be read."""
    if case.operators is not None:
        return case.operators
    try:
        return operator_names(case.read().model)
    except InvalidCase:
        return ()


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
