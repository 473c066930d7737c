"""Make untrusted text printable, and describe exceptions and exit codes."""

from __future__ import annotations

import re
import signal
import unicodedata
from collections.abc import Callable, Iterable, Sequence

# Control characters, format characters (including bidirectional overrides), surrogates, and the
# separators that some terminals interpret as line ends.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Invisible letters and marks: the characters that Unicode calls default ignorable, except format
# characters. They include variation selectors, and a sequence of variation selectors can hide any
# text.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8"
    "\U000e0000-\U000e0fff]"
)
# The last two code points of each plane are not characters; XML cannot represent them.
_NONCHARACTER_BITS = 0xFFFE
_MAX_TEXT_CHARS = 4000
# Maximum number of characters of a text with several lines, such as a stack trace.
_MAX_LINES_CHARS = 32_000
# Number of characters that are reserved for the note on omitted characters.
_NOTE_CHARS = 60
_ASCII_LIMIT = 128
_LINE_END = re.compile(r"[\r\n]")
# The output of a program may contain commands to CI servers. GitHub interprets lines that begin
# with two colons. Azure, TeamCity and older GitHub runners interpret ##[word] and ##vso[word]
# anywhere. Blanks, the frame of a panel, and colour escapes may precede the colons.
_AT_LINE_START = re.compile(r"((?:^|\r)(?:[\s\u2500-\u259f]|\x1b\[[\d;]*m)*):(?=:)", re.MULTILINE)
_ANYWHERE = re.compile(r"#(?=#\w*\[)")
# Jenkins and GitLab attach the file that follows this text in the output of a test.
_ATTACHMENT = "[[ATTACHMENT|"


def printable(text: str, *, lines: bool = False) -> str:
    r"""Return a text with visible escapes for all invisible or harmful characters.

    A very long text loses its middle part. The end is kept, because the last line of a stack trace
    is the most informative line.

    Args:
        text: any text.
        lines: whether line ends are kept and tabs are expanded; otherwise, both are escaped.
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
    escaped = "".join(
        character
        if not _is_hidden(character) or (lines and character == "\n")
        else character.encode("unicode_escape", "surrogatepass").decode("ascii")
        for character in text
    )
    return without_ci_commands(escaped)


def without_ci_commands(text: str, *, goes_on: bool = False) -> str:
    """Return lines of output, changed so that no CI server finds a command in them.

    Args:
        text: the lines.
        goes_on: whether the text begins in the middle of a line, because earlier output did not end
            with a line end.
    """
    if not _may_command(text):
        return text
    # A carriage return also begins a new line.
    first = len(_LINE_END.split(text, maxsplit=1)[0]) if goes_on else 0
    guarded = text[:first] + _AT_LINE_START.sub(r"\1\\x3a", text[first:])
    guarded = guarded.replace(_ATTACHMENT, rf"\x5b{_ATTACHMENT[1:]}")
    return _ANYWHERE.sub(r"\\x23", guarded)


def _may_command(text: str) -> bool:
    return "::" in text or "##" in text or _ATTACHMENT in text


def clipped(text: str, longest: int = _MAX_TEXT_CHARS, space: str = " ") -> str:
    """Return a text; if it is too long, return only its beginning and its end.

    Args:
        text: any text.
        longest: maximum number of characters of the result, at least 200.
        space: separator around the note on the number of omitted characters.
    """
    if len(text) <= longest:
        return text
    tail = (longest - _NOTE_CHARS) // 4
    head = longest - _NOTE_CHARS - tail
    omitted = len(text) - head - tail
    return f"{text[:head]}{space}... ({omitted} characters left out) ...{space}{text[-tail:]}"


def command_line(words: Iterable[str]) -> str:
    r"""Return words as a printable shell command in one line.

    A word with hidden characters is quoted for bash, ksh and zsh: ``$'a\x0a'``.
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
    escaped = (
        chr(byte) if chr(byte).isalnum() and byte < _ASCII_LIMIT else f"\\x{byte:02x}"
        for byte in data
    )
    return f"$'{''.join(escaped)}'"


def nearest(name: str, known: Iterable[str], otherwise: str = "", cutoff: float = 0.6) -> str:
    """Return a hint that suggests the known name most similar to a misspelt name.

    Letter case does not matter.

    Args:
        name: the name as it was typed.
        known: the valid names.
        otherwise: the hint that is returned if no name is similar.
        cutoff: the similarity, from 0 to 1, that a name must have.
    """
    import difflib

    names = {known_name.lower(): known_name for known_name in known}
    matches = difflib.get_close_matches(name.lower(), names, n=1, cutoff=cutoff)
    return f"did you mean {names[matches[0]]}?" if matches else otherwise


def abbreviated(text: str, max_chars: int = 80) -> str:
    """Return a printable and short form of text from a file, for a message."""
    return printable(text if len(text) <= max_chars else f"{text[:max_chars]}...")


def listed(names: Iterable[str]) -> str:
    """Return a printable and short form of names from a file, separated by commas."""
    return abbreviated(", ".join(names), max_chars=200)


def some_of(names: Sequence[str], most: int) -> str:
    """Return the first ``most`` names in printable form, and the number of further names."""
    text = ", ".join(map(printable, names[:most]))
    return f"{text} and {len(names) - most} more" if len(names) > most else text


class FreeNames:
    """A name generator that makes names unique by appending numbers.

    Args:
        form: format of a name with a number, as in ``"{} ({})"``.
        taken: names that are already in use.
        alike: function such as ``str.casefold``. Names count as equal if the function returns the
            same result for them.
    """

    def __init__(
        self, form: str, taken: Iterable[str] = (), alike: Callable[[str], str] = str
    ) -> None:
        self._form, self._alike = form, alike
        # The last number that was appended to each name in use.
        self._numbers: dict[tuple[str, ...], int] = {(alike(name),): 1 for name in taken}

    def __call__(self, name: str, *within: str) -> str:
        """Return the name; if it is in use, append the first free number from 2 on.

        Args:
            name: the name.
            within: the scope; names in different scopes may be equal.
        """
        unique, scope = name, tuple(map(self._alike, within))
        key = self._alike(name), *scope
        while (candidate := (self._alike(unique), *scope)) in self._numbers:
            self._numbers[key] += 1
            unique = self._form.format(name, self._numbers[key])
        self._numbers[candidate] = 1
        return unique


def _is_hidden(character: str) -> bool:
    is_noncharacter = ord(character) & _NONCHARACTER_BITS == _NONCHARACTER_BITS
    return (
        unicodedata.category(character) in _HIDDEN
        or is_noncharacter
        or _INVISIBLE.match(character) is not None
    )


def exception_text(error: BaseException) -> str:
    """Return the type and message of an exception as printable text.

    The method ``__str__`` of the exception may raise another exception.
    """
    name = type(error).__name__
    try:
        message = str(error)
    except BaseException as inner:  # noqa: BLE001 - a backend's __str__ may raise anything
        message = f"(its message raises {type(inner).__name__})"
    return printable(f"{name}: {message}" if message else name, lines=True)


def exit_text(code: int) -> str:
    """Return a description of how a process ended.

    Args:
        code: exit code, or the negative number of a signal.
    """
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
