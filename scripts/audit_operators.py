"""Audit the cases of operators one after another: the table in docs/mutation-analysis.md.

Each operator's result is a file in a folder. Operators that have one are not audited again, so an
interrupted script continues where it ended.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def audited(suite: str, operator: str, path: Path, jobs: int) -> Mapping[str, Any] | None:
    """Return the score of an operator, from its file if there is one; None if the audit failed."""
    if not path.exists():
        command = [sys.executable, "-m", "onnxopt_cli", "audit", suite, "--operator", operator]
        subprocess.run(
            [*command, "-j", str(jobs), "--json", str(path)],
            stdout=subprocess.DEVNULL,
            check=False,
        )
    if not path.exists():
        return None
    (score,) = json.loads(path.read_text())["operators"]
    return dict(score)


def row(score: Mapping[str, Any]) -> str:
    """Return an operator's row of the table."""
    mutants = score["automatic"]
    equivalent = sum(mutant["equivalent"] for mutant in mutants)
    stillborn = sum(mutant["stillborn"] for mutant in mutants)
    counted = len(mutants) - equivalent - stillborn
    killed = counted - len(score["survivors"])
    accepted = len(score["right"]) - len(score["false_alarms"])
    cells = (
        score["operator"],
        len(score["cases"]),
        f"{killed} of {counted}",
        f"{100 * killed / counted:.1f} %" if counted else "",
        equivalent,
        stillborn,
        f"{accepted} of {len(score['right'])}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def survivors_by_kind(scores: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """Return the number of surviving mutants by kind."""
    return Counter(
        mutant["kind"]
        for score in scores
        for mutant in score["automatic"]
        if mutant["name"] in score["survivors"]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of the operators that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operators", nargs="+")
    parser.add_argument("--suite", default="onnx-node")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    print(f"{platform.machine()}, {datetime.now(UTC):%Y-%m-%d}")
    print("| operator | cases | killed | score | equivalent | stillborn | accepted |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    scores = []
    for operator in options.operators:
        path = options.folder / f"{operator}.json"
        score = audited(options.suite, operator, path, options.jobs)
        if score is not None:
            scores.append(score)
            print(row(score), flush=True)
    for kind, count in survivors_by_kind(scores).most_common():
        print(f"{count} survivors: {kind}")


if __name__ == "__main__":
    main()
