"""``onnxopt explain``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click


@click.command("explain")
@click.argument(
    "saved", metavar="LOG|REPORT.json|-", type=click.Path(path_type=Path, allow_dash=True)
)
def command(saved: Path) -> int:
    """Say which known mistake reproduces the failures of a saved run.

    The cases are read again from where they stood; what the backend returned is in the file.

    \b
    onnxopt run cases/ -b onnx-reference --no-explain --log run.jsonl
    onnxopt explain run.jsonl

    Exits with 1 if a failure is left unexplained.
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnxopt_cli.cases.collect import find_again
    from onnxopt_cli.cli.console import stderr, stdout
    from onnxopt_cli.report.saved import read_saved_run
    from onnxopt_cli.report.terminal import explanation_lines
    from onnxopt_cli.run.explain import can_be_explained, explain

    if str(saved) == "-":
        with tempfile.NamedTemporaryFile(suffix=".jsonl") as copy:
            copy.write(sys.stdin.buffer.read())
            copy.flush()
            record = read_saved_run(Path(copy.name))
    else:
        record = read_saved_run(saved)
    if not any(map(can_be_explained, record.results)):
        click.echo("no failing case to explain")
        return 0
    with stderr().status("looking for a known mistake"):
        places = {it.case: it.location for it in record.results}
        explanations = explain(record.results, find_again(places))
    if not explanations:
        click.echo(
            "nothing to say: each failure is an error that no known mistake makes, or of a model "
            "that is not one node of an operator with a formula"
        )
    for line in explanation_lines(explanations):
        stdout().print(line, soft_wrap=True)
    return int(not explanations or any(not it.deviations for it in explanations))
