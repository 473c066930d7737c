"""Cases of model files without test data: inputs from files or a seed, and no stored outputs.

A dimension is symbolic if it has a name, has no size, or has a negative size, which Paddle's
exporter writes for an unknown size. Dimensions with the same name have the same size in all inputs.
If the user does not state a size, onnxopt chooses one such that onnx's shape inference finds
neither a contradiction nor an empty tensor.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnxopt_cli.cases.case import Case, Problem
from onnxopt_cli.cases.onnx.data_set import MAX_GENERATED_ELEMENTS, fed_inputs, read_inputs
from onnxopt_cli.cases.onnx.model_check import is_symbol, model_fault, symbol_fault
from onnxopt_cli.cases.onnx.model_file import external_files, read_model
from onnxopt_cli.cases.tensors.declared import integer_range
from onnxopt_cli.cases.tensors.proto_values import check_type, describe_type
from onnxopt_cli.cases.tensors.tensor_file import array_names, declare_file
from onnxopt_cli.config.run_config import ModelInputs
from onnxopt_cli.core.result import Location
from onnxopt_cli.core.text import listed, nearest, printable
from onnxopt_cli.core.untrusted_files import (
    MAX_CASE_BYTES,
    Malformed,
    reading_at_most,
)
from onnxopt_cli.core.values import Array, Value, random_state
from onnxopt_cli.errors import BeyondLimit, Fault, InvalidCase, UsageError
from onnxopt_cli.operators.native_onnx import OnnxRefusal, infer_shapes

# Sizes that are tried for symbolic dimensions, in order.
_SIZES = (64, 32, 16, 8, 48, 128, 224, 320, 640, 1, 2, 3, 4)
# Size for the first dimension of a tensor, which is usually the batch.
_BATCH = 1
# The rank of tensors that are considered batches of images.
_IMAGE_RANK = 4
# Size for the second dimension of a batch of images, which is usually the channels.
_CHANNELS = 3
# Integers of unknown meaning are drawn below this limit: 0 and 1 are valid as masks, as flags, and
# as indices into most tensors.
_INTEGERS_BELOW = 2
# Operators that may lie between an input and the Gather that uses the input as indices.
_PASSED_ON = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"})
_WORDS = np.array(["a", "b", "onnx", ""], dtype=object)
_HINT = "give the values by --inputs, or sizes by --dim NAME=SIZE"


def bare_model_case(path: Path, settings: ModelInputs) -> Case:
    """Return a model file as a case without stored outputs.

    Args:
        path: the file.
        settings: where the inputs come from.
    """
    real = Path(os.path.realpath(path))
    source = settings.inputs or f"seed {settings.seed}"
    return Case(
        f"{real.parent.name or 'root'}/{path.stem}",
        Location(path),
        partial(_read, path, settings),
        about=printable(f"inputs from {source}"),
        files=partial(_files, path, settings),
    )


def _files(path: Path, settings: ModelInputs) -> dict[str, tuple[()]]:
    """Return the paths of all files that are read when the case is loaded."""
    files = [path, *external_files(path)]
    if settings.inputs:
        inputs = settings.inputs
        files += sorted(inputs.glob("*.pb")) if inputs.is_dir() else [inputs]
    return {str(file): () for file in files}


def require_settings_of_models(paths: Sequence[Path], settings: ModelInputs) -> None:
    """Require that the settings of inputs fit the models.

    Invalid models are not considered, because the run reports them.

    Args:
        paths: the models.
        settings: the settings. Each symbol whose size they state must occur in at least one model,
            and the inputs that they state must fit every model.

    Raises:
        UsageError: if the settings do not fit the models, or state inputs although there is no
            model.
    """
    if not paths and (settings.inputs or settings.sizes):
        option = "--inputs" if settings.inputs else "--dim"
        raise UsageError(f"{option} requires a model file as a target")
    symbols: dict[str, None] = {}
    for path in paths:
        try:
            with reading_at_most(MAX_CASE_BYTES):
                graph = _read_model(path).graph
        except InvalidCase:
            return
        sizes = (size for info in fed_inputs(graph) for size in _sizes(info))
        symbols |= {size: None for size in sizes if isinstance(size, str)}
        if settings.inputs is None:
            continue
        try:
            with reading_at_most(MAX_CASE_BYTES):
                _values_of_file(settings.inputs, graph)
        except BeyondLimit:
            return
        except InvalidCase as error:
            message = f"--inputs does not fit {printable(str(path))}: {error.message}"
            raise UsageError(message, hint=error.hint) from error
    for name in settings.sizes:
        if name not in symbols:
            existing = f"the inputs have {listed(symbols)}" if symbols else "all sizes are stated"
            hint = "--dim takes a name, or INPUT:AXIS for a dimension without a name"
            raise UsageError(
                f"--dim: no symbolic dimension is called {printable(name)}; {existing}",
                hint=nearest(name, symbols, hint),
            )


def _read_model(path: Path) -> onnx.ModelProto:
    """Read a valid model.

    Raises:
        InvalidCase: if the file is invalid.
    """
    model = read_model(path)
    if fault := model_fault(model):
        raise InvalidCase([Fault(str(path), f"does not pass onnx's check: {fault}")])
    return model


def _read(path: Path, settings: ModelInputs) -> Problem:
    """Read the model, and read or draw its inputs.

    Raises:
        InvalidCase: if a file is invalid, or inputs cannot be drawn.
    """
    with reading_at_most(MAX_CASE_BYTES):
        model = _read_model(path)
        if settings.inputs:
            inputs = _values_of_file(settings.inputs, model.graph)
            if fault := model_fault(model, inputs):
                raise InvalidCase([Fault(str(settings.inputs), fault)])
        else:
            inputs = _drawn_inputs(model, settings, str(path))
    return Problem(model, inputs, None)


def _values_of_file(path: Path, graph: onnx.GraphProto) -> dict[str, Value]:
    """Read the inputs of a model from a data set directory, or a .npz, .npy or .pb file.

    Raises:
        InvalidCase: if a value is missing, is not of the declared type, or belongs to no input, or
            if the shapes of the values contradict each other.
    """
    declared = fed_inputs(graph)
    values = read_inputs(path, declared) if path.is_dir() else _read_arrays(path, declared)
    if fault := symbol_fault(graph, values, {}):
        raise InvalidCase([Fault(str(path), fault)])
    return values


def _read_arrays(path: Path, declared: Sequence[onnx.ValueInfoProto]) -> dict[str, Value]:
    """Read the inputs of a model from a .npz, .npy or .pb file.

    Raises:
        InvalidCase: if a value is missing, is not of the declared type, or belongs to no input.
    """
    real = Path(os.path.realpath(path))
    names = [info.name for info in declared]
    try:
        if real.suffix == ".npz":
            keys: Mapping[str, str | None] = {name: name for name in names}
            if unread := [name for name in array_names(real) if name not in keys]:
                raise Malformed(  # noqa: TRY301 - joins the other reasons
                    f"holds {listed(unread)}; the model's inputs are {listed(names)}"
                )
        elif len(names) == 1:
            keys = {names[0]: None}
        else:
            raise Malformed(  # noqa: TRY301 - as above
                f"holds one value for the inputs {listed(names)}; a directory or .npz file was "
                "expected"
            )
        values: dict[str, Value] = {}
        for info in declared:
            element = info.type.tensor_type.elem_type
            dtype = _dtype(element) if element else None
            # NumPy's files store elements of types that NumPy lacks, such as bfloat16, without the
            # name of the type.
            stored_dtype = dtype if dtype is not None and dtype.kind == "V" else None
            values[info.name] = declare_file(real, keys[info.name], stored_dtype).make()
            check_type(values[info.name], info.type, info.name)
    except Malformed as error:
        raise InvalidCase([Fault(str(path), printable(str(error)))]) from None
    return values


def _drawn_inputs(model: onnx.ModelProto, settings: ModelInputs, where: str) -> dict[str, Value]:
    """Draw the inputs of a model by their declared types and shapes.

    Floats are normally distributed. Integers that a Gather uses as indices are valid indices. Other
    integers of up to 8 bits have the whole range of their type, and all other integers are 0 or 1.

    Args:
        model: the model.
        settings: sizes of symbols, and the seed.
        where: the location of the model, for messages.

    Raises:
        InvalidCase: if an input is not a tensor, or the inputs would have more than 2^26 elements
            together.
    """
    declared = fed_inputs(model.graph)
    for info in declared:
        if not info.type.tensor_type.elem_type:
            kind = describe_type(info.type)
            raise InvalidCase([Fault(where, f"the input {info.name!r} is {kind}")], hint=_HINT)
    shapes = _shapes(model, declared, settings)
    _require_few_elements(shapes, where)
    limits = _index_limits(model.graph)
    values: dict[str, Value] = {}
    for index, info in enumerate(declared):
        shape = shapes[info.name]
        state = random_state((settings.seed + 7919 * index) % 2**32)
        dtype = _dtype(info.type.tensor_type.elem_type)
        values[info.name] = _drawn(dtype, shape, state, limits.get(info.name, _INTEGERS_BELOW))
    return values


def _require_few_elements(shapes: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Require that the inputs of a model are not too large to be drawn.

    Raises:
        InvalidCase: if the inputs are too large; the message names the largest input.
    """
    counts = {name: math.prod(max(size, 1) for size in shape) for name, shape in shapes.items()}
    if sum(counts.values()) > MAX_GENERATED_ELEMENTS:
        largest = max(counts, key=lambda name: counts[name])
        fault = (
            f"the inputs are too large: at most {MAX_GENERATED_ELEMENTS} elements are drawn for a "
            f"model; the largest input, {largest!r}, has the shape {list(shapes[largest])}"
        )
        raise InvalidCase([Fault(where, fault)], hint=_HINT)


def _dtype(element: int) -> np.dtype[Any]:
    return (
        np.dtype(object)
        if element == TensorProto.STRING
        else helper.tensor_dtype_to_np_dtype(element)
    )


def _drawn(
    dtype: np.dtype[Any], shape: tuple[int, ...], state: np.random.RandomState, below: int
) -> Array:
    if dtype.kind == "O":
        return _WORDS[state.randint(0, len(_WORDS), shape)]
    if dtype == np.bool_:
        return state.randint(0, 2, shape).astype(np.bool_)
    if "int" in dtype.name:
        low, high = integer_range(dtype)
        if high - low >= 1 << 8:
            low, high = 0, below - 1
        return state.randint(low, high + 1, shape, np.int64).astype(dtype)
    values = state.standard_normal(shape)
    if dtype.kind == "c":
        values = values + 1j * state.standard_normal(shape)
    return np.asarray(values).astype(dtype)


def _shapes(
    model: onnx.ModelProto,
    declared: Sequence[onnx.ValueInfoProto],
    settings: ModelInputs,
) -> dict[str, tuple[int, ...]]:
    """Return the shape of each input, with a size in place of each symbol."""
    symbols = {info.name: [*_sizes(info)] for info in declared}
    every = {size: None for sizes in symbols.values() for size in sizes if isinstance(size, str)}
    stated = settings.sizes
    usual: dict[str, int] = {}
    for sizes in symbols.values():
        for axis, size in enumerate(sizes):
            if isinstance(size, str) and axis == 0 and len(sizes) > 1:
                usual.setdefault(size, _BATCH)
            elif isinstance(size, str) and axis == 1 and len(sizes) == _IMAGE_RANK:
                usual.setdefault(size, _CHANNELS)

    def shapes_of(size_of_others: int) -> dict[str, tuple[int, ...]]:
        chosen = dict.fromkeys(every, size_of_others) | usual | stated
        return {
            name: tuple(chosen[size] if isinstance(size, str) else size for size in sizes)
            for name, sizes in symbols.items()
        }

    candidates = map(shapes_of, _SIZES)
    if every.keys() <= usual.keys() | stated.keys():
        return next(candidates)
    fitting = (shapes for shapes in candidates if _fit(model, shapes))
    return next(fitting, None) or shapes_of(_SIZES[0])


def _sizes(info: onnx.ValueInfoProto) -> Iterator[str | int]:
    """Yield the sizes of an input's dimensions; symbolic dimensions have names instead."""
    for axis, dimension in enumerate(info.type.tensor_type.shape.dim):
        if is_symbol(dimension.dim_param):
            yield dimension.dim_param
        elif dimension.HasField("dim_value") and dimension.dim_value >= 0:
            yield dimension.dim_value
        else:
            yield f"{info.name}:{axis}"


def _fit(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether onnx infers neither a contradiction nor an empty tensor from input shapes."""
    concrete = onnx.ModelProto()
    concrete.CopyFrom(model)
    graph = concrete.graph
    del graph.value_info[:]
    for info in graph.input:
        if info.name in shapes:
            element = info.type.tensor_type.elem_type
            info.type.CopyFrom(helper.make_tensor_type_proto(element, shapes[info.name]))
    for info in graph.output:
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    try:
        inferred = infer_shapes(concrete, strict_mode=True, data_prop=True)
    except OnnxRefusal:
        return False
    return not any(
        dimension.HasField("dim_value") and dimension.dim_value < 1
        for info in inferred.graph.value_info
        for dimension in info.type.tensor_type.shape.dim
    )


def _index_limits(graph: onnx.GraphProto) -> dict[str, int]:
    """Return, for each input that a Gather uses as indices, the length of the indexed axis."""
    rows = {tensor.name: tensor.dims for tensor in graph.initializer}
    source = {info.name: info.name for info in graph.input}
    limits: dict[str, int] = {}
    for node in graph.node:
        if node.op_type in _PASSED_ON and node.input[0] in source:
            source[node.output[0]] = source[node.input[0]]
        elif node.op_type == "Gather" and node.input[0] in rows and node.input[1] in source:
            axis = next((item.i for item in node.attribute if item.name == "axis"), 0)
            name = source[node.input[1]]
            size = int(rows[node.input[0]][axis])
            limits[name] = min(size, limits.get(name, size))
    return limits
