"""Conversion of a backend's outputs to ONNX values."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.testing import assert_array_equal
from onnx import TensorProto, TypeProto, helper

from onnxopt_cli.backends.protocol import normalise_outputs
from onnxopt_cli.errors import UnusableOutput

FLOAT = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
INT64 = helper.make_tensor_type_proto(TensorProto.INT64, None)


def tensor(element_type):
    return helper.make_tensor_type_proto(element_type, None)


def normalised(returned, *types):
    names = ["y", "z"]
    declared = [helper.make_value_info(*pair) for pair in zip(names, types, strict=False)]
    return normalise_outputs(returned, declared)


def converted(value, element_type=TensorProto.FLOAT):
    (array,) = normalised([value], tensor(element_type))
    return array


class HasArray:
    """A value that NumPy can convert, like a tensor of another framework."""

    def __array__(self, dtype=None, copy=None):
        return np.array([1, 2], np.float32)


class Raising:
    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("needs \x1b grad")


@pytest.mark.parametrize("container", [list, tuple])
def test_outputs_may_be_list_or_tuple(container):
    one, two = np.ones(1, np.float32), np.zeros(2, np.int64)
    assert_array_equal(normalised(container([one, two]), FLOAT, INT64)[1], two, strict=True)


def test_outputs_by_name_are_reordered():
    y, z = normalised({"z": np.zeros(2), "y": np.ones(1)}, FLOAT, FLOAT)
    assert (y.tolist(), z.tolist()) == ([1.0], [0.0, 0.0])


def test_missing_name_becomes_none():
    y, z = normalised({"z": np.zeros(2)}, FLOAT, FLOAT)
    assert y is None
    assert z.shape == (2,)


def test_undeclared_name_becomes_an_extra_output():
    assert len(normalised({"y": np.zeros(2), "q": np.zeros(1)}, FLOAT)) == 2


@pytest.mark.parametrize("number", [0, 1, 3])
def test_wrong_number_of_outputs_is_preserved(number):
    assert len(normalised([np.ones(1)] * number, FLOAT, FLOAT)) == number


@pytest.mark.parametrize(
    "returned",
    [None, np.ones(2), 1.0, "y", {1: np.ones(1)}, iter([np.ones(1)])],
    ids=["none", "array", "number", "string", "keys other than names", "iterator"],
)
def test_other_return_types_are_unusable(returned):
    with pytest.raises(UnusableOutput, match="the backend returned a"):
        normalised(returned, FLOAT)


@given(
    arrays.arrays(
        arrays.scalar_dtypes().filter(lambda dtype: dtype.isnative and dtype.kind in "biufc"),
        arrays.array_shapes(min_dims=0, min_side=0),
    )
)
def test_array_is_not_converted(array):
    assert converted(array) is array


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (memoryview(np.array([1, 2], np.float32)), np.array([1, 2], np.float32)),
        (HasArray(), np.array([1, 2], np.float32)),
        (np.float32(3), np.array(3, np.float32)),
        (np.array([1, 2], ">f4"), np.array([1, 2], np.float32)),
        (np.array([1, 2, 3, 4], np.float32)[::2], np.array([1, 3], np.float32)),
        ([np.float64(1), np.float64(2)], np.array([1, 2], np.float64)),
        ([np.ones(2, np.float64)], np.ones((1, 2), np.float64)),
    ],
    ids=["memoryview", "array protocol", "scalar", "byte order", "view", "typed list", "stacked"],
)
def test_numpy_values_keep_their_element_type(value, expected):
    assert_array_equal(converted(value), expected, strict=True)
    assert converted(value).dtype.isnative


@pytest.mark.parametrize(
    ("value", "element_type", "expected"),
    [
        ([0.1, 2], TensorProto.FLOAT, np.array([0.1, 2], np.float32)),
        (0.1, TensorProto.FLOAT, np.array(0.1, np.float32)),
        ([[1], [2]], TensorProto.UINT8, np.array([[1], [2]], np.uint8)),
        ([True, False], TensorProto.BOOL, np.array([True, False])),
        (3, TensorProto.BFLOAT16, np.array(3, ml_dtypes.bfloat16)),
        ([-8, 7], TensorProto.INT4, np.array([-8, 7], ml_dtypes.int4)),
        ([1, 2], TensorProto.COMPLEX64, np.array([1, 2], np.complex64)),
        ([], TensorProto.INT32, np.array([], np.int32)),
        ([[], []], TensorProto.STRING, np.zeros((2, 0), object)),
        (2**63, TensorProto.UINT64, np.array(2**63, np.uint64)),
    ],
)
def test_python_numbers_take_the_declared_type(value, element_type, expected):
    assert_array_equal(converted(value, element_type), expected, strict=True)


@pytest.mark.parametrize(
    ("value", "element_type"),
    [
        ([1.5], TensorProto.INT64),
        ([1.0], TensorProto.INT64),
        ([300], TensorProto.UINT8),
        ([-1], TensorProto.UINT64),
        ([8], TensorProto.INT4),
        ([1j], TensorProto.FLOAT),
        ([1, 0], TensorProto.BOOL),
        ([True], TensorProto.FLOAT),
        ([1], TensorProto.STRING),
    ],
)
def test_python_numbers_out_of_range_keep_their_type(value, element_type):
    assert_array_equal(converted(value, element_type), np.asarray(value), strict=True)


def test_strings_keep_trailing_zero_characters():
    assert converted(["a\0", "é"], TensorProto.STRING).tolist() == ["a\0", "é"]
    assert converted("a\0", TensorProto.STRING).item() == "a\0"
    assert converted(np.array(["a", b"b"], object), TensorProto.STRING).tolist() == ["a", b"b"]


@pytest.mark.parametrize(
    "value",
    [
        [1, [2, 3]],
        np.array([1, None], object),
        np.array([{}, "a"], object),
        object(),
        {"a": 1},
        {1, 2},
        Raising(),
        2**70,
        [None],
    ],
    ids=lambda value: type(value).__name__,
)
def test_invalid_tensor_is_unusable_and_located(value):
    with pytest.raises(UnusableOutput, match=r"^y ") as caught:
        converted(value)
    assert "\x1b" not in caught.value.message


def test_list_that_contains_itself_is_unusable():
    endless = []
    endless.append(endless)
    with pytest.raises(UnusableOutput, match="RecursionError"):
        converted(endless)


SEQUENCE = helper.make_sequence_type_proto(FLOAT)


def test_list_becomes_a_list_of_tensors_if_the_output_is_a_sequence():
    (y,) = normalised([[np.ones(2, np.float32), [0.5]]], SEQUENCE)
    assert_array_equal(y[0], np.ones(2, np.float32), strict=True)
    assert_array_equal(y[1], np.array([0.5], np.float32), strict=True)
    assert normalised([()], SEQUENCE) == [[]]


def test_array_is_preserved_if_the_output_is_a_sequence():
    (y,) = normalised([np.ones((2, 2))], SEQUENCE)
    assert y.shape == (2, 2)


def test_empty_optional_is_none_and_full_optional_is_its_value():
    optional = helper.make_optional_type_proto(SEQUENCE)
    assert normalised([None], optional) == [None]
    assert normalised([[[1.0]]], optional)[0][0].dtype == np.float32


def map_type(key):
    declared = TypeProto()
    declared.map_type.key_type = key
    declared.map_type.value_type.CopyFrom(FLOAT)
    return declared


def test_map_has_python_keys():
    (y,) = normalised([{np.int64(5): 0.5}], map_type(TensorProto.INT64))
    assert [type(key) for key in y] == [int]
    assert_array_equal(y[5], np.array(0.5, np.float32), strict=True)


def test_map_with_other_keys_is_unusable():
    with pytest.raises(UnusableOutput, match="y is not a map: a key is a float"):
        normalised([{0.5: 1.0}], map_type(TensorProto.INT64))


def test_unusable_element_is_named():
    with pytest.raises(UnusableOutput, match=r"^y\[1\] is a object, which is not a tensor"):
        normalised([[1.0, object()]], SEQUENCE)


@pytest.mark.slow
@given(st.recursive(st.none() | st.integers() | st.text() | st.floats(), st.lists))
def test_any_python_object_is_a_value_or_unusable(returned):
    try:
        (value,) = normalised([returned], FLOAT)
    except UnusableOutput:
        return
    assert value is None or isinstance(value, np.ndarray)
