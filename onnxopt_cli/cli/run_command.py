"""``onnxopt run``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from onnxopt_cli.cli.shared_options import options_of
from onnxopt_cli.config.run_config import RunConfig
from onnxopt_cli.config.settings import words_of
from onnxopt_cli.core.text import (
    clipped,
    command_line,
    printable,
)

# Characters that are shown of a command.
_MAX_COMMAND_CHARS = 2000


class _Parts(click.Command):
    """A command whose help lists its options in parts."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options; see click."""
        sections = {declared.name: declared.section for declared in RunConfig.declared()}
        rows: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            part = sections.get(parameter.name or "", "Others")
            if isinstance(parameter, click.Option) and (row := parameter.get_help_record(ctx)):
                rows.setdefault(part, []).append(row)
        for part, mine in rows.items():
            with formatter.section(part):
                formatter.write_dl(mine)


@click.command("run", cls=_Parts)
@click.pass_context
@options_of(RunConfig)
def command(context: click.Context, **options: Any) -> int:
    """Run cases on a backend and judge every output.

    Without a target the cases are those in ./cases or, without it, our suites.

    \b
    onnxopt run cases/ -b onnxruntime
    onnxopt run onnx-node --operator Adam -b python:my_backend.py:Backend

    Exits with 0 if all conforms, 1 if not, 2 for an invalid case.
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnxopt_cli.cli.run_session import execute

    config = RunConfig.of(options)
    named = context.get_parameter_source("targets") is ParameterSource.COMMANDLINE
    # Targets of the configuration file are not those of the run to resume.
    if config.resume and not (config.targets and named):
        config = RunConfig.of(options | _said_by_log(context, config.resume))
    return execute(config)


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
    from onnxopt_cli import _api as api
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
    taken = [
        declared
        for declared in RunConfig.declared()
        if declared.option.from_log
        and (
            declared.name == "targets"
            or context.get_parameter_source(declared.name) is not ParameterSource.COMMANDLINE
        )
    ]
    if any(declared.name == "backends" for declared in taken):
        for name in backends:
            if name not in BUILT_IN:
                raise UsageError(
                    f"the log is of the backend {printable(name)}, which runs code that a log must "
                    "not choose",
                    hint="name it again, if you trust it: -b BACKEND",
                )
    words = words_of(taken, {**header.options, "backends": backends, "shard": header.shard})
    said = clipped(command_line(words), _MAX_COMMAND_CHARS)
    stderr().print(f"as the log says: onnxopt run {said}", soft_wrap=True)
    try:
        options = context.command.make_context("run", words, parent=context.parent).params
    except click.UsageError as error:
        raise UsageError(f"{printable(str(path))}: {printable(error.message)}") from error
    return {declared.name: options[declared.name] for declared in taken}
