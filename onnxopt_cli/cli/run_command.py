"""``onnxopt run``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.text import Text

from onnxopt_cli.cli.shared_options import options_of, require_built_in
from onnxopt_cli.config.run_config import RunConfig
from onnxopt_cli.config.settings import words_of
from onnxopt_cli.core.text import (
    clipped,
    command_line,
    printable,
)
from onnxopt_cli.errors import UsageError

# Maximum number of characters of a command that is shown in full.
_MAX_COMMAND_CHARS = 2000


class _Parts(click.Command):
    """A command whose help groups the options in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options to the help; overrides a method of click."""
        sections = {declared.name: declared.section for declared in RunConfig.declared()}
        rows: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            part = sections.get(parameter.name or "", "Others")
            if isinstance(parameter, click.Option) and (row := parameter.get_help_record(ctx)):
                rows.setdefault(part, []).append(row)
        for part, part_rows in rows.items():
            with formatter.section(part):
                formatter.write_dl(part_rows)


@click.command("run", cls=_Parts)
@click.pass_context
@options_of(RunConfig)
def command(context: click.Context, **options: Any) -> int:
    """Run cases on a backend and judge every output.

    Without a target, the cases come from ./cases or, without this folder, from the suites of
    the operators with a formula.

    \b
    onnxopt run cases/ -b onnxruntime
    onnxopt run onnx-node --operator Adam -b python:my_backend.py:Backend

    Exits with 0 if every case conforms, 1 if not, 2 for an invalid case.
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnxopt_cli.cli.run_session import execute

    config = RunConfig.of(options)
    named = context.get_parameter_source("targets") is ParameterSource.COMMANDLINE
    # Targets in the configuration file may belong to other runs. Therefore, use the targets of the
    # log unless the command line names targets.
    if config.resume and not (config.targets and named):
        config = RunConfig.of(options | _options_of_log(context, config.resume))
    return execute(config)


def _options_of_log(context: click.Context, path: Path) -> dict[str, Any]:
    """Return the options that the log records and that the command line does not set.

    A log is not trusted: it must not select code to run or files to write. Therefore, a log may
    name only built-in backends, and cannot load operators or weaken the isolation. The function
    parses the options of the log like options on the command line, and prints them.

    Args:
        context: context of the command ``run``, without targets.
        path: the log.

    Raises:
        UsageError: if the log cannot be read, contains an invalid option, or names a backend that
            is not built in.
    """
    from onnxopt_cli import _api as api
    from onnxopt_cli.cli.console import stderr

    log = api.read_log(path)
    if log is None:
        raise UsageError(
            f"the log {printable(str(path))} is empty: it records no options of a run",
            hint="name the cases and the backend, too",
        )
    header = log.header
    backends = [backend.text for backend in header.backends]
    from_log = [
        declared
        for declared in RunConfig.declared()
        if declared.option.from_log
        and (
            declared.name == "targets"
            or context.get_parameter_source(declared.name) is not ParameterSource.COMMANDLINE
        )
    ]
    if any(declared.name == "backends" for declared in from_log):
        require_built_in(header.backends)
    words = words_of(from_log, {**header.options, "backends": backends, "shard": header.shard})
    shown_words = clipped(command_line(words), _MAX_COMMAND_CHARS)
    options_text = Text(f"options from the log: onnxopt run {shown_words}", no_wrap=True)
    stderr().print_wrapped(options_text)
    try:
        options = context.command.make_context("run", words, parent=context.parent).params
    except click.UsageError as error:
        raise UsageError(f"{printable(str(path))}: {printable(error.message)}") from error
    return {declared.name: options[declared.name] for declared in from_log}
