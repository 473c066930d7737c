"""The two places that rich prints to."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from time import monotonic
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import Problem

if TYPE_CHECKING:
    from rich.table import Table

    from onnxopt_cli.cluster.client import Cluster


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
            table.width = self.measure(table, options=self.options.update(max_width=_WIDE)).maximum
        self.print(table, crop=False)


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


# More columns than any table has.
_WIDE = 10_000
#: So often a line says how far something is where a terminal would have a bar.
TELL_SECONDS = 15.0


@dataclass
class Pace:
    """How far something long is, in words.

    Attributes:
        things: what is done one by one, in the plural.
        cluster: the machines that do it; None for this one.
    """

    things: str
    cluster: Cluster | None = None
    _began: float = field(default_factory=monotonic, init=False)
    _told: float = field(default_factory=monotonic, init=False)

    def said(self, done: int) -> str:
        """Return how many are done in a second, and on a cluster by how many workers."""
        pace = f"{done / max(monotonic() - self._began, 1e-9):.3g} {self.things}/s"
        return f"{pace}, workers: {self.cluster.size}" if self.cluster else pace

    def tell(self, doing: str, done: int, total: int | None, more: str = "") -> None:
        """Print a line now and then, for whoever reads a pipe."""
        if monotonic() - self._told < TELL_SECONDS:
            return
        self._told = monotonic()
        said = [f"{doing}: {done}{f' of {total}' if total else ''}", self.said(done)]
        if total and done:
            said.append(f"{(total / done - 1) * (self._told - self._began):.0f} s left")
        stderr().print(", ".join(filter(None, [*said, more])), soft_wrap=True)


@contextmanager
def ticking(
    doing: str, things: str, cluster: Cluster | None = None
) -> Iterator[Callable[[int, int], None]]:
    """Show that something long is done; yield what takes note that so many of all are done.

    On a terminal that is shown all the time, else now and then in a line.

    Args:
        doing: what is done.
        things: to what, in the plural.
        cluster: as :class:`Pace` has it.
    """
    pace = Pace(things, cluster)
    if not stderr().is_terminal:
        yield partial(pace.tell, doing)
        return
    # It is seen even while sys.stderr is somewhere else, so that nobody sees what others print.
    with Console(file=sys.stderr, highlight=False).status(doing) as status:
        yield lambda done, total: status.update(f"{doing}: {done} of {total}, {pace.said(done)}")


def tell_problems(problems: Iterable[Problem]) -> None:
    """Say what is wrong with case files."""
    for problem in problems:
        stderr().print(Text.assemble(("invalid ", "bold red"), printable(str(problem))))


def note(said: str) -> None:
    """Say what the user should know before something runs."""
    stderr().print(Text(printable(said), "yellow"))
