"""``onnxopt config``."""

from __future__ import annotations

from pathlib import Path

import click

from onnxopt_cli.cli.shared_options import configuration_file, configured_commands


@click.command("config")
@click.option("--profile", default="", metavar="NAME", help="Also what this profile says.")
def command(profile: str) -> int:
    """Show what the configuration file says, and where.

    \b
    onnxopt config --profile ci
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from rich.table import Table
    from rich.text import Text

    from onnxopt_cli.cli.configuration import apply_configuration, read_configuration
    from onnxopt_cli.cli.console import stdout
    from onnxopt_cli.core.text import printable

    path = configuration_file()
    if path is None:
        stdout().print("there is no configuration file: everything is as --help says")
        return 0
    commands = configured_commands()
    found = read_configuration(path, commands)
    for each in commands:
        with click.Context(each) as context:
            # Says which values are not what the options take.
            apply_configuration(context, path, profile, commands)
    rows = [(name, value, place) for name, (value, place) in found.chosen(profile).items()]
    rows += [
        (f"-b {name}", text, found.place("backends", name)) for name, text in found.backends.items()
    ]
    table = Table("option", "value", "from", box=None, pad_edge=False)
    for option, value, place in rows:
        row = (option, str(value), Path(place).name)
        table.add_row(*(Text(printable(it), overflow="fold") for it in row))
    stdout().print(Text(f"configuration: {printable(str(found.path))}", "bold"))
    stdout().print(table)
    others = [name for name in found.profiles if name != profile]
    if others:
        stdout().print(Text(f"other profiles: {printable(', '.join(others))}", "dim"))
    return 0
