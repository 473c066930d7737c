"""A run as one JSON document, and a saved run read back, from that or from a log.

The document's ``schema`` names its version; a new field does not change it, a changed meaning does.
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

from onnxopt_cli.cases.tensors.regular_file import Malformed, read_regular_file
from onnxopt_cli.config.run_config import RunConfig
from onnxopt_cli.core.codec import read_json
from onnxopt_cli.core.record import RunRecord
from onnxopt_cli.core.record_json import explanation_to_json, result_to_json
from onnxopt_cli.core.result import OUTSIDE_IDS
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import UsageError
from onnxopt_cli.report.verdict import by_capability
from onnxopt_cli.run.log.log_header import SCHEMA as LOG_SCHEMA
from onnxopt_cli.run.log.log_reader import log_of, read_record
from onnxopt_cli.run.log.log_writer import LOG_LINE, MAX_BYTES

SCHEMA = "onnxopt.report/1"


def json_report(record: RunRecord) -> Iterator[str]:
    """Yield a run as pieces of JSON text: whole, that of very many cases takes more than they do.

    Numbers are as :mod:`onnxopt_cli.core.record_json` has them.
    """
    outcomes = Counter(result.outcome.value for result in record.results)
    document = {
        "schema": SCHEMA,
        "started": record.started,
        "hostname": record.hostname,
        "versions": dict(record.versions),
        "backends": list(map(asdict, record.backends)),
        "options": dict(record.options),
        "left_out": dict(record.left_out),
        "problems": list(map(asdict, record.problems)),
        "findings": list(map(asdict, record.findings)),
        "results": map(result_to_json, record.results),
        "explanations": [explanation_to_json(it) for it in record.explanations],
        "capabilities": {
            name: {outcome.value: count for outcome, count in counts.items()}
            for name, counts in by_capability(record.results).items()
        },
        "summary": dict(sorted(outcomes.items())),
        "exit_code": record.exit_code,
    }
    yield from _lines(document)


def _lines(document: Mapping[str, object]) -> Iterator[str]:
    """Yield a document as JSON, each item of its lists on a line: indenting takes minutes."""
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
    # On standard output Azure would look for commands in it.
    return json.dumps(value, allow_nan=False).replace("##", "#\\u0023")


_STDIN = "-"


def read_saved_run(path: Path) -> RunRecord:
    """Read a run from a log or a JSON report; from standard input if the path is ``-``.

    Raises:
        UsageError: if the file cannot be read, or is neither.
    """
    if str(path) == _STDIN:
        with tempfile.NamedTemporaryFile(suffix=".jsonl") as copy:
            # A byte more than is taken, so that too much is refused as it is of a file.
            copy.write(sys.stdin.buffer.read(MAX_BYTES + 1))
            copy.flush()
            try:
                return read_saved_run(Path(copy.name))
            except UsageError as error:
                error.message = error.message.replace(copy.name, "standard input")
                raise
    try:
        data = read_regular_file(path, MAX_BYTES)
    except Malformed as error:
        raise UsageError(f"{printable(str(path))} {error}") from error
    if data.startswith(LOG_LINE):
        del data
        return read_record(path)
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        # Not one document: a log has one a line, and its reader says what is wrong with it.
        return read_record(path)
    try:
        # Longer than anything else that is read: no number of parts is too many.
        document = read_json(data, most_parts=len(data))
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            return read_record(path)
        log = log_of(path, _records(document))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        what = f"it has no field {error}" if isinstance(error, KeyError) else error
        raise UsageError(f"{printable(str(path))} is not a report of onnxopt: {what}") from error
    return log.record


def _records(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the records of the log of a report's run, so that the rules of logs hold for it."""
    results, options = document["results"], document["options"]
    cases = {it["case"] for it in results if it["case"] not in OUTSIDE_IDS}
    config = RunConfig.from_json(options)
    expect = config.expect or config.update_expect
    yield {
        "record": "header",
        "schema": LOG_SCHEMA,
        # Reports of earlier versions lack them.
        "started": document.get("started") or _EARLIEST,
        "hostname": document.get("hostname", ""),
        "versions": document["versions"],
        "backends": document["backends"],
        "cases": {"count": len(cases), "hash": "0" * 32},
        "shard": {"index": 1, "count": 1} if config.shard else None,
        "expectations": "known" if expect else "",
        "options": options,
        "left_out": document.get("left_out", {}),
    }
    seen: set[tuple[str, str]] = set()
    for result in results:
        key = result["case"], result["backend"]
        if key in seen:
            raise ValueError(f"found a result of {key[0]} on {key[1]} twice")
        seen.add(key)
        yield {"record": "start", "case": result["case"], "backend": result["backend"]}
        yield {"record": "end", "result": result}
    counts = dict(Counter(it["outcome"] for it in results))
    if counts != document["summary"]:
        raise ValueError("found a summary that is not that of the results")
    # A run that did not finish has none.
    if document["exit_code"] is not None:
        said = ("exit_code", "problems", "findings", "explanations")
        yield {"record": "footer", "counts": counts, **{name: document[name] for name in said}}


_EARLIEST = "0001-01-01T00:00:00Z"
