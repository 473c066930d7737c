"""Reading a log back: the run that it records, and how far it got."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import Any

from onnxopt_cli.cases.tensors.regular_file import Malformed, read_regular_file
from onnxopt_cli.core.codec import read_json
from onnxopt_cli.core.record import RunRecord
from onnxopt_cli.core.record_json import explanation_from_json, result_from_json
from onnxopt_cli.core.result import Result
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import Fault, UsageError
from onnxopt_cli.run.expectations.expectations import exit_code
from onnxopt_cli.run.log.log_header import SCHEMA, Header
from onnxopt_cli.run.log.log_rules import Rules, check_record
from onnxopt_cli.run.log.log_writer import MAX_BYTES, SPOILED
from onnxopt_cli.workers.interruption import INTERRUPTED

# How every log begins; a file that is cut off within it is still known as a log.
_BEGINNING = f'{{"record":"header","schema":"{SCHEMA}",'.encode()

# Exit codes of runs that came to their end: all conforms, something does not, a case is invalid.
_ENDS = frozenset({0, 1, 2, 5})


@dataclass(slots=True)
class Log:
    """A log as far as it was written.

    Attributes:
        path: the file.
        header: what runs.
        results: by id of the case and name of the backend, in the order in which they came.
        rerun: keys of those results that came out of running a case again.
        footer: the run's last record, None if it did not finish.
        size: number of bytes up to the end of the last whole record.
        digest: of these bytes.
        lines: by key the lines that hold the results, where these are kept and not of a rerun.
    """

    path: Path
    header: Header
    results: dict[tuple[str, str], Result] = field(default_factory=dict)
    rerun: set[tuple[str, str]] = field(default_factory=set)
    footer: dict[str, Any] | None = None
    size: int = 0
    digest: bytes = b""
    lines: dict[tuple[str, str], bytes] = field(default_factory=dict)

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
            left_out=self.header.left_out,
            results=tuple(self.results.values()),
            problems=tuple(Fault(**it) for it in footer.get("problems", ())),
            findings=tuple(Fault(**it) for it in footer.get("findings", ())),
            explanations=tuple(map(explanation_from_json, footer.get("explanations", ()))),
            exit_code=footer.get("exit_code"),
            started=self.header.started,
            hostname=self.header.hostname,
        )


def read_log(path: Path, *, keep_lines: bool = False) -> Log | None:
    """Read a log, finished or not.

    A last line without line end was being written when the run was killed, and is dropped.

    Args:
        path: the file.
        keep_lines: whether to keep the lines of results.

    Returns:
        The log, or None if not even its header was written.

    Raises:
        UsageError: if the file cannot be read, or is no log; names the first line that is wrong.
    """
    try:
        data = read_regular_file(path, MAX_BYTES)
    except Malformed as error:
        raise UsageError(
            f"the log {printable(str(path))} {error}", hint="onnxopt run --log FILE begins one"
        ) from error
    if b'\n{"record":"%s"' % SPOILED.encode() in data:
        raise UsageError(
            f"{printable(str(path))} is not evidence: something else wrote to it during the run",
            hint="run it again with another log",
        )
    whole = data[: data.rfind(b"\n") + 1]
    if not whole:
        if data.startswith(_BEGINNING) or _BEGINNING.startswith(data):
            return None
        raise _malformed(path, 1, "found no log, expected a header")
    lines = BytesIO(whole)
    number = 0
    kept: dict[tuple[str, str], bytes] = {}

    def parsed() -> Iterator[Any]:
        nonlocal number
        for line in lines:
            number += 1
            try:
                record = read_json(line.removesuffix(b"\n"))
            except ValueError as error:
                raise ValueError(f"found {error}") from None
            yield record
            # Whoever asks for the next one has found nothing wrong with it.
            if keep_lines and record["record"] == "end":
                kept[record["result"]["case"], record["result"]["backend"]] = line

    try:
        log = log_of(path, parsed())
    except ValueError as error:
        raise _malformed(path, number, str(error)) from error
    log.size, log.digest = len(whole), blake2b(whole).digest()
    log.lines = {key: line for key, line in kept.items() if key not in log.rerun}
    return log


def log_of(path: Path, records: Iterator[Any]) -> Log:
    """Return the log that records make.

    Args:
        path: where they stand.
        records: what JSON holds.

    Raises:
        ValueError: saying what is wrong with the first that is no record, or not where it stands.
    """
    first = next(records)
    kind = check_record(first)
    if kind != "header":
        raise ValueError(f"found {kind}, expected the header")
    log = Log(path, Header.from_json(first))
    rules = Rules(log.header, log.results)
    for record in records:
        _take(log, rules, check_record(record), record)
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


def _take(log: Log, rules: Rules, kind: str, record: dict[str, Any]) -> None:
    """Add a record that follows the header.

    Raises:
        ValueError: if it does not belong where it stands.
    """
    match kind:
        case "resume" if not log.finished:
            log.footer = None
            rules.resume()
        case _ if log.footer is not None:
            raise ValueError(f"found {kind} after the footer")
        case "header":
            raise ValueError("found a second header")
        case "start":
            rules.start((record["case"], record["backend"]))
        case "footer":
            log.footer = record
            rules.footer(record, finished=log.finished)
            run, code, part = log.record, record["exit_code"], log.header.shard is not None
            right = exit_code(run.results, run.problems, run.findings, part=part)
            # An interrupted run has a code of its own, whatever its results.
            if code != right and code not in INTERRUPTED:
                raise ValueError(f"found the exit code {code}, but the results amount to {right}")
        case _:
            result = result_from_json(record["result"])
            if kind == "rerun":
                rules.rerun(result)
                log.rerun.add((result.case, result.backend))
            else:
                rules.end(result)
                log.rerun.discard((result.case, result.backend))
            log.results[result.case, result.backend] = result


def _malformed(path: Path, line: int, what: str) -> UsageError:
    return UsageError(
        f"{printable(str(path))}:{line}: {printable(what)}",
        hint="a log is what onnxopt run --log FILE writes",
    )
