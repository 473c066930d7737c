"""Print the results of a scoreboard as the table of docs/scoreboard.md.

    python scripts/scoreboard_table.py RESULTS [BACKEND...]

RESULTS is the folder of the logs. The newest log of each suite counts. The columns are the outcomes
that occur; without names of backends, all backends are printed in the order of their labels.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onnxopt_cli.core.result import OUTSIDE_CASES, Outcome


def records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a log."""
    with path.open() as lines:
        yield from map(json.loads, lines)


def row(folder: Path) -> tuple[str, Counter[str]]:
    """Return the version of a backend and the number of its results by outcome."""
    versions: set[str] = set()
    outcomes: Counter[str] = Counter()
    for suite in folder.glob("*/*"):
        results: dict[str, str] = {}
        for log in sorted(suite.glob("*.jsonl")):
            for record in records(log):
                if record["record"] == "header":
                    (backend,) = record["backends"]
                    versions.add(backend["version"])
                elif record["record"] == "end":
                    result = record["result"]
                    if not result["case"].startswith(OUTSIDE_CASES):
                        results[result["case"]] = result["outcome"]
        outcomes.update(results.values())
    return ", ".join(sorted(versions)), outcomes


def main() -> None:
    """Print the table."""
    results = Path(sys.argv[1])
    labels = sys.argv[2:] or sorted(path.name for path in results.iterdir())
    rows = {label: row(results / label) for label in labels}
    used = [
        outcome for outcome in Outcome if any(outcomes[outcome] for _, outcomes in rows.values())
    ]
    print(f"| backend | version | {' | '.join(used)} |")
    print(f"|---|---|{'---:|' * len(used)}")
    for label, (version, outcomes) in rows.items():
        counts = " | ".join(str(outcomes[outcome] or "") for outcome in used)
        print(f"| `{label}` | {version} | {counts} |")


if __name__ == "__main__":
    main()
