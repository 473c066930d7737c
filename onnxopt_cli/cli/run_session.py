"""From the options of ``onnxopt run`` to a session, and through it to an exit code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from onnxopt_cli.cli.run_display import Display
from onnxopt_cli.core.outcome import Outcome
from onnxopt_cli.core.record import Explanation, RunRecord
from onnxopt_cli.errors import OnnxoptError, UsageError
from onnxopt_cli.expectations.expectations import Expectations
from onnxopt_cli.log.shard import Shard
from onnxopt_cli.report.files import Reports, append_step_summary, step_summary
from onnxopt_cli.run.executors import Setting
from onnxopt_cli.run.runner import Plan
from onnxopt_cli.run.session import Session, Terms

if TYPE_CHECKING:
    from onnxopt_cli.log.contents import Witness


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
