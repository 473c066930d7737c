"""``onnxopt generate``."""

from __future__ import annotations

from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onnxopt_cli.cli.completion import complete_suite
from onnxopt_cli.cli.console import stderr, stdout
from onnxopt_cli.cli.shared_options import option, options_of
from onnxopt_cli.config.run_config import ModelInputs
from onnxopt_cli.core.files import require_output_folder
from onnxopt_cli.core.text import FreeNames, printable
from onnxopt_cli.errors import InvalidCase, UsageError
from onnxopt_cli.workers.interruption import interruptible

if TYPE_CHECKING:
    from onnxopt_cli.suites.catalogue import SuiteFiles


@click.command("generate")
@click.argument("targets", metavar="[SUITE|PATH]...", nargs=-1, shell_complete=complete_suite)
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
@option("--check", "Write nothing; exit with 1 if a file differs from the suites.", is_flag=True)
@option("--force", "Overwrite files that differ.", is_flag=True)
@options_of(ModelInputs)
def command(
    targets: tuple[str, ...],
    output: Path,
    form: str | None,
    check: bool,
    force: bool,
    **options: Any,
) -> int:
    """Write suites as files; the default is spec.

    The cases of a path, such as a model without test data, are written as ONNX test directories
    with the outputs of onnx's reference.

    \b
    onnxopt generate spec conformance --check
    onnxopt generate onnx-node -o node-cases
    onnxopt generate model.onnx --dim batch=4 -o model-cases
    """  # noqa: D301 - \b is click's mark for a paragraph that is not rewrapped
    from onnxopt_cli.cases.onnx.bare_model import require_settings_of_models
    from onnxopt_cli.suites.catalogue import (
        distinct_files,
        find_drift,
        suite_files,
        write_tree,
        written_suites,
    )

    if not check:
        require_output_folder("-o", output)
    model_inputs = ModelInputs.of(options)
    names = dict.fromkeys(targets or ("spec",))
    existing_paths = {
        name: Path(name) for name in names if name not in written_suites() and Path(name).exists()
    }
    if not existing_paths:
        require_settings_of_models((), model_inputs)
    code = 0
    generated = {}
    for target in names:
        with stderr().status(f"generating {target}"):
            generated[target] = (
                _directories(existing_paths[target], model_inputs, form)
                if target in existing_paths
                else suite_files(target, form)
            )
    # Two suites may write to the same folder.
    distinct_files(chain.from_iterable(tree.files.items() for tree in generated.values()))
    for suite, tree in generated.items():
        look = find_drift if check else partial(write_tree, force=force)
        drift = look(output, tree.files)
        cases = f"{tree.cases} case{'s' * (tree.cases != 1)}"
        if check:
            stdout().print_wrapped(f"{printable(suite)}: {drift.same} files as generated, {cases}")
        else:
            changed = len(drift.missing) + len(drift.different)
            files = f"{changed} file{'s' * (changed != 1)}"
            counts = f"wrote {files}, {drift.same} were there already; {cases}"
            stdout().print_wrapped(f"{printable(suite)}: {counts}")
        for reason, count in tree.left_out.items():
            stdout().print_wrapped(f"  left out: {count} {reason}")
        for word, paths in (("missing", drift.missing), ("different", drift.different)):
            for path in paths if check else ():
                stdout().print_wrapped(f"  {word}: {printable(str(path))}")
        code |= check and bool(drift.missing or drift.different)
    return code


def _directories(path: Path, model_inputs: ModelInputs, form: str | None) -> SuiteFiles:
    """Return the cases of a path as test directories.

    Raises:
        UsageError: if the path has no case, or a case that a test directory cannot store.
        InvalidCase: if the files at the path have faults.
    """
    from onnxopt_cli import _api as api
    from onnxopt_cli.report.artifacts import file_name
    from onnxopt_cli.suites.catalogue import SuiteFiles, distinct_files
    from onnxopt_cli.suites.collect import collect

    if form == "yaml":
        raise UsageError(
            "the cases of a file or folder can only be written as ONNX test directories",
            hint="omit --format",
        )
    collection = collect([str(path)], model_inputs=model_inputs)
    if collection.problems:
        raise InvalidCase(collection.problems)
    files: list[tuple[str, bytes]] = []
    free = FreeNames("{}-{}", alike=str.lower)
    with interruptible() as interruption, interruption.at_once():
        for case, contents in api.directories(collection.cases, interruption):
            folder = f"test_{free(file_name(case.id.split('/', 1)[-1]))}"
            files += ((f"{folder}/{name}", data) for name, data in contents.items())
    return SuiteFiles(distinct_files(files), len(collection.cases))
