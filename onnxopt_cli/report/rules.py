"""What a backend's check has found, for a terminal. Nothing here prints."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from onnxopt_cli.backends.check.rule import RuleOutcome, RuleResult
from onnxopt_cli.core.text import printable

_STYLES = {RuleOutcome.PASS: "green", RuleOutcome.FAIL: "bold red", RuleOutcome.NOT_SHOWN: "dim"}
_VERDICT_WIDTH = max(map(len, RuleOutcome))


def rule_line(finding: RuleResult) -> RenderableType:
    """Return a rule with its verdict and what was found; if it is broken, also what to do.

    What to write is left out: it stands in a line of its own, to be copied.
    """
    table = Table.grid(padding=(0, 2))
    table.add_column(width=_VERDICT_WIDTH)
    table.add_column(overflow="fold")
    found = Text(printable(finding.found), style="dim")
    table.add_row(
        Text(finding.verdict, style=_STYLES[finding.verdict]),
        Group(Text(finding.rule.name), Padding(found, (0, 0, 0, 2))),
    )
    if finding.verdict is RuleOutcome.FAIL:
        table.add_row("", Padding(Text(f"to do: {finding.remedy}"), (0, 0, 0, 2)))
    return table


def rule_summary(findings: Sequence[RuleResult]) -> Text:
    """Return how many rules are kept and broken."""
    counts = {
        verdict: sum(finding.verdict is verdict for finding in findings) for verdict in RuleOutcome
    }
    shown = [f"{count} {verdict}" for verdict, count in counts.items() if count]
    broken = counts[RuleOutcome.FAIL]
    return Text(", ".join(shown), style="bold red" if broken else "bold green")
