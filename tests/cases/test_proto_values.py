"""Reading and writing protobuf messages of tensors, sequences, optionals and maps."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import (
    MapProto,
    OptionalProto,
    SequenceProto,
    TensorProto,
    TypeProto,
    helper,
    numpy_helper,
)
from onnx_directories import ONE_TWO, arrays, element_number_of, same, tensor, tensor_type

from onnxopt_cli.cases.tensors.proto_values import (
    message_class,
    message_of,
    name_of,
    parse_message,
    value_of,
)
from onnxopt_cli.core.untrusted_files import Malformed
from onnxopt_cli.core.values import DTYPES, STRING

ANY = TypeProto(tensor_type=TypeProto.Tensor())
TENSORS = helper.make_sequence_type_proto(tensor_type())
OPTIONAL = helper.make_optional_type_proto(tensor_type())
NUMBERS = {name: number for name, number in TensorProto.DataType.items() if number}


def parse_value(data, declared):
    """Return the name and the value that a serialized message contains."""
    message = parse_message(data, message_class(declared))
    return name_of(message), value_of(message, declared)


def read(message, declared=ANY):
    data = message if isinstance(message, bytes) else message.SerializeToString()
    return parse_value(data, declared)[1]


def complaint(message, declared=ANY):
    with pytest.raises(Malformed) as caught:
        read(message, declared)
    return str(caught.value)


def map_type(key_type, value=None):
    return helper.make_map_type_proto(key_type, value or tensor_type())


def round_trip(value, declared):
    data = message_of("a name", value, declared).SerializeToString()
    name, back = parse_value(data, declared)
    assert name == "a name"
    return back


def element_number(name):
    return helper.np_dtype_to_tensor_dtype(DTYPES[name]) if name != STRING else TensorProto.STRING


def test_all_element_types_of_onnx_are_supported():
    assert {element_number(name) for name in DTYPES} == set(NUMBERS.values())


@given(arrays())
def test_arrays_read_back_bit_for_bit(array):
    declared = tensor_type(element_number_of(array), array.shape)
    assert same(round_trip(array, declared), array)


@given(arrays())
def test_onnx_reads_written_tensors(array):
    declared = tensor_type(element_number_of(array), array.shape)
    read_array = numpy_helper.to_array(message_of("x", array, declared))
    if array.dtype == object:
        # onnx reads strings into a NumPy type that drops trailing null characters.
        stripped = [text.rstrip("\0") for text in array.ravel()]
        assert [text.rstrip("\0") for text in read_array.ravel()] == stripped
    else:
        assert same(read_array, array)


@given(arrays())
def test_tensors_written_by_onnx_are_read(array):
    assert same(read(numpy_helper.from_array(array)), array)


def test_array_of_foreign_byte_order_is_rejected():
    with pytest.raises(ValueError, match="declared as float32"):
        message_of("x", ONE_TWO.astype(">f4"), tensor_type())


def test_raw_data_are_little_endian():
    assert (
        read(TensorProto(data_type=TensorProto.INT16, dims=[1], raw_data=b"\x01\x02"))[0] == 0x201
    )


def test_strided_arrays_are_written_in_logical_order():
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    assert same(round_trip(array, tensor_type(shape=[3, 2])), np.ascontiguousarray(array))


@pytest.mark.parametrize(
    ("kind", "field", "entries", "expected"),
    [
        ("FLOAT", "float_data", [1.5, -2], np.array([1.5, -2], np.float32)),
        ("COMPLEX64", "float_data", [1, 2, 3, 4], np.array([1 + 2j, 3 + 4j], np.complex64)),
        ("DOUBLE", "double_data", [1e-300, 2], np.array([1e-300, 2])),
        ("COMPLEX128", "double_data", [1, 2, 3, 4], np.array([1 + 2j, 3 + 4j])),
        ("INT64", "int64_data", [-1, 2**62], np.array([-1, 2**62])),
        ("UINT64", "uint64_data", [1, 2**64 - 1], np.array([1, 2**64 - 1], np.uint64)),
        ("UINT32", "uint64_data", [1, 2**32 - 1], np.array([1, 2**32 - 1], np.uint32)),
        ("INT32", "int32_data", [-(2**31), 5], np.array([-(2**31), 5], np.int32)),
        ("INT8", "int32_data", [-128, 127], np.array([-128, 127], np.int8)),
        ("UINT16", "int32_data", [0, 65535], np.array([0, 65535], np.uint16)),
        ("BOOL", "int32_data", [0, 1], np.array([False, True])),
        ("FLOAT16", "int32_data", [0x3C00, 0xC000], np.array([1, -2], np.float16)),
        ("BFLOAT16", "int32_data", [0x3F80, 0xC000], np.array([1, -2], ml_dtypes.bfloat16)),
        ("FLOAT8E5M2", "int32_data", [0x3C, 0xC0], np.array([1, -2], ml_dtypes.float8_e5m2)),
        ("INT4", "int32_data", [0x71, 0x0F], np.array([1, 7, -1], ml_dtypes.int4)),
        ("UINT2", "int32_data", [0b11100100, 1], np.array([0, 1, 2, 3, 1], ml_dtypes.uint2)),
        ("FLOAT4E2M1", "int32_data", [0xA2], np.array([1, -1], ml_dtypes.float4_e2m1fn)),
        ("FLOAT6E2M3", "int32_data", [8, 40], np.array([1, -1], ml_dtypes.float6_e2m3fn)),
    ],
)
def test_typed_fields_are_read(kind, field, entries, expected):
    message = TensorProto(data_type=NUMBERS[kind], dims=expected.shape, **{field: entries})
    assert same(read(message), expected)


def test_strings_keep_trailing_null_characters():
    message = TensorProto(
        data_type=TensorProto.STRING, dims=[2], string_data=[b"a\0", "é".encode()]
    )
    assert read(message).tolist() == ["a\0", "é"]


def test_packed_and_unpacked_numbers_are_read():
    packed_dims = b"\x0a\x02\x01\x02\x10\x01\x4a\x08" + ONE_TWO.tobytes()
    assert same(read(packed_dims), ONE_TWO.reshape(1, 2))
    unpacked_data = b"\x08\x02\x10\x07\x38\x05\x38\x06"
    assert read(unpacked_data).tolist() == [5, 6]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data_type": 0, "dims": [0]}, "has no element type"),
        ({"data_type": 99, "dims": [0]}, "has the unknown element type 99"),
        ({"data_type": 1, "dims": [-1]}, "has a negative dimension: [-1]"),
        ({"data_type": 1, "dims": [1] * 65}, "has 65 dimensions; at most 64 were expected"),
        ({"data_type": 1, "dims": [2**62, 2**62, 0]}, "has impossible dimensions: "),
        ({"data_type": 1, "dims": [2**62], "raw_data": b""}, "has impossible dimensions: "),
        (
            {"data_type": 1, "dims": [2**40], "raw_data": b"1234"},
            "has 4 bytes in raw_data; float32[1099511627776] needs 4398046511104",
        ),
        (
            {"data_type": 1, "dims": [2], "raw_data": b"123456789"},
            "has 9 bytes in raw_data; float32[2] needs 8",
        ),
        (
            {"data_type": 1, "dims": [1], "raw_data": b"1234", "float_data": [1]},
            "has elements in float_data and in raw_data; one field was expected",
        ),
        (
            {"data_type": 1, "dims": [1], "raw_data": b"", "float_data": [1]},
            "has elements in float_data and in raw_data; one field was expected",
        ),
        (
            {"data_type": 1, "dims": [1], "int32_data": [1]},
            "has float32 elements in int32_data; float_data was expected",
        ),
        (
            {"data_type": 8, "dims": [1], "raw_data": b"a"},
            "has string elements in raw_data; string_data was expected",
        ),
        ({"data_type": 1, "dims": [3]}, "has no elements; float32[3] has 3"),
        (
            {"data_type": 1, "dims": [0], "float_data": [1]},
            "has 1 entries in float_data; float32[0] needs 0",
        ),
        (
            {"data_type": 14, "dims": [2], "float_data": [1, 2]},
            "has 2 entries in float_data; complex64[2] needs 4",
        ),
        (
            {"data_type": 22, "dims": [3], "raw_data": b"1"},
            "has 1 bytes in raw_data; int4[3] needs 2",
        ),
        (
            {"data_type": 27, "dims": [3], "raw_data": b"12"},
            "has 2 bytes in raw_data; float6_e2m3fn[3] needs 3",
        ),
        (
            {"data_type": 9, "dims": [2], "raw_data": b"\x01\x02"},
            "has the byte 2 for a bool; 0 or 1 was expected",
        ),
        (
            {"data_type": 9, "dims": [1], "int32_data": [2]},
            "has the entry 2 in int32_data; 0 to 1 was ",
        ),
        (
            {"data_type": 3, "dims": [1], "int32_data": [128]},
            "has the entry 128 in int32_data; -128 to 127 was expected for int8",
        ),
        (
            {"data_type": 2, "dims": [1], "int32_data": [-1]},
            "has the entry -1 in int32_data; 0 to 255",
        ),
        ({"data_type": 27, "dims": [1], "int32_data": [64]}, "has the entry 64 in int32_data; "),
        ({"data_type": 12, "dims": [1], "uint64_data": [2**32]}, "has the entry 4294967296 in "),
        (
            {"data_type": 8, "dims": [1], "string_data": [b"\xff"]},
            r"has a string that is not UTF-8: b'\xff'",
        ),
        (
            {"data_type": 1, "dims": [1], "raw_data": b"1234", "segment": {"begin": 0}},
            "is one segment of a tensor, which is not supported",
        ),
        (
            {"data_type": 1, "dims": [1], "data_location": 1},
            "stores its elements in another file",
        ),
        (
            {"data_type": 1, "dims": [1], "external_data": [{"key": "location", "value": "x"}]},
            "stores its elements in another file",
        ),
    ],
)
def test_inconsistent_tensor_is_rejected(fields, message):
    assert complaint(TensorProto(**fields)).startswith(message)


VALUES = numpy_helper.from_list([ONE_TWO])
TEXT_MAP = MapProto(name="m", key_type=TensorProto.STRING, string_keys=[b"a"], values=VALUES)
FIVE_TENSORS = SequenceProto(elem_type=1, tensor_values=[tensor(np.float32(1))] * 5)


@pytest.mark.parametrize(
    ("message", "declared", "fault"),
    [
        (b"", ANY, "has no element type"),
        (b"", TENSORS, "has the unknown elem_type 0"),
        (b"\x08", ANY, "is not a valid TensorProto: the data is damaged or cut off"),
        (
            tensor(ONE_TWO).SerializeToString() + b"\x98\x06\x01",
            ANY,
            "is not a valid TensorProto: it has a field 99, which TensorProto lacks",
        ),
        (
            tensor(ONE_TWO).SerializeToString() + b"\x10\x01",
            ANY,
            "is not a valid TensorProto: it has the field data_type more than once",
        ),
        (
            tensor(ONE_TWO).SerializeToString() + b"\x70\x09",
            ANY,
            "is not a valid TensorProto: its data_location has the unknown value 9",
        ),
        (
            SequenceProto(elem_type=1).SerializeToString() + b"\x1a\x03\x98\x06\x01",
            TENSORS,
            "is not a valid SequenceProto: in tensor_values, it has a field 99, which Tensor",
        ),
        (
            FIVE_TENSORS,
            OPTIONAL,
            (
                "is not a valid OptionalProto: it has the field tensor_value more than once; "
                "it holds a sequence of 5, as SequenceProto"
            ),
        ),
        (
            TEXT_MAP,
            TENSORS,
            "is not a valid SequenceProto: the data is damaged",
        ),
        (
            tensor(ONE_TWO),
            OPTIONAL,
            "is not a valid OptionalProto: its field 1 is not OptionalProto.name; it ",
        ),
    ],
)
def test_data_of_another_message_class_are_rejected(message, declared, fault):
    assert complaint(message, declared).startswith(fault)


@given(arrays(), st.sampled_from([TENSORS, OPTIONAL, map_type(TensorProto.INT64)]))
def test_tensor_is_not_parsed_as_another_kind_of_value(array, declared):
    assert complaint(numpy_helper.from_array(array, "x"), declared)


NESTED = helper.make_sequence_type_proto(TENSORS)
OPTIONAL_SEQUENCE = helper.make_optional_type_proto(TENSORS)
MAPS = helper.make_sequence_type_proto(map_type(TensorProto.STRING))


@pytest.mark.parametrize(
    ("value", "declared"),
    [
        ([], TENSORS),
        ([ONE_TWO, ONE_TWO[:1]], TENSORS),
        ([[ONE_TWO], []], NESTED),
        ([], NESTED),
        (None, OPTIONAL),
        (ONE_TWO, OPTIONAL),
        (None, OPTIONAL_SEQUENCE),
        ([], OPTIONAL_SEQUENCE),
        ([ONE_TWO], OPTIONAL_SEQUENCE),
        ([None, ONE_TWO], helper.make_sequence_type_proto(OPTIONAL)),
        ({1: ONE_TWO, -(2**63): ONE_TWO}, map_type(TensorProto.INT64)),
        ({2**64 - 1: ONE_TWO, 0: ONE_TWO}, map_type(TensorProto.UINT64)),
        ({"b": ONE_TWO, "a": ONE_TWO, "é": ONE_TWO}, map_type(TensorProto.STRING)),
        ({}, map_type(TensorProto.STRING)),
        ({}, map_type(TensorProto.INT8)),
        ({3: [ONE_TWO]}, map_type(TensorProto.INT8, TENSORS)),
        ([{"a": ONE_TWO}, {}], MAPS),
    ],
)
def test_structures_read_back(value, declared):
    assert same(round_trip(value, declared), value)


@pytest.mark.parametrize(
    ("value", "declared"), [(None, OPTIONAL), ([ONE_TWO], OPTIONAL_SEQUENCE), (ONE_TWO, OPTIONAL)]
)
def test_onnx_reads_written_optionals(value, declared):
    assert same(numpy_helper.to_optional(message_of("x", value, declared)), value)


@pytest.mark.parametrize(("value", "declared"), [([], TENSORS), ([[ONE_TWO], []], NESTED)])
def test_onnx_reads_written_sequences(value, declared):
    assert same(numpy_helper.to_list(message_of("x", value, declared)), value)


@pytest.mark.parametrize(
    ("message", "declared", "expected"),
    [
        (numpy_helper.from_list([ONE_TWO]), TENSORS, [ONE_TWO]),
        (numpy_helper.from_list([]), TENSORS, []),
        (numpy_helper.from_list([[ONE_TWO], []]), NESTED, [[ONE_TWO], []]),
        (numpy_helper.from_optional(None), OPTIONAL, None),
        (numpy_helper.from_optional(None, dtype=OptionalProto.TENSOR), OPTIONAL, None),
        (OptionalProto(), OPTIONAL, None),
        (numpy_helper.from_optional(ONE_TWO), OPTIONAL, ONE_TWO),
        (numpy_helper.from_optional([ONE_TWO]), OPTIONAL_SEQUENCE, [ONE_TWO]),
        (TEXT_MAP, map_type(TensorProto.STRING), {"a": ONE_TWO}),
        (numpy_helper.from_dict({7: ONE_TWO}), map_type(TensorProto.INT64), {7: ONE_TWO}),
    ],
)
def test_structures_written_by_onnx_are_read(message, declared, expected):
    assert same(read(message, declared), expected)


@pytest.mark.parametrize(
    ("message", "declared", "fault"),
    [
        (
            SequenceProto(elem_type=3, tensor_values=[tensor(ONE_TWO)]),
            TENSORS,
            "has the elem_type SEQUENCE but tensor_values, not sequence_values",
        ),
        (SequenceProto(elem_type=2), TENSORS, "has sparse tensors, which are not supported"),
        (SequenceProto(elem_type=6), TENSORS, "has the unknown elem_type 6"),
        (OptionalProto(elem_type=-1), OPTIONAL, "has the unknown elem_type -1"),
        (
            OptionalProto(elem_type=0, tensor_value=tensor(ONE_TWO)),
            OPTIONAL,
            "has the elem_type UNDEFINED but tensor_value, not no value",
        ),
        (
            numpy_helper.from_list([ONE_TWO, np.zeros(2)]),
            TENSORS,
            "at [1] is float64[2], but declared as float32[...]",
        ),
        (
            numpy_helper.from_list([[ONE_TWO]]),
            TENSORS,
            "at [0] is a sequence of 1, but declared as float32[...]",
        ),
        (
            numpy_helper.from_optional([ONE_TWO]),
            OPTIONAL,
            "is a sequence of 1, but declared as float32[...]",
        ),
        (
            MapProto(key_type=7, keys=[1], string_keys=[b"a"], values=VALUES),
            map_type(7),
            "has keys that are not of its key type int64",
        ),
        (
            MapProto(key_type=7, keys=[1, 2], values=VALUES),
            map_type(7),
            "has 2 keys, but its values are a sequence of 1",
        ),
        (
            MapProto(key_type=7, keys=[1, 1], values=numpy_helper.from_list([ONE_TWO] * 2)),
            map_type(7),
            "has a key more than once",
        ),
        (
            MapProto(key_type=3, keys=[128], values=VALUES),
            map_type(3),
            "has the key 128, which is out of the range of int8",
        ),
        (
            MapProto(key_type=1, keys=[1], values=VALUES),
            map_type(7),
            "has float32 keys; integers or strings were expected",
        ),
        (
            MapProto(key_type=8, string_keys=[b"\xff"], values=VALUES),
            map_type(8),
            "has a key that is ",
        ),
        (
            MapProto(key_type=8, string_keys=[b"a"], values=VALUES),
            map_type(7),
            "has the key 'a', but declares int64 keys",
        ),
        (
            MapProto(key_type=7, keys=[300], values=VALUES),
            map_type(3),
            "has the key 300, but declares int8 keys",
        ),
        (
            numpy_helper.from_dict({7: np.zeros(1)}),
            map_type(7),
            "at [7] is float64[1], but declared as float32[...]",
        ),
    ],
)
def test_inconsistent_structures_are_rejected(message, declared, fault):
    assert complaint(message, declared).startswith(fault)


@pytest.mark.parametrize(
    ("value", "declared", "message"),
    [
        ([ONE_TWO], tensor_type(), "x is a sequence of 1, but declared as float32"),
        (None, tensor_type(), "x is an empty optional, but declared as float32"),
        (np.zeros(2), tensor_type(), "x is float64.2., but declared as float32"),
        (
            ONE_TWO,
            helper.make_sparse_tensor_type_proto(1, [2]),
            "x is float32.2., but declared as sp",
        ),
        (np.array([1, "a"], object), tensor_type(8), "a string tensor holds int"),
    ],
)
def test_value_of_an_undeclared_type_is_rejected(value, declared, message):
    with pytest.raises(ValueError, match=message):
        message_of("x", value, declared)


def test_damaged_data_raise_no_other_exception_than_malformed():
    original = TEXT_MAP.SerializeToString()
    generator = np.random.default_rng(0)
    kinds = [ANY, TENSORS, OPTIONAL, map_type(8)]
    for _ in range(2000):
        data = bytearray(original)
        data[generator.integers(len(data))] = generator.integers(256)
        for declared in kinds:
            try:
                read(bytes(data), declared)
            except Malformed:
                continue
