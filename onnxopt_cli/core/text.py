"""Text from files, names and backends, made fit to be shown, and ends of processes in words."""

from __future__ import annotations

import re
import signal
import unicodedata
from collections.abc import Callable, Iterable, Sequence

# Control characters, format characters (bidirectional overrides among them), surrogates, and the
# separators that some terminals take for line ends.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# The last two codes of each plane are no characters; XML cannot hold them.
_NONE = 0xFFFE
_MAX_TEXT_CHARS = 4000
# Of a text with lines, which may be a stack trace.
_MAX_LINES_CHARS = 32_000
_NOTE = 60
_ASCII = 128
# What CI servers take for commands to themselves: GitHub a line of output that begins with two
# colons, Azure, TeamCity and older runners of GitHub any with ##[word] or ##vso[word] in it. Before
# the colons may stand blanks, the frame of a panel, and what gives colour.
_AT_LINE_START = re.compile(r"((?:^|\r)(?:[\s\u2500-\u259f]|\x1b\[[\d;]*m)*):(?=:)", re.MULTILINE)
_ANYWHERE = re.compile(r"#(?=#\w*\[)")


def printable(text: str, *, lines: bool = False) -> str:
    r"""Return the text with everything invisible or harmful as a visible escape.

    Of a text that is very long the beginning and the end are left, for the last line of a stack
    trace says the most.

    Args:
        text: anything.
        lines: keep line ends (and turn tabs into spaces) instead of escaping them.
    """
    if (
        len(text) <= _MAX_TEXT_CHARS
        and text.isascii()
        and text.isprintable()
        and not _may_command(text)
    ):
        return text
    text = clipped(text, _MAX_LINES_CHARS if lines else _MAX_TEXT_CHARS, "\n" if lines else " ")
    if lines:
        text = text.expandtabs(4)
    shown = "".join(
        character
        if not _is_hidden(character) or (lines and character == "\n")
        else character.encode("unicode_escape", "surrogatepass").decode("ascii")
        for character in text
    )
    return without_ci_commands(shown)


def without_ci_commands(text: str, *, goes_on: bool = False) -> str:
    """Return lines of output that no CI server takes for commands to itself.

    Args:
        text: the lines.
        goes_on: whether the first one is the rest of a line that has begun.
    """
    if not _may_command(text):
        return text
    first, end, rest = text.partition("\n")
    if not goes_on:
        first, end, rest = "", "", text
    return _ANYWHERE.sub(r"\\x23", first + end + _AT_LINE_START.sub(r"\1\\x3a", rest))


def _may_command(text: str) -> bool:
    return "::" in text or "##" in text


def clipped(text: str, longest: int = _MAX_TEXT_CHARS, space: str = " ") -> str:
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


def command_line(words: Iterable[str]) -> str:
    r"""Return words as a shell takes them, printable, in one line.

    A word with what is not shown is written as bash, ksh and zsh read it: ``$'a\x0a'``.
    """
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    import shlex

    if len(word) <= _MAX_TEXT_CHARS and printable(word) == word:
        return shlex.quote(word)
    try:
        data = word.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        data = word.encode("utf-8", "surrogatepass")
    shown = (chr(it) if chr(it).isalnum() and it < _ASCII else f"\\x{it:02x}" for it in data)
    return f"$'{''.join(shown)}'"


def nearest(name: str, known: Iterable[str], otherwise: str = "", cutoff: float = 0.6) -> str:
    """Return a question that names the known name most like one, or something else if none is.

    Letter case does not matter.

    Args:
        name: what was written.
        known: the names that there are.
        otherwise: what is said if none is like it.
        cutoff: how alike a name must be, from 0 to 1.
    """
    import difflib

    names = {it.lower(): it for it in known}
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=cutoff)
    return f"did you mean {names[near[0]]}?" if near else otherwise


def some_of(names: Sequence[str], most: int) -> str:
    """Return the first of some names, fit to be shown, and how many more there are."""
    few = ", ".join(map(printable, names[:most]))
    return f"{few} and {len(names) - most} more" if len(names) > most else few


class FreeNames:
    """Names of which each is taken once.

    Args:
        form: how a number is put behind a name that is taken, as in ``"{} ({})"``.
        taken: names that are taken from the beginning.
        alike: makes one text of names that count as the same.
    """

    def __init__(
        self, form: str, taken: Iterable[str] = (), alike: Callable[[str], str] = str
    ) -> None:
        self._form, self._alike = form, alike
        # The names that are taken, each with the last number that was put behind it.
        self._numbers: dict[tuple[str, ...], int] = {(alike(name),): 1 for name in taken}

    def __call__(self, name: str, *within: str) -> str:
        """Return the name, or with the first number from 2 on that is free, and take it."""
        free, place = name, tuple(map(self._alike, within))
        key = self._alike(name), *place
        while (taken := (self._alike(free), *place)) in self._numbers:
            self._numbers[key] += 1
            free = self._form.format(name, self._numbers[key])
        self._numbers[taken] = 1
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
