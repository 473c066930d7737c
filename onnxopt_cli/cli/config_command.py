"""``onnxopt config``."""

from __future__ import annotations

from pathlib import Path

import click

from onnxopt_cli.cli.shared_options import option


@click.command("config")
@click.pass_context
@option("--profile NAME", "Also what this profile says.")
def command(context: click.Context, profile: str | None) -> int:
    """Show what the configuration file says, and where.

    \b
    onnxopt config --profile ci
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from rich.text import Text

    from onnxopt_cli.cli.configured_defaults import (
        apply_configuration,
        configuration_here,
        configured_commands,
    )
    from onnxopt_cli.cli.console import stdout
    from onnxopt_cli.core.text import printable
    from onnxopt_cli.report.terminal import plain_table

    found = configuration_here(context, profile)
    if found is None:
        stdout().print("there is no configuration file: everything is as --help says")
        return 0
    for each in configured_commands(context):
        with click.Context(each, context.parent) as inner:
            # Says which values are not what the options take.
            apply_configuration(inner, found, profile)
    chosen = found.chosen(profile)
    for name, text in found.backends.items():
        chosen[f"-b {name}"] = text, found.place("backends", name)
    rows = [
        (name, ", ".join(map(str, value if isinstance(value, list) else [value])), Path(place).name)
        for name, (value, place) in chosen.items()
    ]
    stdout().print(Text(f"configuration: {printable(str(found.path))}", "bold"))
    stdout().print(plain_table(rows, ("option", "value", "from")))
    if others := [name for name in found.profiles if name != profile]:
        stdout().print(Text(f"other profiles: {printable(', '.join(others))}", "dim"))
    return 0
