"""A run with its log: what a log already has, what runs, what runs again, and the end of it."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from onnxopt_cli.core.case import Case
from onnxopt_cli.core.record import BackendIdentity, Explanation, RunRecord
from onnxopt_cli.core.record_json import result_to_json
from onnxopt_cli.core.result import HARMLESS, OUTSIDE_CASES, Outcome, Result, worse
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import InvalidCase, Problem, UsageError
from onnxopt_cli.expectations.expectations import Expectations, exit_code
from onnxopt_cli.log.header import Shard, versions
from onnxopt_cli.run.executors import Setting
from onnxopt_cli.run.judge import not_run
from onnxopt_cli.run.runner import Plan, run

# What a log and a rerun need is imported where there is one: most runs have neither.
if TYPE_CHECKING:
    from onnxopt_cli.log.contents import Witness
    from onnxopt_cli.log.header import Header
    from onnxopt_cli.log.reader import Log
    from onnxopt_cli.log.writer import LogWriter


@dataclass(frozen=True, slots=True)
class Terms:
    """Under which terms a plan runs.

    Attributes:
        selected: the selected cases, those of other shards too.
        ids: ids of all cases that the targets hold, selected or not.
        expectations: what is expected of them.
        options: the command's options by name.
        setting: how backends are run.
        shard: which part of the selected cases runs; None for all.
        reruns: how often a case that does not conform runs again alone; 0 for never.
        suites: the versions of the suites that state one.
        witness: knows what the files of the backends held before these started; there if a log is.
    """

    selected: Sequence[Case]
    ids: Sequence[str]
    expectations: Expectations
    options: Mapping[str, Any]
    setting: Setting
    shard: Shard | None = None
    reruns: int = 0
    suites: Mapping[str, str] = field(default_factory=dict)
    witness: Witness | None = None


class Session:
    """A run in progress.

    Attributes:
        plan: what runs, with what the log and the expectations need to know of it.
        terms: under which terms.
        began: when, by the clock that counts from anywhere.
        started: when, in UTC; if the session goes on with a log, when that was begun.
        hostname: of the machine that began it.
    """

    def __init__(self, plan: Plan, terms: Terms, log: Path | None = None) -> None:
        self.terms = terms
        self._backends = {it.name: BackendIdentity(it.name, it.version) for it in plan.backends}
        self._results: dict[tuple[str, str], Result] = {}
        self._settled: set[tuple[str, str]] = set()
        self._finished = False
        self._found: tuple[Problem, ...] = ()
        self._writer: LogWriter | None = None
        self._log = log
        self.began = perf_counter()
        self.started = _now()
        self.hostname = platform.node()
        # As a log gives them back.
        self._options = json.loads(json.dumps(dict(terms.options), default=str))
        self.plan = replace(
            plan,
            started=lambda case, backend: self._write("start", case=case, backend=backend),
            review=self._review,
        )

    def begin(self) -> None:
        """Open the log.

        Raises:
            UsageError: if it cannot be written.
        """
        from onnxopt_cli.log.writer import LogWriter

        assert self._log is not None  # noqa: S101 - what to begin is what to write
        self._writer = LogWriter.create(self._log)
        self._writer.write(self._header().to_json())

    def resume(self) -> None:
        """Go on with the log: take the results that it has, and run the others.

        Raises:
            UsageError: if it is no log, cannot be written, or is of another run.
        """
        from onnxopt_cli.log.reader import read_log
        from onnxopt_cli.log.writer import LogWriter

        assert self._log is not None  # noqa: S101 - what to resume is what to write
        log = read_log(self._log)
        header = self._header()
        if log is None:
            self._writer = LogWriter.append(self._log, 0)
            self._writer.write(header.to_json())
            return
        self._require_same(log, header)
        self._take(log)
        if not log.finished:
            self._writer = LogWriter.append(self._log, log.size, log.digest)
            self._writer.write({"record": "resume", "at": _now()})

    def rows(self) -> Iterator[tuple[Result, ...]]:
        """Yield the results of each case, one a backend: those that the log has, then new ones."""
        names = list(self._backends)
        known = {case for case, _ in self._results}
        for case in [case for case in self.plan.cases if case.id in known]:
            yield tuple(self._results[case.id, name] for name in names)
        cases = [case for case in self.plan.cases if case.id not in known]
        if not cases:
            return
        plan = replace(self.plan, cases=cases)
        failed = {result.case for result in self._results.values() if not result.conforms}
        if plan.max_fail and len(failed) >= plan.max_fail:
            stopped = "stopped by --max-fail"
            found: Iterator[tuple[Result, ...]] = (
                tuple(not_run(case, it.name, stopped) for it in plan.backends) for case in cases
            )
        else:
            found = run(replace(plan, max_fail=plan.max_fail and plan.max_fail - len(failed)))
        for row in found:
            for result in row:
                key = result.case, result.backend
                before = self._results.get(key)
                if before is not None and not result.case.startswith(f"{OUTSIDE_CASES}/"):
                    raise RuntimeError(f"two results of {result.case} on {result.backend}")
                # What workers did outside of cases before a run was killed still counts.
                if before is None or worse(before, result) is result:
                    self._results[key] = result
                    self._write("end", result=result)
            yield row

    def rerun(self) -> Iterator[Result]:
        """Run again what does not conform, and yield the results of it."""
        if self._finished:
            return
        from onnxopt_cli.run.rerun import RunInterrupted

        try:
            for backend in self._backends:
                yield from self._rerun_on(backend)
        except RunInterrupted:
            return

    def _rerun_on(self, backend: str) -> Iterator[Result]:
        mine = {case: it for (case, name), it in self._results.items() if name == backend}
        cases = [case for case in self.plan.cases if case.id in mine]
        suspects = [
            mine[case.id]
            for case in cases
            if not mine[case.id].conforms and (case.id, backend) not in self._settled
        ]
        if not suspects:
            return
        from onnxopt_cli.run.rerun import restarted_backend, run_again

        with restarted_backend(self.plan, backend, self.terms.setting) as restarted:
            for found in run_again(cases, mine, suspects, restarted, self.terms.reruns):
                result = self._review(found)
                self._results[result.case, result.backend] = result
                self._write("rerun", result=result)
                yield result

    @property
    def results(self) -> tuple[Result, ...]:
        """The results so far, in the order in which they came."""
        return tuple(self._results.values())

    def finish(self, explanations: Sequence[Explanation]) -> RunRecord:
        """End the run and its log, and return its record with explanations of the failures."""
        plan, terms = self.plan, self.terms
        backends = tuple(self._backends.values())
        expected = terms.expectations
        findings = expected.findings(terms.ids, backends) if expected.layers else ()
        if terms.witness is not None and not self._finished:
            self._found = tuple(terms.witness.changed())
        problems = tuple(dict.fromkeys((*plan.problems, *self._found)))
        code = exit_code(self.results, problems, findings, part=terms.shard is not None)
        record = RunRecord(
            versions=versions(terms.suites),
            backends=backends,
            options=self._options,
            results=self.results,
            problems=problems,
            findings=findings,
            explanations=tuple(explanations),
            exit_code=plan.interruption.exit_code or code,
            started=self.started,
            hostname=self.hostname,
        )
        if self._writer is not None:
            from onnxopt_cli.log.writer import footer

            self._writer.write(footer(record))
            self._writer.close()
        return record

    def require_log(self) -> None:
        """Refuse a log that could not be written to its end.

        Raises:
            UsageError: saying why.
        """
        if self._writer is not None:
            self._writer.require_complete()

    def _take(self, log: Log) -> None:
        """Take from a log the cases that have run on all backends; all of it if it is finished."""
        names = list(self._backends)
        for case in self.plan.cases:
            keys = [(case.id, name) for name in names]
            rows = [log.results[key] for key in keys if key in log.results]
            if any(it.outcome in HARMLESS and not it.diffs for it in rows):
                self._require_refusal(case)
            ran = log.finished or all(it.outcome is not Outcome.NOT_RUN for it in rows)
            if len(rows) == len(names) and ran:
                self._results |= dict(zip(keys, map(self._review, rows), strict=True))
        self.started, self.hostname = log.header.started, log.header.hostname
        started = date.fromisoformat(log.header.started[:10])
        expectations = replace(self.terms.expectations, today=started)
        self.terms = replace(self.terms, expectations=expectations)
        self._settled = log.rerun
        self._finished = log.finished
        if log.finished:
            # What was found wrong in the end, and what backends did outside of the cases, too.
            self._found = log.record.problems
            self._results |= {key: self._review(it) for key, it in log.results.items()}
        outside = [it for key, it in log.results.items() if key[0].startswith(f"{OUTSIDE_CASES}/")]
        self._results |= {(it.case, it.backend): self._review(it) for it in outside}

    def _require_refusal(self, case: Case) -> None:
        """See that a case which conforms without outputs is one that must be refused."""
        with suppress(InvalidCase):
            if case.read().rejects:
                return
        raise UsageError(
            f"cannot resume {printable(str(self._log))}: {printable(case.id)} conforms in it "
            "without an output, and must have one",
            hint="run it again with another log",
        )

    def _require_same(self, log: Log, header: Header) -> None:
        found = log.header.differences(header)
        if log.header.shard != header.shard:
            found.append(f"the shard ({log.header.shard or 'all'}, now {header.shard or 'all'})")
        if found:
            raise UsageError(
                f"cannot resume {printable(str(self._log))}, which is of another run; "
                f"what differs: {'; '.join(found)}",
                hint="run it with the same cases, backends and options, or write another log",
            )

    def _header(self) -> Header:
        from onnxopt_cli.log.header import CaseList, Header

        witness = self.terms.witness
        assert witness is not None  # noqa: S101 - there is one where there is a log
        cases = CaseList.of(self.terms.selected, witness)
        self.plan = replace(self.plan, cases=[witness.guarded(it) for it in self.plan.cases])
        return Header(
            started=self.started,
            hostname=self.hostname,
            versions=versions(self.terms.suites),
            backends=tuple(self._backends.values()),
            cases=cases,
            shard=self.terms.shard,
            expectations=self.terms.expectations.hash,
            options=self._options,
            contents=witness.contents,
        )

    def _review(self, result: Result) -> Result:
        return self.terms.expectations.review(result, self._backends[result.backend])

    def _write(self, record: str, *, result: Result | None = None, **fields: str) -> None:
        """Write a record to the log, if there is one."""
        if self._writer is not None:
            about = fields if result is None else {"result": result_to_json(result)}
            self._writer.write({"record": record, **about})


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
