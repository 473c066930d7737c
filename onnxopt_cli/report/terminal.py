"""Results for a terminal: causes, a panel a failure, a summary, a verdict. Nothing here prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import compress
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from onnxopt_cli.core.diff import Diff
from onnxopt_cli.core.record import Explanation, RunRecord
from onnxopt_cli.core.result import (
    HARMLESS,
    OUTSIDE_IDS,
    Outcome,
    Result,
    Standing,
)
from onnxopt_cli.core.text import (
    clipped,
    printable,
    some_of,
)
from onnxopt_cli.report import diff_text
from onnxopt_cli.report.causes import FailureGroup, mistake_command
from onnxopt_cli.report.diff_text import repeat_command
from onnxopt_cli.report.verdict import (
    Conformity,
    by_capability,
    conformity,
    failures,
    fallback,
    outcome_columns,
)

#: How outcomes that do not count against the backend, or only in part, look.
STYLES = {
    Outcome.PASS: "green",
    Outcome.SKIP: "dim",
    Outcome.NOT_RUN: "dim",
    Outcome.UNSUPPORTED: "yellow",
}
_CONFORMITY_STYLES = {
    Conformity.CONFORMS: "bold green",
    Conformity.EXPECTED_FAILURES: "bold yellow",
}
_REMARKS = {Standing.UNEXPECTED_PASS: "unexpected", Standing.CHANGED: "changed"}


def outcome_text(result: Result) -> Text:
    """Return the outcome in a word; capitals say that it counts against the backend."""
    outcome = result.outcome
    if result.standing is Standing.EXPECTED and outcome not in HARMLESS:
        return Text(f"{outcome.value} (expected)", style="dim")
    loud = outcome not in STYLES or result.standing is Standing.UNEXPECTED_PASS
    word = outcome.value.upper() if loud else outcome.value
    text = Text(word, style="bold red" if loud else STYLES[outcome])
    if result.lowered:
        text.append(" (lowered)", style="dim")
    if result.flaky:
        text.append(f" (flaky: {printable(result.flaky)})", style="bold red")
    elif result.standing in _REMARKS:
        text.append(f" ({_REMARKS[result.standing]})", style="dim")
    if result.note:
        text.append(f" ({printable(result.note.partition(' (')[0])})", style="yellow")
    return text


def case_line(results: Sequence[Result], id_width: int) -> Text:
    """Return a case's line: its id, then what happened on each backend."""
    line = Text(f"{printable(results[0].case):<{id_width}}")
    return _with_columns(line, {it.backend: outcome_text(it) for it in results})


def column_width(backend: str) -> int:
    """Return the width of a backend's column of outcomes."""
    return max(len("pass (lowered)"), min(len(printable(backend)), 24))


def heading(backends: Sequence[str], id_width: int) -> Text:
    """Return the line above the cases that names the backends."""
    cells = {}
    for backend in backends:
        name, width = printable(backend), column_width(backend)
        cells[backend] = Text(name if len(name) <= width else f"{name[: width - 2]}..")
    return _with_columns(Text(f"{'case':<{id_width}}", style="bold"), cells)


def _with_columns(line: Text, cells: Mapping[str, Text]) -> Text:
    """Return a line that goes on with a cell for each backend."""
    for backend, text in cells.items():
        text.pad_right(max(0, column_width(backend) - len(text)))
        line.append("  ").append_text(text)
    line.rstrip()
    return line


def output_lines(result: Result) -> Iterable[Text]:
    """Return a line for each output of a result: how far off it is and what it was judged by."""
    for diff in result.diffs:
        yield Text("  ").append_text(_headline(diff))
        if getattr(diff.tolerance, "reason", ""):
            yield Text(f"    by {printable(str(diff.tolerance))}", style="dim")
    if result.note:
        yield Text(f"  {printable(result.note)}", style="yellow")
    if result.message and result.outcome is Outcome.PASS:
        yield Text(f"  {printable(result.message)}", style="yellow")


def cause_table(groups: Sequence[FailureGroup], examples: int) -> Iterable[RenderableType]:
    """Yield how many failures there are, and by cause: a number, how many, and the cause in words.

    Args:
        groups: the failures; of very many groups those with the fewest are only counted.
        examples: of how many groups an example is shown elsewhere; of others it is named.
    """
    backends = [*filter(None, dict.fromkeys(group.backend for group in groups))]
    count = sum(len(group.results) for group in groups)
    head = Text(f"{count} failure{'s' * (count > 1)}", style="bold red")
    on = f" on {some_of(backends, 3)}" if backends else ""
    yield head.append(f"{on}, by cause:", style="not bold")
    table = Table.grid(padding=(0, 2, 0, 0))
    for justify in ("right", "right", "left"):
        table.add_column(justify=justify, overflow="fold")
    numbered = list(enumerate(groups, start=1))
    # The most frequent of the others stand beside the first, which wrong values may fill.
    first, others = numbered[: _CAUSES - _FREQUENT_CAUSES], numbered[_CAUSES - _FREQUENT_CAUSES :]
    frequent = sorted(others, key=lambda pair: -len(pair[1].results))[:_FREQUENT_CAUSES]
    for number, it in [*first, *sorted(frequent, key=lambda pair: pair[0])]:
        words = Text(it.cause)
        if len(backends) > 1 and it.backend:
            words.append(f" on {printable(it.backend)}", style="dim")
        if number > examples:
            words.append(f", as {printable(it.results[0].case)}", style="dim")
        table.add_row(f"  {number}.", Text(str(len(it.results)), "bold"), words)
    yield table
    if rest := [group for number, group in others if (number, group) not in frequent]:
        left = Counter(result.outcome.value for group in rest for result in group.results)
        counts = ", ".join(f"{number} {outcome}" for outcome, number in left.items())
        yield Text(f"{len(rest)} more causes of {counts}; -q names all failures", "dim")


def failure_panel(
    result: Result,
    options: Mapping[str, Any],
    about: str = "",
    *,
    whole: bool = False,
    brief: bool = False,
    note: str = "",
    more: str = "",
) -> Panel:
    """Return what is known of a case that did not conform.

    Args:
        result: the case on a backend.
        options: those of the run, for the command that repeats it.
        about: what the case asks.
        whole: True for all lines of a stack trace, and all outputs that are wrong.
        brief: True for the worst element alone, as another example stands above.
        note: what stands below it.
        more: a command that shows more of what is wrong.
    """
    # Where the file is to blame, it is what to open.
    place = str(result.location) if result.outcome is Outcome.INVALID else ""
    message = diff_text.remark(result, "" if whole else "-v shows them")
    printed = result.printed.splitlines()
    told = (
        (printable(about if whole else clipped(about, _ABOUT)), "italic"),
        (printable(place), "bold"),
        (printable(message, lines=True), ""),
        (printable(result.expectation), "yellow"),
        (printable(result.note), "yellow"),
        ("\n".join(printed if whole else printed[-_ELEMENTS:]), "dim"),
    )
    parts: list[RenderableType] = [Text(text, style) for text, style in told if text]
    wrong = result.wrong
    shown = wrong if whole else sorted(wrong, key=partial(_worst, message))[:1]
    for diff in shown:
        parts.append(_headline(diff))
        parts.extend(_details(diff, result, None if whole else 1 if brief else _ELEMENTS))
    for word, others in (
        ("wrong, too", [diff for diff in wrong if diff not in shown]),
        ("as expected", [diff for diff in result.diffs if diff.agrees] if wrong else []),
    ):
        if others:
            names = some_of([diff.name for diff in others], len(others) if whole else _NAMES)
            parts.append(Text(f"{word}: {names}", style="dim"))
    again = f"again: {printable(repeat_command(result, options))}"
    parts.append(Text(again + f"\nmore: {more}" * bool(more), style="dim"))
    title = Text.assemble(outcome_text(result), f" {printable(result.case)}")
    if result.outcome is not Outcome.INVALID:
        title.append(f" on {printable(result.backend)}")
    return Panel(
        Group(*parts),
        title=title,
        title_align="left",
        subtitle=Text(note) if note else None,
        subtitle_align="left",
        border_style="red",
    )


def _worst(message: str, diff: Diff) -> tuple[bool, bool, float]:
    """Return what sorts wrong outputs: by type or shape, then named by the message, then by far."""
    used = diff.tolerance_used if diff.tolerance else diff.mismatches
    named = f" {diff.name}[" in message
    return diff.structure is None, not named, -used if used == used else 0.0  # noqa: PLR0124 - not for NaN


def failing_lines(record: RunRecord) -> Iterable[Text]:
    """Return a line for each result that is not as expected: outcome and id, and the backend."""
    for result in failures(record):
        line = Text.assemble(outcome_text(result), f" {printable(result.case)}")
        named = len(record.backends) > 1 and result.outcome is not Outcome.INVALID
        yield line.append(f" on {printable(result.backend)}" if named else "")


def _headline(diff: Diff) -> Text:
    line = Text(printable(diff.name), style="bold")
    line.append(f"  {diff.kind}  ", style="not bold")
    style = "green not bold" if diff.agrees else "red not bold"
    line.append(printable(diff_text.finding(diff)), style=style)
    if diff.structure is None:
        for text, look in zip(diff_text.errors(diff), ("not bold", "dim not bold"), strict=False):
            line.append(f"  {text}", style=look)
    if diff.inconclusive:
        line.append(f"  inconclusive: {diff.inconclusive}", style="yellow not bold")
    return line


def _details(diff: Diff, result: Result, most: int | None) -> Iterable[RenderableType]:
    """Yield so many worst elements, and of more than one the tolerance that was applied."""
    if diff.tolerance is not None and most != 1:
        yield Text(f"  {diff_text.allowed(diff)}", style="dim")
    if diff.worst:
        header, *rows = diff_text.worst_rows(diff, result)
        yield _Elements(header, rows[:most])


class _Elements:
    """A table of elements that never breaks a number over two lines.

    Where it is too wide it has fewer columns, as the largest errors stand above it; where that does
    not help each element is a paragraph.
    """

    def __init__(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self._header, self._rows = header, rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield what fits; see rich."""
        for left_out in ((), ("rel error", "ulp")):
            shown = [name not in left_out for name in self._header]
            (first, *others), *rows = (compress(it, shown) for it in (self._header, *self._rows))
            cells = [(f"  {at}", *numbers) for at, *numbers in rows]
            table = plain_table(cells, [f"  {first}"], others, "dim")
            # Numbers of full length fit 80 columns only so.
            table.padding = (0, 1, 0, 0)
            width = console.measure(table, options=options.update(max_width=_WIDE_COLUMNS)).maximum
            if width <= options.max_width:
                yield table
                return
        for at, *numbers in self._rows:
            parts = map(" ".join, zip(self._header[1:], numbers, strict=True))
            yield Padding(Text(f"{at}: {', '.join(parts)}"), (0, 0, 0, 2))


def plain_table(
    rows: Iterable[Sequence[Text | str]],
    left: Sequence[str],
    right: Sequence[str] = (),
    style: str = "bold",
) -> Table:
    """Return a table without lines; what does not fit into a cell goes on below.

    Args:
        rows: cells; of a string what is invisible or harmful becomes visible.
        left: titles of the first columns.
        right: titles of the others, which hold numbers.
        style: of the titles.
    """
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style=style)
    for title in left:
        table.add_column(title, overflow="fold")
    for title in right:
        table.add_column(title, justify="right", overflow="fold")
    for row in rows:
        table.add_row(*(it if isinstance(it, Text) else Text(printable(it)) for it in row))
    return table


def summary_table(results: Sequence[Result]) -> Table | None:
    """Return the outcomes by operator; of many operators those with most failures, or None."""
    rows = sorted({(_operator(result), result.backend) for result in results})
    counts = Counter((_operator(result), result.backend, result.outcome) for result in results)
    outcomes = [outcome for outcome in Outcome if any(key[2] is outcome for key in counts)]
    bad = {row: sum(counts[*row, it] for it in outcomes if it not in HARMLESS) for row in rows}
    shown = rows
    if len(rows) > _MAX_ROWS:
        shown = sorted(sorted(filter(bad.get, rows), key=lambda row: -bad[row])[:_MAX_ROWS])
    if not shown:
        return None
    named = ["operator", "backend"] if len({backend for _, backend in rows}) > 1 else ["operator"]
    cells: list[list[Text | str]] = []
    for row in shown:
        numbers = (Text(str(counts[*row, it] or ""), STYLES.get(it, "bold red")) for it in outcomes)
        cells.append([*row[: len(named)], *numbers])
    table = plain_table(cells, named, [outcome.value for outcome in outcomes])
    left = sum(map(bool, bad.values())) - sum(bool(bad[row]) for row in shown)
    others = {"others do not all pass": left, "others all pass": len(rows) - len(shown) - left}
    for what, count in others.items():
        if count:
            table.add_row(Text(f"{count} {what}", style="dim"))
    return table


def duration_table(results: Sequence[Result], count: int) -> Table:
    """Return the cases that took longest in the backends, the longest first."""
    ran = [it for it in results if it.outcome is not Outcome.NOT_RUN]
    slowest = sorted(ran, key=lambda it: -it.seconds)[:count]
    rows = [(it.case, it.backend, f"{it.seconds:.4f} s") for it in slowest]
    return plain_table(rows, ["slowest cases", "backend"], ["in the backend"])


def capability_table(results: Sequence[Result]) -> Table | None:
    """Return the outcomes by what cases need; None if all is harmless."""
    used, rows = outcome_columns(by_capability(results))
    if not rows or all(result.outcome in HARMLESS for result in results):
        return None
    return plain_table(rows, ["cases that need"], used)


def verdict(record: RunRecord, seconds: float, explaining: float = 0.0) -> list[Text]:
    """Return a line for each backend: what became of its cases, and whether it conforms.

    Before them stand the entries of expectation files that no longer hold.

    Args:
        record: of the run.
        seconds: how long it took.
        explaining: how long it then took to explain them.
    """
    time = f" in {seconds + explaining:.1f} s"
    if explaining > _LONG_SECONDS:
        time += f", {explaining:.1f} s of it explaining"
    head = "expectation ", "bold red"
    lines = [Text.assemble(head, printable(str(it))) for it in record.findings]
    for backend in dict.fromkeys(result.backend for result in record.results):
        mine = [result for result in record.results if result.backend == backend]
        counts = Counter(result.outcome for result in mine)
        parts = ", ".join(f"{counts[it]} {it.value}" for it in Outcome if counts[it])
        said = conformity(mine)
        word = said.value, _CONFORMITY_STYLES.get(said, "bold red")
        line = Text.assemble(printable(backend), " ", word, f": {parts}")
        if standings := Counter(it.standing for it in mine if it.standing and not _plain(it)):
            parts = ", ".join(f"{standings[it]} {it}" for it in Standing if standings[it])
            line.append(f" ({parts})")
        if lowered := sum(result.lowered for result in mine):
            line.append(f", {lowered} of them lowered")
        lines.append(line.append(time, style="dim"))
    if judged := fallback(record):
        lines.append(Text(judged, "yellow"))
    return lines


def explanation_lines(explanations: Sequence[Explanation]) -> Iterable[Text]:
    """Return a line for each explanation."""
    for it in explanations:
        line = Text.assemble("  ", (printable(it.backend), "bold"), f", {it.operator}: ")
        yield line.append(printable(it.text), style="" if it.causes else "dim")
        for cause in it.causes:
            if more := mistake_command(it, cause):
                yield Text(f"    {more}", "dim")
    if not all(it.complete for it in explanations):
        yield Text("  --explain-time SECONDS gives the search for known mistakes more time", "dim")


#: Causes that are named, and rows of the summary.
_CAUSES = 12
_FREQUENT_CAUSES = 3
_MAX_ROWS = 18
#: Of an example: elements of its worst output, names of others, characters of what it asks.
_ELEMENTS = 3
_NAMES = 6
_ABOUT = 200
#: More columns than any terminal has.
_WIDE_COLUMNS = 10_000
#: Explaining that took more seconds is worth a word.
_LONG_SECONDS = 1.0


def _plain(result: Result) -> bool:
    """Tell whether a result is what a case without any expectation would have."""
    return result.standing is Standing.EXPECTED and result.outcome in HARMLESS


def _operator(result: Result) -> str:
    if result.case in OUTSIDE_IDS:
        return "(outside of cases)"
    names = result.operators
    return names[0] if len(names) == 1 else "(several)" if names else "(unknown)"
