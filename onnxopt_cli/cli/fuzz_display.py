"""The display of the progress and the results of ``onnxopt fuzz``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

from rich.text import Text

from onnxopt_cli.backends.host import Incident
from onnxopt_cli.cli.console import ProgressDisplay, stdout
from onnxopt_cli.core.text import command_line, printable
from onnxopt_cli.fuzz.findings import FailureKind, Finding
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.report.view.result_view import operator_options, path_target

if TYPE_CHECKING:
    from onnxopt_cli.workers.cluster.dask_client import Cluster

# The explanations of a search and of a run may differ, because they examine different inputs.
_EXAMINED = (
    "The known mistakes reproduce the failing examples of this search, not all of which are kept. "
    "onnxopt run examines the kept cases, and further inputs; it may name other causes."
)


class FuzzDisplay:
    """A display that prints findings to standard output, and shows a progress bar on a terminal.

    Args:
        examples: number of examples; None for no limit.
        seconds: time limit of the search; None for no limit.
        cluster: cluster that runs the search; None for this machine.
    """

    def __init__(
        self, examples: int | None, seconds: float | None, cluster: Cluster | None
    ) -> None:
        self._cluster = cluster
        self._console = stdout()
        self._examples = examples
        self._seconds = seconds if examples is None else None
        self._tried = self._found = self._outside = 0
        self._causes: dict[str, list[str]] = {}
        self._explains = False

    def __enter__(self) -> Self:
        self._began = monotonic()
        self._progress = ProgressDisplay(
            self._console, "replaying", "examples", self._cluster, self._seconds
        )
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def tried(self, examples: int) -> None:
        """Show the progress of the search."""
        self._tried = examples
        self._show("searching")

    def shrinking(self, kind: FailureKind) -> None:
        """Show that a failing example is being made smaller."""
        self._show(f"shrinking {printable(kind.subject)}")

    def _show(self, doing: str) -> None:
        self._progress.doing = doing
        failures = f"{self._found} failure{'s' * (self._found != 1)}"
        self._progress.tell(self._tried, self._examples, failures)

    def found(self, finding: Finding, headline: str, path: Path) -> None:
        """Print a finding."""
        self._found += 1
        result = finding.result
        notes = ["seen before"] * finding.replayed + ["flaky"] * finding.flaky
        head = Text.assemble((f"{result.outcome} ", "bold red"), (finding.subject, "bold"))
        head.append(f"  {headline}" if headline else "")
        head.append(f"  ({', '.join(notes)})" if notes else "", "dim")
        self._console.print_wrapped(head)
        causes = finding.explanation.causes if finding.explanation else ()
        # The mistakes of one cause act together; different causes explain different inputs.
        mistakes = {" and ".join(map(repr, cause.known_mistakes)) for cause in causes}
        cause = " or ".join(sorted(mistakes - {""}))
        self._explains |= bool(cause)
        # The search explains only failures of operators with a formula; `onnxopt run` explains
        # failures of all operators.
        if not cause and registry().named(finding.subject) is not None:
            cause = "not explained"
        group = f"{finding.subject}, {cause}" if cause else finding.subject
        self._causes.setdefault(group, []).append(path.stem)
        if finding.explanation is not None:
            self._console.print_wrapped(Text(f"  {printable(finding.explanation.text)}"))
        self._console.print_wrapped(Text(f"  kept as {printable(str(path))}", "dim"))

    def outside(self, incident: Incident) -> None:
        """Print a failure of the backend outside of the examples."""
        self._outside += 1
        place = f"worker/{incident.place}"
        head = Text.assemble((f"{incident.outcome} ", "bold red"), (place, "bold"))
        self._console.print_wrapped(head.append(f"  {printable(incident.message)}"))

    def finish(self, tried: int, options: Mapping[str, Any], *, interrupted: bool) -> None:
        """Print a summary, and a command that runs the failing cases again.

        Args:
            tried: number of examples.
            options: the options of the command.
            interrupted: whether a signal has ended the search.
        """
        seconds = monotonic() - self._began
        summary = "interrupted; " if interrupted else ""
        summary += f"{self._found} distinct failure{'s' * (self._found != 1)}"
        rate = f"{tried / max(seconds, 1e-9):.0f}"
        pace = f"{rate} example{'s' * (rate != '1')}/s"
        summary += f" in {tried} examples"
        if self._outside:
            plural = "s" * (self._outside != 1)
            summary += f", {self._outside} failure{plural} outside of the examples"
        summary += f", seed {options['seed']}, {seconds:.1f} s ({pace})"
        failed = self._found or self._outside
        self._console.print_wrapped(Text(summary, "bold red" if failed else "bold green"))
        if self._found > 1:
            by_count = sorted(self._causes.items(), key=lambda item: len(item[1]), reverse=True)
            for cause, cases in by_count:
                names = printable(", ".join(cases))
                self._console.print_wrapped(Text(f"{printable(cause)}: {len(cases)} ({names})"))
        if self._explains:
            self._console.print_wrapped(Text(_EXAMINED, "dim"))
        if self._found:
            words = ["onnxopt", "run", path_target(options["output"]), "-b", options["backend"]]
            operator_names = (operator.name for operator in registry().operators)
            rerun_command = command_line([*words, *operator_options(operator_names)])
            self._console.print_wrapped(
                Text(f"run them again: {printable(rerun_command)}", no_wrap=True)
            )
