"""A run as one JSON document, and a saved run read back, from that or from a log.

The document's ``schema`` names its version; a new field does not change it, a changed meaning does.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from onnxopt_cli.cases.values.regular_file import Malformed, read_regular_file
from onnxopt_cli.core.record import BackendIdentity, RunRecord
from onnxopt_cli.core.record_json import (
    explanation_from_json,
    explanation_to_json,
    problem_from_json,
    problem_to_json,
    result_from_json,
    result_to_json,
)
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import UsageError
from onnxopt_cli.expectations.expectations import contradiction
from onnxopt_cli.log.reader import read_record
from onnxopt_cli.log.rules import contradiction as result_contradiction
from onnxopt_cli.log.writer import MAX_BYTES
from onnxopt_cli.report.verdict import by_capability

SCHEMA = "onnxopt.report/1"


def json_report(record: RunRecord) -> str:
    """Return a run as JSON text; numbers are as :mod:`onnxopt_cli.core.record_json` has them."""
    outcomes = Counter(result.outcome.value for result in record.results)
    document = {
        "schema": SCHEMA,
        "started": record.started,
        "hostname": record.hostname,
        "versions": dict(record.versions),
        "backends": [{"name": it.name, "version": it.version} for it in record.backends],
        "options": dict(record.options),
        "problems": [problem_to_json(it) for it in record.problems],
        "findings": [problem_to_json(it) for it in record.findings],
        "results": [result_to_json(it) for it in record.results],
        "explanations": [explanation_to_json(it) for it in record.explanations],
        "capabilities": {
            name: {outcome.value: count for outcome, count in counts.items()}
            for name, counts in by_capability(record.results).items()
        },
        "summary": dict(sorted(outcomes.items())),
        "exit_code": record.exit_code,
    }
    return _lines(document)


def _lines(document: Mapping[str, object]) -> str:
    """Return a document as JSON, each item of its lists on a line: indenting takes minutes."""
    fields = []
    for key, value in document.items():
        if isinstance(value, list) and value:
            text = "[\n  " + ",\n  ".join(map(_plain, value)) + "\n ]"
        else:
            text = _plain(value)
        fields.append(f" {_plain(key)}: {text}")
    return "{\n" + ",\n".join(fields) + "\n}\n"


_plain = partial(json.dumps, allow_nan=False)


# How the lines of a log begin, and no report.
_LOG_LINE = b'{"record":'


def read_saved_run(path: Path) -> RunRecord:
    """Read a run from a log or a JSON report.

    Raises:
        UsageError: if the file cannot be read, or is neither.
    """
    try:
        data = read_regular_file(path, MAX_BYTES)
    except Malformed as error:
        raise UsageError(f"{printable(str(path))} {error}") from error
    if data.startswith(_LOG_LINE):
        del data
        return read_record(path)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        # Not one document: a log has one a line, and its reader says what is wrong with it.
        return read_record(path)
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        return read_record(path)
    try:
        return _checked(_record(document))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"{path} is no report of onnxopt: {error}") from error


def _checked(record: RunRecord) -> RunRecord:
    """Refuse a report that contradicts itself, by the same rules as a log.

    Raises:
        ValueError: saying how.
    """
    names = {backend.name for backend in record.backends}
    for result in record.results:
        wrong = result_contradiction(result)
        if result.backend not in names:
            wrong = "on a backend that was not run"
        if wrong:
            raise ValueError(f"found a result of {result.case} {wrong}")
    wrong = contradiction(record, part=bool(record.options.get("shard")))
    if wrong:
        raise ValueError(wrong)
    return record


def _record(document: dict[str, Any]) -> RunRecord:
    return RunRecord(
        versions=document["versions"],
        backends=tuple(BackendIdentity(it["name"], it["version"]) for it in document["backends"]),
        options=document["options"],
        results=tuple(map(result_from_json, document["results"])),
        problems=tuple(map(problem_from_json, document["problems"])),
        findings=tuple(map(problem_from_json, document["findings"])),
        explanations=tuple(map(explanation_from_json, document["explanations"])),
        exit_code=document["exit_code"],
        # Reports of earlier versions lack them.
        started=str(document.get("started", "")),
        hostname=str(document.get("hostname", "")),
    )
