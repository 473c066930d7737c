"""``onnxopt generate``."""

from __future__ import annotations

from functools import partial
from itertools import chain
from pathlib import Path

import click

from onnxopt_cli.cli.completion import complete_suite
from onnxopt_cli.cli.shared_options import option


@click.command("generate")
@click.argument("suites", metavar="[SUITE]...", nargs=-1, shell_complete=complete_suite)
@option(
    "-o, --output",
    "Folder to write to.",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("cases"),
)
@option(
    "--format",
    "Case files or ONNX test directories.  [default: yaml]",
    "form",
    type=click.Choice(["yaml", "onnx"]),
)
@option("--check", "Compare instead of writing; exit with 1 on drift.", is_flag=True)
@option("--force", "Overwrite files that differ.", is_flag=True)
def command(
    suites: tuple[str, ...], output: Path, form: str | None, check: bool, force: bool
) -> int:
    """Write suites as files: spec (the default), conformance, pruning, trajectories, large, ...

    \b
    onnxopt generate spec conformance --check
    onnxopt generate onnx-node -o node-cases
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnxopt_cli.cli.console import stderr
    from onnxopt_cli.suites.catalogue import (
        distinct_files,
        find_drift,
        suite_files,
        write_tree,
    )

    code = 0
    generated = {}
    for suite in dict.fromkeys(suites or ("spec",)):
        with stderr().status(f"generating {suite}"):
            generated[suite] = suite_files(suite, form)
    # Two suites may write to the same folder.
    distinct_files(chain.from_iterable(tree.files.items() for tree in generated.values()))
    for suite, tree in generated.items():
        look = find_drift if check else partial(write_tree, force=force)
        drift = look(output, tree.files)
        cases = f"{tree.cases} case{'s' * (tree.cases != 1)}"
        if check:
            click.echo(f"{suite}: {drift.same} files as generated, {cases}")
        else:
            changed = len(drift.missing) + len(drift.different)
            files = f"{changed} file{'s' * (changed != 1)}"
            click.echo(f"{suite}: wrote {files}, {drift.same} were there already; {cases}")
        for reason, count in tree.left_out.items():
            click.echo(f"  left out: {count} {reason}")
        for word, paths in (("missing", drift.missing), ("different", drift.different)):
            for path in paths if check else ():
                click.echo(f"  {word}: {path}")
        code |= check and bool(drift.missing or drift.different)
    return code
