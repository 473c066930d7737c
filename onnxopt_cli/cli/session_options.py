"""The options of ``onnxopt run`` about logs, expectations, shards and running again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from onnxopt_cli.cli.completion import complete_path


def session_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command."""
    options = [
        click.option(
            "--expect",
            multiple=True,
            metavar="FILE",
            shell_complete=complete_path,
            help="What is expected to fail; a later file precedes an earlier one.",
        ),
        click.option(
            "--update-expect",
            metavar="FILE",
            shell_complete=complete_path,
            help="Let an expectation file say what this run shows; it also counts as --expect.",
        ),
        click.option(
            "--rerun",
            type=click.IntRange(min=1, max=1000),
            metavar="N",
            help="Run what does not conform N times more, to tell flaky from failing.",
        ),
        click.option("--shard", metavar="I/N", help="Only part I of N, by a hash of the id."),
        click.option(
            "--log",
            metavar="FILE",
            shell_complete=complete_path,
            help="Write each result to a log when it is there.",
        ),
        click.option(
            "--resume",
            metavar="LOG",
            shell_complete=complete_path,
            help="Go on with a log; run only what it lacks.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command
