"""What ``onnxopt run`` prints while it runs and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.text import Text

from onnxopt_cli.cli.console import stderr, stdout
from onnxopt_cli.core.outcome import Outcome
from onnxopt_cli.core.record import RunRecord
from onnxopt_cli.core.result import Result
from onnxopt_cli.core.text import printable
from onnxopt_cli.report import terminal
from onnxopt_cli.report.diff_text import headline
from onnxopt_cli.run.runner import Plan

if TYPE_CHECKING:
    from rich.progress import Progress

_PANELS = 20
_BRIEF = frozenset({Outcome.UNSUPPORTED, Outcome.NOT_RUN})


class Display:
    """Prints the run to standard output; a progress bar too where that is a terminal."""

    def __init__(self, plan: Plan, options: Mapping[str, Any]) -> None:
        self._plan = plan
        self._options = options
        self._verbose: bool = options["verbose"]
        self._quiet: bool = options["quiet"]
        self._console: Console = stdout()
        longest = max((len(printable(case.id)) for case in plan.cases), default=0)
        used = sum(2 + terminal.column_width(backend.name) for backend in plan.backends)
        room = self._console.width - used if self._console.is_terminal else longest
        self._id_width = max(12, min(longest, room))
        self._about = {case.id: case.about for case in plan.cases}
        self._progress = self._bar(len(plan.cases)) if self._console.is_terminal else None

    def _bar(self, total: int) -> Progress:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        columns = (TextColumn("running"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        progress = Progress(*columns, console=self._console, transient=True)
        progress.add_task("", total=total)
        return progress

    def __enter__(self) -> Self:
        for problem in self._plan.problems:
            stderr().print(Text.assemble(("invalid ", "bold red"), printable(str(problem))))
        if not self._quiet and self._plan.cases:
            names = [backend.name for backend in self._plan.backends]
            self._print(terminal.heading(names, self._id_width))
        if self._progress:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress:
            self._progress.stop()

    def show(self, results: Sequence[Result]) -> None:
        """Print a case's line, and under -v its outputs."""
        if self._progress:
            self._progress.advance(self._progress.task_ids[0])
        if self._quiet:
            return
        self._print(terminal.case_line(results, self._id_width))
        if self._verbose:
            for result in results:
                for line in terminal.output_lines(result):
                    self._print(line)

    def show_rerun(self, result: Result) -> None:
        """Print what running a case again has shown."""
        if result.flaky and not self._quiet:
            self._print(terminal.case_line([result], self._id_width))

    def note(self, text: str) -> None:
        """Print what was written beside the results."""
        self._print(Text(text))

    def finish(self, record: RunRecord, seconds: float, explaining: float) -> None:
        """Print the failures, the summary, the verdict and what explains it.

        Args:
            record: the run.
            seconds: how long it took.
            explaining: how long it then took to look for what explains the failures.
        """
        results = record.results
        if self._quiet:
            for line in terminal.failing_lines(record):
                self._print(line)
        else:
            self._failures(results)
            self._reasons(results)
        summary = terminal.summary_table(results)
        if summary is not None:
            self._console.print()
            self._console.print(summary)
        if self._verbose:
            self._accuracy(results)
        self._console.print()
        for line in terminal.finding_lines(record.findings):
            self._print(line)
        for line in terminal.verdict(results, seconds, explaining):
            self._print(line)
        for line in terminal.explanation_lines(record.explanations):
            self._print(line)
        self._problems(record)

    def _problems(self, record: RunRecord) -> None:
        for problem in record.problems:
            # The others were shown when the run began.
            if problem not in self._plan.problems:
                self._print(Text(printable(str(problem)), "red"))
        if record.problems:
            count = len(record.problems)
            self._print(Text(f"{count} problem{'s' * (count > 1)} in case files, see above", "red"))

    def _failures(self, results: Sequence[Result]) -> None:
        """Print a panel for each failure; without -v for as many as a reader takes in."""
        failures = [it for it in results if not it.conforms and it.outcome not in _BRIEF]
        shown = failures if self._verbose else failures[:_PANELS]
        for result in shown:
            about = self._about.get(result.case, "")
            panel = terminal.failure_panel(result, self._options, about, whole=self._verbose)
            self._console.print(panel)
        if failures[len(shown) :]:
            rest = len(failures) - len(shown)
            self._print(Text(f"{rest} more failures; -v shows all, -q names all", "dim"))

    def _accuracy(self, results: Sequence[Result]) -> None:
        from onnxopt_cli.report.accuracy_table import accuracy_table

        measured = accuracy_table(results)
        if measured is not None:
            self._console.print()
            self._console.print(measured)

    def _reasons(self, results: Sequence[Result]) -> None:
        """Print once each reason for which cases are unsupported, or do not apply."""
        reasons: Counter[tuple[Outcome, str, str]] = Counter()
        for result in results:
            unsupported = result.outcome is Outcome.UNSUPPORTED and not result.conforms
            if unsupported or result.outcome is Outcome.SKIP:
                said = printable(result.message, lines=True) if self._verbose else headline(result)
                reasons[result.outcome, result.backend, said] += 1
        shown = list(reasons.items())[: None if self._verbose else _PANELS]
        for (outcome, backend, reason), count in shown:
            style = terminal.STYLES[outcome]
            head = Text.assemble((f"{outcome} ", style), f"{count} on {printable(backend)}: ")
            self._print(head.append(reason))
        if len(reasons) > len(shown):
            rest = len(reasons) - len(shown)
            self._print(Text(f"{rest} more reasons; -v shows all", "dim"))

    def _print(self, line: Text) -> None:
        """Print a line that a pipe gets whole and a narrow terminal wraps."""
        self._console.print(line, soft_wrap=not self._console.is_terminal, highlight=False)
