"""Render operators, known mistakes, cases, backends and results of protocol checks as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from onnxopt_cli.backends.check.protocol_rule import RuleOutcome, RuleResult
from onnxopt_cli.backends.resolve import KnownBackend
from onnxopt_cli.cases.case import Case, Problem, input_text, node_text
from onnxopt_cli.core.result import short_element
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.values import Value, describe
from onnxopt_cli.interpret.bound.chained_nodes import Trajectory
from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.interpret.implementation import Implementation
from onnxopt_cli.mutation.equivalence import distinguishing_input
from onnxopt_cli.operators.call import bind, complete_attributes
from onnxopt_cli.operators.operator import Attribute, Operator
from onnxopt_cli.operators.rewrite import (
    formula_description,
    formula_difference,
    formula_text,
)
from onnxopt_cli.report.terminal import WordTable, plain_table
from onnxopt_cli.report.view.verdict import counted, in_words

_MAX_SHOWN_ELEMENTS = 12


def case_table(cases: Sequence[Case]) -> Table:
    """Return a table of cases with their operators and descriptions."""
    rows = [
        (case.id, ", ".join(case.operators or ()), Text(printable(case.about), "dim"))
        for case in cases
    ]
    return plain_table(rows, ("case", "operator", "about"))


def backend_table(backends: Sequence[KnownBackend]) -> Table:
    """Return a table of backends, with their versions or the reasons why they are unavailable."""
    rows = []
    for backend in backends:
        problem = f"not available: {backend.problem}" if backend.problem else ""
        detail = "; ".join(filter(None, (backend.version, problem)))
        rows.append((backend.name, backend.kind, detail))
    return plain_table(rows, ("backend", "kind", "version"))


def operator_page(operator: Operator) -> Iterable[RenderableType]:
    """Yield an operator's page: description, formula, inputs, outputs, attributes, mistakes."""
    yield Text.assemble((operator.name, "bold"), f"  {operator.domain} version {operator.version}")
    yield Text(operator.about)
    yield Text(operator.source, style="dim")
    yield heading("Formula")
    yield Padding(
        Syntax(
            formula_text(operator.formula), "python", background_color="default", word_wrap=True
        ),
        (0, 2),
    )
    if description := formula_description(operator.formula):
        yield Padding(Text(description), (1, 2, 0, 2))
    first = operator.tensors[0]
    inputs = [
        (scalar.name, " or ".join(scalar.dtypes), "one element, of any rank")
        for scalar in operator.scalars
    ]
    for name in operator.tensors:
        shape = "" if name == first else f"broadcasts to {first}"
        inputs.append((f"{name}1 .. {name}n", " or ".join(operator.dtypes), shape))
    yield from section("Inputs", inputs)
    outputs = []
    for name, like in operator.outputs.items():
        stem, bar, suffix = name.partition("_")
        numbered = f"{stem}1{bar}{suffix} .. {stem}n{bar}{suffix}"
        carried = operator.carries(name)
        shape = "one for all" if carried else f"of {first}'s shape"
        outputs.append((name if carried else numbered, f"as {like}, {shape}"))
    yield from section("Outputs", outputs)
    yield from section("Attributes", map(_attribute_row, operator.attributes))
    mistakes = (
        (mistake.name, Text(", ".join(mistake.seen_in), style="dim"))
        for mistake in operator.known_mistakes
    )
    yield from section("Known mistakes", mistakes)


def _attribute_row(attribute: Attribute) -> tuple[str, ...]:
    kind = " or ".join(attribute.choices) or "float"
    if attribute.each:
        kind = "floats, one for all or one for each"
    if attribute.limits:
        kind += f", {attribute.limits[0]:g} to {attribute.limits[1]:g}"
    default = "required"
    if attribute.default is not None:
        default = f"default {short_element(attribute.default, 'float32')}"
    return attribute.name, kind, default


def mistake_page(operator: Operator, mistake: Implementation) -> Iterable[RenderableType]:
    """Yield the page of a known mistake: effect, occurrences and a distinguishing input."""
    yield Text.assemble((operator.name, "bold"), f"  {mistake.name}")
    yield Text(mistake.about)
    if mistake.seen_in:
        yield Text(f"seen in {', '.join(mistake.seen_in)}", style="dim")
    if difference := formula_difference(operator.formula, mistake.change(operator.formula)):
        yield heading("Formula")
        styles = {"-": "red", "+": "green", " ": ""}
        for line in difference:
            yield Padding(Text(line, style=styles[line[0]]), (0, 2))
    example = distinguishing_input(operator, mistake)
    if example is None:
        yield Text("no distinguishing input is known")
        return
    attributes, inputs = example
    arrays = {
        name: np.asarray(value, None if isinstance(value, str) else np.float32)
        for name, value in attributes.items()
    }
    yield from section("A distinguishing input", _values({**inputs, **arrays}))
    omitted = frozenset(attribute.name for attribute in operator.attributes) - set(attributes)
    complete = complete_attributes(operator, attributes)
    call = bind(operator, list(inputs.values()), complete, omitted=omitted)
    names = operator.output_names(len(call.groups))
    for title, outputs in (("Correct", evaluate(call)), ("With the mistake", mistake.run(call))):
        rows = _values(dict(zip(names, outputs, strict=False)))
        yield from section(title, rows if outputs else [("none: it rejects this input",)])


def case_page(case: Case, problem: Problem) -> Iterable[RenderableType]:
    """Yield a case's page: description, location, nodes, inputs, expected outputs, tolerances."""
    yield Text(printable(case.id), style="bold")
    for label, text in (("", case.about), ("source: ", case.source), ("", str(case.location))):
        if text:
            yield Text(f"{label}{printable(text)}", style="" if text is case.about else "dim")
    yield from section("Model", map(node_text, problem.model.graph.node))
    yield from section("Inputs", _values(problem.inputs))
    if problem.trajectory is not None:
        yield from section("Steps", [(_steps(problem.trajectory),)])
    expected: Iterable[tuple[str, ...]] = [("not stored: each run computes them",)]
    if problem.must_reject:
        expected = [("none: a correct backend rejects this model",)]
    elif problem.stored is not None:
        expected = _values(problem.stored)
    yield from section("Expected outputs", expected)
    tolerances = {"all outputs": problem.tolerance, **problem.output_tolerances}
    rows = [(name, str(tolerance)) for name, tolerance in tolerances.items() if tolerance]
    yield from section("Tolerance", rows)


def _values(values: Mapping[str, Value]) -> Iterable[tuple[str, ...]]:
    return [
        (name, describe(value), printable(input_text(value, _MAX_SHOWN_ELEMENTS)))
        for name, value in values.items()
    ]


def _steps(trajectory: Trajectory) -> str:
    """Describe a trajectory: the number of steps, and where the inputs of a step come from."""
    inputs = [
        *(f"{output} becomes {name}" for output, name in trajectory.feedback.items()),
        *(f"{name} counts up" for name in sorted(trajectory.counted)),
        *(f"{name} is given for each" for name in trajectory.series),
        *(f"{name} is computed from {rule.of}" for name, rule in trajectory.derived.items()),
    ]
    judged = len(trajectory.recorded)
    return f"{trajectory.count} steps, {judged} of them judged: {', '.join(inputs)}"


def heading(text: str) -> Padding:
    """Return the heading of a section, preceded by an empty line."""
    return Padding(Text(text, style="bold"), (1, 0, 0, 0))


def section(title: str, rows: Iterable[Sequence[Text | str]]) -> Iterable[RenderableType]:
    """Yield a heading and a table without borders; for no rows, yield nothing."""
    table = WordTable(box=None, show_header=False, padding=(0, 2), pad_edge=True)
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(printable(cell)) for cell in row))
    for column in table.columns:
        column.overflow = "fold"
    if table.row_count:
        yield heading(title)
        yield table


_STYLES = {RuleOutcome.PASS: "green", RuleOutcome.FAIL: "bold red", RuleOutcome.NOT_SHOWN: "dim"}
_VERDICT_WIDTH = max(map(len, RuleOutcome))


def rule_line(finding: RuleResult) -> RenderableType:
    """Return a line for a rule of the backend protocol, with its verdict and finding.

    If the rule is violated, the line also states the remedy, but not the option to add to the
    backend's specification.
    """
    table = Table.grid(padding=(0, 2))
    table.add_column(width=_VERDICT_WIDTH)
    table.add_column(overflow="fold")
    details = Text(printable(finding.observed), style="dim")
    table.add_row(
        Text(finding.verdict, style=_STYLES[finding.verdict]),
        Group(Text(finding.rule.name), Padding(details, (0, 0, 0, 2))),
    )
    if finding.verdict is RuleOutcome.FAIL:
        table.add_row("", Padding(Text(f"to do: {printable(finding.remedy)}"), (0, 0, 0, 2)))
    return table


def rule_summary(findings: Sequence[RuleResult]) -> Text:
    """Return the counts of rules by outcome in words, such as ``12 pass, 1 fail``."""
    counts = counted(RuleOutcome, (finding.verdict for finding in findings))
    return Text(in_words(counts), style="bold red" if RuleOutcome.FAIL in counts else "bold green")
