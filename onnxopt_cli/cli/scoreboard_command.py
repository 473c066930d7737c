"""``onnxopt scoreboard``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from onnxopt_cli.cli.console import note, show_progress, stdout, tell_problems
from onnxopt_cli.cli.environment import silence_output
from onnxopt_cli.cli.shared_options import PATH, opened_cluster, option, option_of, options_of
from onnxopt_cli.config.run_config import (
    EXPLAIN_TIME_DEFAULTS,
    ClusterConfig,
    Execution,
    RunConfig,
)
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import BackendUnavailable, InvalidCase, UsageError
from onnxopt_cli.workers.interruption import interruptible


@click.command("scoreboard")
@click.argument("file", metavar="SCOREBOARD.toml", type=PATH)
@option(
    "--tier",
    "Override the tier of the file: full runs all cases, and quick runs about 470 cases that "
    "cover every operator.",
    type=click.Choice(["full", "quick"]),
    show_default=False,
)
@option(
    "--no-run", "Write the site from the existing results, without running cases.", is_flag=True
)
@options_of(Execution)
@option_of(
    RunConfig,
    "explain_time",
    "Limit of each search for causes in each run; 0 for no search. Counts the processor time of "
    f"the search and the time of the backends.  {EXPLAIN_TIME_DEFAULTS}",
)
@options_of(ClusterConfig)
def command(
    file: Path, tier: str | None, *, no_run: bool, explain_time: float | None, **options: Any
) -> int:
    """Run several backends and write a site that compares them.

    The file names backends and suites. The command runs only cases without a result, and keeps the
    results as logs, by version of the backend and date. After an interruption, the same command
    runs the remaining cases.

    \b
    onnxopt scoreboard SCOREBOARD.toml
    onnxopt scoreboard SCOREBOARD.toml --tier quick -j auto

    Exits with 0 if the site has a result for every case, whether the case passes or not. Exits with
    4 if a backend could not be started; the site marks this backend.
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnxopt_cli.scoreboard.measure import Conditions, measure, operator_rows, tier_cases
    from onnxopt_cli.scoreboard.result_store import make_folder
    from onnxopt_cli.scoreboard.score_model import read_scores
    from onnxopt_cli.scoreboard.scoreboard_file import Tier, read_scoreboard_file
    from onnxopt_cli.scoreboard.site import check_available, write_site
    from onnxopt_cli.suites.collect import collect

    scoreboard = read_scoreboard_file(file)
    check_available(scoreboard.site)
    if not no_run:
        make_folder(scoreboard.results)
    silence_output()
    execution = Execution.of(options)
    machines = ClusterConfig.of(options)
    try:
        collection = collect(
            scoreboard.suites, execution.limits.memory, open_progress=show_progress
        )
    except UsageError as error:
        raise UsageError(f"{scoreboard.suites_place}: {error.message}", hint=error.hint) from error
    tell_problems(collection.problems)
    if not collection.cases:
        raise InvalidCase(collection.problems)
    rows = operator_rows(collection.cases)
    chosen = tier_cases(collection.cases, Tier(tier or scoreboard.tier), rows)
    interrupted = 0
    versions: dict[tuple[str, str], str] = {}
    if not no_run:
        with (
            interruptible() as interruption,
            opened_cluster(machines, interruption) as cluster,
        ):
            conditions = Conditions(
                execution, machines, interruption, cluster, explain_time, note, show_progress
            )
            versions = measure(scoreboard, collection.cases, chosen, conditions)
            interrupted = interruption.exit_code
    if interrupted:
        note("interrupted: the site is not written; the same command runs the remaining cases")
        return interrupted
    scores = read_scores(scoreboard, collection.cases, chosen, rows, versions, note)
    write_site(scoreboard, scores)
    console = stdout()
    for column in scores.columns:
        console.print_wrapped(f"{printable(column.label)}: {scores.total(column).words}")
    console.print_wrapped(f"site: {printable(str(scoreboard.site / 'index.html'))}")
    if collection.problems:
        return 2
    return (
        BackendUnavailable.exit_code
        if any(column.failed_starts for column in scores.columns)
        else 0
    )
