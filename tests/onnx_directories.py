"""Test directories for the tests, made with onnx's own helpers only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

FLOAT = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
ONE_TWO = np.array([1, 2], np.float32)


def tensor_type(dtype=TensorProto.FLOAT, shape=None):
    return helper.make_tensor_type_proto(dtype, shape)


def identity(inputs, initializers=()):
    """A model that returns its inputs, given as {name: type}, under the names out_<name>."""
    names = [name for name in inputs if name not in {tensor.name for tensor in initializers}]
    return helper.make_model(
        helper.make_graph(
            [helper.make_node("Identity", [name], [f"out_{name}"]) for name in names],
            "identity",
            [helper.make_value_info(name, kind) for name, kind in inputs.items()],
            [helper.make_value_info(f"out_{name}", inputs[name]) for name in names],
            list(initializers),
        )
    )


def tensor(array, name=""):
    return numpy_helper.from_array(np.asarray(array), name)


def as_bytes(message):
    return message if isinstance(message, bytes) else message.SerializeToString()


def make_directory(folder: Path, model=None, inputs=(), outputs=(), number=0):
    """Write a test directory; messages and bytes are written as they are."""
    data_set = folder / f"test_data_set_{number}"
    data_set.mkdir(parents=True)
    if model is not None:
        (folder / "model.onnx").write_bytes(as_bytes(model))
    for index, message in enumerate(inputs):
        (data_set / f"input_{index}.pb").write_bytes(as_bytes(message))
    for index, message in enumerate(outputs):
        (data_set / f"output_{index}.pb").write_bytes(as_bytes(message))
    return folder


def make_plain(folder: Path):
    """Write a right test directory with one float32[2] input and output."""
    value = tensor(ONE_TWO)
    return make_directory(folder, identity({"x": FLOAT}), [value], [value])


def same(one, other):
    """Tell whether two values are equal to the last bit."""
    if isinstance(one, np.ndarray):
        if not isinstance(other, np.ndarray) or (one.dtype, one.shape) != (
            other.dtype,
            other.shape,
        ):
            return False
        if one.dtype == object:
            return one.tolist() == other.tolist()
        return one.tobytes() == other.tobytes()
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and list(one) == list(other)
            and all(same(one[key], other[key]) for key in one)
        )
    return one is None and other is None
