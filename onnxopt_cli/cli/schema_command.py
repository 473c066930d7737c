"""``onnxopt schema``."""

from __future__ import annotations

import json

import click


@click.command("schema")
@click.argument("kind", type=click.Choice(["case", "expect", "log"]), default="case")
def command(kind: str) -> None:
    """Print the JSON Schema of case files, expectation files or logs, for editors and tools.

    \b
    onnxopt schema > onnxopt.schema.json
    onnxopt schema expect > onnxopt-expect.schema.json
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnxopt_cli.cases.yaml.yaml_syntax import packaged_schema

    packages = {"case": "cases.yaml", "expect": "run.expectations", "log": "run.log"}
    click.echo(json.dumps(packaged_schema(f"onnxopt_cli.{packages[kind]}"), indent=2))
