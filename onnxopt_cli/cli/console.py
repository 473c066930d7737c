"""The two places that rich prints to."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from onnxopt_cli.run.executors import Setting


@cache
def stdout() -> Console:
    """Return the console of standard output: 80 columns wide and plain where it is no terminal."""
    return _console(stderr=False)


@cache
def stderr() -> Console:
    """Return the console of standard error."""
    return _console(stderr=True)


class _Console(Console):
    """A console whose reader may go away: rich would exit with 1, which means a failed case."""

    def on_broken_pipe(self) -> None:
        """Let the error through, to the one place that knows the exit code."""
        raise BrokenPipeError


def warn_of_weak_isolation(setting: Setting, backends: Sequence[str]) -> None:
    """Say once what isolation lacks on this machine, if workers are to be isolated."""
    from onnxopt_cli.isolation.processes import weakness
    from onnxopt_cli.run.executors import Isolation

    ours = setting.isolation is None and set(backends) == {"numpy"}
    if weakness() and not ours and setting.isolation is not Isolation.NONE:
        stderr().print(f"isolation is {weakness()}")


def _console(*, stderr: bool) -> Console:
    console = _Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        # A pipe has no width; what is piped must not depend on the terminal behind it.
        console.width = 80
    return console
