"""Print the results of a scoreboard as the table of docs/scoreboard.md.

    python scripts/scoreboard_table.py RESULTS [BACKEND...]

RESULTS is the folder with the logs, and BACKEND is the name of a backend's folder in RESULTS. By
default, all backends are printed in alphabetical order. Each version of a backend has a row. If a
case has several results, the newest one counts. There is a column for each outcome that occurs.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from onnxopt_cli.core.result import OUTSIDE_IDS, Outcome
from onnxopt_cli.run.log.log_reader import read_log


def rows(folder: Path) -> Iterator[tuple[str, str, Counter[Outcome]]]:
    """Yield name, version and number of results by outcome for each version of a backend."""
    logs = [log for path in folder.glob("*/*/*.jsonl") if (log := read_log(path))]
    logs.sort(key=lambda log: log.header.started)
    by_version: defaultdict[str, dict[str, Outcome]] = defaultdict(dict)
    for log in logs:
        (backend,) = log.header.backends
        for (case, _), result in log.results.items():
            if case not in OUTSIDE_IDS and result.outcome is not Outcome.NOT_RUN:
                by_version[backend.version][case] = result.outcome
    for version, outcomes in by_version.items():
        yield folder.name, version, Counter(outcomes.values())


def main() -> None:
    """Print the table."""
    results = Path(sys.argv[1])
    names = sys.argv[2:] or sorted(path.name for path in results.iterdir())
    table = [row for name in names for row in rows(results / name)]
    used = [outcome for outcome in Outcome if any(counts[outcome] for _, _, counts in table)]
    print(f"| backend | version | {' | '.join(used)} |")
    print(f"|---|---|{'---:|' * len(used)}")
    for name, version, counts in table:
        cells = " | ".join(str(counts[outcome] or "") for outcome in used)
        print(f"| `{name}` | {version} | {cells} |")


if __name__ == "__main__":
    main()
