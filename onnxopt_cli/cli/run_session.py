"""From the options of ``onnxopt run`` to a session, what it prints, and its exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.text import Text

from onnxopt_cli.cli.console import stderr, stdout
from onnxopt_cli.core.outcome import Outcome
from onnxopt_cli.core.record import Explanation, RunRecord
from onnxopt_cli.core.result import Result
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import OnnxoptError, UsageError
from onnxopt_cli.expectations.expectations import Expectations
from onnxopt_cli.log.header import Shard
from onnxopt_cli.report import terminal
from onnxopt_cli.report.diff_text import headline
from onnxopt_cli.report.files import Reports, append_step_summary, step_summary
from onnxopt_cli.run.executors import Setting
from onnxopt_cli.run.runner import Plan
from onnxopt_cli.run.session import Session, Terms

if TYPE_CHECKING:
    from rich.progress import Progress

    from onnxopt_cli.log.contents import Witness


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
        from onnxopt_cli.report.accuracy import accuracy_table

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


@dataclass(frozen=True, slots=True)
class Request:
    """What the user wants of a run beside its cases, checked before anything starts.

    Attributes:
        options: the command's options by name, targets included.
        setting: how backends are run.
        reports: the reports to write.
        expectations: what is expected of the cases.
        shard: which part of them runs; None for all.
        witness: knows what the files of the backends hold; None if there is no log.
    """

    options: Mapping[str, Any]
    setting: Setting
    reports: Reports
    expectations: Expectations
    shard: Shard | None
    witness: Witness | None

    @classmethod
    def parse(cls, options: Mapping[str, Any], setting: Setting) -> Request:
        """Read and check the options.

        Raises:
            UsageError: if one is wrong, or an expectation file is.
        """
        reports = Reports.parse(options["reports"])
        if options["artifacts"]:
            from onnxopt_cli.report.artifacts import check_folder

            check_folder(options["artifacts"])
        shard = Shard.parse(options["shard"]) if options["shard"] else None
        log, resume, update = options["log"], options["resume"], options["update_expect"]
        if shard and update:
            raise UsageError("--update-expect needs a whole run, --shard runs a part of one")
        if log and resume and Path(log).resolve() != Path(resume).resolve():
            raise UsageError("--resume goes on writing the log it reads; --log names another one")
        files = [Path(path) for path in options["expect"]]
        if update:
            if not Path(update).absolute().parent.is_dir():
                raise UsageError(f"--update-expect cannot write {update}: the folder must exist")
            files = [path for path in files if path.resolve() != Path(update).resolve()]
            files += [Path(update)] if Path(update).exists() else []
        expectations = Expectations.read(tuple(files))
        witness = _witness(options["backends"]) if log or resume else None
        return cls(options, setting, reports, expectations, shard, witness)

    @property
    def writes_files(self) -> bool:
        """Whether anything is written that is there for a reader later."""
        options = ("log", "resume", "artifacts", "update_expect")
        return bool(
            self.reports.wanted or step_summary() or any(self.options[name] for name in options)
        )

    def open(self, plan: Plan, ids: Sequence[str]) -> Session:
        """Return the session, ready to run.

        Args:
            plan: what to run, all shards of it, on backends that have started.
            ids: of all cases that the targets hold, selected or not.

        Raises:
            UsageError: if the log cannot be written, or the one to be resumed is of another run.
        """
        terms = Terms(
            selected=plan.cases,
            ids=ids,
            expectations=self.expectations,
            options=self.options,
            setting=self.setting,
            shard=self.shard,
            reruns=self.options["rerun"] or 0,
            witness=self.witness,
        )
        if self.shard:
            plan = replace(plan, cases=self.shard.choose(plan.cases))
        path = self.options["resume"] or self.options["log"]
        session = Session(plan, terms, Path(path) if path else None)
        if self.options["resume"]:
            session.resume()
        else:
            session.begin()
        return session


def _witness(backends: Sequence[str]) -> Witness:
    # A run without a log has no use for it.
    from onnxopt_cli.log.contents import Witness

    witness = Witness()
    witness.see_backends(list(dict.fromkeys(backends)))
    return witness


def run_session(session: Session, options: Mapping[str, Any]) -> Display:
    """Run a session and show each result; return what shows the rest."""
    display = Display(session.plan, options)
    with display:
        for row in session.rows():
            display.show(row)
        for result in session.rerun():
            display.show_rerun(result)
    return display


def conclude(session: Session, display: Display, request: Request) -> int:
    """End a session, show the verdict, write what was asked for, and return the exit code.

    Raises:
        OnnxoptError: if a file cannot be written; by then the verdict has been shown, and every
            other file is written.
    """
    options = request.options
    seconds = perf_counter() - session.began
    record = session.finish(_explanations(session, options, seconds))
    display.finish(record, seconds, perf_counter() - session.began - seconds)
    if request.shard and not session.plan.cases:
        display.note(f"no selected case belongs to shard {request.shard}")
    writes: list[Callable[[], None]] = [
        partial(request.reports.write, record),
        partial(append_step_summary, record),
        session.require_log,
    ]
    if options["update_expect"]:
        writes.insert(0, partial(_update_expectations, session, display, record))
    if options["artifacts"]:
        writes.insert(0, partial(_write_artifacts, session, options["artifacts"], record))
    _require_all(writes)
    return record.exit_code or 0


def _require_all(writes: Sequence[Callable[[], None]]) -> None:
    """Call each, and raise what any of them raised when the last has been called."""
    failed = []
    for write in writes:
        try:
            write()
        except OnnxoptError as error:
            failed.append(error)
    if failed:
        message = "\n".join(error.message for error in failed)
        hints = dict.fromkeys(error.hint for error in failed if error.hint)
        raise UsageError(message, hint="\n".join(hints))


def _update_expectations(session: Session, display: Display, record: RunRecord) -> None:
    from onnxopt_cli.expectations.update import update_expectations

    path, terms = Path(session.terms.options["update_expect"]), session.terms
    display.note(update_expectations(path, terms.expectations, record, terms.ids))


def _write_artifacts(session: Session, folder: Path, record: RunRecord) -> None:
    from onnxopt_cli.report.artifacts import write_artifacts

    cases = {case.id: case for case in session.plan.cases}
    write_artifacts(folder, record, cases, session.plan.judging)


def _explanations(session: Session, options: Mapping[str, Any], ran: float) -> list[Explanation]:
    """Explain the failures of a run of so many seconds; nothing is imported where there are none.

    After Ctrl-C nothing is explained: whoever wants the run to end does not want to wait for what
    ``onnxopt explain`` can say later.
    """
    interruption = session.plan.interruption
    failing = any(result.outcome is Outcome.FAIL for result in session.results)
    seconds = options["explain_time"]
    if not failing or interruption.signal or not options["explain"] or seconds == 0:
        return []
    from onnxopt_cli.cli.console import stderr
    from onnxopt_cli.grade.explain import explain, least_seconds

    cases = {case.id: case for case in session.plan.cases}
    try:
        with interruption.at_once(), stderr().status("looking for known mistakes") as status:
            return explain(
                session.results,
                cases,
                session.plan.judging,
                seconds=least_seconds(ran) if seconds is None else seconds,
                progress=status.update,
            )
    except KeyboardInterrupt:
        return []
