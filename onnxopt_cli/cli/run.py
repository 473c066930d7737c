"""``onnxopt run``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from onnxopt_cli.cli.shared_options import (
    PATH,
    Number,
    backend_option,
    case_options,
    cluster_options,
    explain_options,
    jobs_option,
    lower_option,
    option,
    report_option,
    shard_option,
    targets_argument,
    tolerance_option,
    worker_options,
)
from onnxopt_cli.core.text import clipped, command_line, printable

_LIMIT = Number(min=0)
# A path that the log has as it was typed. What is wrong with the file is said where it is opened.
_FILE = click.Path(readable=False)

#: The parts of the help, by the first parameter of each.
_PARTS = {
    "targets": "Which cases",
    "backends": "Backends",
    "cluster": "Other machines",
    "rule": "Judging",
    "expect": "What is expected",
    "max_fail": "Stopping and going on",
    "verbose": "What is shown and written",
    "profile": "Others",
}


class _Parts(click.Command):
    """A command whose help lists its options in parts."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options; see click."""
        rows: dict[str, list[tuple[str, str]]] = {}
        part = ""
        for parameter in self.get_params(ctx):
            part = _PARTS.get(parameter.name or "", part)
            if isinstance(parameter, click.Option) and (row := parameter.get_help_record(ctx)):
                rows.setdefault(part, []).append(row)
        for part, mine in rows.items():
            with formatter.section(part):
                formatter.write_dl(mine)


@click.command("run", cls=_Parts)
@click.pass_context
@targets_argument
@case_options
@option("--lf", "Only cases that failed when they last ran here.", is_flag=True)
@option("--ff", "Those first, then the others.", is_flag=True)
@shard_option("N, by a hash of the id")
@backend_option(
    "What to test: numpy, onnxruntime, onnx-reference, python:MODULE:ATTRIBUTE, ... "
    "May be given several times.",
    "backends",
    multiple=True,
    default=("numpy",),
)
@lower_option
@worker_options
@jobs_option
@cluster_options
@tolerance_option
@option("--rtol", "Judge by this relative tolerance.", type=_LIMIT)
@option("--atol", "Judge by this absolute tolerance.", type=_LIMIT)
@option("--ulp", "Judge by this distance in ulp.", type=click.IntRange(min=0))
@option(
    "--budget FACTOR",
    "Multiple of the rounding bound that a derived tolerance allows.  [default: 4]",
    type=_LIMIT,
)
@option("--signed-zeros", "Take 0.0 and -0.0 for different.", is_flag=True)
@option(
    "--expect FILE",
    "What is expected to fail; a later file precedes an earlier one.",
    type=_FILE,
    multiple=True,
)
@option(
    "--update-expect FILE",
    "Let an expectation file say what this run shows; it also counts as --expect.",
    type=_FILE,
)
@option("-x", "Stop after the first case that does not conform.", "max_fail", flag_value=1)
@option("--max-fail", "Stop after so many that do not.", type=click.IntRange(min=1), default=None)
@option(
    "--rerun N",
    "Run what does not conform N times more, to tell flaky from failing.",
    type=click.IntRange(min=1, max=1000),
)
@option("--log FILE", "Write each result to a log when it is there.", type=_FILE)
@option(
    "--resume LOG",
    "Go on with a log; run only what it lacks. Without targets it says what to run; a backend "
    "that is not built in must be given again.",
    type=_FILE,
)
@option("-v, --verbose", "Show every output, and all of each failure.", is_flag=True)
@option("-q, --quiet", "Show only which cases fail, and the summary.", is_flag=True)
@option(
    "--durations N",
    "Show the N cases that took the backends longest.",
    type=click.IntRange(min=1),
)
@explain_options("a fifth of the run's time, 10 at least")
@report_option(
    "Also write the results; FORMAT is json, junit, xunit, markdown, github, badge or "
    "html, PATH may be - for standard output."
)
@option(
    "--artifacts DIR",
    "Write each failing case as an ONNX test directory, with what the backend returned.",
    type=PATH,
)
def command(context: click.Context, targets: tuple[str, ...], **options: Any) -> int:
    """Run cases on a backend and judge every output.

    Without a target the cases are those in ./cases or, without it, our suites.

    \b
    onnxopt run cases/ -b onnxruntime
    onnxopt run onnx-node --operator Adam -b python:my_backend.py:Backend

    Exits with 0 if all conforms, 1 if not, 2 for an invalid case.
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnxopt_cli.cli.run_session import execute

    options = {"targets": targets, **options}
    named = context.get_parameter_source("targets") is ParameterSource.COMMANDLINE
    # Targets of the configuration file are not those of the run to go on with.
    if options["resume"] and not (targets and named):
        options |= _said_by_log(context, Path(options["resume"]))
    return execute(options)


# Characters that are shown of a command.
_SHOWN = 2000
# What a log that a run goes on with may say of how it runs.
_TAKEN = (
    "patterns", "operators", "tags", "rule", "rtol", "atol", "ulp", "budget", "signed_zeros",
    "lower", "timeout", "startup_timeout", "memory", "max_fail", "rerun", "expect",
    "without", "shard", "backends",
)  # fmt: skip


def _said_by_log(context: click.Context, path: Path) -> dict[str, Any]:
    """Return the options that a log says and the command line does not.

    Anybody may have written the log. So it chooses no code that runs: no backend but a built-in one
    by its bare name, no operators, no weaker isolation, and no file that is written. What it does
    choose is parsed as if the user had typed it, and shown.

    Args:
        context: of the command ``run``, without targets.
        path: the log.

    Raises:
        UsageError: if it cannot be read, says what no option can be, or is of a backend that it
            must not choose.
    """
    from onnxopt_cli import api
    from onnxopt_cli.backends.resolve import BUILT_IN
    from onnxopt_cli.cli.console import stderr
    from onnxopt_cli.errors import UsageError

    log = api.read_log(path)
    if log is None:
        raise UsageError(
            f"the log {printable(str(path))} is empty: it does not say what to run",
            hint="name the cases and the backend, too",
        )
    header = log.header
    backends = [backend.name for backend in header.backends]
    told = {**header.options, "shard": header.shard, "backends": backends}
    taken: dict[str, Any] = {
        name: told.get(name)
        for name in _TAKEN
        if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE
    }
    for name in taken.get("backends", ()):
        if name not in BUILT_IN:
            raise UsageError(
                f"the log is of the backend {printable(name)}, which runs code that a log must "
                "not choose",
                hint="name it again, if you trust it: -b BACKEND",
            )
    targets = header.options.get("targets")
    words = [*_words(context.command, taken), "--"]
    words += map(str, targets) if isinstance(targets, list) else ()
    said = clipped(command_line(words), _SHOWN)
    stderr().print(f"as the log says: onnxopt run {said}", soft_wrap=True)
    try:
        options = context.command.make_context("run", words, parent=context.parent).params
    except click.UsageError as error:
        raise UsageError(f"{printable(str(path))}: {printable(error.message)}") from error
    return {name: options[name] for name in [*taken, "targets"]}


def _words(command: click.Command, taken: Mapping[str, Any]) -> Iterator[str]:
    """Yield options as they are typed."""
    # Of two with one name, as -x and --max-fail, the last one takes a value.
    parameters = {parameter.name: parameter for parameter in command.params}
    for name, value in taken.items():
        parameter = parameters[name]
        option = max(parameter.opts, key=len)
        if isinstance(parameter, click.Option) and parameter.is_flag:
            if value is True:
                yield option
        elif name == "memory" and value == 0:
            yield from (option, "none")
        elif value is not None:
            for it in value if isinstance(value, (list, dict)) else [value]:
                yield from (option, str(it))
