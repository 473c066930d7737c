"""Options of several commands: which operators, how cases get to a backend, how many processes."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click
from click.core import ParameterSource

from onnxopt_cli.cli.completion import (
    complete_backend,
    complete_capability,
    complete_operator,
    complete_pattern,
    complete_report,
    complete_target,
)
from onnxopt_cli.errors import UsageError

if TYPE_CHECKING:
    from onnxopt_cli.api import JudgeOptions, Setting
    from onnxopt_cli.backends.configuration import Configuration
    from onnxopt_cli.cluster.client import Cluster
    from onnxopt_cli.isolation.interruption import Interruption


_UNITS = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_SIZE = re.compile(r"(\d{1,15})\s*(|KiB|MiB|GiB)", re.IGNORECASE)
_MOST_JOBS = 1024
_LEAST_MEMORY = 64 << 20


def _job_count(written: str) -> int:
    """Return a number of processes; ``auto`` is as many as there are processors."""
    if written == "auto":
        from onnxopt_cli.core.blocks import available_jobs

        return available_jobs()
    if not (written.isdecimal() and 0 < int(written) <= _MOST_JOBS):
        raise click.BadParameter(f"{written!r} is neither auto nor a number from 1 to {_MOST_JOBS}")
    return int(written)


def _size(written: str) -> int:
    """Return a number of bytes, as in 2GiB; ``none`` is 0."""
    if written == "none":
        return 0
    match = _SIZE.fullmatch(written)
    if match is None:
        raise click.BadParameter(f"{written!r} is not a size; write it as in 2GiB, or none")
    size = int(match[1]) * _UNITS[match[2].upper()]
    if size < _LEAST_MEMORY:
        raise click.BadParameter("a worker cannot start with less than 64MiB")
    return size


class Number(click.FloatRange):
    """A finite number in a range; NaN is neither below nor above any, and so in each."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number; see click."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not finite", param, ctx)
        return number


_Option: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]


def _together(*options: _Option) -> _Option:
    """Return what adds options to a command, in their order."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def option(written: str, about: str, name: str | None = None, **others: Any) -> _Option:
    """Return an option, given as the help shows it: ``-o, --output DIR``, and what it does.

    Args:
        written: its spellings; and what its value is called, unless its type says it.
        about: what it does.
        name: of the command's parameter, if not the longest spelling.
        others: what click takes beside these.
    """
    *short, last = written.split(", ")
    spelling, _, metavar = last.partition(" ")
    names = filter(None, (*short, spelling, name))
    return click.option(*names, metavar=metavar or None, help=about, **others)


def many(written: str, about: str, name: str, **others: Any) -> _Option:
    """Return an option that may be given several times, and says so."""
    said = f"{about} Given several times: any of them."
    return option(written, said, name, multiple=True, **others)


def operator_option(complete: Callable[..., Any], about: str = "Only this operator.") -> _Option:
    """Return the option that chooses operators, with what completes it and what it does."""
    return many("--operator NAME", about, "operators", shell_complete=complete)


PATH = click.Path(path_type=Path)

targets_argument = click.argument(
    "targets", metavar="[PATH|SUITE|ID]...", nargs=-1, shell_complete=complete_target
)
#: The options that choose among cases.
case_options = _together(
    many(
        "-k PATTERN",
        "Only cases whose id is this, matches this glob or contains this text; also "
        "'adam and not (double or T_0)'.",
        "patterns",
        shell_complete=complete_pattern,
    ),
    operator_option(complete_operator, "Only cases whose model contains this operator."),
    many("--tag TAG", "Only cases with this tag.", "tags"),
    option(
        "--without CAPABILITY",
        "Leave out cases that need this: double, many-tensors, ... Again for more.",
        multiple=True,
        shell_complete=complete_capability,
    ),
)
tolerance_option = option(
    "--tolerance",
    "Judge by this rule, whatever the cases say.",
    "rule",
    type=click.Choice(["conditioned", "derived", "onnx"]),
)
lower_option = option(
    "--lower",
    "When to replace training operators by primitive ones.",
    type=click.Choice(["auto", "never", "always"]),
    default="auto",
)
jobs_option = option("-j, --jobs N|auto", "Number of processes.", type=_job_count, default="auto")


def explain_time_option(default: str) -> _Option:
    """Return the option that says how long to look for known mistakes, given its default."""
    about = f"How long to look for known mistakes.  [default: {default}]"
    return option("--explain-time SECONDS", about, type=Number(min=0, max=1e6))


def explain_options(default: str) -> _Option:
    """Return what adds the options about known mistakes to a command that looks for some itself."""
    return _together(
        option(
            "--explain/--no-explain",
            "Look for a known mistake that reproduces the failures.",
            default=True,
        ),
        explain_time_option(default),
    )


_LIMIT: dict[str, Any] = {"type": Number(min=0, min_open=True, max=1e6), "default": 60.0}
#: The options about the processes of backends.
worker_options = _together(
    option(
        "--isolation",
        "Run backends in processes of their own, or all in this one.  "
        "[default: process, but none for our own formulas]",
        type=click.Choice(["process", "none"]),
    ),
    option("--timeout SECONDS", "How long a case may take.", **_LIMIT),
    option("--startup-timeout SECONDS", "How long a backend may take to start.", **_LIMIT),
    option(
        "--memory SIZE",
        "How much a backend's process, or a case of a file, may hold; none for no limit.",
        type=_size,
        default="4GiB",
    ),
)


def report_option(about: str, **others: Any) -> _Option:
    """Return the option for what is written of a run, given what it says of itself."""
    others |= {"multiple": True, "shell_complete": complete_report}
    return option("--report FORMAT=PATH", about, "reports", **others)


def shard_option(of: str) -> _Option:
    """Return the option that takes a part of a command's work, given what it is a part of."""
    return option("--shard I/N", f"Only part I of {of}.")


#: The options about other machines.
cluster_options = _together(
    option(
        "--cluster WHERE",
        "Use the workers of a Dask cluster: local, local:N, tcp://HOST:PORT, tls://HOST:PORT "
        "or a scheduler file.",
    ),
    option(
        "--ship PATH",
        "Send this file or folder to every worker. Again for more.",
        type=click.Path(exists=True, path_type=Path),
        multiple=True,
    ),
    option(
        "--tls CA CERT KEY",
        "PEM files: certificates to trust, our own, its key.  [default: Dask's configuration]",
        type=click.Path(exists=True, dir_okay=False),
        nargs=3,
    ),
    option("--insecure", "Go without TLS to other machines.", is_flag=True),
)


@contextmanager
def opened_cluster(
    options: Mapping[str, Any], interruption: Interruption, *packages: str
) -> Iterator[Cluster | None]:
    """Open the cluster that the options ask for, if they do.

    Args:
        options: of the command.
        interruption: set when the user wants to end.
        packages: what workers must have in our version beside what all have.

    Raises:
        UsageError: if it cannot be used.
        BackendUnavailable: if nobody answers there.
    """
    ship, tls, insecure = options["ship"], options["tls"] or (), options["insecure"]
    if options["cluster"] is None:
        if ship or tls or insecure:
            raise UsageError("--ship, --tls and --insecure mean nothing without --cluster")
        yield None
        return
    from onnxopt_cli.cli.console import note
    from onnxopt_cli.cluster.client import Cluster

    found = Cluster(options["cluster"], interruption, note, ship, tls, insecure, packages)
    with closing(found) as cluster:
        yield cluster


def setting(options: Mapping[str, Any], jobs: int, cluster: Cluster | None = None) -> Setting:
    """Turn the options, and ``lower``, into how backends are run, each in so many processes."""
    from onnxopt_cli import api
    from onnxopt_cli.backends.lowering import LoweringMode
    from onnxopt_cli.isolation.processes import allowed_memory

    return api.Setting(
        isolation=None if options["isolation"] is None else api.Isolation(options["isolation"]),
        lowering=LoweringMode(options["lower"]),
        limits=api.Limits(
            options["timeout"], options["startup_timeout"], allowed_memory(options["memory"])
        ),
        jobs=jobs,
        cluster=cluster,
    )


def judging(options: Mapping[str, Any]) -> JudgeOptions:
    """Turn the options about tolerances into one rule.

    Raises:
        UsageError: if two of them contradict each other.
    """
    from onnxopt_cli import api
    from onnxopt_cli.core.tolerance import ONNX_DEFAULT, Provenance, Tolerance, Ulps
    from onnxopt_cli.readings.bound.bound import FACTOR

    given = {name: options[name] for name in ("rtol", "atol") if options[name] is not None}
    if sum((bool(given), options["ulp"] is not None, options["rule"] is not None)) > 1:
        raise click.UsageError("--rtol and --atol, --ulp, and --tolerance exclude each other")
    override: Tolerance | None = None
    if given:
        override = replace(ONNX_DEFAULT, **given, provenance=Provenance.COMMAND_LINE)
    elif options["ulp"] is not None:
        override = Ulps(options["ulp"], Provenance.COMMAND_LINE)
    return api.JudgeOptions(
        override=override,
        rule=None if options["rule"] is None else api.ToleranceRule(options["rule"]),
        factor=FACTOR if options["budget"] is None else options["budget"],
        signed_zeros=options["signed_zeros"],
        examine=options.get("verbose") is True,
    )


# The keys, among what a command's context holds, of what the configuration file says, and of where
# it says what.
_CONFIGURATION, _PLACES = "onnxopt configuration", "onnxopt places"


def _apply(context: click.Context, _parameter: click.Parameter, profile: str | None) -> None:
    from onnxopt_cli.backends.configuration import find_configuration

    # Not where a word is being completed.
    if context.resilient_parsing or not (profile or find_configuration()):
        return
    from onnxopt_cli.cli.configuration import apply_configuration, configuration_here

    found = configuration_here(context, profile)
    if found is not None:
        context.meta[_CONFIGURATION] = found
        context.meta[_PLACES] = apply_configuration(context, found, profile)


def expand_backend(context: click.Context, _parameter: click.Parameter, value: Any) -> Any:
    """Put the specification of a backend in place of its name in the configuration file."""
    found: Configuration | None = context.meta.get(_CONFIGURATION)
    if found is None or not value:
        return value
    return found.backend(value) if isinstance(value, str) else tuple(map(found.backend, value))


def backend_option(about: str, name: str | None = None, **others: Any) -> _Option:
    """Return the option for what is tested; a name may be one of the configuration file."""
    others |= {"callback": expand_backend, "shell_complete": complete_backend}
    return option("-b, --backend BACKEND", about, name, **others)


def _use(context: click.Context, parameter: click.Parameter, files: Sequence[Path]) -> None:
    try:
        if files or os.environ.get("ONNXOPT_OPERATORS"):
            from onnxopt_cli import api

            api.add_operators(*files)
    except UsageError as error:
        if context.get_parameter_source(str(parameter.name)) is ParameterSource.DEFAULT_MAP:
            places = context.meta[_PLACES]
            error.message = f"{places[parameter.name]}: {error.message}"
        raise


# Of every command that knows operators. Both come first, as the others are checked against what
# there is.
_FIRST: dict[str, Any] = {"is_eager": True, "expose_value": False}
_configured = (
    option("--profile NAME", "Use a profile of onnxopt.toml.", callback=_apply, **_FIRST),
    option(
        "--operators FILE",
        "Also know the operators of this Python file. Its code runs. Again for more.",
        "operator_files",
        type=PATH,
        multiple=True,
        callback=_use,
        **_FIRST,
    ),
)


def with_operators_option(command: click.Command) -> click.Command:
    """Give a command the options that choose operators, or each command of a group."""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            with_operators_option(inner)
    elif not any(parameter.name == "operator_files" for parameter in command.params):
        for option in _configured:
            option(command)
    return command
