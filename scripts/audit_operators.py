"""Audit the cases of operators, and print the table of docs/mutation-analysis.md.

    python scripts/audit_operators.py --folder DIR [--suite SUITE]... [--inputs N] [--seconds N]
        [--jobs N] [OPERATOR...]

The result of each operator is a file in the folder. An operator that has a file is not audited
again, so an interrupted audit continues where it ended. The first suite determines the rows of the
table. Each other suite adds a column with its mutation score. By default, all operators of the
suite ``operators`` are audited.

Some mutants are not proven equivalent, but agree with the operator on all nodes on which they ran.
They are counted in the column "equivalent" if they ran on at least 10,000 nodes, and otherwise in
the column "unresolved". The column "inputs" states the smallest and the largest number of nodes on
which an unresolved mutant ran. These numbers vary, because the search for an operator is limited by
the number of nodes and by processor time. The column "least score" counts unresolved mutants as
surviving.

Some mutants count as equivalent, although a node that was constructed by hand distinguishes them
from the operator. The column "not equivalent" states their number, which is read from
docs/equivalent-mutants.md. The script also prints the score if these mutants survive.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import cache, partial
from math import inf
from pathlib import Path
from time import process_time
from typing import Any

import onnxopt_cli
from onnxopt_cli.analysis.node_audit import EQUIVALENCE_INPUTS
from onnxopt_cli.cases.case import Case
from onnxopt_cli.core.files import write_atomically
from onnxopt_cli.report.audit_report import audit_json
from onnxopt_cli.suites.operators.operator_suite import selected_seeds

#: The document with the results of an examination by hand of mutants that count as equivalent.
EXAMINED = Path(__file__).parents[1] / "docs/equivalent-mutants.md"
#: The script lists the operators with a lower mutation score.
LEAST_SHARE = 0.9
#: The script lists each operator with a larger share of mutants that count as equivalent.
MOST_EQUIVALENT = 0.1


@cache
def cases_of(suite: str) -> Mapping[str, Sequence[Case]]:
    """Return the cases of a suite by their first operator."""
    by_operator: dict[str, list[Case]] = {}
    for case in onnxopt_cli.load_cases(suite):
        if case.operators:
            by_operator.setdefault(case.operators[0], []).append(case)
    return by_operator


class Counts:
    """The numbers of an operator's mutants, by outcome.

    Args:
        score: the operator's score as ``onnxopt audit --json`` writes it.
    """

    def __init__(self, score: Mapping[str, Any]) -> None:
        mutants = score["automatic"]
        unresolved = [mutant for mutant in mutants if mutant.get("unresolved")]
        self.proven = len(score.get("proven", {}))
        self.unresolved = len(unresolved)
        self.equivalent = sum(mutant["equivalent"] for mutant in mutants) - self.unresolved
        self.stillborn = sum(mutant["stillborn"] for mutant in mutants)
        self.counted = len(mutants) - self.equivalent - self.unresolved - self.stillborn
        self.killed = self.counted - len(score["survivors"])
        examined = {mutant.get("inputs", 0) for mutant in unresolved}
        self.inputs = " to ".join(f"{number:,}" for number in sorted({*extremes(examined)}))
        self.accepted = len(score["right"]) - len(score["false_alarms"])
        self.reformulations = len(score["right"])
        self.cases = len(score["cases"])

    @property
    def share(self) -> float | None:
        """The mutation score; None if no mutant is scored."""
        return self.killed / self.counted if self.counted else None

    @property
    def least_share(self) -> float | None:
        """The mutation score if unresolved mutants survive; None if no mutant is scored."""
        counted = self.counted + self.unresolved
        return self.killed / counted if counted else None

    def examined_share(self, further: int) -> float | None:
        """Return the mutation score if further mutants survive; None if no mutant is scored."""
        counted = self.counted + further
        return self.killed / counted if counted else None

    @property
    def unproven_share(self) -> float:
        """The share of mutants that count as equivalent without a proof."""
        unproven = self.equivalent + self.unresolved
        return unproven / max(1, self.counted + unproven)


def audited(folder: Path, inputs: int, seconds: float, suite: str, operator: str) -> Counts | None:
    """Return the counts of an operator's mutants; None if the suite has no case of the operator.

    If the folder has a file of the operator, the counts are read from the file.
    """
    path = folder / suite / f"{operator}.json"
    if not path.exists():
        warnings.simplefilter("ignore")
        start = process_time()
        scores = onnxopt_cli.audit(
            cases_of(suite).get(operator, []),
            operators=[operator],
            thorough=False,
            invalid=lambda faults: print(*faults, sep="\n", file=sys.stderr),
            inputs=inputs,
            seconds=seconds,
        )
        document = json.loads(audit_json(scores))
        document["seconds"] = round(process_time() - start, 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(document, indent=1).encode())
    scores = json.loads(path.read_text())["operators"]
    return Counts(scores[0]) if scores else None


def not_equivalent(document: str) -> Counter[str]:
    """Return the numbers of mutants by operator that are not equivalent according to a document.

    Each section of the document has the name of an operator, and a table of groups of mutants. The
    reason of such a group begins with "not equivalent".
    """
    numbers: Counter[str] = Counter()
    for section in document.split("\n## ")[1:]:
        operator, _, table = section.partition("\n")
        for number in re.findall(r"^\| (\d+): .* \| not equivalent[^|]*\|$", table, re.MULTILINE):
            numbers[operator] += int(number)
    return numbers


def extremes(numbers: Collection[int]) -> Sequence[int]:
    """Return the smallest and the largest of some numbers; an empty tuple without numbers."""
    return (min(numbers), max(numbers)) if numbers else ()


def percent(share: float | None) -> str:
    """Return a text with a share in percent, rounded down; empty without a share."""
    return "" if share is None else f"{int(1000 * share) / 10:.1f} %"


def row(
    operator: str, counts: Counts, further_counts: Sequence[Counts | None], examined: int
) -> str:
    """Return an operator's row of the table, with a score for each suite after the first.

    Args:
        operator: the operator.
        counts: the counts of its mutants in the first suite.
        further_counts: the counts in each other suite.
        examined: the number of mutants that the audit counts as equivalent, but that
            docs/equivalent-mutants.md lists as not equivalent.
    """
    cells = (
        operator,
        counts.cases,
        f"{counts.killed} of {counts.counted}",
        percent(counts.share),
        percent(counts.least_share),
        *(percent(entry.share if entry else None) for entry in further_counts),
        counts.proven,
        counts.equivalent,
        examined or "",
        counts.unresolved,
        counts.inputs,
        counts.stillborn,
        f"{counts.accepted} of {counts.reformulations}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def print_low(condition: str, shares: Mapping[str, float | None]) -> None:
    """Print the operators with a low mutation score."""
    low = [
        f"{name} ({percent(share)})"
        for name, share in shares.items()
        if share is not None and share < LEAST_SHARE
    ]
    print(f"{len(low)} operators below 90 %{condition}: {', '.join(low)}")


def main() -> None:
    """Print the table of the given operators."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--suite", action="append", dest="suites")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--inputs", type=int, default=EQUIVALENCE_INPUTS)
    parser.add_argument("--seconds", type=float, default=inf)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    suites = options.suites or ["operators"]
    names = options.operators or sorted(selected_seeds())
    print(f"{platform.machine()}, {datetime.now(UTC):%Y-%m-%d}, {options.jobs} processes\n")
    columns = ["operator", "cases", "killed", "score", "least score", *suites[1:]]
    columns += ["proven", "equivalent", "not equivalent", "unresolved", "inputs", "stillborn"]
    columns += ["accepted"]
    further = not_equivalent(EXAMINED.read_text()) if suites[0] == "operators" else Counter()
    print(f"| {' | '.join(columns)} |")
    print(f"|---{'|---:' * (len(columns) - 1)}|")
    results: list[tuple[str, Counts]] = []
    totals: dict[str, Counter[str]] = {suite: Counter() for suite in suites}
    with ProcessPoolExecutor(options.jobs) as pool:
        by_suite = {
            suite: pool.map(
                partial(audited, options.folder, options.inputs, options.seconds, suite), names
            )
            for suite in suites
        }
        for operator, *counts in zip(names, *by_suite.values(), strict=True):
            for suite, entry in zip(by_suite, counts, strict=True):
                if entry is not None:
                    totals[suite].update(
                        killed=entry.killed,
                        counted=entry.counted,
                        proven=entry.proven,
                        equivalent=entry.equivalent,
                        unresolved=entry.unresolved,
                        operators=1,
                    )
            if counts[0] is not None:
                results.append((operator, counts[0]))
                print(row(operator, counts[0], counts[1:], further[operator]), flush=True)
    print()
    for suite, total in totals.items():
        killed, counted, unresolved = (total[key] for key in ("killed", "counted", "unresolved"))
        share = percent(killed / max(1, counted))
        least = percent(killed / max(1, counted + unresolved))
        print(
            f"{suite}: {killed:,} of {counted:,} mutants of {total['operators']} operators are "
            f"killed, {share}; {least} if the {unresolved:,} unresolved mutants survive; "
            f"{total['proven']:,} are proven equivalent, {total['equivalent']:,} equal the "
            "operator on 10,000 nodes"
        )
    if further:
        number = sum(further[name] for name, _ in results)
        killed, counted = (totals[suites[0]][key] for key in ("killed", "counted"))
        share = percent(killed / max(1, counted + number))
        print(
            f"{share} of the mutants are killed if the {number} mutants that are not equivalent "
            "survive"
        )
    print_low("", {name: counts.share for name, counts in results})
    print_low(
        " if the mutants that are not equivalent survive",
        {name: counts.examined_share(further[name]) for name, counts in results},
    )
    print_low(
        " if unresolved mutants survive", {name: counts.least_share for name, counts in results}
    )
    many = [
        f"{name} ({percent(counts.unproven_share)})"
        for name, counts in results
        if counts.unproven_share > MOST_EQUIVALENT
    ]
    print(
        f"{len(many)} operators with more than 10 % of mutants that count as equivalent without a "
        f"proof: {', '.join(many)}"
    )


if __name__ == "__main__":
    main()
