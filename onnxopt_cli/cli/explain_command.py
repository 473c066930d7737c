"""``onnxopt explain``."""

from __future__ import annotations

from pathlib import Path

import click

from onnxopt_cli.cli.shared_options import option_of
from onnxopt_cli.config.run_config import Judging, RunConfig


@click.command("explain")
@click.argument(
    "saved", metavar="LOG|REPORT.json|-", type=click.Path(path_type=Path, allow_dash=True)
)
@option_of(
    RunConfig,
    "explain_time",
    "Time limit of the search for known mistakes.  "
    "[default: a fifth of the saved run's time, 10 at least]",
)
def command(saved: Path, explain_time: float | None) -> int:
    """Say which known mistake reproduces the failures of a saved run.

    The cases are read again from where they stood; what the backend returned is in the file.

    \b
    onnxopt run cases/ -b onnx-reference --no-explain --log run.jsonl
    onnxopt explain run.jsonl

    Exits with 1 if a failure is left unexplained.
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnxopt_cli import _api as api
    from onnxopt_cli.cli.console import stderr, stdout
    from onnxopt_cli.report.saved_run import read_saved_run
    from onnxopt_cli.report.terminal import explanation_lines

    record = read_saved_run(saved)
    if not any(it.failing for it in record.results):
        click.echo("no failing case to explain")
        return 0
    with stderr().status("looking for known mistakes") as status:
        explanations = api.explain(
            record.results,
            judging=Judging.from_json(record.options),
            seconds=explain_time,
            progress=status.update,
        )
    if not explanations:
        click.echo(
            "nothing to say: only wrong values of a model that is one node of an operator with a "
            "formula can be explained, and none were kept"
        )
    for line in explanation_lines(explanations):
        stdout().print(line, soft_wrap=True)
    explained = {
        (it.backend, case) for it in explanations if it.known_mistakes for case in it.cases
    }
    return int(any(it.failing and (it.backend, it.case) not in explained for it in record.results))
