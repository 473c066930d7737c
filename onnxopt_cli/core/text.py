"""Text from files, names and backends, made fit to be shown, and ends of processes in words."""

from __future__ import annotations

import re
import signal
import unicodedata
from collections.abc import Iterable

# Control characters, format characters (bidirectional overrides among them), surrogates, and the
# separators that some terminals take for line ends.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# The last two codes of each plane are no characters; XML cannot hold them.
_NONE = 0xFFFE
_LONGEST = 4000
# Of a text with lines, which may be a stack trace.
_LONGEST_LINES = 32_000
_NOTE = 60
# GitHub's runner takes an output line that begins so for a command to itself.
_WORKFLOW_COMMAND = re.compile(r"^(\s*):(?=:)", re.MULTILINE)


def printable(text: str, *, lines: bool = False) -> str:
    r"""Return the text with everything invisible or harmful as a visible escape.

    Of a text that is very long the beginning and the end are left, for the last line of a stack
    trace says the most.

    Args:
        text: anything.
        lines: keep line ends (and turn tabs into spaces) instead of escaping them.
    """
    text = clipped(text, _LONGEST_LINES if lines else _LONGEST, "\n" if lines else " ")
    if lines:
        text = text.expandtabs(4)
    shown = "".join(
        character
        if not _is_hidden(character) or (lines and character == "\n")
        else character.encode("unicode_escape", "surrogatepass").decode("ascii")
        for character in text
    )
    return _WORKFLOW_COMMAND.sub(r"\1\\x3a", shown)


def clipped(text: str, longest: int = _LONGEST, space: str = " ") -> str:
    """Return a text of at most so many characters, at least 200: its beginning and its end.

    Args:
        text: anything.
        longest: the number of characters.
        space: what stands around the note that says how many were left out.
    """
    if len(text) <= longest:
        return text
    tail = (longest - _NOTE) // 4
    head = longest - _NOTE - tail
    left = len(text) - head - tail
    return f"{text[:head]}{space}... ({left} characters left out) ...{space}{text[-tail:]}"


def nearest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return a question that names the known name most like one, or something else if none is."""
    import difflib

    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]}?" if near else otherwise


class FreeNames:
    """Names of which each is taken once, in whatever letter case and spaces around it.

    Args:
        form: how a number is put behind a name that is taken, as in ``"{} ({})"``.
    """

    def __init__(self, form: str) -> None:
        self._form = form
        self._taken: set[tuple[str, ...]] = set()
        self._numbers: dict[tuple[str, ...], int] = {}

    def free(self, name: str, *within: str) -> str:
        """Return the name, or with the first number from 2 on that is free, and take it."""
        key = tuple(part.strip().casefold() for part in (name, *within))
        free, tried = name, key
        number = self._numbers.get(key, 1)
        while tried in self._taken:
            number += 1
            free = self._form.format(name, number)
            tried = (free.strip().casefold(), *key[1:])
        self._numbers[key] = number
        self._taken.add(tried)
        return free


def _is_hidden(character: str) -> bool:
    return unicodedata.category(character) in _HIDDEN or ord(character) & _NONE == _NONE


def exception_text(error: BaseException) -> str:
    """Return an exception's type and message, printable; never raises, whatever its ``__str__``."""
    name = type(error).__name__
    try:
        message = str(error)
    except BaseException as inner:  # noqa: BLE001 - a backend's __str__ may raise anything
        message = f"(its message raises {type(inner).__name__})"
    return printable(f"{name}: {message}" if message else name, lines=True)


def exit_text(code: int) -> str:
    """Say how a process ended, by its exit code or the negative number of a signal."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
