"""ONNX test directories for tests, created with onnx's helpers only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from onnx import TensorProto, helper, numpy_helper

from onnxopt_cli.core.values import DTYPES, STRING

FLOAT = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
ONE_TWO = np.array([1, 2], np.float32)


def tensor_type(dtype=TensorProto.FLOAT, shape=None):
    return helper.make_tensor_type_proto(dtype, shape)


def identity(inputs, initializers=()):
    """Return a model that copies each input NAME to an output out_NAME.

    Args:
        inputs: the types of the inputs by name.
        initializers: initializers of the graph. An input with the name of an initializer has no
            output.
    """
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
    """Write a test directory with messages, or with bytes in their place."""
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
    """Write a valid test directory with one input and one output, both float32[2]."""
    value = tensor(ONE_TWO)
    return make_directory(folder, identity({"x": FLOAT}), [value], [value])


def same(one, other):
    """Return whether two values are equal in every bit."""
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


@st.composite
def arrays(draw):
    """Draw tensors of all element types and shapes, with any bits that the type permits."""
    name = draw(st.sampled_from(sorted(DTYPES)))
    shape = draw(npst.array_shapes(min_dims=0, min_side=0, max_side=5))
    count = int(np.prod(shape))
    if name == STRING:
        texts = draw(st.lists(st.text(max_size=4), min_size=count, max_size=count))
        array = np.empty(count, object)
        array[:] = texts
        return array.reshape(shape)
    dtype = DTYPES[name]
    raw = draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
    bits = np.frombuffer(raw, np.uint8)
    if name == "bool":
        bits = bits % 2
    elif name[-1] in "24" and name.removeprefix("u").startswith("int") and dtype.itemsize == 1:
        bits = bits % 2 ** int(name[-1])
    elif name.startswith(("float4", "float6")):
        bits = bits % 2 ** int(name[5])
    return bits.view(dtype).reshape(shape)


def element_number_of(array):
    return (
        TensorProto.STRING
        if array.dtype == object
        else helper.np_dtype_to_tensor_dtype(array.dtype)
    )
