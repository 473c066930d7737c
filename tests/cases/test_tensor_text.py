"""Valid and invalid notations of tensors in case files."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest

from onnxopt_cli.cases.tensors.declared import MAX_ELEMENTS, made
from onnxopt_cli.cases.yaml.case_fields import declare_value
from onnxopt_cli.cases.yaml.yaml_syntax import FormatError, parse_yaml
from onnxopt_cli.core.values import DTYPES

COMPLEX = np.array([1 + 2j, 3, complex("-infj")], "c8")


def read(text, folder="."):
    """Return the declared value that a text in YAML describes."""
    root, errors = parse_yaml(text)
    assert errors == []
    return declare_value(root, Path(folder))


def make(text, folder="."):
    declared = read(text, folder)
    array = made(declared)
    assert (array.dtype, array.shape) == (declared.dtype, declared.shape)
    return array


def refusal(text, folder="."):
    with pytest.raises(FormatError) as caught:
        made(read(text, folder))
    path = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in caught.value.node.path)
    return f"{path}: {caught.value.message}"


def same(found, expected):
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if expected.dtype == object:
        assert found.tolist() == expected.tolist()
    else:
        assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.5", np.array(0.5, "f4")),
        ("3", np.array(3, "i8")),
        ("true", np.array(True)),
        ("word", np.array("word", object)),
        ('"1"', np.array("1", object)),
        ("[]", np.zeros(0, "f4")),
        ("[[], []]", np.zeros((2, 0), "f4")),
        ("[[1, 2], [3, 4]]", np.array([[1, 2], [3, 4]])),
        ("[1, 2.5]", np.array([1, 2.5], "f4")),
        ("[1e-7, 0x1.8p-3, -.inf, .inf]", np.array([1e-7, 0.1875, -np.inf, np.inf], "f4")),
        ("[-0.0]", np.array([-0.0], "f4")),
        ("{dtype: double, data: 0.1}", np.array(0.1)),
        ("{dtype: float64, data: [1, 2]}", np.array([1.0, 2.0])),
        ("{shape: [2, 2], data: [1, 2, 3, 4]}", np.array([[1, 2], [3, 4]])),
        ("{shape: [2, 1], data: [[1], [2]]}", np.array([[1], [2]])),
        ("{shape: [], data: 4}", np.array(4)),
        ("{shape: [1, 1], data: [4]}", np.array([[4]])),
        ("{shape: [0, 3], data: []}", np.zeros((0, 3), "f4")),
        ("{dtype: int64, data: 9007199254740993}", np.array(9007199254740993)),
        ("{dtype: uint64, data: 18446744073709551615}", np.array(2**64 - 1, "u8")),
        ("{dtype: int4, data: [-8, 7]}", np.array([-8, 7], ml_dtypes.int4)),
        ("{dtype: bfloat16, data: [0.1]}", np.array([0.1], ml_dtypes.bfloat16)),
        ("{dtype: float8e4m3fn, data: [448.0]}", np.array([448], ml_dtypes.float8_e4m3fn)),
        ("{dtype: float8_e8m0fnu, data: [0.5]}", np.array([0.5], ml_dtypes.float8_e8m0fnu)),
        ('{dtype: complex64, data: ["1+2j", 3, "-infj"]}', COMPLEX),
        ("{dtype: string, data: [[a, b c]]}", np.array([["a", "b c"]], object)),
        ("{dtype: bool, data: [true, false]}", np.array([True, False])),
    ],
)  # fmt: skip
def test_notation_is_read_as_the_expected_array(text, expected):
    same(make(text), expected)


def test_nan_is_supported_by_all_types_that_have_it():
    for name in ("float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e8m0fnu"):
        assert np.isnan(make(f"{{dtype: {name}, data: .nan}}").astype(float))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, [2]]", "[1]: found a list of 1, expected a single value, like the first"),
        ("[[1], 2]", "[1]: found 2, expected a list of 1, like the first one"),
        ("[[1, 2], [3]]", "[1]: found a list of 1, expected a list of 2"),
        ("[[[1], [2]], [[1], [2, 3]]]", "[1][1]: found a list of 2, expected a list of 1"),
        ("{shape: [3], data: [1, 2]}", ".data: found 2 elements in the shape [2], expected [3], o"),
        ("{shape: [2, 2], data: [[1, 2, 3, 4]]}", ".data: found 4 elements in the shape [1, 4]"),
        ("{dtype: uint8, data: [1, 300]}", ".data[1]: found 300, expected an integer from 0 to 25"),
        ("{dtype: int4, data: -9}", ".data: found -9, expected an integer from -8 to 7 (int4)"),
        ("{dtype: int64, data: 2.5}", ".data: found 2.5, expected an integer from -9223372036854"),
        ("{dtype: int64, data: 2.0}", ".data: found 2.0, expected an integer"),
        ("{dtype: int64, data: 9223372036854775808}", ".data: found 9223372036854775808, expected"),
        ("{dtype: uint64, data: 18446744073709551616}", ".data: found 18446744073709551616, expec"),
        ("{dtype: int32, data: .nan}", ".data: found .nan, expected an integer"),
        ("{dtype: int32, data: true}", ".data: found true, expected an integer"),
        ("[1.0, 1e39]", "[1]: found 1e+39, expected a number in the range of float32 (magnitudes"),
        ("{dtype: float32, data: 1e-50}", ".data: found 1e-50, expected a number in the range"),
        ("{dtype: float16, data: 65520.0}", ".data: found 65520.0, expected a number in the range"),
        ("{dtype: float8_e4m3fn, data: 500.0}", ".data: found 500.0, expected a number in the"),
        ("{dtype: float8_e4m3fn, data: .inf}", ".data: found .inf, expected a number in the range"),
        ("{dtype: float8_e8m0fnu, data: 0.0}", ".data: found 0.0, expected a number in the range"),
        ("{dtype: float4_e2m1fn, data: 7.0}", ".data: found 7.0, expected a number in the range"),
        ("{dtype: float4_e2m1fn, data: .nan}", ".data: found .nan, expected a number in the range"),
        ('{dtype: complex64, data: "1e39j"}', '.data: found "1e39j", expected a number in the'),
        ('{dtype: complex64, data: "1_0j"}', '.data: found "1_0j", expected a complex number such'),
        ("{dtype: complex64, data: true}", ".data: found true, expected a complex number"),
        ("{dtype: bool, data: 1}", ".data: found 1, expected true or false"),
        ("{dtype: string, data: 1}", ".data: found 1, expected text"),
        ("[1.5, nan]", '[1]: found "nan", expected a number (float32) (.nan, .inf and -.inf are'),
        ("[1.5, true]", "[1]: found true, expected a number (float32)"),
        ("{dtype: float33, data: 1}", '.dtype: found "float33", expected one of bool, float16'),
        ("{shape: [3000000000], data: []}", ".shape: found shape [3000000000], expected at most"),
        ("{shape: [0, 9000000000], data: []}", ".shape: found shape [0, 9000000000], expected at"),
        ("{shape: [1], sequence: [1]}", ".shape: found a shape, expected it only beside data or"),
        ("{shape: [1], file: x.npy}", ".shape: found a shape, expected it only beside data or"),
        ("{random: {normal: {}, seed: 1}, shape: [2], dtype: int64}", ".random: found a normal di"),
        ("{random: {uniform: {low: 2}, seed: 1}, shape: [2]}", ".random: found {'low': 2, 'high'"),
        ("{random: {normal: {mean: .nan}, seed: 1}, shape: [2]}", ".random: found {'mean': nan, '"),
        ("{random: {integers: {low: 5, high: 5}, seed: 1}, shape: [2]}", ".random: found integers"),
        ("{random: {integers: {low: 0, high: 257}, seed: 1}, shape: [2], dtype: uint8}",
         ".random: found integers from 0 up to 257, expected a range between 0 and 256 for uint8"),
        ("{random: {integers: {low: 0, high: 2}, seed: 1}, shape: [2], dtype: string}",
         ".random: found random text, expected a number type or bool"),
        ("{random: {normal: {scale: 1e39}, seed: 1}, shape: [2]}", ".random: found a draw of "),
        ("{random: {normal: {}, seed: 1}, shape: [99999, 99999]}", ".random: found shape [99999"),
        ("{sequence: [{dtype: double, data: 1}, {dtype: float, data: 1}]}",
         "[1]: found float32, expected float64, the type of the enclosing value"),
        ("{optional: {dtype: double, data: 1}, dtype: float}", ".optional: found float64, expecte"),
    ],
)  # fmt: skip
def test_invalid_notation_is_rejected_with_its_position(text, message):
    assert message in refusal(text)


def test_decimals_are_read_as_doubles_and_then_rounded():
    assert make("{dtype: float64, data: 0.1}") == 0.1
    assert make("0.1") == np.float32(0.1)


@pytest.mark.parametrize(
    ("distribution", "draw"),
    [
        ("normal: {mean: 2.0, scale: 0.5}", lambda state: state.normal(2.0, 0.5, (2, 3))),
        ("normal: {}", lambda state: state.standard_normal((2, 3))),
        ("uniform: {low: -1, high: 1}", lambda state: state.uniform(-1, 1, (2, 3))),
        ("uniform: {}", lambda state: state.random_sample((2, 3))),
        ("lognormal: {scale: 3.0}", lambda state: state.lognormal(0, 3.0, (2, 3))),
        ("integers: {low: -5, high: 9}", lambda state: state.randint(-5, 9, (2, 3), np.int64)),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_random_data_are_the_draws_of_randomstate_cast_to_the_dtype(distribution, draw, dtype):
    text = f"{{random: {{{distribution}, seed: 42}}, shape: [2, 3], dtype: {dtype}}}"
    same(make(text), draw(np.random.RandomState(42)).astype(DTYPES[dtype]))


def test_random_data_are_equal_on_all_platforms():
    values = make("{random: {normal: {}, seed: 0}, shape: [2]}")
    assert values.tolist() == [1.7640523910522461, 0.40015721321105957]


def test_random_integers_and_bools_have_their_types():
    assert make("{random: {integers: {low: 0, high: 3}, seed: 1}, shape: []}").dtype == np.int64
    text = "{random: {integers: {low: 0, high: 2}, seed: 1}, shape: [9], dtype: bool}"
    assert set(make(text).tolist()) == {True, False}


def test_random_data_are_made_on_demand():
    declared = read(f"{{random: {{normal: {{}}, seed: 0}}, shape: [{MAX_ELEMENTS}]}}")
    assert declared.shape == (MAX_ELEMENTS,)


def test_sequences_and_optionals_contain_values():
    sequence = read("{sequence: [[1.5], [2, 3]]}")
    assert [part.tolist() for part in made(sequence)] == [[1.5], [2.0, 3.0]]
    assert sequence.dtype == np.float32
    assert read("{sequence: [], dtype: int32}").dtype == np.int32
    assert read("{sequence: [{dtype: double, data: 1}, 2.5]}").dtype == np.float64
    assert made(read("{optional: null, dtype: int32}")) is None
    assert made(read("{optional: [1, 2]}")).tolist() == [1, 2]
    assert made(read("{optional: {sequence: [[1], [2]]}}"))[1].tolist() == [2]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">f8", "?", "<i8", ">u2", "<c8"])
def test_npy_and_npz_files_are_read(tmp_path, dtype, order):
    array = np.arange(6).reshape(2, 3).astype(dtype, order=order)
    np.save(tmp_path / "x.npy", array)
    np.savez_compressed(tmp_path / "x.npz", a=array, b=array + array)
    native = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("=")))
    same(make("{file: x.npy}", tmp_path), native)
    same(make("{file: x.npz, key: a}", tmp_path), native)


def test_types_that_npy_files_lack_must_be_stated(tmp_path):
    array = np.array([0.5, 2], ml_dtypes.bfloat16)
    np.save(tmp_path / "x.npy", array)
    same(make("{file: x.npy, dtype: bfloat16}", tmp_path), array)
    assert "state the dtype" in refusal("{file: x.npy}", tmp_path)
    assert "state the dtype" in refusal("{file: x.npy, dtype: float32}", tmp_path)
    assert "state the dtype" in refusal("{file: x.npy, dtype: float8e5m2}", tmp_path)


def test_pb_files_are_read(tmp_path):
    array = np.array([[1, -2]], ml_dtypes.int4)
    (tmp_path / "x.pb").write_bytes(onnx.numpy_helper.from_array(array).SerializeToString())
    same(make("{file: x.pb}", tmp_path), array)
    assert "holds int4; float32 was expected" in refusal("{file: x.pb, dtype: float}", tmp_path)


def archive(path, **members):
    with zipfile.ZipFile(path, "w") as file:
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)


def npy(array):
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def npy_header(*shape):
    stream = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("x.npy", b"", "is not .npy data"),
        ("x.npy", b"\x93NUMPY\x03\x00", "is .npy data of version 3; version 1 or 2 was expected"),
        ("x.npy", npy(np.zeros(3))[:-1], "has 23 bytes of data; float64[3] needs 24"),
        ("x.npy", npy(np.zeros(3)) + b"x", "has 25 bytes of data; float64[3] needs 24"),
        ("x.npy", npy(np.array([{}], object)), "holds Python objects"),
        ("x.npy", npy(np.array(["a"])), "holds <U1, which is not an element type"),
        ("x.npy", npy(np.zeros(1, "M8[s]")), "which is not an element type of ONNX"),
        ("x.npy", npy(np.zeros(1, "f8,f4")), "bytes without a type"),
        ("x.npy", npy(np.zeros(3)).replace(b"(3,)", b"(((("), "has a malformed .npy header"),
        ("x.npy", npy_header(*[1] * 65) + bytes(8), "has 65 dimensions; at most 64 are supported"),
        ("x.npy", npy_header(-3), "has a negative dimension: [-3]"),
        ("x.npy", npy_header(2**32), "has shape [4294967296], expected at most"),
        ("x.npy", npy_header(0, 2**62, 4), "expected at most 2147483648 elements"),
        ("x.npy", npy(np.array([True])).replace(b"\n\x01", b"\n\x02"), "has the byte 2 for a bool"),
        ("x.npz", b"PK not a zip", "is not a readable .npz file"),
        ("x.pb", b"\x08", "is not a valid TensorProto"),
        ("x.pb", onnx.TensorProto(data_type=1, dims=[-1]).SerializeToString(), "negative dimensio"),
        ("x.pb", onnx.TensorProto(data_type=1, dims=[9]).SerializeToString(), "has no elements"),
        ("x.txt", b"1", "does not end in .npy, .npz or .pb"),
    ],
)  # fmt: skip
def test_damaged_and_hostile_files_are_rejected(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    error = refusal(f"{{file: {name}}}", tmp_path)
    assert error.startswith(f".file: the file {name} ")
    assert message in error


def test_key_of_an_npz_file_is_required_unless_it_has_one_array(tmp_path):
    archive(tmp_path / "one.npz", a=npy(np.zeros(1)))
    archive(tmp_path / "two.npz", a=npy(np.zeros(1)), b=npy(np.zeros(1)))
    assert make("{file: one.npz}", tmp_path).tolist() == [0.0]
    assert "holds a, b; give a key" in refusal("{file: two.npz}", tmp_path)
    assert "holds a, b; c was expected" in refusal("{file: two.npz, key: c}", tmp_path)
    (tmp_path / "x.npy").write_bytes(npy(np.zeros(1)))
    assert "has no keys" in refusal("{file: x.npy, key: a}", tmp_path)


def test_message_about_an_npz_file_with_many_or_long_names_is_short(tmp_path):
    archive(tmp_path / "many.npz", **{f"n{index}": npy(np.zeros(1)) for index in range(500)})
    assert len(refusal("{file: many.npz}", tmp_path)) < 400
    assert len(refusal(f"{{file: many.npz, key: {'k' * 5000}}}", tmp_path)) < 400


def test_zip_bomb_is_rejected_by_its_size(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("large.npy", npy_header(2**40) + bytes(9_000_000))
        file.writestr("long.npy", npy_header(3) + bytes(9_000_000))
    assert "at most 2147483648 elements" in refusal("{file: x.npz, key: large}", tmp_path)
    assert "has 9000000 bytes of data; float64[3] needs 24" in refusal(
        "{file: x.npz, key: long}", tmp_path
    )


@pytest.mark.parametrize(
    "path", ["../x.npy", "a/../../x.npy", "/etc/x.npy", "C:\\x.npy", "C:/x.npy", "a\\x.npy", '""']
)
def test_path_outside_the_folder_is_rejected(tmp_path, path):
    np.save(tmp_path / "x.npy", np.zeros(1))
    folder = tmp_path / "inner"
    folder.mkdir()
    quoted = path if path == '""' else f"'{path}'"
    assert "is not a path inside the folder of the case file" in refusal(
        f"{{file: {quoted}}}", folder
    )


def test_links_are_followed_only_inside_the_folder(tmp_path):
    folder = tmp_path / "inner"
    (folder / "sub").mkdir(parents=True)
    np.save(tmp_path / "outer.npy", np.zeros(1))
    np.save(folder / "sub" / "x.npy", np.ones(1))
    (folder / "good.npy").symlink_to("sub/x.npy")
    (folder / "bad.npy").symlink_to("../outer.npy")
    (folder / "out").symlink_to("..")
    (folder / "loop.npy").symlink_to("loop.npy")
    assert make("{file: sub/x.npy}", folder).tolist() == [1.0]
    assert make("{file: good.npy}", folder).tolist() == [1.0]
    for name in ("bad.npy", "out/outer.npy"):
        assert "leads out of the folder" in refusal(f"{{file: {name}}}", folder)
    refusal("{file: loop.npy}", folder)


def test_missing_and_irregular_files_are_rejected(tmp_path):
    (tmp_path / "folder.npy").mkdir()
    os.mkfifo(tmp_path / "pipe.npy")
    assert "is missing" in refusal("{file: none.npy}", tmp_path)
    assert "is not a regular file" in refusal("{file: folder.npy}", tmp_path)
    assert "is not a regular file" in refusal("{file: pipe.npy}", tmp_path)


def test_file_that_changes_after_the_check_is_detected(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(3))
    declared = read("{file: x.npy}", tmp_path)
    np.save(tmp_path / "x.npy", np.zeros(4))
    with pytest.raises(FormatError, match="has changed since it was checked"):
        declared.make()
