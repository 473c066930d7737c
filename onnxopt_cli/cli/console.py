"""The rich consoles of standard output and standard error, and the progress display."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from time import monotonic
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column
from rich.text import Text

from onnxopt_cli.cli.environment import columns_of
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import Fault

if TYPE_CHECKING:
    from onnxopt_cli.workers.cluster.dask_client import Cluster


_WORD = re.compile(r"\S+")
# A word of a shell command, or an option with its value.
_SHELL_WORD = re.compile(
    r"""(?:--?[a-z][-a-z]*\ (?!-))?(?:'[^']*'|"[^"]*"|\\.|[^\s'"\\])+""", re.VERBOSE
)
# The end of a line of a command that continues in the next line.
_CONTINUED = " \\"
#: Seconds between progress lines, which replace the bar if the stream is not a terminal.
TELL_SECONDS = 15.0


class _Console(Console):
    """A console that raises an error on a broken pipe.

    rich would exit with code 1, which would mean that a case failed.
    """

    def on_broken_pipe(self) -> None:
        """Raise an error, so that ``main`` returns the exit code of a broken pipe."""
        raise BrokenPipeError

    def print_record(self, text: Text) -> None:
        """Print a line that is wrapped only on a terminal, because programs may search the line."""
        self.print(text, soft_wrap=not self.is_terminal)

    def print_wrapped(self, text: Text | str) -> None:
        """Print text, and wrap its lines.

        All lines of a paragraph have the indentation of its first line. A word that is longer than
        a line, such as a path, stays whole. Unlike in rich, blanks at the ends of lines are
        removed. If ``text.no_wrap`` is true, the text ends with a shell command, which is wrapped
        so that a shell accepts its lines.
        """
        text = Text(text) if isinstance(text, str) else text
        is_command = bool(text.no_wrap)
        for paragraph in text.split(allow_blank=True):
            indent = len(paragraph.plain) - len(paragraph.plain.lstrip(" "))
            lines = [*_wrapped(paragraph[indent:], self.width - indent, is_command=is_command)]
            for line in lines:
                line.rstrip()
                line.pad_left(indent)
                if is_command and line is not lines[-1]:
                    line.append(_CONTINUED)
                self.print(line, soft_wrap=True)

    def print_page(self, page: Iterable[RenderableType]) -> None:
        """Print texts, which are wrapped between words, and other content such as tables."""
        for content in page:
            if isinstance(content, Text):
                self.print_wrapped(content)
            else:
                self.print(content, crop=False)


def _wrapped(text: Text, width: int, *, is_command: bool) -> Iterable[Text]:
    """Return the lines of a text, divided between words; rich would also divide words."""
    words, width = (_SHELL_WORD, width - len(_CONTINUED)) if is_command else (_WORD, width)
    starts, start = [], 0
    for word in words.finditer(text.plain):
        if word.start() > start and cell_len(text.plain[start : word.end()]) > width:
            start = word.start()
            starts.append(start)
    return text.divide(starts)


@cache
def _console(*, stderr: bool) -> _Console:
    console = _Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        # A pipe has no width. The text must not depend on the width of the terminal that may show
        # it.
        console.width = columns_of(console.file)
    return console


#: The consoles of standard output and standard error. A console that is not a terminal prints plain
#: text, and is 80 columns wide or as wide as the variable COLUMNS states.
stdout = partial(_console, stderr=False)
stderr = partial(_console, stderr=True)


class ProgressDisplay(Progress):
    """The progress of a long task, shown as a bar on a terminal, otherwise as lines at intervals.

    Args:
        console: the console of the bar; the bar is shown only if the console is a terminal.
        doing: name of the task, such as "running".
        things: plural noun of the task's items, such as "cases".
        cluster: cluster that runs the task; None for this machine.
        seconds: the time limit, if the task has no other limit; otherwise None.

    Attributes:
        doing: name of the current step of the task.
    """

    def __init__(
        self,
        console: Console,
        doing: str,
        things: str,
        cluster: Cluster | None = None,
        seconds: float | None = None,
    ) -> None:
        # On a narrow terminal, the text of the column wraps.
        text = TextColumn("{task.description}", table_column=Column())
        disable = not console.is_terminal
        super().__init__(BarColumn(12), text, console=console, transient=True, disable=disable)
        self._bar = self.add_task(doing, total=seconds)
        self.doing = doing
        self._things, self._cluster, self._seconds = things, cluster, seconds
        self._began = self._last_told = monotonic()

    def tell(self, done: int, total: int | None, more: Text | str = "") -> None:
        """Update the progress display.

        If the console is not a terminal, a line is printed every :data:`TELL_SECONDS`.

        Args:
            done: number of finished items.
            total: number of all items; None if unknown.
            more: text that is appended to the line.
        """
        now = monotonic()
        if self.disable and now - self._last_told < TELL_SECONDS:
            return
        self._last_told, took = now, now - self._began
        line = Text(f"{self.doing}: {done}{f' of {total}' if total else ''}")
        line.append(f", {done / max(took, 1e-9):.3g} {self._things}/s")
        if self._cluster:
            line.append(f", workers: {self._cluster.size}")
        if total and done:
            line.append(f", {(total / done - 1) * took:.0f} s left")
        if more:
            line.append(", ").append(more)
        if self.disable:
            stderr().print_wrapped(line)
        else:
            completed = took if self._seconds else done
            self.update(self._bar, total=total, completed=completed, description=line.markup)


@contextmanager
def show_progress(
    doing: str, things: str, cluster: Cluster | None = None
) -> Iterator[Callable[[int, int | None], None]]:
    """Show the progress of a long task.

    The context manager yields a callback, which accepts the number of finished items and the number
    of all items (None if unknown).

    Args:
        doing: name of the task.
        things: plural noun of its items.
        cluster: cluster that runs the task; None for this machine.
    """
    # Pass the current value of sys.stderr to the console, because the task may redirect sys.stderr
    # to hide output of libraries.
    with ProgressDisplay(
        Console(file=sys.stderr, highlight=False), doing, things, cluster
    ) as display:
        yield display.tell


@contextmanager
def show_step(doing: str) -> Iterator[Callable[[str], None]]:
    """Show the current step of a long task, on a terminal immediately, elsewhere at intervals.

    The context manager yields a callback, which accepts the name of the next step.

    Args:
        doing: name of the first step.
    """
    console = Console(file=sys.stderr, highlight=False)
    with console.status(doing) as status:
        last_told = monotonic()

        def tell(step: str) -> None:
            nonlocal last_told
            status.update(Text(step))
            if not console.is_terminal and monotonic() - last_told >= TELL_SECONDS:
                last_told = monotonic()
                stderr().print_wrapped(step)

        yield tell


def tell_problems(problems: Iterable[Fault]) -> None:
    """Print the problems of case files."""
    for problem in problems:
        stderr().print_wrapped(Text.assemble(("invalid ", "bold red"), printable(str(problem))))


def note(message: str) -> None:
    """Print a notice to standard error."""
    stderr().print_wrapped(Text(printable(message), "yellow"))
