"""A shields.io endpoint badge for a run: counts of outcomes, with a color for the verdict."""

from __future__ import annotations

import json

from onnxopt_cli.core.result import Outcome
from onnxopt_cli.core.text import printable
from onnxopt_cli.report.view.run_view import RunView, declared_math
from onnxopt_cli.report.view.verdict import in_words


def badge_report(view: RunView) -> str:
    """Return a badge as JSON text.

    The badge is red if the run does not conform, yellow if failures are expected, green if a case
    passes, and grey otherwise, as in a shard without cases. The badge shows counts if all cases
    have been judged, and the verdict otherwise. The text ends with the excluded capabilities, and
    with the arithmetic that the backend declares, if any.
    """
    good = view.record.exit_code == 0
    color = "red"
    if good:
        passing = Outcome.PASS in view.counts
        color = "yellow" if view.expected_failures else "brightgreen" if passing else "lightgrey"
    judged = good or (view.record.exit_code == 1 and view.counts)
    parts = [(in_words(view.counts) or "no cases") if judged else view.verdict]
    parts += [f"without {name}" for name in view.record.left_out]
    declared = dict.fromkeys(map(declared_math, view.record.backends))
    parts += [f"math={math}" for math in declared if math]
    badge = {
        "schemaVersion": 1,
        "label": "onnxopt",
        "message": printable(", ".join(parts)),
        "color": color,
        "isError": not good,
    }
    return json.dumps(badge) + "\n"
