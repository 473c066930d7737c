"""``onnxopt backends``."""

from __future__ import annotations

import click


@click.command("backends")
def command() -> None:
    """List the backends that can be tested, with versions.

    \b
    onnxopt backends
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnxopt_cli.backends.resolve import known_backends
    from onnxopt_cli.cli.console import stdout
    from onnxopt_cli.report.listing import backend_table

    stdout().print(backend_table(known_backends()))
