"""Reading a log of a finished or unfinished run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import Any

from onnxopt_cli.core.codec import read_json
from onnxopt_cli.core.record import RunRecord
from onnxopt_cli.core.record_json import explanation_from_json, result_from_json
from onnxopt_cli.core.result import Result
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.untrusted_files import Malformed, read_regular_file
from onnxopt_cli.errors import Fault, UsageError
from onnxopt_cli.run.log.log_header import SCHEMA, Header
from onnxopt_cli.run.log.log_rules import ENDS, Rules, check_record
from onnxopt_cli.run.log.log_writer import MAX_BYTES, SPOILED

# The first bytes of every log. A file that consists of a part of them is also recognized as a log.
_BEGINNING = f'{{"record":"header","schema":"{SCHEMA}",'.encode()


@dataclass(slots=True)
class Log:
    """The contents of a log, which may be incomplete.

    Attributes:
        path: the file.
        header: description of the run.
        results: results by case id and backend name, in the order of the log.
        rerun: keys of the results that come from a rerun.
        footer: the run's last record; None if the run did not finish.
        size: number of bytes up to the end of the last complete record.
        digest: digest of these bytes.
        lines: the lines of results by key, except results of a rerun; empty if lines are not kept.
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
        """Whether the run was completed."""
        return self.footer is not None and self.footer["exit_code"] in ENDS

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
            problems=tuple(Fault(**fault) for fault in footer.get("problems", ())),
            findings=tuple(Fault(**fault) for fault in footer.get("findings", ())),
            explanations=tuple(map(explanation_from_json, footer.get("explanations", ()))),
            exit_code=footer.get("exit_code"),
            started=self.header.started,
            ended=footer.get("ended", ""),
            hostname=self.header.hostname,
            origin=self.header.origin,
        )


def read_log(path: Path, *, keep_lines: bool = False) -> Log | None:
    """Read a log, finished or not.

    A last line without a line end is ignored: the run was killed while it wrote the line.

    Args:
        path: the file.
        keep_lines: whether to keep the lines of results.

    Returns:
        The log, or None if not even its header was written.

    Raises:
        UsageError: if the file cannot be read or is not a log; names the first invalid line.
    """
    try:
        data = read_regular_file(path, MAX_BYTES)
    except Malformed as error:
        raise UsageError(
            f"the log {printable(str(path))} {error}", hint="onnxopt run --log FILE writes a log"
        ) from error
    if b'\n{"record":"%s"' % SPOILED.encode() in data:
        raise UsageError(
            f"{printable(str(path))} is unreliable: another program wrote to it during the run",
            hint="run again with another log",
        )
    complete_lines = data[: data.rfind(b"\n") + 1]
    if not complete_lines:
        if data.startswith(_BEGINNING) or _BEGINNING.startswith(data):
            return None
        raise _malformed(path, 1, "found no log, expected a header")
    lines = BytesIO(complete_lines)
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
            # The consumer requests the next record only after it has accepted this one.
            if keep_lines and record["record"] == "end":
                kept[record["result"]["case"], record["result"]["backend"]] = line

    try:
        log = log_of(path, parsed())
    except ValueError as error:
        raise _malformed(path, number, str(error)) from error
    log.size, log.digest = len(complete_lines), blake2b(complete_lines).digest()
    log.lines = {key: line for key, line in kept.items() if key not in log.rerun}
    return log


def log_of(path: Path, records: Iterator[Any]) -> Log:
    """Return the log with these records.

    Args:
        path: the file.
        records: the parsed lines.

    Raises:
        ValueError: describing the first record that is invalid or out of place.
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
        UsageError: if the file cannot be read, is not a log, or has no complete record; names the
            first invalid line.
    """
    log = read_log(path)
    if log is None:
        raise UsageError(f"the log {printable(str(path))} has no record")
    return log.record


def _take(log: Log, rules: Rules, kind: str, record: dict[str, Any]) -> None:
    """Add a record that follows the header.

    Raises:
        ValueError: if the record is out of place.
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
        hint="onnxopt run --log FILE writes a log",
    )
