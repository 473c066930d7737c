"""Failures in groups: those that a known mistake accounts for, and those that look alike."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite

from onnxopt_cli.core.record import Cause, Explanation
from onnxopt_cli.core.result import Outcome, Result, Standing
from onnxopt_cli.core.text import clipped, printable, some_of
from onnxopt_cli.report.diff_text import headline, operator_options, remark

# What differs between messages of one cause: addresses, numbers that are no part of a name, paths.
_ACCIDENTAL = re.compile(r"0x[0-9a-fA-F]+|(?<![\w.])[-+]?\d[\d.e+-]*(?!\w)|(?:/[\w.@-]+){2,}/?")
_NUMBER = re.compile(r"\d+")
# Where in a trajectory something is wrong first.
_STEP = re.compile(r"^(?:left the budget first in )?step \d+\b.*")
_SHAPE = re.compile(r"\[.*?\]")
# Characters of a title, names and operators in it.
_LONGEST = 200
_NAMED = 3
# An output with more elements is hard to read.
_FEW_ELEMENTS = 64


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failures of one backend that a known mistake accounts for, or that look alike.

    Attributes:
        backend: the backend's name.
        cause: what they have in common, in words.
        more: a command that shows what the known mistake changes; empty where none is known.
        results: the failures, the one that shows the most first.
    """

    backend: str
    cause: str
    more: str
    results: tuple[Result, ...]


def group_failures(
    failed: Sequence[Result], explanations: Sequence[Explanation]
) -> list[FailureGroup]:
    """Return failures by cause, the most frequent cause first.

    Args:
        failed: results that are not as expected.
        explanations: of failures, where one was looked for.
    """
    known = _explained(explanations)
    groups: dict[tuple[str, tuple[str, str] | None, tuple[str, ...]], list[Result]] = {}
    for result in failed:
        found = known.get((result.backend, result.case))
        key = result.backend, found, () if found else _looks(result)
        groups.setdefault(key, []).append(result)
    ranked = []
    for (backend, found, _), mine in groups.items():
        ordered = _telling_first(mine)
        words, more = found or (_title(ordered[0], mine), "")
        ranked.append(FailureGroup(backend, words, more, tuple(ordered)))
    return sorted(ranked, key=lambda it: -len(it.results))


def _explained(explanations: Iterable[Explanation]) -> dict[tuple[str, str], tuple[str, str]]:
    """Return cause and command by backend and case; only this knows how explanations are made."""
    return {
        (it.backend, case): (
            printable(f"{it.operator}: {'consistent with ' * bool(cause.deviations)}{cause.found}"),
            mistake_command(it, cause),
        )
        for it in explanations
        for cause in it.causes
        for case in cause.cases
    }


def mistake_command(explanation: Explanation, cause: Cause) -> str:
    """Return a command that shows what the deviations of a cause change; empty if it has none."""
    if not cause.deviations:
        return ""
    words = [word for name in cause.deviations for word in ("--mistake", name)]
    words += operator_options([explanation.operator])
    return printable(shlex.join(["onnxopt", "show", explanation.operator, *words]))


def _looks(result: Result) -> tuple[str, ...]:
    """Return what is the same of two results that look alike."""
    structure = sorted({_structure(it.structure, it.kind) for it in result.wrong if it.structure})
    said = _ACCIDENTAL.sub("N", _said(result).replace(result.case, "CASE"))
    key = [result.outcome, result.standing or "", bool(result.flaky) * "flaky", said, *structure]
    if result.wrong and not structure:
        # Values say little without the formula that they come from.
        key += [*result.operators, *sorted({_NUMBER.sub("", diff.name) for diff in result.wrong})]
    return tuple(map(str, key))


def _structure(found: str, kind: str) -> str:
    """Return what is wrong with the structure of outputs, whatever their shapes."""
    without = _SHAPE.sub("", found)
    if without == f"is {_SHAPE.sub('', kind)}":
        return "another shape than expected"
    return f"{without} where {_SHAPE.sub('', kind)} is expected"


def _said(result: Result) -> str:
    """Return the first and the last line of what a result says beside which values are wrong."""
    message = remark(result)
    if result.wrong and _STEP.match(message):
        return ""
    return headline(result) if "\n" in message else clipped(message, 2 * _LONGEST)


def _title(example: Result, alike: Sequence[Result]) -> str:
    """Say what results that look alike have in common, and of which operators they are."""
    parts = sorted({_structure(it.structure, it.kind) for it in example.wrong if it.structure})
    if example.wrong and not parts:
        parts = [f"{some_of([diff.name for diff in example.wrong], _NAMED)} off"]
    if said := _said(example):
        parts.append(clipped(said, _LONGEST))
    if example.standing is Standing.UNEXPECTED_PASS:
        parts.insert(0, "passes, which is not expected")
    if example.flaky:
        parts.append("not in every run")
    words = clipped("; ".join(parts), 2 * _LONGEST) or "not as expected"
    if example.outcome not in (Outcome.FAIL, Outcome.PASS):
        words = f"{example.outcome.value}: {words}"
    operators = Counter(", ".join(dict.fromkeys(it.operators)) for it in alike)
    names = [name for name in operators if name]
    if len(names) == 1 and len(operators) == 1:
        return printable(f"{clipped(names[0], _LONGEST)}: {words}")
    if names and len(operators) <= _NAMED:
        counts = ", ".join(f"{name or 'others'} {count}" for name, count in operators.items())
        return printable(f"{words} ({clipped(counts, _LONGEST)})")
    return printable(f"{words} ({len(operators)} operators)" if names else words)


def _telling_first(results: Sequence[Result]) -> list[Result]:
    """Return results with the one first that shows the most.

    That is a small one whose values are far off and finite, so that they can be computed by hand;
    of those without values one that says what most of them say. A flaky one shows little.
    """
    said = Counter(it.message for it in results)

    def rank(result: Result) -> tuple[object, ...]:
        wrong = [diff for diff in result.diffs if diff.mismatches]
        elements = sum(diff.elements for diff in result.diffs)
        # What is off by more than itself is as plain, however small the expected value is.
        off = max((min(diff.max_relative, 1.0) for diff in wrong), default=0.0)
        finite = all(isfinite(diff.max_absolute) for diff in wrong)
        return (
            bool(result.flaky),
            elements > _FEW_ELEMENTS,
            len(result.operators) > 1 or bool(result.curve),
            not finite,
            -off if off == off else 0.0,  # noqa: PLR0124 - not for NaN
            -said[result.message],
            elements,
        )

    best = min(results, key=rank)
    return [best, *(it for it in results if it is not best)]
