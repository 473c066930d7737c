"""The command ``onnxopt run``: opens a session, prints its results, and returns the exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from rich.columns import Columns
from rich.console import RenderableType
from rich.text import Text

from onnxopt_cli import _api as api
from onnxopt_cli.backends.backend_code import snapshot_files
from onnxopt_cli.backends.configuration import find_configuration
from onnxopt_cli.cases.case import files_of
from onnxopt_cli.cli.console import (
    ProgressDisplay,
    note,
    show_progress,
    show_step,
    stderr,
    stdout,
    tell_problems,
)
from onnxopt_cli.cli.environment import silence_output
from onnxopt_cli.cli.shared_options import opened_cluster
from onnxopt_cli.core.ci_channels import step_summary
from onnxopt_cli.core.files import require_writable_file
from onnxopt_cli.core.process_control import claimed
from onnxopt_cli.core.record import Explanation
from onnxopt_cli.core.result import (
    EXPLAINED,
    NOT_ITS_FAULT,
    OUTSIDE_IDS,
    Outcome,
    Result,
)
from onnxopt_cli.core.text import printable, some_of
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.report import terminal
from onnxopt_cli.report.artifacts import check_folder, write_artifacts
from onnxopt_cli.report.report_files import (
    STDOUT,
    SUMMARY,
    parse_reports,
    require_apart,
    write_all,
    write_report,
)
from onnxopt_cli.report.view.causes import causes_by_result
from onnxopt_cli.report.view.result_view import ResultView
from onnxopt_cli.report.view.run_view import RunView
from onnxopt_cli.suites.collect import collect, default_targets
from onnxopt_cli.workers.forked_processes import parallel
from onnxopt_cli.workers.interruption import interruptible

if TYPE_CHECKING:
    from onnxopt_cli.config.run_config import RunConfig
    from onnxopt_cli.workers.cluster.dask_client import Cluster

# Number of causes for which an example is shown; with -v, an example is shown for all causes.
_EXAMPLES = 3
# Maximum number of reasons that are shown; with -v, all reasons are shown.
_MAX_REASONS = 5
# The default number of seconds for the search for the first wrong node of a model.
_LOCATE_SECONDS = 10.0
# Outcomes that do not show whether the backend knows the operator.
_UNDECIDED = frozenset({Outcome.ERROR, Outcome.SKIP, *NOT_ITS_FAULT})


class Display:
    """Prints the run to a console, with a progress bar if the console is a terminal.

    Args:
        session: the run.
        targets: the targets of the run.
        cluster: the machines on which backends run; None for this machine.
        to_stderr: whether to print to standard error instead of standard output.
    """

    def __init__(
        self,
        session: api.Session,
        targets: Sequence[str],
        cluster: Cluster | None,
        *,
        to_stderr: bool,
    ) -> None:
        self._plan = session.plan
        self._found = len(session.ids)
        self._expectations = session.expectations
        self._config = config = session.config
        self._options = config.to_json()
        self._targets = targets
        self._verbose, self._quiet = config.verbose, config.quiet
        self._console = stderr() if to_stderr else stdout()
        self.print, self.record = self._console.print_wrapped, self._console.print_record
        self._id_width = self._room_for_ids() if self._verbose or config.rerun else 0
        self._nonconforming = self._done = 0
        self.progress = ProgressDisplay(self._console, "running", "cases", cluster)

    def _room_for_ids(self) -> int:
        longest = max((len(printable(case.id)) for case in self._plan.cases), default=0)
        used = sum(2 + terminal.column_width(backend.name) for backend in self._plan.backends)
        return max(12, min(longest, self._console.width - used))

    def begin(self) -> None:
        """Print the number of cases and backends, and the problems of case files."""
        tell_problems(self._plan.problems)
        names = [backend.name for backend in self._plan.backends]
        if not self._quiet:
            count = len(self._plan.cases)
            of_all = f" of {self._found}" if self._found > count else ""
            cases = f"{count}{of_all} case{'s' * (self._found != 1)}"
            targets = some_of(self._targets, 5)
            self.print(f"{cases} from {targets} on {some_of(names, 3)}")
        if self._verbose and self._plan.cases:
            self.record(terminal.heading(names, self._id_width))

    def show(self, results: Sequence[Result]) -> None:
        """Count the results of a case; with -v, also print its line and its outputs."""
        self._done += results[0].case not in OUTSIDE_IDS
        self._nonconforming += any(
            not result.conforms and result.outcome is not Outcome.NOT_RUN for result in results
        )
        status = f"{self._nonconforming} not conforming" if self._nonconforming else ""
        self.progress.tell(self._done, len(self._plan.cases), Text(status, "red"))
        if self._verbose:
            self.record(terminal.case_line(results, self._id_width))
            for result in results:
                if result.diffs and len(results) > 1:
                    self.print(Text(f"  on {printable(result.backend)}", "dim"))
                for line in terminal.output_lines(ResultView(result, self._options)):
                    self.print(line)

    def show_rerun(self, result: Result) -> None:
        """Print the result of a rerun if the result is flaky."""
        if result.flaky and not self._quiet:
            self.record(terminal.case_line([result], self._id_width))

    def finish(self, view: RunView, seconds: float, explaining: float) -> None:
        """Print the failures, the summary, the verdict and the explanations.

        Args:
            view: the run.
            seconds: duration of the run.
            explaining: duration of the search for explanations.
        """
        record = view.record
        results = record.results
        passed = all(result.outcome is Outcome.PASS and result.conforms for result in results)
        if self._quiet:
            for line in terminal.failing_lines(view):
                self.record(line)
        elif not passed:
            self._failures(view)
            self._reasons(view)
        counts = [terminal.summary_table(view)]
        if not passed:
            counts.append(terminal.capability_table(view))
        # Print the tables side by side if both fit into the width.
        beside = Columns(filter(None, counts), padding=(0, 4)) if any(counts) else None
        tables: list[RenderableType | None] = [beside]
        if self._verbose:
            tables.extend(terminal.accuracy_tables(view))
        if self._config.durations:
            tables.append(terminal.duration_table(results, self._config.durations))
        for table in filter(None, tables):
            self._console.print()
            self._console.print(table)
        self._console.print()
        # A result may be unexpected because an expectation file misspells the backend's name.
        failing = not all(result.conforms for result in results)
        near_misses = self._expectations.near_misses(record.backends) if failing else ()
        # The problems of the plan were already shown when the run began.
        new = [problem for problem in record.problems if problem not in self._plan.problems]
        for line in (
            *terminal.verdict(view, seconds, explaining),
            *([Text(view.scope, "dim")] if view.scope else []),
            *(Text(line, "yellow") for line in view.agreements),
            *(self._explained(view) if record.explanations else ()),
            *(Text(f"{printable(fault.where)}: {fault.what}", "yellow") for fault in near_misses),
            *(Text(printable(str(problem)), "red") for problem in new),
        ):
            self.print(line)
        if record.problems:
            count = len(record.problems)
            self.print(Text(f"{count} problem{'s' * (count > 1)} in case files, see above", "red"))

    def _explained(self, view: RunView) -> Iterable[Text]:
        """Return lines for all explanations with -v or -q, otherwise only for incomplete ones."""
        prints_all = self._verbose or self._quiet
        return terminal.explanation_lines(
            view.record.explanations if prints_all else view.open_explanations
        )

    def _failures(self, view: RunView) -> None:
        """Print the causes of failures with an example of each; with -v, print all failures."""
        failed, groups = view.failures, view.causes
        if not failed:
            return
        about = {case.id: case.about for case in self._plan.cases}
        examples = len(groups) if self._verbose else _EXAMPLES
        self._console.print_page(terminal.cause_table(groups, examples))
        self._console.print()
        for number, group in enumerate(groups[:examples], start=1):
            for result in group.results if self._verbose else group.results[:1]:
                is_example = len(group.results) > 1 and not self._verbose
                more = f", the simplest of {len(group.results)}" if is_example else ""
                panel = terminal.failure_panel(
                    view.result(result),
                    about.get(result.case, ""),
                    complete=self._verbose,
                    brief=number > 1 and not self._verbose,
                    note=f"cause {number}{more}",
                    more=group.more,
                )
                self._console.print(panel)
        if not self._verbose and len(failed) > min(len(groups), examples):
            self.print(Text("-v shows all failures, -q names them", "dim"))
        supported = {
            result.operators
            for result in view.record.results
            if result.lowered or result.outcome not in _UNDECIDED
        }
        errors = {result.operators for result in failed if result.outcome is Outcome.ERROR}
        errors -= supported
        if only_errors := [op.name for op in registry().operators if (op.name,) in errors]:
            advice = (
                f"{some_of(only_errors, 4)}: only errors. If the backend lacks the operator, add "
                "unsupported=REGEX to -b to lower it; onnxopt backends check suggests REGEX"
            )
            self.print(Text(advice, "yellow"))

    def _reasons(self, view: RunView) -> None:
        """Print the reasons why cases are unsupported, do not apply or did not run."""
        visible = view.reasons if self._verbose else view.reasons[:_MAX_REASONS]
        for reason in visible:
            counts = {reason.text: len(reason.results)}
            if self._verbose:
                counts = Counter(printable(result.message, lines=True) for result in reason.results)
            for text, count in counts.items():
                style = terminal.outcome_style(reason.outcome)
                head = Text.assemble(
                    (f"{reason.outcome} ", style), f"{count} on {printable(reason.backend)}: "
                )
                self.print(head.append(text))
        if hidden := len(view.reasons) - len(visible):
            self.print(Text(f"{hidden} more reasons; -v shows all", "dim"))


def execute(config: RunConfig) -> int:
    """Run ``onnxopt run`` with the given settings, and return the exit code.

    Raises:
        OnnxoptError: if an option or a file is invalid, if a backend cannot be started, if no case
            is selected, or if a file cannot be written. If a file cannot be written, the verdict is
            shown and all other files are written before the error is raised.
    """
    reports = parse_reports(config.reports) if config.reports else []
    if summary := step_summary():
        reports.append((SUMMARY, Path(summary)))
    _require_places(config, reports)
    targets = _targets(config)
    execution, memory = config.execution, config.execution.limits.memory
    each = None
    # Forking is unsafe in a process with threads. A backend in this process, or a program that
    # calls onnxopt, may have started threads.
    if execution.jobs > 1 and execution.isolation is not api.Isolation.NONE and claimed():
        each = partial(parallel, jobs=execution.jobs, chunk=1)
    find = partial(collect, targets, memory, each, show_progress, config.model_inputs)
    collection = None
    with ExitStack() as stack:
        interruption = stack.enter_context(interruptible())
        cluster = None
        if config.machines.cluster:
            # Collect the cases before the client starts threads, because a process with threads
            # cannot fork safely. The workers read the contents of the cases, so this process need
            # not read them.
            each_unread = each and (lambda work, paths: each(partial(work, contents=False), paths))
            with interruption.at_once():
                collection = collect(
                    targets, memory, each_unread, show_progress, config.model_inputs
                )
            cluster = stack.enter_context(opened_cluster(config.machines, interruption))
        session = stack.enter_context(
            api.open_session(
                config, lambda: collection or find(), interruption, note, cluster, show_progress
            )
        )
        if reports:
            require_apart(reports, files_of(session.plan.cases))
        # If a report goes to standard output, the output must contain nothing but the report.
        has_report_on_stdout = any(str(path) == STDOUT for _, path in reports)
        display = Display(session, targets, cluster, to_stderr=has_report_on_stdout)
        display.begin()
        with display.progress:
            for row in session.rows():
                display.show(row)
            for result in session.rerun() if config.rerun else ():
                display.show_rerun(result)
        return _conclude(session, display, reports)


def _targets(config: RunConfig) -> Sequence[str]:
    """Return the targets of a run; reduce the gallery to the cases of the tested runtimes."""
    targets = config.targets or default_targets()
    if not any(target.startswith("gallery") for target in targets):
        return targets
    # Imported late, because most runs do not need the import.
    from onnxopt_cli.suites.gallery.gallery_suite import targets_for

    return targets_for(targets, config.backends)


def _require_places(config: RunConfig, reports: Sequence[tuple[str, Path]]) -> None:
    """Check, before the run starts, that the files that it writes can be written."""
    if config.log:
        # The folder for artifacts may be inside the folder of the log, so the folder of the log is
        # created first.
        require_writable_file("--log", config.log)
    if config.artifacts:
        check_folder(config.artifacts)
    if config.update_expect:
        require_writable_file("--update-expect", config.update_expect)
    if reports:
        require_apart(reports, _files_beside(config))
    if reports or config.log_file or config.artifacts or config.update_expect:
        silence_output()


def _files_beside(config: RunConfig) -> Iterator[Path]:
    """Yield the files, except reports, that the run reads or writes."""
    named = (config.log, config.resume, config.update_expect, find_configuration())
    yield from (*filter(None, named), *config.expect, *map(Path, config.targets))
    yield from (*filter(None, [config.model_inputs.inputs]), *config.machines.ship)
    yield from config.machines.tls
    yield from registry().files
    for backend in config.backends:
        yield from snapshot_files(backend).values()


def _conclude(session: api.Session, display: Display, reports: Sequence[tuple[str, Path]]) -> int:
    """End a session, show the verdict, write all files, and return the exit code."""
    config = session.config
    seconds = perf_counter() - session.began
    failing = any(result.outcome in EXPLAINED for result in session.results.values())
    record = session.finish(_explanations(session) if failing else [])
    view = RunView(record)
    display.finish(view, seconds, perf_counter() - session.began - seconds)
    if config.shard and not session.plan.cases:
        display.print(f"no selected case belongs to shard {config.shard}")
    writes: list[Callable[[], object]] = []
    if config.artifacts:
        cases = {case.id: case for case in session.plan.cases}
        oracles = session.plan.oracle
        writes.append(partial(write_artifacts, config.artifacts, view, cases, oracles))
    if config.update_expect:
        path = config.update_expect
        writes.append(lambda: display.print(_updated_expectations(path, session, view)))
    writes += [partial(write_report, form, path, view) for form, path in reports]
    if config.log_file:
        writes.append(session.require_log)
    if writes:
        write_all(writes)
    if failing and not session.cluster:
        for line in _located(session, view):
            display.print(line)
    return record.exit_code or 0


def _updated_expectations(path: Path, session: api.Session, view: RunView) -> str:
    record, ids = view.record, session.ids
    cases = {case.id: case for case in session.plan.cases}
    causes = causes_by_result(view.nonconforming, record.explanations)
    return api.update_expectations(path, session.expectations, record, ids, cases, causes)


def _located(session: api.Session, view: RunView) -> Iterator[Text]:
    """Yield lines about the first wrong node of the first failing model on each backend."""
    interruption, config = session.plan.interruption, session.config
    seconds = _LOCATE_SECONDS if config.explain_time is None else config.explain_time
    if interruption.signal or not config.explain or seconds == 0:
        return
    found: list[tuple[Result, str]] = []
    try:
        with interruption.at_once(), stderr().status("looking for the first wrong node"):
            for pair in api.first_wrong_nodes(session, seconds):
                # Append one by one, so that the results before an interruption are kept.
                found.append(pair)  # noqa: PERF402
    except KeyboardInterrupt:
        note("interrupted while looking for the first wrong node")
    for result, node in found:
        yield Text(f"first wrong node of {printable(result.case)}: {printable(node)}", "yellow")
        command = view.result(result).again.replace("onnxopt run", "onnxopt locate", 1)
        yield Text(f"all wrong nodes: {printable(command)}", "dim", no_wrap=True)


def _explanations(session: api.Session) -> list[Explanation]:
    """Explain the failures of a run.

    After Ctrl-C, nothing is explained, so that the command ends soon. ``onnxopt explain`` can
    explain the saved run later.
    """
    interruption, seconds = session.plan.interruption, session.config.explain_time
    if interruption.signal or not session.config.explain or seconds == 0:
        return []
    try:
        with interruption.at_once(), show_step("looking for known mistakes") as tell:
            return api.explain_session(session, seconds, tell)
    except KeyboardInterrupt:
        note("interrupted while looking for known mistakes: failures are not explained")
        return []
