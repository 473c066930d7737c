"""What ``onnxopt fuzz`` prints while it searches and after."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

from rich.text import Text

from onnxopt_cli.backends.host import Incident
from onnxopt_cli.cli.console import Pace, stdout
from onnxopt_cli.core.text import command_line, printable
from onnxopt_cli.fuzz.findings import FailureKind, Finding
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.report.diff_text import operator_options

if TYPE_CHECKING:
    from onnxopt_cli.workers.cluster.dask_client import Cluster


class FuzzDisplay:
    """Prints findings to standard output; a progress bar too where that is a terminal.

    Args:
        examples: how many will be tried; None for no limit.
        seconds: how long the search may take; None for no limit.
        cluster: the machines that search; None for this one.
    """

    def __init__(
        self, examples: int | None, seconds: float | None, cluster: Cluster | None
    ) -> None:
        self._cluster = cluster
        self._console = stdout()
        self._examples = examples
        self._seconds = seconds if examples is None else None
        self._tried = self._found = 0
        self._causes: dict[str, list[str]] = {}

    def __enter__(self) -> Self:
        self._began = monotonic()
        self._pace = Pace(self._console, "replaying", "examples", self._cluster, self._seconds)
        self._pace.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._pace.stop()

    def tried(self, examples: int) -> None:
        """Show how far the search is."""
        self._tried = examples
        self._show("searching")

    def shrinking(self, kind: FailureKind) -> None:
        """Show that a failure is being made smaller."""
        self._show(f"shrinking {printable(kind.subject)}")

    def _show(self, doing: str) -> None:
        self._pace.doing = doing
        found = f"{self._found} failure{'s' * (self._found != 1)}"
        self._pace.tell(self._tried, self._examples, found)

    def found(self, finding: Finding, headline: str, path: Path) -> None:
        """Print a finding, in lines that a pipe gets whole."""
        self._found += 1
        result = finding.result
        notes = ["seen before"] * finding.replayed + ["flaky"] * finding.flaky
        head = Text.assemble((f"{result.outcome} ", "bold red"), (finding.kind.subject, "bold"))
        head.append(f"  {headline}" if headline else "")
        head.append(f"  ({', '.join(notes)})" if notes else "", "dim")
        self._console.print_line(head)
        names = finding.explanation.known_mistakes if finding.explanation else ()
        cause = f"{finding.kind.subject}, {' and '.join(map(repr, names)) or 'not explained'}"
        self._causes.setdefault(cause, []).append(path.stem)
        if finding.explanation is not None:
            self._console.print_line(Text(f"  {printable(finding.explanation.text)}"))
        self._console.print_line(Text(f"  kept as {printable(str(path))}", "dim"))

    def outside(self, incident: Incident) -> None:
        """Print what the backend did outside of the examples."""
        place = f"worker/{incident.place}"
        head = Text.assemble((f"{incident.outcome} ", "bold red"), (place, "bold"))
        self._console.print_line(head.append(f"  {printable(incident.message)}"))

    def finish(self, tried: int, options: Mapping[str, Any]) -> None:
        """Print how much was tried, and how to see the failures again."""
        seconds = monotonic() - self._began
        what = f"{self._found} distinct failure{'s' * (self._found != 1)}"
        pace = f"{tried / max(seconds, 1e-9):.0f} examples/s"
        what += f" in {tried} examples, seed {options['seed']}, {seconds:.1f} s ({pace})"
        self._console.print_line(Text(what, "bold red" if self._found else "bold green"))
        if self._found > 1:
            for cause, kept in sorted(self._causes.items(), key=lambda it: -len(it[1])):
                names = printable(", ".join(kept))
                self._console.print_line(Text(f"{printable(cause)}: {len(kept)} ({names})"))
        if self._found:
            words = ["onnxopt", "run", str(options["output"]), "-b", options["backend"]]
            again = command_line(
                [*words, *operator_options(it.name for it in registry().operators)]
            )
            self._console.print_line(Text(f"run them again: {printable(again)}"))
