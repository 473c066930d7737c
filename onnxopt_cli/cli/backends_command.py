"""``onnxopt backends``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from rich.text import Text

from onnxopt_cli.backends.skeleton import write_skeleton
from onnxopt_cli.cli.completion import complete_backend
from onnxopt_cli.cli.console import show_progress, stdout
from onnxopt_cli.cli.shared_options import expand_backend, expand_installable, option
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import UsageError


@click.group("backends", invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """List, check, install and create backends.

    \b
    onnxopt backends                         list backends and adapters
    onnxopt backends install adapter:tract   install an adapter's packages
    onnxopt backends check exec:./adapter    test a backend by its protocol
    onnxopt backends new acme                write a working plugin
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    if context.invoked_subcommand is not None:
        return
    from onnxopt_cli.backends.resolve import KnownBackend, known_adapters, known_backends
    from onnxopt_cli.cli.configured_defaults import configuration_here
    from onnxopt_cli.report.listing import backend_table

    configuration = configuration_here(context)
    configured = configuration.backends if configuration else {}
    rows = [backend for backend in known_backends() if backend.name not in configured]
    rows += [
        KnownBackend(printable(name), printable(text), "") for name, text in configured.items()
    ]
    stdout().print(backend_table([*rows, *known_adapters()]))


@command.command("check")
@click.argument("backend", shell_complete=complete_backend, callback=expand_backend)
def check(backend: str) -> int:
    """Test a backend against every rule that onnxopt relies on.

    \b
    onnxopt backends check python:my_package.backend:Backend
    onnxopt backends check "exec:./adapter --fast,timeout=5"

    If the backend raises an error for an unknown operator, the check proposes a pattern that
    recognizes the error: -b BACKEND,unsupported=REGEX.

    Exits with 0 if the backend follows every rule, with 1 if it breaks a rule, and with 4 if it
    does not start.
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnxopt_cli.backends.check.protocol_check import check_backend
    from onnxopt_cli.report.listing import rule_line, rule_summary

    findings = []
    for finding in check_backend(backend, show_progress):
        stdout().print(rule_line(finding))
        if finding.option:
            stdout().print_record(Text(printable(finding.option)))
        findings.append(finding)
    stdout().print_wrapped(rule_summary(findings))
    return max(finding.exit_code for finding in findings)


@command.command("install")
@click.argument(
    "backends",
    nargs=-1,
    required=True,
    metavar="ADAPTER...",
    shell_complete=complete_backend,
    callback=expand_installable,
)
def install(backends: Sequence[str]) -> None:
    """Install the packages of adapters into environments of their own.

    \b
    onnxopt backends install adapter:openvino adapter:tract
    onnxopt backends install adapter:openvino@2026.3.0

    onnxopt run installs an adapter that its command line names. Adapters that a configuration file
    names must be installed beforehand. Exits with 4 if the packages cannot be installed.
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnxopt_cli.backends.adapter.adapter_environment import AdapterEnvironment
    from onnxopt_cli.backends.specification import parse_specification

    for text in backends:
        specification = parse_specification(text)
        if not specification.adapter:
            raise UsageError(
                f"{printable(text)} is not an adapter", hint="write adapter:NAME or adapter:FILE.py"
            )
        environment = AdapterEnvironment.of(specification)
        environment.create(show_progress)
        stdout().print_wrapped(
            f"{printable(text)} is installed in {printable(str(environment.folder))}"
        )


@command.command("new")
@click.argument("folder", type=click.Path(path_type=Path))
@option(
    "--language",
    "A plugin in Python, an adapter in C++, or a shell adapter for a program in any language.",
    type=click.Choice(["python", "cpp", "shell"]),
    default="python",
)
def new(folder: Path, language: str) -> None:
    """Write a working backend into a new folder, as a starting point.

    \b
    onnxopt backends new acme
    onnxopt backends new acme --language cpp
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    files, (check_command, *other_commands) = write_skeleton(folder, language)
    for file in files:
        stdout().print_wrapped(f"wrote {printable(str(file))}")
    stdout().print_wrapped(Text(f"next: {check_command}", no_wrap=True))
    for other_command in other_commands:
        line = Text(f"or, in an environment of its own: {other_command}", no_wrap=True)
        stdout().print_wrapped(line)


@command.command("protocol")
def protocol() -> None:
    """Print the protocol of exec: backends as Markdown.

    \b
    onnxopt backends protocol | less
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnxopt_cli.backends.skeleton import protocol_document

    click.echo(protocol_document(), nl=False)
