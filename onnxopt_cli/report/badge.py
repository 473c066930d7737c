"""Report a run as a shields.io endpoint badge: its counts, in a color that sums them up."""

from __future__ import annotations

import json

from onnxopt_cli.core.result import Outcome
from onnxopt_cli.report.view.run_view import RunView
from onnxopt_cli.report.view.verdict import in_words


def badge_report(view: RunView) -> str:
    """Return a badge as JSON text.

    The badge is green if every result is a pass, yellow with expected failures, grey for a shard
    without cases, and red otherwise. It has the counts if all cases have been judged.
    """
    good = view.record.exit_code == 0
    color = "red"
    if good:
        passing = Outcome.PASS in view.counts
        color = "yellow" if view.expected_failures else "brightgreen" if passing else "lightgrey"
    judged = good or (view.record.exit_code == 1 and view.counts)
    message = (in_words(view.counts) or "no cases") if judged else view.verdict
    if view.scope:
        message += f" ({view.scope})"
    badge = {
        "schemaVersion": 1,
        "label": "onnxopt",
        "message": message,
        "color": color,
        "isError": not good,
    }
    return json.dumps(badge) + "\n"
