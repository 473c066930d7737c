"""``onnxopt report``."""

from __future__ import annotations

import gc
from functools import partial
from pathlib import Path

import click
from rich.text import Text

from onnxopt_cli.cli.console import show_step, stdout
from onnxopt_cli.cli.shared_options import (
    PATH,
    option,
    option_of,
)
from onnxopt_cli.config.run_config import RunConfig
from onnxopt_cli.core.files import require_writable_file
from onnxopt_cli.core.process_control import claimed
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import NothingSelected
from onnxopt_cli.workers.interruption import INTERRUPTED

_SAVED = "LOG|REPORT.json"


@click.group("report")
def command() -> None:
    """Write reports of saved runs, merge logs, compare runs.

    \b
    onnxopt run --log run.jsonl
    onnxopt report render run.jsonl --report html=run.html
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    if claimed():
        # A garbage collection would visit all results of a run. None of them is garbage before the
        # process ends.
        gc.disable()


@command.command("render")
@click.argument("saved", metavar=_SAVED, type=PATH)
@option_of(
    RunConfig,
    "reports",
    "Report to write, as for onnxopt run. May be given several times.",
    required=True,
)
@option(
    "--baseline LOG",
    "An earlier run, with which the Markdown and HTML reports compare this run.",
    type=PATH,
)
def render(saved: Path, reports: tuple[str, ...], baseline: Path | None) -> int:
    """Write reports of a saved run.

    The saved run is a JSON report, or the log of a finished or unfinished run.

    \b
    onnxopt report render run.jsonl --report json=run.json
    onnxopt report render run.jsonl --baseline before.jsonl --report html=run.html
    """  # noqa: D301 - likewise
    from onnxopt_cli.report.report_files import (
        parse_reports,
        require_apart,
        write_all,
        write_report,
    )
    from onnxopt_cli.report.saved_run import read_saved_run
    from onnxopt_cli.report.view.run_view import RunView

    requests = parse_reports(reports)
    require_apart(requests, [saved, *filter(None, [baseline])])
    with show_step("rendering the saved run"):
        view = RunView(read_saved_run(saved), read_saved_run(baseline) if baseline else None)
        write_all(partial(write_report, form, path, view) for form, path in requests)
    return 0


@command.command("merge")
@click.argument("logs", type=PATH, nargs=-1, required=True, metavar="LOG...")
@option("-o, --output OUT", "The log to write.", type=PATH, required=True)
def merge(logs: tuple[Path, ...], output: Path) -> int:
    """Merge the logs of all shards of a run and judge the run.

    \b
    onnxopt run --shard 1/2 --log 1.jsonl
    onnxopt run --shard 2/2 --log 2.jsonl
    onnxopt report merge 1.jsonl 2.jsonl -o run.jsonl

    Exits with the code that a run without shards would have returned. Exits with 2 if a shard is
    missing, duplicate or unfinished, or belongs to another run.
    """  # noqa: D301 - likewise
    from onnxopt_cli import _api as api
    from onnxopt_cli.report import terminal
    from onnxopt_cli.report.view.run_view import RunView

    require_writable_file("-o", output)
    with show_step("merging the logs"):
        record = api.merge_logs(logs, output)
    seconds = sum(result.seconds for result in record.results)
    for line in terminal.verdict(RunView(record), seconds):
        stdout().print_wrapped(line)
    return record.exit_code or 0


@command.command("diff")
@click.argument("old", metavar=_SAVED, type=PATH)
@click.argument("new", metavar=_SAVED, type=PATH)
@option("--old-again LOG", "A repeat of the old run.", type=PATH, multiple=True)
@option("--new-again LOG", "A repeat of the new run.", type=PATH, multiple=True)
@option("--accuracy", "Also exit with 1 if only the error of an output grew.", is_flag=True)
def diff(
    old: Path,
    new: Path,
    old_again: tuple[Path, ...],
    new_again: tuple[Path, ...],
    *,
    accuracy: bool,
) -> int:
    """Compare two runs: improvements and regressions.

    Compares outcomes. If the outcomes of a case are equal, the command compares the errors of every
    output, as a share of the tolerance and in ulp. Repeats of both runs show the natural variation
    of times; with repeats, the command also reports slower cases.

    \b
    onnxopt report diff before.jsonl after.jsonl

    Exits with 1 if an outcome got worse, or the new run did not finish.
    """  # noqa: D301 - likewise
    from onnxopt_cli.report.saved_run import read_saved_run
    from onnxopt_cli.report.terminal import comparison_table, comparison_verdict
    from onnxopt_cli.report.view.comparison import (
        compare_runs,
        have_common_results,
        is_regression,
        other_options,
        slower_cases,
    )
    from onnxopt_cli.report.view.verdict import run_verdict

    with show_step("reading the saved runs"):
        before = [*map(read_saved_run, (old, *old_again))]
        after = [*map(read_saved_run, (new, *new_again))]
    if not have_common_results(before[0], after[0]):
        files = " and ".join(printable(str(path)) for path in (old, new))
        raise NothingSelected(
            f"{files} have no case in common",
            hint="compare two runs of the same cases",
        )
    changes = [*compare_runs(before[0], after[0]), *slower_cases(before, after)]
    if difference := other_options(before[0], after[0]):
        stdout().print_wrapped(difference)
    if changes:
        stdout().print_page([comparison_table(changes), Text()])
    stdout().print_wrapped(comparison_verdict(changes))
    unfinished = after[0].exit_code is None or after[0].exit_code in INTERRUPTED
    if unfinished:
        word = run_verdict(after[0].exit_code, after[0].results)
        stdout().print_wrapped(f"{printable(str(new))} {word}; it is incomplete")
    return int(unfinished or any(is_regression(change, accuracy=accuracy) for change in changes))
