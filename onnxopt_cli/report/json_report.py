"""A run as one JSON document, for programs.

The document's ``schema`` names its version; a new field does not change it, a changed meaning does.
"""

from __future__ import annotations

import json
from collections import Counter

from onnxopt_cli.core.record import RunRecord
from onnxopt_cli.core.record_json import explanation_to_json, problem_to_json, result_to_json

SCHEMA = "onnxopt.report/1"


def json_report(record: RunRecord) -> str:
    """Return a run as JSON text; numbers are as :mod:`onnxopt_cli.core.value_json` has them."""
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
        "summary": dict(sorted(outcomes.items())),
        "exit_code": record.exit_code,
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"
