"""The accuracy of backends as a table for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from onnxopt_cli.core import numbers
from onnxopt_cli.core.result import Result
from onnxopt_cli.core.text import printable
from onnxopt_cli.report.accuracy import accuracy


def accuracy_table(results: Sequence[Result]) -> Table | None:
    """Return budget used and bits lost by backend and output; None if no budget applied."""
    rows = accuracy(results)
    if not rows:
        return None
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="bold")
    for title in ("backend", "output"):
        table.add_column(title, overflow="fold")
    for title in ("budget used", "median", "bits lost", "99% ulp"):
        table.add_column(title, justify="right")
    for row in rows:
        cells = (
            printable(row.backend),
            f"{row.operator} {row.output}",
            numbers.error(row.budget_most),
            numbers.error(row.budget_median),
            f"{row.bits_lost:.1f}",
            numbers.count(row.ulp_within(0.99)),
        )
        table.add_row(*map(Text, cells))
    return table
