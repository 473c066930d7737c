"""A case is invalid if the specification defines no result for its inputs."""

from __future__ import annotations

from contextlib import suppress
from itertools import starmap

import numpy as np
import onnx
import pytest
from onnx import helper

from onnxopt_cli.oracle.estimate.condition_estimate import REJECTED, all_readings
from onnxopt_cli.oracle.estimate.reference_values import NoReferenceError
from onnxopt_cli.oracle.excluded_inputs import EXCLUDED, excluded_input
from onnxopt_cli.suites.operators.generated_node import attribute_message
from onnxopt_cli.suites.operators.generators import FAMILIES, draw_seeded, schemas
from onnxopt_cli.suites.operators.node_draft import Unsuitable

X = np.arange(12, dtype=np.float32).reshape(3, 4)
IMAGES = np.ones((2, 1, 4, 4), np.float32)
COLUMN = np.zeros((3, 1), np.float32)
WEIGHTS = np.ones((1, 3, 4), np.float32), np.ones((1, 3, 3), np.float32)
SEQUENCES = X.reshape(3, 1, 4)
PAST = np.zeros((1, 4, 2), np.float32)
CORNERS = np.array([[0, 0, 3, 3]], np.float32)
NAN_AND_ONES = np.array([np.nan, 1, 1], np.float32)
PAIR = np.ones((1, 1, 1, 2), np.float32)
BYTES = np.ones((2, 1, 4, 4), np.uint8)
ONE = np.ones((), np.float32), np.ones((), np.uint8)


def integers(values):
    return np.array(values, np.int64)


def model_of(nodes, inputs, opset=24):
    declared = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for name, v in inputs.items()
    ]
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", declared, [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def fault_of(operator, operands, attributes):
    """Return why a model of one node has no defined result, or "" if it has one."""
    reason = rejection(operator, operands, attributes)
    return reason if reason.startswith(EXCLUDED) else ""


def rejection(operator, operands, attributes):
    """Return why the condition of a node cannot be estimated, or "" if it can."""
    inputs = {f"x{i}": value for i, value in enumerate(operands) if value is not None}
    names = [f"x{i}" if value is not None else "" for i, value in enumerate(operands)]
    node = helper.make_node(operator, names, ["y"], **attributes)
    try:
        all_readings(model_of([node], inputs), inputs)
    except NoReferenceError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("operator", "attributes", "operands_at", "bounds"),
    [
        ("Gather", {"axis": 1}, lambda i: [X, integers([0, i])], (-4, 3)),
        ("Gather", {}, lambda i: [X, integers([[i]])], (-3, 2)),
        ("GatherElements", {"axis": 1}, lambda i: [X, integers([[0, i]])], (-4, 3)),
        ("GatherND", {}, lambda i: [X, integers([[2, i]])], (-4, 3)),
        ("GatherND", {"batch_dims": 1}, lambda i: [X, integers([[0], [1], [i]])], (-4, 3)),
        (
            "ScatterElements",
            {"axis": 1},
            lambda i: [X, integers([[0], [1], [i]]), COLUMN],
            (-4, 3),
        ),
        ("ScatterND", {}, lambda i: [X, integers([[0, i]]), COLUMN[0]], (-4, 3)),
        (
            "NegativeLogLikelihoodLoss",
            {"ignore_index": 9},
            lambda i: [X, integers([0, 9, i])],
            (0, 3),
        ),
        (
            "RoiAlign",
            {"output_height": 2, "output_width": 2},
            lambda i: [IMAGES, CORNERS, integers([i])],
            (0, 1),
        ),
        ("RotaryEmbedding", {}, lambda i: [PAIR, COLUMN, COLUMN, integers([[i]])], (0, 2)),
        ("TensorScatter", {"axis": 1}, lambda i: [PAST, PAST[:, :3], integers([i])], (0, 1)),
        (
            "RNN",
            {"hidden_size": 3},
            lambda i: [SEQUENCES, *WEIGHTS, None, np.array([i], np.int32)],
            (0, 3),
        ),
        ("ReverseSequence", {}, lambda i: [X, integers([1, 2, 3, i])], (0, 3)),
        ("CumSum", {}, lambda i: [X, integers(i)], (-2, 1)),
        ("TopK", {}, lambda i: [X, integers([i])], (0, 4)),
    ],
)
def test_index_outside_its_range_is_excluded(operator, attributes, operands_at, bounds):
    least, most = bounds
    assert fault_of(operator, operands_at(least), attributes) == ""
    assert fault_of(operator, operands_at(most), attributes) == ""
    for value in (least - 1, most + 1):
        fault = fault_of(operator, operands_at(value), attributes)
        assert fault.endswith(f" {value}, which is not in [{least}, {most}]"), fault
        assert f": {operator} has the " in fault


@pytest.mark.parametrize(
    ("operator", "operands", "attributes", "excluded"),
    [
        ("Slice", [X, integers([0, 0]), integers([1, 1]), integers([0, -2])], {}, "axis 0 twice"),
        ("Slice", [X, integers([0]), integers([1]), integers([0]), integers([0])], {}, "step 0"),
        ("Pad", [X, integers([1] * 4), None, integers([1, -1])], {}, "axis 1 twice"),
        ("Conv", [IMAGES, np.ones((2, 2, 1, 1), np.float32)], {}, "1 channels, but weights for 2"),
        ("ConvTranspose", [IMAGES, IMAGES], {}, "1 channels, but weights for 2"),
        ("PRelu", [X, X[0, :3]], {}, "does not broadcast to (3, 4)"),
        ("Reshape", [X, integers([5])], {}, "12 elements for the shape (5,)"),
        ("Split", [X, integers([1, 1])], {}, "sum is 2 instead of 3"),
        ("Split", [X, integers([4, -1])], {}, "length -1"),
        ("Tile", [X, integers([2])], {}, "1 elements instead of 2"),
        ("Reshape", [X, integers([-1, -1])], {}, "dimension -1 twice"),
        ("Reshape", [X, integers([-2, 6])], {}, "dimension -2"),
        ("Resize", [X, None, np.array([1, 0], np.float32)], {}, "scale"),
        ("Div", [integers([4]), integers([0])], {}, "divisor of 0"),
        ("Erf", [integers([2])], {}, "the result is not an integer"),
        ("Range", [integers(1), integers(4), integers(0)], {}, "step 0"),
        ("OneHot", [integers([0]), integers(-3), X[0, :2]], {}, "depth -3"),
        ("LayerNormalization", [X, X[0]], {"axis": 2}, "axis 2, which is not in [-2, 1]"),
        ("HannWindow", [integers(-3)], {}, "size -3"),
        ("DepthToSpace", [IMAGES], {"blocksize": 2}, "1 channels"),
        ("Cast", [np.array([np.nan], np.float32)], {"to": 7}, "the value nan"),
        ("Cast", [np.array([2.0**63])], {"to": 7}, "out of the range of int64"),
        ("Cast", [np.array([-1.0])], {"to": 2}, "out of the range of uint8"),
        ("ScatterElements", [X[0], integers([1, 1]), X[1, :2]], {}, "two different updates"),
        ("ScatterND", [X[0], integers([[1], [-3]]), X[1, :2]], {}, "two different updates"),
        ("QuantizeLinear", [X, np.float32(0)[...]], {}, "scale 0"),
        (
            "RNN",
            [SEQUENCES, *WEIGHTS],
            {"hidden_size": 2},
            "W of shape (1, 3, 4) instead of (1, 2, 4)",
        ),
        ("RNN", [SEQUENCES, *WEIGHTS, X[:1]], {}, "B of shape (1, 4) instead of (1, 6)"),
        ("GRU", [SEQUENCES, *WEIGHTS], {}, "W of shape (1, 3, 4) instead of (1, 9, 4)"),
        ("LSTM", [SEQUENCES, *WEIGHTS], {}, "W of shape (1, 3, 4) instead of (1, 12, 4)"),
        (
            "AffineGrid",
            [np.ones((2, 2, 3), np.float32), integers([3, 1, 4, 4])],
            {},
            "theta of shape (2, 2, 3) instead of (3, 2, 3)",
        ),
        ("GridSample", [IMAGES[:1], PAIR * np.float32(np.nan)], {}, "the coordinate NaN"),
        (
            "GridSample",
            [IMAGES[:1], PAIR * np.float32(np.inf)],
            {"padding_mode": "reflection"},
            "an infinite coordinate",
        ),
        (
            "Col2Im",
            [X.reshape(1, 4, 3)[..., :1], integers([4, 4]), integers([2, 2])],
            {"pads": [0, 0, -1, -1]},
            "the padding -1",
        ),
        ("QuantizeLinear", [X, X[0, 1], np.zeros(2, np.uint8)], {}, "zero points of 2 elements"),
        (
            "DeformConv",
            [IMAGES[:1], IMAGES[:, :, :1, :1], np.zeros((1, 2, 4, 4), np.float32), X[0, :1]],
            {},
            "a bias of 1 elements instead of 2",
        ),
        ("Conv", [IMAGES, IMAGES[:1], X[:1, :1]], {}, "B of shape (1, 1) instead of a vector"),
        ("Conv", [IMAGES, IMAGES[:1]], {"pads": [0, 0, 0, -1]}, "the padding -1"),
        ("Conv", [IMAGES, IMAGES], {"kernel_shape": [3, 3]}, "a kernel_shape of (3, 3)"),
        ("ConvTranspose", [IMAGES, IMAGES[:1]], {"pads": [-1, 0, 0, 0]}, "the padding -1"),
        (
            "ConvTranspose",
            [IMAGES, IMAGES[:1]],
            {"output_padding": [0, 2], "strides": [2, 2]},
            "the output padding 2, which is not in [0, 1]",
        ),
        ("MaxPool", [IMAGES], {"kernel_shape": [2, 2], "strides": [0, 1]}, "the stride 0"),
        (
            "ConvInteger",
            [BYTES, BYTES[:, :, :2, :2], None, np.zeros(3, np.uint8)],
            {},
            "w_zero_point of shape (3,) instead of () or (2,)",
        ),
        (
            "MatMulInteger",
            [BYTES[0, 0], BYTES[0, 0], np.zeros(3, np.uint8)],
            {},
            "a_zero_point of shape (3,) instead of (4,) or (4, 1)",
        ),
        (
            "MatMulInteger",
            [BYTES, BYTES, None, np.zeros((1, 1, 4, 1), np.uint8)],
            {},
            "b_zero_point of shape (1, 1, 4, 1) instead of (2, 1, 1, 4)",
        ),
        (
            "QLinearMatMul",
            [BYTES[0, 0], X[0, 1:], BYTES[0, 0, 0, 1:], BYTES[0, 0], *ONE, *ONE],
            {},
            "a_scale of shape (3,) instead of (4,) or (4, 1)",
        ),
        (
            "QLinearMatMul",
            [BYTES[0, 0], *ONE, BYTES[0, 0], X[0], BYTES[0, 0, 0, 1:], *ONE],
            {},
            "b_scale of shape (4,) and b_zero_point of another",
        ),
        (
            "QLinearConv",
            [BYTES, *ONE, BYTES[:, :, :2, :2], X[0, 1:], BYTES[0, 0, 0, 1:], *ONE],
            {},
            "w_scale of shape (3,) instead of () or (2,)",
        ),
        ("InstanceNormalization", [WEIGHTS[0], X[0], X[0]], {}, "scale of shape (4,)"),
        ("LayerNormalization", [X, X[None]], {}, "which does not broadcast to (3, 4)"),
        ("Clip", [X, X[0]], {}, "min of shape (4,) instead of a scalar"),
        ("Clip", [X[0, 0, ...], X[0, :1]], {}, "min of shape (1,), which does not broadcast to ()"),
        (
            "Attention",
            [PAIR, PAIR, PAIR, np.zeros((1, 1, 1, 1, 1), np.float32)],
            {},
            "attn_mask of shape (1, 1, 1, 1, 1), which does not broadcast",
        ),
        ("Attention", [PAIR, PAIR, PAIR[:, :, [0, 0]]], {}, "V of shape (1, 1, 2, 2)"),
        ("TopK", [X, integers([1, 2])], {}, "K of 2 elements instead of 1"),
        ("ScatterElements", [X, integers([[1]]), X], {}, "updates of shape (3, 4)"),
        ("NonMaxSuppression", [CORNERS[None], PAIR[0]], {}, "scores of shape (1, 1, 2)"),
        (
            "STFT",
            [IMAGES.reshape(2, 16, 1), integers([4]), X[0, :3], integers([4])],
            {},
            "a window of 3 elements instead of 4",
        ),
        ("BatchNormalization", [X, *[X[0, :3]] * 4], {}, "scale of shape (3,) instead of (4,)"),
        ("BlackmanWindow", [integers([4, 4])], {}, "size of shape (2,) instead of a scalar"),
        ("CenterCropPad", [X, integers([2])], {}, "a shape of 1 elements instead of 2"),
        ("Compress", [X, X > 0], {}, "condition of shape (3, 4) instead of a vector"),
        ("ConstantOfShape", [integers([[2]])], {}, "input of shape (1, 1) instead of a vector"),
        ("CumSum", [X, integers([0, 1])], {}, "axis of shape (2,) instead of a scalar"),
        ("DFT", [X], {}, "input of shape (3, 4) instead of (3, 1) or (3, 2)"),
        (
            "DequantizeLinear",
            [BYTES, X[0, :2], BYTES[0, 0, 0, :1]],
            {"axis": 0},
            "zero points of 1 elements instead of 2",
        ),
        ("Dropout", [X, X[0]], {}, "ratio of shape (4,) instead of a scalar"),
        (
            "Dropout",
            [X, np.float32(1.5), np.array(True)],
            {},
            "the ratio 1.5, which is not in [0, 1)",
        ),
        ("Expand", [X, integers([[3, 4]])], {}, "shape of shape (1, 2) instead of a vector"),
        ("Gemm", [X, X, X[0]], {"transB": 1}, "which does not broadcast to (3, 3)"),
        (
            "GroupNormalization",
            [IMAGES, X[0], X[0]],
            {"num_groups": 1},
            "scale of shape (4,) instead of (1,)",
        ),
        (
            "MaxUnpool",
            [IMAGES, integers([0])],
            {"kernel_shape": [1, 1]},
            "I of shape (1,) instead of (2, 1, 4, 4)",
        ),
        ("NegativeLogLikelihoodLoss", [X, integers([0, 1])], {}, "labels of shape (2,)"),
        ("RMSNormalization", [X, X[:, 0]], {}, "scale of shape (3,), which does not broadcast"),
        ("ReverseSequence", [X, integers([[1] * 4])], {}, "sequence_lens of shape (1, 4)"),
        ("RoiAlign", [IMAGES, CORNERS, integers([0, 1])], {}, "batch_indices of shape (2,)"),
        ("RotaryEmbedding", [PAIR, PAIR[0], PAIR[0]], {}, "cos_cache of shape (1, 1, 2)"),
        (
            "SoftmaxCrossEntropyLoss",
            [X, integers([0] * 3), X[0, :2]],
            {},
            "weights of 2 elements instead of 4",
        ),
        ("TensorScatter", [PAST, PAST, integers([[0]])], {}, "write_indices of shape (1, 1)"),
        ("Trilu", [X, integers([0, 1])], {}, "k of shape (2,) instead of a scalar"),
    ],
)
def test_inputs_without_a_defined_result_are_excluded(operator, operands, attributes, excluded):
    assert excluded in fault_of(operator, operands, attributes)


@pytest.mark.parametrize(
    ("operator", "operands", "attributes"),
    [
        ("Slice", [X, integers([9]), integers([-9]), integers([-1]), integers([-2])], {}),
        ("Reshape", [X, integers([0, -1])], {}),
        ("Div", [X, np.zeros((), np.float32)], {}),
        ("Cast", [np.array([-0.9, 255.9])], {"to": 2}),
        ("Cast", [np.array([np.inf, np.nan])], {"to": 1}),
        ("Cast", [np.array([-9.0])], {"to": onnx.TensorProto.INT4}),
        ("ScatterElements", [X[0], integers([1, 1]), X[1, :2]], {"reduction": "add"}),
        ("ScatterElements", [X[0], integers([1, 1]), X[1, [0, 0]]], {}),
        ("ScatterElements", [X[0], integers([1]), np.full(1, np.nan, np.float32)], {}),
        ("ScatterElements", [X[0], integers([0, 1, 1]), NAN_AND_ONES], {}),
        ("ScatterElements", [X[0], integers([0, 0, 1]), NAN_AND_ONES[[0, 0, 1]]], {}),
        ("TensorScatter", [PAST, PAST, integers([3])], {"axis": 1, "mode": "circular"}),
        ("TensorScatter", [PAST, PAST, integers([-1])], {"axis": 1, "mode": "circular"}),
        ("Resize", [IMAGES[:0], None, None, integers([0, 1, 8, 8])], {}),
        ("Div", [integers([]), integers([0])], {}),
        ("QuantizeLinear", [X[:0], np.float32(0)[...]], {}),
        ("QuantizeLinear", [X, X[0, 1:2], np.zeros((), np.uint8)], {}),
        ("STFT", [IMAGES.reshape(2, 16, 1), integers(4), None, integers(17)], {}),
        ("GroupNormalization", [IMAGES[:0], X[0, :1], X[0, :1]], {"num_groups": 1}),
        ("GridSample", [IMAGES, np.full((2, 1, 1, 2), np.inf, np.float32)], {}),
        ("ConvTranspose", [IMAGES, IMAGES[:1]], {"pads": [-1] * 4, "output_shape": [6, 6]}),
        ("Clip", [X, X[0, :1]], {}),
        ("MatMulInteger", [BYTES, BYTES, np.zeros((2, 1, 4, 1), np.uint8)], {}),
        ("Dropout", [X, np.float32(1.5), np.array(False)], {}),
    ],
)
def test_unusual_but_defined_inputs_are_not_excluded(operator, operands, attributes):
    assert fault_of(operator, operands, attributes) == ""


@pytest.mark.parametrize(
    ("lengths", "attributes", "fault"),
    [
        (None, {"num_outputs": 3}, "2 outputs instead of 3"),
        ([1, 1, 1], {}, "2 outputs instead of 3"),
        (None, {"split": [3]}, "2 outputs instead of 1"),
        ([0, 3], {}, ""),
        (None, {"num_outputs": 2}, ""),
    ],
)
def test_split_has_an_output_for_each_part(lengths, attributes, fault):
    node = helper.make_node("Split", ["x", "lengths"], ["y", "z"], **attributes)
    operands = [X, None if lengths is None else integers(lengths)]
    message = excluded_input(node, operands, opset=18, is_model=True)
    assert message.rpartition("Split has ")[2] == fault


def test_tile_of_version_1_repeats_along_one_axis():
    node = helper.make_node("Tile", ["x", "tiles", "axis"], ["y"])
    operands = [X, np.array(2, np.float32), np.array(1, np.float32)]
    assert excluded_input(node, operands, opset=1, is_model=True) == ""


def test_slope_in_early_versions_of_prelu_has_an_element_for_each_channel():
    inputs = {"x": np.full((1, 3, 2, 3), -1, np.float32), "slope": X[:, 1]}
    model = model_of([helper.make_node("PRelu", ["x", "slope"], ["y"])], inputs, opset=6)
    ((output,),) = (reading.conditioned_outputs for reading in all_readings(model, inputs))
    np.testing.assert_array_equal(output.right[0][0][0, :, 0, 0], -X[:, 1])


@pytest.mark.parametrize("operator", sorted(set().union(*FAMILIES.values())))
def test_generated_nodes_of_all_versions_are_not_excluded(operator):
    for schema in schemas(operator):
        for seed in range(12):
            with suppress(Unsuitable):
                generated = draw_seeded(schema, seed)
                names = [f"x{i}" if v is not None else "" for i, v in enumerate(generated.values)]
                outputs = [f"y{place}" for place in range(len(generated.requested))]
                node = helper.make_node(operator, names, outputs, domain=schema.domain)
                node.attribute.extend(
                    attribute_message(schema, name, value)
                    for name, value in generated.attributes.items()
                )
                fault = excluded_input(
                    node, generated.values, opset=schema.since_version, is_model=True
                )
                assert not fault, (schema.since_version, seed, fault)


def test_computed_index_out_of_bounds_is_excluded():
    nodes = [
        helper.make_node("Mul", ["i", "i"], ["square"]),
        helper.make_node("Gather", ["x", "square"], ["y"]),
    ]
    inputs = {"x": X[:, 0], "i": integers([0, 2])}
    with pytest.raises(
        NoReferenceError, match=r"Gather has the index 4, which is not in \[-3, 2\]"
    ):
        all_readings(model_of(nodes, inputs), inputs)
    inputs["i"] = integers([0, 1])
    assert all_readings(model_of(nodes, inputs), inputs)


def test_case_is_not_excluded_if_the_reference_fails_at_an_empty_tensor():
    # The operand of ArgMax is empty, but no input of the graph is.
    nodes = [
        helper.make_node("Slice", ["x", "first", "first"], ["rows"]),
        helper.make_node("ArgMax", ["rows"], ["y"]),
    ]
    inputs = {"x": X, "first": integers([0])}
    with pytest.raises(NoReferenceError, match="does not run it in double"):
        all_readings(model_of(nodes, inputs), inputs)


def test_undefined_elements_inside_a_model_do_not_exclude_the_model():
    nodes = [
        helper.make_node("Cast", ["x"], ["integers"], to=7),
        helper.make_node("Cast", ["integers"], ["floats"], to=1),
        helper.make_node("Where", ["choices", "floats", "x"], ["y"]),
    ]
    inputs = {"x": np.array([1, np.inf], np.float32), "choices": np.array([True, False])}
    assert all_readings(model_of(nodes, inputs), inputs)


@pytest.mark.parametrize("operator", ["Linear", "SVM", "TreeEnsemble"])
def test_classifier_without_class_labels_is_excluded(operator):
    node = helper.make_node(f"{operator}Classifier", ["x"], ["y", "z"], domain="ai.onnx.ml")
    assert "no class labels" in excluded_input(node, [X], opset=1, is_model=True)
    attributes = {"classlabels_ints": [0, 1], "classlabels_strings": ["a", "b"]}
    node.attribute.extend(starmap(helper.make_attribute, attributes.items()))
    fault = excluded_input(node, [X], opset=1, is_model=True)
    assert "both classlabels_ints and classlabels_strings" in fault


@pytest.mark.parametrize(
    ("operator", "operands", "attributes"),
    [
        ("QuantizeLinear", [X, X[:, 1]], {"axis": 1}),
        ("Einsum", [X, X], {"equation": "ij,jk->ik"}),
    ],
)
def test_reference_rejects_operands_that_do_not_fit(operator, operands, attributes):
    assert rejection(operator, operands, attributes).startswith(f"{REJECTED}: ValueError: ")


@pytest.mark.parametrize(
    ("operator", "operands", "attributes"),
    [
        # The output would exceed the largest array of NumPy.
        ("Expand", [X[:1, :1], integers([2**62, 2])], {}),
        # NumPy raises ValueError for some valid operations on empty arrays.
        ("ArgMax", [X[:0]], {}),
    ],
)
def test_valid_operands_on_which_the_reference_fails_are_not_rejected(
    operator, operands, attributes
):
    reason = rejection(operator, operands, attributes)
    assert reason.startswith("onnx's reference does not run it")


@pytest.mark.parametrize("operator", ["SequenceErase", "SequenceInsert"])
def test_case_with_an_excluded_position_is_invalid(onnxopt, tmp_path, operator):
    element = ["x"] if operator == "SequenceInsert" else []
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["sequence"]),
        helper.make_node(operator, ["sequence", *element, "i"], ["changed"]),
        helper.make_node("ConcatFromSequence", ["changed"], ["y"], axis=0),
    ]
    path, data = tmp_path / "model.onnx", tmp_path / "inputs.npz"
    onnx.save(model_of(nodes, {"x": X[0], "i": integers(0)}), path)
    codes = {}
    for position in (-3, -2, 1, 2, 3):
        np.savez(data, x=X[0], i=integers(position))
        result = onnxopt("run", path, "--inputs", data, "-b", "onnx-reference", "--no-explain")
        codes[position] = result.code
    assert codes == {-3: 2, -2: 0, 1: 0, 2: 0 if operator == "SequenceInsert" else 2, 3: 2}


def test_case_with_an_excluded_index_is_invalid_on_every_backend(onnxopt, tmp_path):
    node = helper.make_node("ArrayFeatureExtractor", ["x", "i"], ["y"], domain="ai.onnx.ml")
    model = model_of([node], {"x": X, "i": integers([0])})
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    path, data = tmp_path / "model.onnx", tmp_path / "inputs.npz"
    onnx.save(model, path)
    np.savez(data, x=X, i=integers([-1]))
    result = onnxopt("run", path, "--inputs", data, "-b", "onnx-reference", "--no-explain")
    assert result.code == 2
    assert "the index -1, which is not in [0, 3]" in " ".join(result.text.replace("│", " ").split())
