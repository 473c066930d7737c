"""The two places that rich prints to."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from time import monotonic

from rich.console import Console
from rich.text import Text

from onnxopt_cli.core.text import printable


class _Console(Console):
    """A console whose reader may go away: rich would exit with 1, which means a failed case."""

    def on_broken_pipe(self) -> None:
        """Let the error through, to the one place that knows the exit code."""
        raise BrokenPipeError

    def print_line(self, text: Text | str) -> None:
        """Print a line that a pipe gets whole and a narrow terminal wraps."""
        self.print(text, soft_wrap=not self.is_terminal)


@cache
def _console(*, stderr: bool) -> _Console:
    console = _Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        # A pipe has no width; what is piped must not depend on the terminal behind it.
        console.width = 80
    return console


#: The consoles of standard output and error: 80 columns wide and plain where they are no terminals.
stdout = partial(_console, stderr=False)
stderr = partial(_console, stderr=True)


#: So often a line says how far something is where a terminal would have a bar.
TELL_SECONDS = 15.0


class Ticker:
    """Says how far something long is: now and then in a line, or on a terminal all the time.

    Args:
        doing: what is done.
        update: shows it where standard error is a terminal.
    """

    def __init__(self, doing: str, update: Callable[[str], None]) -> None:
        self._doing, self._update, self._told = doing, update, monotonic()

    def __call__(self, done: int, total: int) -> None:
        """Take note that so many of all are done."""
        said = f"{self._doing}: {done} of {total}"
        if stderr().is_terminal:
            self._update(said)
        elif monotonic() - self._told >= TELL_SECONDS:
            self._told = monotonic()
            stderr().print(said, soft_wrap=True)


def note(said: str) -> None:
    """Say what the user should know before something runs."""
    stderr().print(Text(printable(said), "yellow"))
