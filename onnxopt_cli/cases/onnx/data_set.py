"""Read and write the cases of an ONNX test directory: model, tolerance, inputs and outputs."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, ValueInfoProto

from onnxopt_cli.cases.case import Problem
from onnxopt_cli.cases.onnx.model_check import model_fault, symbol_fault
from onnxopt_cli.cases.onnx.model_file import external_files, read_model
from onnxopt_cli.cases.tensors.proto_values import (
    Message,
    message_class,
    message_of,
    name_of,
    parse_message,
    read_message,
    value_of,
)
from onnxopt_cli.core.files import shown_path
from onnxopt_cli.core.text import abbreviated, listed, printable, some_of
from onnxopt_cli.core.tolerance import (
    ONNX_DEFAULT,
    Provenance,
    Relative,
)
from onnxopt_cli.core.untrusted_files import (
    MAX_CASE_BYTES,
    Malformed,
    TooLarge,
    read_regular_file,
    reading_at_most,
)
from onnxopt_cli.core.values import Value
from onnxopt_cli.errors import (
    BeyondLimit,
    Fault,
    InvalidCase,
    UsageError,
)

#: Prefix of the names of onnx's "light" models, whose weights are constants.
LIGHT_PREFIX = "light_"
#: The file that contains a directory's tolerance and, if the model is missing, the URL of the
#: model.
DATA_FILE = "data.json"

#: Limit on the total number of elements of all generated inputs of a model. A model of a few bytes
#: can declare inputs of any size.
MAX_GENERATED_ELEMENTS = 2**26
_MAX_DATA_FILE_BYTES = 1_000_000
_MAX_UNREAD_NAMES = 5
# Data sets for which a warning about unread files has been shown.
_warned_folders: set[Path] = set()


class CaseFiles(NamedTuple):
    """The paths of a case's files.

    Attributes:
        model: the model.
        data: the ``data.json`` with the tolerance, which may be missing.
        folder: the folder of inputs and outputs.
        inputs: prefix of the names of input files; None if the inputs are generated.
        outputs: prefix of the names of output files.
    """

    model: Path
    data: Path
    folder: Path
    inputs: str | None
    outputs: str

    def present(self) -> dict[str, tuple[()]]:
        """Return the existing files that :func:`read_case` may read."""
        prefixes = tuple(f"{prefix}_" for prefix in (self.inputs, self.outputs) if prefix)
        # The result contains no files of an unreadable folder; the error is reported when the case
        # is read.
        values = sorted(path for path in self.folder.glob("*.pb") if path.name.startswith(prefixes))
        data = [self.data] if os.path.lexists(self.data) else []
        files = [self.model, *data, *values, *external_files(self.model)]
        return {str(path): () for path in files}


def data_set_files(directory: Path, number: int) -> CaseFiles:
    """Return the files of ``test_data_set_<number>`` in a test directory."""
    folder = directory / f"test_data_set_{number}"
    return CaseFiles(directory / "model.onnx", directory / DATA_FILE, folder, "input", "output")


def light_files(model: Path) -> CaseFiles:
    """Return the files of a model in onnx's light corpus.

    The tolerance is in the directory ``../real/test_<x>``, whose ``data.json`` contains the URL of
    the model. Inputs are not stored; like onnx's runner, onnxopt generates them from the declared
    shapes.
    """
    name = f"test_{model.stem.removeprefix(LIGHT_PREFIX)}"
    data = model.parent.parent / "real" / name / DATA_FILE
    return CaseFiles(model, data, model.parent, None, f"{model.stem}_output")


def read_case(files: CaseFiles) -> Problem:
    """Read a case.

    Raises:
        InvalidCase: if the values, the model or ``data.json`` are invalid; lists all errors.
    """
    with reading_at_most(MAX_CASE_BYTES):
        return _read_case(files)


def _read_case(files: CaseFiles) -> Problem:
    problems: list[Fault] = []
    tolerance, url = None, ""
    try:
        if files.data.exists():
            tolerance, url = read_directory_data(files.data)
    except Malformed as error:
        problems.append(Fault(str(files.data), str(error)))
    paths: dict[str | None, list[Path]] = {files.inputs: [], files.outputs: []}
    try:
        names = [path.name for path in files.folder.iterdir()]
    except OSError as error:
        problems.append(Fault(str(files.folder), f"cannot be read: {error.strerror}"))
    else:
        for prefix in filter(None, paths):
            numbers = find_numbers(files.folder, names, f"{prefix}_", ".pb", problems)
            paths[prefix] = [files.folder / f"{prefix}_{number}.pb" for number in numbers]
        _name_unread_files(files, names, paths)
    try:
        model = read_model(files.model)
    except InvalidCase as error:
        if isinstance(error, BeyondLimit) and not problems:
            raise
        raise InvalidCase([*problems, *error.problems]) from None
    fed, graph = fed_inputs(model.graph), model.graph
    if files.inputs:
        inputs = _read_values(files.folder, paths[files.inputs], fed, "input", problems)
    else:
        inputs = _ramps(files.model, fed, problems)
    outputs = _read_values(files.folder, paths[files.outputs], graph.output, "output", problems)
    if problems:
        raise InvalidCase(problems)
    applies = files.inputs or url.endswith(f"/light/{files.model.name}")
    return Problem(model, inputs, outputs, tolerance if applies else None)


def _name_unread_files(
    files: CaseFiles, names: Iterable[str], paths: Mapping[str | None, Sequence[Path]]
) -> None:
    """Warn once about visible files of a data set that are not read, such as ``input_0.npy``."""
    # The folder of a light model also contains other models.
    if files.inputs is None or files.folder in _warned_folders:
        return
    read_names = {path.name for values in paths.values() for path in values}
    unread_names = sorted(name for name in names if name not in read_names and name[0] != ".")
    if unread_names:
        _warned_folders.add(files.folder)
        folder = printable(shown_path(files.folder))
        files_shown = some_of(unread_names, _MAX_UNREAD_NAMES)
        logging.getLogger(__name__).warning("%s: not read: %s", folder, files_shown)


def read_checked_case(files: CaseFiles) -> Problem:
    """Read a case; check its model with onnx, and compare the shapes of its values with the graph.

    Raises:
        InvalidCase: see :func:`read_case`.
    """
    problem = read_case(files)
    graph = problem.model.graph
    if fault := symbol_fault(graph, problem.inputs, problem.stored or {}):
        raise InvalidCase([Fault(str(files.folder), fault)])
    if fault := model_fault(problem.model, problem.inputs):
        raise InvalidCase([Fault(str(files.model), f"does not pass onnx's check: {fault}")])
    return problem


def fed_inputs(graph: onnx.GraphProto) -> list[ValueInfoProto]:
    """Return the inputs that a caller must feed: all inputs without an initializer."""
    constants = {tensor.name for tensor in graph.initializer}
    constants |= {sparse.values.name for sparse in graph.sparse_initializer}
    return [value for value in graph.input if value.name not in constants]


def read_inputs(folder: Path, declared: Sequence[ValueInfoProto]) -> dict[str, Value]:
    """Read the inputs of a model from the files ``input_<i>.pb`` of a folder.

    Raises:
        InvalidCase: if files are missing or invalid.
    """
    problems: list[Fault] = []
    names = [path.name for path in folder.iterdir()]
    numbers = find_numbers(folder, names, "input_", ".pb", problems)
    paths = [folder / f"input_{number}.pb" for number in numbers]
    values = _read_values(folder, paths, declared, "input", problems)
    if problems:
        raise InvalidCase(problems)
    return values


def find_numbers(
    folder: Path, names: Iterable[str], prefix: str, suffix: str, problems: list[Fault]
) -> list[int]:
    """Return the sorted numbers in the names that have the prefix and the suffix.

    A fault is added to `problems` for each name with other text in place of the number, and for
    each missing number.
    """
    numbers = []
    for name in names:
        inner = name[len(prefix) : len(name) - len(suffix)]
        if name != f"{prefix}{inner}{suffix}":
            continue
        if is_number(inner):
            numbers.append(int(inner))
        else:
            message = f"has {'a file ' * bool(suffix)}{name!a}; "
            message += f"{prefix}<number>{suffix} was expected"
            problems.append(Fault(str(folder), message))
    numbers.sort()
    gap = next((i for i, number in enumerate(numbers) if i != number), None)
    if gap is not None:
        message = f"has {prefix}{numbers[-1]}{suffix}, but no {prefix}{gap}{suffix}"
        problems.append(Fault(str(folder), message))
    return numbers


def _read_values(
    folder: Path,
    files: Sequence[Path],
    declared: Sequence[ValueInfoProto],
    kind: str,
    problems: list[Fault],
) -> dict[str, Value]:
    """Read the files of a data set's inputs or outputs.

    A file belongs to the input (or output) that its message names. A file without a name belongs to
    the input (or output) at the same position.

    Args:
        folder: the folder, for messages.
        files: the files in order.
        declared: the inputs (or outputs) that the graph declares, in order.
        kind: ``input`` or ``output``.
        problems: the list to which faults are added.

    Returns:
        The valid values by name, in the graph's order.

    Raises:
        BeyondLimit: if a file is too large.
    """
    types = {value.name: value.type for value in declared}
    try:
        classes = {name: message_class(value_type) for name, value_type in types.items()}
    except Malformed as error:
        problems.append(Fault(str(folder), f"one of the graph's {kind}s {error}"))
        return {}
    owners: dict[str, Path] = {}
    values: dict[str, Value] = {}
    for position, path in enumerate(files):
        try:
            if position >= len(types):
                extra = f"is an extra file: the graph has {len(types)} {kind}s"
                raise Malformed(extra)  # noqa: TRY301 - handled like the other faults of the file
            data, raw_data = read_message(path)
            name, message = _named_message(data, classes, position, kind)
            if name in owners:
                duplicate = f"holds the {kind} {name!r}, as does {owners[name].name}"
                raise Malformed(duplicate)  # noqa: TRY301 - as above
            owners[name] = path
            values[name] = value_of(message, types[name], raw_data)
        except TooLarge as error:
            raise BeyondLimit([Fault(str(path), str(error))]) from None
        except Malformed as error:
            problems.append(Fault(str(path), str(error)))
    if len(files) < len(types):
        missing = listed(repr(name) for name in types if name not in owners)
        fault = (
            f"has {len(files)} {kind} files for the graph's {len(types)} {kind}s: {missing} missing"
        )
        problems.append(Fault(str(folder), fault))
    return {name: values[name] for name in types if name in values}


def _named_message(
    data: bytes, classes: Mapping[str, type[Message]], position: int, kind: str
) -> tuple[str, Message]:
    """Return the input or output that a file belongs to, and the message in the file."""
    default = list(classes)[position]
    parsed: dict[type[Message], Message] = {}
    # If the message contains a name, the name determines the input or output; otherwise, the
    # position of the file does. Some data are valid for several classes, so each class is tried.
    for candidate in dict.fromkeys([classes[default], *classes.values()]):
        try:
            message = parsed[candidate] = parse_message(data, candidate)
            name = name_of(message)
        except Malformed:
            continue
        if classes.get(name) is candidate:
            return name, message
    message = parsed.get(classes[default]) or parse_message(data, classes[default])
    name = name_of(message)
    if not name:
        return default, message
    if name in classes:
        return name, parse_message(data, classes[name])
    names = listed(map(repr, classes))
    raise Malformed(f"names itself {abbreviated(name)!r}; the graph's {kind}s are {names}")


def _ramps(
    model: Path, declared: Iterable[ValueInfoProto], problems: list[Fault]
) -> dict[str, Value]:
    """Return the elements 0, 1/n, ..., (n-1)/n in the declared shape of each input.

    Unknown dimensions have size 1.

    Source: ``Runner.generate_dummy_data`` in onnx/backend/test/runner.
    """
    values: dict[str, Value] = {}
    elements = 0
    for info in declared:
        tensor = info.type.tensor_type
        shape = [size.dim_value if size.HasField("dim_value") else 1 for size in tensor.shape.dim]
        count = math.prod(shape)
        fault = ""
        if tensor.elem_type != TensorProto.FLOAT:
            fault = "is not a float32 tensor; only such inputs can be generated"
        elif min(shape, default=0) < 0:
            fault = f"has the shape {shape}, which has a negative size"
        elif elements + max(count, 1) > MAX_GENERATED_ELEMENTS:
            fault = (
                f"has the shape {shape}, but at most {MAX_GENERATED_ELEMENTS} elements are "
                "generated for all inputs of a model together"
            )
        if fault:
            problems.append(Fault(str(model), f"the input {info.name!r} {fault}"))
        else:
            elements += max(count, 1)
            ramp = np.arange(count) / max(count, 1)
            values[info.name] = ramp.astype(np.float32).reshape(shape)
    return values


def read_directory_data(path: Path) -> tuple[Relative | None, str]:
    """Read a ``data.json``.

    Returns:
        The tolerance, and the URL of the model. If only one of rtol and atol is missing, it has
        ONNX's default; if both are missing, the tolerance is None. A missing URL is an empty
        string.

    Raises:
        Malformed: if the file is missing, is not a JSON object, or has a tolerance that is not a
            finite number of at least zero.
    """
    data = read_regular_file(path, _MAX_DATA_FILE_BYTES)
    try:
        content = json.loads(data, parse_int=float)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise Malformed("is not a JSON object")
    tolerance = None
    if "rtol" in content or "atol" in content:
        rtol, atol = (_limit(content, key) for key in ("rtol", "atol"))
        tolerance = Relative(rtol, atol, Provenance.DIRECTORY)
    url = content.get("url", "")
    return tolerance, url if isinstance(url, str) else ""


def _limit(content: dict[str, Any], key: str) -> float:
    value = content.get(key, getattr(ONNX_DEFAULT, key))
    if not isinstance(value, float):
        raise Malformed(f"has the {key} {value!r:.40}; a number was expected")
    if not 0 <= value < math.inf:
        raise Malformed(f"has the {key} {value}; a finite number of at least 0 was expected")
    return value


def write_directory(folder: Path, problem: Problem) -> dict[str, bytes]:
    """Write a case as a new test directory: model, inputs, outputs, and tolerance if any.

    Args:
        folder: the directory, ``.../test_<name>``; it is created with its parents.
        problem: the case.

    Returns:
        The files by their paths in the folder.

    Raises:
        UsageError: if the folder is not empty or cannot be written, or a test directory cannot
            represent the case (see :func:`directory_files`).
    """
    files = directory_files(problem)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Files of another case in the folder would be read as a part of the written case.
        if any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty", hint="name a new or an empty folder")
        write_new_directory(folder, files)
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror or error}") from error
    return files


def write_new_directory(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a new test directory.

    After an error or Ctrl-C, the directory is removed, because a test directory that lacks files
    could be mistaken for another case.

    Args:
        folder: the directory, which does not exist or is empty.
        files: contents by path in the directory.

    Raises:
        OSError: if a file cannot be written or exists already.
    """
    try:
        for name, data in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.write(data)
    except BaseException as error:
        if not isinstance(error, FileExistsError):
            shutil.rmtree(folder, ignore_errors=True)
        raise


def directory_files(problem: Problem) -> dict[str, bytes]:
    """Return the files of a test directory by their paths within the directory.

    Raises:
        UsageError: if the case has no stored outputs, has tolerances other than one rtol and atol,
            must be rejected, or has values that are not of the types that the model declares. A
            test directory cannot represent such a case.
    """
    if problem.stored is None:
        raise UsageError("an ONNX test directory needs the expected outputs")
    if problem.must_reject:
        raise UsageError("an ONNX test directory cannot state that the model must be rejected")
    if problem.output_tolerances or not isinstance(problem.tolerance, Relative | None):
        raise UsageError("an ONNX test directory has one rtol and atol for all outputs")
    files = model_and_inputs(problem)
    if problem.tolerance is not None:
        limits = {"atol": problem.tolerance.atol, "rtol": problem.tolerance.rtol}
        files[DATA_FILE] = (json.dumps(limits, indent=2) + "\n").encode()
    files |= _value_files("output", problem.model.graph.output, problem.stored)
    return files


def model_and_inputs(problem: Problem) -> dict[str, bytes]:
    """Return the files of a test directory except the outputs and the tolerance.

    Raises:
        UsageError: if the inputs are not of the types that the model declares.
    """
    files = {"model.onnx": problem.model.SerializeToString(deterministic=True)}
    return files | _value_files("input", fed_inputs(problem.model.graph), problem.inputs)


def _value_files(
    kind: str, declared: Sequence[ValueInfoProto], values: Mapping[str, Value]
) -> dict[str, bytes]:
    if set(values) != {value.name for value in declared}:
        raise UsageError(
            f"the model's {kind}s are {listed(value.name for value in declared)}, "
            f"but the case has {listed(values)}"
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


def is_number(text: str) -> bool:
    """Return whether a text has one to nine digits and no leading zero, as in ``input_0.pb``."""
    return re.fullmatch(r"0|[1-9][0-9]{0,8}", text) is not None
