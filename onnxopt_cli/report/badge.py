"""Report a run as a shields.io endpoint badge: counts of outcomes, in a color for the verdict."""

from __future__ import annotations

import json

from onnxopt_cli.core.result import Outcome
from onnxopt_cli.report.view.run_view import RunView
from onnxopt_cli.report.view.verdict import in_words


def badge_report(view: RunView) -> str:
    """Return a badge as JSON text.

    The badge is yellow if the run conforms with expected failures, green if it conforms and has
    passes, grey if it conforms without any, as a shard without cases does, and red otherwise. It
    shows counts if all cases have been judged, else the verdict.
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
