"""Text from files, names and backends, made fit to be shown, and ends of processes in words."""

from __future__ import annotations

import re
import signal
import unicodedata

# Control characters, format characters (bidirectional overrides among them), surrogates, and the
# separators that some terminals take for line ends.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# The last two codes of each plane are no characters; XML cannot hold them.
_NONE = 0xFFFE
_LONGEST = 4000
# GitHub's runner takes an output line that begins so for a command to itself.
_WORKFLOW_COMMAND = re.compile(r"^(\s*):(?=:)", re.MULTILINE)


def printable(text: str, *, lines: bool = False) -> str:
    r"""Return the text with everything invisible or harmful as a visible escape.

    Args:
        text: anything.
        lines: keep line ends (and turn tabs into spaces) instead of escaping them.
    """
    text = shortened(text)
    if lines:
        text = text.expandtabs(4)
    shown = "".join(
        character
        if not _is_hidden(character) or (lines and character == "\n")
        else character.encode("unicode_escape", "surrogatepass").decode("ascii")
        for character in text
    )
    return _WORKFLOW_COMMAND.sub(r"\1\\x3a", shown)


def shortened(text: str, most: int = _LONGEST) -> str:
    """Return the text, or its beginning and how much more there is."""
    return text if len(text) <= most else f"{text[:most]} ... ({len(text) - most} more characters)"


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
