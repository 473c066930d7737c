"""Reading and writing an ONNX test directory: model, tolerance, inputs and outputs."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, ValueInfoProto

from onnxopt_cli.cases.onnx.model_file import external_files, read_model
from onnxopt_cli.cases.values.proto_values import (
    Message,
    message_class,
    message_of,
    name_of,
    parse_message,
    value_of,
)
from onnxopt_cli.cases.values.regular_file import Malformed, read_regular_file
from onnxopt_cli.core.case import Content
from onnxopt_cli.core.tolerance import ONNX_DEFAULT, Provenance, Relative
from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.errors import InvalidCase, Problem, UsageError

#: What the name of a light model begins with.
LIGHT_PREFIX = "light_"
#: The file with a directory's tolerance, and where its model is if it is missing.
DATA_FILE = "data.json"


def read_data_set(directory: Path, number: int) -> Content:
    """Read ``test_data_set_<number>`` of a test directory.

    Raises:
        InvalidCase: with everything that is wrong with the data set, its model and ``data.json``.
    """
    problems: list[Problem] = []
    tolerance = _own_tolerance(directory / DATA_FILE, problems)
    folder = directory / f"test_data_set_{number}"
    files: dict[str, list[Path]] = {"input": [], "output": []}
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError as error:
        problems.append(Problem(str(folder), f"cannot be read: {error.strerror}"))
    else:
        files = {kind: numbered_files(folder, names, kind, problems) for kind in files}
    try:
        model = read_model(directory / "model.onnx")
    except InvalidCase as error:
        raise InvalidCase([*problems, *error.problems]) from None
    inputs = read_values(folder, files["input"], fed_inputs(model.graph), "input", problems)
    expected = read_values(folder, files["output"], model.graph.output, "output", problems)
    if problems:
        raise InvalidCase(problems)
    return Content(model, inputs, expected, tolerance)


def data_set_files(directory: Path, number: int) -> list[Path]:
    """Return the files that :func:`read_data_set` may read, as far as they are there."""
    model, data = directory / "model.onnx", directory / DATA_FILE
    folder = directory / f"test_data_set_{number}"
    try:
        inside = sorted(path for path in folder.iterdir() if path.suffix == ".pb")
    except OSError:
        # Reading the case says so.
        inside = []
    shared = [data] if os.path.lexists(data) else []
    return [model, *shared, *inside, *external_files(model)]


def fed_inputs(graph: onnx.GraphProto) -> list[ValueInfoProto]:
    """Return the inputs that a caller must feed: those without an initializer."""
    constants = {tensor.name for tensor in graph.initializer}
    constants |= {sparse.values.name for sparse in graph.sparse_initializer}
    return [value for value in graph.input if value.name not in constants]


def numbered_files(
    folder: Path, names: Iterable[str], prefix: str, problems: list[Problem]
) -> list[Path]:
    """Return the files ``<prefix>_<i>.pb`` among the names, by number; a gap is a problem."""
    pattern = re.compile(rf"{re.escape(prefix)}_(.*)\.pb", re.DOTALL)
    numbers = []
    for name in names:
        match = pattern.fullmatch(name)
        if match:
            if is_number(match[1]):
                numbers.append(int(match[1]))
            else:
                what = f"has a file {name!a}; {prefix}_<number>.pb was expected"
                problems.append(Problem(str(folder), what))
    numbers.sort()
    gap = first_gap(numbers)
    if gap is not None:
        what = f"has {prefix}_{numbers[-1]}.pb, but no {prefix}_{gap}.pb"
        problems.append(Problem(str(folder), what))
    return [folder / f"{prefix}_{number}.pb" for number in numbers]


def read_values(
    folder: Path,
    files: Sequence[Path],
    declared: Sequence[ValueInfoProto],
    kind: str,
    problems: list[Problem],
) -> dict[str, Value]:
    """Read the files of a data set's inputs or outputs.

    A file belongs to the input (or output) whose name is in it, or to that at its own position if
    it has none.

    Args:
        folder: for messages.
        files: in their order.
        declared: what the graph declares, in its order.
        kind: ``input`` or ``output``.
        problems: gets whatever is wrong.

    Returns:
        The values by name, in the graph's order; without those that have problems.
    """
    types = {value.name: value.type for value in declared}
    try:
        classes = {name: message_class(declared_type) for name, declared_type in types.items()}
    except Malformed as error:
        problems.append(Problem(str(folder), f"one of the graph's {kind}s {error}"))
        return {}
    owners: dict[str, Path] = {}
    found: dict[str, Value] = {}
    for position, path in enumerate(files):
        try:
            if position >= len(types):
                raise Malformed(f"is more than the graph's {len(types)} {kind}s")  # noqa: TRY301
            name, message = _named_message(read_regular_file(path), classes, position, kind)
            if name in owners:
                what = f"holds the {kind} {name!r}, as does {owners[name].name}"
                raise Malformed(what)  # noqa: TRY301 - joins the others of this file
            owners[name] = path
            found[name] = value_of(message, types[name])
        except Malformed as error:
            problems.append(Problem(str(path), str(error)))
    if len(files) < len(types):
        missing = ", ".join(repr(name) for name in types if name not in owners)
        what = f"has {len(files)} {kind} files for the graph's {len(types)} {kind}s: {missing}"
        problems.append(Problem(str(folder), f"{what} missing"))
    return {name: found[name] for name in types if name in found}


def _named_message(
    data: bytes, classes: Mapping[str, type[Message]], position: int, kind: str
) -> tuple[str, Message]:
    """Return the input or output that a file belongs to, and the message in the file."""
    here = list(classes)[position]
    parsed: dict[type[Message], Message] = {}
    # A name precedes the position, whose type may be another: some data are several messages.
    for candidate in dict.fromkeys([classes[here], *classes.values()]):
        try:
            message = parsed[candidate] = parse_message(data, candidate)
            name = name_of(message)
        except Malformed:
            continue
        if classes.get(name) is candidate:
            return name, message
    message = parsed.get(classes[here]) or parse_message(data, classes[here])
    name = name_of(message)
    if not name:
        return here, message
    if name in classes:
        return name, parse_message(data, classes[name])
    names = ", ".join(map(repr, classes))
    raise Malformed(f"names itself {name!r}; the graph's {kind}s are {names}")


def _own_tolerance(path: Path, problems: list[Problem]) -> Relative | None:
    if not path.exists():
        return None
    try:
        return read_directory_data(path).tolerance
    except Malformed as error:
        problems.append(Problem(str(path), str(error)))
        return None


_MAXIMUM_ELEMENTS = 2**28


def read_light(path: Path) -> Content:
    """Read a light model, its expected outputs beside it, and make its inputs.

    The tolerance is that of the directory ``../real/test_<x>``, whose ``data.json`` names the light
    model as its own.

    Raises:
        InvalidCase: with everything that is wrong.
    """
    problems: list[Problem] = []
    tolerance = _light_tolerance(path, problems)
    try:
        model = read_model(path)
    except InvalidCase as error:
        raise InvalidCase([*problems, *error.problems]) from None
    inputs = {}
    for declared in fed_inputs(model.graph):
        try:
            inputs[declared.name] = _ramp(declared)
        except Malformed as error:
            problems.append(Problem(str(path), f"the input {declared.name!r} {error}"))
    folder = path.parent
    names = [neighbour.name for neighbour in folder.iterdir()]
    files = numbered_files(folder, names, f"{path.stem}_output", problems)
    expected = read_values(folder, files, model.graph.output, "output", problems)
    if problems:
        raise InvalidCase(problems)
    return Content(model, inputs, expected, tolerance)


def light_files(path: Path) -> list[Path]:
    """Return the files that :func:`read_light` may read, as far as they are there."""
    names = sorted(neighbour.name for neighbour in path.parent.iterdir())
    outputs = [name for name in names if name.startswith(f"{path.stem}_output_")]
    data = _data_path(path)
    shared = [data] if os.path.lexists(data) else []
    return [path, *shared, *(path.parent / name for name in outputs), *external_files(path)]


def _ramp(declared: ValueInfoProto) -> Array:
    """Return 0, 1/n, ..., (n-1)/n in the declared shape, unknown dimensions being 1.

    Source: ``Runner.generate_dummy_data`` in onnx/backend/test/runner.
    """
    tensor = declared.type.tensor_type
    if tensor.elem_type != TensorProto.FLOAT:
        raise Malformed("is no float32 tensor, and no other kind can be made")
    shape = [size.dim_value if size.HasField("dim_value") else 1 for size in tensor.shape.dim]
    count = math.prod(shape)
    if min(shape, default=0) < 0 or count > _MAXIMUM_ELEMENTS:
        raise Malformed(f"has the shape {shape}, which is negative or too large to be made")
    return (np.arange(count) / max(count, 1)).astype(np.float32).reshape(shape)


def _light_tolerance(path: Path, problems: list[Problem]) -> Relative | None:
    data_path = _data_path(path)
    if not data_path.exists():
        return None
    try:
        data = read_directory_data(data_path)
    except Malformed as error:
        problems.append(Problem(str(data_path), str(error)))
        return None
    return data.tolerance if data.url.endswith(f"/light/{path.name}") else None


def _data_path(path: Path) -> Path:
    name = f"test_{path.stem.removeprefix(LIGHT_PREFIX)}"
    return path.parent.parent / "real" / name / DATA_FILE


_LIMIT = 1_000_000


@dataclass(frozen=True, slots=True)
class DirectoryData:
    """What ``data.json`` says.

    Attributes:
        tolerance: its rtol and atol, the missing one of the two being ONNX's default; None if it
            has neither.
        url: where the model is if it is not in the directory; empty if it does not say.
    """

    tolerance: Relative | None = None
    url: str = ""


def read_directory_data(path: Path) -> DirectoryData:
    """Read a ``data.json``.

    Raises:
        Malformed: if it is missing, no JSON object, or has a tolerance that is no finite number of
            at least zero.
    """
    data = read_regular_file(path, _LIMIT)
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise Malformed("is not a JSON object")
    url = content.get("url", "")
    return DirectoryData(_tolerance(content), url if isinstance(url, str) else "")


def tolerance_bytes(tolerance: Relative) -> bytes:
    """Return the content of a ``data.json`` with this tolerance."""
    content = {"atol": tolerance.atol, "rtol": tolerance.rtol}
    return (json.dumps(content, indent=2) + "\n").encode()


def _tolerance(content: dict[str, Any]) -> Relative | None:
    if "rtol" not in content and "atol" not in content:
        return None
    return Relative(
        rtol=_limit(content, "rtol", ONNX_DEFAULT.rtol),
        atol=_limit(content, "atol", ONNX_DEFAULT.atol),
        provenance=Provenance.DIRECTORY,
    )


def _limit(content: dict[str, Any], key: str, default: float) -> float:
    value = content.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Malformed(f"has the {key} {value!r:.40}; a number was expected")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not 0 <= number < math.inf:
        raise Malformed(f"has the {key} {number}; a finite number of at least 0 was expected")
    return number


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


def is_number(text: str) -> bool:
    """Tell whether a text is a number as it stands in names: no sign, no leading zeros."""
    return re.fullmatch(r"0|[1-9][0-9]{0,8}", text) is not None


def first_gap(numbers: Sequence[int]) -> int | None:
    """Return the first number from 0 on that ascending numbers leave out, or None."""
    return next((i for i, number in enumerate(numbers) if i != number), None)


def is_light_model(name: str) -> bool:
    """Tell whether a file name is that of a light model."""
    return name.startswith(LIGHT_PREFIX) and name.endswith(".onnx")
