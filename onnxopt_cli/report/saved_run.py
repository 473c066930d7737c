"""Write a run as one JSON document, and read a saved run from such a document or a log.

The field ``schema`` contains the version of the format. The version changes if the meaning of a
field changes. It does not change if a field is added.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from onnxopt_cli.config.run_config import RunConfig
from onnxopt_cli.core.codec import read_json
from onnxopt_cli.core.record import RunRecord, explanation_to_json, result_to_json
from onnxopt_cli.core.result import OUTSIDE_IDS, Outcome
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.untrusted_files import Malformed, read_regular_file
from onnxopt_cli.errors import UsageError
from onnxopt_cli.report.view.run_view import RunView, results_by_capability
from onnxopt_cli.report.view.verdict import counted
from onnxopt_cli.run.log.log_header import SCHEMA as LOG_SCHEMA
from onnxopt_cli.run.log.log_reader import log_of, read_record
from onnxopt_cli.run.log.log_writer import LOG_LINE, MAX_BYTES

SCHEMA = "onnxopt.report/1"


def json_report(view: RunView) -> Iterator[str]:
    """Yield a run as pieces of JSON text, so that a large run needs little memory.

    :mod:`onnxopt_cli.core.record` defines the format of numbers.
    """
    record = view.record
    outcomes = Counter(result.outcome.value for result in record.results)
    capabilities = results_by_capability(record.results)
    document = {
        "schema": SCHEMA,
        "started": record.started,
        "ended": record.ended,
        "hostname": record.hostname,
        "origin": dict(record.origin),
        "versions": dict(record.versions),
        "backends": list(map(asdict, record.backends)),
        "options": dict(record.options),
        "left_out": dict(record.left_out),
        "problems": list(map(asdict, record.problems)),
        "findings": list(map(asdict, record.findings)),
        "results": map(result_to_json, record.results),
        "explanations": list(map(explanation_to_json, record.explanations)),
        "capabilities": {
            name: counted([*Outcome], (result.outcome for result in results))
            for name, results in capabilities.items()
        },
        "summary": dict(sorted(outcomes.items())),
        "exit_code": record.exit_code,
    }
    yield from _lines(document)


def _lines(document: Mapping[str, object]) -> Iterator[str]:
    """Yield a document as JSON with one line per item of a list.

    :mod:`json` can also indent a document, but takes minutes for a large run.
    """
    before = "{\n "
    for key, value in document.items():
        yield f"{before}{_plain(key)}: "
        before = ",\n "
        if isinstance(value, (list, map)):
            mark = "[\n  "
            for item in value:
                yield mark + _plain(item)
                mark = ",\n  "
            yield "[]" if mark == "[\n  " else "\n ]"
        else:
            yield _plain(value)
    yield "\n}\n"


def _plain(value: object) -> str:
    # On standard output, CI servers would interpret these texts as commands.
    text = json.dumps(value, allow_nan=False).replace("##", "#\\u0023")
    return text.replace("[[ATTACHMENT|", "[\\u005bATTACHMENT|")


_STDIN = "-"


def read_saved_run(path: Path) -> RunRecord:
    """Read a run from a log or a JSON report, or from standard input if the path is ``-``.

    Raises:
        UsageError: if the file cannot be read, or is neither a log nor a JSON report.
    """
    if str(path) == _STDIN:
        with tempfile.NamedTemporaryFile(suffix=".jsonl") as copy:
            # Copy up to one byte more than the limit, so that reading the copy reports a size
            # beyond the limit.
            try:
                content = sys.stdin.buffer.read(MAX_BYTES + 1)
            except OSError as error:
                raise UsageError(f"standard input cannot be read: {error.strerror}") from error
            copy.write(content)
            copy.flush()
            try:
                return read_saved_run(Path(copy.name))
            except UsageError as error:
                error.message = error.message.replace(copy.name, "standard input")
                raise
    try:
        data = read_regular_file(path, MAX_BYTES)
    except Malformed as error:
        hint = "a saved run is a log, which onnxopt run --log writes, or a JSON report"
        raise UsageError(f"{printable(str(path))} {error}", hint=hint) from error
    if data.startswith(LOG_LINE):
        del data
        return read_record(path)
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        # The file is not a single JSON document, but may be a log. If it is not a log either,
        # read_record raises an exception.
        return read_record(path)
    try:
        # The number of parts of a report is not limited.
        document = read_json(data, most_parts=len(data))
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            return read_record(path)
        log = log_of(path, _records(document))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        reason = f"it has no field {error}" if isinstance(error, KeyError) else error
        raise UsageError(f"{printable(str(path))} is not a report of onnxopt: {reason}") from error
    return log.record


def _records(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the run in a report as the records of a log, so that it can be validated as a log."""
    results, options = document["results"], document["options"]
    cases = {result["case"] for result in results if result["case"] not in OUTSIDE_IDS}
    config = RunConfig.from_json(options)
    expect = config.expect or config.update_expect
    yield {
        "record": "header",
        "schema": LOG_SCHEMA,
        # Reports of earlier versions lack some fields.
        "started": document.get("started") or _EARLIEST,
        "hostname": document.get("hostname", ""),
        "origin": document.get("origin", {}),
        "versions": document["versions"],
        "backends": document["backends"],
        "cases": {"count": len(cases), "hash": "0" * 32},
        "shard": {"index": 1, "count": 1} if config.shard else None,
        "expectations": "known" if expect else "",
        "options": options,
        "left_out": document.get("left_out", {}),
    }
    keys: set[tuple[str, str]] = set()
    for result in results:
        key = result["case"], result["backend"]
        if key in keys:
            raise ValueError(f"found a result of {key[0]} on {key[1]} twice")
        keys.add(key)
        yield {"record": "start", "case": result["case"], "backend": result["backend"]}
        yield {"record": "end", "result": result}
    counts = dict(Counter(result["outcome"] for result in results))
    if counts != document["summary"]:
        raise ValueError("found a summary that contradicts the results")
    # An unfinished run has no exit code.
    if document["exit_code"] is not None:
        names = ("exit_code", "problems", "findings", "explanations")
        ended = {"ended": document["ended"]} if document.get("ended") else {}
        fields = {name: document[name] for name in names}
        yield {"record": "footer", "counts": counts, **ended, **fields}


_EARLIEST = "0001-01-01T00:00:00Z"
