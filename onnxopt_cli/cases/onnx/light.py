"""The flat layout of onnx's light models: ``light_x.onnx`` beside ``light_x_output_0.pb``.

They have no stored inputs: onnx's runner feeds numbers that it makes from the declared shapes.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
from onnx import TensorProto, ValueInfoProto

from onnxopt_cli.cases.onnx.data_set import fed_inputs, numbered_files, read_values
from onnxopt_cli.cases.onnx.directory_names import DATA_FILE, LIGHT_PREFIX
from onnxopt_cli.cases.onnx.directory_tolerance import read_directory_data
from onnxopt_cli.cases.onnx.model_file import external_files, read_model
from onnxopt_cli.cases.values.malformed import Malformed
from onnxopt_cli.core.case import Content
from onnxopt_cli.core.tolerance import Relative
from onnxopt_cli.core.values import Array
from onnxopt_cli.errors import InvalidCase, Problem

_MAXIMUM_ELEMENTS = 2**28


def read_light(path: Path) -> Content:
    """Read a light model, its expected outputs beside it, and make its inputs.

    The tolerance is that of the directory ``../real/test_<x>``, whose ``data.json`` names the light
    model as its own.

    Raises:
        InvalidCase: with everything that is wrong.
    """
    problems: list[Problem] = []
    tolerance = _tolerance(path, problems)
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


def _tolerance(path: Path, problems: list[Problem]) -> Relative | None:
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
