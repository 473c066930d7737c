"""Write failing cases as ONNX test directories with expected and actual outputs.

::

    DIR/<backend>/test_<case>/README.txt           the failure, and the command that repeats it
                              model.onnx [data.json]
                              test_data_set_0/input_<i>.pb output_<i>.pb actual_<i>.pb
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from onnxopt_cli.cases.case import Case
from onnxopt_cli.cases.onnx.data_set import (
    directory_files,
    model_and_inputs,
    write_new_directory,
)
from onnxopt_cli.cases.tensors.proto_values import tensor_of
from onnxopt_cli.core.files import create_last_folder
from onnxopt_cli.core.result import Result
from onnxopt_cli.core.text import FreeNames, printable
from onnxopt_cli.errors import InvalidCase, UsageError
from onnxopt_cli.oracle.oracles import Oracles, with_expected_outputs
from onnxopt_cli.report.view.run_view import RunView

_MAX_NAME_CHARS = 80


def check_folder(folder: Path) -> None:
    """Create the folder for artifacts, or verify that it is empty.

    Raises:
        UsageError: if the folder cannot be created, or is not empty.
    """
    try:
        create_last_folder(folder)
        empty = not any(folder.iterdir())
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror or error}") from error
    if not empty:
        raise UsageError(f"--artifacts {folder} is not empty", hint="name a new or an empty folder")


def write_artifacts(
    folder: Path, view: RunView, cases: Mapping[str, Case], oracles: Oracles
) -> int:
    """Write a test directory for each result that is not as expected.

    Args:
        folder: the empty folder that :func:`check_folder` has checked.
        view: the run.
        cases: the cases by id.
        oracles: the oracles of the run.

    Returns:
        The number of directories.

    Raises:
        UsageError: if a file cannot be written. No file is overwritten.
    """
    if view.nonconforming:
        # Another run may have written to the folder since this run began.
        check_folder(folder)
    free = FreeNames("{}-{}", alike=str.lower)
    folders = {backend.name: folder / free(file_name(backend.name)) for backend in view.backends}
    created: set[Path] = set()
    for result in view.nonconforming:
        files = _files(result, cases.get(result.case), oracles)
        files["README.txt"] = _readme(result, view).encode()
        parent = folders[result.backend]
        target = parent / f"test_{free(file_name(result.case), parent.name)}"
        try:
            # If the folder exists and this run did not create it, it belongs to another run.
            parent.mkdir(exist_ok=parent in created)
            created.add(parent)
            write_new_directory(target, files)
        except OSError as error:
            raise UsageError(f"cannot write {target}: {error.strerror or error}") from error
    return len(view.nonconforming)


def _files(result: Result, case: Case | None, oracles: Oracles) -> dict[str, bytes]:
    """Return the files of a case's test directory, by path; empty if the case cannot be read."""
    if case is None:
        return {}
    try:
        problem = case.load()
        if problem.must_reject:
            files = model_and_inputs(problem)
        else:
            files = directory_files(with_expected_outputs(problem, oracles))
    except (InvalidCase, UsageError):
        return {}
    for index, value in enumerate(result.returned):
        # TensorProto cannot store all element types.
        with suppress(ValueError):
            tensor = tensor_of(value)  # type: ignore[arg-type] # results keep only arrays
            actual = tensor.SerializeToString(deterministic=True)
            files[f"test_data_set_0/actual_{index}.pb"] = actual
    if not problem.must_reject:
        return files
    # A case that must be rejected has no expected outputs. Its files get other names, so that the
    # directory is not mistaken for a case.
    return {f"refused_{name}": data for name, data in files.items()}


def _readme(result: Result, view: RunView) -> str:
    details = view.result(result)
    versions = {backend.name: backend.version for backend in view.backends}
    version = versions.get(result.backend, "")
    lines = [
        f"{result.outcome.value}: {printable(result.case)}",
        f"backend: {printable(result.backend)} {printable(version)}".rstrip(),
        f"case: {printable(str(result.location))}",
        "",
        details.text(),
        "",
        "again:",
        f"  {printable(details.again)}",
    ]
    return "\n".join(lines) + "\n"


def file_name(text: str) -> str:
    """Return a file name for any text.

    Only letters, digits, ``_``, ``-`` and inner dots remain, so that the file cannot be outside of
    its folder.
    """
    return (
        re.sub(r"[^A-Za-z0-9_.-]", "_", text.replace("/", "-")).strip(".")[:_MAX_NAME_CHARS] or "_"
    )
