"""The folder of a scoreboard's results: logs by label, version of the backend, suite and date.

::

    results/openvino/openvino-2026.4.1/onnx-node/2026-11-27.jsonl

The logs have the form of ``onnxopt run --log``. A log may contain results for only a part of a
suite. A result is valid until one of the following changes: the specification, the version or the
files of the backend; the machine or its processor; the version of onnxopt; or the content of the
case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from onnxopt_cli.cases.case import Case
from onnxopt_cli.config.run_config import RunConfig
from onnxopt_cli.core.files import write_atomically
from onnxopt_cli.core.record import PROCESSOR, BackendIdentity, RunRecord
from onnxopt_cli.core.result import Outcome
from onnxopt_cli.core.text import clipped, printable
from onnxopt_cli.errors import BackendUnavailable, Fault, UsageError
from onnxopt_cli.run.log.log_header import CaseList, FileSnapshot, Header, time_now
from onnxopt_cli.run.log.log_reader import Log, read_log
from onnxopt_cli.run.log.log_writer import footer, record_line
from onnxopt_cli.run.session import VERSIONS, processor
from onnxopt_cli.scoreboard.safe_names import base_name, digest, file_name
from onnxopt_cli.scoreboard.scoreboard_file import ScoredBackend

_LOG_SUFFIX = ".jsonl"
#: The folder with the records of failed starts, beside the folders of versions.
NOT_STARTED_FOLDER = "not-started"
_MAX_MESSAGE_CHARS = 2000


@dataclass(frozen=True, slots=True)
class ResultKey:
    """All conditions on which results depend, except the cases.

    Attributes:
        specification: the specification of the backend.
        version: the version that the backend reported.
        sources: a hash of the files of the backend, such as a plugin.
        onnxopt: the version of onnxopt.
        machine: operating system and architecture.
        processor: the model of the processor.
    """

    specification: str
    version: str
    sources: str
    onnxopt: str
    machine: str
    processor: str

    @classmethod
    def here(cls, specification: str, version: str) -> ResultKey:
        """Return the key of the results that a run on this machine obtains."""
        snapshot = FileSnapshot()
        snapshot.see_backends([specification])
        sources, machine = snapshot.contents.backends, VERSIONS["machine"]
        return cls(specification, version, sources, VERSIONS["onnxopt"], machine, processor())

    @classmethod
    def of(cls, header: Header) -> ResultKey:
        """Return the key of the results in a log."""
        (backend,) = header.backends
        versions = (header.versions.get(name, "") for name in ("onnxopt", "machine", PROCESSOR))
        return cls(backend.name, backend.version, header.contents.backends, *versions)


class ResultStore:
    """The logs of one backend.

    Args:
        results: the folder of the results of all backends.
        backend: the backend.
        tell: shows a notice about a file that cannot be used.
    """

    def __init__(
        self, results: Path, backend: ScoredBackend, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        self._folder = results / file_name(backend.label)
        self._backend, self._tell = backend, tell

    def logs(self) -> Iterator[Log]:
        """Yield all logs of runs, the oldest first.

        Files that are not logs of runs are skipped.
        """
        return self._in_order(self._folder.glob(f"*/*/*{_LOG_SUFFIX}"))

    def logs_with_key(self, key: ResultKey, suite: str) -> Iterator[Log]:
        """Yield the logs of a suite whose header has the given key, the oldest first."""
        paths = self._suite_folder(key, suite).glob(f"*{_LOG_SUFFIX}")
        yield from (log for log in self._in_order(paths) if ResultKey.of(log.header) == key)

    def _in_order(self, paths: Iterable[Path]) -> Iterator[Log]:
        logs = [self._log(path) for path in sorted(paths) if path.is_file()]
        yield from sorted(filter(None, logs), key=lambda log: log.header.started)

    def _suite_folder(self, key: ResultKey, suite: str) -> Path:
        # Different versions or suites may share a folder. The key of a log is read from its header.
        return self._folder.joinpath(*map(base_name, (key.version or "unknown", suite)))

    def _log(self, path: Path) -> Log | None:
        try:
            log = read_log(path)
        except UsageError as error:
            self._tell(f"not used: {error.message}")
            return None
        return log if log and len(log.header.backends) == 1 and not log.header.shard else None

    def new_log(self, key: ResultKey, suite: str) -> Path:
        """Create the folder of a log, and return the path of a log that does not exist yet.

        Raises:
            UsageError: if the folder cannot be created.
        """
        folder = self._suite_folder(key, suite)
        make_folder(folder)
        day = datetime.now(UTC).strftime("%Y-%m-%d")
        path, number = folder / f"{day}{_LOG_SUFFIX}", 1
        while path.exists():
            number += 1
            path = folder / f"{day}-{number}{_LOG_SUFFIX}"
        return path

    def _not_started_file(self, specification: str) -> Path:
        # The specification may contain secrets, as in env.TOKEN=..., so the name contains only its
        # digest.
        return self._folder / NOT_STARTED_FOLDER / f"{digest(specification)}{_LOG_SUFFIX}"

    def keep_failed_start(self, specification: str, message: str) -> None:
        """Record that a backend did not start, as a log without results.

        Raises:
            UsageError: if the file cannot be written.
        """
        path = self._not_started_file(specification)
        backends = (BackendIdentity(specification, ""),)
        header = Header(
            started=time_now(),
            versions={**VERSIONS, PROCESSOR: processor()},
            backends=backends,
            cases=CaseList.of([], FileSnapshot()),
            shard=None,
            expectations="",
            options=RunConfig(backends=(specification,)).to_json(),
        )
        fault = Fault(self._backend.label, clipped(message, _MAX_MESSAGE_CHARS))
        record = RunRecord(
            header.versions,
            backends,
            header.options,
            (),
            problems=(fault,),
            exit_code=BackendUnavailable.exit_code,
        )
        make_folder(path.parent)
        write_atomically(path, [record_line(header.to_json()), record_line(footer(record))])

    def forget_failed_start(self, specification: str) -> None:
        """Remove the record that a backend did not start, if the record exists."""
        self._not_started_file(specification).unlink(missing_ok=True)

    def failed_start(self, specification: str) -> str:
        """Return why the last start of a backend failed; empty if the backend started."""
        path = self._not_started_file(specification)
        log = self._log(path) if path.is_file() else None
        problems = log.record.problems if log else ()
        return problems[0].what if problems else ""


def make_folder(folder: Path) -> None:
    """Create a folder and its parents.

    Raises:
        UsageError: if the folder cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"cannot create {printable(str(folder))}: {reason}") from error


def holds_for(log: Log, cases: Mapping[str, Case], snapshot: FileSnapshot) -> bool:
    """Return whether a log is finished, and all its cases still exist and are unchanged.

    Args:
        log: the log.
        cases: the existing cases by id.
        snapshot: the digests of their files.
    """
    ids = log.case_ids
    if not log.finished or any(case not in cases for case in ids):
        return False
    return CaseList.of([cases[case] for case in ids], snapshot) == log.header.cases


def missing_cases(logs: Iterable[Log], cases: Sequence[Case]) -> list[Case]:
    """Return the cases that have no result in any of the logs."""
    ran = {
        case
        for log in logs
        for (case, _), result in log.results.items()
        if result.outcome is not Outcome.NOT_RUN
    }
    return [case for case in cases if case.id not in ran]
