"""A run as the JSON that shields.io makes a badge of.

Source: https://shields.io/badges/endpoint-badge
"""

from __future__ import annotations

import json

from onnxopt_cli.core.record import RunRecord
from onnxopt_cli.report.verdict import tallies, verdict


def badge_report(record: RunRecord) -> str:
    """Return the badge as JSON text: green if the run conforms, with the count of results."""
    counts = tallies(record)
    total, against = sum(it.total for it in counts), sum(it.against for it in counts)
    good = record.exit_code == 0
    if good:
        message = f"{total} conform"
    elif record.exit_code == 1 and against:
        message = f"{against} of {total} do not conform"
    else:
        message = verdict(record)
    badge = {
        "schemaVersion": 1,
        "label": "onnxopt",
        "message": message,
        "color": "brightgreen" if good else "red",
        "isError": not good,
    }
    return json.dumps(badge) + "\n"
