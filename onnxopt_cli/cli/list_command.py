"""``onnxopt list``."""

from __future__ import annotations

from typing import Any

import click

from onnxopt_cli.cli.shared_options import options_of, targets_argument
from onnxopt_cli.config.run_config import Filters


@click.command("list")
@targets_argument
@options_of(Filters)
def command(targets: tuple[str, ...], **filters: Any) -> int:
    """List cases: id, operator and description.

    Without a target the cases are those in ./cases or, without that folder, our suites.

    \b
    onnxopt list onnx-node -k '*adam*' -k '*adagrad*'
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnxopt_cli import _api as api
    from onnxopt_cli.cli.console import (
        note,
        stdout,
        tell_problems,
        ticking,
    )
    from onnxopt_cli.core.text import printable
    from onnxopt_cli.errors import Fault
    from onnxopt_cli.report.listing import case_table

    problems: list[Fault] = []
    chosen = api.load_cases(
        *targets, **filters, invalid=problems.extend, tell=note, telling=ticking
    )
    tell_problems(problems)
    console = stdout()
    if console.is_terminal:
        console.print(case_table(chosen))
    else:
        # One id a line, for other programs.
        for case in chosen:
            click.echo(printable(case.id))
    return 2 if problems else 0
