"""Performs a run and writes its log: resumed results, new results, reruns, and the footer."""

from __future__ import annotations

import os
import platform
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import date
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import onnx

from onnxopt_cli import __version__
from onnxopt_cli.backends.specification import backend_name
from onnxopt_cli.cases.case import Case
from onnxopt_cli.cases.select import (
    FailedLast,
    choose,
    remember,
)
from onnxopt_cli.config.run_config import Execution, RunConfig, Shard
from onnxopt_cli.core.progress import OpenProgress, hide_progress
from onnxopt_cli.core.record import (
    PROCESSOR,
    SUITE,
    BackendIdentity,
    Explanation,
    RunRecord,
    result_to_json,
)
from onnxopt_cli.core.result import (
    OUTSIDE_IDS,
    PROCESS_FAILURES,
    SETTLED,
    Outcome,
    Result,
    worse,
)
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import (
    BackendUnavailable,
    Fault,
    UsageError,
)
from onnxopt_cli.run.executors import (
    Executor,
    NotStarted,
    require_backends,
    weak_isolation,
)
from onnxopt_cli.run.expectations.expectations import Expectations, exit_code
from onnxopt_cli.run.log.log_header import CaseList, FileSnapshot, Header, time_now
from onnxopt_cli.run.log.log_reader import Log, complete_row, read_log
from onnxopt_cli.run.log.log_writer import LogWriter, footer
from onnxopt_cli.run.runner import (
    Plan,
    open_plan,
    run,
    run_case,
)
from onnxopt_cli.run.vacuity import VacuityCheck
from onnxopt_cli.suites.collect import Collection, suite_versions
from onnxopt_cli.workers.interruption import Interruption
from onnxopt_cli.workers.processes import weakness

if TYPE_CHECKING:
    from onnxopt_cli.workers.cluster.dask_client import Cluster


#: What verdicts depend on: the versions of onnxopt, Python and packages, and the machine.
VERSIONS = {
    "onnxopt": __version__,
    "python": platform.python_version(),
    "machine": f"{platform.system()} {platform.machine()}",
    "numpy": np.__version__,
    "onnx": onnx.__version__,
    "ml_dtypes": ml_dtypes.__version__,
}
_CPU_INFO = Path("/proc/cpuinfo")
# Environment variables in which CI servers state the commit; the first one that is set is used.
_COMMIT_VARIABLES = (
    "GITHUB_SHA",
    "CI_COMMIT_SHA",
    "CIRCLE_SHA1",
    "BUILD_SOURCEVERSION",
    "BUILDKITE_COMMIT",
    "GIT_COMMIT",
)
_BRANCH_VARIABLES = (
    "GITHUB_REF_NAME",
    "CI_COMMIT_REF_NAME",
    "CIRCLE_BRANCH",
    "BUILD_SOURCEBRANCHNAME",
    "BUILDKITE_BRANCH",
    "GIT_BRANCH",
)
_JOB_VARIABLES = ("CI_JOB_URL", "CIRCLE_BUILD_URL", "BUILDKITE_BUILD_URL", "BUILD_URL")
_MAX_ORIGIN_CHARS = 300

#: Restarts a backend, runs the given cases on the backend in order, and returns their results.
_Restarted = Callable[[Sequence[Case]], list[Result]]

# After these outcomes, the worker is replaced, so that earlier cases do not affect later ones.
_WORKER_ENDS = PROCESS_FAILURES - {Outcome.PROTOCOL}

_VERBS = {Outcome.PASS: "passes", Outcome.FAIL: "fails", Outcome.CRASH: "crashes"}


@cache
def processor() -> str:
    """Return the model of the processor; empty if it is unknown."""
    with suppress(OSError):
        text = _CPU_INFO.read_text("utf-8", "replace")
        if model := re.search(r"^(?:model name|Model)\s*:\s*(.+)$", text, re.MULTILINE):
            return printable(model[1].strip())
    return printable(platform.processor())


@contextmanager
def open_session(
    config: RunConfig,
    find: Callable[[], Collection],
    interruption: Interruption,
    tell: Callable[[str], None] = lambda _: None,
    cluster: Cluster | None = None,
    open_progress: OpenProgress = hide_progress,
) -> Iterator[Session]:
    """Start backends, select cases and open the log; end the backends afterwards.

    Args:
        config: the settings of the run.
        find: collects the cases from which the settings select. It is called while the backends
            start.
        interruption: set when the user interrupts the run.
        tell: shows a message to the user before the run.
        cluster: the machines on which backends run; None for this machine.
        open_progress: opens a progress display for the installation of adapters.

    Raises:
        OnnxoptError: if a file is wrong or cannot be written, if a backend cannot be started, or if
            nothing is selected.
    """
    expectations = Expectations.read(config.expectation_files(), config.judging)
    if not cluster:
        # Report an unknown or missing backend before the cases are read, because reading cases may
        # take long. The machines of a cluster check the backends themselves, because other backends
        # may be installed on them.
        require_backends(config.backends, interruption, open_progress)
    opened = open_plan(
        config.backends, config.execution, config.judging, interruption, cluster, open_progress
    )
    snapshot = listed = None
    if config.log_file:
        snapshot = FileSnapshot()
        snapshot.see_backends(list(dict.fromkeys(config.backends)))
    with ExitStack() as stack:
        # If the run has a log, hash all files before any code of a backend runs.
        plan = None if snapshot else stack.enter_context(opened)
        with interruption.at_once():
            collection = find()
        suites = suite_versions(collection.cases)
        if expectations.layers:
            expectations.require_suites(suites, config.update_expect)
        selected, left_out = _selected(collection, config, expectations, tell)
        chosen = {case.id for case in selected}
        if snapshot:
            with interruption.at_once():
                listed = CaseList.of(
                    [case for case in collection.cases if case.id in chosen], snapshot
                )
        plan = plan or stack.enter_context(opened)
        if weak := weak_isolation(config.execution, config.backends):
            tell(weak)
        filled = replace(
            plan,
            backends=_started(plan, tell),
            cases=_in_shard(selected, config.shard),
            problems=collection.problems,
            max_fail=config.max_fail or 0,
            vacuity=VacuityCheck(collection.cases),
        )
        ids = [case.id for case in collection.cases]
        if config.failed_only:
            # Record the ids of the selected cases. When the log is resumed, --lf would select other
            # cases.
            filters = replace(config.filters, patterns=tuple(sorted(chosen)))
            config = replace(config, filters=filters)
        session = Session(filled, config, expectations, ids, suites, left_out, cluster)
        if snapshot and listed:
            session.begin(snapshot, listed)
        yield session


def _selected(
    collection: Collection,
    config: RunConfig,
    expectations: Expectations,
    tell: Callable[[str], None],
) -> tuple[list[Case], Mapping[str, str]]:
    """Return the cases that the settings select, and the reasons why other cases are left out."""
    return choose(
        collection.cases,
        config.filters,
        tell,
        without=expectations.without,
        failed=_failed_last(config),
        required=bool(collection.cases) and not collection.problems,
    )


def _in_shard(cases: list[Case], shard: Shard | None) -> list[Case]:
    return cases if shard is None else [case for case in cases if shard.holds(case.id)]


def _failed_last(config: RunConfig) -> FailedLast | None:
    if not (config.failed_only or config.failed_first):
        return None
    names = tuple(map(backend_name, config.backends))
    return FailedLast(names, only=config.failed_only)


def _identity(executor: Executor) -> BackendIdentity:
    specification = executor.specification
    text = specification.text if specification.label else ""
    return BackendIdentity(executor.name, executor.version, text)


def _started(plan: Plan, tell: Callable[[str], None]) -> list[Executor]:
    """Wait until the backends have started, and return their executors.

    If a backend fails to start, the others continue, and a :class:`NotStarted` takes its place.

    Raises:
        UsageError: if a backend does not exist.
        BackendUnavailable: if no backend starts, or if any backend of a cluster fails to start.
    """
    executors: list[Executor] = []
    errors = []
    for executor in plan.backends:
        try:
            executor.ready()
            executors.append(executor)
        except BackendUnavailable as error:
            errors.append(error)
            if plan.remote or len(errors) == len(plan.backends):
                raise errors[0] from error
            tell(f"{printable(executor.name)} is not tested, because it could not be started")
            executors.append(NotStarted(executor.specification, error))
    return executors


class Session:
    """A run in progress, created by :func:`open_session`.

    Attributes:
        plan: the cases and backends, and the functions that write the log and review results.
        config: the settings of the run.
        cluster: the machines on which backends run; None for this machine.
        expectations: the expectations on the results of the cases.
        ids: the ids of all cases, selected or not.
        results: the results by case and backend, in the order of their arrival.
        began: the time of the start by ``perf_counter``.
    """

    def __init__(
        self,
        plan: Plan,
        config: RunConfig,
        expectations: Expectations,
        ids: Sequence[str],
        suites: Mapping[str, str],
        left_out: Mapping[str, str],
        cluster: Cluster | None,
    ) -> None:
        self.config = config
        self.cluster = cluster
        self.expectations = expectations
        self.ids = ids
        suite_entries = {f"{SUITE}{name}": version for name, version in suites.items()}
        # Incomplete isolation is recorded like a version, because verdicts may depend on it.
        isolation = {"isolation": limits} if (limits := weakness()) else {}
        self._backends = {executor.name: _identity(executor) for executor in plan.backends}
        self.results: dict[tuple[str, str], Result] = {}
        self._log: Log | None = None
        self._writer: LogWriter | None = None
        self._snapshot: FileSnapshot | None = None
        self.began = perf_counter()
        # The parts of the run's record that are known when the run begins.
        self._record = RunRecord(
            versions={**VERSIONS, PROCESSOR: processor(), **suite_entries, **isolation},
            backends=tuple(self._backends.values()),
            options=config.to_json(),
            results=(),
            started=time_now(),
            hostname=platform.node(),
            origin=_ci_origin(os.environ),
            left_out=left_out,
        )
        self.plan = replace(plan, review=self._review)

    def begin(self, snapshot: FileSnapshot, cases: CaseList) -> None:
        """Open the log.

        With ``--resume``, the results are loaded from the log, so that only the remaining cases
        run.

        Args:
            snapshot: hashes of the files of backends and cases, taken before any backend started.
            cases: the selected cases of all shards, in the order of their files.

        Raises:
            UsageError: if the file is not a log, cannot be written, or belongs to another run.
        """
        path = self.config.log_file
        assert path is not None  # noqa: S101 - only runs with a log have a snapshot
        self._snapshot = snapshot
        guarded = [snapshot.guarded(case) for case in self.plan.cases]
        self.plan = replace(self.plan, cases=guarded, started=self._started)
        resume = self.config.resume is not None
        self._log = log = read_log(path) if resume else None
        record = self._record
        header = Header(
            started=record.started,
            hostname=record.hostname,
            origin=record.origin,
            versions=record.versions,
            backends=record.backends,
            cases=cases,
            shard=self.config.shard,
            expectations=self.expectations.hash,
            options=record.options,
            left_out=record.left_out,
            contents=snapshot.contents,
        )
        if log is None:
            self._writer = LogWriter.append(path, 0) if resume else LogWriter.create(path)
            self._writer.write(header.to_json())
            return
        self._require_same(log, header)
        self._take(log)
        if not log.finished:
            self._writer = LogWriter.append(path, log.size, log.digest)
            self._writer.write({"record": "resume", "at": time_now()})

    def rows(self) -> Iterator[tuple[Result, ...]]:
        """Yield the results of each case, one for each backend. Resumed results come first."""
        names = list(self._backends)
        resumed_ids = {case for case, _ in self.results}
        for case in [case for case in self.plan.cases if case.id in resumed_ids]:
            yield tuple(self.results[case.id, name] for name in names)
        cases = [case for case in self.plan.cases if case.id not in resumed_ids]
        if not cases:
            return
        failed = {result.case for result in self.results.values() if not result.conforms}
        for row in run(replace(self.plan, cases=cases, failed=len(failed))):
            for result in row:
                before = self.results.get((result.case, result.backend))
                if before is not None and result.case not in OUTSIDE_IDS:
                    raise RuntimeError(f"two results of {result.case} on {result.backend}")
                # The resumed log may already contain a failure outside of any case. Keep the worse
                # of the two failures.
                if before is None or worse(before, result) is result:
                    self._keep(result, "end")
            yield row

    def rerun(self) -> Iterator[Result]:
        """Run again all cases that did not conform, and yield the new results."""
        if self._log and self._log.finished:
            return

        with suppress(_RunInterrupted):
            for backend in self._backends:
                yield from self._rerun_on(backend)

    def _rerun_on(self, backend: str) -> Iterator[Result]:
        results = {case: result for (case, name), result in self.results.items() if name == backend}
        cases = [case for case in self.plan.cases if case.id in results]
        by_id = {case.id: case for case in cases}
        logged_reruns = self._log.rerun if self._log else ()
        suspects = [
            results[case.id]
            for case in cases
            if (case.id, backend) not in logged_reruns and not results[case.id].conforms
        ]
        if not suspects:
            return

        text = self._backends[backend].text
        opened = _restarted_backend(self.plan, text, self.config.execution, self.cluster)
        with opened as restarted:
            for rerun in _run_again(cases, results, suspects, restarted, self.config.rerun or 0):
                result = self._review(rerun, by_id[rerun.case])
                self._keep(result, "rerun")
                yield result

    def finish(self, explanations: Sequence[Explanation]) -> RunRecord:
        """End the run and its log. Return the run's record, with explanations of failures."""
        plan = self.plan
        expectations, backends = self.expectations, self._record.backends
        findings = expectations.findings(self.ids, backends) if expectations.layers else ()
        faults: Iterable[Fault] = self._snapshot.changed() if self._snapshot else ()
        if self._log and self._log.finished:
            # A finished log already contains the faults that were detected at the end of its run.
            faults = self._log.record.problems
        problems = tuple(dict.fromkeys((*plan.problems, *faults)))
        results = tuple(self.results.values())
        is_logged = self._log and self._log.finished
        ended = self._log.record.ended if is_logged and self._log else time_now()
        code = exit_code(results, problems, findings, part=self.config.shard is not None)
        record = replace(
            self._record,
            results=results,
            problems=problems,
            findings=findings,
            explanations=tuple(explanations),
            ended=ended,
            exit_code=plan.interruption.exit_code or code,
        )
        if self._writer is not None:
            self._writer.write(footer(record))
            self._writer.close()
        remember(results)
        return record

    def require_log(self) -> None:
        """Require that the complete log has been written.

        Raises:
            UsageError: if a part of the log could not be written.
        """
        if self._writer is not None:
            self._writer.require_complete()

    def _take(self, log: Log) -> None:
        """Load a log's results. In an unfinished log, only cases run on all backends are loaded."""
        started, hostname = log.header.started, log.header.hostname
        self._record = replace(
            self._record, started=started, hostname=hostname, origin=log.header.origin
        )
        self.expectations = replace(self.expectations, today=date.fromisoformat(started[:10]))
        results = log.results.values()
        if log.finished:
            resumed = [*results]
        else:
            rows = [complete_row(log.results, case.id, self._backends) for case in self.plan.cases]
            resumed = [result for row in rows for result in row]
            resumed += [result for result in results if result.case in OUTSIDE_IDS]
        cases = {case.id: case for case in self.plan.cases}
        self.results |= {
            (result.case, result.backend): self._review(result, cases.get(result.case))
            for result in resumed
        }

    def _require_same(self, log: Log, header: Header) -> None:
        differences = log.header.differences(header)
        if log.header.shard != header.shard:
            differences.append(
                f"the shard ({log.header.shard or 'all'}, now {header.shard or 'all'})"
            )
        if differences:
            raise UsageError(
                f"cannot resume {printable(str(self.config.log_file))}, which belongs to another "
                f"run; differences: {'; '.join(differences)}",
                hint="use the same cases, backends and options, or write a new log",
            )

    def _review(self, result: Result, case: Case | None) -> Result:
        return self.expectations.review(result, self._backends[result.backend], case)

    def _keep(self, result: Result, record: str) -> None:
        """Store a result, and append it to the log, if any, as a record of the given type."""
        self.results[result.case, result.backend] = result
        if self._writer is not None:
            self._writer.write({"record": record, "result": result_to_json(result)})

    def _started(self, case: str, backend: str) -> None:
        if self._writer is not None:
            self._writer.write({"record": "start", "case": case, "backend": backend})


def _ci_origin(environment: Mapping[str, str]) -> dict[str, str]:
    """Return commit, branch and job of a run on a CI server, as far as the environment states them.

    Sources: https://docs.github.com/actions/reference/workflows-and-actions/variables,
    https://docs.gitlab.com/ci/variables/predefined_variables, https://circleci.com/docs/variables,
    https://learn.microsoft.com/azure/devops/pipelines/build/variables,
    https://buildkite.com/docs/pipelines/configure/environment-variables,
    https://www.jenkins.io/doc/book/pipeline/jenkinsfile/#using-environment-variables
    """

    def first_of(names: Iterable[str]) -> str:
        return next(filter(None, map(environment.get, names)), None) or ""

    origin = {
        "commit": first_of(_COMMIT_VARIABLES),
        "branch": first_of(_BRANCH_VARIABLES),
        "job": first_of(_JOB_VARIABLES),
    }
    server, repository, run = map(
        environment.get, ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")
    )
    if not origin["job"] and server and repository and run:
        origin["job"] = f"{server}/{repository}/actions/runs/{run}"
    return {name: value[:_MAX_ORIGIN_CHARS] for name, value in origin.items() if value}


class _RunInterrupted(Exception):
    """The user has interrupted the run."""


@contextmanager
def _restarted_backend(
    plan: Plan, backend: str, execution: Execution, cluster: Cluster | None
) -> Iterator[_Restarted]:
    """Yield a function that runs cases on a backend in order.

    Before each call, the function restarts the backend. If the user interrupts the run, the
    function raises _RunInterrupted.

    Args:
        plan: the plan of the run.
        backend: the backend, in the form of the option ``-b``.
        execution: how to run the backend.
        cluster: the machines on which the backend runs; None for this machine.

    Raises:
        BackendUnavailable: if the backend cannot be restarted.
    """
    # The plan of a rerun writes no log. The caller logs the result of the rerun.
    one_worker = replace(execution, jobs=1)
    opened = open_plan([backend], one_worker, plan.judging, plan.interruption, cluster)
    with opened as fresh:
        rerun_plan = replace(fresh, vacuity=plan.vacuity)
        (executor,) = rerun_plan.backends
        executor.ready()
        is_used = False

        def restarted(cases: Sequence[Case]) -> list[Result]:
            nonlocal is_used
            if is_used:
                executor.renew()
            is_used = True
            results = [run_case(rerun_plan, case)[0] for case in cases]
            if plan.interruption.signal:
                raise _RunInterrupted
            return results

        yield restarted


def _run_again(
    cases: Sequence[Case],
    results: Mapping[str, Result],
    suspects: Sequence[Result],
    restarted: _Restarted,
    times: int,
) -> Iterator[Result]:
    """Yield each suspect whose outcome may change, with a reason if the outcome is flaky.

    Each suspect first runs several times without other cases, and then once more after the cases
    that preceded it. If the outcome depends on preceding cases, a search finds the case that
    changes it.

    Args:
        cases: the cases of the run, in order.
        results: their results on one backend, by the case's id.
        suspects: the results that do not conform.
        restarted: runs cases on that backend.
        times: how often each suspect runs alone, at least once.
    """
    by_id = {case.id: case for case in cases}
    # Suspects that have the same outcome each time they run alone. Each entry has the suspect's
    # result in the run, and its outcome when it runs alone.
    stable_alone: list[tuple[Result, Outcome]] = []
    for result in suspects:
        if result.outcome in SETTLED:
            continue
        outcomes = [restarted([by_id[result.case]])[0].outcome for _ in range(times)]
        if len(set(outcomes)) > 1:
            yield replace(result, flaky=_share([result.outcome, *outcomes]))
        else:
            stable_alone.append((result, outcomes[0]))
    if not stable_alone:
        return
    harmless = [case for case in cases if results[case.id].outcome not in _WORKER_ENDS]
    place = {name: index for index, name in enumerate(by_id)}
    last = max(place[result.case] for result, _ in stable_alone)
    rerun = restarted([case for case in harmless if place[case.id] <= last])
    in_order = {result.case: result.outcome for result in rerun}
    culprits: list[Case] = []
    for result, outcome in stable_alone:
        before = [case for case in harmless if place[case.id] < place[result.case]]
        case = by_id[result.case]
        outcome_in_order = in_order.get(result.case, outcome)
        if result.case not in in_order and outcome is not result.outcome:
            # The worker ended while the suspect ran. The suspect was therefore left out when all
            # cases ran again in order.
            outcome_in_order = restarted([*before, case])[-1].outcome
        if outcome_in_order is not outcome:
            text = _dependence(before, case, outcome_in_order, restarted, culprits)
            yield replace(result, flaky=text)
        elif outcome is not result.outcome:
            yield replace(result, flaky=_share([result.outcome, *[outcome] * times]))
        else:
            yield result


def _dependence(
    before: Sequence[Case],
    case: Case,
    outcome: Outcome,
    restarted: _Restarted,
    culprits: list[Case],
) -> str:
    """Return a text that names the earlier case on which the outcome of a case depends.

    Args:
        before: the cases that ran before the case.
        case: the case.
        outcome: the outcome of the case after all these cases.
        restarted: runs cases on the restarted backend.
        culprits: the earlier cases that were found to change the outcomes of other cases; a new one
            is added.
    """

    def same_after(prefix: Sequence[Case]) -> bool:
        return restarted([*prefix, case])[-1].outcome is outcome

    verb = _VERBS.get(outcome, f"ends in {outcome}")
    earlier_ids = {earlier_case.id for earlier_case in before}
    for culprit in culprits:
        if culprit.id in earlier_ids and same_after([culprit]):
            return f"{verb} only after {printable(culprit.id)}"
    if not same_after(before):
        return f"{verb} only in some runs"
    # Search for the shortest sequence of consecutive cases that ends just before the suspect and
    # leads to the same outcome. The first case of this sequence is the culprit.
    starts = range(1, len(before))
    culprit = before[bisect_left(starts, True, key=lambda start: not same_after(before[start:]))]
    if not same_after([culprit]):
        return f"{verb} only after {printable(culprit.id)} and others before it"
    culprits.append(culprit)
    return f"{verb} only after {printable(culprit.id)}"


def _share(outcomes: Sequence[Outcome]) -> str:
    passed = sum(outcome is Outcome.PASS for outcome in outcomes)
    failures = sorted({outcome.value for outcome in outcomes} - {Outcome.PASS.value})
    text = f"{passed} of {len(outcomes)} passed"
    return f"{text}; the others: {', '.join(failures)}" if len(failures) > 1 else text
