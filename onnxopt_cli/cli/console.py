"""The two places that rich prints to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from time import monotonic

from rich.console import Console
from rich.text import Text

from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import Problem


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


@contextmanager
def ticking(doing: str) -> Iterator[Callable[[int, int], None]]:
    """Show that something long is done; yield what takes note that so many of all are done.

    On a terminal that is shown all the time, else now and then in a line.
    """
    told = monotonic()
    with stderr().status(doing) as status:

        def tick(done: int, total: int) -> None:
            nonlocal told
            said = f"{doing}: {done} of {total}"
            if stderr().is_terminal:
                status.update(said)
            elif monotonic() - told >= TELL_SECONDS:
                told = monotonic()
                stderr().print(said, soft_wrap=True)

        yield tick


def tell_problems(problems: Iterable[Problem]) -> None:
    """Say what is wrong with case files."""
    for problem in problems:
        stderr().print(Text.assemble(("invalid ", "bold red"), printable(str(problem))))


def note(said: str) -> None:
    """Say what the user should know before something runs."""
    stderr().print(Text(printable(said), "yellow"))
