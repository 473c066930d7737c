"""The pattern of a message: the message without the names, numbers and shapes of one case.

Messages with the same cause differ only in such parts, so that a report can list the cause once.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection

#: Replaces a part that differs from case to case.
PLACEHOLDER = "…"
# Only the beginning of a message is used, because messages name the cause before circumstances.
_MAX_PATTERN_SOURCE_CHARS = 600
_MAX_NESTING = 8
_QUOTED = re.compile(r"""(?<!\w)(?:"[^"]*"|'[^']*'|`[^`]*`|<[^<>]*>)""")
_INNERMOST_BRACKETS = re.compile(r"\[[^\[\](){}]*\]|\([^\[\](){}]*\)|\{[^\[\](){}]*\}")
# The closing bracket may have been cut off.
_OPEN_BRACKET = re.compile(r"[\[({].*", re.DOTALL)
_PATH = re.compile(r"(?<![\w/\\])(?:\w:)?[\w.@~+-]*[/\\][\w.@~+/\\-]*")
_NUMBER = re.compile(r"#?0x[0-9a-fA-F]+|(?<!\w)[-+#]?\d[\d.e+-]*(?!\w)")
# An identifier has a digit, an underscore, a dot or colons inside, or capitals after small letters.
_IDENTIFIER = re.compile(
    r"(?<![\w.:])(?:::)?(?:\w*[a-z][A-Z]\w*|\w*[\d_]\w*|\w+(?:(?:::|\.)\w+)+)(?:(?:::|\.)\w+)*"
)
_TYPE_NAME = re.compile(r"^[\w.]+:(?=\s)")
_WORD = re.compile(r"\w+")
# Other words of one letter, such as X or y, are names of tensors; these are English words.
_ONE_LETTER_WORDS = frozenset("aAI")
_PLACEHOLDERS = re.compile(rf"{PLACEHOLDER}(?:[\s,;x:]*{PLACEHOLDER})+")
# If otherwise equal patterns have at least this number of different words at one place, these words
# are considered names.
_MIN_NAMES = 3
_PUNCTUATION = ",;:."
# Types whose names have no digit.
_TYPES = frozenset({"bool", "double", "float", "string", "Bool", "Double", "Float", "String"})


def message_pattern(message: str, operators: Collection[str] = ()) -> str:
    """Return one line of a message with a placeholder for each part that is specific to a case.

    These parts are quoted text, text in brackets, paths, numbers, identifiers, element types and
    operators. The type of an exception at the beginning is kept. If the whole message is quoted or
    in brackets, such as an exception with a tuple of arguments, its quoted sentences are kept.

    Args:
        message: the line.
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
        text = accidental.sub(PLACEHOLDER, text)
    names = _TYPES.union(operators)

    def replaced(word: re.Match[str]) -> str:
        is_letter = len(word[0]) == 1 and word[0] not in _ONE_LETTER_WORDS
        return PLACEHOLDER if is_letter or word[0] in names else word[0]

    text = _WORD.sub(replaced, text)
    return f"{head} {_PLACEHOLDERS.sub(PLACEHOLDER, ' '.join(text.split()))}".strip()


def _without_enclosed_text(text: str) -> str:
    """Return a text with a placeholder for each quoted part and each part in brackets."""
    text = _QUOTED.sub(PLACEHOLDER, text)
    for _ in range(_MAX_NESTING):
        shorter = _INNERMOST_BRACKETS.sub(PLACEHOLDER, text)
        if shorter == text:
            break
        text = shorter
    return _OPEN_BRACKET.sub(PLACEHOLDER, text)


def merged_patterns(patterns: Collection[str]) -> dict[str, str]:
    """Return, for each pattern, the common pattern of all patterns that differ only by a name.

    A name may be an ordinary word, as in ``input start: rank mismatch``. Patterns that differ in
    one word are merged if the differing words are at least three, or if one of them is a
    placeholder. A pattern that differs from others in several places belongs to the largest group.
    """
    by_gap: dict[tuple[int, tuple[str, ...]], set[str]] = defaultdict(set)
    for pattern in set(patterns):
        words = pattern.split()
        # The first word is the type of the error.
        for place, word in enumerate(words[1:], start=1):
            gap = PLACEHOLDER + word[len(word.rstrip(_PUNCTUATION)) :]
            by_gap[place, (*words[:place], gap, *words[place + 1 :])].add(pattern)
    merged = {pattern: pattern for pattern in patterns}
    # If a pattern belongs to several groups, the last one, which is the largest, decides. Groups of
    # equal size are sorted by their words, so that the result does not depend on their order.
    groups = sorted(by_gap.items(), key=lambda item: (len(item[1]), item[0]))
    for (place, merged_words), alike in groups:
        at_gap = {pattern.split()[place].rstrip(_PUNCTUATION) for pattern in alike}
        if len(at_gap) >= _MIN_NAMES or (PLACEHOLDER in at_gap and len(alike) > 1):
            for pattern in alike:
                merged[pattern] = " ".join(merged_words)
    return merged
