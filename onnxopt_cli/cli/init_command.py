"""``onnxopt init``."""

from __future__ import annotations

from pathlib import Path

import click
from rich.text import Text

from onnxopt_cli.cli.completion import complete_backend
from onnxopt_cli.cli.console import note, stdout
from onnxopt_cli.cli.shared_options import option
from onnxopt_cli.core.text import printable


@click.command("init")
@option(
    "-b, --backend BACKEND",
    "The backend under test.  [default: numpy, to be replaced later]",
    default="",
    show_default=False,
    shell_complete=complete_backend,
)
@option(
    "--name NAME",
    "The name of the backend in the settings. [default: the name of its file or command]",
    default="",
    show_default=False,
)
@option(
    "--requirement REQUIREMENT",
    "A requirement that the workflow installs with pip. May be given several times.",
    "requirements",
    multiple=True,
)
@option("--force", "Replace existing files.", is_flag=True)
def command(backend: str, name: str, requirements: tuple[str, ...], *, force: bool) -> None:
    """Write the settings, a GitHub workflow and an expectation file for a project.

    The files are onnxopt.toml and onnxopt-expected.yaml in the current folder, and
    .github/workflows/onnxopt.yml in the repository. Existing files are replaced only with --force.

    \b
    onnxopt init
    onnxopt init -b python:my_backend:Backend --requirement my_backend
    onnxopt init -b "exec:./adapter --fast,timeout=10" --name acme
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnxopt_cli.backends.project_files import UPDATE_COMMAND, missing_file, write_project_files

    for path in write_project_files(Path(), backend, name, requirements, force=force):
        stdout().print_wrapped(f"wrote {printable(str(path))}")
    if path_of_plugin := missing_file(backend):
        note(f"{path_of_plugin} does not exist yet")
    for line in ("next: onnxopt run --profile ci", f"if known failures remain: {UPDATE_COMMAND}"):
        stdout().print_wrapped(Text(line, no_wrap=True))
