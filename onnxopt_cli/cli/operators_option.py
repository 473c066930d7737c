"""The option ``--operators``, which all commands have that know operators."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click


def with_operators_option(command: click.Command) -> click.Command:
    """Give a command the option, or each command of a group."""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            with_operators_option(inner)
    elif not any(parameter.name == "operator_files" for parameter in command.params):
        command.params.append(
            click.Option(
                ["--operators", "operator_files"],
                multiple=True,
                metavar="FILE",
                type=click.Path(path_type=Path),
                expose_value=False,
                # Other options are checked against what there is.
                is_eager=True,
                callback=_use,
                help="Also know the operators of this Python file. Its code runs. Again for more.",
            )
        )
    return command


def _use(_context: click.Context, _parameter: click.Parameter, files: Sequence[Path]) -> None:
    if not files:
        return
    from onnxopt_cli.errors import UsageError
    from onnxopt_cli.operators import VARIABLE, add_operators

    added = [operator for path in files for operator in add_operators(path)]
    # For the processes that this one starts.
    given = [os.environ.get(VARIABLE, ""), *(str(path.resolve()) for path in files)]
    os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys(filter(None, given)))
    from onnxopt_cli.cases.suites.author import unreadable

    for operator in added:
        wrong = unreadable(operator)
        if wrong:
            raise UsageError(wrong, hint="docs/operators.md lists what a formula may use")
