"""The commands ``onnxopt show`` and ``onnxopt list``."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click

from onnxopt_cli.cli.completion import complete_subject
from onnxopt_cli.cli.console import note, show_progress, stdout, tell_problems
from onnxopt_cli.cli.shared_options import option, options_of, targets_argument
from onnxopt_cli.config.run_config import Filters
from onnxopt_cli.core.text import nearest, printable
from onnxopt_cli.errors import Fault, InvalidCase, UsageError

if TYPE_CHECKING:
    from onnxopt_cli.interpret.implementation import Implementation
    from onnxopt_cli.operators.operator import Operator


@click.command("show")
@click.argument(
    "names",
    metavar="OPERATOR|CASE...",
    nargs=-1,
    required=True,
    shell_complete=complete_subject,
)
@option(
    "--mistake NAME",
    "Show a known mistake of the operator: the change, implementations that have it, an input that "
    "exposes it. If given several times, the mistakes are combined.",
    "mistakes",
    multiple=True,
)
def command(names: tuple[str, ...], mistakes: tuple[str, ...]) -> None:
    """Show an operator, a known mistake of an operator, or a case.

    For an operator with a formula, the command shows the formula, the inputs, the attributes and
    the known mistakes. For any other operator of ONNX, it shows the signature, the attributes by
    version, how outputs are judged, and the mutants.

    \b
    onnxopt show Adam
    onnxopt show Conv
    onnxopt show Adam --mistake "epsilon inside the square root"
    onnxopt show spec/adam/adam_multiple
    onnxopt show mine.yaml
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnx.defs import get_all_schemas

    from onnxopt_cli.operators.registry import registry
    from onnxopt_cli.report.listing import case_page, mistake_page, operator_page
    from onnxopt_cli.report.node_operator_page import (
        named_schemas,
        node_mistakes_page,
        node_operator_page,
    )
    from onnxopt_cli.suites.collect import collect

    console = stdout()
    for name in names:
        if operator := registry().named(name):
            page = mistake_page(operator, _mistake(operator, mistakes)) if mistakes else None
            console.print_page(page or operator_page(operator))
            continue
        if schemas := named_schemas(name):
            page = node_mistakes_page(schemas, mistakes) if mistakes else None
            console.print_page(page or node_operator_page(schemas))
            continue
        if mistakes:
            raise UsageError(
                f"{printable(name)} is not an operator with known mistakes",
                hint=f"operators are {', '.join(op.name for op in registry().operators)}",
            )
        try:
            collection = collect([name], open_progress=show_progress)
        except UsageError as error:
            if "/" in name:
                raise
            names_of_operators = [operator.name for operator in registry().operators]
            fallback = f"operators are {', '.join(names_of_operators)}; {error.hint}"
            candidates = [*names_of_operators, *(schema.name for schema in get_all_schemas())]
            hint = nearest(name, candidates, fallback)
            raise UsageError(error.message, hint=hint) from error
        if collection.problems:
            raise InvalidCase(collection.problems)
        for case in collection.cases:
            console.print_page(case_page(case, case.load()))
            console.print()


def _mistake(operator: Operator, names: tuple[str, ...]) -> Implementation:
    """Return the implementation that has all named mistakes.

    Raises:
        UsageError: if a mistake is unknown, or the mistakes cannot be combined.
    """
    from onnxopt_cli.mutation.known_mistakes import all_known_mistakes, named

    by_lower_name = {mistake.name.lower(): mistake.name for mistake in all_known_mistakes(operator)}
    for name in names:
        if name.lower() not in by_lower_name:
            similar = [lower for lower in by_lower_name if name.lower() in lower][:3]
            similar = similar or get_close_matches(name.lower(), by_lower_name, n=3, cutoff=0.4)
            suggestions = ", ".join(repr(by_lower_name[lower]) for lower in similar)
            hint = f"did you mean {suggestions}?" if similar else None
            raise UsageError(
                f"{operator.name} has no known mistake {printable(repr(name))}",
                hint=hint or f"onnxopt show {operator.name} lists them",
            )
    implementation = named(operator, *(by_lower_name[name.lower()] for name in names))
    if implementation is None:
        raise UsageError("these mistakes cannot be combined: both wrap the formula")
    return implementation


@click.command("list")
@targets_argument
@options_of(Filters)
def list_command(targets: tuple[str, ...], **filters: Any) -> int:
    """List cases: id, operator and description.

    Without a target, the cases come from ./cases or, without this folder, from the suites of
    onnxopt.

    \b
    onnxopt list onnx-node -k '*adam*' -k '*adagrad*'
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnxopt_cli import _api as api
    from onnxopt_cli.report.listing import case_table

    problems: list[Fault] = []
    chosen = api.load_cases(
        *targets, **filters, invalid=problems.extend, tell=note, open_progress=show_progress
    )
    tell_problems(problems)
    console = stdout()
    if console.is_terminal:
        console.print(case_table(chosen))
    else:
        # For other programs that read a pipe, print one id per line.
        for case in chosen:
            click.echo(printable(case.id))
    return 2 if problems else 0
