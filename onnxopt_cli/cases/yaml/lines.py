"""Parts of a case file as lines of YAML, none of them too long where that can be helped."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from onnxopt_cli.cases.values.tensor_notation import mapping_tokens, number_text, text_token
from onnxopt_cli.core.tolerance import Relative, Ulps

_WIDTH = 100


def tolerance_tokens(tolerance: Relative | Ulps) -> list[str]:
    """Write a tolerance for all outputs, or for one of them."""
    if isinstance(tolerance, Ulps):
        return mapping_tokens({"ulp": [str(tolerance.ulp)]})
    return mapping_tokens(
        {"rtol": [number_text(tolerance.rtol)], "atol": [number_text(tolerance.atol)]}
    )


def words(indent: str, name: str, text: str) -> list[str]:
    """Write a field of words, folded where it is long; nothing where it is empty."""
    if not text:
        return []
    line = f"{indent}{name}: {text_token(text, in_block=True)}"
    # Folding gives back single spaces between words only.
    if len(line) < _WIDTH or text != " ".join(text.split()) or not text.isprintable():
        return [line]
    return [f"{indent}{name}: >-", *_filled(text, f"{indent}  ")]


def comment(text: str, indent: str) -> list[str]:
    """Write a comment."""
    return [
        line
        for part in text.splitlines()
        for line in _filled(part, f"{indent}# ") or [f"{indent}#"]
    ]


def wrapped(start: str, tokens: Sequence[str]) -> list[str]:
    """Join tokens to lines, those after the first indented below it."""
    indent = " " * (len(start) - len(start.lstrip()) + 2)
    lines, line = [], start.rstrip()
    for token in tokens:
        if len(line) + 1 + len(token) < _WIDTH or line == start.rstrip():
            line = f"{line} {token}"
        else:
            lines.append(line)
            line = indent + token
    return [*lines, line]


def _filled(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH - 1,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
