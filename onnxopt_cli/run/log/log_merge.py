"""Merging the logs of all shards of a run into a log of the whole run."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from onnxopt_cli.config.run_config import RunConfig
from onnxopt_cli.core.files import write_atomically
from onnxopt_cli.core.record import (
    PROCESSOR,
    Cause,
    Explanation,
    RunRecord,
    result_to_json,
)
from onnxopt_cli.core.result import (
    Result,
    worse,
)
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import UsageError
from onnxopt_cli.run.expectations.expectations import exit_code
from onnxopt_cli.run.log.log_header import Header
from onnxopt_cli.run.log.log_reader import Log, read_log
from onnxopt_cli.run.log.log_writer import (
    LOG_LINE,
    MAX_BYTES,
    footer,
    record_line,
)

_MAX_LISTED_SHARDS = 20


def merge_logs(paths: Sequence[Path], output: Path) -> RunRecord:
    """Merge the finished logs of all shards of a run, and write a log of the whole run.

    Raises:
        UsageError: if a shard is missing, duplicate, unfinished or of another run (the message
            names every such shard), if a log cannot be read, or if the output is too long or cannot
            be written.
    """
    if os.path.realpath(output) in map(os.path.realpath, paths):
        raise UsageError(f"{printable(str(output))} is one of the logs to be merged")
    if output.is_file() and not _is_log(output):
        raise UsageError(
            f"{printable(str(output))} exists, and is not a log that a merge has written",
            hint="name another file",
        )
    read = [(path, read_log(path, keep_lines=True)) for path in paths]
    logs = [log for _, log in read if log is not None]
    wrong = [
        f"{printable(str(path))} is not finished: it has no header"
        for path, log in read
        if log is None
    ]
    wrong += _refusals(logs) if logs else []
    if wrong:
        raise UsageError("\n".join(["these logs are not all shards of one run:", *wrong]))
    logs.sort(key=lambda log: log.header.shard.index if log.header.shard else 0)
    header = _header(logs)
    record = _joined(logs, header)
    data = b"".join(_lines(header, record, logs))
    if len(data) > MAX_BYTES:
        raise UsageError(
            f"the merged log would have {len(data)} bytes; the limit is {MAX_BYTES}",
            hint="report on the shards one by one, or run with fewer cases",
        )
    write_atomically(output, data)
    return record


def _is_log(path: Path) -> bool:
    with suppress(OSError), path.open("rb") as file:
        return file.read(len(LOG_LINE)) in {LOG_LINE, b""}
    return False


def _lines(header: Header, record: RunRecord, logs: Sequence[Log]) -> Iterator[bytes]:
    """Yield the lines of the merged log. A result that was not rerun keeps its original line."""
    lines = {id(log.results[key]): line for log in logs for key, line in log.lines.items()}
    yield record_line(header.to_json())
    for result in record.results:
        yield record_line({"record": "start", "case": result.case, "backend": result.backend})
        line = lines.get(id(result))
        yield line or record_line({"record": "end", "result": result_to_json(result)})
    yield record_line(footer(record))


def _refusals(logs: Sequence[Log]) -> Iterator[str]:
    """Yield the reasons why logs are not all shards of one run."""
    first = logs[0]
    shards: dict[int, Log] = {}
    for log in logs:
        name = printable(str(log.path))
        shard = log.header.shard
        if not log.finished:
            yield f"{name} is not finished: complete it with --resume"
        if shard is None:
            yield f"{name} is the log of a whole run, not of a shard"
            continue
        differences = first.header.differences(log.header)
        if first.header.shard and first.header.shard.count != shard.count:
            counts = f"{first.header.shard.count}, now {shard.count}"
            differences.append(f"the number of shards ({counts})")
        if differences:
            first_name = printable(str(first.path))
            listed = "; ".join(differences)
            yield f"{name} belongs to another run than {first_name}; differences: {listed}"
        if shards.setdefault(shard.index, log) is not log:
            yield f"{name} is shard {shard}, and so is {printable(str(shards[shard.index].path))}"
        misplaced = [case for case in log.case_ids if not shard.holds(case)]
        if misplaced:
            yield f"{name} is shard {shard}, to which {printable(misplaced[0])} does not belong"
    count = first.header.shard.count if first.header.shard else 0
    missing = [index for index in range(1, count + 1) if index not in shards]
    ran = {case for log in logs for case in log.case_ids}
    if missing:
        listed = ", ".join(f"{index}/{count}" for index in missing[:_MAX_LISTED_SHARDS])
        yield f"missing: {listed}{' and more' * (len(missing) > _MAX_LISTED_SHARDS)}"
    elif len(ran) != first.header.cases.count:
        total = first.header.cases.count
        yield f"the shards have results of {len(ran)} cases, but the run has {total}"


def _joined(logs: Sequence[Log], header: Header) -> RunRecord:
    records = [log.record for log in logs]
    # Two shards can have a result with the same key only for failures outside of any case.
    results: dict[tuple[str, str], Result] = {}
    for log in logs:
        for key, result in log.results.items():
            results[key] = worse(results.get(key), result)
    problems = tuple(dict.fromkeys(fault for record in records for fault in record.problems))
    findings = tuple(dict.fromkeys(fault for record in records for fault in record.findings))
    merged = tuple(results.values())
    return replace(
        replace(logs[0], header=header).record,
        results=merged,
        problems=problems,
        findings=findings,
        explanations=_explanations(records, merged),
        ended=max(record.ended for record in records),
        exit_code=exit_code(merged, problems, findings),
    )


def _header(logs: Sequence[Log]) -> Header:
    """Return the header of the whole run, with the names of all hosts and processors."""
    headers = [log.header for log in logs]
    # Logs of earlier versions lack the processor.
    processors = [header.versions.get(PROCESSOR, "") for header in headers]
    named = ", ".join(dict.fromkeys(filter(None, processors)))
    return replace(
        headers[0],
        versions={**headers[0].versions, **({PROCESSOR: named} if named else {})},
        started=min(header.started for header in headers),
        shard=None,
        options=replace(RunConfig.from_json(headers[0].options), shard=None).to_json(),
        hostname=", ".join(dict.fromkeys(header.hostname for header in headers if header.hostname)),
    )


def _explanations(
    records: Sequence[RunRecord], results: Sequence[Result]
) -> tuple[Explanation, ...]:
    """Return the explanations of all shards, one for each backend and operator.

    Args:
        records: the records of the shards.
        results: the results of the run, including those of shards without explanations.
    """
    by_operator: dict[tuple[str, str], list[Explanation]] = defaultdict(list)
    for record in records:
        for explanation in record.explanations:
            by_operator[explanation.backend, explanation.operator].append(explanation)
    failing = Counter((result.backend, result.operators) for result in results if result.failing)
    merged = []
    for (backend, operator), explanations in by_operator.items():
        cases_by_cause: dict[tuple[str, tuple[str, ...]], dict[str, None]] = defaultdict(dict)
        others: dict[str, Counter[str]] = defaultdict(Counter)
        for explanation in explanations:
            for cause in explanation.causes:
                key = cause.found, cause.known_mistakes
                cases_by_cause[key] |= dict.fromkeys(cause.cases)
            for reason, kinds in explanation.others.items():
                others[reason].update(kinds)
        counted = sum(map(len, cases_by_cause.values()))
        counted += sum(kinds.total() for kinds in others.values())
        uncounted = failing[backend, (operator,)] - counted
        if uncounted > 0:
            others["not tried"]["in other shards"] = uncounted
        causes = tuple(
            Cause(text, tuple(cases), names) for (text, names), cases in cases_by_cause.items()
        )
        note = next((explanation.note for explanation in explanations if explanation.note), "")
        complete = all(explanation.complete for explanation in explanations)
        merged.append(Explanation(backend, operator, causes, dict(others), note, complete))
    return tuple(merged)
