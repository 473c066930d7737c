"""The command line. A command turns options into a call of the library, and returns an exit code.

Only the package ``cli`` imports click. A command imports modules that need NumPy or onnx only when
it runs, because NumPy and onnx take half a second to load. ``--help`` and shell completion do not
need them.
"""

from __future__ import annotations

import errno
import gc
import re
import sys
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from importlib import import_module
from io import StringIO
from textwrap import TextWrapper, indent
from typing import Any

import click

from onnxopt_cli import __version__
from onnxopt_cli.cli.environment import (
    columns_of,
    fault_of_environment,
    guard_streams,
    lost_output,
    require_memory,
)
from onnxopt_cli.core.ci_channels import withhold_ci_channels
from onnxopt_cli.core.process_control import claim_process
from onnxopt_cli.core.text import (
    exception_text,
    nearest,
    printable,
)
from onnxopt_cli.errors import OnnxoptError, UsageError, is_debugging
from onnxopt_cli.workers.interruption import Stop, stop_by_raising

# The summaries are listed here, so that --help need not import the modules of the commands.
_COMMANDS = {
    "init": "Write settings, a GitHub workflow and an expectation file.",
    "run": "Run cases on a backend and judge every output.",
    "locate": "Find the wrong node of a model.",
    "generate": "Write suites of cases as files.",
    "list": "List cases.",
    "show": "Show an operator or a case.",
    "audit": "Show which wrong implementations the cases reject.",
    "fuzz": "Search for examples on which a backend fails.",
    "explain": "Find the known mistakes that reproduce a saved run's failures.",
    "lower": "Replace training operators by primitive ones.",
    "backends": "List the backends that can be tested.",
    "report": "Write reports of saved runs, merge logs, compare runs.",
    "scoreboard": "Run several backends and write a site that compares them.",
    "config": "Show the settings of the configuration file.",
    "schema": "Print the JSON Schema of case files, expectation files or logs.",
}

# The commands that are defined in the module of a related command: the names of the module and of
# the function.
_IN_OTHER_MODULES = {
    "list": ("show_command", "list_command"),
    "schema": ("config_command", "schema_command"),
}

_ERROR = "error: "
_USAGE = 2
_INTERNAL = 3
_INTERRUPTED = 130
_BROKEN_PIPE = 141
# Commands that do not depend on the registered operators.
_WITHOUT_OPERATORS = frozenset({"config", "init", "report", "schema"})


class _Commands(click.Group):
    """Loads the module of a command when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        # Not list(_COMMANDS): in this package, the name "list" can denote the command.
        return [*_COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module, name = _IN_OTHER_MODULES.get(cmd_name, (f"{cmd_name}_command", "command"))
        command: click.Command = getattr(import_module(f"onnxopt_cli.cli.{module}"), name)
        if cmd_name in _WITHOUT_OPERATORS:
            return command
        from onnxopt_cli.cli.shared_options import with_operators_option

        return with_operators_option(command)

    # If a signal arrives while click parses or runs a command, click would print an empty line, and
    # would not return an exit code that depends on the signal.
    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        try:
            return super().make_context(*arguments, **options)
        except KeyboardInterrupt as stop:
            raise click.exceptions.Exit(_interrupted(stop)) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            return _interrupted(stop)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            hint = nearest(args[0], _COMMANDS).capitalize()
            raise click.UsageError(f"No such command {args[0]!r}. {hint}".rstrip(), ctx)
        for option, value in zip(["", *args], args, strict=False):
            is_empty = not value and option.startswith("-")
            # An empty -k pattern selects all cases, as in pytest.
            if (is_empty and option != "-k") or re.fullmatch("--[^=]+=", value):
                message = f"the value of {option if is_empty else value} is empty"
                raise UsageError(message, hint="is a variable not set?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([*_COMMANDS.items()])


_SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True}


@click.group(cls=_Commands, context_settings=_SETTINGS)
@click.version_option(__version__, message="onnxopt %(version)s")
def group() -> None:
    """Test implementations of ONNX operators for conformance.

    \b
    onnxopt run                       run the cases in ./cases on the reference
    onnxopt run cases/ -b onnxruntime run them on ONNX Runtime
    onnxopt show Adam                 show the formula of an operator

    \b
    Shell completion in bash (zsh and fish likewise):
    eval "$(_ONNXOPT_COMPLETE=bash_source onnxopt)"
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit; an error becomes a message and a documented exit code."""
    # The imports of a run create over 50,000 long-lived objects, none of which is garbage. A
    # garbage collection that scans all objects takes 20 ms of a short run.
    gc.set_threshold(100_000)
    guard_streams()
    try:
        if arguments is None:
            # The process was started as the command, so no other program runs in this process.
            stop_by_raising()

            claim_process()
            withhold_ci_channels()
        code = _exit_code(arguments)
        lost = lost_output()
    except KeyboardInterrupt as stop:
        sys.exit(_interrupted(stop))
    if isinstance(lost, BrokenPipeError):
        code = _BROKEN_PIPE
    elif lost is not None:
        reason = "it is closed" if lost.errno == errno.EBADF else lost.strerror
        click.echo(f"error: cannot write the standard output: {reason}", err=True)
        code = _USAGE
    if arguments is None:
        # Skip the garbage collection at exit, which takes almost a fifth of the time of a short
        # run.
        gc.freeze()
    sys.exit(code)


def _interrupted(stop: KeyboardInterrupt) -> int:
    click.echo("interrupted", err=True)
    return stop.exit_code if isinstance(stop, Stop) else _INTERRUPTED


def _exit_code(arguments: Sequence[str] | None) -> int:
    """Run the command and return its exit code; exceptions become messages."""
    # The command's registry of operators must stay in use until the message has been composed.
    with ExitStack() as stack:
        return _run(arguments, stack)


def _run(arguments: Sequence[str] | None, stack: ExitStack) -> int:
    stream = sys.stdout
    # np.mean of an empty operand warns, although NaN is the expected result of the formula.
    warnings.filterwarnings("ignore", "Mean of empty slice", RuntimeWarning)
    try:
        require_memory()
        # A shell requests completion by a variable, without arguments. If the variable is also set
        # when the user runs a command, the command must run and not print a completion script.
        words = sys.argv[1:] if arguments is None else arguments
        code = group.main(
            arguments,
            prog_name="onnxopt",
            complete_var="" if words else "_ONNXOPT_COMPLETE",
            standalone_mode=False,
            obj=stack,
        )
    except click.ClickException as error:
        message = StringIO()
        error.show(message)
        click.echo(_wrapped(message.getvalue().rstrip()), err=True)
        return _USAGE
    except click.Abort:
        return _INTERRUPTED
    except SystemExit:
        # After a broken pipe, click wraps the stream and exits with 1, which would mean that a case
        # failed.
        if sys.stdout is stream:
            raise
        return _BROKEN_PIPE
    except OnnxoptError as error:
        return _refused(error)
    except Exception as error:
        if isinstance(error, OSError) and lost_output() is not None:
            return 0
        refusal = fault_of_environment(error) or _fault_of_operator(error)
        if refusal is not None:
            return _refused(refusal)
        if is_debugging():
            raise
        # A note of the exception names the case that was being processed.
        notes = (printable(note) for note in getattr(error, "__notes__", ()))
        description = " ".join((exception_text(error), *dict.fromkeys(notes)))
        click.echo(_wrapped(f"internal error: {description}"), err=True)
        click.echo("  this is a bug in onnxopt; ONNXOPT_DEBUG=1 shows the traceback", err=True)
        return _INTERNAL
    return code if isinstance(code, int) else 0


def _fault_of_operator(error: Exception) -> UsageError | None:
    """Return a usage error if the formula of a user's operator raised the exception; else None."""
    from onnxopt_cli.operators.operator_file import fault_in
    from onnxopt_cli.operators.registry import failing_operator

    operator = failing_operator(error)
    if operator is None:
        return None
    return UsageError(fault_in(operator, error), hint="the formula fails on such inputs")


def _refused(error: OnnxoptError) -> int:
    click.secho(_ERROR, fg="red", bold=True, nl=False, err=True)
    click.echo(_wrapped(printable(error.message, lines=True), len(_ERROR)), err=True)
    if error.hint:
        click.echo(_wrapped(indent(printable(error.hint, lines=True), "  ")), err=True)
    return error.exit_code


def _wrapped(text: str, column: int = 0) -> str:
    """Wrap the lines of a text that are too long for standard error; words are not broken.

    Args:
        text: the text.
        column: the column at which the first line begins.
    """
    wrapper = TextWrapper(
        columns_of(sys.stderr),
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    lines = []
    for line in text.split("\n"):
        wrapper.initial_indent = " " * column
        if column + len(line) > wrapper.width:
            line = wrapper.fill(line)[column:]  # noqa: PLW2901 - the same line, wrapped
        lines.append(line)
        column = 0
    return "\n".join(lines)
