"""Failures in groups: those that a known mistake accounts for, and those that look alike."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite

from onnxopt_cli.core.record import Cause, Explanation
from onnxopt_cli.core.result import (
    Outcome,
    Result,
    Standing,
)
from onnxopt_cli.core.text import (
    clipped,
    command_line,
    printable,
    some_of,
)
from onnxopt_cli.report.diff_text import operator_options, remark
from onnxopt_cli.report.message_pattern import merged_patterns, message_pattern

_NUMBER = re.compile(r"\d+")
# Where in a trajectory something is wrong first.
_STEP = re.compile(r"^(?:first exceeded the tolerance in )?step \d+\b.*")
_SHAPE = re.compile(r"\[.*?\]")
# Characters of a title, names and operators in it.
_MAX_LINE_CHARS = 200
_NAMED = 3
# Wrong values say most about a backend, and a missing operator says least.
_SEVERITY = {
    outcome: rank
    for rank, outcomes in enumerate(
        (
            (Outcome.FAIL, Outcome.VACUOUS, Outcome.PASS),
            (Outcome.INVALID,),
            (Outcome.CRASH, Outcome.TIMEOUT, Outcome.OOM, Outcome.PROTOCOL, Outcome.LEAK),
            (Outcome.ERROR,),
        )
    )
    for outcome in outcomes
}
# An output with more elements is hard to read.
_FEW_ELEMENTS = 64


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failures that a known mistake accounts for, or that look alike.

    Attributes:
        backend: the backend's name; empty for an invalid case, which no backend is to blame for.
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
    """Return failures by cause: wrong values first, errors last, the most frequent cause first.

    An invalid case is listed once, whatever the number of backends.

    Args:
        failed: results that are not as expected, as :func:`failures` returns them.
        explanations: of failures, where one was looked for.
    """
    known = _explained(explanations)
    patterns = _patterns(failed)
    groups: dict[tuple[str, tuple[str, str] | None, tuple[str, ...]], list[Result]] = {}
    for result, pattern in zip(failed, patterns, strict=True):
        found = known.get((result.backend, result.case))
        backend = "" if result.outcome is Outcome.INVALID else result.backend
        key = backend, found, () if found else _looks(result, pattern)
        groups.setdefault(key, []).append(result)
    ranked = []
    for (backend, found, looks), mine in groups.items():
        ordered = _telling_first(mine)
        words, more = found or (_title(ordered[0], mine, looks[0]), "")
        ranked.append(FailureGroup(backend, words, more, tuple(ordered)))
    return sorted(ranked, key=_severest_first)


def _patterns(results: Sequence[Result]) -> list[str]:
    """Return the pattern of what each result says."""
    operators = {name for result in results for name in result.operators}
    patterns = [message_pattern(_said(result), operators) for result in results]
    merged = merged_patterns(patterns)
    return [merged[pattern] for pattern in patterns]


def reasons_alike(results: Sequence[Result]) -> list[str]:
    """Return the reason of each result in a line, the same for reasons that differ by names alone.

    Args:
        results: results without outputs, such as unsupported ones.
    """
    lines = [_said(result) for result in results]
    patterns = _patterns(results)
    variants: dict[str, set[str]] = {}
    for line, pattern in zip(lines, patterns, strict=True):
        variants.setdefault(pattern, set()).add(line)
    return [
        printable(clipped(line if len(variants[pattern]) == 1 else pattern, 2 * _MAX_LINE_CHARS))
        for line, pattern in zip(lines, patterns, strict=True)
    ]


def _severest_first(group: FailureGroup) -> tuple[int, int]:
    severity = min(_SEVERITY.get(it.outcome, len(_SEVERITY)) for it in group.results)
    return severity, -len(group.results)


def _explained(explanations: Iterable[Explanation]) -> dict[tuple[str, str], tuple[str, str]]:
    """Return cause and command by backend and case; only this knows how explanations are made."""
    return {
        (it.backend, case): (
            printable(
                f"{it.operator}: {'consistent with ' * bool(cause.known_mistakes)}{cause.found}"
            ),
            mistake_command(it, cause),
        )
        for it in explanations
        for cause in it.causes
        for case in cause.cases
    }


def mistake_command(explanation: Explanation, cause: Cause) -> str:
    """Return a command that shows the known mistakes of a cause; empty if it has none."""
    if not cause.known_mistakes:
        return ""
    words = [word for name in cause.known_mistakes for word in ("--mistake", name)]
    words += operator_options([explanation.operator])
    return command_line(["onnxopt", "show", explanation.operator, *words])


def _looks(result: Result, pattern: str) -> tuple[str, ...]:
    """Return what is the same of two results that look alike, the pattern of the message first."""
    structure = sorted({_structure(it.structure, it.kind) for it in result.wrong if it.structure})
    key = [pattern, result.outcome, result.standing or "", bool(result.flaky) * "flaky"]
    key += structure
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
    """Return the line of a result that says most beside which values are wrong.

    The last line of several may be a frame of a stack, which says nothing.
    """
    message = remark(result)
    if result.wrong and _STEP.match(message):
        return ""
    first, *more = message.strip().split("\n", 2)
    return f"{first} {more[0].strip()}" if more and first.rstrip().endswith(":") else first


def _title(example: Result, alike: Sequence[Result], pattern: str) -> str:
    """Say what results that look alike have in common, and of which operators they are."""
    parts = sorted({_structure(it.structure, it.kind) for it in example.wrong if it.structure})
    if example.wrong and not parts:
        parts = [f"{some_of([diff.name for diff in example.wrong], _NAMED)} off"]
    if said := _said(example):
        if any(_said(it) != said for it in alike):
            said = pattern
        parts.append(clipped(said, _MAX_LINE_CHARS))
    if example.standing is Standing.UNEXPECTED_PASS:
        parts.insert(0, "passes, which is not expected")
    if example.flaky:
        parts.append("not in every run")
    words = clipped("; ".join(parts), 2 * _MAX_LINE_CHARS) or "not as expected"
    if example.outcome not in (Outcome.FAIL, Outcome.PASS):
        words = f"{example.outcome.value}: {words}"
    by_operator = Counter(map(_operator, alike))
    if len(by_operator) == 1:
        (name,) = by_operator
        return printable(f"{clipped(name, _MAX_LINE_CHARS)}: {words}" if name else words)
    if len(by_operator) <= _NAMED:
        counts = ", ".join(f"{name or 'others'} {count}" for name, count in by_operator.items())
        return printable(f"{words} ({clipped(counts, _MAX_LINE_CHARS)})")
    return printable(f"{words} ({len(by_operator)} operators)")


def _operator(result: Result) -> str:
    names = dict.fromkeys(result.operators)
    return "models of several operators" if len(names) > 1 else next(iter(names), "")


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
