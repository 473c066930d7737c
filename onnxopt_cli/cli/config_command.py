"""``onnxopt config`` and ``onnxopt schema``."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.text import Text

from onnxopt_cli.cases.yaml.yaml_syntax import packaged_schema
from onnxopt_cli.cli.console import stdout
from onnxopt_cli.cli.shared_options import option
from onnxopt_cli.core.text import printable


@click.command("config")
@click.pass_context
@option("--profile NAME", "Also show the settings of this profile.")
def command(context: click.Context, profile: str | None) -> int:
    """Show the settings of the configuration file.

    \b
    onnxopt config --profile ci
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnxopt_cli.cli.configured_defaults import (
        apply_configuration,
        configuration_here,
        configured_commands,
    )
    from onnxopt_cli.report.terminal import plain_table

    configuration = configuration_here(context, profile)
    if configuration is None:
        stdout().print_wrapped("no configuration file found: the defaults of --help apply")
        return 0
    for configured in configured_commands(context):
        with click.Context(configured, context.parent) as inner:
            # This call raises an error if an option does not accept its value.
            apply_configuration(inner, configuration, profile)
    chosen = configuration.chosen(profile)
    for name, text in configuration.backends.items():
        chosen[f"-b {name}"] = text, configuration.place("backends", name)
    rows = [
        (name, ", ".join(map(str, value if isinstance(value, list) else [value])), Path(place).name)
        for name, (value, place) in chosen.items()
    ]
    stdout().print_wrapped(Text(f"configuration: {printable(str(configuration.path))}", "bold"))
    stdout().print(plain_table(rows, ("option", "value", "from")))
    if other_profiles := [name for name in configuration.profiles if name != profile]:
        names = printable(", ".join(other_profiles))
        stdout().print_wrapped(Text(f"other profiles: {names}", "dim"))
    return 0


@click.command("schema")
@click.argument("kind", type=click.Choice(["case", "expect", "log"]), default="case")
def schema_command(kind: str) -> None:
    """Print the JSON Schema of case files, expectation files or logs, for editors and tools.

    \b
    onnxopt schema > onnxopt.schema.json
    onnxopt schema expect > onnxopt-expect.schema.json
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    packages = {"case": "cases.yaml", "expect": "run.expectations", "log": "run.log"}
    click.echo(json.dumps(packaged_schema(f"onnxopt_cli.{packages[kind]}"), indent=2))
