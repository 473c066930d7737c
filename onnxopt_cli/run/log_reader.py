"""Reading a log back: the run that it records, and how far it got."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnxopt_cli.cases.malformed import Malformed
from onnxopt_cli.cases.regular_file import read_regular_file
from onnxopt_cli.core.outcome import Outcome
from onnxopt_cli.core.record import RunRecord
from onnxopt_cli.core.record_json import explanation_from_json, problem_from_json, result_from_json
from onnxopt_cli.core.result import OUTSIDE_CASES, Result
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import UsageError
from onnxopt_cli.run.log_header import Header
from onnxopt_cli.run.log_schema import SCHEMA, check_record

# How every log begins; a file that is cut off within it is still known as a log.
_BEGINNING = f'{{"record":"header","schema":"{SCHEMA}",'.encode()

# Exit codes of runs that came to their end: all conforms, something does not, a case is invalid.
_ENDS = frozenset({0, 1, 2})


@dataclass(slots=True)
class Log:
    """A log as far as it was written.

    Attributes:
        path: the file.
        header: what runs.
        results: by id of the case and name of the backend, in the order in which they came.
        again: keys of what has a result since the run began or was resumed, and ids of cases that
            a resumed run had to run again.
        rerun: keys of those results that came out of running a case again.
        started: keys of what has a start record.
        footer: the run's last record, None if it did not finish.
        size: number of bytes up to the end of the last whole record.
    """

    path: Path
    header: Header
    results: dict[tuple[str, str], Result] = field(default_factory=dict)
    again: set[tuple[str, str] | str] = field(default_factory=set)
    rerun: set[tuple[str, str]] = field(default_factory=set)
    started: set[tuple[str, str]] = field(default_factory=set)
    footer: dict[str, Any] | None = None
    size: int = 0

    @property
    def finished(self) -> bool:
        """True if the run came to its end, and was not interrupted."""
        return self.footer is not None and self.footer["exit_code"] in _ENDS

    @property
    def record(self) -> RunRecord:
        """The run as data."""
        footer = self.footer or {}
        return RunRecord(
            versions=self.header.versions,
            backends=self.header.backends,
            options=self.header.options,
            results=tuple(self.results.values()),
            problems=tuple(map(problem_from_json, footer.get("problems", ()))),
            findings=tuple(map(problem_from_json, footer.get("findings", ()))),
            explanations=tuple(map(explanation_from_json, footer.get("explanations", ()))),
            exit_code=footer.get("exit_code"),
            started=self.header.started,
            hostname=self.header.hostname,
        )


def read_log(path: Path) -> Log | None:
    """Read a log, finished or not.

    A last line without line end was being written when the run was killed, and is dropped.

    Returns:
        The log, or None if not even its header was written.

    Raises:
        UsageError: if the file cannot be read, or is no log; names the first line that is wrong.
    """
    try:
        data = read_regular_file(path)
    except Malformed as error:
        raise UsageError(
            f"the log {printable(str(path))} {error}", hint="onnxopt run --log FILE begins one"
        ) from error
    whole = data[: data.rfind(b"\n") + 1]
    if not whole:
        if data.startswith(_BEGINNING) or _BEGINNING.startswith(data):
            return None
        raise _malformed(path, 1, "found no log, expected a header")
    log: Log | None = None
    for number, line in enumerate(whole.split(b"\n")[:-1], start=1):
        try:
            record = _parsed(line)
            kind = check_record(record)
            if log is None:
                log = Log(path, _header(kind, record), size=len(whole))
            else:
                _take(log, kind, record)
        except ValueError as error:
            raise _malformed(path, number, str(error)) from error
    return log


def read_record(path: Path) -> RunRecord:
    """Read the run that a log records, finished or not.

    Raises:
        UsageError: if the file cannot be read, is no log, or was cut off before anything was
            written; names the first line that is wrong.
    """
    log = read_log(path)
    if log is None:
        raise UsageError(f"the log {printable(str(path))} has no record")
    return log.record


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise ValueError("found bytes that are no UTF-8") from None
    except RecursionError:
        raise ValueError("found too much nesting") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"found no JSON: {error}") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"found {name}, which is no JSON")


def _header(kind: str, record: dict[str, Any]) -> Header:
    if kind != "header":
        raise ValueError(f"found {kind}, expected the header")
    return Header.from_json(record)


def _take(log: Log, kind: str, record: dict[str, Any]) -> None:
    """Add a record that follows the header.

    Raises:
        ValueError: if it does not belong where it stands.
    """
    match kind:
        case "resume":
            log.footer = None
            log.again.clear()
        case _ if log.footer is not None:
            raise ValueError(f"found {kind} after the footer")
        case "header":
            raise ValueError("found a second header")
        case "start":
            log.started.add((record["case"], record["backend"]))
        case "footer":
            log.footer = record
        case _:
            result = result_from_json(record["result"])
            key = result.case, result.backend
            if result.backend not in {backend.name for backend in log.header.backends}:
                raise ValueError(f"found the backend {result.backend!r}, which the header lacks")
            if kind == "rerun":
                _require_first(key, key not in log.rerun)
                log.rerun.add(key)
            else:
                _require_first(key, key not in log.again and _may_run(log, *key))
                log.again.add(key)
                log.rerun.discard(key)
            log.results[key] = result


def _require_first(key: tuple[str, str], first: bool) -> None:
    if not first:
        raise ValueError(f"found a second result of {key[0]} on {key[1]}")


def _may_run(log: Log, case: str, backend: str) -> bool:
    """Tell whether a result may follow: the first, or that of a case which had not run everywhere.

    A run that is resumed runs no other case again.
    """
    if (case, backend) not in log.results or case in log.again:
        return True
    row = [log.results.get((case, it.name)) for it in log.header.backends]
    if case.startswith(f"{OUTSIDE_CASES}/"):
        return True
    if any(it is None or it.outcome is Outcome.NOT_RUN for it in row):
        log.again.add(case)
        return True
    return False


def _malformed(path: Path, line: int, what: str) -> UsageError:
    return UsageError(
        f"{printable(str(path))}:{line}: {printable(what)}",
        hint="a log is what onnxopt run --log FILE writes",
    )
