"""The backend onnxruntime: options, inputs and outputs."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import onnx
import pytest
from backend_models import (
    model,
    one_node,
    value,
)
from numpy.testing import assert_array_equal
from onnx import TensorProto, helper

from onnxopt_cli.backends.resolve import resolve_backend
from onnxopt_cli.core.values import DTYPES
from onnxopt_cli.errors import BackendUnavailable, UsageError

onnxruntime = pytest.importorskip("onnxruntime")

#: The oldest supported ONNX Runtime accepts this opset, which has all types used in this file.
OPSET, IR_VERSION = 21, 10
ONES = {"x": np.array([1, 2, 3], np.float32)}


def node(*arguments, **options):
    return one_node(*arguments, **{"opset": OPSET, "ir_version": IR_VERSION} | options)


def run(proto, inputs, backend="onnxruntime"):
    return resolve_backend(backend).prepare(proto).run(inputs)


NUMPY_TYPES = [
    name
    for name, dtype in DTYPES.items()
    if dtype.isbuiltin == 1 and not name.startswith(("complex", "string"))
]
OTHER_TYPES = ["bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"]
PACKED_TYPES = ["int4", "uint4"]


@pytest.mark.parametrize("name", NUMPY_TYPES + OTHER_TYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3)])
def test_tensors_of_every_type_pass_through(name, shape):
    dtype = DTYPES[name]
    element_type = helper.np_dtype_to_tensor_dtype(dtype)
    proto = model(
        [helper.make_node("Identity", ["x"], ["y"])],
        [value("x", element_type, shape)],
        [value("y", element_type, shape)],
        opset=OPSET,
        ir_version=IR_VERSION,
    )
    x = np.arange(np.prod(shape, dtype=int)).astype(dtype).reshape(shape)
    (y,) = run(proto, {"x": x})
    assert_array_equal(y, x, strict=True)


@pytest.mark.parametrize("name", PACKED_TYPES)
@pytest.mark.parametrize("size", [0, 1, 2, 3])
def test_types_of_less_than_a_byte_are_packed_and_unpacked(name, size):
    dtype = DTYPES[name]
    element_type = helper.np_dtype_to_tensor_dtype(dtype)
    shape = [value("x", element_type, [size]), value("y", element_type, [size])]
    nodes = [
        helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["wide"], ["y"], to=element_type),
    ]
    outputs = [shape[1], value("wide", shape=[size])]
    proto = model(nodes, shape[:1], outputs, opset=OPSET, ir_version=IR_VERSION)
    low = int(ml_dtypes.iinfo(dtype).min)
    x = np.array([low, 1, 7][:size], dtype)
    y, wide = run(proto, {"x": x})
    assert_array_equal(wide, x.astype(np.float32), strict=True)
    assert_array_equal(y, x, strict=True)


@pytest.mark.parametrize(
    "x",
    [
        np.array(["a", "é", ""], object),
        np.array(["a", "é", "\0b"]),
        np.array(["\0a", "b\0", "c"], object),
    ],
    ids=["objects", "of fixed width", "with zeros"],
)
def test_strings_pass_through(x):
    (y,) = run(node("Identity", TensorProto.STRING), {"x": x})
    assert y.tolist() == x.tolist()


@pytest.mark.parametrize(
    "x",
    [
        np.array([1, 2, 3], ">f4"),
        np.arange(1, 7, dtype=np.float32)[::2] // 2 + 1,
        np.array([[1, 9], [2, 9], [3, 9]], np.float32)[:, 0],
    ],
    ids=["big-endian", "computed", "strided"],
)
def test_arrays_of_any_layout_are_read_correctly(x):
    (y,) = run(node("Neg"), {"x": x})
    assert_array_equal(y, -x.astype("=f4"))


@pytest.mark.parametrize("of", [np.float32, ml_dtypes.bfloat16], ids=["float32", "bfloat16"])
def test_strided_array_is_read_correctly_as_ort_value(of):
    element_type = helper.np_dtype_to_tensor_dtype(np.dtype(of))
    proto = node("Cast", element_type, outputs_as=TensorProto.BFLOAT16, to=TensorProto.BFLOAT16)
    x = np.array([[1, 9], [2, 9], [3, 9]]).astype(of)[:, 0]
    (y,) = run(proto, {"x": x})
    assert_array_equal(y, np.array([1, 2, 3], ml_dtypes.bfloat16), strict=True)


def test_read_only_input_is_accepted():
    x = np.ones(3, np.float32)
    x.flags.writeable = False
    assert_array_equal(run(node("Neg"), {"x": x})[0], -x)


def io_model(node_proto, of_input, of_output, *domains):
    inputs = [helper.make_value_info("x", of_input)]
    outputs = [helper.make_value_info("y", of_output)]
    imports = [helper.make_opsetid("", 18), *(helper.make_opsetid(name, 3) for name in domains)]
    graph = helper.make_graph([node_proto], "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


TENSOR = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
SEQUENCE = helper.make_sequence_type_proto(TENSOR)
OPTIONAL = helper.make_optional_type_proto(TENSOR)
BOOLEAN = helper.make_tensor_type_proto(TensorProto.BOOL, [])


def test_sequences_pass_through():
    proto = io_model(helper.make_node("Identity", ["x"], ["y"]), SEQUENCE, SEQUENCE)
    x = [np.ones(2, np.float32), np.zeros((1, 2), np.float32)]
    (y,) = run(proto, {"x": x})
    assert [item.tolist() for item in y] == [item.tolist() for item in x]
    assert run(proto, {"x": []}) == [[]]


def test_full_and_empty_optionals_are_accepted():
    proto = io_model(helper.make_node("OptionalHasElement", ["x"], ["y"]), OPTIONAL, BOOLEAN)
    assert run(proto, {"x": np.ones(2, np.float32)})[0]
    assert not run(proto, {"x": None})[0]


def map_type(key, element):
    declared = onnx.TypeProto()
    declared.map_type.key_type = key
    declared.map_type.value_type.CopyFrom(helper.make_tensor_type_proto(element, []))
    return declared


def test_map_is_accepted_as_input():
    vectorizer = helper.make_node(
        "DictVectorizer", ["x"], ["y"], domain="ai.onnx.ml", string_vocabulary=["a", "b"]
    )
    proto = io_model(vectorizer, map_type(TensorProto.STRING, FLOAT), TENSOR, "ai.onnx.ml")
    for two in (np.array(2, np.float32), np.array([2], np.float32)):
        (y,) = run(proto, {"x": {"b": two}})
        assert_array_equal(y, np.array([[0, 2]], np.float32), strict=True)


FLOAT = TensorProto.FLOAT


def test_maps_are_returned():
    zipmap = helper.make_node(
        "ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[1, 5]
    )
    maps = helper.make_sequence_type_proto(map_type(TensorProto.INT64, FLOAT))
    proto = io_model(zipmap, TENSOR, maps, "ai.onnx.ml")
    assert run(proto, {"x": np.array([[1, 2]], np.float32)}) == [[{1: 1.0, 5: 2.0}]]


def test_float8_beside_a_sequence_is_not_mistaken_for_uint8():
    nodes = [
        helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT8E4M3FN),
        helper.make_node("SequenceConstruct", ["x"], ["s"]),
    ]
    outputs = [
        value("y", TensorProto.FLOAT8E4M3FN, [3]),
        helper.make_tensor_sequence_value_info("s", FLOAT, None),
    ]
    proto = model(nodes, [value("x", shape=[3])], outputs, opset=OPSET, ir_version=IR_VERSION)
    y, s = run(proto, ONES)
    assert_array_equal(y, ONES["x"].astype(ml_dtypes.float8_e4m3fn), strict=True)
    assert_array_equal(s[0], ONES["x"])


def test_threads_and_other_options_reach_the_session():
    backend = resolve_backend(
        "onnxruntime,provider=CPUExecutionProvider,intra_op_num_threads=2,"
        "graph_optimization_level=disable_all,config.session.disable_prepacking=1"
    )
    options = backend._open(node("Relu")).get_session_options()
    assert options.intra_op_num_threads == 2
    assert options.inter_op_num_threads == 1
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert options.get_session_config_entry("session.disable_prepacking") == "1"


def test_one_thread_is_the_default():
    options = resolve_backend("onnxruntime")._open(node("Relu")).get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (1, 1)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("threads=2", "has no option threads"),
        ("config.=1", "has no option config."),
        ("intra_op_num_threads=-1", "expected a number"),
        ("intra_op_num_threads=²", "expected a number"),
        ("graph_optimization_level=most", "graph_optimization_level is 'most'"),
    ],
)
def test_invalid_option_is_explained(option, message):
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        resolve_backend(f"onnxruntime,{option}")
    assert caught.value.hint or "up to" in caught.value.message


def test_unavailable_provider_is_not_replaced():
    with pytest.raises(BackendUnavailable, match="NoSuchProvider") as caught:
        resolve_backend("onnxruntime,provider=NoSuchProvider+CPUExecutionProvider")
    assert "CPUExecutionProvider" in caught.value.hint


def test_provider_that_does_not_load_is_not_replaced(monkeypatch):
    # This is what onnxruntime-gpu does if CUDA is missing: the provider is listed but not used.
    monkeypatch.setattr(
        onnxruntime,
        "get_available_providers",
        lambda: ["XExecutionProvider", "CPUExecutionProvider"],
    )
    monkeypatch.setattr(
        "onnxruntime.InferenceSession",
        lambda *_, **__: type(
            "Session", (), {"get_providers": lambda _: ["CPUExecutionProvider"]}
        )(),
    )
    with pytest.raises(BackendUnavailable, match="cannot load XExecutionProvider"):
        resolve_backend("onnxruntime,provider=XExecutionProvider")


def test_version_is_stated():
    assert resolve_backend("onnxruntime").version == f"onnxruntime {onnxruntime.__version__}"
