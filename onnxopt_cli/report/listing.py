"""Operators, cases, backends and what their check has found, for a reader. Nothing prints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx
from onnx import helper
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from onnxopt_cli.backends.check.rule import RuleOutcome, RuleResult
from onnxopt_cli.backends.resolve import KnownBackend
from onnxopt_cli.core.case import Case, Content, Trajectory
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.values import Value, describe
from onnxopt_cli.formula.operator import Operator
from onnxopt_cli.readings.show import formula_description, formula_text
from onnxopt_cli.report.terminal import plain_table

_MOST_ELEMENTS = 12


def case_table(cases: Sequence[Case]) -> Table:
    """Return the ids of cases and what each asks."""
    rows = [
        (it.id, ", ".join(it.operators or ()), Text(printable(it.about), "dim")) for it in cases
    ]
    return plain_table(rows, ("case", "operator", "about"))


def backend_table(backends: Sequence[KnownBackend]) -> Table:
    """Return the backends that can be asked for by name, and why some cannot be used."""
    rows = [(it.name, it.kind, it.version or f"not available: {it.problem}") for it in backends]
    return plain_table(rows, ("backend", "kind", "version"))


def operator_page(operator: Operator) -> Iterable[RenderableType]:
    """Yield an operator's page: what it is, its formula, inputs, outputs and attributes."""
    yield Text.assemble((operator.name, "bold"), f"  {operator.domain} version {operator.version}")
    yield Text(operator.about)
    yield Text(operator.source, style="dim")
    yield _heading("Formula")
    yield Padding(Syntax(formula_text(operator), "python", background_color="default"), (0, 2))
    yield Padding(Text(formula_description(operator)), (1, 2, 0, 2))
    yield _heading("Inputs")
    table = _table()
    for scalar in operator.scalars:
        table.add_row(scalar.name, " or ".join(scalar.dtypes), "one element, of any rank")
    for name in operator.tensors:
        first = "" if name == operator.tensors[0] else f"broadcasts to {operator.tensors[0]}"
        table.add_row(f"{name}1 .. {name}n", " or ".join(operator.dtypes), first)
    yield table
    yield _heading("Outputs")
    table = _table()
    for name, like in operator.outputs.items():
        if operator.carries(name):
            table.add_row(name, f"as {like}, one for all")
            continue
        stem, bar, suffix = name.partition("_")
        shape = f"as {like}, of {operator.tensors[0]}'s shape"
        table.add_row(f"{stem}1{bar}{suffix} .. {stem}n{bar}{suffix}", shape)
    yield table
    yield _heading("Attributes")
    table = _table()
    for attribute in operator.attributes:
        kind = " or ".join(attribute.choices) or "float"
        if attribute.each:
            kind = "floats, one for all or one for each"
        if attribute.limits:
            kind += f", {attribute.limits[0]:g} to {attribute.limits[1]:g}"
        default = "required" if attribute.default is None else f"default {attribute.default!r}"
        table.add_row(attribute.name, kind, default)
    yield table
    yield _heading("Known mistakes")
    table = _table()
    for deviation in operator.deviations:
        table.add_row(deviation.name, Text(", ".join(deviation.seen_in), style="dim"))
    yield table


def case_page(case: Case, content: Content) -> Iterable[RenderableType]:
    """Yield a case's page: where it stands, the node, its inputs and stored outputs."""
    yield Text(printable(case.id), style="bold")
    for label, text in (("", case.about), ("source: ", case.source), ("", str(case.location))):
        if text:
            yield Text(f"{label}{printable(text)}", style="" if text is case.about else "dim")
    yield _heading("Model")
    table = _table()
    for node in content.model.graph.node:
        attributes = ", ".join(
            f"{attribute.name}={_attribute(attribute)}" for attribute in node.attribute
        )
        name = f"{node.domain}:{node.op_type}" if node.domain else node.op_type
        table.add_row(*(Text(printable(cell)) for cell in (name, attributes)))
    yield table
    yield _heading("Inputs")
    yield _values(content.inputs.items())
    if content.trajectory is not None:
        yield _heading("Steps")
        yield Padding(Text(printable(_steps(content.trajectory))), (0, 2))
    yield _heading("Expected outputs")
    if content.rejects:
        yield Padding(Text("none: a right backend refuses this"), (0, 2))
    elif content.expected is None:
        yield Padding(Text("what the formula yields"), (0, 2))
    else:
        yield _values(content.expected.items())
    if content.tolerance or content.output_tolerances:
        yield _heading("Tolerance")
        table = _table()
        if content.tolerance:
            table.add_row("all outputs", str(content.tolerance))
        for name, tolerance in content.output_tolerances.items():
            table.add_row(printable(name), str(tolerance))
        yield table


def _values(items: Iterable[tuple[str, Value]]) -> Table:
    table = _table()
    for name, value in items:
        table.add_row(*(Text(printable(cell)) for cell in (name, describe(value), _brief(value))))
    return table


def _brief(value: Value) -> str:
    if not isinstance(value, np.ndarray):
        return "" if value is None else printable(repr(value))[:200]
    elements = ", ".join(str(item) for item in value.reshape(-1)[:_MOST_ELEMENTS])
    more = ", ..." if value.size > _MOST_ELEMENTS else ""
    return elements + more if value.ndim == 0 else f"[{elements}{more}]"


def _steps(trajectory: Trajectory) -> str:
    """Say how many steps there are, and what becomes of outputs and inputs in between."""
    ways = [
        *(f"{name} becomes {taken}" for name, taken in trajectory.feedback.items()),
        *(f"{name} counts up" for name in sorted(trajectory.counted)),
        *(f"{name} is given for each" for name in trajectory.series),
        *(f"{name} is computed from {it.of}" for name, it in trajectory.derived.items()),
    ]
    return f"{trajectory.count} steps, {len(trajectory.recorded)} of them judged: {', '.join(ways)}"


def _attribute(attribute: object) -> str:
    value = helper.get_attribute_value(attribute)  # type: ignore[arg-type]
    if isinstance(value, onnx.GraphProto):
        return ", ".join(node.op_type for node in value.node)
    if isinstance(value, float):
        return str(np.float32(value))
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)[:100]


def _heading(text: str) -> Padding:
    return Padding(Text(text, style="bold"), (1, 0, 0, 0))


def _table() -> Table:
    return Table(box=None, show_header=False, padding=(0, 2), pad_edge=True)


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
