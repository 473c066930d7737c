"""Reading the cases of ONNX test directories, and reporting their faults."""

from __future__ import annotations

import os
import tracemalloc

import numpy as np
import pytest
from onnx import (
    AttributeProto,
    ModelProto,
    SequenceProto,
    SparseTensorProto,
    TensorProto,
    helper,
    numpy_helper,
)
from onnx_directories import (
    FLOAT,
    ONE_TWO,
    identity,
    make_directory,
    make_plain,
    same,
    tensor,
    tensor_type,
)

from onnxopt_cli.cases.onnx.directory import find_directories
from onnxopt_cli.core.tolerance import Provenance, Relative
from onnxopt_cli.errors import InvalidCase

SEQUENCE = helper.make_sequence_type_proto(tensor_type())


def read(root):
    (case,), problems = find_directories(root)
    assert problems == []
    return case.load()


def complaints(root):
    """Return the faults as texts "file: message", with paths relative to the root."""
    with pytest.raises(InvalidCase) as caught:
        read(root)
    return [str(problem).removeprefix(f"{root}{os.sep}") for problem in caught.value.problems]


def complaint(tmp_path, inputs, types=None):
    """Return the only fault of a directory whose inputs are the given messages."""
    types = {"x": FLOAT} if types is None else types
    value = tensor(ONE_TWO)
    make_directory(tmp_path / "test_x", identity(types), inputs, [value] * len(types))
    (only,) = complaints(tmp_path / "test_x")
    return only.removeprefix(f"test_data_set_0{os.sep}")


def test_values_have_the_names_and_order_of_the_graph(tmp_path):
    types = {"b": FLOAT, "a": FLOAT}
    three_four = tensor(np.array([3, 4], np.float32))
    pair = [tensor(ONE_TWO), three_four]
    content = read(make_directory(tmp_path / "test_x", identity(types), pair, pair))
    assert {name: list(value) for name, value in content.inputs.items()} == {
        "b": [1, 2],
        "a": [3, 4],
    }
    assert list(content.stored) == ["out_b", "out_a"]
    assert content.tolerance is None
    assert [node.op_type for node in content.model.graph.node] == ["Identity", "Identity"]


def test_eleven_inputs_are_sorted_as_numbers(tmp_path):
    types = {f"x{index}": tensor_type(TensorProto.INT64, []) for index in range(11)}
    values = [tensor(np.int64(index)) for index in range(11)]
    content = read(make_directory(tmp_path / "test_x", identity(types), values, values))
    assert [int(value) for value in content.inputs.values()] == list(range(11))


def test_names_in_files_take_precedence_over_positions(tmp_path):
    types = {"a": FLOAT, "s": SEQUENCE}
    model = identity(types)
    swapped = [numpy_helper.from_list([ONE_TWO], "s"), tensor(ONE_TWO, "a")]
    outputs = [numpy_helper.from_list([], "out_s"), tensor(ONE_TWO, "out_a")]
    content = read(make_directory(tmp_path / "test_x", model, swapped, outputs))
    assert same(content.inputs["a"], ONE_TWO)
    assert same(content.inputs["s"], [ONE_TWO])
    assert list(content.inputs) == ["a", "s"]
    assert content.stored["out_s"] == []


def test_initializer_among_the_inputs_is_not_an_input_of_the_case(tmp_path):
    model = identity({"w": FLOAT, "x": FLOAT}, [tensor(ONE_TWO, "w")])
    value = tensor(ONE_TWO)
    content = read(make_directory(tmp_path / "test_x", model, [value], [value]))
    assert list(content.inputs) == ["x"]


def test_sparse_initializer_among_the_inputs_is_not_an_input_of_the_case(tmp_path):
    model = identity({"w": FLOAT, "x": FLOAT}, [tensor(ONE_TWO, "w")])
    model.graph.ClearField("initializer")
    values, indices = tensor(ONE_TWO, "w"), tensor(np.array([0, 1]))
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2]))
    value = tensor(ONE_TWO)
    content = read(make_directory(tmp_path / "test_x", model, [value], [value]))
    assert list(content.inputs) == ["x"]


def test_input_may_have_no_declared_shape_or_named_dimensions(tmp_path):
    types = {"x": tensor_type(), "y": tensor_type(shape=["N"]), "z": tensor_type(shape=[None])}
    values = [tensor(ONE_TWO)] * 3
    content = read(make_directory(tmp_path / "test_x", identity(types), values, values))
    assert len(content.inputs) == 3


@pytest.mark.parametrize(
    ("text", "rtol", "atol"),
    [
        ('{"rtol": 0.5, "atol": 0.25}', 0.5, 0.25),
        ('{"rtol": 0}', 0, 1e-7),
        ('{"atol": 1, "unknown": []}', 1e-3, 1),
    ],
)
def test_data_json_gives_the_tolerance(tmp_path, text, rtol, atol):
    make_plain(tmp_path / "test_x")
    (tmp_path / "test_x" / "data.json").write_text(text)
    assert read(tmp_path).tolerance == Relative(rtol, atol, Provenance.DIRECTORY)


def test_data_json_without_a_tolerance_sets_none(tmp_path):
    make_plain(tmp_path / "test_x")
    (tmp_path / "test_x" / "data.json").write_text('{"model_name": "x"}')
    assert read(tmp_path).tolerance is None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"[]", "is not a JSON object"),
        (b"{", "is not JSON: "),
        (b"\xff\xfe{", "is not JSON: "),
        (b"[" * 100_000, "is not JSON: "),
        (b'{"rtol": "1e-3"}', "has the rtol '1e-3'; a number was expected"),
        (b'{"rtol": true}', "has the rtol True; a number was expected"),
        (b'{"atol": NaN}', "has the atol nan; a finite number of at least 0 was expected"),
        (b'{"atol": Infinity}', "has the atol inf; a finite number of at least 0 was expected"),
        (b'{"atol": -1}', "has the atol -1.0; a finite number of at least 0 was expected"),
        (b'{"atol": 1' + b"0" * 400 + b"}", "has the atol inf; a finite number"),
        (b" " * 2_000_000, "has 2000000 bytes; at most 1000000 were expected"),
    ],
)
def test_invalid_data_json_is_reported(tmp_path, data, message):
    make_plain(tmp_path / "test_x")
    (tmp_path / "test_x" / "data.json").write_bytes(data)
    (only,) = complaints(tmp_path / "test_x")
    assert only.startswith(f"data.json: {message}")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"not a model", "is not a model: the data is damaged or cut off"),
        (b"", "is not a model: it is empty"),
        (
            tensor(ONE_TWO).SerializeToString(),
            "is not a model: it has no graph, or one without outputs",
        ),
        (
            identity({"x": FLOAT}).SerializeToString()[:-1],
            "is not a model: the data is damaged or cut off",
        ),
        (b"\x3a\x80\x01" * 200, "is not a model: the data is damaged or cut off"),
    ],
)
def test_file_that_is_not_a_model_is_reported(tmp_path, data, message):
    make_plain(tmp_path / "test_x")
    (tmp_path / "test_x" / "model.onnx").write_bytes(data)
    assert complaints(tmp_path / "test_x") == [f"model.onnx: {message}"]


def test_model_with_duplicate_output_names_is_reported(tmp_path):
    model = identity({"x": FLOAT})
    model.graph.output.append(model.graph.output[0])
    make_directory(tmp_path / "test_x", model)
    assert complaints(tmp_path / "test_x") == ["model.onnx: has several outputs with the same name"]


@pytest.mark.parametrize("version", [2**31, 2**63 - 1, -1])
def test_model_with_an_impossible_opset_is_reported(tmp_path, version):
    model = identity({"x": FLOAT})
    model.opset_import.add(domain="other", version=version)
    make_directory(tmp_path / "test_x", model)
    message = f"model.onnx: imports the opset {version} of 'other', which cannot exist"
    assert complaints(tmp_path / "test_x") == [message]


@pytest.mark.parametrize(("version", "is_reported"), [(17, False), (20, True)])
def test_function_with_the_name_of_an_operator_is_reported(tmp_path, version, is_reported):
    node, opset = helper.make_node("Neg", ["a"], ["b"]), helper.make_opsetid("", version)
    model = identity({"x": FLOAT})
    model.opset_import[0].version = version
    # Opset 20 added the operator Gelu.
    model.functions.append(helper.make_function("", "Gelu", ["a"], ["b"], [node], [opset]))
    make_plain(tmp_path / "test_x")
    (tmp_path / "test_x" / "model.onnx").write_bytes(model.SerializeToString())
    if is_reported:
        (message,) = complaints(tmp_path / "test_x")
        assert "defines a function Gelu, which is also an operator of onnx" in message
    else:
        read(tmp_path / "test_x")


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("op_type", b"Identity"),
        ("doc_string", b"words"),
        ("dim_param", b"rows"),
        ("ref_attr_name", b"slope"),
        ("name", b"inner"),
        ("value", b"metadata"),
    ],
)
def test_model_with_a_text_that_is_not_utf_8_is_reported(tmp_path, field, text):
    node = helper.make_node("Elu", ["a"], ["b"], doc_string="words")
    node.attribute.add(name="alpha", ref_attr_name="slope", type=AttributeProto.FLOAT)
    inner = helper.make_graph([], "inner", [], [])
    model = identity({"x": FLOAT})
    model.graph.node.append(helper.make_node("F", ["x"], ["z"], domain="d", graph=inner))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    model.functions.append(helper.make_function("d", "F", ["a"], ["b"], [node], []))
    model.metadata_props.add(key="key", value="metadata")
    damaged = model.SerializeToString().replace(text, b"\xff" * len(text))
    make_directory(tmp_path / "test_x", damaged)
    damaged_text = r"\xff" * len(text)
    assert complaints(tmp_path / "test_x") == [
        f"model.onnx: has a field {field} that is not UTF-8: b'{damaged_text}'"
    ]


def test_model_that_is_a_named_pipe_is_reported_without_blocking(tmp_path):
    make_plain(tmp_path / "test_x")
    (tmp_path / "test_x" / "model.onnx").unlink()
    os.mkfifo(tmp_path / "test_x" / "model.onnx")
    assert complaints(tmp_path / "test_x") == ["model.onnx: is not a regular file"]


def test_file_over_the_size_limit_is_reported_and_not_read(tmp_path):
    make_plain(tmp_path / "test_x")
    with (tmp_path / "test_x" / "test_data_set_0" / "input_0.pb").open("wb") as file:
        file.truncate(2**31)
    (only,) = complaints(tmp_path / "test_x")
    assert only.endswith("has 2147483648 bytes; at most 2147483647 were expected")


def test_all_faults_of_a_data_set_are_reported_together(tmp_path):
    types = {"x": FLOAT, "y": FLOAT}
    wrong = tensor(np.zeros(3, np.float32))
    make_directory(tmp_path / "test_x", identity(types), [wrong, b"\xff"], [wrong])
    (tmp_path / "test_x" / "data.json").write_text("[]")
    folder = "test_data_set_0"
    assert complaints(tmp_path / "test_x") == [
        "data.json: is not a JSON object",
        f"{folder}/input_0.pb: is float32[3], but declared as float32[2]",
        f"{folder}/input_1.pb: is not a valid TensorProto: the data is damaged or cut off",
        f"{folder}/output_0.pb: is float32[3], but declared as float32[2]",
        f"{folder}: has 1 output files for the graph's 2 outputs: 'out_y' missing",
    ]


def test_gap_in_the_numbers_of_files_is_reported(tmp_path):
    folder = make_plain(tmp_path / "test_x") / "test_data_set_0"
    (folder / "input_0.pb").rename(folder / "input_1.pb")
    assert complaints(tmp_path / "test_x") == ["test_data_set_0: has input_1.pb, but no input_0.pb"]


@pytest.mark.parametrize("name", ["output_x.pb", "output_01.pb", "output_.pb", "output_\n.pb"])
def test_file_without_a_valid_number_is_reported(tmp_path, name):
    folder = make_plain(tmp_path / "test_x") / "test_data_set_0"
    (folder / name).write_bytes(b"")
    assert complaints(tmp_path / "test_x") == [
        f"test_data_set_0: has a file {name!r}; output_<number>.pb was expected"
    ]


def test_missing_input_is_reported(tmp_path):
    assert complaint(tmp_path, []) == (
        "test_data_set_0: has 0 input files for the graph's 1 inputs: 'x' missing"
    )


def test_extra_input_file_is_reported(tmp_path):
    value = tensor(ONE_TWO)
    assert (
        complaint(tmp_path, [value, value])
        == "input_1.pb: is an extra file: the graph has 1 inputs"
    )


def test_empty_data_set_is_reported(tmp_path):
    make_directory(tmp_path / "test_x", identity({"x": FLOAT}))
    assert complaints(tmp_path / "test_x") == [
        "test_data_set_0: has 0 input files for the graph's 1 inputs: 'x' missing",
        "test_data_set_0: has 0 output files for the graph's 1 outputs: 'out_x' missing",
    ]


def test_name_that_is_not_in_the_graph_is_reported(tmp_path):
    assert complaint(tmp_path, [tensor(ONE_TWO, "y")]) == (
        "input_0.pb: names itself 'y'; the graph's inputs are 'x'"
    )


def test_two_files_for_one_input_are_reported(tmp_path):
    values = [tensor(ONE_TWO, "b"), tensor(ONE_TWO)]
    assert complaint(tmp_path, values, {"a": FLOAT, "b": FLOAT}) == (
        "input_1.pb: holds the input 'b', as does input_0.pb"
    )


def test_file_with_the_name_of_an_input_of_another_type_is_reported(tmp_path):
    values = [tensor(ONE_TWO, "s"), numpy_helper.from_list([])]
    types = {"a": FLOAT, "s": SEQUENCE}
    make_directory(tmp_path / "test_x", identity(types), values, [tensor(ONE_TWO), values[1]])
    assert complaints(tmp_path / "test_x") == [
        (
            "test_data_set_0/input_0.pb: is not a valid SequenceProto: its field 1 is not "
            "SequenceProto.name; it holds float32[2], as TensorProto"
        )
    ]


def test_value_name_that_is_not_utf_8_is_reported(tmp_path):
    message = tensor(ONE_TWO).SerializeToString() + b"\x42\x01\xff"
    assert complaint(tmp_path, [message]) == r"input_0.pb: has a name that is not UTF-8: b'\xff'"


def test_input_without_a_type_is_reported(tmp_path):
    model = identity({"x": FLOAT})
    model.graph.input[0].ClearField("type")
    value = tensor(ONE_TWO)
    make_directory(tmp_path / "test_x", model, [value], [value])
    message = (
        "test_data_set_0: one of the graph's inputs is declared as an unknown type, "
        "which is not supported"
    )
    assert complaints(tmp_path / "test_x") == [message]


def test_sparse_input_is_reported(tmp_path):
    sparse = helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, [2])
    make_directory(tmp_path / "test_x", identity({"x": sparse}), [b""], [b""])
    assert complaints(tmp_path / "test_x")[0] == (
        "test_data_set_0: one of the graph's inputs is declared as sparse tensor, "
        "which is not supported"
    )


@pytest.mark.parametrize(
    ("array", "declared", "message"),
    [
        (np.zeros(2), FLOAT, "is float64[2], but declared as float32[2]"),
        (np.zeros(3, np.float32), FLOAT, "is float32[3], but declared as float32[2]"),
        (np.float32(0), FLOAT, "is float32[], but declared as float32[2]"),
        (np.zeros((2, 1), np.float32), FLOAT, "is float32[2,1], but declared as float32[2]"),
        (
            np.zeros(2, np.float32),
            tensor_type(TensorProto.INT8, ["N", 3]),
            "is float32[2], but declared as int8[N,3]",
        ),
    ],
)
def test_tensor_that_contradicts_its_declaration_is_reported(tmp_path, array, declared, message):
    value = tensor(array)
    make_directory(tmp_path / "test_x", identity({"x": declared}), [value], [value])
    assert complaints(tmp_path / "test_x")[0] == f"test_data_set_0/input_0.pb: {message}"


def test_tensor_is_not_read_as_an_empty_sequence(tmp_path):
    message = tensor(ONE_TWO)
    assert len(SequenceProto.FromString(message.SerializeToString()).tensor_values) == 0
    make_directory(tmp_path / "test_x", identity({"x": SEQUENCE}), [message], [message])
    assert complaints(tmp_path / "test_x")[0] == (
        "test_data_set_0/input_0.pb: is not a valid SequenceProto: "
        "its field 1 is not SequenceProto.name; it holds float32[2], as TensorProto"
    )


def test_sparse_initializer_without_values_is_reported(tmp_path):
    model = identity({"x": FLOAT})
    model.graph.sparse_initializer.add(indices=tensor(np.array([0])), dims=[1])
    value = tensor(ONE_TWO)
    make_directory(tmp_path / "test_x", model, [value], [value])
    assert complaints(tmp_path / "test_x") == [
        "model.onnx: the values of the sparse initializer '' has no element type"
    ]


def test_inconsistent_tensor_in_the_model_is_reported(tmp_path):
    bad = TensorProto(name="w", data_type=1, dims=[-1], raw_data=b"")
    short = TensorProto(data_type=1, dims=[2], float_data=[1])
    inner = helper.make_graph(
        [helper.make_node("Constant", [], ["c"], value=short)], "inner", [], []
    )
    model = identity({"x": FLOAT}, [bad])
    model.graph.node.append(helper.make_node("If", ["x"], ["y"], then_branch=inner))
    value = tensor(ONE_TWO)
    make_directory(tmp_path / "test_x", model, [value], [value])
    assert complaints(tmp_path / "test_x") == [
        "model.onnx: the initializer 'w' has a negative dimension: [-1]",
        (
            "model.onnx: the tensor of the attribute 'value', '' has 1 entries in float_data; "
            "float32[2] needs 2"
        ),
    ]


@pytest.mark.parametrize(
    ("data_type", "content", "fault"),
    [
        (TensorProto.UINT8, {"int32_data": [300]}, "has the entry 300 in int32_data"),
        (TensorProto.BFLOAT16, {"int32_data": [-1]}, "has the entry -1 in int32_data"),
        (TensorProto.UINT32, {"uint64_data": [2**32]}, "has the entry 4294967296 in uint64_data"),
        (TensorProto.BOOL, {"raw_data": b"\x02"}, "has the byte 2 for a bool"),
        (TensorProto.STRING, {"string_data": [b"\xff"]}, "has a string that is not UTF-8"),
    ],
)
def test_element_that_is_invalid_for_its_type_is_reported(tmp_path, data_type, content, fault):
    initializer = TensorProto(name="w", data_type=data_type, dims=[1], **content)
    value = tensor(ONE_TWO)
    make_directory(tmp_path / "test_x", identity({"x": FLOAT}, [initializer]), [value], [value])
    (complaint,) = complaints(tmp_path / "test_x")
    assert fault in complaint


NEGATIVE = TensorProto(name="n", data_type=1, dims=[-1], raw_data=b"")
SPARSE = SparseTensorProto(values=NEGATIVE, indices=tensor(np.array([0])), dims=[1])


def constant(**attributes):
    return helper.make_node("Constant", [], ["c"], **attributes)


def subgraph(*nodes):
    return helper.make_graph(nodes, "sub", [], [], [NEGATIVE] * (not nodes))


@pytest.mark.parametrize(
    "part",
    [
        {"graph": {"initializer": [NEGATIVE]}},
        {"graph": {"sparse_initializer": [SPARSE]}},
        {"graph": {"node": [constant(value=NEGATIVE)]}},
        {"graph": {"node": [constant(values=[NEGATIVE])]}},
        {"graph": {"node": [constant(sparse_value=SPARSE)]}},
        {"graph": {"node": [constant(sparse_values=[SPARSE])]}},
        {"graph": {"node": [constant(body=subgraph())]}},
        {"graph": {"node": [constant(bodies=[subgraph()])]}},
        {"graph": {"node": [constant(body=subgraph(constant(value=NEGATIVE)))]}},
        {"functions": [{"node": [constant(value=NEGATIVE)]}]},
        {"functions": [{"attribute_proto": [helper.make_attribute("a", NEGATIVE)]}]},
        {"training_info": [{"initialization": subgraph()}]},
        {"training_info": [{"algorithm": subgraph()}]},
    ],
)
def test_tensors_in_all_parts_of_a_model_are_checked(tmp_path, part):
    model = identity({"x": FLOAT})
    model.MergeFrom(ModelProto(**part))
    make_directory(tmp_path / "test_x", model, [tensor(ONE_TWO)], [tensor(ONE_TWO)])
    (only,) = complaints(tmp_path / "test_x")
    assert only.endswith("'n' has a negative dimension: [-1]")


def light(folder, model, outputs):
    folder.mkdir(parents=True)
    (folder / "light_a.onnx").write_bytes(model.SerializeToString())
    for index, message in enumerate(outputs):
        (folder / f"light_a_output_{index}.pb").write_bytes(message.SerializeToString())
    return folder


def test_the_inputs_of_a_light_model_are_ramps(tmp_path):
    types = {"x": tensor_type(shape=[2, 2]), "w": FLOAT, "y": tensor_type(shape=["N", 3])}
    model = identity(types, [tensor(ONE_TWO, "w")])
    square = tensor(np.ones((2, 2), np.float32))
    content = read(light(tmp_path / "light", model, [square, tensor(np.ones((1, 3), np.float32))]))
    assert list(content.inputs) == ["x", "y"]
    assert same(content.inputs["x"], np.array([[0, 0.25], [0.5, 0.75]], np.float32))
    assert same(content.inputs["y"], (np.arange(3).reshape(1, 3) / 3).astype(np.float32))
    assert same(content.stored["out_x"], np.ones((2, 2), np.float32))
    assert content.tolerance is None


def test_inputs_of_a_light_model_are_limited_together(tmp_path):
    types = {"x": tensor_type(shape=[8]), "y": tensor_type(shape=[2**26 - 7])}
    outputs = [tensor(ONE_TWO)] * 2
    message = "the input 'y' .* at most 67108864 elements are generated for all inputs of a model"
    with pytest.raises(InvalidCase, match=message):
        read(light(tmp_path / "light", identity(types), outputs))


def test_light_model_has_the_tolerance_of_its_real_directory(tmp_path):
    folder = light(tmp_path / "light", identity({"x": FLOAT}), [tensor(ONE_TWO)])
    real = tmp_path / "real" / "test_a"
    real.mkdir(parents=True)
    (real / "data.json").write_text('{"url": "onnx/light/light_a.onnx", "rtol": 0.5}')
    assert read(folder).tolerance == Relative(0.5, 1e-7, Provenance.DIRECTORY)
    (real / "data.json").write_text('{"url": "https://example.org/other.onnx", "rtol": 0.5}')
    assert read(folder).tolerance is None


def test_light_model_without_its_output_is_reported(tmp_path):
    folder = light(tmp_path / "light", identity({"x": FLOAT}), [])
    with pytest.raises(InvalidCase, match="has 0 output files for the graph's 1 outputs: 'out_x'"):
        read(folder)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (tensor_type(TensorProto.INT64, [2]), "is not a float32 tensor; only"),
        (SEQUENCE, "is not a float32 tensor; only such inputs can be generated"),
        (tensor_type(shape=[2**40]), r"has the shape \[1099511627776\], but at most 67108864"),
        (tensor_type(shape=[-1, -1]), r"has the shape \[-1, -1\], which has a negative size"),
    ],
)
def test_light_input_that_cannot_be_generated_is_reported(tmp_path, declared, message):
    folder = light(tmp_path / "light", identity({"x": declared}), [tensor(ONE_TWO)])
    with pytest.raises(InvalidCase, match=f"the input 'x' {message}"):
        read(folder)


LARGE_TENSOR = np.arange(1 << 18, dtype=np.float32)
LARGE_TYPE = tensor_type(shape=[1 << 18])


def test_large_raw_data_are_read_without_a_copy(tmp_path):
    value = tensor(LARGE_TENSOR, "x")
    value.doc_string = "what follows the data"
    make_directory(
        tmp_path / "test_x", identity({"x": LARGE_TYPE}), [value], [tensor(LARGE_TENSOR)]
    )
    tracemalloc.start()
    try:
        content = read(tmp_path / "test_x")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    for array in (content.inputs["x"], content.stored["out_x"]):
        np.testing.assert_array_equal(array, LARGE_TENSOR, strict=True)
    assert most < 2.5 * LARGE_TENSOR.nbytes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-1], "not a valid TensorProto: the data is damaged or cut off"),
        (lambda data: data + data[-LARGE_TENSOR.nbytes - 4 :], "the field raw_data more than once"),
        (lambda data: data + b"\x4a\x00", "the field raw_data more than once"),
        (lambda data: data + b"\x22\x04\0\0\0\0", "elements in float_data and in raw_data"),
        (lambda data: data + b"\xf2\x0f\x00", "a field 254, which TensorProto lacks"),
        (lambda data: data[data.index(b"\x4a") :], "has no element type"),
    ],
)
def test_damaged_large_tensors_are_rejected(tmp_path, change, message):
    data = change(tensor(LARGE_TENSOR).SerializeToString())
    model = identity({"x": LARGE_TYPE})
    folder = make_directory(tmp_path / "test_x", model, [data], [tensor(LARGE_TENSOR)])
    assert [message in complaint for complaint in complaints(folder)] == [True]


@pytest.mark.parametrize("declared", [SEQUENCE, helper.make_optional_type_proto(LARGE_TYPE)])
def test_large_tensor_is_rejected_as_another_kind_of_value(tmp_path, declared):
    data = tensor(LARGE_TENSOR).SerializeToString()
    for sent in (data, data[data.index(b"\x4a") :]):
        folder = make_directory(tmp_path / f"test_{len(sent)}", identity({"x": declared}), [sent])
        found, *_ = complaints(folder)
        assert "is a tensor, but declared as" in found or "Proto: its field" in found
