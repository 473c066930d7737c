"""Render results for a terminal: causes, a panel for each failure, a summary and a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from onnxopt_cli.core.record import Explanation
from onnxopt_cli.core.result import (
    Outcome,
    Result,
    Standing,
)
from onnxopt_cli.core.text import (
    clipped,
    printable,
    some_of,
)
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.report.view.accuracy import COLUMNS, accuracy_rows
from onnxopt_cli.report.view.causes import FailureGroup, mistake_command
from onnxopt_cli.report.view.comparison import Change, Direction
from onnxopt_cli.report.view.result_view import OutputView, ResultView, printed_text, remark
from onnxopt_cli.report.view.run_view import RunView
from onnxopt_cli.report.view.verdict import (
    EXPECTED_FAILURE,
    LABELS,
    UNEXPECTED_PASS,
    Conformity,
    count_columns,
    in_words,
    is_expected_failure,
)

# Styles of outcomes. All outcomes without an entry are failures of the backend.
_STYLES = {
    Outcome.PASS: "green",
    Outcome.SKIP: "dim",
    Outcome.NOT_RUN: "dim",
    Outcome.UNSUPPORTED: "yellow",
}
_FAILURE_STYLE = "bold red"
_LABEL_STYLES = {
    **{outcome.value: style for outcome, style in _STYLES.items()},
    EXPECTED_FAILURE: "yellow",
    UNEXPECTED_PASS: _FAILURE_STYLE,
}
_CONFORMITY_STYLES = {
    Conformity.CONFORMS: "bold green",
    Conformity.EXPECTED_FAILURES: "bold yellow",
}
_DIRECTION_STYLES = dict(zip(Direction, ("bold red", "green", "dim", "yellow"), strict=True))
_REMARKS = {Standing.UNEXPECTED_PASS: "unexpected", Standing.CHANGED: "changed"}
# The largest number of rows in the table of causes.
_MAX_CAUSES = 12
# The number of rows at the end of the table of causes that are reserved for frequent causes.
_MAX_FREQUENT_CAUSES = 3
# The largest number of rows in the summary.
_MAX_ROWS = 18
# The largest number of elements of the worst output that a panel shows.
_MAX_ELEMENTS = 3
# The largest number of lines of the backend's output that a panel shows.
_MAX_PRINTED_LINES = 3
# The largest number of outputs that a panel names in addition to the worst output.
_MAX_NAMES = 6
# The largest number of characters of a case's description that a panel shows.
_MAX_ABOUT_CHARS = 200
# The number of columns in a panel's border that are not available for the title.
_BORDER_COLUMNS = 6
# A width that exceeds the width of any terminal.
_WIDE_COLUMNS = 10_000
# Words of at most this length are not broken in tables.
_MAX_NAME_CHARS = 40
# The minimum length of the parts of a broken word.
_MIN_PART_CHARS = 20
# If a search for explanations takes longer than this number of seconds, the verdict states its
# duration.
_LONG_SECONDS = 1.0
# The largest number of operators that a message about incompletely examined operators names.
_MAX_UNEXAMINED = 5


def outcome_style(outcome: Outcome) -> str:
    """Return the style of an outcome."""
    return _STYLES.get(outcome, _FAILURE_STYLE)


def outcome_text(result: Result) -> Text:
    """Return the outcome as a word, in capitals if it is a failure, followed by remarks."""
    outcome = result.outcome
    if is_expected_failure(result):
        return Text(f"{outcome.value} (expected)", style="dim")
    loud = outcome not in _STYLES or result.standing is Standing.UNEXPECTED_PASS
    word = outcome.value.upper() if loud else outcome.value
    text = Text(word, style=_FAILURE_STYLE if loud else _STYLES[outcome])
    if result.lowered:
        text.append(" (lowered)", style="dim")
    if result.opset:
        text.append(f" (opset {result.opset})", style="dim")
    if result.flaky:
        text.append(f" (flaky: {printable(result.flaky)})", style="bold red")
    elif result.standing in _REMARKS:
        text.append(f" ({_REMARKS[result.standing]})", style="dim")
    if result.note:
        text.append(f" ({printable(result.note.partition(' (')[0])})", style="yellow")
    return text


def case_line(results: Sequence[Result], id_width: int) -> Text:
    """Return the line of a case: its id, and its outcome on each backend."""
    line = Text(f"{printable(results[0].case):<{id_width}}")
    return _with_columns(line, {result.backend: outcome_text(result) for result in results})


def column_width(backend: str) -> int:
    """Return the width of a backend's column of outcomes."""
    return max(len("pass (lowered)"), min(len(printable(backend)), 24))


def heading(backends: Sequence[str], id_width: int) -> Text:
    """Return the header line with the names of the backends."""
    cells = {}
    for backend in backends:
        name, width = printable(backend), column_width(backend)
        cells[backend] = Text(name if len(name) <= width else f"{name[: width - 2]}..")
    return _with_columns(Text(f"{'case':<{id_width}}", style="bold"), cells)


def _with_columns(line: Text, cells: Mapping[str, Text]) -> Text:
    """Append one cell per backend to a line, and return the line."""
    for backend, text in cells.items():
        text.pad_right(max(0, column_width(backend) - len(text)))
        line.append("  ").append_text(text)
    line.rstrip()
    return line


def output_lines(view: ResultView) -> Iterable[Text]:
    """Yield a line for each output of a result, with its error and tolerance."""
    result = view.result
    for output in view.outputs:
        yield Text("  ").append_text(_headline(output))
        if output.reason:
            yield Text(f"    by {printable(output.tolerance)}", style="dim")
    if result.note:
        yield Text(f"  {printable(result.note)}", style="yellow")
    if result.message and result.outcome is Outcome.PASS:
        yield Text(f"  {printable(result.message)}", style="yellow")


def cause_table(groups: Sequence[FailureGroup], examples: int) -> Iterable[RenderableType]:
    """Yield the number of failures, and a table of causes with their counts.

    Args:
        groups: the failures by cause. If there are many groups, the table does not list all of
            them, but only counts the rest.
        examples: for this number of groups, counted from the first, the report shows an example
            below the table. The row of any other group names an example.
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
    # Groups with wrong values come first, and may fill all rows except the reserved ones. The
    # reserved rows show the most frequent of the remaining causes.
    leading = _MAX_CAUSES - _MAX_FREQUENT_CAUSES
    first, remaining = numbered[:leading], numbered[leading:]
    frequent = sorted(remaining, key=lambda pair: -len(pair[1].results))[:_MAX_FREQUENT_CAUSES]
    for number, group in [*first, *sorted(frequent, key=lambda pair: pair[0])]:
        words = Text(group.cause)
        if len(backends) > 1 and group.backend:
            words.append(f" on {printable(group.backend)}", style="dim")
        if number > examples:
            words.append(f", as {printable(group.results[0].case)}", style="dim")
        table.add_row(f"  {number}.", Text(str(len(group.results)), "bold"), words)
    yield table
    if hidden := [group for number, group in remaining if (number, group) not in frequent]:
        outcomes = Counter(result.outcome.value for group in hidden for result in group.results)
        counts = ", ".join(
            f"{number} case{'s' * (number > 1)} with outcome {outcome}"
            for outcome, number in outcomes.items()
        )
        yield Text(f"{len(hidden)} more causes, in {counts}; -q names all failures", "dim")


def _node_line(result: Result, about: str) -> str:
    """Return the attributes and shapes of a single node without a formula; empty for other models.

    The result is also empty for a generated case, because its description contains the attributes
    and shapes.
    """
    content = result.content
    if content is None or len(content.nodes) != 1:
        return ""
    ((operator, attributes),) = content.nodes
    if any(map(registry().named, result.operators)) or about.startswith(operator):
        return ""
    inputs = ", ".join(f"{name} {structure}" for name, structure, _ in content.inputs)
    parts = (operator, attributes, inputs and f"of {inputs}")
    return printable("; ".join(filter(None, parts)))


def failure_panel(
    view: ResultView,
    about: str = "",
    *,
    complete: bool = False,
    brief: bool = False,
    note: str = "",
    more: str = "",
) -> RenderableType:
    """Return a panel with the details of a failure.

    Args:
        view: the case on a backend.
        about: the case's description.
        complete: whether to show the whole stack trace and all wrong outputs.
        brief: whether to show only the worst element, as in all panels after the first panel.
        note: subtitle of the panel.
        more: a command that shows more about the cause.
    """
    result = view.result
    # The user has to correct the file of an invalid case, so show its location.
    location = str(result.location) if result.outcome is Outcome.INVALID else ""
    message = view.message if complete else remark(result, "-v shows them")
    printed = printed_text(result.printed, None if complete else _MAX_PRINTED_LINES)
    node_line = _node_line(result, about)
    texts = (
        (printable(about if complete else clipped(about, _MAX_ABOUT_CHARS)), "italic"),
        (node_line if complete else clipped(node_line, _MAX_ABOUT_CHARS), "italic"),
        (printable(location), "bold"),
        (printable(message, lines=True), ""),
        (printable(result.expectation), "yellow"),
        (printable(result.note), "yellow"),
        (printed, "dim"),
    )
    parts: list[RenderableType] = [Text(text, style) for text, style in texts if text]
    wrong = view.wrong
    detailed = wrong if complete else view.worst_first[:1]
    elements = None if complete else 1 if brief else _MAX_ELEMENTS
    for output in detailed:
        parts.append(_headline(output))
        parts.extend(_details(output, elements))
    for word, outputs in (
        ("wrong, too", [output for output in wrong if output not in detailed]),
        ("as expected", view.agreeing if wrong else []),
    ):
        if outputs:
            most = len(outputs) if complete else _MAX_NAMES
            names = some_of([output.name for output in outputs], most)
            parts.append(Text(f"{word}: {names}", style="dim"))
    again = f"again: {printable(view.again)}"
    parts.append(Text(again + f"\nmore: {more}" * bool(more), style="dim"))
    title = Text.assemble(outcome_text(result), f" {printable(result.case)}")
    if result.outcome is not Outcome.INVALID:
        title.append(f" on {printable(result.backend)}")
    return _FailurePanel(title, parts, note)


class _FailurePanel:
    """A panel; a title that is too long for the border becomes the first line of the content."""

    def __init__(self, title: Text, parts: Sequence[RenderableType], note: str) -> None:
        self._title, self._parts, self._note = title, parts, note

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the panel; part of rich's protocol."""
        fits = self._title.cell_len <= options.max_width - _BORDER_COLUMNS
        yield Panel(
            Group(*self._parts) if fits else Group(self._title, *self._parts),
            title=self._title if fits else None,
            title_align="left",
            subtitle=Text(self._note) if self._note else None,
            subtitle_align="left",
            border_style="red",
        )


def failing_lines(view: RunView) -> Iterable[Text]:
    """Yield a line for each result that is not as expected: outcome, id and backend."""
    for result in view.nonconforming:
        line = Text.assemble(outcome_text(result), f" {printable(result.case)}")
        named = len(view.backends) > 1 and result.outcome is not Outcome.INVALID
        yield line.append(f" on {printable(result.backend)}" if named else "")


def _headline(output: OutputView) -> Text:
    line = Text(printable(output.name), style="bold")
    line.append(f"  {output.kind}  ", style="not bold")
    style = "green not bold" if output.agrees else "red not bold"
    line.append(printable(output.finding), style=style)
    for text, look in zip(output.errors, ("not bold", "dim not bold"), strict=False):
        line.append(f"  {text}", style=look)
    if output.inconclusive:
        line.append(f"  inconclusive: {output.inconclusive}", style="yellow not bold")
    return line


def _details(output: OutputView, most: int | None) -> Iterable[RenderableType]:
    """Yield the tolerance of an output, and at most ``most`` of its worst elements.

    If ``most`` is 1, the tolerance is omitted.
    """
    if output.allowed and most != 1:
        yield Text(f"  {output.allowed}", style="dim")
    if output.elements:
        yield _Elements(output.header, output.elements[:most])


class _Elements:
    """A table of elements that never breaks a number over two lines.

    If the table is too wide, two columns are omitted; their largest values are shown above the
    table. If the table is still too wide, each element is shown as a paragraph.
    """

    def __init__(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self._header, self._rows = header, rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the widest form that fits; part of rich's protocol."""
        for hidden in ((), ("rel error", "ulp")):
            visible = [name not in hidden for name in self._header]
            (first, *titles), *rows = (
                compress(row, visible) for row in (self._header, *self._rows)
            )
            cells = [(f"  {index}", *numbers) for index, *numbers in rows]
            table = plain_table(cells, [f"  {first}"], titles, "dim")
            # With this padding, numbers with the maximum number of digits fit into 80 columns.
            table.padding = (0, 1, 0, 0)
            width = console.measure(table, options=options.update(max_width=_WIDE_COLUMNS)).maximum
            if width <= options.max_width:
                yield table
                return
        for index, *numbers in self._rows:
            parts = map(" ".join, zip(self._header[1:], numbers, strict=True))
            yield Padding(Text(f"{index}: {', '.join(parts)}"), (0, 0, 0, 2))


class WordTable(Table):
    """A table that breaks cells only between words.

    If the longest words of all columns do not fit into a line, each row is shown as a paragraph
    that begins with its first cell. As an exception, a word such as a path is broken if it is
    longer than ``_MAX_NAME_CHARS``, and also longer than half of the width.

    Attributes:
        breaks_words: whether the exception applies.
    """

    breaks_words = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table or the paragraphs; part of rich's protocol."""
        wide = options.update(max_width=_WIDE_COLUMNS)
        measures = [
            [Measurement.get(console, wide, cell) for cell in (column.header, *column.cells)]
            for column in self.columns
        ]
        width = self.width or options.max_width
        longest = max(width // 2, _MAX_NAME_CHARS) if self.breaks_words else _WIDE_COLUMNS
        least = [
            max(cell.minimum if cell.minimum <= longest else _MIN_PART_CHARS for cell in column)
            for column in measures
        ]
        most = [max(measure.maximum for measure in column) for column in measures]
        _, right, _, left = self.padding
        gaps = (left + right) * (len(self.columns) - (not self.pad_edge))
        room = width - gaps - sum(least)
        if room < 0:
            yield from self._paragraphs()
            return
        # Distribute the remaining room from the left, because the first columns contain the names.
        for column, minimum, maximum in zip(self.columns, least, most, strict=True):
            column.width = minimum + min(room, maximum - minimum)
            room -= column.width - minimum
        yield from super().__rich_console__(console, options)

    def _paragraphs(self) -> Iterator[RenderableType]:
        first, *other_columns = self.columns
        titles = [self.title, first.header if self.show_header else ""]
        for title in filter(None, map(str, filter(None, titles))):
            yield Text(title, self.header_style)
        for name, *cells in zip(
            first.cells, *(column.cells for column in other_columns), strict=True
        ):
            yield name
            parts = [
                f"{column.header} {cell}" if column.justify == "right" else str(cell)
                for column, cell in zip(other_columns, cells, strict=True)
                if str(cell)
            ]
            yield Padding(Text(", ".join(parts), "dim"), (0, 0, 0, 2))


def plain_table(
    rows: Iterable[Sequence[Text | str]],
    left: Sequence[str],
    right: Sequence[str] = (),
    style: str = "bold",
) -> WordTable:
    """Return a table without borders.

    Args:
        rows: the cells; in strings, invisible and harmful characters are replaced by visible
            escapes.
        left: titles of the first columns, which are left-aligned.
        right: titles of the other columns, which are right-aligned.
        style: style of the titles.
    """
    table = WordTable(box=None, padding=(0, 1), pad_edge=False, header_style=style)
    for title in left:
        table.add_column(title, overflow="fold")
    for title in right:
        table.add_column(title, justify="right", overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(printable(cell)) for cell in row))
    return table


def summary_table(view: RunView) -> Table | None:
    """Return a table of outcomes by operator; None if there are many operators and no failures.

    If there are many operators, the table shows only the operators with the most failures.
    """
    rows = view.operators
    failing = sorted((row for row in rows if row.failing), key=lambda row: -row.failing)
    visible = rows
    if len(rows) > _MAX_ROWS:
        visible = tuple(row for row in rows if row in failing[:_MAX_ROWS])
    if not visible:
        return None
    several = len({row.backend for row in rows}) > 1
    used = [word for word in LABELS if any(word in row.counts for row in rows)]
    cells: list[list[Text | str]] = []
    for row in visible:
        numbers = (
            Text(str(row.counts.get(word, "")), _LABEL_STYLES.get(word, _FAILURE_STYLE))
            for word in used
        )
        cells.append([row.operator, *([row.backend] if several else []), *numbers])
    table = plain_table(cells, ["operator", *["backend"] * several], used)
    hidden_failing = len(failing) - sum(row.failing > 0 for row in visible)
    hidden_passing = len(rows) - len(visible) - hidden_failing
    for count, description in (
        (hidden_failing, "others do not all pass"),
        (hidden_passing, "others all pass"),
    ):
        if count:
            table.add_row(Text(f"{count} {description}", style="dim"))
    return table


def duration_table(results: Sequence[Result], count: int) -> Table:
    """Return a table of the slowest cases in order of decreasing time."""
    ran = [result for result in results if result.outcome is not Outcome.NOT_RUN]
    slowest = sorted(ran, key=lambda result: -result.seconds)[:count]
    rows = [(result.case, result.backend, f"{result.seconds:.4f} s") for result in slowest]
    return plain_table(rows, ["slowest cases", "backend"], ["in the backend"])


def capability_table(view: RunView) -> Table | None:
    """Return a table of outcomes by capability; None if all outcomes are harmless."""
    used, rows = count_columns(view.capabilities)
    if not rows or not any(row.failing for row in view.operators):
        return None
    return plain_table(rows, ["cases that need"], used)


def accuracy_tables(view: RunView) -> Iterator[Table]:
    """Yield a table for each backend with the accuracy of its outputs, titled by the backend."""
    rows_by_backend: dict[str, list[Sequence[str]]] = {}
    for backend, operator, output, *measures in accuracy_rows(view.accuracy):
        rows_by_backend.setdefault(backend, []).append((f"{operator} {output}", *measures))
    for backend, rows in rows_by_backend.items():
        table = plain_table(rows, COLUMNS[2:4], COLUMNS[4:])
        table.title = Text(printable(backend))
        table.title_justify = "left"
        yield table


def verdict(view: RunView, seconds: float, explaining: float = 0.0) -> list[Text]:
    """Return lines for faults of expectation files, followed by one line per backend.

    The line of a backend states its conformity, and the number of results by outcome.

    Args:
        view: the run.
        seconds: duration of the run.
        explaining: duration of the search for explanations after the run.
    """
    time = f" in {seconds + explaining:.1f} s"
    if explaining > _LONG_SECONDS:
        time += f", {explaining:.1f} s of it explaining"
    head = "expectation ", "bold red"
    lines = [Text.assemble(head, printable(str(finding))) for finding in view.record.findings]
    for backend in view.backends:
        if backend.results:
            style = _CONFORMITY_STYLES.get(backend.conformity, "bold red")
            word = backend.conformity.value, style
            line = Text.assemble(printable(backend.name), " ", word, f": {backend.text}")
            lines.append(line.append(time, style="dim"))
    if view.fallback:
        lines.append(Text(view.fallback, "yellow"))
    return lines


def explanation_lines(explanations: Sequence[Explanation]) -> Iterable[Text]:
    """Yield a line for each explanation, and commands that show the known mistakes."""
    unexamined = [explanation for explanation in explanations if explanation.is_unexamined]
    groups = dict.fromkeys((explanation.backend, explanation.note) for explanation in unexamined)
    for backend, note in groups:
        names = [
            explanation.operator
            for explanation in unexamined
            if (explanation.backend, explanation.note) == (backend, note)
        ]
        count = f"{len(names)} operator{'s' * (len(names) > 1)} {printable(note)}"
        line = Text.assemble("  ", (printable(backend), "bold"), f": {count}: ")
        yield line.append(some_of(names, _MAX_UNEXAMINED), "dim")
    for explanation in explanations:
        if explanation.is_unexamined:
            continue
        backend, operator = printable(explanation.backend), printable(explanation.operator)
        line = Text.assemble("  ", (backend, "bold"), f", {operator}: ")
        yield line.append(printable(explanation.text), style="" if explanation.causes else "dim")
        for cause in explanation.causes:
            if command := mistake_command(explanation.operator, cause.known_mistakes):
                yield Text(f"    {command}", "dim", no_wrap=True)
    if not all(explanation.complete for explanation in explanations):
        yield Text("  --explain-time SECONDS gives the search for known mistakes more time", "dim")


def comparison_table(changes: Sequence[Change]) -> Table:
    """Return changes as a table; if there is only one backend, its name is the title."""
    backends = {change.backend for change in changes}
    several = len(backends) > 1
    # Each row begins with its direction, also if it is shown as a paragraph.
    width = max((len(change.direction.value) for change in changes), default=0)
    titles = f"{'':{width}}  case", *["backend"] * several, "what"
    table = plain_table((), titles, ("before", "now"))
    # The ids of cases are often copied or searched.
    table.breaks_words = False
    for change in changes:
        direction = f"{change.direction.value:{width}}", _DIRECTION_STYLES[change.direction]
        case = Text.assemble(direction, f"  {printable(change.case)}", overflow="ignore")
        backend = [change.backend] * several
        words = *backend, change.what, change.before or "-", change.now or "-"
        table.add_row(case, *map(Text, map(printable, words)))
    if not several:
        table.title, table.title_justify = Text(printable(*backends)), "left"
    return table


def comparison_verdict(changes: Sequence[Change]) -> Text:
    """Return the number of changes by direction."""
    if not changes:
        return Text("nothing changed", "green")
    counts = Counter(change.direction for change in changes)
    # Only a comparison of repeated runs can find slower cases.
    named = [kind for kind in Direction if counts[kind] or kind is not Direction.SLOWER]
    return Text(in_words({kind: counts[kind] for kind in named}))
