"""Group failures by cause: by their explanations, or by the similarity of their messages.

Messages with the same cause often differ only in names, numbers and shapes of a case. The *pattern*
of a message is the message with placeholders for these parts. A report lists failures with the same
pattern as one cause.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import isfinite

from onnxopt_cli.core.record import Explanation
from onnxopt_cli.core.result import (
    KINDS_OF_OUTCOMES,
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
from onnxopt_cli.mutation.known_mistakes import named
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.operators.rewrite import formula_difference
from onnxopt_cli.report.view.result_view import operator_options, remark

_DIGITS = re.compile(r"\d+")
# The message of a trajectory begins with its first wrong step.
_STEP = re.compile(r"^(?:first exceeded the tolerance in )?step \d+\b.*")
_SHAPE = re.compile(r"\[.*?\]")
_MAX_LINE_CHARS = 200
# The largest number of outputs, and of operators, that a title names.
_MAX_NAMES = 3
# Examples with at most this number of elements are preferred, because large examples are hard to
# read.
_MAX_READABLE_ELEMENTS = 64
# The placeholder in a pattern for a part that differs between cases.
_PLACEHOLDER = "…"
# Only this number of characters of a message is used, because messages state the cause before the
# circumstances.
_MAX_PATTERN_SOURCE_CHARS = 600
_MAX_NESTING = 8
_QUOTED = re.compile(r"""(?<!\w)(?:"[^"]*"|'[^']*'|`[^`]*`|<[^<>]*>)""")
_INNERMOST_BRACKETS = re.compile(r"\[[^\[\](){}]*\]|\([^\[\](){}]*\)|\{[^\[\](){}]*\}")
# The message may have been cut off before the closing bracket.
_OPEN_BRACKET = re.compile(r"[\[({].*", re.DOTALL)
_PATH = re.compile(r"(?<![\w/\\])(?:\w:)?[\w.@~+-]*[/\\][\w.@~+/\\-]*")
_NUMBER = re.compile(r"#?0x[0-9a-fA-F]+|(?<!\w)[-+#]?\d[\d.e+-]*(?!\w)")
# Matches identifiers: words that contain a digit, an underscore, a dot, a colon, or a capital after
# a small letter.
_IDENTIFIER = re.compile(
    r"(?<![\w.:])(?:::)?(?:\w*[a-z][A-Z]\w*|\w*[\d_]\w*|\w+(?:(?:::|\.)\w+)+)(?:(?:::|\.)\w+)*"
)
_TYPE_NAME = re.compile(r"^[\w.]+:(?=\s)")
_WORD = re.compile(r"\w+")
# The only English words with one letter. Any other single letter, such as X or y, is the name of a
# tensor.
_ONE_LETTER_WORDS = frozenset("aAI")
_PLACEHOLDERS = re.compile(rf"{_PLACEHOLDER}(?:[\s,;x:]*{_PLACEHOLDER})+")
# Some patterns are equal except for one word. If there are at least this number of different words
# at this position, the words are considered names.
_MIN_NAMES = 3
_PUNCTUATION = ",;:."
# Element types whose names contain no digit.
_TYPES = frozenset({"bool", "double", "float", "string", "Bool", "Double", "Float", "String"})


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failures with the same explanation, or similar failures.

    Attributes:
        backend: the backend's name; empty for invalid cases, which are not the fault of a backend.
        cause: description of the common cause.
        operator: the operator of explained failures; empty for unexplained failures.
        known_mistakes: the known mistakes that explain the failures; may be empty.
        results: the failures, the most informative one first.
    """

    backend: str
    cause: str
    operator: str
    known_mistakes: tuple[str, ...]
    results: tuple[Result, ...]

    @property
    def more(self) -> str:
        """A command that shows the effect of the known mistakes; empty without known mistakes."""
        return mistake_command(self.operator, self.known_mistakes)

    @property
    def formula_change(self) -> list[str]:
        """The lines of the formula, with ``-`` and ``+`` before lines that the mistakes change.

        The result is empty if no known mistake is the cause, or if this installation lacks the
        operator.
        """
        operator = registry().named(self.operator) if self.known_mistakes else None
        mistake = named(operator, *self.known_mistakes) if operator else None
        if operator is None or mistake is None:
            return []
        return formula_difference(operator.formula, mistake.change(operator.formula))


def group_failures(
    failed: Sequence[Result], explanations: Sequence[Explanation]
) -> list[FailureGroup]:
    """Group failures by cause.

    Groups are ordered by severity, and groups of equal severity by size. Wrong values have the
    highest severity, and errors have the lowest. An invalid case is listed once, even if there are
    several backends.

    Args:
        failed: the failures.
        explanations: explanations of the failures.
    """
    explained = {
        (explanation.backend, case): (explanation.operator, cause.found, cause.known_mistakes)
        for explanation in explanations
        for cause in explanation.causes
        for case in cause.cases
    }
    patterns = _patterns(failed)
    groups: dict[
        tuple[str, tuple[str, str, tuple[str, ...]] | None, tuple[str, ...]], list[Result]
    ] = {}
    for result, pattern in zip(failed, patterns, strict=True):
        explanation = explained.get((result.backend, result.case))
        backend = "" if result.outcome is Outcome.INVALID else result.backend
        key = backend, explanation, () if explanation else _similarity_key(result, pattern)
        groups.setdefault(key, []).append(result)
    failure_groups = []
    for (backend, explanation, similarity), results in groups.items():
        ordered = _most_informative_first(results)
        operator, found, mistakes = explanation or ("", "", ())
        if explanation:
            cause = printable(f"{operator}: {'consistent with ' * bool(mistakes)}{found}")
        else:
            cause = _title(ordered[0], results, similarity[0])
        failure_groups.append(FailureGroup(backend, cause, operator, mistakes, tuple(ordered)))
    return sorted(failure_groups, key=_rank)


def causes_by_result(
    failed: Sequence[Result], explanations: Sequence[Explanation]
) -> dict[tuple[str, str], str]:
    """Return a description of the cause of each failure, by backend and case.

    The failures of each operator are grouped separately, so that each description names one
    operator.

    Args:
        failed: results that are not as expected.
        explanations: explanations of the failures.
    """
    by_operators: dict[tuple[str, ...], list[Result]] = {}
    for result in failed:
        by_operators.setdefault(result.operators, []).append(result)
    return {
        (result.backend, result.case): group.cause
        for results in by_operators.values()
        for group in group_failures(results, explanations)
        for result in group.results
    }


def _patterns(results: Sequence[Result]) -> list[str]:
    """Return the message pattern for each result."""
    operators = {name for result in results for name in result.operators}
    patterns = [message_pattern(_message_line(result), operators) for result in results]
    merged = merged_patterns(patterns)
    return [merged[pattern] for pattern in patterns]


def reasons_alike(results: Sequence[Result]) -> list[str]:
    """Return the reason of each result in one line.

    Reasons that differ only in names are merged.

    Args:
        results: results without outputs, such as unsupported ones.
    """
    lines = [_message_line(result) for result in results]
    patterns = _patterns(results)
    lines_by_pattern: dict[str, set[str]] = {}
    for line, pattern in zip(lines, patterns, strict=True):
        lines_by_pattern.setdefault(pattern, set()).add(line)
    reasons = (
        line if len(lines_by_pattern[pattern]) == 1 else pattern
        for line, pattern in zip(lines, patterns, strict=True)
    )
    return [printable(clipped(reason, 2 * _MAX_LINE_CHARS)) for reason in reasons]


def _rank(group: FailureGroup) -> tuple[int, int]:
    """Return the sort key of a group."""
    outcomes = {result.outcome for result in group.results}
    ranks = (rank for rank, kind in enumerate(KINDS_OF_OUTCOMES) if kind & outcomes)
    return min(ranks), -len(group.results)


def mistake_command(operator: str, mistakes: Sequence[str]) -> str:
    """Return a command that shows the effect of known mistakes; empty for an empty list."""
    if not mistakes:
        return ""
    words = [word for name in mistakes for word in ("--mistake", name)]
    words += operator_options([operator])
    return command_line(["onnxopt", "show", operator, *words])


def _similarity_key(result: Result, pattern: str) -> tuple[str, ...]:
    """Return a key that similar results have in common; its first item is the pattern."""
    structure = _wrong_structures(result)
    key = [pattern, result.outcome, result.standing or "", bool(result.flaky) * "flaky"]
    key += structure
    if result.wrong and not structure:
        # Results with wrong values are similar only if they have the same operator and the same
        # wrong outputs.
        key += [*result.operators, *sorted({_DIGITS.sub("", diff.name) for diff in result.wrong})]
    return tuple(map(str, key))


def _wrong_structures(result: Result) -> list[str]:
    """Return descriptions of outputs with a wrong structure, without shapes."""
    descriptions = set()
    for diff in result.wrong:
        if diff.structure:
            actual, expected = _SHAPE.sub("", diff.structure), _SHAPE.sub("", diff.kind)
            is_same_type = actual == f"is {expected}"
            subject = "outputs" if actual.startswith("are ") else "an output"
            other_type = f"{subject} {actual} where {expected} is expected"
            descriptions.add(
                "an output has another shape than expected" if is_same_type else other_type
            )
    return sorted(descriptions)


def _message_line(result: Result) -> str:
    """Return the most informative line of a result's message.

    This is the first line, followed by the second line if the first ends with a colon. The last
    line is not used, because it may be a frame of a stack trace.
    """
    message = remark(result)
    if result.wrong and _STEP.match(message):
        return ""
    first, *more = message.strip().split("\n", 2)
    return f"{first} {more[0].strip()}" if more and first.rstrip().endswith(":") else first


def _title(example: Result, similar: Sequence[Result], pattern: str) -> str:
    """Return a title for similar results, with their operators."""
    parts = _wrong_structures(example)
    if example.wrong and not parts:
        parts = [f"{some_of([diff.name for diff in example.wrong], _MAX_NAMES)} off"]
    if line := _message_line(example):
        is_common = all(_message_line(result) == line for result in similar)
        parts.append(clipped(line if is_common else pattern, _MAX_LINE_CHARS))
    if example.standing is Standing.UNEXPECTED_PASS:
        parts.insert(0, "passes, which is not expected")
    if example.flaky:
        parts.append("not in every run")
    words = clipped("; ".join(parts), 2 * _MAX_LINE_CHARS) or "not as expected"
    if example.outcome not in (Outcome.FAIL, Outcome.PASS):
        words = f"{example.outcome.value}: {words}"
    by_operator = Counter(map(_operator, similar))
    if len(by_operator) == 1:
        (name,) = by_operator
        return printable(f"{clipped(name, _MAX_LINE_CHARS)}: {words}" if name else words)
    if len(by_operator) <= _MAX_NAMES:
        counts = ", ".join(f"{name or 'others'} {count}" for name, count in by_operator.items())
        return printable(f"{words} ({clipped(counts, _MAX_LINE_CHARS)})")
    return printable(f"{words} ({len(by_operator)} operators)")


def _operator(result: Result) -> str:
    names = dict.fromkeys(result.operators)
    return "models of several operators" if len(names) > 1 else next(iter(names), "")


def _most_informative_first(results: Sequence[Result]) -> list[Result]:
    """Return results with the most informative result first.

    The most informative result has few elements and a large but finite error, so that a reader can
    verify it by hand. If no result has values, the first result has the most frequent message. A
    flaky result comes first only if all results are flaky.
    """
    message_counts = Counter(result.message for result in results)

    def rank(result: Result) -> tuple[object, ...]:
        wrong = [diff for diff in result.diffs if diff.mismatches]
        elements = sum(diff.elements for diff in result.diffs)
        # Relative errors above 1 count as 1, because a tiny expected value does not make a better
        # example.
        error = max((min(diff.max_relative, 1.0) for diff in wrong), default=0.0)
        finite = all(isfinite(diff.max_absolute) for diff in wrong)
        return (
            bool(result.flaky),
            elements > _MAX_READABLE_ELEMENTS,
            len(result.operators) > 1 or bool(result.curve),
            not finite,
            -error if error == error else 0.0,  # noqa: PLR0124 - NaN counts as 0
            -message_counts[result.message],
            elements,
        )

    best = min(results, key=rank)
    return [best, *(result for result in results if result is not best)]


def message_pattern(message: str, operators: Collection[str] = ()) -> str:
    """Return the pattern of a message: a placeholder replaces each part that is specific to a case.

    Placeholders replace quoted text, text in brackets, paths, numbers, identifiers, element types
    and operators. If a message begins with the type of an exception, the type is kept. If the whole
    message is quoted or in brackets, as for an exception with a tuple of arguments, its quoted
    sentences are kept.

    Args:
        message: one line of the message.
        operators: names of operators in the run.
    """
    text = message[:_MAX_PATTERN_SOURCE_CHARS]
    match = _TYPE_NAME.match(text)
    head = match[0] if match else ""
    source = text[len(head) :]
    text = _without_enclosed_text(source)
    if not _WORD.search(text):
        sentences = [quoted[0][1:-1] for quoted in _QUOTED.finditer(source)]
        sentences = [sentence for sentence in sentences if len(sentence.split()) > 1]
        text = _without_enclosed_text(" ".join(sentences)) if sentences else text
    for accidental in (_PATH, _NUMBER, _IDENTIFIER):
        text = accidental.sub(_PLACEHOLDER, text)
    names = _TYPES.union(operators)

    def replaced(word: re.Match[str]) -> str:
        is_letter = len(word[0]) == 1 and word[0] not in _ONE_LETTER_WORDS
        return _PLACEHOLDER if is_letter or word[0] in names else word[0]

    text = _WORD.sub(replaced, text)
    return f"{head} {_PLACEHOLDERS.sub(_PLACEHOLDER, ' '.join(text.split()))}".strip()


def _without_enclosed_text(text: str) -> str:
    """Return a text with a placeholder for each quoted part and each part in brackets."""
    text = _QUOTED.sub(_PLACEHOLDER, text)
    for _ in range(_MAX_NESTING):
        shorter = _INNERMOST_BRACKETS.sub(_PLACEHOLDER, text)
        if shorter == text:
            break
        text = shorter
    return _OPEN_BRACKET.sub(_PLACEHOLDER, text)


def merged_patterns(patterns: Collection[str]) -> dict[str, str]:
    """Merge the patterns that differ only in names; return the common pattern for each pattern.

    A name may be an ordinary word, as in ``input start: rank mismatch``. Patterns that differ in
    one word are merged if there are at least three different words, or if one of the words is a
    placeholder. If a pattern can be merged with several groups of patterns, it is merged with the
    largest group.
    """
    by_gap: dict[tuple[int, tuple[str, ...]], set[str]] = defaultdict(set)
    for pattern in set(patterns):
        words = pattern.split()
        # The first word of a pattern is the type of the error.
        for place, word in enumerate(words[1:], start=1):
            gap = _PLACEHOLDER + word[len(word.rstrip(_PUNCTUATION)) :]
            by_gap[place, (*words[:place], gap, *words[place + 1 :])].add(pattern)
    merged = {pattern: pattern for pattern in patterns}
    # If a pattern belongs to several groups, the last group determines the common pattern. The
    # groups are sorted by size, so that the last group is the largest. Groups of equal size are
    # sorted by their words, so that the result does not depend on the order of the patterns.
    groups = sorted(by_gap.items(), key=lambda item: (len(item[1]), item[0]))
    for (place, merged_words), alike in groups:
        at_gap = {pattern.split()[place].rstrip(_PUNCTUATION) for pattern in alike}
        if len(at_gap) >= _MIN_NAMES or (_PLACEHOLDER in at_gap and len(alike) > 1):
            for pattern in alike:
                merged[pattern] = " ".join(merged_words)
    return merged
