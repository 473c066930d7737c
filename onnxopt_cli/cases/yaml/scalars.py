"""What a plain scalar of a YAML file stands for: the rules of YAML 1.2, and C's hexadecimal floats.

PyYAML resolves by YAML 1.1, where ``1e-7`` is text, ``010`` is eight and ``no`` is false.
"""

from __future__ import annotations

import re
from typing import TypeAlias

Scalar: TypeAlias = bool | int | float | str | None

_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_BASED_INTEGER = re.compile(r"[-+]?0(?:x[0-9a-fA-F]+|o[0-7]+)")
_DECIMAL = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_HEXADECIMAL = re.compile(
    r"[-+]?0[xX](?:\.[0-9a-fA-F]+|[0-9a-fA-F]+(?:\.[0-9a-fA-F]*)?)[pP][-+]?[0-9]+"
)

# Below the largest double, so that every integer of a file can also become a float.
_MOST_DIGITS = 300


def plain_scalar(text: str) -> Scalar:
    """Return the value of an unquoted scalar; text that is nothing else stands for itself.

    A decimal becomes the nearest double, an integer stays exact.

    Raises:
        ValueError: if the text is a number that neither a double nor 300 digits can hold.
    """
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "+-.0123456789":
        return text
    if _INTEGER.fullmatch(text):
        return int(_bounded(text))
    if _DECIMAL.fullmatch(text):
        return _nonvanishing(text, text.lower().partition("e")[0], float(text))
    if _BASED_INTEGER.fullmatch(text):
        return int(_bounded(text), 0)
    if _HEXADECIMAL.fullmatch(text):
        digits = text.lower().partition("x")[2].partition("p")[0]
        return _nonvanishing(text, digits, _from_hexadecimal(text))
    return text


def _bounded(text: str) -> str:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"an integer of {len(text)} digits, expected at most {_MOST_DIGITS}")
    return text


def _from_hexadecimal(text: str) -> float:
    try:
        return float.fromhex(text)
    except OverflowError:
        return float("inf")


def _nonvanishing(text: str, digits: str, value: float) -> float:
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:40]}, expected a number in the range of a double, or .inf")
    if value == 0 and digits.strip("+-0."):
        raise ValueError(f"{text[:40]}, expected a number that a double can tell from zero")
    return value
