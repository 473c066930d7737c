"""``onnxopt schema``."""

from __future__ import annotations

import json

import click


@click.command("schema")
def command() -> None:
    """Print the JSON Schema of case files, for editors and other tools.

    \b
    onnxopt schema > onnxopt.schema.json
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnxopt_cli.cases.case_schema import case_schema

    click.echo(json.dumps(case_schema(), indent=2))
