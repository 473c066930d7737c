"""``onnxopt show``."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

from onnxopt_cli.cli.completion import complete_subject
from onnxopt_cli.cli.shared_options import option

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
    "Show a known mistake of the operator: what it changes, who has it, an input that shows "
    "it. Given more than once: all at once.",
    "mistakes",
    multiple=True,
)
def command(names: tuple[str, ...], mistakes: tuple[str, ...]) -> None:
    """Show an operator (formula, inputs, attributes), a mistake in one, or a case.

    \b
    onnxopt show Adam
    onnxopt show Adam --mistake "epsilon inside the square root"
    onnxopt show spec/adam/adam_multiple
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnxopt_cli.cli.console import stdout, ticking
    from onnxopt_cli.core.text import nearest, printable
    from onnxopt_cli.errors import InvalidCase, UsageError
    from onnxopt_cli.operators.registry import registry
    from onnxopt_cli.report.listing import (
        case_page,
        mistake_page,
        operator_page,
    )
    from onnxopt_cli.suites.collect import collect

    console = stdout()
    for name in names:
        if operator := registry().named(name):
            page = mistake_page(operator, _mistake(operator, mistakes)) if mistakes else None
            console.print(*(page or operator_page(operator)), sep="\n")
            continue
        if mistakes:
            raise UsageError(
                f"{printable(name)} is not an operator with known mistakes",
                hint=f"operators are {', '.join(it.name for it in registry().operators)}",
            )
        try:
            collection = collect([name], telling=ticking)
        except UsageError as error:
            known = [operator.name for operator in registry().operators]
            hint = nearest(name, known, f"operators are {', '.join(known)}; {error.hint}")
            raise UsageError(error.message, hint=hint) from error
        if collection.problems:
            raise InvalidCase(collection.problems)
        for case in collection.cases:
            console.print(*case_page(case, case.load()), sep="\n")
            console.print()


def _mistake(operator: Operator, names: tuple[str, ...]) -> Implementation:
    """Return the implementation that has all mistakes of these names.

    Raises:
        UsageError: if there is no such mistake, or they do not go together.
    """
    from onnxopt_cli.core.text import printable
    from onnxopt_cli.errors import UsageError
    from onnxopt_cli.mutation.known_mistakes import all_known_mistakes, named

    known = {it.name.lower(): it.name for it in all_known_mistakes(operator)}
    for name in names:
        if name.lower() not in known:
            near = [it for it in known if name.lower() in it][:3]
            near = near or get_close_matches(name.lower(), known, n=3, cutoff=0.4)
            hint = f"did you mean {', '.join(repr(known[it]) for it in near)}?" if near else None
            raise UsageError(
                f"{operator.name} has no known mistake {printable(repr(name))}",
                hint=hint or f"onnxopt show {operator.name} lists them",
            )
    found = named(operator, *(known[name.lower()] for name in names))
    if found is None:
        raise UsageError("these mistakes do not go together: both are around the formula")
    return found
