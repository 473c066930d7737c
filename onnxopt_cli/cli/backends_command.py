"""``onnxopt backends``."""

from __future__ import annotations

from pathlib import Path

import click

from onnxopt_cli.cli.completion import complete_backend
from onnxopt_cli.cli.shared_options import expand_backend, option
from onnxopt_cli.core.text import printable


@click.group("backends", invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """List, check and begin backends that can be tested.

    \b
    onnxopt backends                       what is installed, with versions
    onnxopt backends check exec:./adapter  does it keep the rules of its protocol?
    onnxopt backends new acme              a working plugin, to go on from
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    if context.invoked_subcommand is not None:
        return
    from onnxopt_cli.backends.resolve import KnownBackend, known_backends
    from onnxopt_cli.cli.configured_defaults import configuration_here
    from onnxopt_cli.cli.console import stdout
    from onnxopt_cli.report.listing import backend_table

    found = configuration_here(context)
    mine = found.backends if found else {}
    known = [it for it in known_backends() if it.name not in mine]
    known += [KnownBackend(printable(name), printable(text), "") for name, text in mine.items()]
    stdout().print(backend_table(known))


@command.command("check")
@click.argument("backend", shell_complete=complete_backend, callback=expand_backend)
def check(backend: str) -> int:
    """Test a backend against every rule that onnxopt relies on.

    \b
    onnxopt backends check python:my_package.backend:Backend
    onnxopt backends check "exec:./adapter --fast,timeout=5"

    Where a backend raises an error for an operator that it does not know, it proposes the words by
    which that is known, to be written as -b BACKEND,unsupported=REGEX.

    Ends with 0 if no rule is broken, 1 if one is, 4 if the backend does not start.
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnxopt_cli.backends.check.protocol_check import check_backend
    from onnxopt_cli.cli.console import stdout
    from onnxopt_cli.report.listing import rule_line, rule_summary

    findings = []
    for finding in check_backend(backend):
        stdout().print(rule_line(finding))
        if finding.option:
            stdout().print_line(printable(finding.option))
        findings.append(finding)
    stdout().print(rule_summary(findings))
    return max(finding.exit_code for finding in findings)


@command.command("new")
@click.argument("folder", type=click.Path(path_type=Path))
@option(
    "--language",
    "A plugin in Python, a command in C++, or one that a program in any language completes.",
    type=click.Choice(["python", "cpp", "shell"]),
    default="python",
)
def new(folder: Path, language: str) -> None:
    """Write a working backend into a new folder, to go on from.

    \b
    onnxopt backends new acme
    onnxopt backends new acme --language cpp
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnxopt_cli.backends.skeleton import write_skeleton

    files, then = write_skeleton(folder, language)
    for file in files:
        click.echo(f"wrote {file}")
    click.echo(f"next: {then}")


@command.command("protocol")
def protocol() -> None:
    """Print how commands are spoken to, as Markdown.

    \b
    onnxopt backends protocol | less
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnxopt_cli.backends.exec.exec_messages import protocol_document

    click.echo(protocol_document(), nl=False)
