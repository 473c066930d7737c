"""The backend onnxruntime: what it is given, what comes back, and what it does not support."""

from __future__ import annotations

import re
import subprocess
import sys

import ml_dtypes
import numpy as np
import onnx
import pytest
from backend_models import (
    ADAM_INPUTS,
    TRAINING,
    adam,
    adam_in_branch,
    adam_in_function,
    adam_in_function_in_branch,
    model,
    one_node,
    value,
)
from numpy.testing import assert_array_equal
from onnx import TensorProto, helper

from onnxopt_cli.backends.onnxruntime_errors import ROWS, unsupported_by_onnxruntime
from onnxopt_cli.backends.resolve import resolve_backend
from onnxopt_cli.core.values import DTYPES
from onnxopt_cli.errors import BackendUnavailable, Unsupported, UsageError

onnxruntime = pytest.importorskip("onnxruntime")

#: The newest opset and IR version that ONNX Runtime 1.22, the oldest allowed, accepts.
OPSET, IR_VERSION = 21, 10
ONES = {"x": np.array([1, 2, 3], np.float32)}


def node(*arguments, **options):
    return one_node(*arguments, **{"opset": OPSET, "ir_version": IR_VERSION} | options)


def run(proto, inputs, backend="onnxruntime"):
    return resolve_backend(backend).prepare(proto).run(inputs)


def raised(proto, inputs=ONES):
    """What ONNX Runtime itself raises, with nothing of ours in between."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    with pytest.raises(Exception) as caught:  # noqa: PT011 - its types share no base
        onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        ).run(None, inputs)
    return caught.value


def bfloat16_sequence():
    proto = node("Relu")
    proto.graph.input.append(
        helper.make_tensor_sequence_value_info("s", TensorProto.BFLOAT16, None)
    )
    return proto


#: For each row of the table: a model that makes ONNX Runtime say it, what it is fed, and the
#: operator that is unknown.
SAID = {
    "an operator, or a domain": [
        (adam(), ADAM_INPUTS, f"{TRAINING}:Adam"),
        (adam_in_branch(), ADAM_INPUTS, f"{TRAINING}:Adam"),
        (adam_in_function({"rate": 0.9}, attributes=["rate"]), ADAM_INPUTS, f"{TRAINING}:Adam"),
        (adam_in_function_in_branch(), ADAM_INPUTS, f"{TRAINING}:Adam"),
        (node("Nonsense", domain="my.own"), ONES, "my.own:Nonsense"),
        (node("Nonsense", domain="my:own"), ONES, "my:own:Nonsense"),
    ],
    "an operator in a version of a domain that it knows": [
        (node("Nonsense"), ONES, "ai.onnx:Nonsense"),
        (node("Nonsense", domain="ai.onnx.ml"), ONES, "ai.onnx.ml:Nonsense"),
    ],
    "an IR version": [(node("Relu", ir_version=99), ONES, "")],
    "an opset": [(node("Relu", opset=99), ONES, "")],
    "a kernel for an operator's version or element types, or a mode of it": [
        (node("Max", TensorProto.INT16), {"x": np.ones(3, np.int16)}, ""),
        (node("Relu", opset=1), ONES, ""),
    ],
    "an element type in a model": [(node("Identity", TensorProto.COMPLEX64), ONES, "")],
    "an element type among what a session is given": [
        (bfloat16_sequence(), {**ONES, "s": [np.ones(2, ml_dtypes.bfloat16)]}, "")
    ],
    "an element type among what a session returns": [
        (
            node("Cast", TensorProto.STRING, outputs_as=TensorProto.BFLOAT16, to=16),
            {"x": np.array(["1", "2", "3"], object)},
            "",
        )
    ],
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.about)
def test_each_message_of_the_table_is_said_by_onnxruntime(row):
    for proto, inputs, operator in SAID[row.about]:
        error = raised(proto, inputs)
        assert row.pattern.fullmatch(str(error)), str(error)
        assert [other.about for other in ROWS if other.pattern.fullmatch(str(error))] == [row.about]
        unsupported = unsupported_by_onnxruntime(error)
        assert unsupported.operator == operator
        assert "/onnxruntime_src/" not in unsupported.message
        with pytest.raises(Unsupported) as caught:
            run(proto, inputs)
        assert caught.value.message == unsupported.message
        assert caught.value.operator == operator


def with_constant(op_type, constant, **attributes):
    proto = node(op_type, **attributes)
    proto.graph.node[0].input.append("c")
    proto.graph.initializer.append(constant)
    return proto


def invalid_graph():
    proto = node("Relu")
    proto.graph.node[0].input[0] = "nowhere"
    return proto


def mixed_types():
    return with_constant("Add", helper.make_tensor("c", TensorProto.DOUBLE, [1], [1.0]))


def two_steps(dtype):
    return helper.make_tensor("c", TensorProto.INT64, [1], [dtype])


FAILURES = {
    "a Reshape to another size": with_constant("Reshape", two_steps(2)),
    "a Gather out of range": with_constant("Gather", two_steps(9)),
    "an unconnected node": invalid_graph(),
    "types that do not agree": mixed_types(),
    "an element type that the operator does not have": node("Relu", TensorProto.STRING),
    "an unknown attribute": node("Relu", nonsense=1),
    "a deprecated operator": node("Upsample"),
    "a domain that is not imported": model(
        [helper.make_node("Nonsense", ["x"], ["y"], domain="my.own")],
        [value("x")],
        [value("y")],
    ),
    "a batchwise GRU": model(
        [helper.make_node("GRU", ["x", "w", "w"], ["y"], layout=1, hidden_size=1)],
        [value("x", shape=[1, 1, 1]), value("w", shape=[1, 3, 1])],
        [value("y", shape=[1, 1, 1, 1])],
    ),
}


@pytest.mark.parametrize("proto", FAILURES.values(), ids=FAILURES)
def test_a_failure_is_never_called_unsupported(proto):
    inputs = {"x": np.ones(3, np.float32)}
    with pytest.raises(Exception) as caught:  # noqa: PT011 - its types share no base
        run(proto, inputs)
    assert not isinstance(caught.value, Unsupported)
    assert "[ONNXRuntimeError]" in str(caught.value)


@pytest.mark.parametrize(
    "inputs",
    [{}, {"x": np.ones(3)}, {"x": np.ones((3, 1), np.float32)}, {**ONES, "z": ONES["x"]}],
    ids=["missing", "of another type", "of another rank", "unknown"],
)
def test_inputs_that_do_not_fit_are_a_failure(inputs):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - its types share no base
        run(node("Relu"), inputs)
    assert not isinstance(caught.value, Unsupported)


def test_a_message_that_quotes_a_supported_one_is_no_lack_of_support():
    said = "[ONNXRuntimeError] : 1 : FAIL : Fatal error: a:B(-1) is not a registered function/op"
    assert unsupported_by_onnxruntime(RuntimeError(said))
    assert unsupported_by_onnxruntime(RuntimeError(f"while falling back: {said}")) is None
    assert unsupported_by_onnxruntime(RuntimeError(f"{said}, but kernel X crashed")) is None


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
def test_arrays_of_any_layout_are_read_as_what_they_are(x):
    (y,) = run(node("Neg"), {"x": x})
    assert_array_equal(y, -x.astype("=f4"))


@pytest.mark.parametrize("of", [np.float32, ml_dtypes.bfloat16], ids=["float32", "bfloat16"])
def test_a_strided_array_is_read_as_what_it_is_on_the_way_of_other_types(of):
    element_type = helper.np_dtype_to_tensor_dtype(np.dtype(of))
    proto = node("Cast", element_type, outputs_as=TensorProto.BFLOAT16, to=TensorProto.BFLOAT16)
    x = np.array([[1, 9], [2, 9], [3, 9]]).astype(of)[:, 0]
    (y,) = run(proto, {"x": x})
    assert_array_equal(y, np.array([1, 2, 3], ml_dtypes.bfloat16), strict=True)


def test_a_read_only_input_is_taken():
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


def test_optionals_are_taken_full_and_empty():
    proto = io_model(helper.make_node("OptionalHasElement", ["x"], ["y"]), OPTIONAL, BOOLEAN)
    assert run(proto, {"x": np.ones(2, np.float32)})[0]
    assert not run(proto, {"x": None})[0]


def map_type(key, element):
    declared = onnx.TypeProto()
    declared.map_type.key_type = key
    declared.map_type.value_type.CopyFrom(helper.make_tensor_type_proto(element, []))
    return declared


def test_a_map_goes_in():
    vectorizer = helper.make_node(
        "DictVectorizer", ["x"], ["y"], domain="ai.onnx.ml", string_vocabulary=["a", "b"]
    )
    proto = io_model(vectorizer, map_type(TensorProto.STRING, FLOAT), TENSOR, "ai.onnx.ml")
    for two in (np.array(2, np.float32), np.array([2], np.float32)):
        (y,) = run(proto, {"x": {"b": two}})
        assert_array_equal(y, np.array([[0, 2]], np.float32), strict=True)


FLOAT = TensorProto.FLOAT


def test_maps_come_out():
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
    options = backend.prepare(node("Relu"))._session.get_session_options()
    assert options.intra_op_num_threads == 2
    assert options.inter_op_num_threads == 1
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert options.get_session_config_entry("session.disable_prepacking") == "1"


def test_one_thread_is_the_default():
    options = resolve_backend("onnxruntime").prepare(node("Relu"))._session.get_session_options()
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
def test_a_wrong_option_is_explained(option, message):
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        resolve_backend(f"onnxruntime,{option}")
    assert caught.value.hint or "up to" in caught.value.message


def test_a_provider_that_is_not_there_is_not_replaced_by_another():
    with pytest.raises(BackendUnavailable, match="NoSuchProvider") as caught:
        resolve_backend("onnxruntime,provider=NoSuchProvider+CPUExecutionProvider")
    assert "CPUExecutionProvider" in caught.value.hint


def test_a_provider_that_does_not_load_is_not_replaced_by_another(monkeypatch):
    # What onnxruntime-gpu does without CUDA's libraries: it lists the provider, then drops it.
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


def test_the_version_is_stated():
    assert resolve_backend("onnxruntime").version == f"onnxruntime {onnxruntime.__version__}"


def test_nothing_is_printed_when_a_model_fails():
    script = (
        "from test_backends_onnxruntime import FAILURES, run, ONES\n"
        "for proto in FAILURES.values():\n"
        "    try: run(proto, ONES)\n"
        "    except Exception: pass\n"
    )
    path = [entry for entry in sys.path if entry]
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}\n{script}"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout + ended.stderr == ""
