"""Writing a case as an ONNX test directory, the same bytes every time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from onnx import ValueInfoProto

from onnxopt_cli.cases.onnx.data_set import fed_inputs
from onnxopt_cli.cases.onnx.directory_names import DATA_FILE
from onnxopt_cli.cases.onnx.directory_tolerance import tolerance_bytes
from onnxopt_cli.cases.values.proto_values import message_of
from onnxopt_cli.core.case import Content
from onnxopt_cli.core.tolerance import Relative
from onnxopt_cli.core.values import Value
from onnxopt_cli.errors import UsageError


def write_directory(folder: Path, content: Content) -> dict[str, bytes]:
    """Write a case as a new test directory: model, inputs, outputs, and its tolerance if any.

    Args:
        folder: the directory, ``.../test_<name>``; created, with its parents.
        content: the case.

    Returns:
        The files by their paths in the folder.

    Raises:
        UsageError: if the folder has something in it already, cannot be written, or the case
            cannot be a test directory, see :func:`directory_files`.
    """
    files = directory_files(content)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Input or output files left from another case would be read as this one's.
        if any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty", hint="remove it, or choose another folder")
        for parent in {(folder / name).parent for name in files} - {folder}:
            parent.mkdir()
        for name, data in files.items():
            (folder / name).write_bytes(data)
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror or error}") from error
    return files


def directory_files(content: Content) -> dict[str, bytes]:
    """Return the files of a test directory by their paths in it.

    Raises:
        UsageError: if the layout cannot say what the case says: expected outputs that are left to
            a formula, tolerances other than one rtol and atol, a model that must be refused, values
            that are not of the types that the model declares.
    """
    if content.expected is None:
        raise UsageError("an ONNX test directory needs the expected outputs")
    if content.rejects:
        raise UsageError("an ONNX test directory cannot say that the model must be refused")
    if content.output_tolerances or not isinstance(content.tolerance, Relative | None):
        raise UsageError("an ONNX test directory has one rtol and atol for all outputs")
    files = model_and_inputs(content)
    if content.tolerance is not None:
        files[DATA_FILE] = tolerance_bytes(content.tolerance)
    files |= _value_files("output", content.model.graph.output, content.expected)
    return files


def model_and_inputs(content: Content) -> dict[str, bytes]:
    """Return the files of a test directory that say what to run, without what must come back.

    Raises:
        UsageError: if the inputs are not of the types that the model declares.
    """
    files = {"model.onnx": content.model.SerializeToString(deterministic=True)}
    return files | _value_files("input", fed_inputs(content.model.graph), content.inputs)


def _value_files(
    kind: str, declared: Sequence[ValueInfoProto], values: Mapping[str, Value]
) -> dict[str, bytes]:
    if set(values) != {value.name for value in declared}:
        raise UsageError(
            f"the model's {kind}s are {', '.join(value.name for value in declared)}, "
            f"but the case has {', '.join(values)}"
        )
    files = {}
    for index, value in enumerate(declared):
        try:
            message = message_of(value.name, values[value.name], value.type)
        except ValueError as error:
            raise UsageError(f"{kind} {error}") from error
        data = message.SerializeToString(deterministic=True)
        files[f"test_data_set_0/{kind}_{index}.pb"] = data
    return files
