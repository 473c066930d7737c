"""``onnxopt run``."""

from __future__ import annotations

import gc
import math
from pathlib import Path
from typing import Any

import click

from onnxopt_cli.cli.completion import complete_report
from onnxopt_cli.cli.shared_options import (
    backend_option,
    case_options,
    explain_options,
    jobs_option,
    lower_option,
    profile_option,
    session_options,
    targets_argument,
    tolerance_option,
    worker_options,
)


class _Limit(click.ParamType[float]):
    """A finite number that is not negative."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{value!r} is no number", param, ctx)
        if not math.isfinite(number) or number < 0:
            self.fail(f"{value!r} must be finite and not negative", param, ctx)
        return number


#: The options of each part of the help; others stand at its end.
_PARTS = {
    "Which cases": ("patterns", "operators", "tags", "without", "lf", "ff", "shard"),
    "Backends": ("backends", "lower", "isolation", "timeout", "startup_timeout", "memory", "jobs"),
    "Judging": ("rule", "rtol", "atol", "ulp", "budget", "signed_zeros"),
    "What is expected": ("expect", "update_expect"),
    "Stopping and going on": ("max_fail", "rerun", "log", "resume"),
    "What is shown and written": (
        "verbose", "quiet", "durations", "explain", "explain_time", "reports", "artifacts",
    ),
}  # fmt: skip


class _Parts(click.Command):
    """A command whose help lists its options in parts."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options; see click."""
        part_of = {name: part for part, names in _PARTS.items() for name in names}
        rows: dict[str, list[tuple[str, str]]] = {part: [] for part in [*_PARTS, "Others"]}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if row is not None:
                rows[part_of.get(parameter.name or "", "Others")].append(row)
        for part, mine in rows.items():
            if mine:
                with formatter.section(part):
                    formatter.write_dl(mine)


@click.command("run", cls=_Parts)
@click.pass_context
@targets_argument
@backend_option(
    "backends",
    multiple=True,
    default=("numpy",),
    help="What to test: numpy, onnxruntime, onnx-reference, python:MODULE:ATTRIBUTE, ... "
    "May be given several times.",
)
@case_options
@tolerance_option
@click.option("--rtol", type=_Limit(), help="Judge by this relative tolerance.")
@click.option("--atol", type=_Limit(), help="Judge by this absolute tolerance.")
@click.option("--ulp", type=click.IntRange(min=0), help="Judge by this distance in ulp.")
@click.option(
    "--budget",
    type=_Limit(),
    metavar="FACTOR",
    help="Multiple of the rounding bound that a derived tolerance allows.  [default: 4]",
)
@click.option("--signed-zeros", is_flag=True, help="Take 0.0 and -0.0 for different.")
@lower_option
@jobs_option
@worker_options
@click.option("--lf", is_flag=True, help="Only cases that failed when they last ran here.")
@click.option("--ff", is_flag=True, help="Those first, then the others.")
@session_options
@click.option("-x", "max_fail", flag_value=1, type=int, help="Stop after the first failure.")
@click.option("--max-fail", type=click.IntRange(min=1), default=None, help="Stop after so many.")
@click.option(
    "--report",
    "reports",
    multiple=True,
    metavar="FORMAT=PATH",
    shell_complete=complete_report,
    help="Also write the results; FORMAT is json, junit, xunit, markdown, github, badge or "
    "html, PATH may be - for standard output.",
)
@click.option(
    "--artifacts",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write each failing case as an ONNX test directory, with what the backend returned.",
)
@click.option(
    "--durations",
    type=click.IntRange(min=1),
    metavar="N",
    help="Show the N cases that took the backends longest.",
)
@profile_option
@explain_options("a fifth of the run's time, 10 at least")
@click.option("-v", "--verbose", is_flag=True, help="Show every output, and all of each failure.")
@click.option("-q", "--quiet", is_flag=True, help="Show only which cases fail, and the summary.")
def command(context: click.Context, targets: tuple[str, ...], **options: Any) -> int:
    """Run cases on a backend and judge every output.

    Without a target the cases are those in ./cases.

    \b
    onnxopt run cases/ -b onnxruntime
    onnxopt run onnx-node --operator Adam -b python:my_backend.py:Backend

    Exits with 0 if all conforms, 1 if not, 2 for an invalid case.
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    # What is imported stays; looking for garbage among it takes a tenth of the time to start.
    gc.disable()
    from onnxopt_cli.cli.run_session import execute

    gc.enable()
    options = {"targets": targets, **options}
    if options["resume"] and not targets:
        from onnxopt_cli.cli.resume import said_by_log

        options |= said_by_log(context, Path(options["resume"]))
    return execute(options)
