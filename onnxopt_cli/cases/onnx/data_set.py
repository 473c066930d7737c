"""Reading one data set of an ONNX test directory: its model, tolerance, inputs and outputs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import onnx
from onnx import ValueInfoProto

from onnxopt_cli.cases.onnx.directory_names import DATA_FILE, first_gap, is_number
from onnxopt_cli.cases.onnx.directory_tolerance import read_directory_data
from onnxopt_cli.cases.onnx.model_file import external_files, read_model
from onnxopt_cli.cases.values.malformed import Malformed
from onnxopt_cli.cases.values.proto_values import (
    Message,
    message_class,
    name_of,
    parse_message,
    value_of,
)
from onnxopt_cli.cases.values.regular_file import read_regular_file
from onnxopt_cli.core.case import Content
from onnxopt_cli.core.tolerance import Relative
from onnxopt_cli.core.values import Value
from onnxopt_cli.errors import InvalidCase, Problem


def read_data_set(directory: Path, number: int) -> Content:
    """Read ``test_data_set_<number>`` of a test directory.

    Raises:
        InvalidCase: with everything that is wrong with the data set, its model and ``data.json``.
    """
    problems: list[Problem] = []
    tolerance = _tolerance(directory / DATA_FILE, problems)
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


def _tolerance(path: Path, problems: list[Problem]) -> Relative | None:
    if not path.exists():
        return None
    try:
        return read_directory_data(path).tolerance
    except Malformed as error:
        problems.append(Problem(str(path), str(error)))
        return None
