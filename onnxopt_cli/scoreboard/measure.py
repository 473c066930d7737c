"""Choose the cases of a scoreboard's tier, and run the cases that have no result yet."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from onnxopt_cli import _api as api
from onnxopt_cli.backends.protocol import start_problem
from onnxopt_cli.cases.case import Case
from onnxopt_cli.cases.select import operators_of
from onnxopt_cli.config.run_config import ClusterConfig, Execution, Judging, RunConfig
from onnxopt_cli.core.progress import OpenProgress, hide_progress
from onnxopt_cli.core.record import Explanation
from onnxopt_cli.core.result import EXPLAINED
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import BackendUnavailable, OnnxoptError, UsageError
from onnxopt_cli.run.log.log_header import CaseList, FileSnapshot
from onnxopt_cli.run.runner import open_plan
from onnxopt_cli.run.session import Session, open_session
from onnxopt_cli.scoreboard.result_store import (
    ResultKey,
    ResultStore,
    holds_for,
    missing_cases,
)
from onnxopt_cli.scoreboard.scoreboard_file import ScoreboardFile, ScoredBackend, Tier
from onnxopt_cli.suites.collect import Collection
from onnxopt_cli.workers.interruption import Interruption

if TYPE_CHECKING:
    from onnxopt_cli.run.log.log_reader import Log
    from onnxopt_cli.workers.cluster.dask_client import Cluster


#: The number of cases in the quick tier. If there are more pairs of suite and operator, the tier
#: has one case for each pair.
QUICK_CASES = 470
#: The row for cases whose model has several operators.
SEVERAL_OPERATORS = "models of several operators"
#: The row for cases whose model is invalid or has no node.
NO_OPERATOR = "no operator"
# For each example of an operator with a function body, onnx has two cases. The model of the second
# case consists of the nodes of the body, and the id of this case has this suffix.
_EXPANDED = re.compile(r"_expanded(_ver\d+)?(?=/|$)")


@dataclass(frozen=True, slots=True)
class Conditions:
    """How and on which machines the cases are run.

    Attributes:
        execution: how backends are run.
        machines: the settings of the cluster.
        interruption: set when the user interrupts the command.
        cluster: the machines on which backends run; None for this machine.
        explain_time: time limit in seconds for explaining the failures of a run; None for a limit
            that depends on the run's time.
        tell: shows a message.
        open_progress: opens a progress display.
    """

    execution: Execution
    machines: ClusterConfig
    interruption: Interruption
    cluster: Cluster | None = None
    explain_time: float | None = None
    tell: Callable[[str], None] = lambda _: None
    open_progress: OpenProgress = hide_progress


def measure(
    scoreboard: ScoreboardFile,
    cases: Sequence[Case],
    chosen: Sequence[Case],
    conditions: Conditions,
) -> dict[tuple[str, str], str]:
    """Run on every backend the chosen cases that have no result yet, and keep the logs.

    If a backend does not start, the failed start is recorded, and the remaining backends run.

    Args:
        scoreboard: the backends, and the folder of the logs.
        cases: all cases of the suites; logs may contain results of cases that are not chosen.
        chosen: the cases of the tier.
        conditions: where and how to run the cases.

    Returns:
        The version that each started backend reported, by label and specification.

    Raises:
        UsageError: if a log cannot be written.
    """
    cases_by_id = {case.id: case for case in cases}
    by_suite: dict[str, list[Case]] = {}
    for case in chosen:
        by_suite.setdefault(case.suite, []).append(case)
    versions: dict[tuple[str, str], str] = {}
    for backend in scoreboard.backends:
        runner = _BackendRuns(scoreboard.results, backend, cases_by_id, conditions)
        for specification in backend.specifications:
            if conditions.interruption.signal:
                return versions
            version = runner.run(specification, by_suite)
            if version is not None:
                versions[backend.label, specification] = version
    return versions


class _BackendRuns:
    """Runs one backend on the cases that have no result yet.

    Args:
        results: the folder of the results of all backends.
        backend: the backend.
        cases: all cases by id.
        conditions: where and how to run them.
    """

    def __init__(
        self,
        results: Path,
        backend: ScoredBackend,
        cases: Mapping[str, Case],
        conditions: Conditions,
    ) -> None:
        self._backend, self._cases, self._conditions = backend, cases, conditions
        self._store = ResultStore(results, backend, conditions.tell)

    def run(self, specification: str, by_suite: Mapping[str, Sequence[Case]]) -> str | None:
        """Run the cases without a result, suite by suite.

        Returns:
            The version that the backend reported, possibly empty; None if the backend did not
            start.
        """
        label = printable(self._backend.label)
        try:
            version = self._version(specification)
            self._store.forget_failed_start(specification)
            for suite, cases in by_suite.items():
                if self._conditions.interruption.signal:
                    break
                self._run_suite(ResultKey.here(specification, version), suite, cases)
        except BackendUnavailable as error:
            # The reason omits the name of the backend, because the message begins with its label.
            reason = start_problem(error, specification)
            message = "; ".join(filter(None, (reason, error.hint)))
            self._store.keep_failed_start(specification, message)
            self._conditions.tell(f"{label} could not be started: {reason}")
            return None
        return version

    def _version(self, specification: str) -> str:
        """Start a backend and return its version.

        Raises:
            BackendUnavailable: if the backend does not start, or does not exist.
        """
        conditions = self._conditions
        try:
            with open_plan(
                [specification],
                conditions.execution,
                Judging(),
                conditions.interruption,
                conditions.cluster,
                conditions.open_progress,
            ) as plan:
                (executor,) = plan.backends
                executor.ready()
                return executor.version
        except BackendUnavailable:
            raise
        except OnnxoptError as error:
            # A backend's name or package may be missing only on this machine. Treat a missing
            # backend like one that does not start, so that the remaining backends run.
            raise BackendUnavailable(error.message, hint=error.hint) from error

    def _run_suite(self, key: ResultKey, suite: str, cases: Sequence[Case]) -> None:
        snapshot = FileSnapshot()
        logs = [*self._store.logs_with_key(key, suite)]
        valid = [log for log in logs if holds_for(log, self._cases, snapshot)]
        missing = missing_cases(valid, cases)
        if not missing:
            return
        expected = CaseList.of(missing, snapshot)
        unfinished = [log for log in logs if not log.finished and log.header.cases == expected]
        for log in reversed(unfinished):
            if self._resume(log, suite, missing):
                return
        self._run_cases(key.specification, suite, missing, log=self._store.new_log(key, suite))

    def _resume(self, log: Log, suite: str, cases: Sequence[Case]) -> bool:
        """Continue an unfinished log.

        Returns:
            False if the log cannot be continued, because it belongs to another environment.
        """
        specification = log.header.backends[0].name
        try:
            self._run_cases(specification, suite, cases, resume=log.path)
        except UsageError as error:
            self._conditions.tell(f"starting anew: {error.message}")
            return False
        return True

    def _run_cases(
        self,
        specification: str,
        suite: str,
        cases: Sequence[Case],
        *,
        log: Path | None = None,
        resume: Path | None = None,
    ) -> None:
        conditions = self._conditions
        config = RunConfig(
            targets=(suite,),
            backends=(specification,),
            execution=conditions.execution,
            machines=conditions.machines,
            log=log,
            resume=resume,
        )
        doing = f"{printable(self._backend.label)}, {printable(suite)}"
        collection = Collection(tuple(cases), ())
        opened = open_session(
            config,
            lambda: collection,
            conditions.interruption,
            conditions.tell,
            conditions.cluster,
            conditions.open_progress,
        )
        with opened as session:
            with conditions.open_progress(doing, "cases") as tick:
                for done, _ in enumerate(session.rows(), start=1):
                    tick(done, len(cases))
            session.finish(self._explanations(session))
            session.require_log()

    def _explanations(self, session: Session) -> list[Explanation]:
        """Explain the failures of a run, unless the user interrupts the command."""
        conditions = self._conditions
        failing = any(result.outcome in EXPLAINED for result in session.results.values())
        if not failing or conditions.explain_time == 0:
            return []
        with suppress(KeyboardInterrupt), conditions.interruption.at_once():
            return api.explain_session(session, conditions.explain_time)
        return []


def operator_rows(cases: Sequence[Case]) -> dict[str, str]:
    """Return the row of the scoreboard for each case.

    The row is the operator of the case's model. If the model of a case of onnx is the function body
    of an operator, the case belongs to the row of this operator.
    """
    operators = {case.id: tuple(dict.fromkeys(operators_of(case))) for case in cases}
    rows = {}
    for case, names in operators.items():
        unexpanded = operators.get(_EXPANDED.sub("", case), ())
        subject = unexpanded if len(names) > 1 and len(unexpanded) == 1 else names
        several = SEVERAL_OPERATORS if subject else NO_OPERATOR
        rows[case] = subject[0] if len(subject) == 1 else several
    return rows


def tier_cases(cases: Sequence[Case], tier: Tier, rows: dict[str, str]) -> list[Case]:
    """Return the cases of a tier, in their original order; the quick tier covers every operator.

    The quick tier first takes one case for each pair of suite and operator, then a second case for
    each pair, and so on up to :data:`QUICK_CASES`. The cases of a pair are ordered by a hash of
    their ids. The choice therefore depends only on the ids, and a new case displaces few other
    cases.

    Args:
        cases: all cases.
        tier: the tier.
        rows: the row of each case, from :func:`operator_rows`.
    """
    if tier is Tier.FULL or len(cases) <= QUICK_CASES:
        return [*cases]
    groups: defaultdict[tuple[str, str], list[Case]] = defaultdict(list)
    for case in sorted(cases, key=lambda case: _digest(case.id)):
        groups[case.suite, rows[case.id]].append(case)
    ranked = [
        (rank, _digest(case.id), case.id)
        for group in groups.values()
        for rank, case in enumerate(group)
    ]
    count = max(QUICK_CASES, len(groups))
    chosen = {name for _, _, name in sorted(ranked)[:count]}
    return [case for case in cases if case.id in chosen]


def _digest(name: str) -> bytes:
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
