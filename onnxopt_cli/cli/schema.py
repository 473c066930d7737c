"""``onnxopt schema``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click


@click.command("schema")
@click.argument("kind", type=click.Choice(["case", "expect", "log"]), default="case")
def command(kind: str) -> None:
    """Print the JSON Schema of case files, expectation files or logs, for editors and tools.

    \b
    onnxopt schema > onnxopt.schema.json
    onnxopt schema expect > onnxopt-expect.schema.json
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnxopt_cli.cases.yaml.schema import case_schema
    from onnxopt_cli.expectations.file import expect_schema
    from onnxopt_cli.log.rules import log_schema

    schemas: dict[str, Callable[[], dict[str, Any]]]
    schemas = {"case": case_schema, "expect": expect_schema, "log": log_schema}
    click.echo(json.dumps(schemas[kind](), indent=2))
