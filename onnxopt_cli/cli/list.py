"""``onnxopt list``."""

from __future__ import annotations

import click

from onnxopt_cli.cli.shared_options import (
    case_options,
    profile_option,
    targets_argument,
)


@click.command("list")
@targets_argument
@case_options
@profile_option
def command(
    targets: tuple[str, ...],
    patterns: tuple[str, ...],
    operators: tuple[str, ...],
    tags: tuple[str, ...],
    without: tuple[str, ...],
) -> int:
    """List cases: id, operator and what each asks.

    Without a target the cases are those in ./cases.

    \b
    onnxopt list onnx-node -k '*adam*' -k '*adagrad*'
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnxopt_cli.cases.collect import collect
    from onnxopt_cli.cli.console import note, stdout, tell_problems
    from onnxopt_cli.core.text import printable
    from onnxopt_cli.errors import NothingSelected
    from onnxopt_cli.report.listing import case_table
    from onnxopt_cli.run.select import Selection

    collection = collect(targets)
    chosen, _ = Selection(patterns, operators, tags, without).choose(collection.cases, note)
    tell_problems(collection.problems)
    if not chosen and not collection.problems:
        raise NothingSelected(f"none of {len(collection.cases)} cases is selected")
    console = stdout()
    if console.is_terminal:
        console.print(case_table(chosen))
    else:
        # One id a line, for other programs.
        for case in chosen:
            click.echo(printable(case.id))
    return 2 if collection.problems else 0
