"""``onnxopt explain``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from onnxopt_cli.cli.console import note, show_step, stdout
from onnxopt_cli.cli.shared_options import option_of
from onnxopt_cli.config.run_config import EXPLAIN_TIME_DEFAULTS, Judging, ModelInputs, RunConfig
from onnxopt_cli.core.text import printable, some_of
from onnxopt_cli.errors import UsageError

# Largest number of operators without a cause, or of changed files, that are named.
_MAX_NAMES = 20


@click.command("explain")
@click.argument(
    "saved", metavar="LOG|REPORT.json|-", type=click.Path(path_type=Path, allow_dash=True)
)
@option_of(
    RunConfig,
    "explain_time",
    "Limit of each search: for known mistakes, for other causes, and for causes in operators "
    f"without a formula. Counts processor time.  {EXPLAIN_TIME_DEFAULTS}",
)
def command(saved: Path, explain_time: float | None) -> int:
    """Find the causes of the failures of a saved run.

    The cases are loaded again from their files; the outputs of the backend are in the saved run.

    \b
    onnxopt run cases/ -b onnx-reference --no-explain --log run.jsonl
    onnxopt explain run.jsonl

    Exits with 1 if a failure is left unexplained, and with 2 if a file of the cases has changed
    since the run. Only a log shows such a change.
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnxopt_cli import _api as api
    from onnxopt_cli.core.result import OUTSIDE_IDS
    from onnxopt_cli.report.saved_run import read_saved_run
    from onnxopt_cli.report.terminal import explanation_lines
    from onnxopt_cli.suites.collect import find_again

    with show_step("reading the saved run"):
        record = read_saved_run(saved)
    failing_results = [result for result in record.results if result.failing]
    if not failing_results:
        click.echo("no failing case to explain")
        return 0
    with show_step("reading the cases"):
        cases = find_again(
            {result.case: result.location for result in record.results},
            ModelInputs.from_json(record.options),
        )
    if changed := api.changed_files(cases.values(), record.digests):
        raise UsageError(
            f"{printable(str(saved))} belongs to other cases; changed since the run: "
            f"{some_of(changed, _MAX_NAMES)}",
            hint="run the cases again",
        )
    places = {
        result.case: result.location for result in failing_results if result.case not in OUTSIDE_IDS
    }
    missing = [case for case in places if case not in cases]
    if missing:
        where = printable(str(places[missing[0]]))
        count = f"{len(missing)} of {len(places)} failing cases"
        note(f"{count} cannot be explained, because they are no longer found, such as {where}")
    with show_step("looking for known mistakes") as tell:
        explanations = api.explain(
            record.results,
            cases.values(),
            judging=Judging.from_json(record.options),
            seconds=explain_time,
            progress=tell,
        )
    if not explanations:
        stdout().print_wrapped(
            "no cause found: onnxopt explains failures of single nodes, and onnxopt explain, "
            "unlike onnxopt run, cannot try further inputs on the backend"
        )
    for line in explanation_lines(explanations):
        stdout().print_wrapped(line)
    examined = {(explanation.backend, explanation.operator) for explanation in explanations}
    counts = Counter(
        result.operators[0] if len({*result.operators}) == 1 else "other models"
        for result in failing_results
        if not examined & {(result.backend, operator) for operator in result.operators}
    )
    if explanations and counts:
        names = [f"{name} {count}" for name, count in counts.most_common()]
        stdout().print_wrapped(
            f"  no cause found for other failing cases: {some_of(names, _MAX_NAMES)}"
        )
    explained = {
        (explanation.backend, case)
        for explanation in explanations
        for cause in explanation.causes
        for case in cause.cases
    }
    failing = {(result.backend, result.case) for result in failing_results}
    return int(not failing <= explained)
