"""``onnxopt show``."""

from __future__ import annotations

from difflib import get_close_matches

import click

from onnxopt_cli.cli.completion import complete_subject


@click.command("show")
@click.argument(
    "names",
    metavar="OPERATOR|CASE...",
    nargs=-1,
    required=True,
    shell_complete=complete_subject,
)
def command(names: tuple[str, ...]) -> None:
    """Show an operator (formula, inputs, attributes) or a case.

    \b
    onnxopt show Adam
    onnxopt show spec/adam/adam_multiple
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnxopt_cli.cases.collect import collect
    from onnxopt_cli.cli.console import stdout
    from onnxopt_cli.errors import InvalidCase, UsageError
    from onnxopt_cli.operators import OPERATORS, operator_named
    from onnxopt_cli.report.listing import case_page, operator_page

    console = stdout()
    for name in names:
        operator = operator_named(name)
        if operator is not None:
            console.print(*operator_page(operator), sep="\n")
            continue
        try:
            collection = collect([name])
        except UsageError as error:
            known = {operator.name.lower(): operator.name for operator in OPERATORS}
            near = get_close_matches(name.lower(), known, n=1)
            listed = f"operators are {', '.join(known.values())}; {error.hint}"
            hint = f"did you mean {known[near[0]]}?" if near else listed
            raise UsageError(error.message, hint=hint) from error
        if collection.problems:
            raise InvalidCase(collection.problems)
        for case in collection.cases:
            console.print(*case_page(case, case.read()), sep="\n")
            console.print()
