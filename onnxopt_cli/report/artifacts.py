"""Failing cases as ONNX test directories, with what the backend returned beside what was expected.

::

    DIR/<backend>/test_<case>/README.txt           what happened, and the command that repeats it
                              model.onnx [data.json]
                              test_data_set_0/input_<i>.pb output_<i>.pb actual_<i>.pb
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from onnxopt_cli.cases.case import Case
from onnxopt_cli.cases.onnx.data_set import directory_files, model_and_inputs
from onnxopt_cli.cases.tensors.tensor_data import tensor_of
from onnxopt_cli.config.run_config import Judging
from onnxopt_cli.core.record import RunRecord
from onnxopt_cli.core.result import Result
from onnxopt_cli.core.text import FreeNames, printable
from onnxopt_cli.core.tolerance import Relative
from onnxopt_cli.errors import InvalidCase, UsageError
from onnxopt_cli.oracle.expected import expected_result
from onnxopt_cli.report.diff_text import failure_text, repeat_command
from onnxopt_cli.report.verdict import failures

_MAX_NAME_CHARS = 80


def check_folder(folder: Path) -> None:
    """Make sure that a folder for artifacts can be made, or is there and empty.

    Raises:
        UsageError: if not.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        empty = not any(folder.iterdir())
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror or error}") from error
    if not empty:
        raise UsageError(
            f"--artifacts {folder} is not empty", hint="remove it, or name another folder"
        )


def write_artifacts(
    folder: Path, record: RunRecord, cases: Mapping[str, Case], judging: Judging
) -> int:
    """Write each result that is not as expected as a test directory.

    Args:
        folder: as :func:`check_folder` left it.
        record: the run.
        cases: by their ids.
        judging: how outputs were judged.

    Returns:
        The number of directories.

    Raises:
        UsageError: if something cannot be written; nothing is overwritten.
    """
    if failed := failures(record):
        # Another run may have written there since this one began.
        check_folder(folder)
    free = FreeNames("{}-{}", alike=str.lower)
    folders = {it.name: folder / free(_file_name(it.name)) for it in record.backends}
    made: set[Path] = set()
    for result in failed:
        files = _files(result, cases.get(result.case), judging)
        files["README.txt"] = _readme(result, record).encode()
        backend = folders[result.backend]
        target = backend / f"test_{free(_file_name(result.case), backend.name)}"
        try:
            # No other run may have made it meanwhile.
            backend.mkdir(exist_ok=backend in made)
            made.add(backend)
            for part, data in files.items():
                path = target / part
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("xb") as file:
                    file.write(data)
        except OSError as error:
            raise UsageError(f"cannot write {target}: {error.strerror or error}") from error
    return len(failed)


def _files(result: Result, case: Case | None, judging: Judging) -> dict[str, bytes]:
    """Return what can be said of the case in a test directory; nothing if it cannot be read."""
    if case is None:
        return {}
    try:
        problem = case.load()
        if problem.must_reject:
            files = model_and_inputs(problem)
        else:
            key = expected_result(problem, case.location, judging)
            # Of its tolerances the layout can hold but one.
            tolerance = problem.tolerance if isinstance(problem.tolerance, Relative) else None
            whole = replace(problem, stored=key.outputs, tolerance=tolerance, output_tolerances={})
            files = directory_files(whole)
    except (InvalidCase, UsageError):
        return {}
    for index, value in enumerate(result.returned):
        # Some element types have no place in a file.
        with suppress(ValueError):
            tensor = tensor_of(value)  # type: ignore[arg-type] # a run keeps tensors alone
            actual = tensor.SerializeToString(deterministic=True)
            files[f"test_data_set_0/actual_{index}.pb"] = actual
    # Without outputs it is no case, and must not be taken for one.
    return {f"refused_{name}": it for name, it in files.items()} if problem.must_reject else files


def _readme(result: Result, record: RunRecord) -> str:
    version = next((it.version for it in record.backends if it.name == result.backend), "")
    lines = [
        f"{result.outcome.value}: {printable(result.case)}",
        f"backend: {printable(result.backend)} {printable(version)}".rstrip(),
        f"case: {printable(str(result.location))}",
        "",
        failure_text(result),
        "",
        "again:",
        f"  {printable(repeat_command(result, record.options))}",
    ]
    return "\n".join(lines) + "\n"


def _file_name(text: str) -> str:
    """Return a file name for any text.

    Only letters, digits, ``_``, ``-`` and inner dots are left, so that no name leads anywhere.
    """
    return (
        re.sub(r"[^A-Za-z0-9_.-]", "_", text.replace("/", "-")).strip(".")[:_MAX_NAME_CHARS] or "_"
    )
