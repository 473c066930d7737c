"""The two places that rich prints to."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from time import monotonic
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column
from rich.text import Text

from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import Fault

if TYPE_CHECKING:
    from rich.table import Table

    from onnxopt_cli.workers.cluster.dask_client import Cluster


class _Console(Console):
    """A console whose reader may go away: rich would exit with 1, which means a failed case."""

    def on_broken_pipe(self) -> None:
        """Let the error through, to the one place that knows the exit code."""
        raise BrokenPipeError

    def print_line(self, text: Text | str) -> None:
        """Print a line that a pipe gets whole and a narrow terminal wraps."""
        self.print(text, soft_wrap=not self.is_terminal)

    def print_table(self, table: Table) -> None:
        """Print a table whose rows a pipe gets whole, to be searched."""
        if not self.is_terminal:
            table.width = self.measure(
                table, options=self.options.update(max_width=_WIDE_COLUMNS)
            ).maximum
        self.print(table, crop=False)


@cache
def _console(*, stderr: bool) -> _Console:
    console = _Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        # A pipe has no width; what is piped must not depend on the terminal behind it.
        columns = os.environ.get("COLUMNS", "")
        asked = int(columns) if _COLUMNS.fullmatch(columns) else _PIPE_COLUMNS
        console.width = max(asked, _MIN_COLUMNS)
    return console


#: The consoles of standard output and error. Where they are no terminals they are plain, and 80
#: columns wide unless the variable COLUMNS says otherwise.
stdout = partial(_console, stderr=False)
stderr = partial(_console, stderr=True)


# More columns than any table has.
_WIDE_COLUMNS = 10_000
_COLUMNS = re.compile("[0-9]{1,4}")
_PIPE_COLUMNS = 80
_MIN_COLUMNS = 20
#: So often a line says how far something is where a terminal would have a bar.
TELL_SECONDS = 15.0


class Pace(Progress):
    """Shows how far something long is: on a terminal with a bar, else in a line now and then.

    Args:
        console: where the bar is, if that is a terminal.
        doing: what is done.
        things: to what, one by one, in the plural.
        cluster: the machines that do it; None for this one.
        seconds: how long it may take, where only that limits it.

    Attributes:
        doing: what is done just now.
    """

    def __init__(
        self,
        console: Console,
        doing: str,
        things: str,
        cluster: Cluster | None = None,
        seconds: float | None = None,
    ) -> None:
        # On a narrow terminal it takes more lines.
        said = TextColumn("{task.description}", table_column=Column())
        disable = not console.is_terminal
        super().__init__(BarColumn(12), said, console=console, transient=True, disable=disable)
        self._bar = self.add_task(doing, total=seconds)
        self.doing = doing
        self._things, self._cluster, self._seconds = things, cluster, seconds
        self._began = self._told = monotonic()

    def tell(self, done: int, total: int | None, more: Text | str = "") -> None:
        """Show that so many are done, of how many if that is known, and what else there is to say.

        A line for whoever reads a pipe is printed now and then.
        """
        now = monotonic()
        if self.disable and now - self._told < TELL_SECONDS:
            return
        self._told, took = now, now - self._began
        said = Text(f"{self.doing}: {done}{f' of {total}' if total else ''}")
        said.append(f", {done / max(took, 1e-9):.3g} {self._things}/s")
        if self._cluster:
            said.append(f", workers: {self._cluster.size}")
        if total and done:
            said.append(f", {(total / done - 1) * took:.0f} s left")
        if more:
            said.append(", ").append(more)
        if self.disable:
            stderr().print(said, soft_wrap=True)
        else:
            completed = took if self._seconds else done
            self.update(self._bar, total=total, completed=completed, description=said.markup)


@contextmanager
def ticking(
    doing: str, things: str, cluster: Cluster | None = None
) -> Iterator[Callable[[int, int], None]]:
    """Show that something long is done; yield what takes note that so many of all are done.

    Args:
        doing: what is done.
        things: to what, in the plural.
        cluster: as :class:`Pace` has it.
    """
    # It is seen even while sys.stderr is somewhere else, so that nobody sees what others print.
    with Pace(Console(file=sys.stderr, highlight=False), doing, things, cluster) as pace:
        yield pace.tell


def tell_problems(problems: Iterable[Fault]) -> None:
    """Say what is wrong with case files."""
    for problem in problems:
        stderr().print(Text.assemble(("invalid ", "bold red"), printable(str(problem))))


def note(said: str) -> None:
    """Say what the user should know before something runs."""
    stderr().print(Text(printable(said), "yellow"))
